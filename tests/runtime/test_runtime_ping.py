"""A quiet event stream is kept open by comments; time is an argument here."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

from sandgate_runtime.config import Config
from sandgate_runtime.processes.command import Command
from sandgate_runtime.processes.engine import Engine
from sandgate_runtime.v1.outbox import Outbox
from sandgate_runtime.v1.stream import ProcessStream


async def test_an_outbox_gives_pieces_in_order_and_then_the_end() -> None:
    outbox = Outbox()
    outbox.put("stdout", b"a")
    outbox.put("stderr", b"b")
    outbox.finish()
    assert [await outbox.get() for _ in range(3)] == [("stdout", b"a"), ("stderr", b"b"), None]


async def test_a_quiet_stream_carries_comments_until_there_is_something_to_tell() -> None:
    sent: list[bytes] = []
    enough = asyncio.Event()

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message["body"])
        if len(sent) == 3:
            enough.set()

    outbox = Outbox()
    engine = Engine(Config(base_directory="/"), environ={})
    stream = ProcessStream(engine, Command(argv=("true",), cwd="/"), ping=0.01)
    telling = asyncio.create_task(stream._tell_output(outbox, send))
    await enough.wait()
    outbox.put("stdout", b"x")
    outbox.finish()
    await telling
    assert set(sent[:3]) == {b": ping\n\n"}
    assert sent[-1] == b'id: 1\nevent: stdout\ndata: {"data": "eA=="}\n\n'
