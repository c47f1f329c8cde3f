"""Private datasets of Kaggle: how anything larger than a program's text gets into a session.

A dataset is found again by its name, so nothing is sent twice and a lost answer does no harm. Kaggle unpacks
what it takes for an archive; ours have an ending that it does not know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from trainshed.engines.providers.contract import InvalidJob, RemoteNotFound, Unavailable
from trainshed.engines.providers.kaggle.values import word
from trainshed.engines.providers.kaggle.wire import Wire

_SERVICE = "datasets.DatasetApiService"
_READY, _BEGUN = "READY", "NOT_YET_PERSISTED"
_GONE = frozenset({"FAILED", "DELETED"})
_POLL_SECONDS = 3.0
_LICENSE = "unknown"


class Datasets:
    """Thread-safe. ``pause`` waits so many seconds."""

    def __init__(self, wire: Wire, pause: Callable[[float], None] = time.sleep) -> None:
        self._wire = wire
        self._pause = pause

    def state(self, slug: str) -> str | None:
        """Kaggle's word for how far a dataset of ours is; ``None``: there is none."""
        names = {"ownerSlug": self._wire.username(), "datasetSlug": slug}
        try:
            said = self._wire.call(_SERVICE, "GetDatasetStatus", names)
        except RemoteNotFound:
            return None
        return word(said.get("status"), (_READY, *_GONE), _BEGUN)

    def have(self, slug: str, files: Callable[[], Sequence[Path]], seconds: float) -> bool:
        """See to it that a dataset is there and can be attached; whether it had to be sent.

        ``files`` makes them when they are needed. Raises the contract's errors, `Unavailable` where it is not
        ready after ``seconds``; asked again it is found as far as it got.
        """
        state = self.state(slug)
        if state in _GONE:
            self.remove(slug)
            state = None
        sent = state is None
        if sent:
            self._create(slug, files())
        for _ in range(int(seconds / _POLL_SECONDS)):
            if state == _READY:
                return sent
            if state in _GONE:
                raise Unavailable(f"Kaggle could not take in the dataset {slug}")
            if state is not None:
                self._pause(_POLL_SECONDS)
            state = self.state(slug) or _BEGUN
        raise Unavailable(f"Kaggle is not done with the dataset {slug} yet")

    def named(self, begin: str) -> list[str]:
        """Names of our datasets that begin so, as far as Kaggle's search has them."""
        asked = {"group": "DATASET_SELECTION_GROUP_MY", "search": begin, "page": 1}
        owner = self._wire.username()
        listed = self._wire.call(_SERVICE, "ListDatasets", asked).get("datasets") or []
        refs = [str(each.get("ref") or "") for each in listed if isinstance(each, dict)]
        return [ref.partition("/")[2] for ref in refs if ref.startswith(f"{owner}/{begin}")]

    def remove(self, slug: str) -> None:
        """Delete a dataset; repeatable."""
        names = {"ownerSlug": self._wire.username(), "datasetSlug": slug}
        try:
            said = self._wire.call(_SERVICE, "DeleteDataset", names)
        except RemoteNotFound:
            return
        if said.get("error"):
            raise Unavailable(f"Kaggle does not delete the dataset {slug}: {str(said['error'])[:200]}")

    def _create(self, slug: str, files: Sequence[Path]) -> None:
        tokens = [{"token": self._upload(path)} for path in files]
        said = self._wire.call(
            _SERVICE,
            "CreateDataset",
            {
                "ownerSlug": self._wire.username(),
                "slug": slug,
                "title": slug,
                "licenseName": _LICENSE,
                "isPrivate": True,
                "files": tokens,
            },
        )
        error = str(said.get("error") or "")
        if not error or "already in use" in error.lower():
            return  # somebody of us sent the same at the same time
        if "quota" in error.lower() or "storage" in error.lower() or "too large" in error.lower():
            raise InvalidJob(f"Kaggle does not take the dataset {slug}: {error[:200]}")
        raise Unavailable(f"Kaggle does not take the dataset {slug}: {error[:200]}")

    def _upload(self, path: Path) -> str:
        facts = path.stat()
        begun = self._wire.call(
            "blobs.BlobApiService",
            "StartBlobUpload",
            {
                "type": "DATASET",
                "name": path.name,
                "contentLength": facts.st_size,
                "lastModifiedEpochSeconds": int(facts.st_mtime),
            },
        )
        token, address = begun.get("token"), begun.get("createUrl")
        if not isinstance(token, str) or not isinstance(address, str) or not address:
            raise Unavailable("Kaggle does not say where to send a file")
        self._wire.put(address, path)
        return token
