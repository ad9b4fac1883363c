"""Exchanges of an ASGI app on our own connection, and what they use of uvicorn's privates."""

import asyncio
import inspect
import logging
from typing import Any

import pytest
from support.raw_client import connect, request
from support.running_gateway import running_gateway
from support.scripted_upstream import ScriptedUpstream, answer_ok
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def test_the_private_class_takes_and_has_what_we_use() -> None:
    parameters = list(inspect.signature(RequestResponseCycle.__init__).parameters)
    assert parameters == [
        "self",
        "scope",
        "transport",
        "flow",
        "logger",
        "access_logger",
        "access_log",
        "default_headers",
        "message_event",
        "expect_100_continue",
        "keep_alive",
        "on_response",
    ]
    source = inspect.getsource(RequestResponseCycle)
    for attribute in (
        "body",
        "more_body",
        "disconnected",
        "keep_alive",
        "response_started",
        "response_complete",
    ):
        assert f"self.{attribute} = " in source
    used_of_the_transport = {
        word.split("(")[0] for word in source.split("self.transport.")[1:] if "(" in word
    }
    assert used_of_the_transport == {"close", "is_closing", "write"}
    assert {"drain", "pause_writing", "resume_reading", "resume_writing"} <= set(dir(FlowControl))


class App:
    """Answers by path, and tells what it has seen."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.most_sent = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        match scope["path"]:
            case "/echo":
                content = b""
                more = True
                while more:
                    message = await receive()
                    content += message["body"]
                    more = message["more_body"]
                await self._answer(send, content)
            case "/wait":
                await self.may_answer.wait()
                await self._answer(send, b"late")
            case "/left":
                while (await receive())["type"] != "http.disconnect":
                    pass
                self.left.set()
            case "/flood":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                for _ in range(1000):
                    await send({"type": "http.response.body", "body": PIECE, "more_body": True})
                    self.most_sent += 1
                await send({"type": "http.response.body", "body": b""})
            case "/boom":
                raise RuntimeError("boom")
            case _:
                await self._answer(send, repr((scope["path"], scope["raw_path"])).encode())

    async def _answer(self, send: Any, content: bytes) -> None:
        length = str(len(content)).encode()
        headers = [(b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})


PIECE = b"x" * 65536


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [0, 1, 300_000])
async def test_content_reaches_the_app_whole(size: int, chunked: bool) -> None:
    body = bytes(index % 251 for index in range(size))
    async with running_gateway(App()) as gateway, connect(gateway.port) as client:
        for _ in range(2):
            if chunked:
                more = "Transfer-Encoding: chunked\r\n"
                framed = (b"%x\r\n%b\r\n" % (size, body) if size else b"") + b"0\r\n\r\n"
            else:
                more, framed = f"Content-Length: {size}\r\n", body
            raw = request("/echo", method="POST", sandbox=None, more=more, body=framed)
            await client.send(raw)
            assert (await client.read_answer()).body == body


async def test_the_path_is_decoded_once_and_kept_raw() -> None:
    async with running_gateway(App()) as gateway, connect(gateway.port) as client:
        await client.send(request("/a%2Fb%2520?x=%2F", sandbox=None))
        assert (await client.read_answer()).body == repr(("/a/b%20", b"/a%2Fb%2520")).encode()


async def test_continue_is_said_once_and_only_when_the_app_reads() -> None:
    more = "Content-Length: 2\r\nExpect: 100-continue\r\n"
    async with running_gateway(App()) as gateway, connect(gateway.port) as client:
        await client.send(request("/echo", method="POST", sandbox=None, more=more))
        assert (await client.read_answer()).status == 100
        await client.send(b"hi")
        assert (await client.read_answer()).body == b"hi"
        await client.send(request("/other", method="POST", sandbox=None, more=more))
        assert (await client.read_answer()).status == 200
        assert await client.read_rest() == b""


async def test_a_slow_answer_of_the_app_holds_back_those_behind_it() -> None:
    app = App()
    async with (
        ScriptedUpstream(answer_ok).running() as upstream,
        running_gateway(app) as gateway,
        connect(gateway.port) as client,
    ):
        gateway.registry.add("sb", upstream.port)
        await client.send(request("/wait", sandbox=None) + request() + request("/x", sandbox=None))
        async with asyncio.timeout(10):
            while not gateway.gateway.metrics.inflight:
                await asyncio.sleep(0.001)
        assert upstream.sides == []
        app.may_answer.set()
        assert (await client.read_answer()).body == b"late"
        assert (await client.read_answer()).body == b"ok"
        assert b"/x" in (await client.read_answer()).body


async def test_the_app_learns_that_its_client_has_left() -> None:
    app = App()
    async with running_gateway(app) as gateway:
        async with connect(gateway.port) as client:
            await client.send(request("/left", sandbox=None))
            async with asyncio.timeout(10):
                while not gateway.gateway.metrics.inflight:
                    await asyncio.sleep(0.001)
        await asyncio.wait_for(app.left.wait(), 10)
        assert gateway.gateway.metrics.inflight == 0


async def test_a_client_that_does_not_read_stops_the_app() -> None:
    app = App()
    async with running_gateway(app) as gateway, connect(gateway.port, limit=2**16) as client:
        await client.send(request("/flood", sandbox=None))
        before, still = -1, 0
        async with asyncio.timeout(30):
            while still < 50:
                await asyncio.sleep(0.002)
                still = still + 1 if app.most_sent == before and before > 0 else 0
                before = app.most_sent
        assert app.most_sent < 1000
        [connection] = gateway.gateway.connections
        assert connection.unsent <= 64 * 1024 + len(PIECE) + 16
        assert len((await client.read_answer()).body) == 1000 * len(PIECE)


async def test_a_fault_of_the_app_is_500_for_it_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with running_gateway(App()) as gateway, connect(gateway.port) as client:
        with caplog.at_level(logging.ERROR):
            await client.send(request("/boom", sandbox=None))
            answer = await client.read_answer()
        assert answer.status == 500
        assert b"boom" not in answer.body
        assert "boom" in caplog.text
        async with connect(gateway.port) as other:
            await other.send(request("/x", sandbox=None))
            assert (await other.read_answer()).status == 200
