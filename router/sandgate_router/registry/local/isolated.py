"""Sandboxes under bubblewrap: started, ended, and checked to be possible at all.

A start is a chain of small programs (`chain`) with bubblewrap at its end, which alone is given
arguments, by a descriptor: its command line is readable inside, and so is its environment,
which is therefore empty.
"""

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from sandgate_router.registry.local.bubblewrap import build_arguments, encode_arguments
from sandgate_router.registry.local.chain import build_chain
from sandgate_router.registry.local.endpoints import SandboxEndpoints
from sandgate_router.registry.local.folder import RunFolder, listen_unix, remove_tree
from sandgate_router.registry.local.layout import HOME, PYTHON, Layout, build_layout
from sandgate_router.registry.local.member import (
    Identity,
    Member,
    StartFailed,
    runtime_environ,
    wait_until_ready,
)
from sandgate_router.registry.local.pools import Network, PoolSpec
from sandgate_router.registry.local.process import Process
from sandgate_router.registry.local.proctree import ProcessTree
from sandgate_router.registry.local.staging import Staging
from sandgate_router.registry.local.unavailable import (
    INSTALL,
    WAY_ROUND,
    IsolationUnavailable,
    explain,
    read_settings,
)
from sandgate_router.registry.local.users import OwnUser, runs_as_root

END_SECONDS = 2.0
"""How long a killed sandbox may take to be gone; the kernel needs some milliseconds."""

_PROBE_SECONDS = 20.0
_PROBE_BYTES = 1024**2

log = logging.getLogger(__name__)


class IsolatedStarter:
    """Starts sandboxes under bubblewrap."""

    def __init__(self, folder: RunFolder, *, descriptors: int | None = None) -> None:
        self._folder = folder
        self._descriptors = descriptors
        self._layout = Layout((), (), "")
        self._staging: Staging | None = None
        self._bwrap = ""
        self._enclosed = True

    async def open(self) -> None:
        """Prepare what sandboxes see, and start one that only answers.

        Raises:
            IsolationUnavailable: with what to install or to change.
        """
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise IsolationUnavailable(
                f"Sandboxes cannot be isolated: bubblewrap is missing; {INSTALL}. {WAY_ROUND}"
            )
        self._bwrap = bwrap
        self._layout = await asyncio.to_thread(build_layout, self._folder.path / "layout")
        if runs_as_root():
            folder = self._folder.new_subfolder()
            self._staging = await Staging.create(folder, self._layout.sources)
        await self._probe()

    async def start(self, spec: PoolSpec, *, died: Callable[[Member, str], None]) -> Member:
        """Start a sandbox and wait for its first answer."""
        sandbox = IsolatedSandbox(
            self._folder.new_subfolder(), Identity.generate(spec), died, network=spec.network
        )
        try:
            with contextlib.ExitStack() as stack:
                http, relay = sandbox.listen(stack)
                await self._spawn(sandbox, spec, http, relay)
            await sandbox.become_ready()
        except BaseException:
            await sandbox.end()
            raise
        return sandbox

    def close(self) -> None:
        """Let the staged view go."""
        if self._staging is not None:
            self._staging.close()
            self._staging = None

    async def _spawn(
        self, sandbox: "IsolatedSandbox", spec: PoolSpec, http: int, relay: int | None
    ) -> None:
        if runs_as_root():
            try:
                sandbox.user = OwnUser.reserve()
            except OSError as error:
                raise StartFailed(str(error)) from error
        environ = runtime_environ(
            spec, sandbox.identity, home=HOME, path=self._layout.search_path
        ) | {"SANDGATE_ISOLATED": "1"}
        command = [PYTHON, "-I", "-m", "sandgate_runtime"]
        command += ["--fd", str(http)]
        if relay is not None:
            command += ["--relay-fd", str(relay)]
        arguments = self._arguments(spec.workspace_bytes, environ, network=spec.network)
        pass_fds = (http,) if relay is None else (http, relay)
        sandbox.run(self._wrap(sandbox.user), arguments, command, pass_fds)

    def _arguments(
        self, workspace_bytes: int, environ: dict[str, str], *, network: Network = "none"
    ) -> list[str]:
        return build_arguments(
            self._layout,
            sources=self._staging.sources if self._staging else {},
            workspace_bytes=workspace_bytes,
            environ=environ,
            network=network,
        )

    def _wrap(self, user: OwnUser | None) -> list[str]:
        return build_chain(
            gateway=os.getpid(),
            enter=self._staging.command() if self._staging else [],
            own_uid=user.uid if user is not None else None,
            enclosed=self._enclosed,
            bwrap=self._bwrap,
            descriptors=self._descriptors,
        )

    async def _probe(self) -> None:
        process = await self._try()
        if not process.succeeded and not runs_as_root():
            # Some systems let bubblewrap alone make user namespaces.
            words = process.tail
            self._enclosed = False
            process = await self._try()
            if process.succeeded:
                log.warning(
                    "Only bubblewrap may make user namespaces here (%s): a gateway that is killed"
                    " in the very moment of a start may leave that sandbox behind.",
                    words,
                )
        if not process.succeeded:
            raise IsolationUnavailable(explain(process.tail, settings=read_settings()))

    async def _try(self) -> Process:
        user = OwnUser.reserve() if runs_as_root() else None
        arguments = self._arguments(_PROBE_BYTES, {"PATH": self._layout.search_path})
        command = [PYTHON, "-I", "-c", "import sandgate_runtime"]
        process = spawn_bubblewrap(self._wrap(user), arguments, command, ())
        try:
            await process.wait(_PROBE_SECONDS)
        finally:
            await _kill(process)
            if user is not None:
                user.close()
        return process


class IsolatedSandbox:
    """One sandbox under bubblewrap."""

    def __init__(
        self,
        folder: Path,
        identity: Identity,
        died: Callable[[Member, str], None],
        *,
        network: Network = "none",
    ) -> None:
        self.identity = identity
        self.id, self.uid = identity.id, identity.uid
        self.user: OwnUser | None = None
        self.endpoints = SandboxEndpoints(
            name=identity.name,
            uid=identity.uid,
            http=str(folder / "http.sock"),
            # The machine's network has the machine's ports, which nobody may reach through us.
            relay=None if network == "host" else str(folder / "ports.sock"),
            kind="sandboxes with network host",
        )
        self._folder = folder
        self._died = died
        self._process: Process | None = None
        self._alive = False

    def listen(self, stack: contextlib.ExitStack) -> tuple[int, int | None]:
        """Make the sockets, the second for a relay; the gateway's copies end with the stack."""
        http = stack.enter_context(listen_unix(self._folder / "http.sock"))
        if not self.endpoints.has_relay:
            return http.fileno(), None
        relay = stack.enter_context(listen_unix(self._folder / "ports.sock"))
        return http.fileno(), relay.fileno()

    def run(
        self, wrap: list[str], arguments: list[str], command: list[str], pass_fds: tuple[int, ...]
    ) -> None:
        """Start the process."""
        self._process = spawn_bubblewrap(wrap, arguments, command, pass_fds, self._on_exit)

    @property
    def alive(self) -> bool:
        """Whether it is ready still; asked of the kernel, which knows of a death first."""
        return self._alive and self._process is not None and not self._process.has_ended

    async def become_ready(self) -> None:
        """Wait for the first answer; from then on an unasked end is a death."""
        assert self._process is not None
        await wait_until_ready(self._process, self.endpoints.http)
        self._alive = True

    async def end(self) -> None:
        """Kill bubblewrap and with it all that its process namespace holds."""
        self._alive = False
        if self._process is not None:
            await _kill(self._process)
        await asyncio.to_thread(remove_tree, self._folder)
        if self.user is not None:
            self.user.close()

    def _on_exit(self) -> None:
        if self._alive and self._process is not None:
            self._alive = False
            self._died(self, f"the runtime {self._process.describe_end()}")


def spawn_bubblewrap(
    wrap: list[str],
    arguments: Sequence[str],
    command: list[str],
    pass_fds: tuple[int, ...],
    on_exit: Callable[[], None] | None = None,
) -> Process:
    """Start bubblewrap with its arguments in a descriptor, and nothing in its environment."""
    fd = os.memfd_create("arguments", os.MFD_CLOEXEC)
    try:
        os.write(fd, encode_arguments(arguments))
        os.lseek(fd, 0, os.SEEK_SET)
        argv = [*wrap, "--args", str(fd), "--", *command]
        return Process.start(argv, environ={}, pass_fds=(fd, *pass_fds), on_exit=on_exit)
    finally:
        os.close(fd)


async def check_isolation() -> None:
    """Find out whether sandboxes can be isolated here, without leaving anything.

    Raises:
        IsolationUnavailable: with what to install or to change.
    """
    with RunFolder.create() as folder:
        starter = IsolatedStarter(folder)
        try:
            await starter.open()
        finally:
            starter.close()


async def _kill(process: Process) -> None:
    if process.exited.done():
        return
    tree = ProcessTree(process.pid)
    try:
        # From below: the first of the chain reaps the namespace and ends by itself. All at once,
        # a dead process would be left to init with each sandbox, and that may be the gateway.
        if tree.kill_below(process.pid):
            await process.wait(END_SECONDS)
        tree.look()
        tree.kill()
        await process.wait(END_SECONDS)
        await tree.gone(END_SECONDS)
    finally:
        tree.close()
