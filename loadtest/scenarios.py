"""What is measured: each function runs one proxy once and returns figures."""

import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from loadtest.processes import (
    LOAD_CORE,
    cpu_seconds,
    read_line,
    resident_bytes,
    run_program,
    running,
)

Serving = AbstractContextManager[tuple[int, int]]
"""A proxy that runs while the context lasts: its process id and port."""

WARM_UP_SECONDS = 1.0


class WrongAnswer(Exception):
    """A proxy answered wrongly, so that its figures would mean nothing."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Small requests over some connections."""

    cpu_ms: float
    """CPU-milliseconds of the proxy for 1,000 requests."""
    rate: float
    p50_ms: float
    p99_ms: float
    resident_mb: float


@dataclass(frozen=True, slots=True)
class Bulk:
    """Large content over one connection."""

    cpu_seconds_per_gb: float
    mb_per_second: float
    resident_mb: float


@contextmanager
def stub_sandboxes(count: int) -> Iterator[None]:
    """Run the stub sandboxes on the core of the load."""
    command = [sys.executable, "-m", "loadtest.stubs", str(count)]
    with running(command, core=LOAD_CORE) as process:
        read_line(process, "ready")
        yield


def measure_requests(
    serving: Serving, *, connections: int, sandboxes: int, seconds: float
) -> Requests:
    """Run the load against one proxy; raise WrongAnswer."""
    with serving as (pid, port):
        _run_load(port, connections=connections, sandboxes=sandboxes, seconds=WARM_UP_SECONDS)
        before = cpu_seconds(pid)
        result = _run_load(port, connections=connections, sandboxes=sandboxes, seconds=seconds)
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


def measure_bulk(serving: Serving, *, direction: str, megabytes: int, times: int) -> Bulk:
    """Move large content through one proxy; raise WrongAnswer."""
    with serving as (pid, port):
        arguments = ("loadtest.bulk", direction, "--port", str(port), "--megabytes", str(megabytes))
        _run(*arguments, "--times", "1")
        before = cpu_seconds(pid)
        result = _run(*arguments, "--times", str(times))
        used = cpu_seconds(pid) - before
        memory = resident_bytes(pid)
    return Bulk(
        cpu_seconds_per_gb=used / result["bytes"] * 1e9,
        mb_per_second=result["bytes"] / result["seconds"] / 1e6,
        resident_mb=memory / 1e6,
    )


def _run_load(port: int, *, connections: int, sandboxes: int, seconds: float) -> dict[str, float]:
    result = _run(
        *("loadtest.load", "--port", str(port), "--connections", str(connections)),
        *("--sandboxes", str(sandboxes), "--seconds", str(seconds)),
        seconds=seconds,
    )
    if result["failed"]:
        raise WrongAnswer(f"{result['failed']:.0f} of {result['requests']:.0f} requests failed")
    return result


def _run(*arguments: str, seconds: float = 60.0) -> dict[str, float]:
    try:
        result: dict[str, float] = json.loads(run_program(*arguments, seconds=seconds))
    except RuntimeError as error:
        raise WrongAnswer(str(error)) from error
    return result
