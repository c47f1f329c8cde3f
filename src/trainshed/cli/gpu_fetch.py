"""``gpu fetch``: what a Job wrote, in its project's folder or elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli.gpu_common import ENDED, JOB, told
from trainshed.cli.output import Sentence, count, size
from trainshed.cli.parameters import SECONDS
from trainshed.cli.session import Session, interactive, json_option

if TYPE_CHECKING:
    from trainshed.sdk import Client

DELIVERY_SECONDS = 15.0
"""How long the server is given to write them itself; after that this program downloads them."""
_LISTED = 20
_NEWEST = 0
"""Stands for the newest checkpoint; they are counted from 1."""
_WROTE_NONE = "There are no files: it wrote none."


@click.command()
@click.argument("ref", metavar="ID", type=JOB)
@click.option("--dest", metavar="DIR", help="Write them here instead of the project's runs/ID.")
@click.option("--timeout", type=SECONDS, metavar="S", help="Wait so many seconds for the Job's end at most.")
@click.option("--refetch", is_flag=True, help="Bring them again although they are there; nothing is deleted.")
@click.option(
    "--checkpoint",
    metavar="[N]",
    type=click.IntRange(min=_NEWEST),
    is_flag=False,
    flag_value=_NEWEST,
    help="Bring checkpoint N instead, without N the newest that is kept; of a Job that goes on, too.",
)
@json_option
@click.pass_obj
def fetch(
    session: Session,
    *,
    ref: str,
    dest: str | None,
    timeout: float | None,
    refetch: bool,
    checkpoint: int | None,
) -> None:
    """Bring what a Job wrote.

    Waits for its end; also outputs of one that failed or was cancelled are brought. Files are verified,
    and only those of the same names are replaced. With --checkpoint, behind ID, it does not wait, and
    writes into runs/ID/checkpoints/N.
    """
    if checkpoint is not None and (refetch or timeout is not None):
        raise click.UsageError("--checkpoint brings what is kept now: it takes no --timeout or --refetch")
    with session.client() as client:
        if checkpoint is not None:
            job, found = _checkpoint(client, ref, checkpoint, dest)
            document = told(job, outputs_dir=found["dir"], files=found["count"], checkpoint=found)
            session.show(document, Sentence(lambda row: outputs_text(row["checkpoint"])))
            return
        job = client.scripts.get(ref).job.raw
        session.script = None if job["state"] in ENDED else job["short_id"]
        if session.script is not None:
            session.note(f"{job['short_id']} is {job['state']}; waiting for its end")
        job = waited(session, client, job, timeout)
        session.script = None
        found = bring(client, job, dest=dest, refetch=refetch)
        job = client.scripts.get(job["short_id"]).job.raw
    document = told(job, fetched=True, outputs_dir=found["dir"], files=found["count"], outputs=found)
    session.show(document, Sentence(lambda row: outputs_text(row["outputs"])))
    if not found["count"] and job["checkpoint_count"]:
        session.note(f"hint: `{session.gpu} fetch {job['short_id']} --checkpoint` brings what it saved.")


def waited(
    session: Session, client: Client, job: Mapping[str, Any], timeout: float | None
) -> Mapping[str, Any]:
    """The Job once it has ended, with a moving sign for a person at a terminal."""
    if job["state"] in ENDED:
        return job
    if session.json or not interactive():
        return client.scripts.wait(job["short_id"], timeout=timeout).raw
    from rich.console import Console  # noqa: PLC0415 - only for a person at a terminal

    with Console(stderr=True).status(f"waiting for {job['short_id']}"):
        return client.scripts.wait(job["short_id"], timeout=timeout).raw


def bring(
    client: Client, job: Mapping[str, Any], *, dest: str | None = None, refetch: bool = False
) -> dict[str, Any]:
    """Have the outputs of a Job that has ended in ``dest``, or in its project's folder; what they are.

    The server writes them itself where the folder is on its machine; where it does not, they are downloaded.
    Raises `LocalFileError` and whatever else a download raises.
    """
    ref = job["short_id"]
    target = os.path.abspath(os.path.expanduser(dest)) if dest else job["outputs_dir"]  # noqa: PTH100, PTH111 - links stay as they were named
    if not job["accepted_attempts"]:
        # No provider took it, so nothing was written, and nothing is to be waited for.
        return {"dir": target, "count": 0, "bytes": 0, "listing": []}
    if dest is None and (refetch or not job["outputs_fetched"]):
        client.scripts.fetch(ref, refetch=refetch)
        job = _delivered(client, job)
    if job["started_at"] is None and not job["outputs_count"]:
        return {"dir": target, "count": 0, "bytes": 0, "listing": []}
    if dest is not None or not job["outputs_fetched"] or not Path(target).is_dir():
        _download(client, job, target, own=dest is None)
    items = client.scripts.outputs(ref).items
    listed = [each for each in items if each.get("upload_state") != "deleted"]
    return {
        "dir": target,
        "count": len(listed),
        "bytes": sum(int(each["bytes"]) for each in listed),
        "listing": [{"path": each["path"], "bytes": each["bytes"]} for each in listed],
        **({"deleted": len(items) - len(listed)} if len(items) > len(listed) else {}),
    }


def _checkpoint(
    client: Client, ref: str, number: int, dest: str | None
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Have a checkpoint in ``dest``, or in the Job's own folder; the Job, and what was brought."""
    from trainshed.sdk.errors import LocalFileError, TrainshedError  # noqa: PLC0415 - not for `--help`

    seen = client.scripts.get(ref).raw
    job, kept = seen["job"], [int(each["number"]) for each in seen["checkpoints"]]
    if number == _NEWEST and not kept:
        raise TrainshedError(
            f"no checkpoint of {job['short_id']} is kept",
            hint="What a program saves in gpu.checkpoint_dir() is; see docs/gpu.md.",
        )
    number = number or max(kept)
    if dest is None and not Path(job["project_dir"]).is_dir():
        said = f"the project's folder {job['project_dir']} is not on this machine"
        raise LocalFileError(said, hint="`--dest DIR` says where the checkpoint goes instead.")
    own = f"{job['outputs_dir']}/checkpoints/{number}"
    target = os.path.abspath(os.path.expanduser(dest)) if dest else own  # noqa: PTH100, PTH111 - links stay as they were named
    brought = client.scripts.fetch_checkpoint(job["short_id"], number, target)
    for each in brought:
        if each.error is not None:
            raise each.error
    found = {
        "number": number,
        "dir": target,
        "count": len(brought),
        "bytes": sum(each.artifact.size for each in brought),
        "listing": [{"path": each.artifact.name, "bytes": each.artifact.size} for each in brought],
    }
    return job, found


def outputs_text(outputs: Mapping[str, Any]) -> str:
    """The outputs as people read them."""
    gone = outputs.get("deleted", 0)
    if not outputs["count"]:
        return f"The server has no files any more: {count(gone, 'file')} deleted." if gone else _WROTE_NONE
    told_size = size(int(outputs["bytes"]))
    lines = [f"{count(outputs['count'], 'file')}, {told_size}, in {outputs['dir']}"]
    lines += [f"  {size(int(each['bytes'])):>10}  {each['path']}" for each in outputs["listing"][:_LISTED]]
    if more := outputs["count"] - len(outputs["listing"][:_LISTED]):
        lines.append(f"  … and {more} more")
    lines += [f"  {count(gone, 'file')} deleted on the server"] if gone else []
    return "\n".join(lines)


def _delivered(client: Client, job: Mapping[str, Any]) -> Mapping[str, Any]:
    """The Job once the server has written its outputs, or when it will not."""
    if not client.connection.loopback:
        return job
    until = time.monotonic() + DELIVERY_SECONDS
    while True:
        found = client.scripts.get(job["short_id"])
        job = found.job.raw
        failed = [each["reason"] for each in found.events if each["reason"] in {"fetched", "fetch_failed"}]
        if job["outputs_fetched"] or failed[-1:] == ["fetch_failed"]:
            return job
        left = until - time.monotonic()
        if left <= 0:
            return job
        client.scripts.get(job["short_id"], wait_s=min(left, 1.0), version=job["version"])
        time.sleep(min(left, 0.2))


def _download(client: Client, job: Mapping[str, Any], target: str, *, own: bool) -> None:
    from trainshed.sdk.errors import LocalFileError  # noqa: PLC0415 - not for `--help`

    if own and not Path(job["project_dir"]).is_dir():
        said = f"the project's folder {job['project_dir']} is not on this machine"
        raise LocalFileError(said, hint="`--dest DIR` says where the outputs go instead.")
    for each in client.scripts.fetch(job["short_id"], target, timeout=DELIVERY_SECONDS):
        if each.error is not None:
            raise each.error
