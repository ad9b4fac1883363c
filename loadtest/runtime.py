"""What a runtime costs and how fast it answers: `python -m loadtest.runtime`.

One runtime, one client, plain HTTP over loopback; nothing of the three packages is imported. Each
figure stands beside what is wanted on a machine of two cores. Nothing here fails on a slow
machine: figures are read by people.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx

COMMAND = (sys.executable, "-I", "-m", "sandgate_runtime", "--port", "0", "--root")
EVENTS = {"Accept": "text/event-stream"}
MIB = 1 << 20

STARTS = 10
RUNS = 300
SHORT_RUNS = 10_000
AT_ONCE = 100
FLOOD_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    name: str
    measured: str
    wanted: str


class Runtime:
    """A runtime of our own."""

    def __init__(self, base: str, state: str | None = None) -> None:
        started = time.perf_counter()
        self.process = subprocess.Popen(
            [*COMMAND, base],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=None if state is None else {**os.environ, "SANDGATE_STATE_DIR": state},
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]
        self.client = httpx.Client(base_url=self.url, timeout=120)
        self.client.get("/v1/health").raise_for_status()
        self.start_seconds = time.perf_counter() - started

    def resident_bytes(self) -> int:
        """Return the memory that it holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def descriptors(self) -> int:
        """Return how many it has open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def children(self) -> int:
        """Return how many children it has, ended ones included."""
        pid = self.process.pid
        return len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())

    def run(
        self, client: httpx.Client | None = None, *, key: str | None = None, **body: object
    ) -> float:
        """Run a command to its `exit`; return the seconds from request to event."""
        headers = EVENTS if key is None else {**EVENTS, "Idempotency-Key": key}
        started = time.perf_counter()
        client = client or self.client
        with client.stream("POST", "/v1/processes", json=body, headers=headers) as answer:
            answer.raise_for_status()
            last = b""
            for piece in answer.iter_raw():
                last = (last + piece)[-4096:]
        assert b"event: exit" in last, last
        return time.perf_counter() - started

    def stop(self) -> None:
        """End it."""
        self.client.close()
        self.process.terminate()
        self.process.wait(15)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def start(*, keep_state: bool = False) -> Iterator[Runtime]:
    """Yield a runtime that nobody has used."""
    with tempfile.TemporaryDirectory() as base, tempfile.TemporaryDirectory() as state:
        runtime = Runtime(base, state if keep_state else None)
        try:
            yield runtime
        finally:
            runtime.stop()


def measure_start() -> list[Figure]:
    """How long a start takes, and what it leaves in memory."""
    seconds, resident = [], []
    for _ in range(STARTS):
        with start() as runtime:
            seconds.append(runtime.start_seconds)
            resident.append(runtime.resident_bytes())
    return [
        Figure("start to the first answer", _ms(statistics.median(seconds)), "350 ms"),
        Figure("resident after the start", _mib(statistics.median(resident)), "30 MiB"),
    ]


def measure_short_runs() -> list[Figure]:
    """From the request to the `exit` of /bin/true, and with a key that is written down first."""
    with start() as runtime:
        for _ in range(20):
            runtime.run(argv=["/bin/true"])
        plain = sorted(runtime.run(argv=["/bin/true"]) for _ in range(RUNS))
    with start(keep_state=True) as runtime:
        keyed = sorted(runtime.run(key=str(n), argv=["/bin/true"]) for n in range(RUNS))
    return [
        Figure(name, f"{_ms(taken[RUNS // 2])}, {_ms(taken[RUNS * 99 // 100])}", wanted)
        for name, taken, wanted in (
            ("/bin/true, p50 and p99", plain, "6 ms p50"),
            ("  with a key, synced to disk", keyed, ""),
        )
    ]


def measure_leftovers() -> list[Figure]:
    """What many short runs leave behind."""
    with start() as runtime:
        for _ in range(200):
            runtime.run(shell="(true &) &")
        descriptors, resident = runtime.descriptors(), runtime.resident_bytes()
        began = time.perf_counter()
        for _ in range(SHORT_RUNS):
            runtime.run(shell="(true &) &")
        rate = SHORT_RUNS / (time.perf_counter() - began)
        time.sleep(0.5)
        left = runtime.descriptors() - descriptors
        return [
            Figure(f"{SHORT_RUNS:,} runs, one after the other", f"{rate:.0f} a second", ""),
            Figure("descriptors, processes left", f"{left}, {runtime.children()}", "0, 0"),
            Figure("memory that they left", _mib(runtime.resident_bytes() - resident), ""),
        ]


def measure_parallel() -> list[Figure]:
    """A hundred commands at the same time."""
    with start() as runtime, contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(httpx.Client(base_url=runtime.url, timeout=60))
            for _ in range(AT_ONCE)
        ]
        began = time.perf_counter()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda client: runtime.run(client, argv=["sleep", "1"]), clients))
        seconds = time.perf_counter() - began
        resident = runtime.resident_bytes()
    return [
        Figure(f"{AT_ONCE} times `sleep 1` at once", f"{seconds:.2f} s", ""),
        Figure("resident meanwhile", _mib(resident), ""),
    ]


def measure_flood() -> list[Figure]:
    """`yes`, watched and unwatched: what it moves the memory by, and how health answers."""
    figures = []
    for name, members, headers in (
        ("watched", {}, EVENTS),
        ("unwatched", {"detach": True}, {}),
    ):
        with start() as runtime, httpx.Client(base_url=runtime.url) as other:
            body = {"argv": ["yes"], "timeout": FLOOD_SECONDS, **members}
            before, highest, slowest = runtime.resident_bytes(), 0, 0.0
            with runtime.client.stream(
                "POST", "/v1/processes", json=body, headers=headers
            ) as answer:
                pieces = answer.iter_raw()
                end = time.perf_counter() + FLOOD_SECONDS
                size = 0
                while time.perf_counter() < end:
                    for _ in range(100):
                        size += len(next(pieces, b""))
                    began = time.perf_counter()
                    other.get("/v1/health").raise_for_status()
                    slowest = max(slowest, time.perf_counter() - began)
                    highest = max(highest, runtime.resident_bytes())
            rate = f"; {size / MIB / FLOOD_SECONDS:.0f} MiB/s of events" if size > MIB else ""
        grown = f"+{_mib(highest - before)}{rate}"
        figures.append(Figure(f"`yes` for {FLOOD_SECONDS} s, {name}", grown, "+16 MiB"))
        figures.append(Figure("  health meanwhile, slowest", _ms(slowest), "50 ms"))
    return figures


MEASUREMENTS: tuple[Callable[[], list[Figure]], ...] = (
    measure_start,
    measure_short_runs,
    measure_parallel,
    measure_flood,
    measure_leftovers,
)


def main() -> None:
    """Measure everything and print the table."""
    print(json.dumps({"python": sys.version.split()[0], "at": time.strftime("%Y-%m-%d")}))
    for measure in MEASUREMENTS:
        for figure in measure():
            print(f"{figure.name:36} {figure.measured:28} {figure.wanted}", flush=True)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _mib(size: float) -> str:
    return f"{size / MIB:.1f} MiB"


if __name__ == "__main__":
    main()
