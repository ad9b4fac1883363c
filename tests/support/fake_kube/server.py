"""Runs the API server: in the test's own loop, or in a thread for clients that block."""

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
import yaml
from support.fake_kube.app import App
from support.fake_kube.controller import Controller
from support.fake_kube.faults import Call, Faults
from support.fake_kube.rbac import Rbac
from support.fake_kube.store import Store
from support.fake_kube.watching import WatchCut

T = TypeVar("T")


class FakeKube:
    """One API server with its controller."""

    def __init__(self) -> None:
        self.store = Store()
        self.faults = Faults()
        self.rbac = Rbac()
        self.app = App(self.store, self.faults, self.rbac)
        self.controller = Controller(self.store)
        self.port = 0
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def calls(self, verb: str, resource: str) -> list[Call]:
        """Return the requests of one kind so far."""
        return [c for c in self.app.calls if (c.verb, c.resource) == (verb, resource)]

    def kubeconfig(self, folder: Path, *, token: str = "") -> Path:
        """Write a kubeconfig that points here."""
        path = folder / f"kubeconfig-{self.port}.yaml"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "fake", "user": {"token": token} if token else {}}],
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def cut_watches(self, *, abruptly: bool = True) -> int:
        """End every watch, in the middle or in order; return how many."""
        watches = list(self.app.watches)
        for watch in watches:
            watch.end(WatchCut if abruptly else None)
        return len(watches)

    async def up(self) -> None:
        """Listen, on the same port as before."""
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(self.app, lifespan="off", log_config=None, access_log=False)
        self._server = server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        self._serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.001)

    async def down(self) -> None:
        """Refuse connections, and break those that are open."""
        assert self._server is not None
        assert self._serving is not None
        server = self._server
        server.should_exit = server.force_exit = True
        for listening in server.servers:
            listening.close()
        tasks = list(server.server_state.tasks)
        for connection in list(server.server_state.connections):
            transport: Any = connection.transport
            transport.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._serving


@contextlib.asynccontextmanager
async def fake_kube(*, controller: bool = True) -> AsyncIterator[FakeKube]:
    """Run one in this loop."""
    kube = FakeKube()
    # Broken streams are what some tests want; uvicorn would print each as a failure.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    await kube.up()
    controlling = asyncio.create_task(kube.controller.run()) if controller else None
    try:
        yield kube
    finally:
        await kube.down()
        if controlling is not None:
            controlling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await controlling  # a fault of the controller is the test's


class ThreadedKube:
    """A FakeKube in a thread of its own; `do` runs a function where its loop runs."""

    def __init__(self, kube: FakeKube, loop: asyncio.AbstractEventLoop) -> None:
        self.kube = kube
        self.url = kube.url
        self._loop = loop

    def do(self, function: Callable[[FakeKube], T]) -> T:
        async def call() -> T:
            return function(self.kube)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(30)


@contextlib.contextmanager
def fake_kube_in_thread(*, controller: bool = True) -> Iterator[ThreadedKube]:
    """Run one in a thread."""
    ready = threading.Event()
    running: list[tuple[FakeKube, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        stop = asyncio.Event()
        async with fake_kube(controller=controller) as kube:
            running.append((kube, asyncio.get_running_loop(), stop))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="fake-kube")
    thread.start()
    assert ready.wait(30)
    kube, loop, stop = running[0]
    try:
        yield ThreadedKube(kube, loop)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
