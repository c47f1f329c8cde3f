"""``trainshed completion``: shell completion scripts."""

from __future__ import annotations

import click

from trainshed.cli.session import Session

SHELLS = ("bash", "zsh", "fish")
_INSTALL = {
    "bash": "{program} completion bash > ~/.local/share/bash-completion/completions/{program}",
    "zsh": '{program} completion zsh > "${{fpath[1]}}/_{program}"',
    "fish": "{program} completion fish > ~/.config/fish/completions/{program}.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    The script completes the name it was made with: run it once as `trainshed` and once as `el`.
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - only here

    session = context.ensure_object(Session)
    root = context.find_root().command
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    program = session.program
    variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
    click.echo(kind(root, {}, program, variable).source())
    session.note(f"# install: {_INSTALL[shell].format(program=program)}")
