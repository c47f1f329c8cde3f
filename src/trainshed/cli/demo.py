"""``trainshed demo``: the whole path once, on a private server that leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli import views
from trainshed.cli.downloads import fetch, outcome
from trainshed.cli.exits import Exit
from trainshed.cli.logs import LogPrinter, LogStyle
from trainshed.cli.output import Column, Fields, Table
from trainshed.cli.session import Session, interactive, json_option
from trainshed.sdk.errors import TrainshedError

if TYPE_CHECKING:
    from trainshed.sdk import Client, Job
    from trainshed.sdk.embedded import RunningServer

RUNNER = "examples/digits"
SIMULATED_GPUS = "H100:2"
TRIALS = 2
WAIT_SECONDS = 600.0
STOP_SECONDS = 60.0
METRICS_FILE = "outputs/metrics.json"
RESULT = Table(
    (
        Column("TRIAL", "name"),
        Column("STATE", "state"),
        Column("EXIT", "exit_code"),
        Column("GPU", views.gpu_text),
        Column("OUTPUT", "output_status"),
        Column("FILES", "verified_files"),
        Column("ACCURACY", "accuracy"),
        Column("RELEASED", "cleanup_confirmed"),
    ),
    empty="No Trials.",
    rows="trials",
)
SUMMARY = Fields(
    (
        ("job", "job_id"),
        ("status", "status"),
        ("runner", "runner"),
        ("gpus", "gpus"),
        ("kept in", "kept"),
    ),
)


@click.command()
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the downloaded files in this folder; without it nothing is kept.",
)
@json_option
@click.pass_context
def demo(context: click.Context, keep: Path | None) -> None:
    """Run the whole path once, on a private server.

    Publishes a small Runner that really learns to read digits, submits one Job of two Trials, shows its log,
    downloads and verifies what it produced, waits for the proof of release, and leaves nothing running.
    """
    session = context.ensure_object(Session)
    if shutil.which("git") is None:
        raise TrainshedError("the demo publishes from a git commit and needs `git`", hint="Install git.")
    with _ended_in_order(), _working_folder() as folder:
        simulated = not _has_gpus()
        if simulated:
            session.note(
                f"No GPU here: the server simulates {SIMULATED_GPUS}, and says so wherever it shows."
            )
        with _private_server(session, folder, simulated=simulated) as client:
            document = _whole_path(session, client, folder, keep)
        document["server_stopped"] = True
    document["gpus"] = f"simulated {SIMULATED_GPUS}" if simulated else "this machine's"
    session.show(document, SUMMARY, RESULT, _artifacts_view())
    good = document["status"] == "completed" and document["verified"] and document["released"]
    session.note(
        "\nThe server is stopped and nothing is left running." if good else "\nThe demo did not succeed."
    )
    context.exit(Exit.OK if good else Exit.FAILED)


def _whole_path(session: Session, client: Client, folder: Path, keep: Path | None) -> dict[str, Any]:
    from trainshed.content.shipped import shipped_repository  # noqa: PLC0415 - demo may use server rooms

    commit = shipped_repository(RUNNER, folder / "repository")
    session.note(f"Publishing {RUNNER} from commit {commit[:12]} …")
    published = client.runners.publish(folder / "repository", name=RUNNER)
    spec = {"runner": published.runner.selector, "tags": {"made-by": "trainshed-demo"}}
    trials = [{"name": f"digits-{number}", "spec": spec} for number in range(1, TRIALS + 1)]
    job = client.training_jobs.submit({"trials": trials})
    session.note(f"Submitted {job.job_id}: {TRIALS} Trials of {published.runner.selector}")
    _show_log(session, client, job)
    ended = client.jobs.wait(job.job_id, timeout=WAIT_SECONDS)
    target = keep or folder / "downloads"
    items: list[dict[str, Any]] = []
    rows = []
    for trial in ended.trials:
        results = fetch(session, client, trial.trial_id, target / trial.name)
        downloads, _ = outcome(trial.trial_id, target / trial.name, results)
        items += [
            {"trial": trial.name, **item, "path": item["path"] if keep else None}
            for item in downloads["items"]
        ]
        rows.append(
            (trial.trial_id, len([item for item in downloads["items"] if item["state"] == "verified"]))
        )
    session.note("Waiting for the proof of release …")
    released = client.jobs.wait(job.job_id, timeout=WAIT_SECONDS, released=True)
    counts = dict(rows)
    shown = [
        {**trial.raw, "verified_files": counts[trial.trial_id], "accuracy": _accuracy(target / trial.name)}
        for trial in released.trials
    ]
    return {
        "job_id": released.job_id,
        "status": released.status,
        "runner": published.runner.selector,
        "trials": shown,
        "artifacts": items,
        "verified": bool(items) and all(item["state"] == "verified" for item in items),
        "released": all(trial.cleanup_confirmed for trial in released.trials),
        "kept": str(keep) if keep else None,
    }


def _show_log(session: Session, client: Client, job: Job) -> None:
    """The log as it comes; at a terminal with a sign that says how far the Trials are."""
    printer = LogPrinter(LogStyle(names=True, all_to_stderr=session.json))
    if session.json or not interactive():
        printer.print_all(client.jobs.follow(job.job_id))
        return
    from rich.console import Console  # noqa: PLC0415 - only for a person at a terminal

    console = Console(stderr=True)
    with console.status("training", spinner="line") as status:
        for record in client.jobs.follow(job.job_id):
            status.stop()
            printer.print(record)
            if record.source == "runtime":
                status.update(f"{record.trial_name}: {record.text[:60]}")
            status.start()
    printer.finish()


def _accuracy(folder: Path) -> str | None:
    """What the program itself wrote about how well it learned."""
    import json  # noqa: PLC0415 - only here

    try:
        metrics = json.loads((folder / METRICS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    value = metrics.get("heldout_accuracy") if isinstance(metrics, Mapping) else None
    return f"{value:.2%}" if isinstance(value, float | int) else None


def _artifacts_view() -> Table:
    columns = (
        Column("TRIAL", "trial"),
        Column("ARTIFACT", "name"),
        Column("STATE", "state"),
        Column("SHA256", "sha256", rank=1),
    )
    return Table(columns, empty="No artifacts.", rows="artifacts")


def _has_gpus() -> bool:
    from trainshed.engines.local import inventory  # noqa: PLC0415 - demo may use server rooms

    return bool(inventory())


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let a closed terminal and SIGTERM end the command as Ctrl-C does: with nothing left."""
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Hear no signal while what would be left is taken away."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _working_folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="trainshed-demo-"))
    try:
        yield path
    finally:
        with _undisturbed():
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _private_server(session: Session, folder: Path, *, simulated: bool) -> Iterator[Client]:
    """A server of this command alone: whatever happens, its Jobs are stopped and it ends."""
    from trainshed.sdk import embedded  # noqa: PLC0415 - as in the other commands
    from trainshed.sdk.client import Client  # noqa: PLC0415 - as above
    from trainshed.sdk.discovery import Connection  # noqa: PLC0415 - as above

    data = folder / "server"
    options = ["--simulate-gpus", SIMULATED_GPUS] if simulated else []
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRAINSHED_", "ENVLOOP_"))
    }
    session.note("Starting a private server …")
    server = embedded.launch(data, folder / "server.log", options, own)
    try:
        key = embedded.read_key(data / embedded.OWNER_KEY_FILE)
        with Client(connection=Connection(server.url, key, None, "argument")) as client:
            try:
                yield client
            except BaseException:
                session.note("Stopping what runs …")
                with _undisturbed(), contextlib.suppress(TrainshedError):
                    _stop_all(client)
                raise
    finally:
        with _undisturbed():
            _end(server)


def _stop_all(client: Client) -> None:
    for job in client.jobs.iter_all():
        if not job.ended or not all(trial.cleanup_confirmed for trial in job.trials):
            client.jobs.stop(job.job_id)
            client.jobs.wait(job.job_id, timeout=STOP_SECONDS, released=True)


def _end(server: RunningServer) -> None:
    from trainshed.sdk import embedded  # noqa: PLC0415 - as above

    embedded.terminate(server)
