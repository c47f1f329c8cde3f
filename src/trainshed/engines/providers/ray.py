"""The provider ``ray``: a Ray cluster of the catalogue, through its engine.

Nodes are given out by the pass over training tasks, so this provider opens nothing itself: it is told which
engine there is, and what an Attempt was given. Files and data are brought to the node by the engine; what a
run wrote is copied from there, also while it runs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from trainshed.engines.contract import Engine, EngineError
from trainshed.engines.providers.contract import (
    Capabilities,
    Fetched,
    GpuOffer,
    Health,
    RemoteNotFound,
    Run,
    Unavailable,
)
from trainshed.engines.providers.engine_runs import ASKED, EngineRuns, Room, offers_of_nodes
from trainshed.model.resources import Node
from trainshed.model.scripts.spec import RAY

CAPABILITIES = Capabilities(
    lookup_by_key=False,
    named_by_attempt=True,
    interactive=True,
    max_concurrency=None,
    poll_interval_s=2.0,
    fetch_interval_s=10.0,
    provision_s=4500.0,  # the engine itself gives up before that, with its own reason
    cluster="",
)
_OUTPUTS, _STORE, _CHECKPOINTS = "outputs", "checkpoint_store", "checkpoints"
_ALL = (_OUTPUTS, _STORE)
_COPY, _BROUGHT = ".copy", ".brought"


@runtime_checkable
class Remote(Protocol):
    """What an engine of other machines has beside the contract."""

    def pull(self, attempt_id: str, names: Sequence[str], into: Path) -> Iterable[str]:
        """Copy what lies below these folders of the work folder now; the names of what was skipped."""
        ...

    def ask(self, attempt_id: str, path: str) -> bool:
        """Make an empty file in the work folder; whether that could be done."""
        ...


class RayProvider(EngineRuns):
    """Runs packed projects on a cluster.

    ``engine`` answers the cluster's engine, or ``None`` where it is not connected; ``room`` what an Attempt
    was given; ``nodes`` the nodes of its pools; ``engine_of`` the engine that an Attempt was given to, which
    may be another one where the catalogue has changed.
    """

    name = RAY
    place = "the Ray cluster"
    carries = True

    def __init__(
        self,
        cluster: str | None,
        engine: Callable[[], Engine | None],
        room: Callable[[str], Room],
        nodes: Callable[[], Iterable[Node]],
        engine_of: Callable[[str], Engine | None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._engine = engine
        self._room = room
        self._nodes = nodes
        self._engine_of = engine_of

    def engine(self) -> Engine:
        found = self._engine()
        if found is None:
            raise Unavailable(f"{self._named()} is not connected")
        return found

    def engine_of(self, run: Run) -> Engine:
        if self._engine_of is None:
            return self.engine()
        found = self._engine_of(run.ref)
        if found is None:
            raise Unavailable("the Ray cluster that it was given to is not connected")
        return found

    def _named(self) -> str:
        return f"the Ray cluster {self._cluster}" if self._cluster else "the catalogue's Ray cluster"

    def room(self, attempt_id: str) -> Room:
        return self._room(attempt_id)

    def capabilities(self) -> Capabilities:
        return replace(CAPABILITIES, cluster=self._cluster or "")

    def offers(self) -> Iterable[GpuOffer]:
        return offers_of_nodes(self._nodes())

    def healthcheck(self) -> Health:
        found = self._engine()
        if found is None:
            return Health(
                ok=False,
                code="provider_unavailable",
                message=f"{self._named()} is not connected.",
                hint="Declare it in the catalogue (`trainshed catalog apply`) and see that it runs.",
            )
        try:
            found.nodes()
        except EngineError as error:
            said = f"{self._named()} does not answer: {error.message}."
            return Health(ok=False, code="provider_unavailable", message=said)
        return Health(ok=True)

    def fetch(self, run: Run, into: Path) -> Fetched:
        """Copy what it wrote until now; what did not change since the last copy is not sent again."""
        return self._pull(run, into, _ALL)

    def fetch_checkpoints(self, run: Run, into: Path) -> Fetched:
        """`fetch` without the outputs, which may grow as long as it runs."""
        return self._pull(run, into, [_STORE])

    def _pull(self, run: Run, into: Path, names: Sequence[str]) -> Fetched:
        """By way of a copy of its own, which tells what is new; links cost nothing."""
        engine, copy = self._remote(run), into / _COPY
        try:
            copy.mkdir(mode=0o700, exist_ok=True)
            # What was brought is known also after a crash: nothing else in the folder is ever touched.
            brought = _recorded(copy) | set(_copied(copy, _ALL))
            _record(copy, brought)
            skipped = tuple(engine.pull(run.ref, names, copy))
            there = _copied(copy, names)
            tops = {_place(Path(name)).parts[0] for name in names}
            others = {place for place in brought if place.parts[0] not in tops}
            for gone in brought - others - there.keys():
                _let_go(into, gone)
            for place, file in there.items():
                _link(file, into / place)
            _record(copy, others | there.keys())
        except EngineError as error:
            if error.retryable:
                raise Unavailable(f"what it wrote cannot be copied now: {error.message}") from error
            raise RemoteNotFound(f"what it wrote is gone: {error.message}") from error
        except OSError as error:
            raise Unavailable(f"what it wrote cannot be copied: {error.strerror}") from error
        return Fetched(len(there), sum(file.stat().st_size for file in there.values()), skipped)

    def request_checkpoint(self, run: Run) -> bool:
        try:
            return self._remote(run).ask(run.ref, ASKED)
        except EngineError:
            return False

    def _remote(self, run: Run) -> Remote:
        found = self.engine_of(run)
        if not isinstance(found, Remote):
            raise Unavailable(f"the engine of {self._named()} cannot copy files")
        return found


def _copied(copy: Path, names: Iterable[str]) -> dict[Path, Path]:
    """The files of a copy, by the place where each is brought."""
    files = (each for name in names for each in (copy / name).rglob("*") if each.is_file())
    return {_place(file.relative_to(copy)): file for file in files}


def _recorded(copy: Path) -> set[Path]:
    try:
        said = (copy / _BROUGHT).read_bytes()
    except FileNotFoundError:
        return set()
    return {Path(os.fsdecode(each)) for each in said.split(b"\0") if each}


def _record(copy: Path, brought: Collection[Path]) -> None:
    part = copy / f"{_BROUGHT}.part"
    part.write_bytes(b"\0".join(sorted(map(os.fsencode, brought))))
    part.replace(copy / _BROUGHT)


def _let_go(into: Path, place: Path) -> None:
    """Remove what was brought, and folders that hold nothing any more."""
    (into / place).unlink(missing_ok=True)
    _part_of(into / place).unlink(missing_ok=True)
    with suppress(OSError):  # the first that holds something, or is gone, is the last
        for folder in list(place.parents)[:-2]:
            (into / folder).rmdir()


def _place(path: Path) -> Path:
    """Where a file of the work folder is brought."""
    return Path(_CHECKPOINTS, *path.parts[1:]) if path.parts[0] == _STORE else path


def _link(file: Path, place: Path) -> None:
    with suppress(FileNotFoundError):
        if place.samefile(file):
            return
    place.parent.mkdir(parents=True, exist_ok=True)
    part = _part_of(place)
    part.unlink(missing_ok=True)
    part.hardlink_to(file)
    part.replace(place)


def _part_of(place: Path) -> Path:
    # A name may be as long as names can be.
    return place.with_name(f".{hashlib.sha256(os.fsencode(place.name)).hexdigest()[:32]}.part")
