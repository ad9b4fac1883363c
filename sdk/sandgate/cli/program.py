"""All commands under one name, and the one place where an error becomes a line and a code.

Exit codes: 0, or what the command itself returned; 1 for a failure, told in one line that says
what to do; 2 for wrong usage, and 125 for both with `run` and `shell`; 130 after Ctrl-C.
"""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version as distribution_version

import click

from sandgate.cli.claims import claim, list_, pools, release, renew
from sandgate.cli.completion import completion
from sandgate.cli.explain import explain
from sandgate.cli.files import cat, cp, ls
from sandgate.cli.forward import port_forward
from sandgate.cli.gateway import json_option
from sandgate.cli.run import run, shell
from sandgate.cli.servers import router, runtime, up
from sandgate.cli.show import show_json
from sandgate.cli.token import token
from sandgate.cli.watch import events, top
from sandgate.errors import SandgateError

OWN_FAILURE = 125
"""Of `run` and `shell`, whose other codes are the command's; docker's has the same."""

_SERVERS = frozenset({"router", "runtime", "up"})

INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def program() -> None:
    """Claim sandboxes, run commands in them, and serve them."""


@program.command()
@json_option
def version(as_json: bool) -> None:
    """Print the version."""
    number = distribution_version("sandgate")
    if as_json:
        show_json({"version": number})
    else:
        click.echo(number)


for _command in (
    *(cat, claim, completion, cp, events, list_, ls, pools, port_forward, release, renew),
    *(router, run, runtime, shell, token, top, up),
):
    program.add_command(_command)


def run_program(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    is_run = bool(arguments) and arguments[0] in {"run", "shell"}
    try:
        with _ended_by_sigterm(arguments):
            result = program.main(list(arguments), prog_name="sandgate", standalone_mode=False)
    except click.UsageError as error:
        error.show()
        return OWN_FAILURE if is_run else error.exit_code
    except click.ClickException as error:
        return _fail(error.format_message(), code=OWN_FAILURE if is_run else error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", code=INTERRUPTED)
    except (SandgateError, OSError) as error:
        return _fail(explain(error), code=OWN_FAILURE if is_run else 1)
    except (ValueError, OverflowError) as error:  # a value that the handle refused before sending
        return _fail(str(error), code=OWN_FAILURE if is_run else 2)
    return result if isinstance(result, int) else 0


@contextmanager
def _ended_by_sigterm(arguments: Sequence[str]) -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a client as Ctrl-C does: what it runs is killed first."""
    if not arguments or arguments[0] in _SERVERS:
        yield  # servers have their own way to end
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    yield


def _end(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def _fail(line: str, *, code: int = 1) -> int:
    click.echo(f"sandgate: {' '.join(line.split())}", err=True)
    return code
