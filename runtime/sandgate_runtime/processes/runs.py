"""Processes that clients can find again: kept with their events until nobody can want them.

A run is over for one of three reasons: its command ended, its last watcher has been gone for
`linger` seconds (unless it is detached), or somebody removed it. It is followed by a task of its
own, since those who watch come and go. Ended ones are kept for a while, bounded in number and in
bytes.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from sandgate_runtime.config import Config
from sandgate_runtime.errors import ProcessEnded, ProcessNotFound, StdinClosed
from sandgate_runtime.processes.command import Command
from sandgate_runtime.processes.ending import Exit, describe_failed_start, judge_failed_start
from sandgate_runtime.processes.engine import Engine, new_id
from sandgate_runtime.processes.event_log import EventLog, Watcher
from sandgate_runtime.processes.process import Process
from sandgate_runtime.processes.stdin import CommandInput

GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL: enough to remove a lock file, not to hang about."""

MAX_KEPT_BYTES = 16 * 1024 * 1024
"""Output of ended processes together; the oldest are forgotten above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A command, and what becomes of it when nobody watches."""

    command: Command
    detach: bool = False
    """Whether it runs on without watchers for ever."""
    linger: float = 0.0
    """Seconds that it outlives its last watcher; 0 to kill it at once."""


class Run:
    """A command that was asked for, and all that became of it."""

    def __init__(self, engine: Engine, wanted: Wanted, *, capacity: int) -> None:
        """Start it; raises what `Engine.spawn` raises, but for a program that cannot be run."""
        self.id = new_id()
        self.wanted = wanted
        self.started_at = datetime.now(UTC)
        self.exit: Exit | None = None
        self.watchers = 0
        self.log = EventLog(capacity=capacity)
        self._loop = engine.loop
        self._leaving: asyncio.TimerHandle | None = None
        self.process = self._spawn(engine, wanted.command)

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.process!r} {self.log!r}>"

    @property
    def pid(self) -> int | None:
        """The id in the sandbox; None if the program could not be started."""
        return None if self.process is None else self.process.pid

    async def follow(self) -> None:
        """Wait for the end and log it; to be awaited once, by the run's owner."""
        if self.process is not None:
            self._end(await self.process.watch())

    @contextmanager
    def watch(self, *, after: int = 0) -> Iterator[Watcher]:
        """Yield the events behind a number, as they come; raise OutOfWindow."""
        with self._watching(self.log.watch(after=after)) as watcher:
            yield watcher

    @contextmanager
    def watch_offset(self, offset: int) -> Iterator[Watcher]:
        """Yield the events from a byte of output on, or from the first that is kept."""
        with self._watching(self.log.watch_offset(offset)) as watcher:
            yield watcher

    def leave(self) -> None:
        """Go on without a watcher, as if the last had left at this moment."""
        if self.watchers or self.wanted.detach or self.process is None or self.exit is not None:
            return
        self._stay()
        if self.wanted.linger > 0:
            self._leaving = self._loop.call_later(self.wanted.linger, self.process.kill)
        else:
            self.process.kill()

    def running_process(self) -> Process:
        """Return the process while it runs; raise ProcessEnded."""
        if self.process is None or self.exit is not None:
            raise ProcessEnded(f"process {self.id} has ended")
        return self.process

    def open_stdin(self) -> CommandInput:
        """Return where its input goes; raise StdinClosed or ProcessEnded."""
        stdin = self.running_process().stdin
        if stdin is None:
            raise StdinClosed(f"process {self.id} was started without input; give it 'stdin'")
        if not stdin.open:
            raise StdinClosed(f"the input of process {self.id} is closed")
        return stdin

    @contextmanager
    def _watching(self, watcher: Watcher) -> Iterator[Watcher]:
        self.watchers += 1
        self._stay()
        try:
            yield watcher
        finally:
            watcher.close()
            self.watchers -= 1
            self.leave()

    def _stay(self) -> None:
        """Take back the end that was to come for want of watchers."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    def _spawn(self, engine: Engine, command: Command) -> Process | None:
        try:
            process = engine.spawn(command, self.log.add_output, process_id=self.id)
        except OSError as error:
            if error.filename == command.cwd:
                raise
            # As a shell would tell it. There is nothing that could be followed or signalled.
            self.log.add("started", {"id": None, "pid": None})
            self.log.add_output("stderr", describe_failed_start(error))
            self._end(judge_failed_start(error, command.argv))
            return None
        self.log.flow = lambda on: process.resume_output() if on else process.pause_output()
        self.log.add("started", {"id": self.id, "pid": process.pid})
        return process

    def _end(self, how: Exit) -> None:
        self.exit = how
        self._stay()
        self.log.add("exit", describe_exit(how, self.log))
        self.log.finish()


class Runs:
    """All runs that are known."""

    def __init__(self, engine: Engine, config: Config) -> None:
        self._engine = engine
        self._config = config
        self._runs: dict[str, Run] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._ended: dict[str, asyncio.TimerHandle] = {}

    def start(self, wanted: Wanted) -> Run:
        """Start a command and keep it; raises what `Engine.spawn` raises."""
        run = Run(self._engine, wanted, capacity=self._config.output_buffer_bytes)
        self._runs[run.id] = run
        task = self._engine.loop.create_task(run.follow(), name=f"follow {run.id}")
        self._following[run.id] = task
        task.add_done_callback(lambda _: self._keep(run))
        return run

    def get(self, run_id: str) -> Run:
        """Return a run; raise ProcessNotFound."""
        if (run := self._runs.get(run_id)) is None:
            raise ProcessNotFound(f"there is no process {run_id!r}, or it was forgotten")
        return run

    def is_kept(self, run_id: str) -> bool:
        """Say whether a run is known, whether it has ended or not."""
        return run_id in self._runs

    def list(self) -> list[Run]:
        """Return all runs, the oldest first."""
        return list(self._runs.values())

    async def remove(self, run_id: str) -> None:
        """End a run with all that it started, and forget it; raise ProcessNotFound."""
        run = self.get(run_id)
        if run.process is not None:
            run.process.terminate(grace=GRACE_SECONDS)
        if (task := self._following.get(run_id)) is not None:
            await asyncio.wait({task})
        self._forget(run_id)

    async def close(self) -> None:
        """Await what follows the runs; the engine has killed them by then."""
        if self._following:
            await asyncio.wait(self._following.values())
        for timer in self._ended.values():
            timer.cancel()

    def _keep(self, run: Run) -> None:
        self._following.pop(run.id).result()
        if run.id not in self._runs:
            return
        seconds = self._config.keep_finished_seconds
        self._ended[run.id] = self._engine.loop.call_later(seconds, self._forget, run.id)
        while self._is_full():
            self._forget(next(iter(self._ended)))

    def _is_full(self) -> bool:
        if len(self._ended) <= 1:
            return False
        size = sum(self._runs[run_id].log.size for run_id in self._ended)
        return len(self._ended) > self._config.keep_finished or size > MAX_KEPT_BYTES

    def _forget(self, run_id: str) -> None:
        self._runs.pop(run_id, None)
        if (timer := self._ended.pop(run_id, None)) is not None:
            timer.cancel()


def describe_exit(how: Exit, log: EventLog) -> dict[str, object]:
    """Return the members that tell of an end."""
    return {
        "exit_code": how.code,
        "signal": how.signal,
        "reason": how.reason,
        "truncated": {
            stream: count + how.dropped.get(stream, 0) for stream, count in log.dropped.items()
        },
        "duration": round(how.duration, 6),
    }
