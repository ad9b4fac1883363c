"""Raw bytes against the gateway: how they arrive, and all that must come of them.

A refusal is one JSON answer, a closed connection that answers nothing more, no byte and no
connection to any sandbox, and no look-up; whoever asserts one asserts all of it.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from support.raw_client import PATIENCE, Answer, RawClient, connect, request
from support.running_gateway import RunningGateway, running_gateway
from support.scripted_upstream import OK, Script, ScriptedUpstream, UpstreamSide, answer_ok

from sandgate_router.client import ClientConnection

Cut = Callable[[bytes], Sequence[bytes]]


def whole(raw: bytes) -> Sequence[bytes]:
    return [raw]


def byte_by_byte(raw: bytes) -> Sequence[bytes]:
    return [raw[at : at + 1] for at in range(len(raw))]


def around_line_ends(raw: bytes) -> Sequence[bytes]:
    """Cut before, within and after each line end, and after each colon."""
    return [piece for piece in re.split(rb"(?<=[\r\n:])|(?=[\r\n])", raw) if piece]


def in_pieces(size: int) -> Cut:
    def cut(raw: bytes) -> Sequence[bytes]:
        return [raw[at : at + size] for at in range(0, len(raw), size)]

    return cut


def cut_at(place: int) -> Cut:
    return lambda raw: [raw[:place], raw[place:]]


EVERY_WAY: tuple[Cut, ...] = (whole, byte_by_byte, around_line_ends)
"""The ways in which one input must come to one end."""

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: sb\r\n\r\n"


@dataclass
class Stage:
    """A sandbox that records, and a gateway that knows it as `sb`."""

    upstream: ScriptedUpstream
    gateway: RunningGateway

    @property
    def port(self) -> int:
        return self.gateway.port

    def connection(self) -> ClientConnection:
        """Return the gateway's end of the only client connection."""
        (connection,) = self.gateway.gateway.connections
        return connection

    def assert_untouched(self) -> None:
        """Nothing was looked up, dialled or sent."""
        assert self.upstream.sides == []
        assert self.gateway.registry.look_ups == []
        assert self.gateway.dials == 0
        assert self.gateway.gateway.metrics.inflight == 0


@contextlib.asynccontextmanager
async def stage(script: Script = answer_ok, **settings: str) -> AsyncIterator[Stage]:
    """Run both; keyword arguments are settings by the name of their variable."""
    async with ScriptedUpstream(script).running() as upstream, running_gateway(**settings) as gate:
        gate.registry.add("sb", upstream.port)
        yield Stage(upstream, gate)


async def send_pieces(client: RawClient, pieces: Sequence[bytes]) -> None:
    """Send each piece by itself, and let the gateway read before the next."""
    for piece in pieces:
        await client.send(piece)
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a state that announces itself by no event."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)


def assert_own_answer(answer: Answer, status: int, code: str) -> None:
    """It has the shape of the gateway's errors, and tells nothing it should not."""
    assert (answer.status, answer.code) == (status, code)
    assert answer.one("Connection") == "close"
    assert answer.one("Content-Type") == "application/json"
    assert (answer.one("Proxy-Status") or "").startswith("sandgate; error=")
    assert set(answer.json) == {"detail", "code", "reached", "retry_safe"}
    assert answer.json["code"] == code
    assert not re.search(r"Traceback|Error\(|\d+\.\d+\.\d+\.\d+(?!/)", answer.json["detail"])


async def assert_closed(client: RawClient) -> None:
    """Nothing more is answered, not even a good request."""
    await client.send(request("/after"))
    assert await client.read_rest() == b""


async def assert_refused(
    raw: bytes, status: int, code: str, *, ways: Sequence[Cut] = EVERY_WAY, **settings: str
) -> Answer:
    """Send `raw` in each way and see it refused without a trace; return the last answer."""
    async with stage(answer_ok, **settings) as here:
        for way in ways:
            async with connect(here.port) as client:
                await send_pieces(client, way(raw))
                answer = await client.read_answer()
                assert_own_answer(answer, status, code)
                assert (answer.json["reached"], answer.json["retry_safe"]) == ("no", True)
                await assert_closed(client)
            here.assert_untouched()
        return answer


def without_gateway_fields(head: bytes) -> list[bytes]:
    """Return a head's lines as the sandbox got them, without what the gateway adds."""
    ours = (b"Host: sb.", b"X-Forwarded-", b"Via: ", b"X-Sandbox-Expect-")
    return [line for line in head[:-4].split(b"\r\n") if not line.startswith(ours)]


async def forwarded(
    raw: bytes, *, ways: Sequence[Cut] = EVERY_WAY, kept: bool = True, **settings: str
) -> tuple[list[bytes], bytes]:
    """Send one good request in each way; return the lines and the content the sandbox got.

    Each way must bring the sandbox the same bytes over the same connection, the client one
    answer, and, where the connection is kept, another answer to another request.
    """
    seen: list[tuple[bytes, bytes]] = []

    async def recording(side: UpstreamSide) -> None:
        while (got := await side.read_request())[0]:
            if not got[0].startswith(b"GET /next "):
                seen.append(got)
            side.send(OK.removesuffix(b"ok") if got[0].startswith(b"HEAD") else OK)

    async with stage(recording, **settings) as here:
        for way in ways:
            async with connect(here.port) as client:
                await send_pieces(client, way(raw))
                answer = await client.read_answer(head_only=raw.startswith(b"HEAD"))
                assert (answer.status, answer.code) == (200, None)
                if kept:
                    assert answer.one("Connection") is None
                    await client.send(request("/next", more="Authorization: Bearer secret\r\n"))
                    assert (await client.read_answer()).body == b"ok"
                else:
                    assert answer.one("Connection") == "close"
                    await assert_closed(client)
        assert len(seen) == len(ways)
        assert len(set(seen)) == 1, seen
        assert len(here.upstream.sides) == 1
    return without_gateway_fields(seen[0][0]), seen[0][1]
