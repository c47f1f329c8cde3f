"""Private datasets of Kaggle: how anything larger than a program's text gets into a session.

A dataset is found again by its name, so nothing is sent twice and a lost answer does no harm. Kaggle unpacks
what it takes for an archive; ours have an ending that it does not know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path

from trainshed.engines.providers.contract import InvalidJob, RemoteNotFound, Unavailable
from trainshed.engines.providers.kaggle.values import moment, word
from trainshed.engines.providers.kaggle.wire import Wire

_SERVICE = "datasets.DatasetApiService"
_READY, _BEGUN = "READY", "NOT_YET_PERSISTED"
_GONE = frozenset({"FAILED", "DELETED"})
POLL_SECONDS = 3.0
_LICENSE = "unknown"
_MOST_PAGES, _MOST_EVICTED = 50, 20


class Datasets:
    """Thread-safe. ``pause`` waits so many seconds, ``poll_seconds`` for one that is not ready."""

    def __init__(
        self,
        wire: Wire,
        pause: Callable[[float], None] = time.sleep,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._wire = wire
        self._pause = pause
        self._poll_seconds = poll_seconds

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
        for _ in range(int(seconds / self._poll_seconds)):
            if state == _READY:
                return sent
            if state in _GONE:
                raise Unavailable(f"Kaggle could not take in the dataset {slug}")
            if state is not None:
                self._pause(self._wire.deadline.left(self._poll_seconds))
            state = self.state(slug) or _BEGUN
        raise Unavailable(f"Kaggle is not done with the dataset {slug} yet")

    def named(self, begin: str) -> list[str]:
        """Names of our datasets that begin so, as far as Kaggle's search has them."""
        return [slug for slug, _ in self._listed(begin)]

    def evict(self, begin: str, before: float, kept: Container[str]) -> int:
        """Delete those that begin so and that nobody used since ``before``; how many.

        One is used by being made, and by the run of a kernel of ours that it is attached to.
        """
        old = [slug for slug, made in self._listed(begin) if made is not None and made < before]
        gone = [slug for slug in old if slug not in kept and not self._ran_with(slug, before)][:_MOST_EVICTED]
        for slug in gone:
            self.remove(slug)
        return len(gone)

    def _listed(self, begin: str) -> Iterator[tuple[str, float | None]]:
        """Name, and when it was made."""
        owner = self._wire.username()
        for page in range(1, _MOST_PAGES + 1):
            asked = {"group": "DATASET_SELECTION_GROUP_MY", "search": begin, "page": page}
            listed = self._wire.call(_SERVICE, "ListDatasets", asked).get("datasets") or []
            for each in listed:
                ref = str(each.get("ref") or "") if isinstance(each, dict) else ""
                if ref.startswith(f"{owner}/{begin}"):
                    yield ref.partition("/")[2], moment(each.get("lastUpdated"))
            if not listed:
                return

    def _ran_with(self, slug: str, since: float) -> bool:
        """Whether a kernel with this dataset ran since then; one of which that is not said, did."""
        asked = {"group": "PROFILE", "dataset": f"{self._wire.username()}/{slug}", "sortBy": "DATE_RUN"}
        listed = self._wire.call("kernels.KernelsApiService", "ListKernels", asked).get("kernels") or []
        ran = [moment(each.get("lastRunTime")) for each in listed if isinstance(each, dict)]
        return any(at is None or at >= since for at in ran)

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
