"""``gpu policy``: when a person is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click

from trainshed.cli.lazy import Group
from trainshed.cli.output import Column, Table
from trainshed.cli.session import Session, json_option

_LISTS = frozenset({"ask_providers", "exempt_providers"})
_WORDS: Mapping[str, Any] = {
    "true": True,
    "yes": True,
    "false": False,
    "no": False,
    "off": None,
    "none": None,
}


def _rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each rule."""
    changed = dict(_flat(document.get("changed") or {}))
    return [
        {"rule": key, "value": value, "changed": key in changed}
        for key, value in _flat(document["policy"])
        if key != "version"
    ]


def _flat(rules: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in rules.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


RULES = Table(
    (
        Column("RULE", "rule"),
        Column("VALUE", lambda row: "off" if row["value"] is None else row["value"]),
        Column("CHANGED", lambda row: "yes" if row["changed"] else "", rank=1),
    ),
    empty="No rules.",
    rows=_rows,
)


@click.group(cls=Group)
def policy() -> None:
    """Show and change when a person is asked."""


@policy.command()
@json_option
@click.pass_obj
def show(session: Session) -> None:
    """Show the rules as they count: for agents, for users, for all."""
    with session.client() as client:
        found = client.approval_policy.get().raw
    session.show(found, RULES)


@policy.command("set")
@click.argument("settings", metavar="KEY=VALUE...", nargs=-1, required=True)
@json_option
@click.pass_obj
def set_(session: Session, settings: tuple[str, ...]) -> None:
    """Change rules; the others stay.

    `agent.auto_max_hours=2`, `user.ask_secrets=true`, `agent.ask_providers=kaggle,colab`; `off` is no limit.
    For people who administer the project, and never for agents. Jobs that ask already are not answered by it.
    """
    with session.client() as client:
        changed = json.loads(json.dumps(client.approval_policy.get().raw.get("changed") or {}))
        for setting in settings:
            _put(changed, setting)
        found = client.approval_policy.put(changed).raw
    session.show(found, RULES)


@policy.command()
@json_option
@click.pass_obj
def reset(session: Session) -> None:
    """Go back to the defaults."""
    with session.client() as client:
        found = client.approval_policy.reset().raw
    session.show(found, RULES)


def _put(document: dict[str, Any], setting: str) -> None:
    path, equals, text = setting.partition("=")
    *above, key = path.split(".")
    if not equals or not key or not all(above):
        raise click.UsageError(f"`{setting}` is no KEY=VALUE, such as agent.auto_max_hours=2")
    inside = document
    for each in above:
        inside = inside.setdefault(each, {})
        if not isinstance(inside, dict):
            raise click.UsageError(f"`{path}` names no rule; `gpu policy show` lists them")
    inside[key] = _value(key, text)


def _value(key: str, text: str) -> Any:
    if key in _LISTS:
        return [each.strip() for each in text.split(",") if each.strip()]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return float(text)
    except ValueError:
        return text
