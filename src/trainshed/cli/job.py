"""``trainshed job``: submit, watch and stop Jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli import views
from trainshed.cli.exits import Exit
from trainshed.cli.follow import follow_to_the_end, log_options, show_log
from trainshed.cli.lazy import Group
from trainshed.cli.nearest import near_runners
from trainshed.cli.output import Sentence, count
from trainshed.cli.parameters import CHECKPOINT, JOB, POSITIVE, SECONDS, Whole
from trainshed.cli.rerun import manifest, rerun
from trainshed.cli.session import Session, json_option, quiet_option
from trainshed.cli.submission import MAX_TRIALS, SIZE, Options, from_file, from_options, read_file
from trainshed.cli.waiting import Deadline, await_release, wait_for

if TYPE_CHECKING:
    from trainshed.sdk import Job

_ID = Sentence(lambda document: str(document["job_id"]))


@click.group(cls=Group)
def job() -> None:
    """Submit, watch and stop Jobs."""


@job.command()
@click.option("--type", "type_", metavar="TYPE", help="What is submitted; `train` unless the file says so.")
@click.option("--runner", metavar="NS/NAME@REV", help="The Runner Revision to run.")
@click.option("--trials", type=Whole(1, MAX_TRIALS), help="Number of equal Trials, 1 (default) to 16.")
@click.option("--gpu-type", metavar="MODEL", help="GPU model of each Trial, e.g. H100.")
@click.option("--gpu", "gpus", type=POSITIVE, help="GPUs of each Trial, on one node.")
@click.option("--docker", "--image", "image", metavar="IMAGE", help="Image instead of the Runner's own.")
@click.option("--cpu", "cpus", type=POSITIVE, help="CPU cores of each Trial.")
@click.option("--memory", "memory_mb", type=SIZE, help="Memory of each Trial, e.g. 64Gi.")
@click.option("--disk", "storage_mb", type=SIZE, help="Disk of each Trial, e.g. 100Gi.")
@click.option("--shm-size", "shm_mb", type=SIZE, help="Shared memory of each Trial, e.g. 16Gi.")
@click.option("--command", metavar="TEXT", help="Fills the Runner's `run_command`, byte for byte.")
@click.option("--profile-file", metavar="FILE", help="JSON document of a Job Profile (`-` = stdin).")
@click.option(
    "--resume-from", type=CHECKPOINT, metavar="CHECKPOINT", help="Go on from this Checkpoint: id or URI."
)
@click.option("--timeout-seconds", type=POSITIVE, help="Time limit of each Trial.")
@click.option("--request-id", metavar="ID", help="Names this submission; a retry finds the same Job.")
@click.option("--spec", metavar="FILE", help="JSON request (`-` = stdin); options win in every Trial.")
@click.option("--wait", is_flag=True, help="Wait for the end; exit 1 unless the Job completed.")
@click.option("--follow", is_flag=True, help="Print the log until its end, then as --wait.")
@click.option("--wait-timeout", type=SECONDS, help="Seconds to wait at most (exit 8).")
@quiet_option
@json_option
@click.pass_context
def submit(
    context: click.Context,
    /,
    *,
    type_: str | None,
    trials: int | None,
    spec: str | None,
    wait: bool,
    follow: bool,
    wait_timeout: float | None,
    quiet: bool,
    **given: Any,
) -> None:
    """Submit one Job of one or more Trials.

    Give either --runner with the options, or --spec FILE, or both: an option then replaces that field in
    every Trial of the file. A file must carry its own request_id (or give --request-id).
    """
    session = context.ensure_object(Session)
    profile_file = given.pop("profile_file")
    if spec == profile_file == "-":
        raise click.UsageError("--spec and --profile-file cannot both read stdin")
    profile = None if profile_file is None else read_file(profile_file, "a Job Profile")
    options = Options(type=type_, profile=profile, **given)
    if spec is not None:
        if trials is not None:
            raise click.UsageError("--trials cannot be used with --spec: the file names its Trials")
        request = from_file(read_file(spec), options)
    elif options.runner is None:
        raise click.UsageError("give --runner NAMESPACE/NAME@REVISION or --spec FILE")
    else:
        request = from_options(options, trials or 1)
    if quiet and follow:
        raise click.UsageError("--quiet prints the id alone and --follow prints the log; give one of them")
    if wait_timeout is not None and not wait and not follow:
        raise click.UsageError("--wait-timeout bounds --wait or --follow; give one of them")
    shown = [_ID] if quiet else [views.JOB, views.TRIALS_OF_JOB]
    deadline = Deadline(wait_timeout)
    with session.client() as client:
        with near_runners(session, client, _runner_named(request)):
            found = client.training_jobs.submit(request, make_request_id=False)
        if not wait and not follow:
            session.show(_as_accepted(found.raw) if not session.json else found.raw, *shown)
            session.note(f"\n{found.job_id} {_receipt(found)}")
            session.note(f"Follow it with `{session.program} job log {found.job_id} --follow`.")
            return
        session.job_id = found.job_id
        session.note(f"{found.job_id} {_receipt(found)}")
        if follow:
            follow_to_the_end(session, client, found, deadline.left())
        ended = wait_for(session, client, found.job_id, deadline.left())
        session.job_id = None
        await_release(client, ended, deadline.left())
        session.show(client.jobs.result(ended.job_id).raw, *shown)
    context.exit(Exit.OK if ended.succeeded else Exit.FAILED)


@job.command("get")
@click.argument("job_id", type=JOB)
@json_option
@click.pass_obj
def get_(session: Session, job_id: str) -> None:
    """Show a Job and its Trials as they are now."""
    with session.client() as client:
        session.show(client.jobs.get(job_id).raw, views.JOB, views.TRIALS_OF_JOB)


@job.command("list")
@click.option("--type", "type_", metavar="TYPE", help="Only Jobs of this type.")
@click.option("--status", metavar="WORD", help="Only Jobs with this status.")
@click.option("--limit", type=Whole(), default=25, show_default=True, help="Jobs per page, 1 to 100.")
@click.option("--cursor", help="Go on after an earlier page.")
@quiet_option
@json_option
@click.pass_obj
def list_(
    session: Session,
    *,
    type_: str | None,
    status: str | None,
    limit: int,
    cursor: str | None,
    quiet: bool,
) -> None:
    """List Jobs, newest first."""
    with session.client() as client:
        page = client.jobs.list(type=type_, status=status, limit=limit, cursor=cursor)
    shown = [views.ids("job_id")] if quiet else [views.JOBS, *views.more(page.raw)]
    session.show(page.raw, *shown)


@job.command()
@click.argument("job_id", type=JOB)
@click.option("--trial", metavar="TRIAL", help="Only this Trial, by id or name.")
@log_options
@click.pass_obj
def log(session: Session, /, job_id: str, **given: Any) -> None:
    """Print the log of a Job.

    What programs wrote to stdout goes to stdout, what they wrote to stderr and what the platform did goes to
    stderr. With --json: one document, or with --follow one document a line as records come.
    """
    with session.client() as client:
        names = given["trial"] is None and len(client.jobs.get(job_id).trials) > 1
        session.job_id = job_id if given["follow"] else None
        show_log(session, client, job_id, names=names, **given)


@job.command()
@click.argument("job_id", type=JOB)
@json_option
@click.pass_obj
def result(session: Session, job_id: str) -> None:
    """Show how a Job ended, with its Checkpoints; while it runs, its present state."""
    with session.client() as client:
        session.show(client.jobs.result(job_id).raw, views.JOB, views.TRIALS_OF_JOB, views.CHECKPOINTS)


@job.command()
@click.argument("job_id", type=JOB)
@click.option("--wait", is_flag=True, help="Wait until it ended and every release is confirmed.")
@click.option("--wait-timeout", type=SECONDS, help="Seconds to wait at most (exit 8).")
@json_option
@click.pass_obj
def stop(session: Session, job_id: str, *, wait: bool, wait_timeout: float | None) -> None:
    """Stop all Trials of a Job; outputs are still collected. Repeatable."""
    with session.client() as client:
        found = client.jobs.stop(job_id)
        if wait:
            found = wait_for(session, client, job_id, wait_timeout, released=True)
        session.show(found.raw, views.JOB, views.TRIALS_OF_JOB)


@job.command()
@click.argument("job_id", type=JOB)
@click.option("--limit", type=Whole(), default=100, show_default=True, help="Events per page, 1 to 100.")
@click.option("--cursor", help="Go on after an earlier page.")
@json_option
@click.pass_obj
def events(session: Session, job_id: str, *, limit: int, cursor: str | None) -> None:
    """List what happened to a Job and its Trials, and why, newest first."""
    with session.client() as client:
        page = client.jobs.events(job_id, limit=limit, cursor=cursor)
    session.show(page.raw, views.EVENTS, *views.more(page.raw))


@job.command("wait")
@click.argument("job_id", type=JOB)
@click.option("--released", is_flag=True, help="Wait further until every release is confirmed.")
@click.option("--wait-timeout", type=SECONDS, help="Seconds to wait at most (exit 8).")
@json_option
@click.pass_context
def wait_(context: click.Context, job_id: str, *, released: bool, wait_timeout: float | None) -> None:
    """Wait for a Job to end; exit 1 unless it completed."""
    session = context.ensure_object(Session)
    session.job_id = job_id
    with session.client() as client:
        ended = wait_for(session, client, job_id, wait_timeout, released=released)
        session.job_id = None
        session.show(ended.raw, views.JOB, views.TRIALS_OF_JOB)
    context.exit(Exit.OK if ended.succeeded else Exit.FAILED)


job.add_command(manifest)
job.add_command(rerun)


def _as_accepted(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The Job without the reason that every Trial waits for at first: that nobody has looked at it yet."""
    training = document.get("training")
    if not isinstance(training, dict) or not isinstance(training.get("trials"), list):
        return document
    trials = [
        {key: value for key, value in trial.items() if key != "waiting"}
        if isinstance(trial.get("waiting"), dict) and trial["waiting"].get("code") == "NEXT_TURN"
        else trial
        for trial in training["trials"]
    ]
    return {**document, "training": {**training, "trials": trials}}


def _receipt(found: Job) -> str:
    trials = count(len(found.trials), "Trial")
    if found.accepted_before:
        return f"was accepted before ({trials}): the same Job, nothing new was started."
    return f"accepted ({trials})."


def _runner_named(request: dict[str, Any]) -> str:
    """The first Runner that a request names, for suggestions."""
    entries = request.get("trials")
    specs = [request.get("spec")]
    specs += (
        [entry.get("spec") for entry in entries if isinstance(entry, dict)]
        if isinstance(entries, list)
        else []
    )
    named = [spec.get("runner") for spec in specs if isinstance(spec, dict)]
    return next((name for name in named if isinstance(name, str)), "")
