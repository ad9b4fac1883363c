"""Start commands, and end them all with the runtime.

A process is watched by the task that asked for it, and that task alone: there is no task here
that nobody awaits, except those that kill, which the engine owns and finishes before it closes.
"""

import asyncio
import contextlib
import errno
import os
import secrets
import subprocess
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime

from sandgate_runtime import linux
from sandgate_runtime.config import Config
from sandgate_runtime.errors import ArgumentTooLong, ProcessLimit, ShuttingDown
from sandgate_runtime.limits import build_preparation
from sandgate_runtime.processes.audit import Audit, write_if_room
from sandgate_runtime.processes.channels import Channels, OnOutput, open_channels, take_terminal
from sandgate_runtime.processes.command import Command, build_base_environment
from sandgate_runtime.processes.ending import Stream, judge_failed_start
from sandgate_runtime.processes.oom import OomEvidence, find_count
from sandgate_runtime.processes.pipes import AbandonedPipes, OutputPipe
from sandgate_runtime.processes.process import Process
from sandgate_runtime.processes.reaper import Reaper
from sandgate_runtime.processes.scripts import find_long_script, open_script, read_from
from sandgate_runtime.processes.tree import MARK_NAME, Family, kill_tree

DEFAULT_TERMINAL = "xterm-256color"
"""TERM where nobody says what the terminal understands; most do understand this one."""


def new_id() -> str:
    """Return an id that no process had."""
    return secrets.token_hex(8)


class Engine:
    """Starts commands and knows those that run."""

    def __init__(
        self, config: Config, *, environ: Mapping[str, str], usual_open_files: int | None = None
    ) -> None:
        """Must be made inside the event loop that it is to work in."""
        self.loop = asyncio.get_running_loop()
        self.audit = Audit(write_if_room)
        self.oom = OomEvidence(find_count())
        self._maximum = config.max_commands
        self._environment = build_base_environment(environ)
        self._prepare = build_preparation(
            cpu_seconds=config.command_cpu_seconds,
            memory_bytes=config.command_memory_bytes,
            open_files=config.command_open_files,
            usual_open_files=usual_open_files,
        )
        self._reaper = Reaper(self.loop)
        self._abandoned = AbandonedPipes(self.loop)
        self._live: set[Process] = set()
        self._killing: set[asyncio.Task[object]] = set()
        self.closed = False
        """Whether nothing more is started."""

    @property
    def running(self) -> int:
        """How many commands have not ended."""
        return len(self._live)

    def start(self) -> None:
        """Adopt orphans from here on, and wait for children."""
        linux.become_subreaper()
        self._reaper.start()

    def spawn(
        self, command: Command, on_output: OnOutput, *, process_id: str | None = None
    ) -> Process:
        """Start a command, whose output goes to `on_output`; `watch` must be awaited then.

        Raise ArgumentTooLong, ProcessLimit or ShuttingDown; OSError as execve(2) or chdir(2) has
        it, with the name that is at fault; ValueError for arguments that no program can get.
        """
        if self.closed:
            raise ShuttingDown("the runtime is shutting down")
        if len(self._live) >= self._maximum:
            raise ProcessLimit(f"{self._maximum} commands run already, which is the most")
        process_id = process_id or new_id()

        def take(stream: Stream, content: bytes) -> None:
            limited(stream, content)

        try:
            channels = open_channels(self.loop, command, take)
            child = self._start_child(command, channels, process_id)
        except OSError as error:
            raise self._translate(error, command, process_id) from error
        process = Process(self, command, child, channels, process_id=process_id)
        limited = process.limit(on_output)
        self._live.add(process)

        def on_exit(status: int) -> None:
            self._live.discard(process)
            process.on_exit(status)

        self._reaper.expect(child.pid, on_exit)
        channels.start()
        return process

    def reap(self) -> None:
        """Collect statuses now, not at the next signal."""
        self._reaper.reap()

    def own(self, killing: Coroutine[object, None, object]) -> "asyncio.Task[object]":
        """Run a kill to its end, whoever asked for it and went away."""
        task = self.loop.create_task(killing)
        self._killing.add(task)
        task.add_done_callback(self._killing.discard)
        return task

    def release(self, pipes: Sequence[OutputPipe]) -> None:
        """Close the pipes of a command that is over, or keep them empty for its children."""
        for pipe in pipes:
            descriptor = pipe.release()
            if descriptor is not None:
                self._abandoned.take(descriptor)

    async def close(self) -> None:
        """Start nothing more, and kill everything that was started, children left behind too."""
        self.closed = True
        for process in list(self._live):
            process.kill()
        while self._killing:
            await asyncio.gather(*self._killing)
        await kill_tree(Family(os.getpid()), spare_root=True)
        self.reap()
        self._abandoned.close()
        self._reaper.stop()

    def _start_child(
        self, command: Command, channels: Channels, process_id: str
    ) -> "subprocess.Popen[bytes]":
        argv = list(command.argv)
        stdin, stdout, stderr = channels.inherited
        with contextlib.ExitStack() as stack:
            undo = stack.enter_context(contextlib.ExitStack())
            undo.callback(channels.discard)
            inherited: tuple[int, ...] = ()
            position = find_long_script(argv) if argv else None
            if position is not None:
                script = open_script(argv[position])
                stack.callback(os.close, script)
                argv[position] = read_from(script)
                inherited = (script,)
            child = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=command.cwd,
                env=self._build_environment(command, process_id),
                start_new_session=True,
                pass_fds=inherited,
                preexec_fn=self._preparation(channels),  # noqa: PLW1509 - `limits` says why
            )
            undo.pop_all()
        return child

    def _build_environment(self, command: Command, process_id: str) -> dict[str, str]:
        terminal = {"TERM": DEFAULT_TERMINAL} if command.terminal is not None else {}
        return {**terminal, **self._environment, **command.env, MARK_NAME: process_id}

    def _preparation(self, channels: Channels) -> Callable[[], None]:
        if not channels.terminal:
            return self._prepare

        def prepare() -> None:
            take_terminal()
            self._prepare()

        return prepare

    def _translate(self, error: OSError, command: Command, process_id: str) -> Exception:
        if error.errno == errno.E2BIG:
            return ArgumentTooLong(
                "the arguments and variables together are longer than Linux takes"
            )
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            return ProcessLimit(f"the runtime can open no more files: {error.strerror}")
        if error.errno in {errno.EAGAIN, errno.ENOMEM} and error.filename is None:
            return ProcessLimit(f"the sandbox can start no more processes: {error.strerror}")
        if error.filename != command.cwd:
            how, now = judge_failed_start(error, command.argv), datetime.now(UTC)
            self.audit.ended(command, how, process=process_id, pid=None, at=now)
        return error
