"""``trainshed artifact``: give up what Trials produced."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from trainshed.cli.lazy import Group
from trainshed.cli.output import Sentence, count, size
from trainshed.cli.session import Session, json_option

if TYPE_CHECKING:
    from trainshed.sdk.artifacts import DeletedArtifacts


@click.group(cls=Group)
def artifact() -> None:
    """Delete what Trials produced.

    `trial artifacts` lists it, `trial download` fetches it.
    """


@artifact.command()
@click.argument("owner", metavar="TRIAL|JOB")
@click.option("--name", metavar="GLOB", help="Only those whose names match, e.g. 'out/**' or '**/*.pt'.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@json_option
@click.pass_obj
def delete(session: Session, *, owner: str, name: str | None, yes: bool, dry_run: bool) -> None:
    """Delete the Artifacts of a Trial that has ended, or of all Trials of a Job.

    They stay listed with size and SHA-256; their bytes go when nothing else needs them. Checkpoints keep
    their files until they are deleted. Refused (exit 6) while a Trial runs. Asks at a terminal; elsewhere,
    and with --json, give --yes or --dry-run.
    """
    if not (yes or dry_run) and (session.json or not sys.stdin.isatty()):
        raise click.UsageError("nobody can be asked here; give --yes or --dry-run")
    with session.client() as client:
        act: Callable[..., DeletedArtifacts] = client.artifacts.delete_of_job
        if owner.startswith("trial_"):
            act = client.artifacts.delete_of_trial
        if not yes:
            found = act(owner, name=name, dry_run=True)
            if dry_run or not found.count:
                said = f"Would delete {_amount(found)}." if found.count else "There is nothing to delete."
                session.show(found.raw, Sentence(lambda _: said))
                return
            click.confirm(f"Delete {_amount(found)} of {owner}?", abort=True, err=True)
        done = act(owner, name=name)
    session.show(done.raw, Sentence(lambda _: f"Deleted {_amount(done)}."))


def _amount(found: DeletedArtifacts) -> str:
    said = f"{count(found.count, 'Artifact')}, {size(found.bytes)}"
    return f"{said} (Checkpoints keep {size(found.kept_bytes)} of it)" if found.kept_bytes else said
