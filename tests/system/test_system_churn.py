"""Claims that come and go for hours, clients that leave in the midst: nothing stays behind.

SANDGATE_SOAK=1 does what an hour of one claim a second would. The gateway says itself how many
tasks it has, when it gets a signal; all else is seen from outside.
"""

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from support.raw_client import RawClient, connect, request
from support.system_gateway import (
    SystemGateway,
    children,
    descendants,
    memory,
    sandgate_up,
    wait_until,
)

SOAK = os.environ.get("SANDGATE_SOAK") == "1"
ROUNDS = int(os.environ.get("SANDGATE_CHURN_ROUNDS") or (3600 if SOAK else 40))
WARM_UP = ROUNDS // 10
WORKERS = 4
ABORTED = 0.05
"""Share of the clients that leave at a moment of chance, half of them by a reset."""

WARM, MOST = 4, 12
STILL = 10
"""Looks that must see the same before the gateway counts as settled."""

LEASE_SECONDS = 5
"""What a client that left behind its claim can leave at most."""

MOST_GROWTH = 32 * 2**20
"""Bytes. The last 8,192 events are kept, each with its claim; nothing else may grow."""

WITH_COUNT = """
import asyncio, gc, signal
from sandgate.cli import main

def count(*_):
    gc.collect()
    tasks = (each for each in gc.get_objects() if isinstance(each, asyncio.Task))
    print("tasks", sum(not task.done() for task in tasks), flush=True)

signal.signal(signal.SIGUSR1, count)
main()
"""

Stage = Literal["claim", "run", "release", "silence"]
STAGES: tuple[Stage, ...] = ("claim", "run", "release", "silence")


@dataclass(frozen=True)
class Standing:
    """What a gateway holds when nobody uses it."""

    tasks: int
    descriptors: int
    processes: int
    files: int
    orphans: int
    """Processes that came to this one when they lost their parents: an init's work."""
    ready: int
    claimed: int
    waiting: int


class Left(Exception):
    """The client is gone."""


@pytest.mark.timeout(7200 if SOAK else 120)
@pytest.mark.parametrize("isolation", ["bubblewrap", "none"])
def test_what_comes_and_goes_leaves_the_gateway_as_it_was(isolation: str) -> None:
    command = (sys.executable, "-c", WITH_COUNT)
    pool = {"warm": WARM, "max": MOST, "lease_seconds": LEASE_SECONDS}
    environ = {"SANDGATE_ACCESS_LOG": "off"}
    with sandgate_up(isolation=isolation, environ=environ, pool=pool, command=command) as gateway:
        churn = Churn(gateway)
        asyncio.run(churn.run(WARM_UP))
        before, resident = settle(gateway), memory(gateway.pid, "VmRSS")
        asyncio.run(churn.run(ROUNDS))
        after, grown = settle(gateway), memory(gateway.pid, "VmRSS") - resident
        sys.stdout.write(f"\n{isolation}: {dict(churn.outcomes)} {before} {after} +{grown} B\n")
        assert after == before
        assert after.orphans == 0
        assert grown < MOST_GROWTH
        assert churn.outcomes["ran"] > 0.9 * ROUNDS
        assert not churn.wrong, churn.wrong[:3]


class Churn:
    """Clients that claim, run a command through the gateway and release."""

    def __init__(self, gateway: SystemGateway) -> None:
        self._port = int(gateway.url.rpartition(":")[2])
        self.outcomes = Counter[str]()
        self.wrong: list[str] = []

    async def run(self, rounds: int) -> None:
        """Do so many rounds, some of them at once."""
        numbers = iter(range(rounds))

        async def work() -> None:
            for _ in numbers:
                await self._one_round()

        async with asyncio.TaskGroup() as workers:
            for _ in range(WORKERS):
                workers.create_task(work())

    async def _one_round(self) -> None:
        leaves = random.choice(STAGES) if random.random() < ABORTED else None
        async with connect(self._port) as client:
            try:
                await self._use_one(client, leaves)
            except Left:
                self.outcomes[f"left in {leaves}"] += 1
                leave = client.reset if random.random() < 0.5 else client.end
                leave()
            else:
                self.outcomes["ran"] += 1

    async def _use_one(self, client: RawClient, leaves: Stage | None) -> None:
        claim = await self._ask(client, "POST", "/v1/claims", 201, leaves == "claim", pool="python")
        fields = {"X-Sandbox-ID": claim["sandbox"], "X-Sandbox-Token": claim["token"]}
        word = claim["claim"]
        command = f"sh -c 'echo {word}{'; sleep 5' if leaves == 'run' else ''}'"
        ran = await self._ask(
            client, "POST", "/execute", 200, leaves == "run", fields, command=command
        )
        if ran["stdout"] != f"{word}\n":
            self.wrong.append(f"{ran} for {word}")
        if leaves == "silence":
            raise Left
        await self._ask(client, "DELETE", f"/v1/claims/default/{word}", 204, leaves == "release")

    async def _ask(
        self,
        client: RawClient,
        method: str,
        path: str,
        expected: int,
        leaves: bool,
        fields: dict[str, str] | None = None,
        **body: str,
    ) -> Any:
        content = json.dumps(body).encode()
        more = {
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            **(fields or {}),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in more.items())
        await client.send(request(path, method=method, sandbox=None, more=lines, body=content))
        if leaves:
            await asyncio.sleep(random.uniform(0, 0.05))
            raise Left
        answer = await client.read_answer()
        if answer.status != expected:
            self.wrong.append(f"{method} {path}: {answer.status} {answer.body[:200]!r}")
        return answer.json if answer.body else None


def settle(gateway: SystemGateway) -> Standing:
    """Wait until the last lease has ended and nothing changes any more; return what is held."""
    seen: list[Standing] = []
    with gateway.client() as client:

        def is_still() -> bool:
            seen.append(look(gateway, client))
            if seen[-1].ready > WARM:  # who left had a member started that stands ready now
                client.patch("/v1/pools/default/python", json={"warm": WARM})
            idle = seen[-1].claimed == 0 and seen[-1].ready == WARM
            return idle and seen[-STILL:] == [seen[-1]] * STILL

        wait_until(is_still, seconds=60)
    return seen[-1]


def look(gateway: SystemGateway, client: httpx.Client) -> Standing:
    """Return what the gateway holds now."""
    pool = client.get("/v1/pools/default/python").json()
    return Standing(
        tasks=count_tasks(gateway),
        descriptors=len(list(Path(f"/proc/{gateway.pid}/fd").iterdir())),
        processes=len(descendants(gateway.pid)),
        # `walk` leaves out what is removed meanwhile.
        files=sum(len(inside) + len(names) for _, inside, names in os.walk(gateway.temporary)),
        orphans=len(children(os.getpid()) - {gateway.pid}),
        ready=pool["ready"],
        claimed=pool["claimed"],
        waiting=pool["waiting"],
    )


def count_tasks(gateway: SystemGateway) -> int:
    """Return how many tasks the gateway says it has."""
    gateway.signal(signal.SIGUSR1)
    while not (line := gateway.read_line("")).startswith("tasks "):
        continue  # a line of its welcome
    return int(line.removeprefix("tasks "))
