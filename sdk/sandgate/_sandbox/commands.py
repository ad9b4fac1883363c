"""Run commands in a sandbox. A command is sent once, whatever happens to the connection."""

import os
from collections.abc import Generator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from sandgate._wire.output import CollectedOutput, Watcher
from sandgate._wire.processes import Command, CommandStream, build_run
from sandgate.errors import GatewayUnreachable
from sandgate.types import CommandEvent, CommandResult, Exit, Output

if TYPE_CHECKING:
    from sandgate._transport import Transport
    from sandgate._wire.message import Call
    from sandgate._wire.route import Route


class Commands:
    """The commands of one sandbox."""

    def __init__(
        self, transport: "Transport", *, route: "Route", env: Mapping[str, str] | None = None
    ) -> None:
        self._transport = transport
        self._route = route
        self._env = dict(env or {})

    def run(
        self,
        command: Command,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        on_stdout: Watcher | None = None,
        on_stderr: Watcher | None = None,
    ) -> CommandResult:
        """Run a command to its end: a string by the shell, a sequence of strings without one.

        `timeout` is in seconds, None sets none; `env` is added to the sandbox's environment.
        The watchers get text while the command runs; one that raises ends the command. A
        non-zero exit code is a result. Raises CommandTimeout, and OutcomeUnknown where nobody
        can tell whether the command ran.
        """
        watchers = {"stdout": on_stdout, "stderr": on_stderr}
        output = CollectedOutput()
        with closing(self.stream(command, timeout=timeout, cwd=cwd, env=env)) as events:
            for event in events:
                if isinstance(event, Output):
                    _tell(watchers[event.stream], output.add(event))
                elif isinstance(event, Exit):
                    exit_ = event
        for name, watcher in watchers.items():
            _tell(watcher, output.rest(name))
        return output.result(exit_)

    def stream(
        self,
        command: Command,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Generator[CommandEvent, None, None]:
        """Run a command and yield what it does: Started, Output as raw bytes, and one Exit.

        Closing the iterator early kills the command. A timeout is told by the Exit's reason.
        """
        call = build_run(
            command,
            route=self._route,
            key=os.urandom(16).hex(),
            timeout=timeout,
            cwd=cwd,
            env={**self._env, **(env or {})},
        )
        return self._events(call)

    def _events(self, call: "Call[None]") -> Generator[CommandEvent, None, None]:
        stream = CommandStream()
        try:
            with self._transport.stream(call) as chunks:
                for chunk in chunks:
                    yield from stream.receive(chunk)
        except GatewayUnreachable as error:
            stream.lost(error)
        stream.end()


def _tell(watcher: Watcher | None, text: str) -> None:
    if watcher is not None and text:
        watcher(text)
