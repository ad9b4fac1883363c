"""Assembles a gateway from its settings, listens, and stops in order.

uvicorn runs the sockets; its `http=` class is our connection, so the relay never passes
through ASGI. SIGTERM takes readiness away at once, serves on for the drain delay, lets
exchanges finish until the drain time-out and exits 0. SIGINT, from a person, skips the delay.
A second signal ends everything at once.
"""

import asyncio
import contextlib
import ctypes
import functools
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from email.utils import formatdate
from pathlib import Path
from typing import Any, cast

import uvicorn
import uvloop
from starlette.applications import Starlette

from sandgate_router.access_log import AccessLog
from sandgate_router.addresses import AddressPolicy
from sandgate_router.asgi import AppHost
from sandgate_router.callers import CallerFile
from sandgate_router.claim_metrics import ClaimMetrics
from sandgate_router.client import LINGER_SECONDS, ClientConnection
from sandgate_router.config import BadConfig, Command, Config, ListenAddress
from sandgate_router.connect import Connector
from sandgate_router.control.app import build_control_app
from sandgate_router.control.events import EventRing
from sandgate_router.counted import CountedElsewhere
from sandgate_router.credentials import Credentials, build_credentials
from sandgate_router.denied import Denied
from sandgate_router.event_log import configure_logging
from sandgate_router.gateway import Gateway
from sandgate_router.interfaces import is_own_address
from sandgate_router.kube.access import BadAccess, load_access
from sandgate_router.limits import InFlight, connection_limit
from sandgate_router.line_writer import LineWriter
from sandgate_router.metrics import RequestMetrics
from sandgate_router.pod_ip import PodIp
from sandgate_router.probes import Readiness, build_metrics_app
from sandgate_router.registry.base import Registry
from sandgate_router.registry.dns import DnsRegistry
from sandgate_router.registry.dns_lookup import BadResolvConf, StubResolver
from sandgate_router.registry.kubernetes import KubernetesRegistry
from sandgate_router.registry.local import IsolationUnavailable, build_local_registry
from sandgate_router.registry.static import BadSandboxFile, StaticRegistry
from sandgate_router.relay import Relay
from sandgate_router.resolve import Resolver
from sandgate_router.tunnel import Tunnels
from sandgate_router.upstream import UpstreamPool
from sandgate_router.welcome import NOT_ISOLATED, build_welcome

log = logging.getLogger("sandgate.server")

ACCEPTORS = 8
"""Duplicates of the listening socket. libuv takes one connection per socket and loop turn, so
with one, 512 newcomers waited up to 650 ms; with eight, 71 ms."""

BACKLOG = 4096
"""Connections that wait for us in the kernel; it caps this by net.core.somaxconn."""

SWEEP_SECONDS = 0.1
"""How often deadlines are looked at. One sweeper is cheaper than a timer for each request."""

_MALLOPT = {-1: 268_435_456, -2: 16_777_216, -3: 33_554_432}
"""glibc's trim threshold, top pad and mmap threshold in bytes. By default it gives the read
buffers of an upload back to the kernel each time: 1.1 to 1.7 CPU-seconds a GB against 0.43."""


GARBAGE_THRESHOLD = 50_000
"""Objects made beyond those that went, before cycles are looked for. Exchanges leave none, but
with Python's 700 every burst of them had the collector run: an eighth of all CPU time."""


class CannotListen(Exception):
    """An address is in use, or not ours; the message says which."""


def main(command: Command, flags: Mapping[str, str]) -> int:
    """Run a gateway until it is told to stop; return the exit code.

    Args:
        command: `up` has the defaults of a laptop, `router` those of a cluster.
        flags: settings by the name of their variable; they win over the environment.
    """
    lines = configure_logging()
    try:
        return _run(command, flags, lines)
    finally:
        lines.close()


def _run(command: Command, flags: Mapping[str, str], lines: LineWriter) -> int:
    try:
        config = Config.from_environ(os.environ, command=command, flags=flags)
        credentials = build_credentials(config)
        callers = CallerFile(config.callers) if config.callers else None
        registry = _build_registry(config, descriptors=_raise_descriptor_limit())
        listener = _bind(config.listen)
        metrics_listener = _bind(config.metrics_listen) if config.metrics_listen else None
    except (BadAccess, BadConfig, BadResolvConf, BadSandboxFile, CannotListen) as error:
        return _refuse(str(error), lines)
    _tune_allocator()
    gc.set_threshold(GARBAGE_THRESHOLD, 10, 10)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(
                _serve(
                    command,
                    config,
                    credentials,
                    registry,
                    listener,
                    metrics_listener,
                    callers=callers,
                    lines=lines,
                )
            )
    except (BadSandboxFile, CannotListen, IsolationUnavailable) as error:
        return _refuse(str(error), lines)


def _refuse(message: str, lines: LineWriter) -> int:
    lines.close()  # what led to it stands before it
    for line in message.splitlines():
        sys.stderr.write(f"sandgate: {line}\n")
    return 2


def _build_registry(config: Config, *, descriptors: int) -> Registry:
    kind, _, argument = config.registry.partition(":")
    if kind == "static":
        return StaticRegistry(Path(argument))
    if kind == "kubernetes":
        return KubernetesRegistry(
            load_access(config.kubeconfig), _build_policy(config), namespaces=config.namespaces
        )
    if kind == "dns":
        return DnsRegistry(
            StubResolver(), _build_policy(config), cluster_domain=config.cluster_domain
        )
    return build_local_registry(config, descriptors=descriptors)


def _build_policy(config: Config) -> AddressPolicy:
    return AddressPolicy(config.upstream_networks, is_ours=is_own_address)


async def _serve(
    command: Command,
    config: Config,
    credentials: Credentials,
    registry: Registry,
    listener: socket.socket,
    metrics_listener: socket.socket | None,
    *,
    callers: CallerFile | None = None,
    lines: LineWriter | None = None,
) -> int:
    loop = asyncio.get_running_loop()
    readiness = Readiness()
    lines = lines or LineWriter()
    gateway = build_gateway(config, registry, credentials, clock=loop.time, lines=lines)
    _count_faults(gateway.metrics, callers, lines)
    gateway.metrics.registry.register(ClaimMetrics(registry))
    registry.subscribe(gateway.relay.connector.forget)
    registry.watch(gateway.relay.connector.pool)
    events = EventRing()
    app = build_control_app(
        registry,
        readiness=readiness,
        loopback=command == "up" and config.listen.is_loopback,
        callers=callers,
        tokens=credentials.tokens,
        events=events,
    )
    server = _Server(_uvicorn_config(app, gateway, config))
    # One set for both, so that the server drains what the gateway knows.
    server.server_state.connections = cast(Any, gateway.connections)
    stop = _Stop(server, gateway, readiness, events, delay=config.drain_delay)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(stop.on_signals(loop))
        await stack.enter_async_context(credentials.following())
        if callers is not None:
            await stack.enter_async_context(callers.following())
        await registry.start()
        stack.push_async_callback(registry.close)
        # Only now: whoever connects before would wait for a gateway that may yet refuse to run.
        _listen(listener)
        if metrics_listener is not None:
            _listen(metrics_listener)
        await stack.enter_async_context(_sweeping(gateway))
        stack.push_async_callback(_let_go, gateway)
        if metrics_listener is not None:
            await stack.enter_async_context(_serving_metrics(gateway.metrics, metrics_listener))
        welcome = functools.partial(_welcome, command, config, registry)
        server.on_started = functools.partial(
            _announce, listener, metrics_listener, readiness, welcome
        )
        sockets = [listener, *(listener.dup() for _ in range(ACCEPTORS - 1))]
        await server.serve(sockets=sockets)
    return 0


def _count_faults(metrics: RequestMetrics, callers: CallerFile | None, lines: LineWriter) -> None:
    metrics.registry.register(
        CountedElsewhere(
            "sandgate_log_lines_dropped",
            "Lines of the log that were not written, since nobody read it fast enough.",
            lambda: lines.dropped,
        )
    )
    if callers is not None:
        metrics.registry.register(
            CountedElsewhere(
                "sandgate_caller_reload_failures",
                "Times that the file of callers changed to one that cannot be used.",
                lambda: callers.failures,
            )
        )


def build_gateway(
    config: Config,
    registry: Registry,
    credentials: Credentials,
    *,
    clock: Callable[[], float],
    lines: LineWriter | None = None,
) -> Gateway:
    """Return what all connections share, with no connection yet."""
    metrics = RequestMetrics()
    metrics.registry.register(credentials.metrics())
    relay = Relay(
        connector=Connector(
            resolver=Resolver(
                registry,
                clock=clock,
                denied=Denied(config.denied),
                pod_ip=PodIp(config.effective_pod_ip, _build_policy(config)),
            ),
            pool=UpstreamPool(clock=clock),
            metrics=metrics,
            cluster_domain=config.cluster_domain.encode("ascii"),
        ),
        clock=clock,
        date=_Date().value,
        tunnels=Tunnels(
            clock=clock,
            idle=config.websocket_idle_timeout,
            lifetime=config.websocket_max_lifetime,
            per_client=config.websocket_max_connections_per_client,
        ),
        trusted_proxies=config.trusted_proxies,
        keep_origin=config.keep_origin,
        timeout=config.proxy_timeout,
        in_flight=InFlight(config.max_inflight_per_sandbox),
        max_content=config.max_body_bytes,
    )
    return Gateway(
        relay=relay,
        authorizer=credentials.authorizer,
        loopback_only=config.listen.is_loopback and config.effective_auth == "none",
        metrics=metrics,
        access_log=AccessLog(config.access_log, writer=lines),
        clock=clock,
        max_connections=connection_limit(config.max_connections),
    )


def _uvicorn_config(app: Starlette, gateway: Gateway, config: Config) -> uvicorn.Config:
    def build_connection(
        config: uvicorn.Config, server_state: Any, app_state: dict[str, Any], _loop: Any = None
    ) -> ClientConnection:
        return ClientConnection(gateway, AppHost(config, server_state, app_state).exchange)

    return uvicorn.Config(
        app,
        http=cast(Any, build_connection),  # any callable serves as the class
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=int(config.drain_timeout) or 1,
    )


class _Server(uvicorn.Server):
    """uvicorn, without its own signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.on_started: Callable[[], None] = _do_nothing

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept, and tell."""
        await super().startup(sockets)
        self.on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `_Stop`: uvicorn would raise them again and lose our exit code."""
        yield


def _do_nothing() -> None:
    """Tell nobody."""


class _Stop:
    """Turns signals into an orderly end."""

    def __init__(
        self,
        server: _Server,
        gateway: Gateway,
        readiness: Readiness,
        events: EventRing,
        *,
        delay: float,
    ) -> None:
        self._server = server
        self._gateway = gateway
        self._readiness = readiness
        self._events = events
        self._delay = delay

    @contextlib.contextmanager
    def on_signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Listen to SIGTERM and SIGINT while the context lasts."""
        loop.add_signal_handler(signal.SIGTERM, self._stop, loop, self._delay)
        loop.add_signal_handler(signal.SIGINT, self._stop, loop, 0.0)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            loop.remove_signal_handler(signal.SIGINT)

    def _stop(self, loop: asyncio.AbstractEventLoop, delay: float) -> None:
        if self._readiness.state == "draining":
            self._server.should_exit = self._server.force_exit = True
            return
        self._readiness.mark_draining()
        self._gateway.draining = True
        loop.call_later(delay, self._exit)

    def _exit(self) -> None:
        self._events.close()  # a stream of events would else last until the drain time-out
        self._server.should_exit = True


class _Date:
    """The value of a Date field, made anew once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._text = b""

    def value(self) -> bytes:
        """Return the time as RFC 9110 section 5.6.7 has it."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._text = formatdate(second, usegmt=True).encode("ascii")
        return self._text


async def _let_go(gateway: Gateway) -> None:
    """End all traffic, and wait until what was said last has been read."""
    await gateway.relay.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while gateway.connections:  # noqa: ASYNC110 - nothing else happens any more
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def _sweeping(gateway: Gateway) -> AsyncIterator[None]:
    async def sweep() -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                gateway.sweep()
            except Exception:
                log.exception("sweep.failed")  # one bad connection must not stop all deadlines

    task = asyncio.get_running_loop().create_task(sweep())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def _serving_metrics(metrics: RequestMetrics, listener: socket.socket) -> AsyncIterator[None]:
    config = uvicorn.Config(
        build_metrics_app(metrics), lifespan="off", log_config=None, access_log=False
    )
    server = _Server(config)
    task = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = server.force_exit = True
        await task


def _bind(address: ListenAddress) -> socket.socket:
    """Return a socket that has its address and accepts nothing yet."""
    host = "127.0.0.1" if address.host == "localhost" else address.host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, address.port))
    except OSError as error:
        listener.close()
        raise _cannot_listen(f"{host}:{address.port}", error) from error
    listener.setblocking(False)
    return listener


def _listen(listener: socket.socket) -> None:
    try:
        listener.listen(BACKLOG)
    except OSError as error:  # somebody else bound the same address meanwhile, and was faster
        raise _cannot_listen(_shown(listener), error) from error


def _cannot_listen(address: str, error: OSError) -> CannotListen:
    advice = "stop what listens there, or choose another port (0 takes any)"
    return CannotListen(f"cannot listen: {address}: {error.strerror}; {advice}")


def _announce(
    listener: socket.socket,
    metrics_listener: socket.socket | None,
    readiness: Readiness,
    welcome: Callable[[str], str],
) -> None:
    readiness.mark_ready()
    lines = [f"listening on http://{_shown(listener)}\n"]
    if metrics_listener is not None:
        lines.append(f"metrics on http://{_shown(metrics_listener)}\n")
    lines.append(welcome(f"http://{_shown(listener)}"))
    # At once: whoever started us reads a pipe, and waits for the first line.
    sys.stdout.write("".join(lines))
    sys.stdout.flush()


def _welcome(command: Command, config: Config, registry: Registry, url: str) -> str:
    """Return what to do next, where everyone on this machine may do it as shown.

    That nothing isolates is said in any case.
    """
    pools = registry.pools()
    # A claim's own token comes with the claim; any other would have to be known.
    no_token = config.effective_auth == "none" or config.makes_own_key or config.keys is not None
    no_caller = config.listen.is_loopback and config.callers is None
    if command == "up" and no_token and config.effective_auth != "shared" and no_caller and pools:
        return build_welcome(url, pools[0])
    return NOT_ISOLATED if any(pool.isolation == "none" for pool in pools) else ""


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tune_allocator() -> None:
    with contextlib.suppress(OSError, AttributeError):  # another libc than glibc
        libc = ctypes.CDLL(None)
        for parameter, size in _MALLOPT.items():
            libc.mallopt(parameter, size)


def _raise_descriptor_limit() -> int:
    """Take as many descriptors as we may, two for each exchange; return what we had before.

    That is what sandboxes get: there are programs that count on the usual limit, or close all
    descriptors up to it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft
