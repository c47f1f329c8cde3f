"""The generated part of ``docs/cli.md``: exit statuses and every command with its options.

``python -m trainshed.cli.reference docs/cli.md`` writes it; a test fails while the file differs.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from trainshed.cli.exits import MEANINGS
from trainshed.cli.program import root

BEGIN, END = "<!-- begin generated reference -->", "<!-- end generated reference -->"


def commands(command: click.Command = root, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its full name."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for each in command.list_commands(context):
        found = command.get_command(context, each)
        if found is not None:
            yield from commands(found, f"{name} {each}".strip())


def reference() -> str:
    """The generated part, as Markdown."""
    lines = ["## Exit statuses", "", "| status | meaning |", "| --- | --- |"]
    lines += [f"| {int(code)} | {text} |" for code, text in MEANINGS.items()]
    lines += ["", "## Commands", ""]
    for name, command in commands():
        lines += _command(name, command)
    return "\n".join(lines).rstrip() + "\n"


def with_reference(text: str) -> str:
    """``text`` with its generated part renewed."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{reference()}{END}{rest.partition(END)[2]}"


def _command(name: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command)
    arguments = [each.make_metavar(context) for each in command.params if isinstance(each, click.Argument)]
    yield f"### `{' '.join([name, *arguments])}`"
    yield ""
    yield inspect.cleandoc(command.help or "")
    yield ""
    options = [each for each in command.params if isinstance(each, click.Option)]
    if options:
        yield "| option | |"
        yield "| --- | --- |"
        for option in options:
            yield f"| {', '.join(f'`{spelling}`' for spelling in option.opts)} | {_help(option, context)} |"
        yield ""


def _help(option: click.Option, context: click.Context) -> str:
    _, text = option.get_help_record(context) or ("", "")
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.write_text(with_reference(place.read_text(encoding="utf-8")), encoding="utf-8")
