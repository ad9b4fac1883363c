"""Listen, serve, and end with everything that was started.

uvicorn runs the connections. Around it: sockets of our own or inherited ones, the line that
says that the runtime is ready, and an end that kills first: a sandbox that is told to stop is
being thrown away, so nothing in it is waited for.
"""

import asyncio
import contextlib
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import uvloop
from uvicorn.config import Config as ServerConfig
from uvicorn.server import Server

from sandgate_runtime.app import build_app
from sandgate_runtime.config import Config
from sandgate_runtime.limits import limit_processes, raise_open_files
from sandgate_runtime.processes.engine import Engine
from sandgate_runtime.processes.journal import Journal
from sandgate_runtime.processes.keys import Keys
from sandgate_runtime.processes.runs import Runs
from sandgate_runtime.relay import PortRelay

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from starlette.types import ASGIApp

KEEP_ALIVE_SECONDS = 75
"""Idle connections live this long; advertised, so that a gateway lets go first. nginx: 75."""

MAX_HEAD_BYTES = 64 * 1024
"""A gateway passes heads of 32 KiB and adds to them."""

SHUTDOWN_SECONDS = 2
"""For answers that are on their way when the runtime is told to stop."""

BACKLOG = 512

MAX_FRAME_BYTES = 1024 * 1024
"""Largest message of a terminal's client: more than anybody pastes."""

CANNOT_KEEP_STATE = 1
"""The state directory cannot be used; without it a command could run twice."""

WORKER_THREADS = 4
"""For the disk. Started at once: under a fork bomb no thread could be started any more."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """The sockets to serve."""

    http: socket.socket
    relay: socket.socket | None = None
    """Where connections to other ports of the sandbox arrive."""


def listen(host: str, port: int) -> socket.socket:
    """Open the TCP socket; raise OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def serve(config: Config, listeners: Listeners, *, environ: "Mapping[str, str]") -> int:
    """Serve until SIGTERM or SIGINT; return the exit status."""
    keys = Keys(None if config.state_directory is None else Journal(config.state_directory))
    try:
        keys.load()
    except OSError as error:
        sys.stderr.write(f"sandgate runtime: SANDGATE_STATE_DIR: {error}\n")
        return CANNOT_KEEP_STATE
    stop = _Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.ask())
    limit_processes(config.max_processes)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, listeners, keys, stop, environ=environ))
    keys.close()
    return 0


async def _serve(
    config: Config, listeners: Listeners, keys: Keys, stop: "_Stop", *, environ: "Mapping[str, str]"
) -> None:
    _start_workers()
    engine = Engine(config, environ=environ, usual_open_files=raise_open_files())
    engine.start()
    runs = Runs(engine, config)
    keys.is_kept = runs.is_kept
    relay = PortRelay()
    if listeners.relay is not None:
        await relay.start(listeners.relay)
    app = build_app(config, engine, runs, keys, environ=environ)
    server = _Server(_configure(app), engine)
    stop.end(server)
    try:
        await server.serve(sockets=[listeners.http])
    finally:
        await relay.close()
        await engine.close()
        await runs.close()


def _start_workers() -> None:
    workers = ThreadPoolExecutor(WORKER_THREADS, thread_name_prefix="disk")
    everyone = threading.Barrier(WORKER_THREADS)
    for _ in range(WORKER_THREADS):
        workers.submit(everyone.wait)
    asyncio.get_running_loop().set_default_executor(workers)


def _configure(app: "ASGIApp") -> ServerConfig:
    return ServerConfig(
        app,
        http="h11",
        ws=cast("type[asyncio.Protocol]", _open_websocket),
        ws_max_size=MAX_FRAME_BYTES,
        ws_per_message_deflate=False,  # keystrokes and screens are small; a compressor is not
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        headers=[("keep-alive", f"timeout={KEEP_ALIVE_SECONDS}")],
    )


def _open_websocket(**arguments: Any) -> asyncio.Protocol:
    """Return uvicorn's protocol for one connection.

    Loaded with the first terminal: 1.5 MB that most sandboxes never need.
    """
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    return WebSocketsSansIOProtocol(**arguments)


class _Stop:
    """Remembers a signal that comes before there is a server to stop.

    The signal may be the only word of the gateway's death, so none may be lost.
    """

    def __init__(self) -> None:
        self._asked = False
        self._server: Server | None = None

    def ask(self) -> None:
        """Stop the server, or the one to come."""
        self._asked = True
        if self._server is not None:
            self._server.should_exit = True

    def end(self, server: Server) -> None:
        """Stop this server when asked, at once if that has happened."""
        self._server = server
        server.should_exit = self._asked


class _Server(Server):
    """uvicorn, with a ready line at the start and a kill at the end."""

    def __init__(self, config: ServerConfig, engine: Engine) -> None:
        super().__init__(config)
        self._engine = engine

    @contextlib.contextmanager
    def capture_signals(self) -> "Iterator[None]":
        """Leave signals to `_Stop`: uvicorn would install its handlers late and raise again."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            if listener.family in {socket.AF_INET, socket.AF_INET6}:
                sys.stdout.write(f"listening on http://{_spell_address(listener)}\n")
                sys.stdout.flush()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # First, so that the streams of commands end by themselves and connections can close.
        await self._engine.close()
        await super().shutdown(sockets)


def _spell_address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
