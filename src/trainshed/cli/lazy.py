"""Groups that import a command only when it is run; their help needs no import."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """A group whose commands are ``name -> (module:attribute, short help)``.

    The short help is repeated here so that ``--help`` stays fast; a test compares it with the command's own.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in self.lazy:
            return None
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}:{attribute} is no command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in self.lazy.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        refuse_unknown(ctx, args, self.list_commands(ctx))
        return super().resolve_command(ctx, args)


class Group(click.Group):
    """A group that keeps the order of definition and suggests the nearest command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        refuse_unknown(ctx, args, self.list_commands(ctx))
        return super().resolve_command(ctx, args)


_SAME = (
    ("get", "show", "status", "info", "describe", "view"),
    ("list", "ls"),
    ("log", "logs"),
    ("stop", "cancel", "kill", "abort", "end"),
    ("download", "fetch", "pull"),
    ("publish", "push", "upload"),
    ("submit", "create", "run", "start", "add", "new"),
    ("delete", "remove", "rm", "withdraw"),
    ("set", "edit", "update", "change"),
)
"""Words that mean one thing here or in other programs: whoever says one may have meant another."""


def refuse_unknown(ctx: click.Context, args: list[str], known: list[str]) -> None:
    """Refuse a command that does not exist, with those that do and mean the same, or else look like it."""
    if not args or args[0] in known or args[0].startswith("-") or ctx.resilient_parsing:
        return
    import difflib  # noqa: PLC0415 - only for who mistyped

    meant = [word for words in _SAME if args[0] in words for word in words if word in known]
    near = meant[:2] or difflib.get_close_matches(args[0], known, n=2, cutoff=0.5)
    said = (
        f"did you mean {' or '.join(f'`{name}`' for name in near)}?" if near else f"known: {', '.join(known)}"
    )
    ctx.fail(f"no such command `{args[0]}`; {said}")
