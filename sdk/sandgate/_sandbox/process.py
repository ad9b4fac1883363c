"""One process that was started in a sandbox and is watched when somebody likes."""

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sandgate._wire.following import Following
from sandgate._wire.output import CollectedOutput, Watcher
from sandgate._wire.processes import Processes
from sandgate.errors import ProcessNotFound, SandgateError
from sandgate.types import (
    CommandEvent,
    CommandResult,
    Exit,
    Output,
    ProcessInfo,
    TerminalSize,
    Written,
)

if TYPE_CHECKING:
    from sandgate._transport import Transport
    from sandgate._wire.lease import Lease


class Process:
    """A process in a sandbox; leaving its `with` block kills it."""

    def __init__(
        self, transport: "Transport", *, lease: "Lease", process_id: str, pid: int | None
    ) -> None:
        self._transport = transport
        self._lease = lease
        self._id = process_id
        self._pid = pid
        self._after = 0

    @property
    def id(self) -> str:
        """Its id, by which `commands.attach` finds it again."""
        return self._id

    @property
    def pid(self) -> int | None:
        """Its number inside the sandbox; None where its program could not be run."""
        return self._pid

    def events(self) -> Generator[CommandEvent, None, None]:
        """Yield what it does, from behind what was yielded before, to its Exit.

        A lost connection is made again. Closing the iterator leaves the process running.
        """
        following = Following(
            self._lease, clock=time.monotonic, id_=self._id, after=self._after, kills=False
        )
        with closing(self._transport.follow(following)) as events:
            for event in events:
                self._after = following.take_place()
                yield event

    def __iter__(self) -> Iterator[CommandEvent]:
        return self.events()

    def wait(
        self, *, on_stdout: Watcher | None = None, on_stderr: Watcher | None = None
    ) -> CommandResult:
        """Wait for its end; return its output since its start, or since what was yielded before.

        Raises CommandTimeout where its own timeout killed it, and OutcomeUnknown.
        """
        watchers = {"stdout": on_stdout, "stderr": on_stderr}
        output = CollectedOutput()
        with closing(self.events()) as events:
            for event in events:
                if isinstance(event, Output):
                    _tell(watchers[event.stream], output.add(event))
                elif isinstance(event, Exit):
                    exit_ = event
        for name, watcher in watchers.items():
            _tell(watcher, output.rest(name))
        return output.result(exit_)

    def status(self) -> ProcessInfo:
        """Return it as it stands."""
        return self._transport.perform(
            self._lease.authorized(lambda route: Processes(route).read(self._id))
        )

    def write_stdin(self, data: str | bytes, *, eof: bool = False) -> Written:
        """Write to its input, and end that with `eof`; returns when it has taken everything.

        Raises:
            ProcessEnded: it has ended, or its input has.
        """
        content = data.encode() if isinstance(data, str) else data
        return self._transport.perform(
            self._lease.authorized(lambda route: Processes(route).write(self._id, content, eof=eof))
        )

    def close_stdin(self) -> None:
        """End its input."""
        self.write_stdin(b"", eof=True)

    def signal(self, signal: str | int) -> None:
        """Send a signal, such as "SIGINT" or 2, to its group; SIGKILL to all that it started."""
        self._transport.perform(
            self._lease.authorized(lambda route: Processes(route).signal(self._id, signal))
        )

    def resize(self, size: TerminalSize) -> None:
        """Set the size of its terminal."""
        self._transport.perform(
            self._lease.authorized(lambda route: Processes(route).resize(self._id, size))
        )

    def kill(self) -> None:
        """End it with all that it started, and have it forgotten; gone already is no error."""
        try:
            self._transport.perform(
                self._lease.authorized(lambda route: Processes(route).kill(self._id))
            )
        except ProcessNotFound:
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.kill()
        except SandgateError as failure:
            if error is None:
                raise
            error.add_note(f"{self!r} could not be killed: {failure}")

    def __repr__(self) -> str:
        return f"<Process {self._id}, pid {self._pid}>"


def _tell(watcher: Watcher | None, text: str) -> None:
    if watcher is not None and text:
        watcher(text)
