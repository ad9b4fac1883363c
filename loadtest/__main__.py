"""`python -m loadtest`: CPU for 1,000 requests of the gateway, and what clients see."""

import argparse
import json
import platform
import statistics
from dataclasses import dataclass

from loadtest.processes import cpu_seconds, gateway, resident_bytes, run_load, stub_sandboxes


@dataclass(frozen=True, slots=True)
class Row:
    """One run at one number of connections."""

    connections: int
    cpu_ms: float
    """CPU-milliseconds of the proxy for 1,000 requests."""
    rate: float
    p50_ms: float
    p99_ms: float


def measure(*, connections: int, sandboxes: int, seconds: float) -> Row:
    """Run the load once against a fresh gateway; raise when an answer was wrong."""
    with gateway(sandboxes) as (pid, port):
        run_load(port=port, connections=connections, sandboxes=sandboxes, seconds=1.0)
        before = cpu_seconds(pid)
        result = json.loads(
            run_load(port=port, connections=connections, sandboxes=sandboxes, seconds=seconds)
        )
        used = cpu_seconds(pid) - before
        memory = resident_bytes(pid) / 2**20
    if result["failed"]:
        raise SystemExit(f"{result['failed']} of {result['requests']} requests failed")
    requests = result["requests"]
    print(f"  {requests} requests, {memory:.0f} MiB resident", flush=True)
    return Row(
        connections,
        1e6 * used / requests,
        requests / result["seconds"],
        result["p50_ms"],
        result["p99_ms"],
    )


def main() -> None:
    """Measure at 1, 64 and 512 connections, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sandboxes", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--connections", type=int, nargs="*", default=[1, 64, 512])
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {options.sandboxes} stub sandboxes")
    rows = []
    with stub_sandboxes(options.sandboxes):
        for connections in options.connections:
            runs = [
                measure(
                    connections=connections,
                    sandboxes=options.sandboxes,
                    seconds=options.seconds,
                )
                for _ in range(options.repeats)
            ]
            runs.sort(key=lambda row: row.cpu_ms)
            rows.append((runs, runs[len(runs) // 2]))
    print(
        f"{'connections':>11} {'CPU-ms/1000':>12} {'spread':>15} {'req/s':>8} {'p50':>8} {'p99':>8}"
    )
    for runs, median in rows:
        spread = f"{runs[0].cpu_ms:.1f}-{runs[-1].cpu_ms:.1f}"
        p99 = statistics.median(row.p99_ms for row in runs)
        print(
            f"{median.connections:>11} {median.cpu_ms:>12.1f} {spread:>15} {median.rate:>8.0f}"
            f" {median.p50_ms:>5.2f} ms {p99:>5.2f} ms"
        )


if __name__ == "__main__":
    main()
