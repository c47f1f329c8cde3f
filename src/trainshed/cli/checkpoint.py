"""``trainshed checkpoint``: look at Checkpoints, fetch, keep and delete them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from trainshed.cli import views
from trainshed.cli.downloads import outcome, with_bars
from trainshed.cli.exits import Exit
from trainshed.cli.lazy import Group
from trainshed.cli.output import Sentence
from trainshed.cli.parameters import CHECKPOINT, JOB, SECONDS, TRIAL, Whole
from trainshed.cli.session import Session, json_option, quiet_option


@click.group(cls=Group)
def checkpoint() -> None:
    """Look at, fetch, keep and delete Checkpoints.

    A Checkpoint is named by its id, or as envloop://JOB_ID/CHECKPOINT_ID. `job submit --resume-from` goes on
    from one.
    """


@checkpoint.command("list")
@click.option("--job-id", type=JOB, metavar="JOB", help="Only Checkpoints of this Job.")
@click.option("--trial", "trial_id", type=TRIAL, metavar="TRIAL", help="Only Checkpoints of this Trial.")
@click.option("--limit", type=Whole(), default=25, show_default=True, help="Checkpoints per page, 1 to 100.")
@click.option("--cursor", help="Go on after an earlier page.")
@quiet_option
@json_option
@click.pass_obj
def list_(
    session: Session,
    *,
    job_id: str | None,
    trial_id: str | None,
    limit: int,
    cursor: str | None,
    quiet: bool,
) -> None:
    """List Checkpoints, newest first."""
    with session.client() as client:
        page = client.checkpoints.list(job_id=job_id, trial_id=trial_id, limit=limit, cursor=cursor)
    shown = [views.ids("checkpoint_id")] if quiet else [views.CHECKPOINT_LIST, *views.more(page.raw)]
    session.show(page.raw, *shown)


@checkpoint.command()
@click.argument("name", metavar="CHECKPOINT", type=CHECKPOINT)
@json_option
@click.pass_obj
def show(session: Session, name: str) -> None:
    """Show a Checkpoint: what it is, where it comes from, its files."""
    with session.client() as client:
        found = client.checkpoints.get(name).raw
    session.show(found, views.CHECKPOINT, views.CHECKPOINT_FILES)


@checkpoint.command()
@click.argument("name", metavar="CHECKPOINT", type=CHECKPOINT)
@click.argument("names", metavar="[FILE]...", nargs=-1)
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to write into; the Checkpoint's id by default.",
)
@click.option("--overwrite", is_flag=True, help="Replace files whose content differs.")
@click.option("--parallel", type=Whole(1, 32), default=4, show_default=True, help="Files at a time, 1 to 32.")
@json_option
@click.pass_context
def download(
    context: click.Context,
    name: str,
    names: tuple[str, ...],
    *,
    folder: Path | None,
    overwrite: bool,
    parallel: int,
) -> None:
    """Download a Checkpoint (all files, or those named) and verify size and SHA-256 of each.

    Exits 1 if any file failed; calling it again goes on where it ended.
    """
    session = context.ensure_object(Session)
    target = folder or Path(name.rpartition("/")[2])
    with session.client() as client:
        results = with_bars(
            session,
            lambda progress: client.checkpoints.download(
                name,
                target,
                names=names or None,
                overwrite=overwrite,
                parallel=parallel,
                progress=progress,
            ),
        )
    document, view = outcome(name, target, results, noun="checkpoint")
    session.show(document, view)
    complete = all(result.path is not None for result in results)
    context.exit(Exit.OK if complete else Exit.FAILED)


@checkpoint.command()
@click.argument("name", metavar="CHECKPOINT", type=CHECKPOINT)
@click.option("--quiet", "-q", is_flag=True, help="Print the URLs only, one a line.")
@json_option
@click.pass_obj
def urls(session: Session, name: str, *, quiet: bool) -> None:
    """Print a URL for each file of a Checkpoint that needs no key, and until when they are good.

    For other programs to fetch. They die early with the key that asked for them and with the Checkpoint.
    """
    with session.client() as client:
        found = client.checkpoints.signed(name)
    alone = Sentence(lambda row: "\n".join(map(str, row["urls"].values())))
    session.show(found, *([alone] if quiet else [views.CHECKPOINT_URLS, views.GOOD_UNTIL]))


@checkpoint.command()
@click.argument("name", metavar="CHECKPOINT", type=CHECKPOINT)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--wait", is_flag=True, help="Wait until the deletion is done.")
@click.option("--wait-timeout", type=SECONDS, default=600.0, help="Seconds to wait at most (exit 8).")
@json_option
@click.pass_obj
def delete(session: Session, name: str, *, yes: bool, wait: bool, wait_timeout: float) -> None:
    """Delete a Checkpoint, and the Artifacts of its Trial that are its files.

    Refused (exit 6) while it is pinned or a Trial resumes from it. Repeatable. Asks at a terminal.
    """
    with session.client() as client:
        if not yes and not session.json and sys.stdin.isatty():
            click.confirm(f"Delete {name} and the Artifacts that are its files?", abort=True, err=True)
        receipt = client.checkpoints.delete(name, wait=wait, timeout=wait_timeout)
    said = f"Deleted {receipt.get('resource_id')} (operation {receipt.get('operation_id')})."
    session.show(receipt, Sentence(lambda _: said))


@checkpoint.command()
@click.argument("name", metavar="CHECKPOINT", type=CHECKPOINT)
@json_option
@click.pass_obj
def pin(session: Session, name: str) -> None:
    """Keep a Checkpoint: neither rules nor people delete it. Repeatable."""
    with session.client() as client:
        session.show(client.checkpoints.pin(name).raw, views.CHECKPOINT)


@checkpoint.command()
@click.argument("name", metavar="CHECKPOINT", type=CHECKPOINT)
@json_option
@click.pass_obj
def unpin(session: Session, name: str) -> None:
    """Let a Checkpoint be deleted again, by its Runner's rules too. Repeatable."""
    with session.client() as client:
        session.show(client.checkpoints.unpin(name).raw, views.CHECKPOINT)
