"""Which commit of a dataset of the hub is meant, so that a later Attempt reads the same (e.12).

Asked once, at the submission, without a token. What cannot be asked stays as it was given, and is told.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import replace
from typing import TYPE_CHECKING

from trainshed.model.scripts.faults import shown
from trainshed.model.scripts.validate import HUB_URI

if TYPE_CHECKING:
    from trainshed.model.scripts.spec import DataItem

TIMEOUT_SECONDS = 5.0
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MOST_BYTES = 4 << 20


def pin(item: DataItem) -> tuple[DataItem, str | None]:
    """The dataset at the commit that its revision names now, or as it is and why it could not be asked."""
    match = HUB_URI.fullmatch(item.uri or "")
    if match is None or _COMMIT.fullmatch(match[2] or ""):
        return item, None
    repository, revision, below = match[1], urllib.parse.unquote(match[2] or "main"), match[3] or ""
    try:
        commit = _commit(repository, revision)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else type(error).__name__
        said = f"data {item.mount}: {shown(repository, 80)} could not be pinned to a commit ({reason})"
        return item, f"{said}; a later attempt may read another version"
    return replace(item, uri=f"hf://datasets/{repository}@{commit}{below}"), None


def _commit(repository: str, revision: str) -> str:
    base = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    if not base.startswith(("https://", "http://")) or os.environ.get("HF_HUB_OFFLINE") in {"1", "true"}:
        raise OSError("the hub is not to be asked")
    quoted = urllib.parse.quote(revision, safe="")
    address = f"{base}/api/datasets/{repository}/revision/{quoted}"
    with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - http and https only, see above
        commit = json.loads(answer.read(_MOST_BYTES))["sha"]
    if not _COMMIT.fullmatch(commit):
        raise ValueError("that is no commit")
    return str(commit)
