"""How one proxy is measured once; each function starts it, runs clients and returns figures."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from loadtest.figures import Bulk, Idle, Many, Newcomers, Requests, Stream
from loadtest.processes import (
    LOAD_CORE,
    cpu_seconds,
    proportional_bytes,
    read_line,
    resident_bytes,
    run_program,
    running,
)

Serve = Callable[[int], AbstractContextManager[tuple[int, int]]]
"""Runs a proxy for a number of sandboxes while a context lasts: its process id and port."""

CLIENTS = "loadtest.client_programs"

WARM_UP_SECONDS = 1.0

FEW_SANDBOXES = 100

BUSY_CONNECTIONS = 64

SETTLE_SECONDS = 0.5
"""A proxy may tidy up after a request before its memory is read."""


class WrongAnswer(Exception):
    """A proxy answered wrongly, so that its figures would mean nothing."""


@contextmanager
def stub_sandboxes(first: int, count: int) -> Iterator[None]:
    """Run stub sandboxes on the core of the load."""
    command = [sys.executable, "-m", "loadtest.stubs", str(first), str(count)]
    with running(command, core=LOAD_CORE) as process:
        read_line(process, "ready")
        yield


def measure_requests(
    serve: Serve, *, connections: int, seconds: float, sandboxes: int, ways: tuple[str, ...] = ()
) -> Requests:
    """Run the load; `ways` are options of its program."""
    arguments = ("--connections", str(connections), "--sandboxes", str(sandboxes), *ways)
    with serve(sandboxes) as (pid, port):
        _run_load(port, *arguments, seconds=WARM_UP_SECONDS)
        before = cpu_seconds(pid)
        result = _run_load(port, *arguments, seconds=seconds)
        used = cpu_seconds(pid) - before
        memory = resident_bytes(pid)
    requests = result["requests"]
    return Requests(
        cpu_ms=1e6 * used / requests,
        rate=requests / result["seconds"],
        p50_ms=result["p50_ms"],
        p99_ms=result["p99_ms"],
        resident_mb=memory / 1e6,
    )


def measure_bulk(
    serve: Serve, *, direction: str, megabytes: int, times: int, sandboxes: int
) -> Bulk:
    """Move large content."""
    with serve(sandboxes) as (pid, port):
        arguments = (direction, "--port", str(port), "--megabytes", str(megabytes))
        _run("bulk", *arguments, "--times", "1")
        before = cpu_seconds(pid)
        result = _run("bulk", *arguments, "--times", str(times))
        used = cpu_seconds(pid) - before
        memory = resident_bytes(pid)
    return Bulk(
        cpu_seconds_per_gb=used / result["bytes"] * 1e9,
        mb_per_second=result["bytes"] / result["seconds"] / 1e6,
        resident_mb=memory / 1e6,
    )


def measure_stream(serve: Serve, *, pieces: int, sandboxes: int) -> Stream:
    """Follow an event stream, each piece of which is awaited before the next is sent."""
    with serve(sandboxes) as (pid, port):
        _run("stream", "--port", str(port), "--pieces", "100")
        before = cpu_seconds(pid)
        result = _run("stream", "--port", str(port), "--pieces", str(pieces))
        used = cpu_seconds(pid) - before
        memory = resident_bytes(pid)
    return Stream(
        stream_cpu_ms=1000 * used, stream_seconds=result["seconds"], resident_mb=memory / 1e6
    )


def measure_idle(serve: Serve, *, connections: int, sandboxes: int) -> Idle:
    """Let connections wait, each of which was used once."""
    with serve(sandboxes) as (pid, port):
        # Every sandbox is asked before, over one connection: what it takes is not the clients'.
        once = ("--connections", "1", "--sandboxes", str(sandboxes), "--at-least", str(sandboxes))
        _run_load(port, *once, seconds=0.1)
        time.sleep(SETTLE_SECONDS)
        before = proportional_bytes(pid), resident_bytes(pid)
        arguments = ("--port", str(port), "--connections", str(connections))
        command = [sys.executable, "-m", f"{CLIENTS}.idle", *arguments]
        with running(command, core=LOAD_CORE) as clients:
            read_line(clients, "idle")
            time.sleep(SETTLE_SECONDS)
            after = proportional_bytes(pid), resident_bytes(pid)
            clients.communicate(timeout=60)
            if clients.returncode:
                raise WrongAnswer("it has dropped idle connections")
    pss, rss = (late - early for early, late in zip(before, after, strict=True))
    return Idle(
        pss_kb=pss / 1000 / connections,
        rss_kb=rss / 1000 / connections,
        resident_mb=after[1] / 1e6,
    )


def measure_many(serve: Serve, *, sandboxes: int, seconds: float) -> Many:
    """Do the same work over few sandboxes and over many."""
    few_cpu, few_memory, _ = _measure_round(serve, FEW_SANDBOXES, seconds)
    cpu, memory, resident = _measure_round(serve, sandboxes, seconds)
    return Many(
        cpu_ms=cpu,
        few_cpu_ms=few_cpu,
        times=cpu / few_cpu,
        sandbox_kb=(memory - few_memory) / 1000 / (sandboxes - FEW_SANDBOXES),
        resident_mb=resident / 1e6,
    )


def measure_newcomers(serve: Serve, *, newcomers: int, bursts: int, sandboxes: int) -> Newcomers:
    """Let newcomers in while others keep the proxy busy, which go on until all have come."""
    with serve(sandboxes) as (_, port):
        load = ("--port", str(port), "--connections", str(BUSY_CONNECTIONS), "--seconds", "0")
        command = [sys.executable, "-m", f"{CLIENTS}.load", *load]
        with running(command, core=LOAD_CORE) as busy:
            time.sleep(WARM_UP_SECONDS)
            numbers = ("--newcomers", str(newcomers), "--bursts", str(bursts))
            result = _run("newcomers", "--port", str(port), *numbers)
            output, _ = busy.communicate(timeout=60)
        behind = _check_load(json.loads(output))
    return Newcomers(
        first_p99_ms=result["p99_ms"],
        first_p50_ms=result["p50_ms"],
        first_longest_ms=result["longest_ms"],
        rate=behind["requests"] / behind["seconds"],
    )


def _measure_round(serve: Serve, sandboxes: int, seconds: float) -> tuple[float, float, float]:
    """Return CPU-ms for 1,000 requests, the memory before the first, and at the end."""
    arguments = ("--connections", str(BUSY_CONNECTIONS), "--sandboxes", str(sandboxes))
    with serve(sandboxes) as (pid, port):
        _run_load(port, seconds=0.1)
        idle = proportional_bytes(pid)
        # Dialling every sandbox is not what is measured: the first round is thrown away.
        _run_load(port, *arguments, "--at-least", str(sandboxes), seconds=WARM_UP_SECONDS)
        before = cpu_seconds(pid)
        result = _run_load(port, *arguments, seconds=seconds)
        used = cpu_seconds(pid) - before
        return 1e6 * used / result["requests"], idle, resident_bytes(pid)


def _run_load(port: int, *arguments: str, seconds: float) -> dict[str, float]:
    return _check_load(_run("load", "--port", str(port), *arguments, "--seconds", str(seconds)))


def _check_load(result: dict[str, float]) -> dict[str, float]:
    if result["failed"]:
        raise WrongAnswer(f"{result['failed']:.0f} of {result['requests']:.0f} requests failed")
    return result


def _run(program: str, *arguments: str) -> dict[str, float]:
    try:
        output = run_program(f"{CLIENTS}.{program}", *arguments)
    except RuntimeError as error:
        raise WrongAnswer(str(error)) from error
    result: dict[str, float] = json.loads(output)
    return result
