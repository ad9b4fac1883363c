"""Run commands in a sandbox. A command is sent once, whatever happens to the connection."""

import os
import time
from collections.abc import Generator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from sandgate._sandbox.process import Process
from sandgate._wire.claiming import start_process
from sandgate._wire.following import Following
from sandgate._wire.output import CollectedOutput, Watcher
from sandgate._wire.processes import Command, Processes, Spec, parse_spec
from sandgate.types import CommandEvent, CommandResult, Exit, Output, ProcessInfo, TerminalSize

if TYPE_CHECKING:
    import builtins

    from sandgate._transport import Transport
    from sandgate._wire.lease import Lease

LOGIN_SHELL = 'exec "${SHELL:-/bin/sh}" -i'
"""What a terminal runs where nothing else is said."""


class Commands:
    """The commands of one sandbox."""

    def __init__(
        self, transport: "Transport", *, lease: "Lease", env: Mapping[str, str] | None = None
    ) -> None:
        self._transport = transport
        self._lease = lease
        self._env = dict(env or {})

    def run(
        self,
        command: Command,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        on_stdout: Watcher | None = None,
        on_stderr: Watcher | None = None,
    ) -> CommandResult:
        """Run a command to its end: a string by the shell, a sequence of strings without one.

        `timeout` is in seconds, None sets none; `env` is added to the sandbox's environment;
        `stdin` is all of the command's input. The watchers get text while the command runs; one
        that raises ends the command. A lost connection is made again and the output goes on
        where it was. A non-zero exit code is a result. Raises CommandTimeout, and OutcomeUnknown
        where nobody can tell whether the command ran.

        >>> from sandgate.testing import FakeGateway
        >>> with FakeGateway({"echo hi": "hi\\n"}).sandboxes() as sandboxes:
        ...     sandboxes.claim("python").commands.run("echo hi").stdout
        'hi\\n'
        """
        watchers = {"stdout": on_stdout, "stderr": on_stderr}
        output = CollectedOutput()
        events = self.stream(command, timeout=timeout, cwd=cwd, env=env, stdin=stdin)
        with closing(events):
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
        stdin: str | bytes | None = None,
    ) -> Generator[CommandEvent, None, None]:
        """Run a command and yield what it does: Started, Output as raw bytes, and one Exit.

        Closing the iterator early kills the command. A timeout is told by the Exit's reason.
        """
        spec = parse_spec(command, timeout=timeout, cwd=cwd, env=self._merge(env), stdin=stdin)
        following = Following(
            self._lease, clock=time.monotonic, spec=spec, key=os.urandom(16).hex()
        )
        return self._transport.follow(following)

    def start(
        self,
        command: Command,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        open_stdin: bool = False,
        detach: bool = True,
    ) -> Process:
        """Start a command and return at once, with a handle on its process.

        It runs on until it ends, is killed, or its sandbox ends; without `detach` until nobody
        has watched it for 30 s. With `open_stdin` its input stays open for `write_stdin`. While
        nobody watches, its newest mebibyte of output is kept. Raises OutcomeUnknown where nobody
        can tell whether it was started.
        """
        spec = parse_spec(
            command,
            timeout=timeout,
            cwd=cwd,
            env=self._merge(env),
            stdin=stdin,
            open_stdin=open_stdin,
            detach=detach,
        )
        return self._start(spec)

    def open_terminal(
        self,
        command: Command = LOGIN_SHELL,
        *,
        size: TerminalSize,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a command in a terminal, by default a shell; all its output is `stdout`."""
        spec = parse_spec(
            command, cwd=cwd, env={"TERM": "xterm-256color", **self._merge(env)}, terminal=size
        )
        return self._start(spec)

    def attach(self, process_id: str) -> Process:
        """Return a handle on a process that was started before, perhaps by another program.

        Raises:
            ProcessNotFound: the sandbox does not know it, or has forgotten it.
        """
        call = self._lease.authorized(lambda route: Processes(route).read(process_id))
        return self._process(self._transport.perform(call))

    def list(self) -> "builtins.list[ProcessInfo]":
        """Return the processes that run and those that ended lately, the oldest first."""
        return self._transport.perform(
            self._lease.authorized(lambda route: Processes(route).list_all())
        )

    def _merge(self, env: Mapping[str, str] | None) -> dict[str, str]:
        return {**self._env, **(env or {})}

    def _start(self, spec: Spec) -> Process:
        flow = start_process(self._lease, spec, key=os.urandom(16).hex())
        return self._process(self._transport.perform(flow))

    def _process(self, started: ProcessInfo) -> Process:
        return Process(self._transport, lease=self._lease, process_id=started.id, pid=started.pid)


def _tell(watcher: Watcher | None, text: str) -> None:
    if watcher is not None and text:
        watcher(text)
