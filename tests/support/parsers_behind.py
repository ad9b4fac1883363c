"""Real HTTP parsers in a sandbox's place: each answers with what it made of a request.

The answer's `X-Seen` is base64 of JSON: the request's method, target and body, and how many
requests that server has seen, so that a test notices one that nobody sent.
"""

import asyncio
import base64
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import h11
from aiohttp import web

NODE_SCRIPT = """
const http = require("http");
let count = 0;
const server = http.createServer((request, response) => {
  const pieces = [];
  request.on("data", (piece) => pieces.push(piece));
  request.on("end", () => {
    const seen = { number: ++count, method: request.method,
      target: request.url, body: Buffer.concat(pieces).toString("hex") };
    response.setHeader("X-Seen", Buffer.from(JSON.stringify(seen)).toString("base64"));
    response.setHeader("Content-Length", 0);
    response.end();
  });
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
process.stdin.on("end", () => process.exit(0)).resume();
"""

NGINX_CONFIG = """
daemon off; master_process off; error_log stderr crit; pid {folder}/pid;
events {{ worker_connections 64; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://127.0.0.1:{behind}; proxy_http_version 1.1; }}
  }}
}}
"""


def describe(number: int, method: str, target: str, body: bytes) -> str:
    seen = {"number": number, "method": method, "target": target, "body": body.hex()}
    return base64.b64encode(json.dumps(seen).encode()).decode()


@dataclass
class Seen:
    """One whole request."""

    method: bytes
    target: bytes
    fields: list[tuple[bytes, bytes]]
    body: bytes


@dataclass
class H11Behind:
    """A server around h11 that keeps what it has read."""

    seen: list[Seen] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What of all that arrived was no HTTP; a connection that just ends is no fault."""
    port: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["H11Behind"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except ConnectionError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        head: h11.Request | None = None
        body = b""
        while True:
            try:
                event = connection.next_event()
            except h11.RemoteProtocolError as error:
                self.faults.append(f"{error}: {head}")
                return
            if event is h11.NEED_DATA:
                data = await reader.read(65536)
                if not data:
                    return
                connection.receive_data(data)
            elif isinstance(event, h11.Request):
                head, body = event, b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                self.seen.append(Seen(head.method, head.target, list(head.headers), body))
                writer.write(self._answer(connection, head, body))
                if connection.our_state is h11.MUST_CLOSE:
                    return
                connection.start_next_cycle()
            else:
                return

    def _answer(self, connection: h11.Connection, head: h11.Request, body: bytes) -> bytes:
        number = len(self.seen)
        seen = describe(number, head.method.decode(), head.target.decode("latin-1"), body)
        fields = [("X-Seen", seen), ("X-Serial", str(number)), ("Content-Length", "0")]
        sent = connection.send(h11.Response(status_code=200, headers=fields))
        return (sent or b"") + (connection.send(h11.EndOfMessage()) or b"")


@contextlib.asynccontextmanager
async def h11_behind() -> AsyncIterator[int]:
    async with H11Behind().running() as server:
        yield server.port


@contextlib.asynccontextmanager
async def aiohttp_behind() -> AsyncIterator[int]:
    count = 0

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal count
        count += 1
        body = await request.read()
        seen = describe(count, request.method, request.raw_path, body)
        return web.Response(headers={"X-Seen": seen})

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def node_is_here() -> bool:
    return shutil.which("node") is not None


def nginx_is_here() -> bool:
    return shutil.which("nginx") is not None


@contextlib.asynccontextmanager
async def node_behind() -> AsyncIterator[int]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "node", "-e", NODE_SCRIPT, stdin=pipe, stdout=pipe
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.stdin.close()  # it ends with its input
        await process.wait()


@contextlib.asynccontextmanager
async def nginx_behind(folder: Path) -> AsyncIterator[int]:
    """Run nginx as a proxy in front of h11, which tells what nginx made of a request."""
    async with h11_behind() as behind:
        placeholder = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = int(placeholder.sockets[0].getsockname()[1])
        placeholder.close()
        await placeholder.wait_closed()
        config = folder / "nginx.conf"
        config.write_text(NGINX_CONFIG.format(folder=folder, port=port, behind=behind))
        process = await asyncio.create_subprocess_exec("nginx", "-p", folder, "-c", config)
        try:
            await _until_listening(port)
            yield port
        finally:
            process.terminate()
            await process.wait()


async def _until_listening(port: int) -> None:
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(ConnectionError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.05)


def read_by_h11(raw: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Return method, target and body of the whole requests in `raw`, up to the first fault."""
    found: list[tuple[bytes, bytes, bytes]] = []
    while True:
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(raw.removeprefix(b"\r\n"))
        head, body = None, b""
        try:
            while not isinstance(event := connection.next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Request):
                    head = event
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                else:
                    return found
        except h11.RemoteProtocolError:
            return found
        assert head is not None
        found.append((head.method, head.target, body))
        raw = connection.trailing_data[0]
