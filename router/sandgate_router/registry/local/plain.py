"""Sandboxes without isolation, for code that is trusted: a folder and a process tree.

What holds: own folder, own variables, limits per process, an end of the whole tree. What does
not: the code sees the machine, its network and its files, as the user that it runs as.

A sandbox is forked off a `zygote`, which is three times as fast as to start one as a program.
That still happens where no zygote can be had; both ways lead to the same.
"""

import asyncio
import logging
import os
import signal
import socket
import stat
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path

from sandgate_router.registry.local.endpoints import SandboxEndpoints
from sandgate_router.registry.local.folder import RunFolder, listen_unix, remove_tree
from sandgate_router.registry.local.layout import runtime_folder
from sandgate_router.registry.local.member import (
    Identity,
    Member,
    StartFailed,
    runtime_environ,
    wait_until_ready,
)
from sandgate_router.registry.local.pools import PoolSpec
from sandgate_router.registry.local.process import Process
from sandgate_router.registry.local.proctree import ProcessTree, count_tasks, find_strays
from sandgate_router.registry.local.users import OwnUser, runs_as_root
from sandgate_router.registry.local.zygote import ForkRequest, Zygote

GRACE_SECONDS = 2.0
"""How long the runtime may take to end its commands before all are killed."""

_KILL_SECONDS = 1.0
_MAX_ROUNDS = 10
"""How often strays are looked for: a process that forks all the time may escape one look."""

log = logging.getLogger(__name__)


class PlainStarter:
    """Starts sandboxes without isolation."""

    def __init__(self, folder: RunFolder, *, descriptors: int | None = None) -> None:
        self._folder = folder
        self._descriptors = descriptors
        self._own_users = False
        self._zygote: Zygote | None = None

    async def open(self) -> None:
        """Decide as whom the sandboxes run."""
        # The workspaces lie in the temporary folder, which may be root's alone (pam_tmpdir).
        needed = [*_needed_paths(), self._folder.path.parent]
        self._own_users = runs_as_root() and all(map(reachable_by_all, needed))
        if self._own_users:
            # The sandbox's user must reach its workspace; names stay unlisted, and the
            # sockets are in folders of their own with mode 0700.
            self._folder.path.chmod(0o711)
        elif runs_as_root():
            log.warning(
                "Un-isolated sandboxes run as root, because no other user can reach %s;"
                " their limit on processes does not hold.",
                next(path for path in needed if not reachable_by_all(path)),
            )
        self._zygote = self._hatch()

    async def start(self, spec: PoolSpec, *, died: Callable[[Member, str], None]) -> Member:
        """Start a sandbox and wait for its first answer."""
        sandbox = PlainSandbox(self._folder, Identity.generate(spec), died)
        try:
            if self._own_users:
                sandbox.take_own_user()
            await self._launch(sandbox, spec)
            await sandbox.become_ready()
        except BaseException:
            await sandbox.end()
            raise
        return sandbox

    def close(self) -> None:
        """End the zygote."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    async def _launch(self, sandbox: "PlainSandbox", spec: PoolSpec) -> None:
        # Processes are counted for it: 15 µs each, and a machine may have thousands.
        environ = await asyncio.to_thread(sandbox.environ, spec)
        zygote = self._zygote
        if zygote is not None:
            try:
                await sandbox.fork(spec, zygote, environ=environ, descriptors=self._descriptors)
            except OSError as error:
                log.warning("registry.fork_failed", extra={"reason": str(error)})
                if not zygote.alive and zygote is self._zygote:
                    zygote.close()
                    self._zygote = self._hatch()  # for the next
            else:
                return
        sandbox.run(spec, environ=environ, descriptors=self._descriptors)

    def _hatch(self) -> Zygote | None:
        try:
            return Zygote()
        except OSError as error:
            log.warning("registry.no_zygote", extra={"reason": str(error)})
            return None


class PlainSandbox:
    """One sandbox without isolation."""

    def __init__(
        self, folder: RunFolder, identity: Identity, died: Callable[[Member, str], None]
    ) -> None:
        self.id, self.uid = identity.id, identity.uid
        self._identity = identity
        self._sockets = folder.new_subfolder()
        self._work = folder.new_subfolder()
        self._user: OwnUser | None = None
        self.endpoints = SandboxEndpoints(
            name=identity.name,
            uid=identity.uid,
            http=str(self._sockets / "http.sock"),
            relay=None,
        )
        self._died = died
        self._process: Process | None = None
        self._alive = False

    def take_own_user(self) -> None:
        """Run as a user that nothing else of the machine belongs to."""
        try:
            self._user = OwnUser.reserve()
        except OSError as error:
            raise StartFailed(str(error)) from error
        os.chown(self._work, self._user.uid, self._user.uid)

    async def fork(
        self,
        spec: PoolSpec,
        zygote: Zygote,
        *,
        environ: Mapping[str, str],
        descriptors: int | None,
    ) -> None:
        """Have the process forked; `descriptors` is its soft limit on open files."""
        wanted = ForkRequest(
            argv=[f"--die-with-parent={os.getpid()}"],
            environ=environ,
            file_bytes=spec.workspace_bytes,
            descriptors=descriptors,
            uid=None if self._user is None else self._user.uid,
        )
        with self._listen() as http:
            self._process = await zygote.fork(wanted, http, on_exit=self._on_exit)

    def run(self, spec: PoolSpec, *, environ: Mapping[str, str], descriptors: int | None) -> None:
        """Start the process; `descriptors` is its soft limit on open files, None leaves it."""
        with self._listen() as http:
            # A workspace on disk cannot be limited without a quota of the file system; the
            # size of each file can.
            command = ["prlimit", f"--fsize={spec.workspace_bytes}"]
            command += ["--"] if descriptors is None else [f"--nofile={descriptors}:", "--"]
            if self._user is not None:
                number = str(self._user.uid)
                command += ["setpriv", "--reuid", number, "--regid", number, "--clear-groups", "--"]
            command += [sys.executable, "-I", "-m", "sandgate_runtime"]
            command += ["--fd", str(http.fileno()), f"--die-with-parent={os.getpid()}"]
            self._process = Process.start(
                command,
                environ=environ,
                pass_fds=(http.fileno(),),
                on_exit=self._on_exit,
            )

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
        """Ask the runtime to end its commands, then kill what is left of the tree."""
        self._alive = False
        if self._process is not None:
            await self._end_tree(self._process)
        await asyncio.to_thread(remove_tree, self._work)
        await asyncio.to_thread(remove_tree, self._sockets)
        if self._user is not None:
            self._user.close()

    async def _end_tree(self, process: Process) -> None:
        tree = ProcessTree(process.pid) if not process.exited.done() else ProcessTree()
        try:
            process.send_signal(signal.SIGTERM)
            if not await process.wait(GRACE_SECONDS):
                tree.look()
            uid = self._user.uid if self._user is not None else None
            for _ in range(_MAX_ROUNDS):
                strays = await asyncio.to_thread(find_strays, home=str(self._work), uid=uid)
                for pid in strays:
                    tree.add(pid)
                tree.kill()
                await tree.gone(_KILL_SECONDS)
                if not strays:
                    break
            await process.wait(_KILL_SECONDS)
        finally:
            tree.close()

    def _listen(self) -> socket.socket:
        path = self._sockets / "http.sock"
        path.unlink(missing_ok=True)  # of a fork that failed
        return listen_unix(path)

    def environ(self, spec: PoolSpec) -> dict[str, str]:
        """Return all its variables."""
        path = "/usr/local/bin:/usr/bin:/bin"
        if not sys.base_prefix.startswith("/usr"):
            path += f":{sys.base_prefix}/bin"
        environ = runtime_environ(spec, self._identity, home=str(self._work), path=path)
        if self._user is None:
            # The kernel counts all of this user's processes, a desktop's included.
            environ["SANDGATE_MAX_PROCESSES"] = str(count_tasks(os.geteuid()) + spec.max_processes)
        return environ

    def _on_exit(self) -> None:
        if self._alive and self._process is not None:
            self._alive = False
            self._died(self, f"the runtime {self._process.describe_end()}")


def reachable_by_all(path: Path) -> bool:
    """Tell whether every user may read `path`, by the modes on the way to it."""
    try:
        resolved = path.resolve(strict=True)
        way = all(parent.stat().st_mode & stat.S_IXOTH for parent in resolved.parents)
        return way and bool(resolved.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


def _needed_paths() -> list[Path]:
    return [
        Path(sys.executable),
        Path(sysconfig.get_path("stdlib")),
        Path(sysconfig.get_path("purelib")),
        runtime_folder(),
    ]
