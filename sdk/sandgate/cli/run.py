"""`sandgate run`: a command in a sandbox as if it ran here.

Output passes as raw bytes the moment it comes and is not kept. Ctrl-C, or the end of this
process, closes the stream, and the sandbox kills the command.
"""

import sys
from contextlib import closing

import click

from sandgate import Gateway, Sandboxes
from sandgate.cli.gateway import gateway_options, json_option
from sandgate.cli.names import ClaimName, ClaimType, PairType
from sandgate.cli.show import show_json
from sandgate.types import Exit, Output


@click.command()
@click.argument("claim", type=ClaimType())
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
@click.option("--shell", metavar="TEXT", help="Give this line to the shell in the sandbox.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS")
@click.option("--cwd", metavar="PATH", help="Directory in the sandbox to run in.")
@click.option("--env", "pairs", type=PairType(), multiple=True, metavar="KEY=VALUE")
@json_option
@gateway_options
def run(
    claim: ClaimName,
    argv: tuple[str, ...],
    shell: str | None,
    timeout: float | None,
    cwd: str | None,
    pairs: tuple[tuple[str, str], ...],
    as_json: bool,
    gateway: Gateway,
) -> int:
    """Run a command in the sandbox of CLAIM: `sandgate run CLAIM -- python3 -V`.

    The exit code is the command's, 128+n after signal n.
    """
    if (shell is None) == (not argv):
        raise click.UsageError("Give either a command after --, or --shell TEXT.")
    out = bytearray()
    err = bytearray()
    with Sandboxes(gateway) as sandboxes:
        sandbox = sandboxes.get(claim.name, namespace=claim.namespace)
        events = sandbox.commands.stream(
            list(argv) if shell is None else shell,
            timeout=timeout,
            cwd=cwd,
            env=dict(pairs),
        )
        with closing(events):
            for event in events:
                if isinstance(event, Output) and as_json:
                    (out if event.stream == "stdout" else err).extend(event.data)
                elif isinstance(event, Output):
                    _pass_on(event)
                elif isinstance(event, Exit):
                    exit_ = event
    if as_json:
        show_json(
            {
                "exit_code": exit_.exit_code,
                "signal": exit_.signal,
                "reason": exit_.reason,
                "duration": exit_.duration,
                "truncated": exit_.truncated,
                "stdout": out.decode(errors="replace"),
                "stderr": err.decode(errors="replace"),
            }
        )
    elif exit_.reason != "exited":
        click.echo(f"sandgate: {_ENDINGS[exit_.reason]}", err=True)
    return exit_.exit_code


_ENDINGS = {
    "timeout": "the command ran into --timeout and was killed; give it more time",
    "killed": "the command was killed",
    "oom": "the command was killed: it used more memory than the pool allows",
    "output_limit": "the command was killed: it printed more than the sandbox allows",
}


def _pass_on(output: Output) -> None:
    stream = sys.stdout.buffer if output.stream == "stdout" else sys.stderr.buffer
    stream.write(output.data)
    stream.flush()
