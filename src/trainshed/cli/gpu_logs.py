"""``gpu logs``: what a Job's program wrote, Attempt after Attempt."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from trainshed.cli.gpu_common import ENDED, JOB, Follower, print_lines
from trainshed.cli.parameters import Whole
from trainshed.cli.session import Session, json_option

if TYPE_CHECKING:
    from trainshed.sdk import Client
    from trainshed.sdk.script_objects import ScriptJob, ScriptLog


@click.command()
@click.argument("ref", metavar="ID", type=JOB)
@click.option("--follow", "-f", is_flag=True, help="Go on until the Job has ended.")
@click.option("--attempt", type=Whole(1), metavar="N", help="Only of this Attempt.")
@click.option("--tail", "-n", type=Whole(1, 1000), metavar="N", help="The last N lines, 1 to 1000.")
@json_option
@click.pass_obj
def logs(session: Session, *, ref: str, follow: bool, attempt: int | None, tail: int | None) -> None:
    """Print what a Job's program wrote.

    All of it, Attempt after Attempt; a line of ours marks each after the first. With --json one document a
    line, {attempt, offset, line}, and at the end {eof, state}.
    """
    if follow and attempt is not None:
        raise click.UsageError("--follow goes on across Attempts; leave --attempt out")
    with session.client() as client:
        job = client.scripts.get(ref).job
        session.script = job.short_id if follow and not job.ended else None
        since = None
        if tail is not None:
            page = client.scripts.logs(ref, tail=tail, attempt=attempt, places=True)
            print_lines(session, page)
            since = page.next_since
        elif not follow:
            _print_all(session, client, ref, attempt)
        if follow:
            _say_if_not_live(session, client, job)
            Follower(session, client, ref, since=since).until_the_end()
        job = client.scripts.get(ref).job
        session.script = None
    if session.json:
        sys.stdout.write(json.dumps({"eof": job.state in ENDED, "state": job.state}) + "\n")


def _print_all(session: Session, client: Client, ref: str, attempt: int | None) -> None:
    """Everything that there is by now, of all Attempts or of one."""
    since: str | None = None
    while True:
        page = client.scripts.logs(ref, since=since, attempt=attempt if since is None else None, places=True)
        if attempt is not None:
            # Reading on from a place goes on with the next Attempt.
            inside = [place for place in page.places if place[0] == attempt]
            others = len(page.places) - len(inside)
            page = _cut(page, len(inside))
            print_lines(session, page)
            if others or not page.lines:
                return
        else:
            print_lines(session, page)
        if not page.lines or page.next_since is None:
            return
        since = page.next_since


def _cut(page: ScriptLog, lines: int) -> ScriptLog:
    from dataclasses import replace  # noqa: PLC0415 - not for `--help`

    return replace(page, lines=page.lines[:lines], places=page.places[:lines])


def _say_if_not_live(session: Session, client: Client, job: ScriptJob) -> None:
    if job.ended or not job.provider:
        return
    for each in client.providers.list():
        if each.get("name") == job.provider and not each.get("capabilities", {}).get("live_logs", True):
            session.note(f"{job.provider} gives the log at the end of a run only; it is shown then")
