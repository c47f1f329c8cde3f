"""Downloading with a progress bar, and how the outcome is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainshed.cli.output import Column, Table, View, size
from trainshed.cli.session import Session, interactive

if TYPE_CHECKING:
    from trainshed.sdk import Artifact, Client
    from trainshed.sdk.download import Downloaded, Progress


def fetch(
    session: Session,
    client: Client,
    trial_id: str,
    folder: Path,
    *,
    names: Sequence[str] | None = None,
    overwrite: bool = False,
    parallel: int = 4,
) -> Sequence[Downloaded]:
    """Download a Trial's artifacts; a person at a terminal sees a bar for each file."""
    return with_bars(
        session,
        lambda progress: client.trials.download(
            trial_id, folder, names=names, overwrite=overwrite, parallel=parallel, progress=progress
        ),
    )


def with_bars(
    session: Session, download: Callable[[Progress | None], Sequence[Downloaded]]
) -> Sequence[Downloaded]:
    """Run ``download``; a person at a terminal sees a bar for each file."""
    if session.json or not interactive():
        return download(None)
    from rich.console import Console  # noqa: PLC0415 - only for a person at a terminal
    from rich.progress import Progress as Bars  # noqa: PLC0415 - as above
    from rich.progress import TaskID  # noqa: PLC0415 - as above

    tasks: dict[str, TaskID] = {}
    with Bars(console=Console(stderr=True), transient=True) as bars:

        def moved(artifact: Artifact, done: int) -> None:
            task = tasks.get(artifact.name)
            if task is None:
                task = tasks[artifact.name] = bars.add_task(artifact.name[-40:], total=max(artifact.size, 1))
            bars.update(task, completed=done if artifact.size else 1)

        return download(moved)


def outcome(
    name: str, folder: Path, results: Sequence[Downloaded], *, noun: str = "trial"
) -> tuple[dict[str, Any], View]:
    """The document and the view of finished downloads; ``name`` names the Trial, or what ``noun`` says."""
    items = [_item(result) for result in results]
    if noun != "trial":
        items = [{key: value for key, value in item.items() if key != "artifact_id"} for item in items]
    document = {
        f"{noun}_id": name.rpartition("/")[2],
        "folder": str(folder),
        "items": items,
        "skipped": [item["name"] for item in items if item["state"] == "skipped"],
        "failed": [item["name"] for item in items if item["state"] == "failed"],
    }
    view = Table(
        (
            Column("NAME", "name"),
            Column("SIZE", lambda row: size(row["size"])),
            Column("STATE", "state"),
            Column("SHA256", "sha256", rank=1),
        ),
        below="reason",
        empty="No files to download.",
    )
    return document, view


def _item(result: Downloaded) -> dict[str, Any]:
    artifact = result.artifact
    state, reason = "verified", None
    if result.error is not None:
        state, reason = "failed", " ".join(filter(None, (f"{result.error}.", result.error.hint)))
    elif result.skipped:
        why = artifact.raw.get("deletion") or f"upload state {artifact.upload_state}"
        state, reason = "skipped", f"the server does not hold it ({why})"
    return {
        "artifact_id": artifact.artifact_id,
        "name": artifact.name,
        "size": artifact.size,
        "sha256": artifact.sha256,
        "state": state,
        "path": str(result.path) if result.path else None,
        "reason": reason,
    }
