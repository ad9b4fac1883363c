"""The end of a claim moves with its use, and with few patches."""

from datetime import UTC, datetime, timedelta

import pytest
from support.dns_gateway import LoopbackPolicy

from sandgate_router.names import DEFAULT_PORT, Label
from sandgate_router.registry.base import Endpoint
from sandgate_router.registry.kubernetes.claim_table import ClaimTable
from sandgate_router.registry.kubernetes.idle import MAX_SILENCES, IdleWatch
from sandgate_router.registry.kubernetes.objects import ClaimObject, SandboxObject
from sandgate_router.registry.kubernetes.plan import format_instant
from sandgate_router.registry.kubernetes.table import SandboxTable
from sandgate_router.registry.local.health import NotHealthy

START = datetime(2026, 11, 30, 12, tzinfo=UTC)
IDLE = 400.0


class Trial:
    """One claim, the traffic of its sandbox, and a clock that a test moves."""

    def __init__(self, *, lease: float = 36000.0) -> None:
        self.time = 0.0
        self.busy = False
        self.ended: float | None = None
        self.running: int | Exception = 0
        self.asked = 0
        self.moves: list[float] = []
        """Seconds after the start to which the end was moved."""
        sandboxes = SandboxTable(LoopbackPolicy())
        self.claims = ClaimTable(sandboxes)
        self.idle = IdleWatch(
            self.claims,
            sandboxes,
            move=self._move,
            count_running=self._count,
            clock=lambda: self.time,
            now=lambda: START + timedelta(seconds=self.time),
        )
        self.idle.traffic = self
        self.claims.on_learn(self.idle.add)
        self._lease = lease
        self._version = 1
        sandboxes.learn(_sandbox())
        entry = sandboxes.of_claim("c-uid")
        assert entry is not None
        self.endpoint = sandboxes.open(entry, DEFAULT_PORT)
        self._learn(IDLE)

    async def spend(self, seconds: float, *, step: float = 5.0) -> None:
        """Let time pass, a sweep at every step, until then or the claim's end."""
        until = self.time + seconds
        while self.time < until and not self.is_over:
            self.time += step
            await self.idle.sweep()

    @property
    def is_over(self) -> bool:
        claim = self.claims.get((Label("default"), Label("c")))
        assert claim is not None
        assert claim.shutdown_at is not None
        return claim.shutdown_at <= START + timedelta(seconds=self.time)

    def is_busy(self, endpoint: Endpoint) -> bool:
        assert endpoint is self.endpoint
        return self.busy

    def last_end(self, endpoint: Endpoint) -> float | None:
        assert endpoint is self.endpoint
        return self.ended

    async def _count(self, endpoint: Endpoint) -> int:
        assert endpoint is self.endpoint
        self.asked += 1
        if isinstance(self.running, Exception):
            raise self.running
        return self.running

    async def _move(self, claim: ClaimObject, until: datetime) -> None:
        assert claim.key == ("default", "c")
        moment = (until - START).total_seconds()
        self.moves.append(moment)
        self._learn(moment)

    def _learn(self, shutdown: float) -> None:
        self._version += 1
        expires = START + timedelta(seconds=self._lease)
        self.claims.learn(
            ClaimObject(
                key=(Label("default"), Label("c")),
                uid="c-uid",
                version=self._version,
                pool="python",
                sandbox="sb",
                is_ready=True,
                reason="DependenciesReady",
                message="",
                is_finished=False,
                is_ending=False,
                created_at=START,
                shutdown_at=START + timedelta(seconds=shutdown),
                labels={},
                annotations={
                    "sandgate.dev/idle-seconds": f"{IDLE:.0f}",
                    "sandgate.dev/lease-expires-at": format_instant(expires),
                    "sandgate.dev/idempotency-hash": "x",
                },
            )
        )


def _sandbox() -> SandboxObject:
    return SandboxObject(
        key=(Label("default"), Label("sb")),
        uid="sb-uid",
        version=1,
        standing="ready",
        reason="",
        addresses=("127.1.0.1",),
        claim="c-uid",
        claim_name="c",
        launch="warm",
    )


async def test_a_claim_that_nobody_uses_ends_after_its_idle_time() -> None:
    trial = Trial()
    await trial.spend(1000)
    assert trial.time == pytest.approx(IDLE, abs=5)
    assert trial.moves == []
    assert trial.asked >= 1


async def test_use_moves_the_end_at_most_once_in_a_quarter_of_the_span() -> None:
    trial = Trial()
    trial.busy = True
    await trial.spend(4000)
    assert not trial.is_over
    assert 10 <= len(trial.moves) <= 41
    assert all(b - a >= IDLE / 4 for a, b in zip(trial.moves, trial.moves[1:], strict=False))


async def test_the_time_counts_from_the_end_of_the_last_use() -> None:
    trial = Trial()
    trial.ended = 30.0  # gains less than a quarter, yet must not be cut short
    await trial.spend(2000)
    assert 430 <= trial.time <= 440
    assert trial.moves == [430.0]


async def test_a_command_that_runs_is_use() -> None:
    trial = Trial()
    trial.running = 1
    await trial.spend(3000)
    assert not trial.is_over
    trial.running = 0
    await trial.spend(3000)
    assert trial.time < 6000
    assert trial.time <= 3000 + IDLE + 5


async def test_the_runtime_is_asked_only_near_the_end() -> None:
    trial = Trial()
    await trial.spend(IDLE * 3 / 4 - 10)
    assert trial.asked == 0


async def test_a_runtime_that_does_not_answer_gets_some_time_and_no_more() -> None:
    trial = Trial()
    trial.running = NotHealthy("hangs")
    await trial.spend(5000)
    assert trial.is_over
    assert IDLE < trial.time <= IDLE * (1 + MAX_SILENCES / 2)


async def test_no_end_is_moved_beyond_the_lease() -> None:
    trial = Trial(lease=900.0)
    trial.busy = True
    await trial.spend(2000)
    assert trial.time == pytest.approx(900, abs=5)
    assert trial.moves[-1] == 900.0


async def test_without_knowledge_of_traffic_nothing_is_moved() -> None:
    trial = Trial()
    trial.idle.traffic = None
    trial.busy = True
    await trial.spend(1000)
    assert trial.moves == []
