"""``gpu providers``, ``quota`` and ``login``: where Jobs can run, and what is left there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli.output import Column, Fields, Sentence, Table, local_time, sentence
from trainshed.cli.session import Session, json_option

if TYPE_CHECKING:
    from trainshed.cli.output import View

NEEDS: Mapping[str, str] = {
    "local": "nothing",
    "kaggle": "a Kaggle account with a verified phone number, and its API token on the server's machine",
    "colab": "a Google account whose Colab this program may use on the server's machine",
    "ray": "a Ray cluster of the server's catalogue, and a quota of the project's own on it",
}
"""What each provider needs, in a few words; what is missing now the provider says itself."""
ENABLE = "Name it in `providers.use` of the settings that the server reads (TRAINSHED_CONFIG)."
"""What to do about a provider that a server does not have."""
_UNITS = {"gpu_hours": "h", "credits": " credits", "usd": " USD"}


def gpus(row: Mapping[str, Any]) -> str:
    """The accelerators that a provider offers."""
    kinds = sorted(
        {
            f"{each.get('type')}{' (simulated)' if each.get('simulated') else ''}"
            for each in row.get("gpus") or ()
        }
    )
    return ", ".join(kinds) or "none"


def standing(row: Mapping[str, Any]) -> str:
    """Whether a provider can be used now."""
    if not row["enabled"]:
        return "disabled"
    if row.get("exhausted_until"):
        return f"quota used up until {local_time(row['exhausted_until'])}"
    if row.get("cooldown_until"):
        return f"resting until {local_time(row['cooldown_until'])}"
    return str(row["health"])


PROVIDERS = Table(
    (
        Column("PROVIDER", "name"),
        Column("STATE", standing),
        Column("GPUS", gpus, rank=1),
        Column("RUNNING", "running", rank=2),
        Column("LOOKED AT", "checked_at", rank=3),
    ),
    empty="This server knows no providers.",
    below="message",
)
QUOTA = Table(
    (
        Column("PROVIDER", "provider"),
        Column("USED", lambda row: _amount(row, "used")),
        Column("LIMIT", lambda row: _amount(row, "limit")),
        Column("RENEWED", "resets_at", rank=2),
        Column("KNOWN BY", "source", rank=1),
    ),
    empty="This server knows no providers.",
    rows="quota",
    below="detail",
)


@click.command()
@click.option("--check", is_flag=True, help="Ask each now whether it can be used.")
@json_option
@click.pass_obj
def providers(session: Session, *, check: bool) -> None:
    """Show where Jobs can run.

    As each was when it was asked last. One without a login is listed with what it lacks.
    """
    with session.client() as client:
        found = client.providers.list()
        items = [client.providers.check(each["name"]).raw for each in found] if check else list(found.items)
    session.show({**found.raw, "items": items}, PROVIDERS)


@click.command()
@click.option("--refresh", is_flag=True, help="Ask the providers first.")
@json_option
@click.pass_obj
def quota(session: Session, *, refresh: bool) -> None:
    """Show what is left at each provider.

    `live` is what the provider says; `estimate` is reckoned from what ran through here.
    """
    with session.client() as client:
        found = client.providers.quota(refresh=refresh).raw
    views: list[View] = [QUOTA]
    if _summary(found):
        views.append(Sentence(_summary))
    session.show(found, *views)


def _summary(document: Mapping[str, Any]) -> str:
    """What is left, in sentences; what stands below a row of the table already is not said again."""
    said = {f"{row['provider']}: {row['detail']}" for row in document["quota"]}
    return "\n".join(sentence(each) for each in document["summary"] if each not in said)


@click.command()
@click.argument("provider")
@json_option
@click.pass_obj
def login(session: Session, provider: str) -> None:
    """Say what a provider needs to be used, and ask it.

    Logins stay where each provider's own program keeps them; this program stores none and never asks for a
    password. Exits with 1 while it cannot be used. One that the server does not have is not asked.
    """
    from trainshed.cli.gpu_exits import GpuExit  # noqa: PLC0415 - not for `--help`

    name = provider.lower()
    with session.client() as client:
        known = [each["name"] for each in client.providers.list()]
        if name in NEEDS and name not in known:
            found: Mapping[str, Any] = {"name": name, "health": "not enabled", "message": ENABLE, "gpus": []}
        else:
            session.nearest(name, {*known, *NEEDS} - {"fake"})
            found = client.providers.check(name).raw
            session.suggestions = []
    document = {"provider": name, "needs": NEEDS.get(name), "ok": found["health"] == "ok", "state": found}
    view = Fields(
        (
            ("provider", "provider"),
            ("needs", "needs"),
            ("state", "state.health"),
            ("says", "state.message"),
            ("gpus", lambda row: gpus(row["state"])),
        )
    )
    session.show(document, view)
    click.get_current_context().exit(GpuExit.OK if document["ok"] else GpuExit.OTHER)


def _amount(row: Mapping[str, Any], key: str) -> str | None:
    value = row[key]
    return None if value is None else f"{value:g}{_UNITS.get(row['unit'], '')}"
