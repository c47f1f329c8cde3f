"""``trainshed trial``: look at Trials and fetch what they produced."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from trainshed.cli import views
from trainshed.cli.downloads import fetch, outcome
from trainshed.cli.exits import Exit
from trainshed.cli.follow import log_options, show_log
from trainshed.cli.lazy import Group
from trainshed.cli.parameters import JOB, TRIAL, Whole
from trainshed.cli.session import Session, json_option, quiet_option


@click.group(cls=Group)
def trial() -> None:
    """Look at Trials and fetch what they produced."""


@trial.command("list")
@click.option("--type", "type_", metavar="TYPE", help="Only Trials of Jobs of this type.")
@click.option("--job-id", type=JOB, metavar="JOB", help="Only Trials of this Job.")
@click.option("--status", metavar="WORD", help="Only Trials with this status.")
@click.option("--limit", type=Whole(), default=25, show_default=True, help="Trials per page, 1 to 100.")
@click.option("--cursor", help="Go on after an earlier page.")
@quiet_option
@json_option
@click.pass_obj
def list_(
    session: Session,
    *,
    type_: str | None,
    job_id: str | None,
    status: str | None,
    limit: int,
    cursor: str | None,
    quiet: bool,
) -> None:
    """List Trials, newest first."""
    with session.client() as client:
        page = client.trials.list(type=type_, job_id=job_id, status=status, limit=limit, cursor=cursor)
    shown = [views.ids("trial_id")] if quiet else [views.TRIALS, *views.more(page.raw)]
    session.show(page.raw, *shown)


@trial.command("get")
@click.argument("trial_id", type=TRIAL)
@json_option
@click.pass_obj
def get_(session: Session, trial_id: str) -> None:
    """Show a Trial: what was frozen, how it stands, how it ended."""
    with session.client() as client:
        found = client.trials.get(trial_id).raw
    session.show(found, views.TRIAL, *([views.PROBLEMS] if found.get("problems") else []))


@trial.command()
@click.argument("trial_id", type=TRIAL)
@log_options
@click.pass_obj
def log(session: Session, /, trial_id: str, **given: Any) -> None:
    """Print the log of one Trial (see `job log`).

    With --raw and --stream and without --follow: exactly the bytes that the program wrote to that stream.
    """
    with session.client() as client:
        plain_bytes = (
            given["raw"] and given["stream"] and not (given["follow"] or given["tail"] or given["cursor"])
        )
        if plain_bytes and not session.json:
            for chunk in client.trials.raw_log(trial_id, given["stream"]):
                sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            return
        job_id = client.trials.get(trial_id).job_id
        session.job_id = job_id if given["follow"] else None
        show_log(session, client, job_id, trial=trial_id, names=False, **given)


@trial.command()
@click.argument("trial_id", type=TRIAL)
@click.option("--limit", type=Whole(), default=100, show_default=True, help="Artifacts per page, 1 to 100.")
@click.option("--cursor", help="Go on after an earlier page.")
@json_option
@click.pass_obj
def artifacts(session: Session, trial_id: str, *, limit: int, cursor: str | None) -> None:
    """List what a Trial produced under its Runner's declared outputs."""
    with session.client() as client:
        page = client.trials.artifacts(trial_id, limit=limit, cursor=cursor)
    session.show(page.raw, views.ARTIFACTS, *views.more(page.raw))


@trial.command()
@click.argument("trial_id", type=TRIAL)
@click.argument("names", nargs=-1)
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to write into; the Trial's id by default.",
)
@click.option("--overwrite", is_flag=True, help="Replace files whose content differs.")
@click.option("--parallel", type=Whole(1, 32), default=4, show_default=True, help="Files at a time, 1 to 32.")
@json_option
@click.pass_context
def download(
    context: click.Context,
    trial_id: str,
    names: tuple[str, ...],
    *,
    folder: Path | None,
    overwrite: bool,
    parallel: int,
) -> None:
    """Download artifacts (all, or those NAMED) and verify size and SHA-256 of each.

    Exits 1 if any file is missing, failed or not uploaded by the server; where all are asked for also if a
    declared output could not be stored when the program ended.
    """
    session = context.ensure_object(Session)
    target = folder or Path(trial_id)
    with session.client() as client:
        results = fetch(
            session, client, trial_id, target, names=names or None, overwrite=overwrite, parallel=parallel
        )
        problems = [] if names else client.trials.get(trial_id).raw["problems"]
    document, view = outcome(trial_id, target, results)
    document["problems"] = problems
    session.show(document, view, *([views.PROBLEMS] if problems else []))
    complete = all(result.path is not None for result in results) and not problems
    context.exit(Exit.OK if complete else Exit.FAILED)


@trial.command()
@click.argument("trial_id", type=TRIAL)
@json_option
@click.pass_obj
def stop(session: Session, trial_id: str) -> None:
    """Stop one Trial; its siblings go on. Repeatable."""
    with session.client() as client:
        session.show(client.trials.stop(trial_id).raw, views.TRIAL)
