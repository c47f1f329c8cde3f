"""The log options that ``job log`` and ``trial log`` share, and what they do."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trainshed.cli.logs import LogPrinter, LogStyle
from trainshed.cli.output import Sentence
from trainshed.cli.parameters import Whole
from trainshed.cli.session import Session, json_option

if TYPE_CHECKING:
    from trainshed.sdk import Client, Job
    from trainshed.sdk.logs import LogFollower, LogPage
    from trainshed.sdk.objects import LogRecord

F = TypeVar("F", bound=Callable[..., Any])
RELEASE_SECONDS = 10.0
"""How long a command waits for the proof of release, which comes right after a Job's end."""
_INCOMPLETE = frozenset({"partial", "failed", "unavailable"})


def log_options(command: F) -> F:
    """Every option of a log command, the same for Jobs and Trials."""
    options = (
        click.option("--follow", "-f", is_flag=True, help="Go on until the end of the log."),
        click.option(
            "--tail", type=Whole(1, 1000), metavar="N", help="Begin N records (1 to 1000) from the end."
        ),
        click.option(
            "--source",
            type=click.Choice(["all", "system", "runtime"]),
            default="all",
            show_default=True,
            help="What the platform did (system), what programs wrote (runtime), or both.",
        ),
        click.option(
            "--stream", type=click.Choice(["stdout", "stderr"]), help="Only this stream of the programs."
        ),
        click.option("--timestamps", is_flag=True, help="Begin each line with its time."),
        click.option("--raw", is_flag=True, help="The programs' bytes only, unchanged, without any prefix."),
        click.option("--cursor", help="Go on after an earlier call (`next_cursor` of --json)."),
        json_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


def show_log(  # noqa: PLR0913 - one argument for each option of `log_options`
    session: Session,
    client: Client,
    job_id: str,
    *,
    trial: str | None,
    names: bool,
    follow: bool,
    tail: int | None,
    source: str,
    stream: str | None,
    timestamps: bool,
    raw: bool,
    cursor: str | None,
) -> None:
    """Print the log of a Job, or of one Trial of it."""
    if tail is not None and cursor is not None:
        raise click.UsageError("--tail and --cursor exclude each other")
    if raw and session.json:
        raise click.UsageError("--raw and --json exclude each other")
    read = client.jobs.follow if follow else client.jobs.logs
    records = read(job_id, source=source, trial=trial, tail=tail, cursor=cursor)
    if session.json and not follow:
        items = [record.raw for record in records if stream is None or record.stream == stream]
        last = records.last
        document = {"items": items, "next_cursor": records.cursor, **(_state(last) if last else {})}
        session.show(document, Sentence(lambda _: ""))
        return
    style = LogStyle(stream=stream, timestamps=timestamps, names=names, raw=raw, json=session.json)
    release_of = job_id if follow and source != "runtime" and not raw and stream is None else None
    print_log(session, client, records, style, release_of, trial=trial)


def print_log(
    session: Session,
    client: Client,
    records: LogFollower,
    style: LogStyle,
    release_of: str | None,
    *,
    trial: str | None = None,
) -> None:
    """Print records as they come and warn about everything that the log lacks.

    The log ends before what was held is released; ``release_of`` names the Job whose sentences about that
    are waited for and printed too.
    """
    sys.stdout.flush()
    printer, seen = LogPrinter(style), set()
    for record in records:
        printer.print(record)
        if record.source == "system":
            seen.add(record.id)
    if release_of is not None and records.last is not None and records.last.eof:
        for record in _about_release(client, release_of, trial):
            if record.source == "system" and record.id not in seen:
                printer.print(record)
    printer.finish()
    last = records.last
    if last is None:
        return
    if last.collection_status in _INCOMPLETE:
        session.warn(f"the log is incomplete ({last.collection_status})")
    if last.truncated or last.dropped_bytes:
        session.warn(f"the log was cut at its limit; {last.dropped_bytes} bytes were dropped")
    if last.missing_reason:
        session.warn(f"part of the log is missing: {last.missing_reason}")


def follow_to_the_end(session: Session, client: Client, job: Job, timeout: float | None) -> None:
    """Print the log of a Job that was submitted just now, until its end; ``timeout`` in seconds.

    Where ``--json`` asks for one document, all of the log goes to stderr.
    """
    style = LogStyle(names=len(job.trials) > 1, all_to_stderr=session.json)
    print_log(session, client, client.jobs.follow(job.job_id, timeout=timeout), style, job.job_id)


def _about_release(client: Client, job_id: str, trial: str | None) -> Iterable[LogRecord]:
    """What the platform did, up to the proof of release if that comes within `RELEASE_SECONDS`."""
    from trainshed.sdk.errors import WaitTimeout  # noqa: PLC0415 - click only at import time

    with contextlib.suppress(WaitTimeout):
        client.jobs.wait(job_id, timeout=RELEASE_SECONDS, released=True)
    return client.jobs.logs(job_id, source="system", trial=trial)


def _state(last: LogPage) -> dict[str, Any]:
    keys = ("eof", "has_more", "collection_status", "truncated", "dropped_bytes", "missing_reason", "sources")
    return {key: last.raw[key] for key in keys if key in last.raw}
