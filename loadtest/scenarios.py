"""The work that is measured, by name: what is done, how often, and who cannot take part."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from loadtest.figures import Figures
from loadtest.measure import (
    BUSY_CONNECTIONS,
    FEW_SANDBOXES,
    Serve,
    measure_bulk,
    measure_idle,
    measure_many,
    measure_newcomers,
    measure_requests,
    measure_stream,
    stub_sandboxes,
)
from loadtest.peers import SPLICE, STARLETTE
from loadtest.report import PRIMARY

BULK_MEGABYTES = 100
BULK_TIMES = 5
STREAM_PIECES = 10_000
IDLE_CONNECTIONS = 1000
MANY_SANDBOXES = 10_000
NEWCOMERS = 200
BURSTS = 5

BESIDE_SECONDS = 2.0
"""Longest load of what stands beside the primary tables, so that a whole run stays bearable."""

MANY_DESCRIPTORS = MANY_SANDBOXES + 4096
"""A proxy keeps a connection to each sandbox, beside those of its clients."""

STUBS_IN_A_PROCESS = 5000
"""Each takes two descriptors: it listens, and it has a connection."""

NAMES = (
    PRIMARY,
    "identical",
    "reconnect",
    "download",
    "upload",
    "stream",
    "idle",
    "newcomers",
    "many",
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Work for every proxy."""

    name: str
    title: str
    note: str
    measure: Callable[[Serve], Figures]
    without: Sequence[str] = ()
    """Proxies that cannot take part; the note says why."""
    surroundings: Callable[[], AbstractContextManager[None]] = nullcontext


def build_scenarios(
    names: Sequence[str], *, connections: Sequence[int], seconds: float, sandboxes: int
) -> list[Scenario]:
    """Return the scenarios of these names, in the order of the report."""
    every = [
        *_build_small_requests(connections, seconds, sandboxes),
        *_build_content(sandboxes),
        *_build_crowds(sandboxes),
        _build_many(seconds),
    ]
    return [scenario for scenario in every if scenario.name in names]


def _build_small_requests(
    connections: Sequence[int], seconds: float, sandboxes: int
) -> list[Scenario]:
    load = partial(measure_requests, sandboxes=sandboxes)
    beside = partial(load, connections=BUSY_CONNECTIONS, seconds=min(seconds, BESIDE_SECONDS))
    primary = [
        Scenario(
            PRIMARY,
            f"{count} connection{'s' * (count > 1)}",
            "Small POSTs, each with a credential, a new request id and a new trace context.",
            partial(load, connections=count, seconds=seconds),
        )
        for count in connections
    ]
    return [
        *primary,
        Scenario(
            "identical",
            f"identical heads, {BUSY_CONNECTIONS} connections",
            "Beside the primary tables, not one of them: all requests to a sandbox are the same"
            " bytes, as no real client sends them.",
            partial(beside, ways=("--identical",)),
        ),
        Scenario(
            "reconnect",
            f"a new connection for each request, {BUSY_CONNECTIONS} at once",
            "The latencies are those from connecting to the whole answer.",
            partial(beside, ways=("--reconnect",)),
        ),
    ]


def _build_content(sandboxes: int) -> list[Scenario]:
    bulk = partial(measure_bulk, megabytes=BULK_MEGABYTES, times=BULK_TIMES, sandboxes=sandboxes)
    return [
        *(
            Scenario(
                direction,
                f"{direction} of {BULK_MEGABYTES} MB",
                "One connection, as fast as it goes.",
                partial(bulk, direction=direction),
            )
            for direction in ("download", "upload")
        ),
        Scenario(
            "stream",
            f"an event stream of {STREAM_PIECES:,} pieces",
            "Each piece is sent when the one before it has reached the client, so none can be held"
            " back and no two travel as one. The content is compared at the end.",
            partial(measure_stream, pieces=STREAM_PIECES, sandboxes=sandboxes),
        ),
    ]


def _build_crowds(sandboxes: int) -> list[Scenario]:
    return [
        Scenario(
            "idle",
            f"{IDLE_CONNECTIONS:,} idle client connections",
            "By how much the proxy grows for each; every one was used once, and answers again"
            " at the end. Left out: httpx, which takes half a minute over these requests.",
            partial(measure_idle, connections=IDLE_CONNECTIONS, sandboxes=sandboxes),
            without=(STARLETTE,),
        ),
        Scenario(
            "newcomers",
            f"{NEWCOMERS} newcomers while {BUSY_CONNECTIONS} connections keep the proxy busy",
            f"From connecting to the whole first answer, over {BURSTS} bursts; the rate is that"
            " of the others meanwhile. Left out: httpx, with which a burst takes a minute.",
            partial(measure_newcomers, newcomers=NEWCOMERS, bursts=BURSTS, sandboxes=sandboxes),
            without=(STARLETTE,),
        ),
    ]


def _build_many(seconds: float) -> Scenario:
    return Scenario(
        "many",
        f"{MANY_SANDBOXES:,} sandboxes, {BUSY_CONNECTIONS} connections",
        f"The same load over {FEW_SANDBOXES} stands beside it. nginx looks through its static"
        " groups one by one. Left out: the splice, which cannot choose a sandbox, and httpx,"
        " which looks through all its connections for each request.",
        partial(measure_many, sandboxes=MANY_SANDBOXES, seconds=min(seconds, BESIDE_SECONDS)),
        without=(SPLICE, STARLETTE),
        surroundings=_many_stubs,
    )


@contextmanager
def _many_stubs() -> Iterator[None]:
    """Run the stubs that are there for this one scenario."""
    with ExitStack() as stack:
        for first in range(FEW_SANDBOXES, MANY_SANDBOXES, STUBS_IN_A_PROCESS):
            count = min(STUBS_IN_A_PROCESS, MANY_SANDBOXES - first)
            stack.enter_context(stub_sandboxes(first, count))
        yield
