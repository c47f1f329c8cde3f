"""``train logs``, ``events``, ``why`` and ``metrics``, and waiting for a task: tasks while they run."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli import train_views as views
from trainshed.cli.logs import LogPrinter, LogStyle
from trainshed.cli.output import Column, Sentence, Table, cell, plain, size, to_json
from trainshed.cli.parameters import Whole
from trainshed.cli.session import Session, interactive, json_option
from trainshed.cli.waiting import Deadline, await_release

if TYPE_CHECKING:
    from trainshed.sdk import Client, Task
    from trainshed.sdk.logs import LogFollower
    from trainshed.sdk.objects import LogRecord
    from trainshed.sdk.task_objects import TaskEvent, TaskSample

WATCH_SECONDS = 5.0
ROLES = ("master", "worker", "head", "submitter", "all")
_PALETTE = ("36", "33", "35", "32", "34", "31", "96", "93", "95", "92", "94", "91")
_RESET = "\x1b[0m"
_BARS = "▁▂▃▄▅▆▇█"
_PLAIN_BARS = "_.-=+*%#"
_SPARKS = 24
_INCOMPLETE = frozenset({"partial", "failed", "unavailable"})


class Reference(click.ParamType[str]):
    """What names a task: its name, its uuid, its Job's id or its Trial's id."""

    name = "task"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip()
        if not text:
            self.fail("the name of the task is empty", param, ctx)
        return text


REFERENCE = Reference()


@dataclass
class ReplicaPrinter(LogPrinter):
    """Prints the merged log of a task: each line begins with its replica, in a colour of its own."""

    unnamed: str = ""
    """The replica whose lines begin with nothing."""

    def _writer(self, record: LogRecord) -> str:
        return f"{replica_of(record)}/{record.stream}"

    def _label(self, record: LogRecord) -> str:
        name = replica_of(record)
        if not name or name == self.unnamed:
            return ""
        if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
            return f"[{name}]"
        place = int(record.raw["replica"]) % len(_PALETTE)
        return f"\x1b[{_PALETTE[place]}m[{name}]{_RESET}"


def replica_of(record: LogRecord) -> str:
    """The replica that wrote a record, as ``--role`` and ``--index`` name it; empty for the platform.

    Attempts behind the first are named with their number.
    """
    rank, role, attempt = (record.raw.get(key) for key in ("replica", "role", "attempt"))
    if not isinstance(rank, int):
        return ""
    # Workers have the ranks behind the one master or head.
    name = f"worker-{rank - 1}" if role == "worker" else plain(str(role))
    return f"{name} #{attempt}" if isinstance(attempt, int) and attempt > 1 else name


@click.command()
@click.argument("task", type=REFERENCE)
@click.option(
    "--role",
    type=click.Choice(ROLES),
    help="Only this role. Without it: all of a pytorch task, the submitter of a ray task.",
)
@click.option("--index", type=Whole(0), help="Only this replica of the role, from 0.")
@click.option("--attempt", type=Whole(1), help="Only of this Attempt.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the end of the log.")
@click.option("--tail", type=Whole(1, 1000), metavar="N", help="Begin N records (1 to 1000) from the end.")
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), help="Only this stream of the programs.")
@click.option("--timestamps", is_flag=True, help="Begin each line with its time.")
@click.option("--raw", is_flag=True, help="The programs' bytes only, unchanged, without any prefix.")
@click.option("--cursor", help="Go on after an earlier call (`next_cursor` of --json).")
@json_option
@click.pass_obj
def logs(
    session: Session,
    /,
    *,
    task: str,
    follow: bool,
    stream: str | None,
    timestamps: bool,
    raw: bool,
    **asked: Any,
) -> None:
    """Print the log of a task.

    One replica, or all merged by time: each line then begins with its replica. With --json: one document,
    or with --follow one document a line as records come.
    """
    if asked["tail"] is not None and asked["cursor"] is not None:
        raise click.UsageError("--tail and --cursor exclude each other")
    if asked["index"] is not None and asked["role"] is None:
        raise click.UsageError("--index counts within a role; give --role too")
    if raw and session.json:
        raise click.UsageError("--raw and --json exclude each other")
    with session.client() as client:
        read = client.tasks.follow if follow else client.tasks.logs
        records = read(task, **asked)
        if session.json and not follow:
            items = [each.raw for each in records if stream is None or each.stream == stream]
            state = {} if records.last is None else {**records.last.raw, "items": items}
            session.show({**state, "items": items, "next_cursor": records.cursor}, Sentence(lambda _: ""))
            return
        session.task = task if follow else None
        style = LogStyle(
            stream=stream,
            timestamps=timestamps,
            names=asked["role"] in {None, "worker", "all"} and asked["index"] is None,
            raw=raw,
            json=session.json,
        )
        print_records(session, records, style, everybody=asked["role"] == "all")


def print_records(
    session: Session, records: LogFollower, style: LogStyle, *, everybody: bool = False
) -> None:
    """Print records as they come, and warn about everything that the log lacks."""
    sys.stdout.flush()
    # Of a ray task nobody asks for a role to read the program's output: there is nothing to tell apart.
    ReplicaPrinter(style, unnamed="" if everybody else "submitter").print_all(records)
    last = records.last
    if last is None:
        return
    if last.collection_status in _INCOMPLETE:
        session.warn(f"the log is incomplete ({last.collection_status})")
    if last.truncated or last.dropped_bytes:
        session.warn(f"the log was cut at its limit; {last.dropped_bytes} bytes were dropped")
    if last.missing_reason:
        session.warn(f"part of the log is missing: {last.missing_reason}")


def follow_to_the_end(session: Session, client: Client, name: str, deadline: Deadline) -> None:
    """Print the log of a task until it ends; before ``--json``'s document, all of it goes to stderr."""
    style = LogStyle(names=True, all_to_stderr=session.json)
    print_records(session, client.tasks.follow(name, timeout=deadline.left()), style)


def wait_to_the_end(session: Session, client: Client, name: str, timeout: float | None) -> Task:
    """Wait for a task, with a moving sign for a person at a terminal.

    Gives the proof of release, which comes right after the end, a moment to be there: only then can the task
    be resubmitted.
    """
    deadline = Deadline(timeout)
    with contextlib.ExitStack() as sign:
        if not session.json and not session.quiet and interactive():
            from rich.console import Console  # noqa: PLC0415 - only for a person at a terminal

            sign.enter_context(Console(stderr=True).status(f"waiting for {name}"))
        ended = client.tasks.wait(name, timeout=timeout)
        await_release(client, ended, deadline.left())
    return ended


@click.command()
@click.argument("task", type=REFERENCE)
@click.option("--after", type=Whole(0), default=0, help="Only what came behind the event with this id.")
@click.option("--limit", type=Whole(1, 1000), default=1000, show_default=True, help="Events, 1 to 1000.")
@click.option("--follow", "-f", is_flag=True, help="All of them, and what comes, until the task has ended.")
@json_option
@click.pass_obj
def events(session: Session, *, task: str, after: int, limit: int, follow: bool) -> None:
    """List what happened to a task, and why.

    Oldest first. With --follow --json: one document a line.
    """
    with session.client() as client:
        if follow:
            session.task = task
            _print_events(session, client.tasks.follow_events(task, after=after))
            session.task = None
            return
        found = client.tasks.events(task, after=after, limit=limit)
    more = []
    if found.more:
        more = [Sentence(lambda _: f"There are more: add `--after {found.next_after}`.")]
    session.show(found.raw, views.EVENTS, *more)


def _print_events(session: Session, found: Iterable[TaskEvent]) -> None:
    for each in found:
        if session.json:
            import json  # noqa: PLC0415 - only here

            sys.stdout.write(json.dumps(each.raw, ensure_ascii=True) + "\n")
        else:
            replica = f" [{each.replica}]" if each.replica is not None else ""
            line = f"{cell(each.raw.get('at'))}  {each.code}{replica}  {views.told(each.raw)}"
            sys.stdout.write(plain(line) + "\n")
        sys.stdout.flush()


@click.command()
@click.argument("task", type=REFERENCE)
@json_option
@click.pass_obj
def alarms(session: Session, task: str) -> None:
    """List whom a task told what.

    To which channel, whether it was delivered, how often it was tried, and what went wrong.
    """
    with session.client() as client:
        found = client.tasks.alarms(task)
    session.show(found.raw, views.ALARMS)


@click.command()
@click.argument("task", type=REFERENCE)
@json_option
@click.pass_obj
def why(session: Session, task: str) -> None:
    """Say what a task waits for.

    What blocks it, with numbers, who is ahead, and what would let it start.
    """
    with session.client() as client:
        found = client.tasks.why(task)
    shown: list[Any] = [views.WHY]
    shown += [views.PASSED_OVER] if found.passed_over else []
    shown += [views.UNBLOCK] if found.unblock else []
    session.show(found.raw, *shown)


@click.command()
@click.argument("task", type=REFERENCE)
@click.option("--replica", type=Whole(0), help="Only the replica of this rank.")
@click.option("--attempt", type=Whole(1), help="Of this Attempt; the newest by default.")
@click.option("--series", metavar="NAME", help="Only values whose names begin so.")
@click.option(
    "--watch", is_flag=True, help=f"Again every {WATCH_SECONDS:g} seconds until the task has ended."
)
@json_option
@click.pass_obj
def metrics(session: Session, /, *, task: str, watch: bool, **asked: Any) -> None:
    """Show what the replicas of a task use and report.

    The newest values, the least and the most, and how the last ones went.
    """
    with session.client() as client:
        job_id = client.tasks.get(task).job_id
        kept: list[TaskSample] = []
        after: float | None = None
        while True:
            ended = not watch or client.tasks.get(job_id).ended
            found = client.tasks.metrics(job_id, after=after, **asked)
            newest = found.raw.get("next_after")
            after = float(newest) if isinstance(newest, int | float) else after
            kept += found.items
            if session.json:
                sys.stdout.write((_line(found.raw) if watch else to_json(found.raw)) + "\n")
                sys.stdout.flush()
            else:
                if watch and sys.stdout.isatty():
                    sys.stdout.write("\x1b[H\x1b[J")
                session.show({"items": series_of(kept)}, METRICS)
            if ended:
                return
            time.sleep(WATCH_SECONDS)


def series_of(samples: Sequence[TaskSample]) -> list[dict[str, Any]]:
    """A row for each value of each replica: newest, least, most, and the course of the newest ones."""
    found: dict[tuple[int, str, str], list[float]] = {}
    for sample in samples:
        for name, value in sample.values.items():
            found.setdefault((sample.replica or 0, sample.endpoint, name), []).append(value)
    return [
        {
            "replica": rank,
            "endpoint": endpoint,
            "name": name,
            "newest": values[-1],
            "least": min(values),
            "most": max(values),
            "course": sparkline(values[-_SPARKS:]),
        }
        for (rank, endpoint, name), values in sorted(found.items())
    ]


def sparkline(values: Sequence[float], bars: str | None = None) -> str:
    """Values as a line of bars between the least and the most of them."""
    low, high = min(values), max(values)
    span = high - low
    drawn = bars or _bars()
    top = len(drawn) - 1
    return "".join(drawn[round((value - low) / span * top) if span else 0] for value in values)


def _bars() -> str:
    try:
        _BARS.encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return _PLAIN_BARS
    return _BARS


def _line(document: Any) -> str:
    import json  # noqa: PLC0415 - only here

    return json.dumps(document, ensure_ascii=True)


def _number(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: size(int(row[key])) if row["name"].endswith("_bytes") else f"{row[key]:.4g}"


METRICS = Table(
    (
        Column("REPLICA", "replica"),
        Column("VALUE", "name"),
        Column("NEWEST", _number("newest")),
        Column("LEAST", _number("least"), rank=2),
        Column("MOST", _number("most"), rank=2),
        Column("COURSE", "course", rank=1),
        Column("ENDPOINT", "endpoint", rank=3),
    ),
    empty="Nothing was measured yet.",
)
