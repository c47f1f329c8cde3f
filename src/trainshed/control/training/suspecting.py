"""What engines call broken, while gangs still run on it (C34): said at once, closed, and not forgotten."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from trainshed.control.training.frozen import spec_of
from trainshed.control.training.holding import parts_of
from trainshed.control.training.sites import Site, Sites
from trainshed.engines.contract import EngineError
from trainshed.model.states import State
from trainshed.policy.gangs.retry import Evidence
from trainshed.store import events, gangs, moves
from trainshed.store.database import Connection, Database
from trainshed.store.events import NewEvent
from trainshed.store.gangs import Gang

ACTOR = "controller"
LOOK_SECONDS = 10.0
"""How often engines are asked what broke."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Fault:
    """A node, or one GPU of it, that the engine calls broken (C34)."""

    node: str
    gpu: int | None
    sentence: str

    @property
    def evidence(self) -> Evidence:
        return Evidence(self.node, "node_lost" if self.gpu is None else "device_lost", None, self.sentence)

    @property
    def place(self) -> str:
        return self.node if self.gpu is None else f"GPU {self.gpu} of {self.node}"


def faults_of(said: Mapping[str, str]) -> list[Fault]:
    """What `Engine.faults` says, in types."""
    found = []
    for place, sentence in said.items():
        node, _, index = place.partition("/gpu:")
        found.append(Fault(node, int(index) if index.isdigit() else None, sentence))
    return found


def faults_under(gang: Gang, faults: Iterable[Fault]) -> list[Fault]:
    """Those that hit what the gang holds."""
    held: dict[str, set[int]] = {}
    for part in parts_of(gang.allocation):
        held.setdefault(part.node, set()).update(part.gpus)
    return [
        each for each in faults if each.node in held and (each.gpu is None or each.gpu in held[each.node])
    ]


def is_alone(site: Site | None) -> bool:
    """Whether a node has no other beside it that could take its place (c9)."""
    return site is None or len(site.nodes) <= 1


def note_faults(
    connection: Connection, gang: Gang, faults: Sequence[Fault], now: float, *, single_machine: bool
) -> list[NewEvent]:
    """Close what broke under a gang; the events of it, each once in an Attempt. An only node stays open (c9).

    Neither the next try of the task nor anybody else gets what is known to be broken.
    """
    told = []
    for fault in faults:
        said = f"{fault.place} is broken: {fault.sentence}"
        since = gang.allocation.held_at
        if not events.was_told(connection, gang.trial.id, "NODE_SUSPECTED", said, since=since):
            told.append(event_of(gang, now, "NODE_SUSPECTED", said, "warning"))
        if fault.gpu is None and single_machine:
            continue
        told += close(connection, gang, fault.node, fault.gpu, fault.sentence, now)
    return told


def close(
    connection: Connection, gang: Gang, node: str, gpu: int | None, reason: str, now: float
) -> list[NewEvent]:
    """Cordon a node, or one GPU of it, for what happened to a gang; nothing if it is closed already."""
    closed = gangs.cordon(
        connection,
        cluster=gang.task.cluster,
        node=node,
        gpu=gpu,
        reason=reason,
        trial_id=gang.trial.id,
        at=now,
        by=ACTOR,
    )
    if not closed:
        return []
    what = Fault(node, gpu, reason).place
    return [event_of(gang, now, "CORDONED", f"{what} takes nothing new until a person clears it.", "warning")]


def event_of(gang: Gang, at: float, code: str, message: str, level: str = "info") -> NewEvent:
    return NewEvent(gang.trial.job_id, gang.trial.id, at, ACTOR, code, message, level=level)


class Suspicions:
    """What broke under gangs that hold it. For the controller's one thread."""

    def __init__(self, database: Database, sites: Sites, clock: Callable[[], float]) -> None:
        self._database = database
        self._sites = sites
        self._clock = clock
        self._looked_at = float("-inf")
        self._seen: dict[str, dict[Fault, float]] = {}
        """By site: since when the engine says so."""
        self._under: dict[str, list[Fault]] = {}
        """By Attempt; an engine may say less once the node is gone."""
        self._avoidable: dict[str, float] = {}
        """By Attempt: since when something is broken that another try would not get."""

    def look(self, active: Collection[Gang]) -> None:
        """Ask the engines that have gangs, every `LOOK_SECONDS`; store what is new."""
        now = self._clock()
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        live = {gang.attempt_id for gang in active}
        self._under = {key: found for key, found in self._under.items() if key in live}
        self._avoidable = {key: since for key, since in self._avoidable.items() if key in live}
        news: list[tuple[Gang, list[Fault], bool]] = []
        for site in self._sites.all:
            here = [gang for gang in active if gang.allocation.engine == site.key]
            if not here:
                continue
            faults = self._ask(site)
            for gang in here:
                found = self._standing(gang, site, faults_under(gang, faults))
                known, single = self._under.get(gang.attempt_id, []), is_alone(site)
                fresh = [each for each in found if each not in known]
                if any(each.gpu is not None or not single for each in fresh):
                    self._avoidable.setdefault(gang.attempt_id, now)
                if fresh:
                    self._under[gang.attempt_id] = known + fresh
                    news.append((gang, fresh, single))
        if news:
            self._store(news, now)

    def under(self, gang: Gang) -> list[Fault]:
        """What broke of what a gang holds, asked anew and remembered."""
        site = self._sites.of(gang.allocation.engine)
        known = self._under.get(gang.attempt_id, [])
        if site is None:
            return list(known)
        found = self._standing(gang, site, faults_under(gang, self._ask(site)))
        return [*known, *(each for each in found if each not in known)]

    def replace_since(self, gang: Gang) -> float | None:
        """Since when a gang has to end because its next try shall get other nodes; ``None``: it need not."""
        fault = spec_of(gang.task).fault_tolerance
        going_on = gang.trial.state in {State.PREPARING, State.RUNNING} and gang.allocation.evicted_at is None
        wanted = going_on and fault.enabled and fault.replace_node
        return self._avoidable.get(gang.attempt_id) if wanted else None

    def _ask(self, site: Site) -> list[Fault]:
        before = self._seen.get(site.key, {})
        try:
            said = faults_of(site.engine.faults())
        except EngineError as error:
            log.warning("an engine does not say what broke", engine=site.key, reason=error.message)
            return list(before)
        self._seen[site.key] = {each: before.get(each, self._clock()) for each in said}
        return said

    def _standing(self, gang: Gang, site: Site, faults: Sequence[Fault]) -> list[Fault]:
        """Those that no person cleared since the engine began to say so: it may go on saying so for ever."""
        if not faults:
            return []
        seen = self._seen[site.key]
        with self._database.read() as connection:
            return [
                each
                for each in faults
                if not gangs.was_cleared(
                    connection,
                    cluster=gang.task.cluster,
                    node=each.node,
                    gpu=each.gpu,
                    since=seen.get(each, self._clock()),
                )
            ]

    def _store(self, news: Sequence[tuple[Gang, list[Fault], bool]], now: float) -> None:
        def store(connection: Connection) -> None:
            moves.lock_jobs(connection, {gang.trial.job_id for gang, _, _ in news})
            for gang, faults, single in news:
                events.record(connection, note_faults(connection, gang, faults, now, single_machine=single))

        self._database.write(store)
