"""``gpu watch``: Jobs as they go on."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli.gpu_common import ENDED, JOB, event_line
from trainshed.cli.gpu_events import Counted, counted
from trainshed.cli.gpu_status import detail, detail_views, overview, overview_views
from trainshed.cli.output import plain
from trainshed.cli.session import Session, json_option

if TYPE_CHECKING:
    from trainshed.cli.output import View
    from trainshed.sdk import Client

WATCH_SECONDS = 2.0
_LAST_LINES = 8
_EVENTS = 4


@click.command()
@click.argument("ref", metavar="[ID]", type=JOB, required=False)
@json_option
@click.pass_obj
def watch(session: Session, *, ref: str | None) -> None:
    """Watch Jobs as they go on.

    On a terminal a view that is drawn again and again, elsewhere a line for each thing that happens. With ID
    until that Job has ended, else until Ctrl-C or until nothing goes on. With --json one document a line,
    whenever something changed.
    """
    with session.client() as client:
        if ref is not None:
            job = client.scripts.get(ref).job
            session.script = None if job.ended else job.short_id
        if session.json or not sys.stdout.isatty():
            _in_lines(session, client, ref)
        else:
            _on_a_terminal(client, ref)
        session.script = None


def _rounds() -> Iterator[None]:
    while True:
        yield
        time.sleep(WATCH_SECONDS)


def _over(document: Mapping[str, Any]) -> bool:
    """Whether nothing more will come."""
    return document["job"]["state"] in ENDED if "job" in document else not document["active"]


def _look(client: Client, ref: str | None) -> dict[str, Any]:
    return overview(client) if ref is None else detail(client, ref)


def _in_lines(session: Session, client: Client, ref: str | None) -> None:
    """What happens, a line each."""
    told: dict[str, _Told] = {}
    shown = ""
    for _ in _rounds():
        document = _look(client, ref)
        if session.json:
            text = json.dumps(document)
            if text != shown:
                sys.stdout.write(text + "\n")
            shown = text
        else:
            jobs = [document["job"]] if ref is not None else [*document["active"], *document["recent"]]
            for job in jobs:
                _tell(client, job, told.setdefault(job["short_id"], _Told()))
        sys.stdout.flush()
        if _over(document):
            return


@dataclass
class _Told:
    """What of one Job was told."""

    newest: int = 0
    counted: Counted = field(default_factory=Counted)


def _tell(client: Client, job: Mapping[str, Any], told: _Told) -> None:
    short = job["short_id"]
    found = client.scripts.events(short, after=told.newest).items
    for event in told.counted.so_far(found):
        sys.stdout.write(plain(f"{short}  {event_line(event)}") + "\n")
    told.newest = max([told.newest, *(int(event["id"]) for event in found)])


def _on_a_terminal(client: Client, ref: str | None) -> None:
    """A view that is drawn over itself."""
    from rich.console import Console  # noqa: PLC0415 - only for a person at a terminal
    from rich.live import Live  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    with Live(console=Console(), auto_refresh=False, vertical_overflow="crop") as live:
        for _ in _rounds():
            document = _look(client, ref)
            found = overview_views(document) if ref is None else detail_views(document)
            lines = []
            if ref is not None:
                document = counted(document)
                document["events"] = document["events"][-_EVENTS:]
                lines = _last_lines(client, document["job"])
            live.update(Text("\n".join([_drawn(document, found), *lines])), refresh=True)
            if _over(document):
                return


def _last_lines(client: Client, job: Mapping[str, Any]) -> list[str]:
    if not job["attempt_count"]:
        return []
    width = shutil.get_terminal_size().columns
    found = client.scripts.logs(job["short_id"], tail=_LAST_LINES).lines
    return ["", *(plain(line)[: width - 1] for line in found)]


def _drawn(document: Mapping[str, Any], found: list[View]) -> str:
    """What `show` prints, as text."""
    from trainshed.cli.output import HumanOutput  # noqa: PLC0415 - as above

    kept = io.StringIO()
    with contextlib.redirect_stdout(kept):
        HumanOutput().show(document, *found)
    return kept.getvalue()
