"""A quiet stream is kept open by something that says nothing; time is an argument here."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

from sandgate_runtime.legacy.frames import FrameStream
from sandgate_runtime.processes.command import Command
from sandgate_runtime.processes.event_log import EventLog
from sandgate_runtime.processes.outbox import Outbox
from sandgate_runtime.v1.stream import tell


class Sent:
    """The bodies that were sent; `enough` is set with the third."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.enough = asyncio.Event()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            self.bodies.append(message["body"])
        if len(self.bodies) == 3:
            self.enough.set()


async def test_an_outbox_gives_pieces_in_order_and_then_the_end() -> None:
    outbox = Outbox()
    outbox.put("stdout", b"a")
    outbox.put("stderr", b"b")
    outbox.finish()
    assert [await outbox.get() for _ in range(3)] == [("stdout", b"a"), ("stderr", b"b"), None]


async def test_a_quiet_event_stream_carries_comments_until_there_is_something_to_tell() -> None:
    sent, log = Sent(), EventLog(capacity=1000)
    telling = asyncio.create_task(tell(log.watch(), sent.send, ping=0.01))
    await sent.enough.wait()
    log.add_output("stdout", b"x")
    log.finish()
    await telling
    assert set(sent.bodies[:3]) == {b": ping\n\n"}
    assert sent.bodies[-2:] == [b'id: 1\nevent: stdout\ndata: {"data": "eA=="}\n\n', b""]


async def test_quiet_frames_carry_pings_until_there_is_something_to_tell() -> None:
    sent, outbox = Sent(), Outbox()
    command = Command(argv=("true",), cwd="/", entry="execute")
    stream = FrameStream(command, None, outbox, ping=0.01)
    telling = asyncio.create_task(stream._tell_output(sent.send))
    await sent.enough.wait()
    outbox.put("stdout", b"x")
    outbox.finish()
    await telling
    assert set(sent.bodies[:3]) == {b'{"t": "ping"}\n'}
    assert sent.bodies[-1] == b'{"t": "out", "b": "eA=="}\n'
