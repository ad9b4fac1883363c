"""How fast sandboxes are claimed, and used for the first time: `python -m loadtest.claims`.

A gateway with real sandboxes, and clients that speak plain HTTP to it; nothing of the three
packages is imported. While a pool is full a claim waits for nothing, and that is what its figures
are about: the next round begins when all that were claimed are released and the pool is full
again. Under refill as many clients claim, run and release as fast as sandboxes start.

Nothing fails on a slow machine: figures are read by people. Each stands beside what is wanted of
a machine of two cores on which nothing else runs.
"""

import argparse
import contextlib
import http.client
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadtest.processes import read_line, running
from loadtest.report import describe_machine

ANY_CORE = -1
"""Sandboxes are started by the gateway, on its cores; so it has all of them."""

FULL_SECONDS = 600.0
"""How long a pool may take to be full; a start takes a third of a second."""

PARALLEL = 8
REFILL_CLIENTS = 4
REFILL_WARM = 8

ISOLATIONS = ("bubblewrap", "none")

WANTED = {
    "one client": "claim p50 5 ms, first answer p99 50 ms",
    "parallel clients": "300 claims/s",
    "under refill": "",
}


@dataclass(slots=True)
class Series:
    """What was measured of some claims."""

    claim: list[float] = field(default_factory=list)
    """Seconds from the request to the answer."""
    first: list[float] = field(default_factory=list)
    """Seconds from the claim's request to the answer of the first command."""
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """How long all the claims took, without the waits between rounds."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    isolation: str
    name: str
    claims: int
    failures: int
    rate: float
    """Claims a second."""
    claim_p50_ms: float
    claim_p99_ms: float
    first_p50_ms: float
    first_p99_ms: float
    longest_ms: float
    wanted: str


class Client:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def ask(
        self, method: str, path: str, body: object = None, fields: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send a request; return the answer's status and what its JSON says."""
        content = None if body is None else json.dumps(body)
        more = {} if body is None else {"Content-Type": "application/json"}
        self._connection.request(method, path, content, {**more, **(fields or {})})
        answer = self._connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None

    def claim(self, series: Series) -> tuple[dict[str, Any], float] | None:
        """Claim a sandbox; return the claim and when it was asked for."""
        begun = time.perf_counter()
        status, claim = self.ask("POST", "/v1/claims", {"pool": "python"})
        if status != 201:
            series.faults.append(f"claim: {status} {claim}")
            return None
        series.claim.append(time.perf_counter() - begun)
        return claim, begun

    def run(self, series: Series, claim: dict[str, Any], begun: float) -> None:
        """Run the first command."""
        fields = {"X-Sandbox-ID": claim["sandbox"], "X-Sandbox-Token": claim["token"]}
        status, ran = self.ask("POST", "/execute", {"command": "echo first"}, fields)
        if status != 200 or ran["stdout"] != "first\n":
            series.faults.append(f"command: {status} {ran}")
        else:
            series.first.append(time.perf_counter() - begun)

    def release(self, claim: dict[str, Any]) -> None:
        """Give the sandbox back."""
        self.ask("DELETE", f"/v1/claims/default/{claim['claim']}")

    def wait_until_full(self, members: int) -> None:
        """Return once so many members stand ready."""
        deadline = time.monotonic() + FULL_SECONDS
        while True:
            _, pool = self.ask("GET", "/v1/pools/default/python")
            if pool["ready"] >= members:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"the pool is not full in time: {pool}")
            time.sleep(0.05)


@contextlib.contextmanager
def gateway(isolation: str, *, warm: int, most: int) -> Iterator[int]:
    """Run a gateway with one pool; yield its port."""
    with tempfile.TemporaryDirectory() as folder:
        pools = Path(folder, "pools.yaml")
        pool = {"name": "python", "warm": warm, "max": most}
        pools.write_text(json.dumps({"pools": [pool]}))  # JSON is YAML
        settings = {
            "SANDGATE_LISTEN": "127.0.0.1:0",
            "SANDGATE_DRAIN_DELAY": "0",
            "SANDGATE_POOLS": str(pools),
            "SANDGATE_ISOLATION": isolation,
            "SANDGATE_ACCESS_LOG": "1/100",
        }
        command = [sys.executable, "-m", "sandgate_router", "up"]
        log = Path(folder, "log")
        with running(command, core=ANY_CORE, settings=settings, log=log) as process:
            try:
                line = read_line(process, "listening on ")
            except RuntimeError as error:
                raise RuntimeError(log.read_text()) from error
            yield int(line.rsplit(":", 1)[1])


def measure_full(port: int, *, members: int, rounds: int, clients: int) -> Series:
    """Empty a full pool in each round, by so many clients at once."""
    series, lines = Series(), [Client(port) for _ in range(clients)]

    def empty(client: Client) -> list[dict[str, Any]]:
        held = []
        for _ in range(members // clients):
            if (got := client.claim(series)) is not None:
                held.append(got[0])
                if clients == 1:
                    client.run(series, *got)
        return held

    with ThreadPoolExecutor(clients) as threads:
        for number in range(rounds):
            lines[0].wait_until_full(members)
            begun = time.perf_counter()
            held = [claim for part in threads.map(empty, lines) for claim in part]
            series.seconds += time.perf_counter() - begun
            for claim in held:
                lines[0].release(claim)
            _tell(f"{number + 1} of {rounds} rounds, {len(series.faults)} failures")
    return series


def measure_refill(port: int, *, seconds: float) -> Series:
    """Claim, run and release for some time, as fast as sandboxes start."""
    series = Series()
    begun = time.perf_counter()

    def use(client: Client) -> None:
        while time.perf_counter() < begun + seconds:
            if (got := client.claim(series)) is not None:
                client.run(series, *got)
                client.release(got[0])

    clients = [Client(port) for _ in range(REFILL_CLIENTS)]
    clients[0].wait_until_full(REFILL_WARM)
    begun = time.perf_counter()
    with ThreadPoolExecutor(REFILL_CLIENTS) as threads:
        list(threads.map(use, clients))
    series.seconds = time.perf_counter() - begun
    return series


def summarize(isolation: str, name: str, series: Series) -> Row:
    """Return the figures of some claims."""
    return Row(
        isolation,
        name,
        claims=len(series.claim),
        failures=len(series.faults),
        rate=len(series.claim) / series.seconds,
        claim_p50_ms=_at(series.claim, 50),
        claim_p99_ms=_at(series.claim, 99),
        first_p50_ms=_at(series.first, 50),
        first_p99_ms=_at(series.first, 99),
        longest_ms=_at(series.first or series.claim, 100),
        wanted=WANTED[name],
    )


def build_lines(rows: Sequence[Row], gap: str = "  ") -> list[str]:
    """Return a header and a line for each row."""
    header = (
        f"{'isolation':<10} {'claims':<16} {'count':>6} {'failed':>6} {'a second':>8}"
        f" {'p50 ms':>7} {'p99 ms':>7} {'first p50':>9} {'first p99':>9} {'longest':>8}"
    )
    lines = [f"{header}{gap}wanted"]
    lines += [
        f"{row.isolation:<10} {row.name:<16} {row.claims:>6} {row.failures:>6} {row.rate:>8.0f}"
        f" {row.claim_p50_ms:>7.1f} {row.claim_p99_ms:>7.1f} {row.first_p50_ms:>9.1f}"
        f" {row.first_p99_ms:>9.1f} {row.longest_ms:>8.0f}{gap}{row.wanted}"
        for row in rows
    ]
    return lines


def write_reports(folder: Path, rows: Sequence[Row], *, about: dict[str, object]) -> None:
    """Write claims.json and claims.md."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"about": about, "rows": [asdict(row) for row in rows]}
    (folder / "claims.json").write_text(json.dumps(content, indent=1) + "\n")
    facts = "\n".join(f"| {name} | {value} |" for name, value in about.items())
    table = "\n".join(build_lines(rows))
    (folder / "claims.md").write_text(
        "# Claims over HTTP\n\n`p50` and `p99` are of the claim's own request; `first` is from that"
        " request to the answer of the first command. A pool that is full is emptied, released and"
        " filled again before the next round.\n\n"
        f"| what | |\n|---|---|\n{facts}\n\n```\n{table}\n```\n"
    )


def main() -> None:
    """Measure, print, and write the reports where that is asked for."""
    options = _parse_options()
    rows: list[Row] = []
    for isolation in options.isolation:
        for name, measure in _plan(isolation, options):
            series = measure()
            rows.append(summarize(isolation, name, series))
            _tell(f"{isolation}, {name}: {series.faults[:3]}" if series.faults else "")
    print("\n".join(build_lines(rows)))
    if options.reports:
        about = {**describe_machine(), "members": options.members, "claims": options.claims}
        write_reports(options.reports, rows, about=about)


def _plan(
    isolation: str, options: argparse.Namespace
) -> Iterator[tuple[str, Callable[[], Series]]]:
    members = options.members
    rounds = -(-options.claims // members)
    with gateway(isolation, warm=members, most=members) as port:
        yield (
            "one client",
            lambda: measure_full(port, members=members, rounds=rounds, clients=1),
        )
        yield (
            "parallel clients",
            lambda: measure_full(port, members=members, rounds=3, clients=PARALLEL),
        )
    with gateway(isolation, warm=REFILL_WARM, most=4 * REFILL_WARM) as port:
        yield "under refill", lambda: measure_refill(port, seconds=options.seconds)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isolation", nargs="*", choices=ISOLATIONS, default=ISOLATIONS)
    parser.add_argument("--members", type=int, default=300, help="sandboxes of a full pool")
    parser.add_argument("--claims", type=int, default=3000, help="claims by one client")
    parser.add_argument("--seconds", type=float, default=30.0, help="of claims under refill")
    parser.add_argument("--reports", type=Path, help="folder for JSON and Markdown")
    return parser.parse_args()


def _at(values: Sequence[float], percent: int) -> float:
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] * 1000


def _tell(text: str) -> None:
    if text:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
