"""Script Jobs' part of the controller, put together (contract G).

One Job is looked at by one thread at a time, step by step, from its rows; so everything here may be killed
between any two instructions and goes on from the rows. The controller's thread only says whose turn it is,
and gives those their place that run on this machine.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import structlog

from trainshed.content.blobs import BlobStore
from trainshed.content.local import LocalContent
from trainshed.control.background import Background
from trainshed.control.finishing import Finisher
from trainshed.control.scripts.book import Book
from trainshed.control.scripts.bundles import Bundles
from trainshed.control.scripts.checkpoints import Checkpoints
from trainshed.control.scripts.choosing import Chooser
from trainshed.control.scripts.clusters import ClusterGuests, Clusters, allocation_of
from trainshed.control.scripts.ending import Ender
from trainshed.control.scripts.fetching import Fetcher
from trainshed.control.scripts.ground import Ground, Look, ScriptWork, look_at
from trainshed.control.scripts.homing import Homing
from trainshed.control.scripts.launching import Launcher
from trainshed.control.scripts.leaving import Leaver
from trainshed.control.scripts.losing import Losses
from trainshed.control.scripts.places import Places, room_of
from trainshed.control.scripts.releasing import Releaser
from trainshed.control.scripts.routing import RoutePlanner
from trainshed.control.scripts.watching import Watcher, log_folder
from trainshed.control.training.gangs import Gangs
from trainshed.engines.contract import Engine, EngineError
from trainshed.engines.providers.contract import Capabilities, Provider
from trainshed.engines.providers.engine_runs import Room
from trainshed.engines.providers.local import LocalProvider
from trainshed.jobkit import tree as folders
from trainshed.model.ids import IdFactory
from trainshed.model.resources import Node
from trainshed.model.scripts.spec import LOCAL, OWN_ENGINES, RAY
from trainshed.model.scripts.states import LIVE_ATTEMPTS, AttemptState, Note
from trainshed.model.states import ACTIVE, TERMINAL, State
from trainshed.policy.effective import ServerPolicy
from trainshed.policy.migration import (
    CONSEQUENCES,
    QUEUE_SECONDS,
    STALLED_SECONDS,
    Consequence,
)
from trainshed.policy.routing import Outcome
from trainshed.store import queue, script_work, scripts
from trainshed.store.database import Connection, Database, DatabaseUnavailable
from trainshed.store.records import Allocation, Trial
from trainshed.store.script_records import Script, ScriptAttempt

_HOLDING = ACTIVE - {State.COLLECTING}
"""States in which a Job takes room at its provider."""
_ROUNDS = 20
"""Steps of one Job that follow one another at once."""
_ASK_AGAIN_SECONDS = 10.0
"""How often something is looked at that only a provider's answer moves on."""
_CLAIM_SECONDS = 30.0
"""How often one that waits for a cluster is asked whether it still may."""

log = structlog.get_logger(__name__)


class Scripts:
    """Everything about script Jobs that the controller does. See `Controller` for who calls what."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it works with
        self,
        work: ScriptWork,
        database: Database,
        home: Engine,
        blobs: BlobStore,
        content: LocalContent,
        policy: ServerPolicy,
        clock: Callable[[], float],
        ids: IdFactory,
        finisher: Finisher,
        background: Background,
    ) -> None:
        self._database = database
        self._clock = clock
        self._background = background
        self.places = Places(database)
        self._clusters = Clusters(database, work, policy.stop_grace_seconds)
        providers: dict[str, Provider] = {}
        if work.local:
            providers[LOCAL] = LocalProvider(home, self._room, lambda: self.places.nodes)
        providers |= work.providers
        if work.ray:
            providers[RAY] = self._clusters.provider()
        self._ground = ground = Ground(
            database, clock, ids, blobs, content, policy, work, providers, home.name
        )
        self.guests = ClusterGuests(ground) if work.ray else None
        """Opens Attempts on clusters, for the pass over gangs."""
        self._bundles = Bundles(work.folder / "bundles")
        self._fetcher = Fetcher(ground, work.folder / "fetched")
        self._checkpoints = Checkpoints(ground)
        self._losses = Losses(ground)
        planner = RoutePlanner(work.weights, work.grants, work.read_catalog)
        self._chooser = Chooser(ground, planner)
        self._launcher = Launcher(ground, self._bundles, self._checkpoints, self._losses)
        self._watcher = Watcher(ground, self._losses)
        self._leaver = Leaver(ground, planner, self._watcher, self._checkpoints, self._fetcher)
        self._ender = Ender(ground, self._watcher, self._checkpoints, self._fetcher)
        self._releaser = Releaser(ground, finisher, background)
        self._book = Book(ground, background)
        self._homing = Homing(ground, self._ender, self._fetcher, background)
        self._guard = threading.Lock()
        self._due: dict[str, float] = {}
        """When time alone makes something due, by Trial."""
        self._settled: dict[str, tuple[object, ...]] = {}
        """What a Trial looked like when nothing more was to be done for it at once."""
        self._fetched_at: dict[str, float] = {}
        self._routed: set[str] = set()
        self._abroad: set[str] = set()
        """Those that wait for a cluster."""
        self._recovered = False
        self._busy: Counter[str] = Counter()
        self._failed: set[str] = set()
        self._told: dict[str, str | None] = {}
        self._nodes: tuple[Node, ...] | None = None

    def connect(self, gangs: Gangs) -> None:
        """Have the clusters of the catalogue, which training tasks have too."""
        self._clusters.connect(gangs)

    # The controller's thread

    def read_nodes(self, nodes: Sequence[Node]) -> None:
        """Take in what this machine has."""
        self.places.nodes = nodes
        if self._nodes != tuple(nodes):
            self._nodes = tuple(nodes)
            self._book.again(LOCAL)
        if self._clusters.changed():
            self._book.again(RAY)

    def step(self, changed: set[str], *, everything: bool) -> bool:
        """One look at all script Jobs; whether another step should follow at once.

        ``changed`` are Attempts that may have news; ``everything`` looks at all that is held.
        """
        self._recover()
        self._book.look()
        began = set(self._launcher.began())
        with self._database.read() as connection:
            waiting = scripts.unfinished(connection)
            wanted = script_work.fetch_requested(connection)
            # A server without script Jobs pays for one look, not for two.
            watched = bool(waiting) or everything or self._releaser.busy
            unreleased = queue.unreleased(connection) if watched else []
        now = self._clock()
        self._let_in(waiting)
        running = {a.trial_id for a in unreleased if a.attempt_id in changed}
        begun = [
            trial.id
            for trial, script in waiting
            if self._is_due(trial, script, now, hinted=trial.id in running) and self._begin(trial.id)
        ]
        begun += self._homing.step(wanted, now)
        queued = [(t.id, s.provider) for t, s in waiting if t.state is State.QUEUED]
        self._routed = {trial_id for trial_id, provider in queued if provider == LOCAL}
        self._abroad = {trial_id for trial_id, provider in queued if provider == RAY}
        if everything:
            held = {a.attempt_id for a in unreleased}
            self._forget_all_but({trial.id for trial, _ in waiting}, held, began)
        self._releaser.step(unreleased)
        return bool(begun)

    def _let_in(self, waiting: Sequence[tuple[Trial, Script]]) -> None:
        """Who waits for a place need not wait for its time once a place became free."""
        busy = Counter(s.provider for t, s in waiting if t.state in _HOLDING and s.provider is not None)
        freed = any(busy[name] < before for name, before in self._busy.items())
        self._busy = busy
        full = [t.id for t, s in waiting if freed and t.state is State.QUEUED and _waits_for_room(s)]
        for trial_id in full:
            self._change(trial_id, {"not_before": None})

    def _change(self, trial_id: str, values: Mapping[str, object]) -> None:
        self._database.write(lambda connection: scripts.change(connection, trial_id, values))

    def routed(self) -> set[str]:
        """Trials that wait for a place on this machine, as of the last step."""
        return self._routed

    def tell_waiting(self, why: Callable[[str], str | None]) -> None:
        """Say of Jobs that wait for a place here or on a cluster what they wait for (promise P10)."""
        said = {trial_id: why(trial_id) for trial_id in self._routed | self._abroad}
        self._told = {key: text for key, text in self._told.items() if key in said}
        news = {key: text for key, text in said.items() if text and self._told.get(key) != text}
        for trial_id, text in news.items():
            self._change(trial_id, {"message": text})
            self._told[trial_id] = text

    def next_at(self) -> float | None:
        """When time alone makes something due (Unix seconds).

        What is due and pauses after a failure, or goes on, is due when that is over: else the controller
        would look again and again, and find that it can do nothing.
        """
        with self._guard:
            due = {**self._due}
        due |= self._homing.due() | self._book.due()
        now = self._ground.clock()
        times = [at for key, at in due.items() if at > now or self._background.offers(key)]
        paused = self._background.next_due()
        return min(times if paused is None else [*times, paused], default=None)

    def known_units(self) -> list[str]:
        """Attempts that were opened beside the controller's thread and may hold content by now."""
        return self._launcher.began()

    def tidy(self, known: Collection[str]) -> None:
        """Let go of folders of Attempts that hold nothing any more."""
        self._bundles.remove_others(known)
        self._fetcher.remove_others(known)

    def forget(self, attempt_id: str) -> None:
        """Delete the log of a run that was elsewhere (retention)."""
        with self._database.read() as connection:
            attempt = script_work.attempts_by_id(connection, [attempt_id]).get(attempt_id)
        if attempt is not None and attempt.provider not in OWN_ENGINES:
            folders.remove(log_folder(self._ground, attempt))

    def close(self) -> None:
        """Begin nothing more; what is under way is repeated by the next process."""
        self._ground.closing.set()
        self._background.close()

    def _recover(self) -> None:
        """After a start: say of each Job that it goes on (k.4), and find outputs that were not delivered."""
        if self._recovered:
            return
        now = self._clock()

        def store(connection: Connection) -> None:
            for trial, script in scripts.unfinished(connection):
                if script.placements or script.word != "queued":
                    said = f"The server was started again; the Job is {script.word} and goes on."
                    scripts.note(connection, trial.id, Note.RECOVERED, said, at=now, actor="recovery")

        self._database.write(store)
        with self._database.read() as connection:
            self._homing.recover(connection, now)
        self._recovered = True

    def _is_due(self, trial: Trial, script: Script, now: float, *, hinted: bool) -> bool:
        with self._guard:
            if hinted or self._settled.get(trial.id) != _face(trial, script):
                return True
            return self._due.get(trial.id, now) <= now

    def _begin(self, trial_id: str) -> bool:
        if not self._background.offers(trial_id):
            return False
        self._background.start(trial_id, partial(self._work, trial_id))
        return True

    def _forget_all_but(self, trial_ids: set[str], attempt_ids: set[str], began: set[str]) -> None:
        """What is remembered only saves work; of what ended it saves none."""
        with self._guard:
            for known in (self._due, self._settled):
                for key in known.keys() - trial_ids:
                    del known[key]
            self._failed &= trial_ids
            for key in self._fetched_at.keys() - attempt_ids:
                del self._fetched_at[key]
        self._watcher.forget_all_but(attempt_ids)
        self._launcher.forget(began - attempt_ids)

    def _room(self, attempt_id: str) -> Room:
        with self._database.read() as connection:
            held = allocation_of(connection, attempt_id)
        if held is None:
            raise EngineError("LAUNCH_INVALID", f"{attempt_id} holds nothing here", retryable=False)
        return room_of(held, self.places.nodes, self._ground.policy.stop_grace_seconds)

    # One Job, in an executor

    def _work(self, trial_id: str) -> bool:
        """`_advance`; what goes wrong in it is told once, and it is tried again after a pause."""
        try:
            return self._advance(trial_id)
        except DatabaseUnavailable:
            raise
        except Exception as error:
            if trial_id not in self._failed:
                self._failed.add(trial_id)
                now, said = self._clock(), f"Something went wrong here ({type(error).__name__}); it goes on."
                self._database.write(
                    lambda connection: scripts.note(
                        connection, trial_id, Note.INTERNAL_ERROR, said, at=now, level="error"
                    )
                )
            raise

    def _advance(self, trial_id: str) -> bool:
        """Do what is to be done for one Job until nothing follows at once."""
        for _ in range(_ROUNDS):
            look = self._look(trial_id)
            if look is None:
                return True
            face = _face(look.trial, look.script), _live_face(look)
            done = self._act(look)
            after = self._look(trial_id)
            if after is None or self._ground.closing.is_set():
                return True
            if (_face(after.trial, after.script), _live_face(after)) == face:
                with self._guard:
                    self._settled[trial_id] = _face(after.trial, after.script)
                    self._set_due(after, done=done)
                return True
            if after.trial.state in TERMINAL:
                with self._guard:
                    self._due.pop(trial_id, None)
                    self._settled.pop(trial_id, None)
                self._homing.ended(after)
                return True
        return True

    def _look(self, trial_id: str) -> Look | None:
        with self._database.snapshot() as connection:
            return look_at(connection, trial_id, self._clock())

    def _act(self, look: Look) -> bool:
        """The next step of a Job; whether it needs no other try soon."""
        state = look.trial.state
        if state is State.AWAITING_APPROVAL:
            if look.asked and look.asked[-1].answer is None and look.asked[-1].expires_at <= look.now:
                self._chooser.expire(look.trial.id)
            return True
        steps: dict[State, Callable[[Look], bool]] = {
            State.QUEUED: self._route,
            State.PREPARING: self._start,
            State.RUNNING: self._run,
            State.CHECKPOINTING: self._run,
            State.MIGRATING: self._leave,
            State.COLLECTING: self._ender.finish,
            State.STOPPING: self._ender.stop,
        }
        step = steps.get(state)
        return step is None or step(look)

    def _route(self, look: Look) -> bool:
        if look.script.provider is not None and not self._freed(look):
            return True
        if (look.script.not_before or 0.0) > look.now:
            return True
        opened = self._chooser.choose(look.trial.id)
        if opened is not None:
            self.places.fresh.add(opened)
        return True

    def _freed(self, look: Look) -> bool:
        """Whether one that waits for a cluster waits in vain, and is to be routed anew."""
        lost = self._clusters.lost_its_claim(look)
        if lost:
            again = {"provider": None, "not_before": None, "waiting_since": look.now}
            self._change(look.trial.id, again)
        return lost

    def _start(self, look: Look) -> bool:
        attempt = look.live
        if attempt is None:
            self._again(look)
            return True
        if attempt.state != AttemptState.SUBMITTING:
            return not self._watcher.watch(look, attempt)
        fresh = attempt.attempt_id in self.places.fresh
        self.places.fresh.discard(attempt.attempt_id)
        return self._launcher.launch(look, attempt, fresh=fresh)

    def _again(self, look: Look) -> None:
        """An Attempt is over and nothing of it ever began: the Job is queued again."""
        attempt = look.last
        assert attempt is not None  # noqa: S101 - it was placed
        what = CONSEQUENCES["remote_not_found"]
        said = (attempt.message or "it is gone").removeprefix(f"{attempt.provider}: ")
        self._losses.before_start(look, attempt, Consequence(what.reason), said)

    def _run(self, look: Look) -> bool:
        attempt = look.live
        if attempt is None:
            return True
        more = self._watcher.watch(look, attempt)
        after = self._look(look.trial.id)
        live = after.live if after else None
        if after is None or live is None or after.trial.state not in {State.RUNNING, State.CHECKPOINTING}:
            return True
        self._take_in(after, live)
        if after.trial.state is State.CHECKPOINTING:
            self._watcher.end_stalled(after)
        self._leaver.check(after, live)
        return not more

    def _leave(self, look: Look) -> bool:
        """Of one that may be denied now, what it wrote is kept too (c.4)."""
        if self._leaver.overran(look):
            count = self._ender.gather(look)
            if count is None:
                return False
            self._change(look.trial.id, {"outputs_count": count})
        return self._leaver.leave(look)

    def _take_in(self, look: Look, attempt: ScriptAttempt) -> None:
        """Bring new checkpoints of a run here while it goes on, where that is possible."""
        written = self._fetcher.here(attempt)
        if written is None:
            with self._guard:
                last = self._fetched_at.setdefault(attempt.attempt_id, attempt.started_at or look.now)
            provider = self._ground.providers.get(attempt.provider)
            if provider is None or look.now - last < provider.capabilities().fetch_interval_s:
                return
            with self._guard:
                self._fetched_at[attempt.attempt_id] = look.now
            written = self._fetcher.files_of(attempt, live=True)
            self._fetcher.again(attempt.attempt_id)
        if written is not None:
            self._leaver.take_in(look, attempt, written.checkpoints)

    def _set_due(self, look: Look, *, done: bool) -> None:
        """When time alone moves the Job on. Under the guard."""
        due = self._next_due(look)
        if not done:
            again = look.now + _ASK_AGAIN_SECONDS
            last = look.last
            if last is not None and (retry := self._fetcher.next_try(last.attempt_id)) > look.now:
                again = retry
            due = again if due is None else min(due, again)
        if due is None:
            self._due[look.trial.id] = float("inf")
        else:
            self._due[look.trial.id] = due

    def _next_due(self, look: Look) -> float | None:
        state, script = look.trial.state, look.script
        if state is State.QUEUED:
            if script.provider is not None:
                return look.now + _CLAIM_SECONDS if script.provider == RAY else None
            return script.not_before or (script.waiting_since or look.now) + QUEUE_SECONDS
        if state is State.AWAITING_APPROVAL:
            return look.asked[-1].expires_at if look.asked else None
        live = look.live
        if live is None or live.state not in LIVE_ATTEMPTS:
            return look.now + _ASK_AGAIN_SECONDS
        provider = self._ground.providers.get(live.provider)
        able = provider.capabilities() if provider else Capabilities(poll_interval_s=_ASK_AGAIN_SECONDS)
        moments = [look.now + able.poll_interval_s]
        if state is State.PREPARING and live.submitted_at is not None:
            moments.append(live.submitted_at + able.provision_s + 1)
        if state is State.CHECKPOINTING:
            moments.append(look.now + STALLED_SECONDS)
        if (leaves := self._leaver.due(look, live)) is not None and leaves > look.now:
            moments.append(leaves + 0.001)
        return min(moments)


def _waits_for_room(script: Script) -> bool:
    """Whether it waits because its providers had no room, and not after a loss of its own."""
    route = json.loads(script.route or "{}")
    return script.not_before is not None and route.get("outcome") == Outcome.WAIT


def _face(trial: Trial, script: Script) -> tuple[object, ...]:
    """What of a Job tells that something happened to it."""
    return (
        trial.state,
        script.phase,
        script.word,
        script.provider,
        script.version,
        script.not_before,
        trial.stop_accepted_at,
    )


def _live_face(look: Look) -> tuple[object, ...]:
    last = look.last
    return () if last is None else (last.attempt_id, last.state, last.remote_ref)


def held_here(unreleased: Sequence[Allocation], home: str) -> list[Allocation]:
    """Allocations of this server's own machines, whose release its own engine proves."""
    return [a for a in unreleased if a.engine == home or a.parts is not None]


__all__ = ["ScriptWork", "Scripts", "held_here"]
