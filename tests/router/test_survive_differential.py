"""Real parsers behind the gateway, and chance in front of it.

Whatever odd request the gateway lets through, h11, aiohttp, node and nginx must each see exactly
once and alike (row M62). And whatever wrong bytes come, nothing hangs, nothing fails inside, and
no sandbox sees a request that its sender did not send and get the answer of.

SANDGATE_FUZZ_EXAMPLES raises the number of examples; SANDGATE_FUZZ_SEED chooses others.
"""

import asyncio
import base64
import contextlib
import functools
import itertools
import json
import logging
import os
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from support.parsers_behind import (
    H11Behind,
    aiohttp_behind,
    h11_behind,
    nginx_behind,
    nginx_is_here,
    node_behind,
    node_is_here,
    read_by_h11,
)
from support.raw_client import connect
from support.running_gateway import RunningGateway, running_gateway
from support.survive_probe import send_pieces, until
from support.survive_requests import Sent, good_requests, mutated, odd_requests

EXAMPLES = int(os.environ.get("SANDGATE_FUZZ_EXAMPLES", "0"))
SEED = int(os.environ.get("SANDGATE_FUZZ_SEED", "1"))

COMMON = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"]
KNOWN = [*COMMON, "PROPFIND", "PURGE", "M-SEARCH", "REPORT", "LOCK"]
ANY = [*KNOWN, "get", "X", "!#$%&'*+.^_`|~", "-BLARGH"]


def check_differences(
    behind: contextlib.AbstractAsyncContextManager[int], methods: list[str], *, tame: bool = False
) -> None:
    """Send drawn requests through a gateway to the server `behind` it."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stack = contextlib.AsyncExitStack()
        port = runner.run(stack.enter_async_context(behind))
        gateway = runner.run(stack.enter_async_context(running_gateway()))
        gateway.registry.add("sb", port)
        count = 0

        @settings(
            max_examples=EXAMPLES or 250,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(odd_requests(methods, tame=tame))
        def each(sent: Sent) -> None:
            nonlocal count
            seen = runner.run(asyncio.wait_for(what_is_seen(gateway, sent), 20))
            count = seen.pop("number") if seen["number"] == count + 1 else -1
            assert seen == {
                "method": sent.method.decode(),
                "target": sent.target.decode(),
                "body": sent.body.hex(),
            }
            assert count > 0, "another request arrived between the two"

        try:
            each()
        finally:
            runner.run(stack.aclose())


async def what_is_seen(gateway: RunningGateway, sent: Sent) -> dict[str, Any]:
    async with connect(gateway.port) as client:
        await send_pieces(client, [sent.raw[: sent.cut], sent.raw[sent.cut :]])
        answer = await client.read_answer(head_only=sent.method == b"HEAD")
        assert answer.status == 200, (answer.status, answer.body)
        assert answer.one("Connection") is None
        seen: dict[str, Any] = json.loads(base64.b64decode(answer.one("X-Seen") or ""))
        return seen


def test_m62_h11_sees_what_was_sent() -> None:
    check_differences(h11_behind(), ANY)


def test_m62_aiohttp_sees_what_was_sent() -> None:
    check_differences(aiohttp_behind(), KNOWN)


@pytest.mark.skipif(not node_is_here(), reason="node is not installed")
def test_m62_node_sees_what_was_sent() -> None:
    check_differences(node_behind(), KNOWN)


@pytest.mark.skipif(not nginx_is_here(), reason="nginx is not installed")
def test_m62_nginx_sees_what_was_sent(tmp_path: Path) -> None:
    check_differences(nginx_behind(tmp_path), COMMON, tame=True)


# Chance.

AT_ONCE = 48
"""Connections at the same time, so that answers could also go astray."""

PATIENCE = 20.0
"""Seconds after which a request has hung: every limit below is shorter than one."""


async def test_wrong_bytes_neither_hang_nor_break_nor_smuggle(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The gateway's own patience, shortened, since half of what is sent never ends.
    monkeypatch.setattr("sandgate_router.client.HEAD_SECONDS", 0.3)
    monkeypatch.setattr("sandgate_router.client.CONTENT_SECONDS", 0.3)
    monkeypatch.setattr("sandgate_router.client.KEEP_ALIVE_SECONDS", 0.2)
    caplog.set_level(logging.WARNING)
    broken: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: broken.append(repr(context))
    )
    count = EXAMPLES or 3000
    print(f"seed {SEED}, {count} requests")  # noqa: T201
    choose, good = random.Random(SEED), good_requests()
    cases = [mutated(choose, good, b"m%d" % number) for number in range(count)]
    cuts = [sorted(choose.choices(range(1, 400), k=choose.randint(0, 2))) for _ in cases]
    async with (
        H11Behind().running() as behind,
        running_gateway(PROXY_TIMEOUT_SECONDS="0.4") as gateway,
    ):
        gateway.registry.add("sb", behind.port, uid="u-1")
        answers = await at_once(
            [
                functools.partial(answers_to, gateway, raw, edges)
                for raw, edges in zip(cases, cuts, strict=True)
            ]
        )
        await until(lambda: not gateway.gateway.connections)
        assert gateway.gateway.relay.exchanges == set()
        assert gateway.gateway.metrics.inflight == 0
    assert broken == []
    assert [record.getMessage() for record in caplog.records] == []
    assert behind.faults == []
    judge(cases, answers, behind)


async def at_once(calls: list[Callable[[], Awaitable[bytes]]]) -> list[bytes]:
    """Make all calls, AT_ONCE of them at a time."""
    results = [b""] * len(calls)
    todo = iter(enumerate(calls))

    async def work() -> None:
        for number, call in todo:
            results[number] = await call()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(work())
    return results


async def answers_to(gateway: RunningGateway, raw: bytes, cuts: list[int]) -> bytes:
    """Return all that comes until the gateway closes."""
    async with connect(gateway.port) as client, asyncio.timeout(PATIENCE):
        edges = [0, *(cut for cut in cuts if cut < len(raw)), len(raw)]
        await send_pieces(client, [raw[a:b] for a, b in itertools.pairwise(edges)])
        return await client.read_rest()


def judge(cases: list[bytes], answers: list[bytes], behind: H11Behind) -> None:
    """Compare what was sent, what arrived, and what was answered."""
    delivered: Counter[int] = Counter()
    for raw, answer in zip(cases, answers, strict=True):
        assert answer or not raw.strip(b"\r\n"), (raw, "closed without an answer")
        serials = [int(serial) for serial in re.findall(rb"\r\nX-Serial: (\d+)\r\n", answer)]
        delivered.update(serials)
        arrived = [behind.seen[serial - 1] for serial in serials]
        for request in arrived:
            marks = [value for name, value in request.fields if name == b"x-app-marker"]
            assert all(mark in raw for mark in marks), (raw, request)
        # h11, reading what was sent, must find the same requests in the same order.
        found = iter(read_by_h11(raw))
        for request in arrived:
            wanted = (request.method, request.target, request.body)
            assert any((m, origin_form(t), b) == wanted for m, t, b in found), (raw, request)
    # Each request that arrived was answered, once, to the one who had sent it.
    assert delivered == Counter(range(1, len(behind.seen) + 1))
    assert len(behind.seen) > len(cases) / 10, "hardly anything got through: nothing was tested"


def origin_form(target: bytes) -> bytes:
    match = re.fullmatch(rb"(?i:https?)://[^/?]*(.*)", target)
    return target if match is None else match[1] if match[1].startswith(b"/") else b"/" + match[1]
