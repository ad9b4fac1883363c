"""All commands under one name, and the one place where an error becomes a line and a code.

Exit codes: 0, or what the command itself returned; 1 for a failure, told in one line that says
what to do; 2 for wrong usage; 130 after Ctrl-C.
"""

from collections.abc import Sequence
from importlib.metadata import version as distribution_version

import click

from sandgate.cli.claims import claim, pools, release
from sandgate.cli.explain import explain
from sandgate.cli.files import cp, ls
from sandgate.cli.run import run
from sandgate.cli.servers import router, runtime, up
from sandgate.cli.token import token
from sandgate.errors import SandgateError

INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def program() -> None:
    """Claim sandboxes, run commands in them, and serve them."""


@program.command()
def version() -> None:
    """Print the version."""
    click.echo(distribution_version("sandgate"))


for _command in (claim, cp, ls, pools, release, router, run, runtime, token, up):
    program.add_command(_command)


def run_program(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        result = program.main(list(arguments), prog_name="sandgate", standalone_mode=False)
    except click.UsageError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        return _fail(error.format_message(), code=error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", code=INTERRUPTED)
    except (SandgateError, OSError) as error:
        return _fail(explain(error))
    except (ValueError, OverflowError) as error:  # a value that the handle refused before sending
        return _fail(str(error), code=2)
    return result if isinstance(result, int) else 0


def _fail(line: str, *, code: int = 1) -> int:
    click.echo(f"sandgate: {' '.join(line.split())}", err=True)
    return code
