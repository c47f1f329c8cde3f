"""How our runs and what is sent for them are called at Kaggle, and where it is in a session."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainshed.engines.providers.contract import RemoteNotFound, Run

INPUT = "/kaggle/input"
DATA = "trainshed-data-"
"""How the names of datasets begin that Jobs share."""


def run_named(owner: str, key: str) -> Run:
    return Run(f"{owner}/{key}/1", f"https://www.kaggle.com/code/{owner}/{key}")


def names_of(run: Run) -> dict[str, str]:
    """Kaggle calls the first version ``v1`` and knows nothing under the bare number."""
    parts = run.ref.split("/")
    if len(parts) != 3 or not all(parts):  # noqa: PLR2004 - owner, name, version
        raise RemoteNotFound("that is no run of Kaggle's")
    owner, slug, version = parts
    return {"userName": owner, "kernelSlug": slug, "versionLabel": f"v{version}"}


def input_slug(key: str, digests: Mapping[str, str] | None) -> str:
    """A run's input by its content: asked for again, a run may go on from another checkpoint."""
    begin = f"{key}-in-"
    if digests is None:
        return begin
    return begin + hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()[:16]


def sent_as(slug: str, file: str, sha256: str | None) -> dict[str, Any]:
    """Where a file of a dataset is in a session; Kaggle has put them in more than one place."""
    places = [f"{INPUT}/{slug}/{file}"]
    return {"places": places, "below": INPUT, "folder": slug, "file": file, "sha256": sha256}


def linked(path: Path, place: Path) -> Path:
    """The same file under the name that it is sent with."""
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(path.resolve())
    return place
