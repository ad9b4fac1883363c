"""The command line. What it needs beyond the handle is imported when it runs."""

import sys
from collections.abc import Sequence
from importlib import import_module

EXTRA_MODULES = frozenset({"click", "rich"})
"""Third-party packages of the extra `cli`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `sandgate` with these arguments, by default the process's; return the exit code."""
    try:
        # Tables import it when they are shown; its absence is told before anything is done.
        import_module("rich")
        from sandgate.cli.program import run_program
    except ModuleNotFoundError as error:
        if error.name not in EXTRA_MODULES:
            raise
        sys.stderr.write(
            f"sandgate: the command line needs {error.name}; run: pip install 'sandgate[cli]'\n"
        )
        return 1
    return run_program(sys.argv[1:] if arguments is None else arguments)
