"""PREPARE: what must be fetched before a program can start is fetched beside the controller's thread.

A Trial that names an image, a profile or a Checkpoint is prepared between its placement and its launch, and
every Trial where blobs lie in a remote store; it holds its GPUs meanwhile. Progress becomes events. What was
prepared is remembered by this process only: the next one prepares again, which finds everything there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from trainshed.content.local import Cancelled, LocalContent, LocalContentError
from trainshed.control.background import Background
from trainshed.control.crashpoints import Point, reach
from trainshed.control.launching import (
    CHECKPOINT,
    PROFILE,
    Active,
    FailedStart,
    Inputs,
    content_mount,
    inputs_of,
)
from trainshed.control.progress import Progress, mended_by, name_of, named, runner_files
from trainshed.engines.contract import Engine, EngineError, Mount
from trainshed.model.content import ContentFile
from trainshed.model.runner_tree import RunnerFile
from trainshed.store import checkpoints, jobs
from trainshed.store.database import Database
from trainshed.store.records import Trial, TrialContent

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that the launch of an Attempt needs, on this machine until the Attempt is released."""

    sources: Mapping[str, Path]
    """Files of the Runner by SHA-256."""
    inputs: Inputs

    def source(self, file: RunnerFile) -> Path:
        """Where the bytes of a Runner's file are."""
        return self.sources[file.sha256]


class Preparer:
    """Prepares Attempts in an executor. Its public methods are for the controller's one thread."""

    def __init__(
        self,
        database: Database,
        engine: Engine,
        content: LocalContent,
        clock: Callable[[], float],
        background: Background,
    ) -> None:
        self._database = database
        self._engine = engine
        self._content = content
        self._clock = clock
        self._background = background
        self._outcomes: dict[str, Prepared | FailedStart] = {}
        self._unwanted: dict[str, threading.Event] = {}
        self._closing = threading.Event()

    def needed(self, trial: Trial) -> bool:
        """Whether something must be brought here before the Trial can start."""
        frozen = (trial.image_resolved, trial.profile, trial.resume_from)
        return self._content.remote or any(each is not None for each in frozen)

    def start(self, item: Active, files: Sequence[RunnerFile]) -> None:
        """Begin to prepare, unless that goes on already."""
        key = item.allocation.id
        if not self._background.offers(key):
            return
        unwanted = self._unwanted[key] = threading.Event()
        self._background.start(key, partial(self._work, item, files, unwanted))

    def outcome(self, allocation_id: str) -> Prepared | FailedStart | None:
        """What preparing came to, if it is over."""
        return self._outcomes.get(allocation_id)

    def is_busy(self, allocation_id: str) -> bool:
        """Whether it goes on now."""
        return self._background.is_busy(allocation_id)

    def cancel(self, allocation_id: str) -> None:
        """Have it end soon; whoever waits is woken then."""
        if (unwanted := self._unwanted.get(allocation_id)) is not None:
            unwanted.set()

    def forget_all_but(self, allocation_ids: Collection[str]) -> None:
        """What is remembered of Attempts that ended is of no use."""
        for key in self._unwanted.keys() - set(allocation_ids):
            if not self.is_busy(key):
                del self._unwanted[key]
                self._outcomes.pop(key, None)

    def close(self) -> None:
        """Cancel everything and wait until it has ended; the next process begins anew."""
        self._closing.set()
        self._background.close()

    # In an executor

    def _work(self, item: Active, files: Sequence[RunnerFile], unwanted: threading.Event) -> bool:
        def cancelled() -> bool:
            return unwanted.is_set() or self._closing.is_set()

        try:
            self._outcomes[item.allocation.id] = self._prepare(item, files, cancelled)
        except Cancelled:
            log.info("preparing was cancelled", trial=item.trial.id)
        except (LocalContentError, EngineError) as error:
            if not cancelled():
                failed = FailedStart(item, error.code, error.message, error.retryable)
                self._outcomes[item.allocation.id] = failed
        return True

    def _prepare(self, item: Active, files: Sequence[RunnerFile], cancelled: Callable[[], bool]) -> Prepared:
        trial, holder = item.trial, item.allocation.attempt_id
        told = Progress(self._database, trial, self._clock)
        used, checkpoint = self._read(trial)
        if trial.image_resolved is not None:
            self._engine.prepare(trial.image_resolved, told.say, cancelled)
            reach(Point.PREPARE_AFTER_IMAGE)

        def watched(what: str) -> dict[str, Any]:
            return {"on_progress": told.bringing(what), "cancelled": cancelled}

        sizes = {file.sha256: file.size for file in files}
        with runner_files(trial, files):
            sources = self._content.hold_files(sizes, holder, **watched("the Runner's files"))
        mounts = []
        for each in used:
            what = f"{each.kind}/{each.name}@{each.version}"
            with named(name_of(each), mended_by(each, trial.job_id)):
                tree = self._content.tree(each.manifest_sha256, holder, **watched(what))
            mounts.append(content_mount(each.role, tree))
        if trial.resume_from is not None:
            what = f"Checkpoint {trial.resume_from}"
            mended = "Restore it from a backup, or submit a Job that resumes from another Checkpoint."
            with named(what, mended):
                tree = self._content.tree_of(checkpoint, holder, **watched(what))
            mounts.append(Mount(tree, CHECKPOINT))
        if trial.profile is not None:
            mounts.append(Mount(self._content.own_file(PROFILE, trial.profile.encode(), holder), PROFILE))
        if cancelled():
            raise Cancelled
        told.done()
        reach(Point.PREPARE_AFTER_CONTENT)
        return Prepared(sources, inputs_of(mounts))

    def _read(self, trial: Trial) -> tuple[list[TrialContent], list[ContentFile]]:
        """What the Trial consumes, and the files of its Checkpoint."""
        with self._database.read() as connection:
            used = jobs.contents_of(connection, [trial.id]).get(trial.id, [])
            if trial.resume_from is None:
                return used, []
            files = checkpoints.files_of(connection, trial.resume_from)
        return used, [ContentFile(file.name, file.size, file.sha256) for file in files]
