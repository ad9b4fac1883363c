"""`sandgate run` and `shell`: a command in a sandbox as if it ran here.

Output passes as raw bytes the moment it comes and is not kept. Ctrl-C is the command's: it gets
SIGINT, and only a second one ends this program. However this program ends, the command is
killed, at once where it can be said, else when nobody has watched it for 30 s.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from types import FrameType

import click

from sandgate import Gateway, Sandbox, Sandboxes
from sandgate._sandbox.commands import LOGIN_SHELL
from sandgate.cli.gateway import gateway_options, json_option
from sandgate.cli.names import ClaimName, ClaimType, PairType
from sandgate.cli.show import show_json
from sandgate.cli.terminal import local_terminal, pump_input
from sandgate.errors import SandgateError
from sandgate.types import CommandEvent, Exit, Output, Started

TIMED_OUT = 124
"""What `timeout` of coreutils returns, too."""


@click.command()
@click.argument("claim", type=ClaimType())
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
@click.option("--shell", "line", metavar="TEXT", help="Give this line to the sandbox's shell.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS")
@click.option("--cwd", metavar="PATH", help="Directory in the sandbox to run in.")
@click.option("--env", "pairs", type=PairType(), multiple=True, metavar="KEY=VALUE")
@click.option("--stdin", "with_input", is_flag=True, help="Pass standard input on.")
@click.option("--tty", is_flag=True, help="Run in a terminal.")
@click.option("--stream", is_flag=True, help="With --json: a line for each event as it comes.")
@json_option
@gateway_options
def run(
    claim: ClaimName,
    argv: tuple[str, ...],
    line: str | None,
    timeout: float | None,
    cwd: str | None,
    pairs: tuple[tuple[str, str], ...],
    with_input: bool,
    tty: bool,
    stream: bool,
    as_json: bool,
    gateway: Gateway,
) -> int:
    """Run a command in the sandbox of CLAIM: `sandgate run CLAIM -- python3 -V`.

    The exit code is the command's, 128+n after signal n; 124 where --timeout killed it, and 125
    where this program failed.
    """
    if (line is None) == (not argv):
        raise click.UsageError("Give either a command after --, or --shell TEXT.")
    if tty and (timeout is not None or as_json or with_input):
        raise click.UsageError("--tty goes with neither --timeout nor --json nor --stdin.")
    command = list(argv) if line is None else line
    show = _Lines() if as_json and stream else _Whole() if as_json else _pass_on
    with Sandboxes(gateway) as sandboxes, ExitStack() as stack:
        sandbox = sandboxes.get(claim.name, namespace=claim.namespace)
        if tty:
            return _run_in_terminal(sandbox, command, cwd=cwd, env=dict(pairs))
        if with_input:
            process = sandbox.commands.start(
                command, timeout=timeout, cwd=cwd, env=dict(pairs), open_stdin=True, detach=False
            )
            stack.enter_context(process)
            pump_input(process)
            events = process.events()
        else:
            events = sandbox.commands.stream(command, timeout=timeout, cwd=cwd, env=dict(pairs))
        exit_ = _follow(sandbox, stack.enter_context(closing(events)), show)
    if isinstance(show, _Whole):
        show.print(exit_)
    elif exit_.reason != "exited" and not as_json:
        click.echo(f"sandgate: {_ENDINGS[exit_.reason]}", err=True)
    return TIMED_OUT if exit_.reason == "timeout" else exit_.exit_code


@click.command()
@click.argument("claim", type=ClaimType())
@click.option("--cwd", metavar="PATH", help="Directory in the sandbox to start in.")
@gateway_options
def shell(claim: ClaimName, cwd: str | None, gateway: Gateway) -> int:
    """Open a shell in the sandbox of CLAIM."""
    with Sandboxes(gateway) as sandboxes:
        sandbox = sandboxes.get(claim.name, namespace=claim.namespace)
        return _run_in_terminal(sandbox, None, cwd=cwd, env={})


_ENDINGS = {
    "timeout": "the command ran into --timeout and was killed; give it more time",
    "killed": "the command was killed",
    "oom": "the command was killed: it used more memory than the pool allows",
    "output_limit": "the command was killed: it printed more than the sandbox allows",
}


def _follow(
    sandbox: Sandbox, events: Iterator[CommandEvent], show: Callable[[CommandEvent], None]
) -> Exit:
    with _interrupts(sandbox) as started:
        for event in events:
            if isinstance(event, Started):
                started(event.id)
            show(event)
            if isinstance(event, Exit):
                exit_ = event
    return exit_


def _run_in_terminal(
    sandbox: Sandbox, command: list[str] | str | None, *, cwd: str | None, env: dict[str, str]
) -> int:
    with local_terminal() as terminal:
        process = sandbox.terminal(
            LOGIN_SHELL if command is None else command,
            cols=terminal.cols,
            rows=terminal.rows,
            cwd=cwd,
            env=env,
        )
        with process:
            terminal.attach(process)
            for event in process.events():
                _pass_on(event)
                if isinstance(event, Exit):
                    return event.exit_code
    raise AssertionError("the events of a process end with its exit")


@contextmanager
def _interrupts(sandbox: Sandbox) -> Iterator[Callable[[str | None], None]]:
    """Pass the first Ctrl-C on to the command, once its id is told to what is yielded."""
    process_id: str | None = None
    passed = False

    def started(id_: str | None) -> None:
        nonlocal process_id
        process_id = id_

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal passed
        if passed or process_id is None:
            raise KeyboardInterrupt
        passed = True
        # In a thread: this one reads the output, and a handler must not wait.
        threading.Thread(target=_send_interrupt, args=(sandbox, process_id), daemon=True).start()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield started
    finally:
        signal.signal(signal.SIGINT, before)


def _send_interrupt(sandbox: Sandbox, process_id: str) -> None:
    with suppress(SandgateError):  # it may have ended meanwhile; a second Ctrl-C ends this program
        sandbox.commands.attach(process_id).signal("SIGINT")


def _pass_on(event: CommandEvent) -> None:
    if isinstance(event, Output):
        stream = sys.stdout.buffer if event.stream == "stdout" else sys.stderr.buffer
        stream.write(event.data)
        stream.flush()


class _Whole:
    """Keeps the output, for one JSON value at the end."""

    def __init__(self) -> None:
        self._data = {"stdout": bytearray(), "stderr": bytearray()}

    def __call__(self, event: CommandEvent) -> None:
        if isinstance(event, Output):
            self._data[event.stream] += event.data

    def print(self, exit_: Exit) -> None:
        texts = {name: data.decode(errors="replace") for name, data in self._data.items()}
        show_json({**_describe(exit_), **texts})


class _Lines:
    """Prints each event as a line of JSON; output that is not UTF-8 has U+FFFD in it."""

    def __call__(self, event: CommandEvent) -> None:
        match event:
            case Started():
                show_json({"event": "started", "id": event.id, "pid": event.pid})
            case Output():
                show_json({"event": event.stream, "text": event.data.decode(errors="replace")})
            case Exit():
                show_json({"event": "exit", **_describe(event)})
        sys.stdout.flush()


def _describe(exit_: Exit) -> dict[str, object]:
    return {
        "exit_code": exit_.exit_code,
        "signal": exit_.signal,
        "reason": exit_.reason,
        "duration": exit_.duration,
        "truncated": exit_.truncated,
    }
