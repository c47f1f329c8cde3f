"""``gpu jobs`` and ``gpu history``: lists of Jobs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import click

from trainshed.cli.gpu_common import ASKS, everything
from trainshed.cli.gpu_views import ACTIVE, ENDED_JOBS
from trainshed.cli.parameters import Whole
from trainshed.cli.session import Session, json_option


class Moment(click.ParamType[datetime]):
    """A time in ISO 8601; without a zone it is this machine's."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            return datetime.fromisoformat(str(value)).astimezone()
        except ValueError:
            self.fail(f"{value!r} is no time; write 2026-11-30 or 2026-11-30T17:45", param, ctx)


_HERE = click.option("--here", is_flag=True, help="Only Jobs of this folder.")
_MANY = click.option(
    "-n", "limit", type=Whole(1, 1000), default=25, show_default=True, help="At most so many."
)
_BEFORE = click.option("--before", type=Moment(), metavar="T", help="Only those submitted before this time.")


@click.command()
@click.option("--all", "all_", is_flag=True, help="Those that have ended, too.")
@_HERE
@_MANY
@_BEFORE
@json_option
@click.pass_obj
def jobs(session: Session, *, all_: bool, here: bool, limit: int, before: datetime | None) -> None:
    """List Jobs that have not ended.

    Newest first, but what waits for your answer comes before everything.
    """
    _list(session, None if all_ else True, here=here, limit=limit, before=before)


@click.command()
@_HERE
@_MANY
@_BEFORE
@json_option
@click.pass_obj
def history(session: Session, *, here: bool, limit: int, before: datetime | None) -> None:
    """List Jobs that have ended.

    Newest first, with how each ended and how long it ran.
    """
    _list(session, False, here=here, limit=limit, before=before)  # noqa: FBT003 - which of three lists


def _list(
    session: Session,
    active: bool | None,  # noqa: FBT001 - as above
    *,
    here: bool,
    limit: int,
    before: datetime | None,
) -> None:
    with session.client() as client:
        folder = os.path.abspath(".") if here else None  # noqa: PTH100 - links stay as they were named
        found = everything(client, active=active, project_dir=folder)
        items = list(islice(_older(found, before), limit + 1))
        counts = client.scripts.list(limit=1).counts
    shown = sorted(items[:limit], key=lambda job: job["state"] != ASKS)
    document = {"items": shown, "more": len(items) > limit, "counts": dict(counts)}
    table = ENDED_JOBS if active is False else ACTIVE
    empty = table.empty if active is not None else "No Jobs."
    session.show(document, replace(table, rows="items", empty=empty))
    if document["more"]:
        session.note(f"There are more: `--before {items[limit - 1]['created_at']}` goes on.")


def _older(found: Iterable[Mapping[str, Any]], before: datetime | None) -> Iterable[Mapping[str, Any]]:
    for job in found:
        made = datetime.fromisoformat(job["created_at"]).astimezone(UTC)
        if before is None or made < before:
            yield job
