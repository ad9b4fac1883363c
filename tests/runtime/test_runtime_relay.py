"""The way to other ports of the sandbox."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from support.runtime_server import listen_unix, start_runtime

from sandgate_runtime import relay as relay_module
from sandgate_runtime.relay import PortRelay

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[Path]:
    """The socket of a running relay."""
    relay = PortRelay()
    await relay.start(listen_unix(tmp_path / "relay"))
    yield tmp_path / "relay"
    await relay.close()


async def dial(path: Path, port: int) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(port.to_bytes(2, "big"))
    return await reader.read(1), reader, writer


async def serve(handler: Serve, *, host: str = "127.0.0.1") -> tuple[asyncio.Server, int]:
    server = await asyncio.start_server(handler, host, 0)
    port: int = server.sockets[0].getsockname()[1]
    return server, port


async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the whole input in capitals once it has ended."""
    writer.write((await reader.read()).upper())
    writer.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_bytes_pass_both_ways_and_an_end_is_passed_on(path: Path, host: str) -> None:
    server, port = await serve(upper, host=host)
    answer, reader, writer = await dial(path, port)
    assert answer == b"\0"
    writer.write(b"hello")
    writer.write_eof()
    assert await reader.read() == b"HELLO"
    writer.close()
    server.close()


async def test_a_server_may_end_first_and_still_be_written_to(path: Path) -> None:
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def close_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.write_eof()
        received.set_result(await reader.read())
        writer.close()

    server, port = await serve(close_first)
    _, reader, writer = await dial(path, port)
    assert await reader.read() == b"bye"
    writer.write(b"late")
    writer.write_eof()
    assert await received == b"late"
    writer.close()
    server.close()


@pytest.mark.parametrize("port", [0, None])
async def test_a_port_that_nobody_listens_on_is_refused(path: Path, port: int | None) -> None:
    if port is None:
        with socket.create_server(("127.0.0.1", 0)) as unused:
            port = unused.getsockname()[1]
    answer, reader, writer = await dial(path, port)
    assert answer == b"\1"
    assert await reader.read() == b""
    writer.close()


async def test_a_port_that_does_not_answer_times_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        waiting = []
        for _ in range(4):  # fills the queue of connections that nobody accepts
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
            waiting.append(client)
        answer, _, writer = await dial(path, port)
        assert answer == b"\2"
        writer.close()
        for client in waiting:
            client.close()


async def test_a_client_that_names_no_port_is_dropped(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "CONNECT_SECONDS", 0.1)
    for said in (b"", b"\x1f"):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(said)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()


async def test_a_megabyte_each_way_arrives_whole_past_a_slow_reader(path: Path) -> None:
    content = bytes(range(256)) * 16_384

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()
        writer.close()

    server, port = await serve(echo)
    _, reader, writer = await dial(path, port)
    writer.write(content)
    writer.write_eof()
    received = bytearray()
    while piece := await reader.read(4_096):
        received += piece
        await asyncio.sleep(0)
    assert received == content
    writer.close()
    server.close()


async def test_a_broken_connection_breaks_the_other_side(path: Path) -> None:
    gone = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        gone.set()
        writer.close()

    server, port = await serve(wait)
    _, _, writer = await dial(path, port)
    writer.transport.abort()
    async with asyncio.timeout(2):
        await gone.wait()
    server.close()


async def test_the_runtime_serves_the_relay_on_an_inherited_socket(tmp_path: Path) -> None:
    server, port = await serve(upper)
    with (
        listen_unix(tmp_path / "http") as http,
        listen_unix(tmp_path / "relay") as relay,
        start_runtime(
            tmp_path,
            arguments=("--fd", str(http.fileno()), "--relay-fd", str(relay.fileno())),
            pass_fds=(http.fileno(), relay.fileno()),
            url="http://unused",
        ),
    ):
        answer, reader, writer = await dial(tmp_path / "relay", port)
        assert answer == b"\0"
        writer.write(b"through")
        writer.write_eof()
        assert await reader.read() == b"THROUGH"
        writer.close()
    server.close()
