"""Start commands, follow them to their end, and end them all with the runtime.

A process is watched by the task that asked for it, and that task alone: there is no task here
that nobody awaits, except those that kill, which the engine owns and finishes before it closes.
"""

import asyncio
import contextlib
import errno
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Literal

from sandgate_runtime import linux
from sandgate_runtime.config import Config
from sandgate_runtime.errors import ArgumentTooLong, ProcessLimit, ShuttingDown
from sandgate_runtime.limits import build_preparation
from sandgate_runtime.processes.command import Command, build_base_environment
from sandgate_runtime.processes.pipes import AbandonedPipes, OutputPipe
from sandgate_runtime.processes.reaper import Reaper
from sandgate_runtime.processes.scripts import find_long_script, open_script, read_from
from sandgate_runtime.processes.tree import Family, kill_tree, terminate_tree

Stream = Literal["stdout", "stderr"]
Reason = Literal["exited", "timeout", "killed"]
OnOutput = Callable[[Stream, bytes], None]

DRAIN_SECONDS = 0.1
"""How long a pipe that a child in the background still holds is read after the command's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a command ended."""

    status: int
    """0..255, or -n after a death by signal n."""
    reason: Reason
    duration: float
    """Seconds from the spawn to the end of the command itself."""

    @property
    def signal(self) -> int | None:
        """The signal that it died of."""
        return -self.status if self.status < 0 else None

    @property
    def code(self) -> int:
        """The status as a shell tells it: 128+n after a death by signal n."""
        return 128 - self.status if self.status < 0 else self.status


class Process:
    """A command that was started."""

    def __init__(
        self,
        engine: "Engine",
        command: Command,
        child: "subprocess.Popen[bytes]",
        pipes: tuple[OutputPipe, OutputPipe],
    ) -> None:
        self.id = secrets.token_hex(8)
        self.pid = child.pid
        self._engine = engine
        self._command = command
        self._child = child
        self._pipes = pipes
        self._family = Family(child.pid)
        self._started = time.monotonic()
        self._exit: asyncio.Future[tuple[int, float]] = engine.loop.create_future()
        self._reason: Reason = "exited"
        self._ending: asyncio.Task[object] | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()

    def __repr__(self) -> str:
        state = f"ended, status {self._exit.result()[0]}" if self._exit.done() else "running"
        return f"<Process {self.id} {self._command.argv[0]!r} pid {self.pid} {state}>"

    async def watch(self) -> Exit:
        """Wait until the command has ended and its output is read; call it once.

        Cancelled, it kills the command with all that it started.
        """
        timer = None
        if self._command.timeout is not None:
            timer = self._engine.loop.call_later(
                self._command.timeout, self._end_if_running, "timeout", self._command.grace
            )
        try:
            status, ended = await asyncio.shield(self._exit)
            if self._ending is not None:
                await asyncio.shield(self._ending)
            await self._drain()
        except asyncio.CancelledError:
            self._end_if_running("killed", 0.0)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._engine.release(self._pipes)
        return Exit(status=status, reason=self._reason, duration=ended - self._started)

    def kill(self) -> None:
        """Kill the command and all that it started; nothing to do if it has ended."""
        self._end_if_running("killed", 0.0)

    def pause_output(self) -> None:
        """Read no output until `resume_output`; the command waits at a full pipe."""
        self._flowing.clear()
        for pipe in self._pipes:
            pipe.pause()

    def resume_output(self) -> None:
        """Read output again."""
        self._flowing.set()
        for pipe in self._pipes:
            pipe.resume()

    def on_exit(self, status: int) -> None:
        """Take the status that the reaper collected."""
        self._child.returncode = status  # else Popen would wait for a process id that is free now
        self._exit.set_result((status, time.monotonic()))

    def _end_if_running(self, reason: Reason, grace: float) -> None:
        self._engine.reap()  # one that has just ended by itself was not ended by us
        if self._exit.done():
            return
        if self._ending is None:
            self._reason = reason
        elif grace > 0:
            return
        way = terminate_tree(self._family, grace=grace) if grace else kill_tree(self._family)
        self._ending = self._engine.own(way)

    async def _drain(self) -> None:
        """Read what the command left in its pipes."""
        for pipe in self._pipes:
            pipe.expect_no_more()
        while open_pipes := [pipe.ended for pipe in self._pipes if not pipe.ended.done()]:
            await self._flowing.wait()
            done, _ = await asyncio.wait(open_pipes, timeout=DRAIN_SECONDS)
            if not done and self._flowing.is_set():
                return


class Engine:
    """Starts commands and knows those that run."""

    def __init__(self, config: Config, *, environ: Mapping[str, str]) -> None:
        """Must be made inside the event loop that it is to work in."""
        self.loop = asyncio.get_running_loop()
        self._environment = build_base_environment(environ)
        self._prepare = build_preparation(
            cpu_seconds=config.command_cpu_seconds, memory_bytes=config.command_memory_bytes
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

    def spawn(self, command: Command, on_output: OnOutput) -> Process:
        """Start a command, whose output goes to `on_output`; `watch` must be awaited then.

        Raise ArgumentTooLong, ProcessLimit or ShuttingDown; OSError as execve(2) or chdir(2) has
        it, with the name that is at fault; ValueError for arguments that no program can get.
        """
        if self.closed:
            raise ShuttingDown("the runtime is shutting down")
        pipes = (
            OutputPipe(self.loop, lambda content: on_output("stdout", content)),
            OutputPipe(self.loop, lambda content: on_output("stderr", content)),
        )
        try:
            child = self._start_child(command, pipes)
        except BaseException:
            for pipe in pipes:
                pipe.discard()
            raise
        process = Process(self, command, child, pipes)
        self._live.add(process)

        def on_exit(status: int) -> None:
            self._live.discard(process)
            process.on_exit(status)

        self._reaper.expect(child.pid, on_exit)
        for pipe in pipes:
            pipe.start()
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

    def release(self, pipes: tuple[OutputPipe, ...]) -> None:
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
        self, command: Command, pipes: tuple[OutputPipe, OutputPipe]
    ) -> "subprocess.Popen[bytes]":
        argv = list(command.argv)
        with contextlib.ExitStack() as stack:
            inherited: tuple[int, ...] = ()
            position = find_long_script(argv) if argv else None
            if position is not None:
                script = open_script(argv[position])
                stack.callback(os.close, script)
                argv[position] = read_from(script)
                inherited = (script,)
            try:
                return subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=pipes[0].writer,
                    stderr=pipes[1].writer,
                    cwd=command.cwd,
                    env={**self._environment, **command.env},
                    start_new_session=True,
                    pass_fds=inherited,
                    preexec_fn=self._prepare,  # noqa: PLW1509 - `limits` says why
                )
            except OSError as error:
                raise _translate(error) from error


def _translate(error: OSError) -> Exception:
    if error.errno == errno.E2BIG:
        return ArgumentTooLong("the arguments and variables together are longer than Linux takes")
    if error.errno in {errno.EAGAIN, errno.ENOMEM} and error.filename is None:
        return ProcessLimit(f"the sandbox can start no more processes: {error.strerror}")
    return error
