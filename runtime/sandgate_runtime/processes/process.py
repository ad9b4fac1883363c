"""One command that was started: followed to its end, steered, and killed with all below it."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from sandgate_runtime.errors import NoTerminal, ProcessEnded
from sandgate_runtime.processes.audit import Audit
from sandgate_runtime.processes.channels import Channels, OnOutput
from sandgate_runtime.processes.command import Command, TerminalSize
from sandgate_runtime.processes.ending import Exit, Reason, Stream
from sandgate_runtime.processes.oom import OomEvidence
from sandgate_runtime.processes.pipes import OutputPipe
from sandgate_runtime.processes.stdin import CommandInput
from sandgate_runtime.processes.tree import Family, kill_tree, terminate_tree

if TYPE_CHECKING:
    import subprocess

DRAIN_SECONDS = 0.1
"""How long a pipe that a child in the background still holds is read after the command's end."""

_KILLED_CODE = 128 + signal.SIGKILL


class Host(Protocol):
    """What a process needs of the engine that started it."""

    loop: asyncio.AbstractEventLoop
    audit: Audit
    oom: OomEvidence

    def reap(self) -> None:
        """Collect statuses now, not at the next signal."""

    def own(self, killing: Coroutine[object, None, object]) -> "asyncio.Task[object]":
        """Run a kill to its end, whoever asked for it and went away."""

    def release(self, pipes: Sequence[OutputPipe]) -> None:
        """Close pipes, or keep them empty for their writers."""


class Process:
    """A command that was started."""

    def __init__(
        self,
        host: Host,
        command: Command,
        child: "subprocess.Popen[bytes]",
        channels: Channels,
        *,
        process_id: str,
    ) -> None:
        self.id = process_id
        self.pid = child.pid
        self._host = host
        self._command = command
        self._child = child
        self._channels = channels
        self._family = Family(child.pid, process_id=process_id)
        self._started = time.monotonic()
        self._started_at = datetime.now(UTC)
        self._exit: asyncio.Future[tuple[int, float]] = host.loop.create_future()
        self._reason: Reason = "exited"
        self._ending: asyncio.Task[object] | None = None
        self._signals: set[int] = set()
        self._size = 0
        self._dropped: dict[Stream, int] = {}
        self._draining = False

    def __repr__(self) -> str:
        state = f"ended, status {self._exit.result()[0]}" if self._exit.done() else "running"
        return f"<Process {self.id} {self._command.argv[0]!r} pid {self.pid} {state}>"

    @property
    def stdin(self) -> CommandInput | None:
        """Where its input goes; None if it reads /dev/null."""
        return self._channels.stdin

    async def watch(self) -> Exit:
        """Wait until the command has ended and its output is read; call it once.

        Cancelled, it kills the command with all that it started.
        """
        timer = None
        if self._command.timeout is not None:
            timer = self._host.loop.call_later(
                self._command.timeout, self._end_if_running, "timeout", self._command.grace
            )
        feeding = self._host.loop.create_task(self._feed())
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
            if self.stdin is not None:
                self.stdin.close()
            await feeding  # ends with its input
            self._host.release(self._channels.outputs)
        how = self._judge(status, duration=ended - self._started)
        self._host.audit.ended(
            self._command, how, process=self.id, pid=self.pid, at=self._started_at
        )
        return how

    def kill(self, reason: Reason = "killed") -> None:
        """Kill the command and all that it started; nothing to do if it has ended."""
        self._end_if_running(reason, 0.0)

    def terminate(self, *, grace: float) -> None:
        """Ask the command and all that it started to end, and kill what is left after `grace`."""
        self._end_if_running("killed", grace)

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the command's process group; raise ProcessEnded.

        SIGKILL takes the whole tree, since what it leaves could not be reached any more.
        """
        self._check_running()
        if number == signal.SIGKILL:
            self.kill()
            return
        self._signals.add(number)
        # The id cannot be another's by now: it is free only once the status was collected.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def resize(self, size: TerminalSize) -> None:
        """Set the size of its terminal; raise ProcessEnded or NoTerminal."""
        if not self._channels.terminal:
            raise NoTerminal(f"process {self.id} does not run in a terminal")
        self._check_running()
        self._channels.resize(size)

    def pause_output(self) -> None:
        """Read no output until `resume_output`; the command waits at a full pipe."""
        if not self._draining:
            for pipe in self._channels.outputs:
                pipe.pause()

    def resume_output(self) -> None:
        """Read output again."""
        for pipe in self._channels.outputs:
            pipe.resume()

    def limit(self, on_output: OnOutput) -> OnOutput:
        """Return what passes output on up to the command's limit, and kills it there."""
        maximum = self._command.output_limit
        if maximum is None:
            return on_output

        def take(stream: Stream, content: bytes) -> None:
            room = max(0, maximum - self._size)
            self._size += len(content)
            if room:
                on_output(stream, content[:room])
            if len(content) > room:
                self._dropped[stream] = self._dropped.get(stream, 0) + len(content) - room
                self.kill("output_limit")

        return take

    def on_exit(self, status: int) -> None:
        """Take the status that the reaper collected."""
        self._child.returncode = status  # else Popen would wait for a process id that is free now
        self._exit.set_result((status, time.monotonic()))

    def _check_running(self) -> None:
        self._host.reap()
        if self._exit.done():
            raise ProcessEnded(f"process {self.id} has ended")

    def _end_if_running(self, reason: Reason, grace: float) -> None:
        self._host.reap()  # one that has just ended by itself was not ended by us
        if self._exit.done():
            return
        if self._ending is None:
            self._reason = reason
        elif grace > 0:
            return
        way = terminate_tree(self._family, grace=grace) if grace else kill_tree(self._family)
        self._ending = self._host.own(way)

    def _judge(self, status: int, *, duration: float) -> Exit:
        reason = self._reason
        how = Exit(status=status, reason=reason, duration=duration, dropped=self._dropped)
        if reason != "exited":
            return how
        if how.signal in self._signals:
            reason = "killed"
        # Not only a death by SIGKILL: a shell whose child was killed exits with 137.
        elif how.code == _KILLED_CODE and self._host.oom.claim():
            reason = "oom"
        return Exit(status=status, reason=reason, duration=duration, dropped=self._dropped)

    async def _feed(self) -> None:
        asked, stdin = self._command.stdin, self.stdin
        if asked is None or stdin is None:
            return
        await stdin.write(asked.content)
        if not asked.more:
            await stdin.end()

    async def _drain(self) -> None:
        """Read what the command left in its pipes.

        That is no more than they hold, so it is read though its reader is behind: an end must not
        wait for somebody who does not read.
        """
        self._draining = True
        for pipe in self._channels.outputs:
            pipe.expect_no_more()
            pipe.resume()
        while open_pipes := [p.ended for p in self._channels.outputs if not p.ended.done()]:
            done, _ = await asyncio.wait(open_pipes, timeout=DRAIN_SECONDS)
            if not done:
                return
