"""PREPARE for gangs: the image and what is mounted are brought here before the members start (C11-C13, C38).

Runs beside the controller's thread; the gang holds its nodes meanwhile. Failed pulls are counted by their
events, so a restart of the server does not begin to count anew.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import structlog

from trainshed.content.local import Cancelled, LocalContent, LocalContentError
from trainshed.control.background import Background
from trainshed.control.crashpoints import Point, reach
from trainshed.control.launching import content_mount
from trainshed.control.progress import Progress, mended_by, name_of, named
from trainshed.control.training.frozen import spec_of
from trainshed.control.training.mounted import SUB_PATH_UNKNOWN
from trainshed.engines.contract import Engine, EngineError, Mount
from trainshed.model.states import State
from trainshed.model.training.catalog import Catalog
from trainshed.model.training.spec import MountType, TaskSpec
from trainshed.model.training.words import ReplicaState
from trainshed.store import events, gangs, jobs, moves
from trainshed.store.database import Connection, Database
from trainshed.store.gangs import Gang
from trainshed.store.records import TrialContent

PULL_FAILED = "IMAGE_PULL_FAILED"
PULLING, RETRY = "IMAGE_PULLING", "IMAGE_PULL_RETRY"
PULLS, BRINGS = "pulling", "content"
"""Stages of a task that prepares: its image is pulled; its image is here, and what it mounts is brought."""
_PULLING, _STARTING = ReplicaState.PULLING.value, ReplicaState.STARTING.value
_ACTOR = "controller"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Unprepared:
    """Why a gang cannot start; user code of none of its members did."""

    code: str
    detail: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class GangPrepared:
    """What the members mount, on this machine until the Attempt is released."""

    mounts: tuple[Mount, ...] = ()


class GangPreparer:
    """Prepares gangs in an executor. Its public methods are for the controller's one thread."""

    def __init__(
        self,
        database: Database,
        content: LocalContent,
        clock: Callable[[], float],
        background: Background,
    ) -> None:
        self._database = database
        self._content = content
        self._clock = clock
        self._background = background
        self._outcomes: dict[str, GangPrepared | Unprepared] = {}
        self._unwanted: dict[str, threading.Event] = {}
        self._closing = threading.Event()

    def start(self, gang: Gang, engine: Engine, catalog: Catalog) -> None:
        """Begin to prepare, unless that goes on already or pauses after a failure."""
        key = gang.allocation.id
        if key in self._outcomes or not self._background.offers(key):
            return
        unwanted = self._unwanted[key] = threading.Event()
        self._background.start(key, partial(self._work, gang, engine, catalog, unwanted))

    def outcome(self, allocation_id: str) -> GangPrepared | Unprepared | None:
        """What preparing came to, if it is over."""
        return self._outcomes.get(allocation_id)

    def is_busy(self, allocation_id: str) -> bool:
        return self._background.is_busy(allocation_id)

    def cancel(self, allocation_id: str) -> None:
        """Have it end soon; whoever waits is woken then."""
        if (unwanted := self._unwanted.get(allocation_id)) is not None:
            unwanted.set()

    def forget(self, allocation_id: str) -> None:
        """Prepare anew when it is asked for: an image that was prepared may have gone."""
        self._outcomes.pop(allocation_id, None)

    def forget_all_but(self, allocation_ids: Collection[str]) -> None:
        for key in self._unwanted.keys() - set(allocation_ids):
            if not self.is_busy(key):
                del self._unwanted[key]
                self._outcomes.pop(key, None)

    def close(self) -> None:
        """Cancel everything; the executor is closed by its owner."""
        self._closing.set()

    # In an executor

    def _work(self, gang: Gang, engine: Engine, catalog: Catalog, unwanted: threading.Event) -> bool:
        def cancelled() -> bool:
            return unwanted.is_set() or self._closing.is_set()

        spec, key = spec_of(gang.task), gang.allocation.id
        try:
            if gang.trial.image_resolved is not None:
                self._tell_pulling(gang)
                told = Progress(self._database, gang.trial, self._clock, PULLING, patient=True)
                engine.prepare(gang.trial.image_resolved, told.say, cancelled)
            mounts = self._mounts(gang, spec, catalog, cancelled)
            reach(Point.GANG_PREPARE_AFTER_CONTENT)
            self._outcomes[key] = GangPrepared(mounts)
        except Cancelled:
            log.info("preparing was cancelled", trial=gang.trial.id)
        except (LocalContentError, EngineError) as error:
            if cancelled():
                return True
            if error.code == PULL_FAILED and self._pull_again(gang, spec, error.message):
                return False
            self._outcomes[key] = Unprepared(error.code, error.message, error.retryable)
        except VolumeMissing as error:
            self._outcomes[key] = Unprepared("VOLUME_UNAVAILABLE", str(error), retryable=True)
        return True

    def _mounts(
        self, gang: Gang, spec: TaskSpec, catalog: Catalog, cancelled: Callable[[], bool]
    ) -> tuple[Mount, ...]:
        used = self._contents(gang.trial.id)
        if used and not cancelled():
            self._tell_bringing(gang)
        told = Progress(self._database, gang.trial, self._clock)
        found = []
        for each in spec.mounts:
            if each.type is MountType.VOLUME:
                found.append(_volume_mount(catalog, each.ref, each.mount_path, each.sub_path, each.read_only))
                continue
            content = used.get(f"mount:{each.mount_path}")
            if content is None:
                missing = f"what is mounted at {each.mount_path} is not recorded"
                raise LocalContentError("CONTENT_UNAVAILABLE", missing, retryable=False)
            what = f"{content.kind}/{content.name}@{content.version}"
            with named(name_of(content), mended_by(content, gang.trial.job_id)):
                tree = self._content.tree(
                    content.manifest_sha256,
                    gang.attempt_id,
                    on_progress=told.bringing(what),
                    cancelled=cancelled,
                )
                source = _within(tree, each.sub_path)
            found.append(content_mount(content.role, source))
        if cancelled():
            raise Cancelled
        told.done()
        return tuple(found)

    def _contents(self, trial_id: str) -> dict[str, TrialContent]:
        with self._database.read() as connection:
            used = jobs.contents_of(connection, [trial_id]).get(trial_id, [])
        return {content.role: content for content in used}

    def _pull_again(self, gang: Gang, spec: TaskSpec, error: str) -> bool:
        """Count a failed pull; whether the task allows another try (C38)."""
        now, allowed = self._clock(), spec.image_pull_retries

        def store(connection: Connection) -> bool:
            moves.lock_jobs(connection, [gang.trial.job_id])
            before = gangs.count_events(connection, gang.trial.id, RETRY, since=gang.allocation.held_at)
            if 0 <= allowed <= before:
                return False
            bound = "" if allowed < 0 else f" of {allowed}"
            message = f"Pull retry {before + 1}{bound} of {gang.trial.image_requested}: {error}"
            events.record(connection, [self._event(gang, RETRY, message, now, "warning")])
            return True

        return self._database.write(store)

    def _tell_pulling(self, gang: Gang) -> None:
        now = self._clock()

        def store(connection: Connection) -> None:
            moves.lock_jobs(connection, [gang.trial.job_id])
            if gangs.count_events(connection, gang.trial.id, PULLING, since=gang.allocation.held_at) == 0:
                message = f"Bringing the image {gang.trial.image_requested} to the nodes."
                events.record(connection, [self._event(gang, PULLING, message, now)])
            _note_stage(connection, gang, PULLS)

        self._database.write(store)

    def _tell_bringing(self, gang: Gang) -> None:
        def store(connection: Connection) -> None:
            moves.lock_jobs(connection, [gang.trial.job_id])
            _note_stage(connection, gang, BRINGS)
            gangs.change_replicas(connection, gang.attempt_id, before=_PULLING, after=_STARTING)

        self._database.write(store)

    @staticmethod
    def _event(gang: Gang, code: str, message: str, at: float, level: str = "info") -> events.NewEvent:
        return events.NewEvent(gang.trial.job_id, gang.trial.id, at, _ACTOR, code, message, level=level)


def _note_stage(connection: Connection, gang: Gang, stage: str) -> None:
    """Let the state shown say what goes on (c1); a gang that runs, and grows, shows none of it."""
    if gang.trial.state is State.PREPARING:
        gangs.change_task(connection, gang.trial.id, {"stage": stage})


def _within(tree: Path, sub_path: str | None) -> Path:
    """A part of a content. Raises `LocalContentError`: a tree never changes, so no other try finds it.

    The door refuses such tasks (`sub_path_faults`); one that was accepted before it did comes here.
    """
    source = tree / sub_path if sub_path else tree
    if not os.path.lexists(source):
        raise LocalContentError(SUB_PATH_UNKNOWN, f"it has no file or folder `{sub_path}`", retryable=False)
    return source


class VolumeMissing(Exception):
    """A volume is not where the catalogue says."""


def volume_path(catalog: Catalog, ref: str) -> Path:
    """Where a volume is on this machine. Raises `VolumeMissing`."""
    volume = catalog.volume(ref)
    if volume is None:
        raise VolumeMissing(f"the catalogue no longer has the volume {ref}")
    return Path(os.path.realpath(volume.path))


def _volume_mount(catalog: Catalog, ref: str, target: str, sub_path: str | None, read_only: bool) -> Mount:  # noqa: FBT001 - a field of the mount
    root = volume_path(catalog, ref)
    if not root.is_dir():
        raise VolumeMissing(f"the volume {ref} is not at {root} on this machine")
    within = PurePosixPath(sub_path).as_posix() if sub_path else ""
    if within:
        _look_within(root, ref, within, read_only=read_only)
    return Mount(root, f"mounts{target}", target=target, writable=not read_only, within=within)


def _look_within(root: Path, ref: str, within: str, *, read_only: bool) -> None:
    """Say early what is wrong with a part of a volume. Raises `VolumeMissing`.

    Programs write to volumes, so nothing that is seen here lasts: who mounts it follows no link (`Mount`).
    """
    place = root / within
    try:
        real = Path(os.path.realpath(place))
    except OSError as error:  # a program exchanges it at this moment
        raise VolumeMissing(f"{within} in the volume {ref} cannot be found: {error.strerror}") from error
    if not real.is_relative_to(root):
        raise VolumeMissing(f"{within} in the volume {ref} leads out of it")
    if real != place:
        raise VolumeMissing(f"{within} in the volume {ref} leads through a link; name what it leads to")
    if not place.is_dir() and (read_only or os.path.lexists(place)):
        raise VolumeMissing(f"{within} in the volume {ref} is no folder on this machine")
