"""``trainshed content``: what is stored - how much, what of it nobody needs, whether it is as it was."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli.exits import Exit
from trainshed.cli.lazy import Group
from trainshed.cli.output import Column, Fields, Sentence, Table, count, size
from trainshed.cli.parameters import SECONDS
from trainshed.cli.session import Session, interactive, json_option

if TYPE_CHECKING:
    from trainshed.sdk import Client

_FIRST_POLL_SECONDS = 0.05
_LONGEST_POLL_SECONDS = 0.5
_HOLDERS = ("versions", "revisions", "jobs", "artifacts", "checkpoints")


def _affected(row: Mapping[str, Any]) -> str:
    """Who is made of a damaged blob: a few by name, the others counted."""
    told = []
    for kind in _HOLDERS:
        found = row["affected"][kind]
        if found["count"]:
            more = found["count"] - 1
            told.append(f"{found['shown'][0]}{f' and {more} more {kind}' if more else ''}")
    return "; ".join(told)


_DAMAGES = Table(
    (
        Column("SHA256", "sha256"),
        Column("PROBLEM", "problem"),
        Column("AFFECTS", _affected, rank=1),
    ),
    empty="No damage.",
    rows="damage",
    below=lambda row: f"{row['message']}. {row['advice']}",
)
_STRANGERS = Table(
    (Column("NOT OURS, PASSED OVER", "place"),),
    empty="",
    rows=lambda document: [{"place": place} for place in document["strangers"]],
)
_VERIFIED = Fields(
    (
        ("checked", "checked"),
        ("read", lambda row: size(row["bytes"])),
        ("damaged", "damaged"),
        ("taken out", lambda row: len(row["taken_out"]) or None),
        ("records corrected", lambda row: len(row["corrected"]) or None),
    )
)
_KINDS = Table(
    (
        Column("PROJECT", "project_id"),
        Column("KIND", "kind"),
        Column("ITEMS", "items"),
        Column("SIZE", lambda row: size(row["logical_bytes"])),
        Column("STORED", lambda row: size(row["stored_bytes"])),
    ),
    empty="Nothing is stored.",
    heading="Held, by kind:",
    rows=lambda document: [
        {"project_id": project["project_id"], **kind}
        for project in document["projects"]
        for kind in project["kinds"]
    ],
)
_QUOTAS = Table(
    (
        Column("PROJECT", "project_id"),
        Column("PUBLISHED", lambda row: size(row["content_bytes"])),
        Column(
            "QUOTA",
            lambda row: "unlimited" if row["max_content_bytes"] is None else size(row["max_content_bytes"]),
        ),
    ),
    empty="No projects.",
    rows="projects",
    heading="Quotas of what is published:",
)
_FREEABLE = Fields(
    (
        ("would be removed now", lambda row: f"{count(row['blobs'], 'blob')}, {size(row['bytes'])}"),
        (
            "later, if not used",
            lambda row: f"{count(row['waiting_blobs'], 'blob')}, {size(row['waiting_bytes'])}",
        ),
        ("stays after its last use", lambda row: f"{row['grace_hours']:g} h"),
    )
)
_COLLECTED = Fields(
    (
        ("state", "state"),
        ("reason", "reason"),
        ("blobs removed", "blobs"),
        ("bytes freed", lambda row: size(row["bytes"])),
        ("manifests let go", "manifests"),
        ("found without a record", "adopted"),
    )
)


class Rate(click.ParamType[float]):
    """Megabytes a second, above 0."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not 0 < number < float("inf"):
            self.fail(f"{value!r} is not a number above 0", param, ctx)
        return number


@click.group(cls=Group)
def content() -> None:
    """Look after what is stored: usage, garbage, damage."""


@content.command()
@click.argument("target", required=False)
@click.option("--all", "everything", is_flag=True, help="All that is stored (owner key).")
@click.option(
    "--repair", is_flag=True, help="Take damaged blobs out, so that publishing sends them; correct records."
)
@click.option("--rate", type=Rate(), metavar="MB", help="Megabytes to read a second at most (default 200).")
@click.option("--cursor", help="Go on where an earlier verification stopped.")
@json_option
@click.pass_context
def verify(
    context: click.Context,
    target: str | None,
    *,
    everything: bool,
    repair: bool,
    rate: float | None,
    cursor: str | None,
) -> None:
    """Read stored bytes again and compare them with their digests and manifests.

    TARGET is a Job's id, NAMESPACE/NAME@REF, a content's URI or the SHA-256 of a blob or manifest. Tells
    which names and Jobs each damage affects and what to do, and with --all what lies among the blobs and is
    none. Exits 9 if anything is damaged.
    """
    session = context.ensure_object(Session)
    if (target is None) != everything:
        raise click.UsageError("give either a target or --all")
    found: list[dict[str, Any]] = []
    strangers: list[str] = []
    ended: Mapping[str, Any] = {}
    last: str | None = None
    with session.client() as client, _bar(session) as moved:
        try:
            for event in client.content.verify(target, mb_per_second=rate, cursor=cursor):
                last = event["cursor"] or last
                moved(event["bytes"], event["total_bytes"])
                if event["type"] == "damage":
                    found.append({key: event[key] for key in _SHOWN if key in event})
                elif event["type"] == "stranger":
                    strangers.append(event["place"])
                ended = event
        except BaseException:
            if last is not None:
                session.note(f"It goes on with --cursor {last}")
            raise
        taken, corrected = _repaired(client, found, target) if repair else ([], [])
    document = {
        **{key: ended[key] for key in ("checked", "bytes", "damaged")},
        "damage": found,
        "taken_out": taken,
        "corrected": corrected,
        "strangers": strangers,
    }
    session.show(document, _VERIFIED, _DAMAGES, *([_STRANGERS] if strangers else []))
    context.exit(Exit.DIFFERS if document["damaged"] else Exit.OK)


_SHOWN = ("sha256", "problem", "message", "affected", "advice")


@content.command()
@json_option
@click.pass_obj
def usage(session: Session) -> None:
    """Show what projects hold and their quotas; with the owner key also what could be freed.

    SIZE is that of all files, and of the manifests of what was published. STORED is what they take: files
    that several share are stored once. PUBLISHED counts towards the QUOTA.
    """
    with session.client() as client:
        document = client.content.usage()
    views = [_KINDS, _QUOTAS]
    if document["garbage"] is not None:
        session.show(document, *views, _within("garbage", _FREEABLE, "Garbage, which nothing needs:"))
    else:
        session.show(document, *views)


@content.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("--wait-timeout", type=SECONDS, help="Seconds to wait at most (exit 8); it goes on.")
@json_option
@click.pass_context
def gc(context: click.Context, *, dry_run: bool, wait_timeout: float | None) -> None:
    """Remove what nothing needs and nobody has used for a while, now instead of within the hour.

    Needed is what a version that is not withdrawn, a Job, a Runner, an Artifact or a Checkpoint is made of.
    Unfinished uploads that nobody went on with for as long are given up, too.
    """
    from trainshed.sdk.errors import WaitTimeout  # noqa: PLC0415 - click only at import time

    session = context.ensure_object(Session)
    with session.client() as client:
        if dry_run:
            session.show(client.content.garbage(), _FREEABLE)
            return
        until = None if wait_timeout is None else time.monotonic() + wait_timeout
        asked, pause = client.content.collect_garbage(), _FIRST_POLL_SECONDS
        while True:
            state = client.content.passes()["asked"]
            if state["request_id"] != asked["request_id"]:
                asked = state  # somebody asked after us: that pass is as good
            if state["state"] in {"done", "failed"}:
                break
            if until is not None and time.monotonic() >= until:
                raise WaitTimeout("the pass is not over; it goes on, and `content gc` would begin another")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL_SECONDS)
    session.show(state, _COLLECTED)
    context.exit(Exit.OK if state["state"] == "done" else Exit.FAILED)


def _repaired(client: Client, found: list[dict[str, Any]], target: str | None) -> tuple[list[str], list[str]]:
    """Take out the damaged copies that nobody needs or somebody can publish again, and correct records.

    Answers both, by digest. What was done leaves other advice in ``found``; what cannot be taken out stays
    for its own to be followed.
    """
    from trainshed.sdk.errors import Conflict, NotFound  # noqa: PLC0415 - click only at import time

    taken, corrected = [], []
    for damage in found:
        if damage["problem"] not in {"changed", "missing"}:
            continue
        try:
            done = client.content.take_out(damage["sha256"], target=target)
        except NotFound:
            continue  # it was collected meanwhile
        except Conflict as error:
            if error.code != "RESOURCE_IN_USE":
                raise
            continue
        damage["advice"] = done.get("advice") or damage["advice"]
        taken += [str(damage["sha256"])] if done["damaged"] else []
        corrected += [str(damage["sha256"])] if done.get("corrected") else []
    return taken, corrected


def _within(key: str, fields: Fields, heading: str) -> Sentence:
    """Fields of a part of the document, as lines below a heading."""

    def text(document: Mapping[str, Any]) -> str:
        shown = [(label, what(document[key])) for label, what in fields.fields if callable(what)]
        width = max(len(label) for label, _ in shown)
        return "\n".join([heading, *(f"{label:<{width}}  {value}" for label, value in shown)])

    return Sentence(text)


@contextlib.contextmanager
def _bar(session: Session) -> Iterator[Callable[[int, int], None]]:
    """A bar of the bytes read, for a person at a terminal."""
    if session.json or not interactive():
        yield lambda _done, _total: None
        return
    from rich.console import Console  # noqa: PLC0415 - only for a person at a terminal
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn  # noqa: PLC0415 - as above

    with Progress(
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bars:
        task = bars.add_task("reading", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
