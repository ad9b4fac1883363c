"""`sandgate completion`: what a shell has to read so that Tab works."""

import click
from click.shell_completion import ShellComplete, get_completion_class

from sandgate.cli.gateway import json_option
from sandgate.cli.show import show_json


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
@click.pass_context
def completion(ctx: click.Context, shell: str, as_json: bool) -> None:
    """Print the completion for SHELL, as in `eval "$(sandgate completion bash)"`."""
    kind = get_completion_class(shell)
    assert kind is not None
    # The template itself: click's own way runs bash first to learn its version.
    complete = kind(ctx.find_root().command, {}, "sandgate", "_SANDGATE_COMPLETE")
    source = ShellComplete.source(complete)
    if as_json:
        show_json({"shell": shell, "source": source})
    else:
        click.echo(source)
