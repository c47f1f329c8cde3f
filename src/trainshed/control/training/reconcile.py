"""LAUNCH, OBSERVE and END for gangs: compares the rows with what the engines say, and makes the next move.

Level-triggered like `trainshed.control.reconcile`: a step looks at things as they are, so a crash between any
two of its lines is repaired by the next step of the next process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

import structlog

from trainshed.content.local import LocalContent
from trainshed.content.logs import LogReader
from trainshed.control import metrics
from trainshed.control.background import Workers
from trainshed.control.crashpoints import Point, reach
from trainshed.control.training import ray_roles
from trainshed.control.training.ending import GangEnded, started_move, store_ends
from trainshed.control.training.frozen import spec_of
from trainshed.control.training.holding import OVERDUE_SECONDS, notice_seconds, parts_of
from trainshed.control.training.judging import Failure, judge, past_of, telling_line
from trainshed.control.training.keys import AttemptFolders
from trainshed.control.training.looking import Look, store_looks
from trainshed.control.training.observing import View
from trainshed.control.training.placing import GangPlacer
from trainshed.control.training.preparing import GangPreparer
from trainshed.control.training.releasing import GangReleased, GangReleaser
from trainshed.control.training.scaling import Departure, Departures, gone_from, view_of
from trainshed.control.training.sites import Site, Sites
from trainshed.control.training.starting import GangStarter, OpenSecrets
from trainshed.control.training.suspecting import Suspicions, is_alone
from trainshed.control.training.urging import Urger, Wish, wish_of
from trainshed.engines.contract import EngineError, Phase
from trainshed.jobkit.frames import STDERR
from trainshed.model.states import State
from trainshed.model.training.spec import Kind
from trainshed.policy.effective import ServerPolicy
from trainshed.store import gangs, jobs, moves, queue
from trainshed.store.database import Connection, Database
from trainshed.store.gangs import Gang, unit_id
from trainshed.store.moves import Move
from trainshed.store.records import Replica

ACTOR = "controller"
TAIL_LINES, _TAIL_BYTES = 50, 16_384
"""What a failed task shows of its log (c1)."""
_RELAUNCH_SECONDS = 5.0

log = structlog.get_logger(__name__)


class GangReconciler:
    """The gangs of all engines. `step` is called by one thread; preparing and releasing run in executors."""

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        database: Database,
        sites: Sites,
        placer: GangPlacer,
        content: LocalContent,
        folders: AttemptFolders,
        policy: ServerPolicy,
        clock: Callable[[], float],
        workers: Workers,
        *,
        open_secrets: OpenSecrets,
    ) -> None:
        self._database = database
        self._sites = sites
        self._placer = placer
        self._policy = policy
        self._clock = clock
        self._workers = workers
        self._preparer = GangPreparer(database, content, clock, workers.preparing)
        self._releaser = GangReleaser(database, content, folders, clock)
        self._suspicions = Suspicions(database, sites, clock)
        self._urger = Urger(clock, policy.stop_grace_seconds, workers.releasing)
        self._starter = GangStarter(
            database,
            sites,
            placer,
            self._preparer,
            folders,
            clock,
            policy.stop_grace_seconds,
            open_secrets,
        )
        self._departures = Departures(database, clock)
        self._released: dict[str, GangReleased] = {}
        self._departed: dict[str, Departure] = {}
        self._again = False

    def step(self, changed: set[str], *, everything: bool) -> bool:
        """One look at the world; whether another step should follow at once.

        ``changed`` are members that may have news; ``everything`` looks at all gangs.
        """
        self._again = False
        if self._released:
            self._releaser.store([self._released.pop(key) for key in list(self._released)])
            self._again = True
        if self._departed:
            self._departures.store([self._departed.pop(key) for key in list(self._departed)])
            self._again = True
        if not everything and not self._again:
            with self._database.read() as connection:
                if self._placer.is_quiet(connection):
                    return False
        with self._database.snapshot() as connection:
            held = gangs.held(connection)
            others = [a for a in queue.unreleased(connection) if a.parts is None]
            adrift = gangs.adrift(connection) if everything or held else []
            self._placer.sync(connection, held, others, everything=everything)
        active = [gang for gang in held if gang.held]
        if everything:
            self._forget_all_but(active)
            self._suspicions.look(active)
        self._settle_adrift(adrift, held)
        if waiting := [gang for gang in active if self._waits_for_launch(gang)]:
            self._launch(waiting)
        self._look(active, changed, everything=everything)
        self._release([gang for gang in held if not gang.held])
        placed, again = self._placer.run()
        if placed:
            self._launch(placed)
        return again or self._again or bool(self._released or self._departed)

    def close(self) -> None:
        """Finish nothing more; what is under way is repeated by the next process."""
        self._preparer.close()

    def _forget_all_but(self, active: Sequence[Gang]) -> None:
        """What is remembered of Attempts only saves work; of ended ones it saves none."""
        live = {gang.attempt_id for gang in active}
        self._starter.forget_all_but(live)
        self._urger.forget_all_but(live)
        self._preparer.forget_all_but({gang.allocation.id for gang in active})

    # Tasks that hold nothing, or only what is being released

    def _settle_adrift(self, adrift: Sequence[gangs.Adrift], held: Sequence[Gang]) -> None:
        """A stop that came while a task was between two Attempts; a task that waits for nothing any more."""
        now, waiting = self._clock(), {gang.trial.id for gang in held}
        leaked = {gang.trial.id for gang in held if self._placer.may_go_on(gang)}
        planned = []
        for each in adrift:
            trial = each.trial
            if trial.state is State.STOPPING:
                words = "Stopped on request between two Attempts: nothing of it runs."
                planned.append(Move(trial, trial.state, State.CANCELLED, "CANCELLED", words))
            elif trial.state is State.MIGRATING and (trial.id not in waiting or trial.id in leaked):
                planned.append(Move(trial, trial.state, State.QUEUED, "QUEUED", "Queued again."))
        if planned:
            self._database.write(lambda c: moves.apply(c, planned, at=now, actor=ACTOR))
            self._again = True

    # Launching

    def _waits_for_launch(self, gang: Gang) -> bool:
        return (
            gang.trial.state is State.PREPARING
            and gang.allocation.evicted_at is None
            and self._starter.launched_at(gang) is None
        )

    def _launch(self, group: Sequence[Gang]) -> None:
        if failed := self._starter.launch(group):
            self._end_unstarted(failed)

    def _end_unstarted(self, failed: Sequence[tuple[Gang, Failure]]) -> None:
        """Starts that failed: nobody may start any more, then the Attempt is closed."""
        ended = []
        for gang, failure in failed:
            site = self._sites.of(gang.allocation.engine)
            if site is not None and self._starter.launched_at(gang) is not None:
                try:
                    for part in parts_of(gang.allocation):
                        site.engine.stop(unit_id(gang.attempt_id, part.rank), grace_seconds=0.0)
                except (EngineError, OSError) as error:
                    log.warning("a failed start could not be stopped", gang=gang.attempt_id, error=str(error))
            ended.append(self._judged(gang, None, failure))
        self._store_ends(ended)

    # Looking

    def _look(self, active: Iterable[Gang], changed: set[str], *, everything: bool) -> None:
        wanted = [gang for gang in active if everything or self._has_news(gang, changed)]
        views: list[tuple[Gang, Site, View]] = []
        for site in self._sites.all:
            here = [gang for gang in wanted if gang.allocation.engine == site.key]
            if not here:
                continue
            units = [unit_id(g.attempt_id, part.rank) for g in here for part in parts_of(g.allocation)]
            try:
                seen = site.engine.observe(units)
            except EngineError as error:
                # Unknown is never failed (c8): the rows stay as they are until it answers.
                log.warning("an engine does not say how its gangs are", engine=site.key, error=error.message)
                continue
            views += [(gang, site, view_of(gang, seen)) for gang in here]
        if not views:
            return
        with self._database.read() as connection:
            replicas = gangs.replicas_of(connection, [gang.attempt_id for gang, _, _ in views])
        looks, ended = [], []
        for gang, site, view in views:
            look = self._consider(gang, site, view, replicas[gang.attempt_id])
            if look is None:
                continue
            looks.append(look)
            if self._is_over(gang, view):
                ended.append(gang)
        self._store([look for look in looks if look])
        over = {gang.allocation.id for gang in ended}
        going_on = [item for item in views if item[0].allocation.id not in over]
        self._scale(going_on)
        self._urge(going_on)
        self._store_ends([self._judged(gang, view) for gang, _, view in views if gang.allocation.id in over])

    def _scale(self, views: Sequence[tuple[Gang, Site, View]]) -> None:
        """Launch workers that gangs were given while they run, and release those that left them (C51)."""
        for gang, site, view in views:
            if not view.optional or gang.trial.state is not State.RUNNING:
                continue
            absent = [rank for rank in view.alive if view.of(rank).phase is Phase.ABSENT]
            if absent and not view.culprits and gang.allocation.evicted_at is None:
                self._starter.join(gang, site, absent)
            for rank in gone_from(gang, view, self._clock()):
                unit = unit_id(gang.attempt_id, rank)
                if unit not in self._departed:
                    self._workers.releasing.start(unit, partial(self._let_go, gang, site, rank, view))

    def _let_go(self, gang: Gang, site: Site, rank: int, view: View) -> bool:
        departure = self._departures.release(gang, rank, view, site.engine)
        self._departed[unit_id(gang.attempt_id, rank)] = departure
        return departure.release.confirmed

    def _has_news(self, gang: Gang, changed: set[str]) -> bool:
        if gang.allocation.id in self._placer.grown:
            self._placer.grown.discard(gang.allocation.id)
            return True
        leaving = gang.trial.state is State.STOPPING or gang.allocation.evicted_at is not None
        if leaving and not self._urger.was_told(gang):
            return True
        return any(unit.rpartition(".")[0] == gang.attempt_id for unit in changed)

    def _is_over(self, gang: Gang, view: View) -> bool:
        if view.over:
            return True
        leaving = gang.trial.state is State.STOPPING or gang.allocation.evicted_at is not None
        # Never launched, and never will be.
        return leaving and view.unknown and self._starter.launched_at(gang) is None

    def _consider(self, gang: Gang, site: Site, view: View, replicas: Sequence[Replica]) -> Look | None:
        """What is new of a gang; ``None`` while somebody prepares it."""
        leaving = gang.trial.state is State.STOPPING or gang.allocation.evicted_at is not None
        if self._preparer.is_busy(gang.allocation.id):
            if gang.trial.state is State.PREPARING and gang.allocation.evicted_at is None:
                return None
            if leaving or not view.optional:
                self._preparer.cancel(gang.allocation.id)
                return None
        look = Look(gang, view, replicas)
        if view.absent and gang.trial.state is State.PREPARING and not leaving:
            since = self._starter.launched_at(gang)
            if since is not None and self._clock() - since > _RELAUNCH_SECONDS:
                self._starter.launch_again(gang)
                self._again = True
        if not view.unknown:
            look.note_members(site.engine, leaving=leaving)
        if gang.trial.state is State.PREPARING and not view.over:
            if view.has_started:
                look.moves.append(started_move(gang, view, self._clock()))
                look.task["stage"] = None
            elif not view.unknown and (stage := view.stage()) != gang.task.stage:
                look.task["stage"] = stage
        return look

    def _store(self, looks: Sequence[Look]) -> None:
        if not looks:
            return
        now = self._clock()
        made = self._database.write(lambda connection: store_looks(connection, looks, now))
        reach(Point.GANG_LOOK_AFTER_COMMIT)
        metrics.gang_starts.inc(sum(move.after is State.RUNNING for move in made))
        self._again |= bool(made)

    # Leaving

    def _urge(self, views: Sequence[tuple[Gang, Site, View]]) -> None:
        wishes: list[tuple[Gang, Site, View, Wish]] = []
        for gang, site, view in views:
            if self._overdue(gang, view):
                self._urger.kill(gang, view, site.engine)
            wish = wish_of(gang, view, self._clock(), self._suspicions.replace_since(gang))
            if wish is not None:
                wishes.append((gang, site, view, wish))
        self._store_notices([(g, view, w) for g, _, view, w in wishes if w.notice])
        for gang, site, view, wish in wishes:
            self._urger.urge(gang, view, site.engine, wish)

    def _store_notices(self, wishes: Sequence[tuple[Gang, View, Wish]]) -> None:
        """Until when programs may save, before they are told; a preempted task is seen to save (C36)."""
        now = self._clock()
        fresh = [
            (gang, wish)
            for gang, _, wish in wishes
            if gang.allocation.notice_until is None
            or (gang.trial.state is State.RUNNING and wish.reason == "preemption")
        ]
        if not fresh:
            return

        def store(connection: Connection) -> None:
            moves.lock_jobs(connection, {gang.trial.job_id for gang, _ in fresh})
            planned = []
            for gang, wish in fresh:
                gangs.change_allocation(connection, gang.allocation.id, {"notice_until": wish.until})
                if gang.trial.state is State.RUNNING and wish.reason == "preemption":
                    allowed = notice_seconds(spec_of(gang.task))
                    words = f"Told to save within {allowed:g} s, because it has to go."
                    planned.append(
                        Move(gang.trial, State.RUNNING, State.CHECKPOINTING, "CHECKPOINTING", words)
                    )
            moves.apply(connection, planned, at=now, actor=ACTOR)
            reach(Point.GANG_NOTICE_BEFORE_COMMIT)

        self._database.write(store)
        reach(Point.GANG_NOTICE_AFTER_COMMIT)

    def _overdue(self, gang: Gang, view: View) -> bool:
        """Whether the engine should have ended the program long ago, by its time limit."""
        if view.started_at is None:
            return False
        limit = gang.allocation.timeout_seconds + self._policy.stop_grace_seconds + OVERDUE_SECONDS
        extra = spec_of(gang.task).debug.retention_seconds if view.kind is Kind.RAY else 0
        return self._clock() > view.started_at + limit + extra

    # Ending

    def _judged(self, gang: Gang, view: View | None, failure: Failure | None = None) -> GangEnded:
        site = self._sites.of(gang.allocation.engine)
        faults = self._suspicions.under(gang)
        tail = last = ""
        if site is not None:
            if view is not None and view.kind is Kind.RAY:
                view = replace(view, driver_code=self._driver_code(site, gang))
            failed = None if view is None else view.failed
            if failed is not None and gang.trial.state is not State.STOPPING:
                tail, last = self._tail(site, unit_id(gang.attempt_id, failed))
        with self._database.read() as connection:
            past = jobs.attempts_of(connection, [gang.trial.id])[gang.trial.id]
            codes = gangs.exit_codes(connection, [each.id for each in past])
        single = is_alone(site)
        judgement = judge(
            gang,
            view,
            ledger=past_of(past, codes),
            evidence=[fault.evidence for fault in faults],
            failure=failure,
            last_line=last,
            single_machine=single,
            now=self._clock(),
        )
        return GangEnded(gang, view, judgement, faults, tail, single)

    @staticmethod
    def _driver_code(site: Site, gang: Gang) -> int | None:
        """What a Ray driver ended with, where its head said so (C50)."""
        try:
            said = site.engine.reports(unit_id(gang.attempt_id, 0), 0)
        except EngineError as error:
            log.warning("reports cannot be read", gang=gang.attempt_id, error=error.message)
            return None
        codes = [report.data.get("exit_code") for report in said if report.code == ray_roles.DRIVER_ENDED]
        return next((code for code in codes if isinstance(code, int)), None)

    @staticmethod
    def _tail(site: Site, unit: str) -> tuple[str, str]:
        """The last lines of a member's log, and the one that says most; empty where it cannot be read."""
        try:
            with LogReader(site.engine.logs(unit)) as reader:
                records = reader.tail(TAIL_LINES, _TAIL_BYTES)
        except (EngineError, OSError) as error:
            log.warning("the end of a log cannot be read", unit=unit, error=str(error))
            return "", ""
        lines = [(record.stream == STDERR, record.data.decode("utf-8", "replace")) for record in records]
        return "\n".join(line for _, line in lines), telling_line(lines)

    def _store_ends(self, ended: Sequence[GangEnded]) -> None:
        if not ended:
            return
        now = self._clock()

        def store(connection: Connection) -> list[Move]:
            made = store_ends(connection, ended, now)
            reach(Point.GANG_END_BEFORE_COMMIT)
            return made

        self._database.write(store)
        reach(Point.GANG_END_AFTER_COMMIT)
        for each in ended:
            metrics.gang_ends.labels(outcome=each.judgement.code).inc()
        self._again = True

    # Releasing

    def _release(self, due: Iterable[Gang]) -> None:
        for gang in due:
            key = gang.allocation.id
            site = self._sites.of(gang.allocation.engine)
            if self._preparer.is_busy(key):
                self._preparer.cancel(key)  # it may still bring something that is to be released
            elif site is not None and key not in self._released:
                self._workers.releasing.start(key, partial(self._release_one, gang, site))

    def _release_one(self, gang: Gang, site: Site) -> bool:
        released = self._releaser.release(gang, site.engine, self._placer.catalog)
        self._released[gang.allocation.id] = released
        return released.confirmed


def known_units(held: Collection[Gang]) -> list[str]:
    """The ids under which engines may still know members of gangs."""
    return [unit_id(gang.attempt_id, part.rank) for gang in held for part in parts_of(gang.allocation)]
