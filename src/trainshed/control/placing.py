"""ADMIT and PLACE: keeps the queue, runs placement passes, stores their outcome."""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from trainshed.control import metrics
from trainshed.control.accept import project_account, project_limits
from trainshed.control.crashpoints import Point, reach
from trainshed.control.profiles import revoked_content
from trainshed.control.scripts.places import Places
from trainshed.control.training.holding import members_held
from trainshed.model.ids import IdFactory
from trainshed.model.resources import Node
from trainshed.model.states import AllocationState, OutputStatus, State
from trainshed.policy.cluster import Cluster, Held
from trainshed.policy.effective import ServerPolicy
from trainshed.policy.estimate import forecast
from trainshed.policy.gangs.snapshot import Kept
from trainshed.policy.placement import Decision, PassRules, Placement, Project, place
from trainshed.policy.reasons import make_board, to_json
from trainshed.policy.retry import Outcome, access_revoked, content_revoked
from trainshed.policy.waiting import Queue, TrialClass
from trainshed.policy.words import WaitCode, sentence
from trainshed.store import access, attempts, jobs, moves, queue, runners, settings
from trainshed.store.database import Connection, Database
from trainshed.store.moves import Move
from trainshed.store.records import Allocation, Trial, TrialContent
from trainshed.store.scripts import SCRIPT

_ACTOR = "controller"
_PAGE = 5000
_LATE_EVENTS = 500
"""How many of the newest events are looked at again; what comes later still is found by `Placer.differs`."""
_BOARD_SECONDS = 1.0
_MAX_PLACEMENTS = 64


@dataclass(frozen=True, slots=True)
class Placed:
    """A Trial that now holds an Allocation and is to be launched."""

    trial: Trial
    allocation: Allocation


class Placer:
    """The queue in memory and the passes over it. Used by the controller's one thread."""

    def __init__(
        self,
        database: Database,
        engine_name: str,
        policy: ServerPolicy,
        clock: Callable[[], float],
        ids: IdFactory,
        *,
        places: Places | None = None,
    ) -> None:
        self._places = places
        self._database = database
        self._engine_name = engine_name
        self._policy = policy
        self._clock = clock
        self._ids = ids
        self._queue = Queue(policy.priority_worth_seconds)
        self._delayed: list[tuple[float, str]] = []
        self._trials: dict[str, Trial] = {}
        self._packed: set[str] = set()
        """Script Jobs among them."""
        self._newest_event: int | None = None
        self._board_at = 0.0
        self._board_text = ""
        self._decision: Decision | None = None
        self._cluster = Cluster(())
        self._gang_members = 0
        self._pass_projects: dict[str, Project] = {}

    def __len__(self) -> int:
        return len(self._trials)

    def reload(self) -> None:
        """Forget the queue; the next `read_changes` reads all of it."""
        self._queue = Queue(self._policy.priority_worth_seconds)
        self._delayed, self._trials, self._newest_event = [], {}, None
        self._packed = set()

    def read_changes(self, connection: Connection) -> None:
        """Take in Trials queued since the last look and drop stopped ones."""
        if self._newest_event is None:
            self._read_all(connection)
            return
        # Events of PostgreSQL may be committed in another order than they are numbered.
        late = _LATE_EVENTS if connection.dialect.name == "postgresql" else 0
        changes = queue.changes_since(connection, self._newest_event - late)
        for trial in changes.queued:
            known = self._trials.get(trial.id)
            if known is None or known.not_before != trial.not_before:
                self.add(trial)
        self.remove(changes.stopped)
        self._newest_event = max(changes.newest, self._newest_event)

    def _read_all(self, connection: Connection) -> None:
        # The event first: what is queued between the two readings is then read twice, not never.
        self._newest_event, last = queue.newest_event(connection), ""
        while page := queue.queued_after(connection, last, _PAGE):
            for trial in page:
                self.add(trial)
            last = page[-1].id

    def differs(self, connection: Connection, *, thoroughly: bool) -> bool:
        """Whether the database knows other queued Trials than this queue: their number, or each of them."""
        if thoroughly:
            return queue.queued_ids(connection) != self._trials.keys()
        return queue.queue_length(connection) != len(self._trials)

    def add(self, trial: Trial) -> None:
        """Take in one queued Trial, at once or when its back-off is over."""
        if trial.kind == SCRIPT:
            if self._places is None:
                return
            trial = self._places.fitted(trial)
            self._packed.add(trial.id)
        self._trials[trial.id] = trial
        if trial.not_before > self._clock():
            heapq.heappush(self._delayed, (trial.not_before, trial.id))
        else:
            self._queue.add(trial.id, class_of(trial), trial.created_at)

    def __contains__(self, trial_id: object) -> bool:
        return trial_id in self._trials

    def remove(self, trial_ids: Collection[str]) -> None:
        for trial_id in trial_ids:
            self._queue.remove(trial_id)
            self._trials.pop(trial_id, None)
            self._packed.discard(trial_id)

    def next_delayed(self) -> float | None:
        """When the next back-off ends (Unix seconds)."""
        return self._delayed[0][0] if self._delayed else None

    def run(
        self,
        nodes: Sequence[Node],
        held: Sequence[Allocation],
        planned: Sequence[Held] = (),
        reserved: Sequence[Kept] = (),
    ) -> tuple[list[Placed], bool]:
        """One pass: what was placed and stored, and whether another pass should follow at once.

        ``planned`` is kept free for gangs whose victims are on their way out, ``reserved`` for the first ones
        in line.
        """
        self._end_delays()
        self._fit_again()
        if not len(self._queue):
            self._decision = None
            return [], False
        begun = time.perf_counter()
        now = self._clock()
        cluster = Cluster(nodes, [*(each for a in held for each in self._holds(a)), *planned])
        projects = self._projects(now)
        self._gang_members = len(cluster) - sum(allocation.parts is None for allocation in held)
        decision = place(cluster, self._queue, projects, now=now, rules=self._rules(), kept=reserved)
        placed = self._store(decision.placements, nodes, now) if decision.placements else []
        for item in placed:
            cluster.hold(self._held(item.allocation))
        self._decision, self._cluster, self._pass_projects = decision, cluster, projects
        metrics.passes.observe(time.perf_counter() - begun)
        return placed, decision.more or len(placed) < len(decision.placements)

    def reserved(self) -> Sequence[Kept]:
        """What the newest pass reserved, for the pass over gangs on the same nodes."""
        return () if self._decision is None else self._decision.kept

    def why_waits(self, trial_id: str) -> str | None:
        """Why a Trial was not placed by the newest pass, in a sentence (promise P10)."""
        trial, decided = self._trials.get(trial_id), self._decision
        reason = None if trial is None or decided is None else decided.reason(class_of(trial))
        if trial is None or decided is None or reason is None:
            return None
        pool = decided.pools.get(trial.gpu_type)
        counts = None if pool is None else (pool.total, pool.free, pool.largest_free)
        said = sentence(class_of(trial), reason, counts)[0]
        more = None if self._places is None else self._places.about(trial_id)
        return f"{said}; {more}" if more and reason.code is WaitCode.PROJECT_BUDGET else said

    def publish(self) -> None:
        """Store for readers why Trials wait (promise P10), at most about once a second.

        Called again and again; costs nothing while there is nothing to tell.
        """
        if time.monotonic() < self._board_at + _BOARD_SECONDS:
            return
        self._board_at = time.monotonic()
        text = self._board()
        if text == self._board_text:
            return
        self._board_text = text
        self._database.write(lambda connection: settings.put(connection, settings.PLACEMENT, text))

    def _board(self) -> str:
        metrics.queue.clear()
        if self._decision is None:
            return "{}"
        for line in self._queue.lines():
            reason = self._decision.reason(line.key)
            if reason is not None:
                metrics.queue.labels(reason=reason.code).inc(len(line.entries))
        outlook = forecast(
            self._cluster, self._queue, self._pass_projects, now=self._decision.at, rules=self._rules()
        )
        return json.dumps(to_json(make_board(self._decision, outlook, self._queue)))

    def _rules(self) -> PassRules:
        most = self._policy.max_active_trials
        return PassRules(
            max_placements=_MAX_PLACEMENTS,
            # The limit is one of Runner Trials: what gangs hold beside them counts for itself.
            max_active_trials=None if most is None else most + self._gang_members,
            overhead_seconds=self._policy.stop_grace_seconds + 60.0,
        )

    def _fit_again(self) -> None:
        """What a script Job needs follows the machines that there are and its project's budget."""
        for trial_id in list(self._packed if self._places is not None else ()):
            known = self._trials[trial_id]
            assert self._places is not None  # noqa: S101 - looked at above
            if class_of(self._places.fitted(known)) != class_of(known):
                self.remove([trial_id])
                self.add(known)

    def _end_delays(self) -> None:
        now = self._clock()
        while self._delayed and self._delayed[0][0] <= now:
            trial = self._trials.get(heapq.heappop(self._delayed)[1])
            if trial is not None and trial.not_before <= now:
                self._queue.add(trial.id, class_of(trial), trial.created_at)

    def _projects(self, now: float) -> dict[str, Project]:
        wanted = {line.key.project for line in self._queue.lines()}
        # Of one moment: a Trial that ends between two readings must not miss in both, used and running (P5).
        with self._database.snapshot() as connection:
            return {
                project.id: Project(project_limits(project), project_account(connection, project, now=now))
                for project in access.list_projects(connection)
                if project.id in wanted
            }

    def _holds(self, allocation: Allocation) -> Sequence[Held]:
        """A gang holds something on several nodes."""
        if allocation.parts is None:
            return [self._held(allocation)]
        leaked = allocation.state is AllocationState.LEAKED
        end = None if leaked else allocation.held_at + allocation.timeout_seconds
        return members_held(allocation, end)

    def _held(self, allocation: Allocation) -> Held:
        lasts = allocation.timeout_seconds + self._policy.stop_grace_seconds + 60.0
        leaked = allocation.state is AllocationState.LEAKED
        return Held(
            id=allocation.id,
            trial_id=allocation.trial_id,
            project=allocation.project_id,
            node=allocation.node,
            gpus=allocation.indices,
            amounts=allocation.amounts,
            expected_end=None if leaked else allocation.held_at + lasts,
        )

    def _store(self, placements: Sequence[Placement], nodes: Sequence[Node], now: float) -> list[Placed]:
        """Make the placements true in one transaction; Trials that were stopped meanwhile are left out."""
        simulated = {node.name: node.simulated for node in nodes}
        gone: set[str] = set()

        def store(connection: Connection) -> list[Placed]:
            gone.clear()
            candidates, refused = self._still_allowed(connection, placements)
            prepared = [
                (Move(trial, State.QUEUED, State.PREPARING, "PLACED", _sentence(p, simulated[p.node])), p)
                for trial, p in candidates
            ]
            made = moves.apply(connection, [move for move, _ in prepared] + refused, at=now, actor=_ACTOR)
            mine = {move.trial.id for move in made if move.after is State.PREPARING}
            numbers = queue.newest_attempts(connection, mine)
            placed = [
                Placed(move.trial, self._allocation(move.trial, placement, simulated[placement.node], now))
                for move, placement in prepared
                if move.trial.id in mine
            ]
            attempts.open_all(
                connection,
                [(item.allocation, numbers.get(item.trial.id, ("", 0))[1] + 1) for item in placed],
            )
            scripts = [(item.trial, item.allocation) for item in placed if item.trial.kind == SCRIPT]
            if scripts and self._places is not None:
                following = {trial.id: numbers.get(trial.id, ("", 0))[1] + 1 for trial, _ in scripts}
                self._places.opened(connection, scripts, following, now)
            gone.update({p.trial_id for p in placements} - mine)
            reach(Point.PLACE_BEFORE_COMMIT)
            return placed

        placed = self._database.write(store)
        reach(Point.PLACE_AFTER_COMMIT)
        self.remove(gone | {item.trial.id for item in placed})
        return placed

    def _still_allowed(
        self, connection: Connection, placements: Sequence[Placement]
    ) -> tuple[list[tuple[Trial, Placement]], list[Move]]:
        """Access is checked again when a Trial would start (A2), to what a profile froze as well."""
        known: dict[tuple[str, str, str], bool] = {}
        revoked: dict[tuple[str, ...], str | None] = {}
        candidates, refused = [], []
        trials = [(self._trials[placement.trial_id], placement) for placement in placements]
        profiled = [trial.id for trial, _ in trials if trial.profile is not None]
        contents = jobs.contents_of(connection, profiled) if profiled else {}
        for trial, placement in trials:
            if trial.kind == SCRIPT:
                # What it runs is its own; nobody else can withdraw it.
                candidates.append((trial, placement))
                continue
            runner = (trial.project_id, trial.runner, trial.revision)
            if runner not in known:
                known[runner] = runners.still_readable(connection, *runner)
            if not known[runner]:
                refused.append(_refusal(trial, access_revoked(trial.selector)))
            elif gone := self._revoked(connection, trial, contents.get(trial.id, ()), revoked):
                refused.append(_refusal(trial, content_revoked(gone)))
            else:
                candidates.append((trial, placement))
        return candidates, refused

    @staticmethod
    def _revoked(
        connection: Connection,
        trial: Trial,
        frozen: Sequence[TrialContent],
        known: dict[tuple[str, ...], str | None],
    ) -> str | None:
        """What of these contents the project may not use any more; equal Trials are asked about once."""
        key = (trial.project_id, *(f"{each.kind}/{each.name}@{each.manifest_sha256}" for each in frozen))
        if key not in known:
            gone = revoked_content(connection, trial.project_id, frozen)
            known[key] = f"envloop://{gone.kind}/{gone.name}@{gone.version}" if gone else None
        return known[key]

    def _allocation(self, trial: Trial, placement: Placement, simulated: bool, now: float) -> Allocation:  # noqa: FBT001 - a column
        return Allocation(
            id=self._ids.allocation(),
            attempt_id=self._ids.attempt(),
            trial_id=trial.id,
            project_id=trial.project_id,
            engine=self._engine_name,
            node=placement.node,
            gpu_model=placement.model,
            gpu_indices=json.dumps(list(placement.gpus)),
            simulated=simulated,
            gpus=trial.gpus,
            cpus=trial.cpus,
            memory_mb=trial.memory_mb,
            storage_mb=trial.storage_mb,
            shm_mb=trial.shm_mb,
            timeout_seconds=trial.timeout_seconds,
            state=AllocationState.HELD,
            held_at=now,
            released_at=None,
            tries=0,
            evidence=None,
        )


def _refusal(trial: Trial, end: Outcome) -> Move:
    """The move of a waiting Trial that may not start any more."""
    values = {
        "error_code": end.error_code,
        "error_message": end.message,
        "output_status": OutputStatus.NONE,
    }
    return Move(trial, State.QUEUED, end.state, end.error_code or end.state, end.message, values)


def class_of(trial: Trial) -> TrialClass:
    """The class of equal Trials that this one waits in."""
    return TrialClass(trial.project_id, trial.priority, trial.gpu_type, trial.amounts, trial.timeout_seconds)


def _sentence(placement: Placement, simulated: bool) -> str:  # noqa: FBT001 - said in the sentence
    indices = ", ".join(str(index) for index in placement.gpus)
    if not placement.gpus:
        return f"Placed on {placement.node}, without a GPU."
    label = " (simulated)" if simulated else ""
    return f"Placed on {placement.node}: {placement.model}{label} number {indices}."
