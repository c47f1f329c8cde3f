"""``gpu status``: what goes on, or everything about one Job."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli import gpu_views as views
from trainshed.cli.gpu_common import JOB, told
from trainshed.cli.gpu_events import counted
from trainshed.cli.output import Sentence
from trainshed.cli.session import Session, json_option

if TYPE_CHECKING:
    from trainshed.cli.output import View
    from trainshed.sdk import Client

RECENT_SECONDS = 24 * 3600.0
_EVENTS = 8


@click.command()
@click.argument("ref", metavar="[ID]", type=JOB, required=False)
@click.option("--all", "all_", is_flag=True, help="With ID: every event, also each save.")
@json_option
@click.pass_obj
def status(session: Session, *, ref: str | None, all_: bool) -> None:
    """Show what goes on, or everything about one Job.

    Without ID: what waits for your answer, what goes on, what ended within a day, and what is left at each
    provider. With ID: how far it is, where it runs and why, and how its loss went.
    """
    if all_ and ref is None:
        raise click.UsageError(
            f"--all is for one Job, whose ID is missing; `{session.gpu} jobs --all` lists all"
        )
    with session.client() as client:
        if ref is None:
            document = overview(client)
            session.show(document, *overview_views(document))
            return
        document = detail(client, ref)
    if not all_ and not session.json:
        document = counted(document)
        document["events"] = document["events"][-_EVENTS:]
    session.show(document, *detail_views(document))


def overview(client: Client) -> dict[str, Any]:
    """Everything that goes on; what waits for a person comes first."""
    from trainshed.mcp.documents import overview as told_overview  # noqa: PLC0415 - not for `--help`

    active = client.scripts.list(active=True, limit=100).raw
    recent = client.scripts.list(active=False, since=time.time() - RECENT_SECONDS, limit=100).raw["items"]
    providers = client.providers.list().raw["items"]
    quota = client.providers.quota().raw
    found = told_overview(active["counts"], active["items"], recent, providers, verbose=True)
    return {**found, "quota": quota["quota"], "quota_lines": [{"line": line} for line in quota["summary"]]}


def overview_views(document: Mapping[str, Any]) -> list[View]:
    asks = (
        [Sentence(lambda row: row["guidance"]["tell_user"])] if document["guidance"]["needs_approval"] else []
    )
    more = [views.ENDED_JOBS] if document["recent"] else []
    return [*asks, views.ACTIVE, *more, views.QUOTA_LINES]


def detail(client: Client, ref: str) -> dict[str, Any]:
    """Everything about one Job, with the courses of its metrics."""
    found = client.scripts.get(ref).raw
    more = {key: found[key] for key in ("attempts", "checkpoints", "events", "route")}
    return told(found["job"], **more, courses=courses(client, found["job"]))


def courses(client: Client, job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How its metrics went, those that people look at first before the others; one value is no course."""
    if not job["attempt_count"]:
        return []
    found = client.scripts.metrics(job["short_id"]).raw
    series = [each for each in found["series"] if len(each["values"]) > 1]
    series.sort(key=lambda each: (views.rank(each["name"]), each["name"]))
    return [{**each, "source": found["source"]} for each in series[: views.MOST_METRICS]]


def detail_views(document: Mapping[str, Any]) -> list[View]:
    found: list[View] = [views.ONE]
    found += [views.ATTEMPTS] if len(document["attempts"]) > 1 else []
    found += [views.CHECKPOINTS] if document["checkpoints"] else []
    return [*found, views.EVENTS]
