"""Plays random sites under a virtual clock and checks the promises after every step.

    python -m trainshed.policy.gangs.simulator --seed 7 --steps 100000

Arrivals, ends, failures, preemptions, victims that will not go, lost and cordoned nodes, Runner Trials
beside. After every step: P4 (a gang whole or not at all), P5 (quotas at every instant), P10 (each waiting
task has a reason), no double booking. When the load of a site ends, everything that can start has started
within bounded time (P11). Each site has a seed of its own; a failure names it, and ``--seed N --sites 1``
repeats it.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from random import Random

from trainshed.model.resources import Amounts
from trainshed.policy.cluster import Held
from trainshed.policy.gangs import invariants
from trainshed.policy.gangs.cluster import GangCluster
from trainshed.policy.gangs.decide import decide
from trainshed.policy.gangs.invariants import BrokenPromise, require
from trainshed.policy.gangs.queue import GangQueue
from trainshed.policy.gangs.quota import Ledger, QuotaTable
from trainshed.policy.gangs.retry import (
    Cause,
    EndedBy,
    Evidence,
    GangEnd,
    PastAttempt,
    ReplicaEnd,
    Resubmit,
    classify,
    decide_retry,
)
from trainshed.policy.gangs.room import gpus_of
from trainshed.policy.gangs.simulated import Site, Task, make_site, make_task
from trainshed.policy.gangs.snapshot import (
    Admission,
    GangClass,
    GangDecision,
    GangReason,
    GangRules,
    GangWait,
    Running,
    Waiting,
)

STEPS_PER_SITE = 400
"""Steps with load; draining adds some."""
_RULES = GangRules(min_run_seconds=600, notice_seconds=200, overhead_seconds=30)
_STUBBORN_SECONDS = 1500.0
_NODE_GONE_SECONDS = 2000.0
_PATIENCE_SECONDS = 3000.0
_QUEUE_LENGTHS = (2, 4, 4, 10)
_DRAWS = 10
_RARE, _SOME, _HALF = 0.03, 0.3, 0.5
"""Chances."""
_CHECK_WHOLE_EVERY = 64
_DRAIN_SECONDS = 400_000.0
"""No site has so much work that a task may wait longer once its load has ended."""
_NEVER = {GangWait.NO_MATCHING_SPEC, GangWait.EXCEEDS_MAX_QUOTA, GangWait.MISCONFIGURED}


class What(Enum):
    """What happens in a step."""

    ARRIVAL = "arrival"
    END = "end"
    GONE = "gone"
    SAVED = "saved"
    NODE_LOST = "node lost"
    NODE_BACK = "node back"
    CORDON = "cordon"
    TRIAL = "Runner Trial"
    TRIAL_END = "Runner Trial ends"
    STOP = "stop"
    TIME = "time"


class SimulatedSite:
    """One site from its first arrival until everything has run."""

    def __init__(self, seed: int, steps: int = STEPS_PER_SITE) -> None:
        self.random = Random(seed)  # noqa: S311 - repeatable chance, not secrets
        self.site: Site = make_site(self.random)
        self.cluster = GangCluster(self.site.nodes)
        self.queue = GangQueue()
        self.table = QuotaTable(self.site.quotas)
        self.steps_left = steps
        self.now = 0.0
        self.steps = 0
        self.counts: Counter[str] = Counter()
        self.longest_drain = 0.0
        self._tasks: dict[str, Task] = {}
        self._ledgers: dict[str, list[PastAttempt]] = {}
        self._events: list[tuple[float, int, What, str]] = []
        self._gone_nodes: set[str] = set()
        self._generation: Counter[str] = Counter()
        self._number = 0
        self._next_at: float | None = None
        self.decision: GangDecision | None = None
        # Long queues cost time and show little that is new.
        self._longest = self.random.choice(_QUEUE_LENGTHS)
        self._gap = self.random.choice((20.0, 100.0, 300.0))

    def run(self) -> SimulatedSite:
        """Play to the end; raises `BrokenPromise`."""
        self._later(0.0, What.ARRIVAL)
        self._later(self.random.uniform(500, 5000), What.NODE_LOST)
        self._later(self.random.uniform(500, 5000), What.CORDON)
        self._later(self.random.uniform(100, 1000), What.TRIAL)
        drain_from = None
        while self._events or self._next_at is not None:
            if self.steps_left <= 0 and drain_from is None:
                drain_from = self.now
            self._step()
            if drain_from is not None:
                require(
                    self.now - drain_from < _DRAIN_SECONDS, "P11", "still waiting", sorted(self.queue.tasks)
                )
        if drain_from is not None:
            self.longest_drain = self.now - drain_from
        for waiting in self.queue.tasks.values():
            reason = self._last().reason(waiting)
            require(reason.code in _NEVER, "P11", waiting.id, "waits for ever", reason)
        require(not self.cluster.running, "drained", sorted(self.cluster.running))
        return self

    def _last(self) -> GangDecision:
        if self.decision is None:
            raise BrokenPromise("no pass was made")
        return self.decision

    def _later(self, seconds: float, what: What, name: str = "") -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, what, name))

    def _step(self) -> None:
        """The next event or the time of the next pass, whichever comes first, and what follows."""
        self.steps += 1
        self.steps_left -= 1
        if self._events and (self._next_at is None or self._events[0][0] <= self._next_at):
            self.now, _, what, name = heapq.heappop(self._events)
            self.counts[what.value] += 1
            self._happens(what, name)
        elif self._next_at is not None:
            self.now = self._next_at
            self.counts[What.TIME.value] += 1
        self._pass()

    def _happens(self, what: What, name: str) -> None:
        loaded = self.steps_left > 0
        match what:
            case What.ARRIVAL if loaded:
                self._arrive()
            case What.END | What.GONE | What.SAVED:
                self._of_running(what, name)
            case What.NODE_LOST if loaded:
                self._lose_node()
            case What.NODE_BACK:
                self._gone_nodes.discard(name)
                self._nodes()
            case What.CORDON if loaded:
                names = [place.node.name for place in self.site.nodes]
                self.cluster.cordon(self.random.sample(names, self.random.choice((0, 0, 1))))
                self._later(self.random.uniform(500, 3000), What.CORDON)
            case What.CORDON:
                self.cluster.cordon(())
            case What.TRIAL if loaded:
                self._trial()
            case What.TRIAL_END:
                self.cluster.release_other(name)
            case What.STOP:
                self.queue.remove(name)
            case _:
                pass

    def _arrive(self) -> None:
        self._later(self.random.expovariate(1 / self._gap), What.ARRIVAL)
        self._give_up_hopeless()
        if len(self.queue) >= self._longest:
            return
        for _ in range(self.random.choice((1, 1, 1, 3))):
            name = f"t{len(self._tasks):04d}"
            task = self._task()
            self._tasks[name] = task
            self._ledgers[name] = [PastAttempt(Cause.INITIAL)]
            self.queue.add(Waiting(name, task.key, self.now))
            if self.random.random() < _RARE:
                self._later(self.random.uniform(0, 2000), What.STOP, name)

    def _task(self) -> Task:
        """A task, mostly one that can start on this site."""
        task = make_task(self.random, self.site)
        for _ in range(_DRAWS):
            if self.random.random() < _RARE or self._startable(task.key):
                break
            task = make_task(self.random, self.site)
        return task

    def _startable(self, key: GangClass) -> bool:
        ledger = Ledger(self.table, {}, {})
        return any(
            self.cluster.most_of(key, number) is None
            and not isinstance(ledger.check(key, choice, {}), GangReason)
            for number, choice in enumerate(key.choices)
        )

    def _give_up_hopeless(self) -> None:
        """Owners of tasks that can never start stop them after a while."""
        if self.decision is None:
            return
        for waiting in list(self.queue.tasks.values()):
            never = self.decision.reason(waiting).code in _NEVER
            if never and self.now - waiting.queued_at > _PATIENCE_SECONDS:
                self.queue.remove(waiting.id)
                self.counts["hopeless"] += 1

    def _of_running(self, what: What, name: str) -> None:
        """Events of an Attempt; those of an earlier one mean nothing."""
        task_id, _, generation = name.partition("#")
        running = self.cluster.running.get(task_id)
        if running is None or int(generation) != self._generation[task_id]:
            return
        if what is What.SAVED:
            self.cluster.admit(replace(running, checkpointed_at=self.now))
        elif what is What.GONE:
            self._finish(running, preempted=True)
        else:
            self._finish(running, preempted=False)

    def _finish(self, running: Running, *, preempted: bool, lost_node: str | None = None) -> None:
        """An Attempt is over and released; what follows is the ledger's business."""
        task, ledger = self._tasks[running.id], self._ledgers[running.id]
        self.cluster.release(running.id)
        failed = self.random.random() < task.fails
        if not preempted and lost_node is None and not failed:
            return
        node = lost_node or running.parts[0].node
        by = EndedBy.PREEMPTION if preempted else EndedBy.EXIT
        evidence = [Evidence(node, "node_lost")] if lost_node else []
        if failed and self.random.random() < _SOME:
            evidence.append(Evidence(node, "xid", 79))
        ran = self.now - running.admitted_at
        end = GangEnd([ReplicaEnd(0, node, by, exit_code=1, at=self.now)], evidence, ran)
        verdict = classify(end)
        ledger[-1] = PastAttempt(ledger[-1].cause, verdict.exit_class, verdict.fingerprint, ran)
        after = decide_retry(ledger, end, task.policy)
        if not isinstance(after, Resubmit):
            self.counts["failed for good"] += 1
            return
        require(after.number <= task.policy.budget, "C33", running.id, after)
        self.counts["resubmitted"] += 1
        ledger.append(PastAttempt(after.cause))
        key = task.key
        if after.exclude_node is not None and self.random.random() < _HALF:
            key = replace(key, excluded=frozenset({after.exclude_node}))
        not_before = self.now + after.delay_seconds if after.delay_seconds else None
        self.queue.add(Waiting(running.id, key, running.queued_at, self.now, not_before))

    def _lose_node(self) -> None:
        self._later(self.random.uniform(1000, 6000), What.NODE_LOST)
        names = [place.node.name for place in self.cluster.layout.nodes]
        if len(names) == 1:
            return
        gone = self.random.choice(names)
        self._gone_nodes.add(gone)
        self._later(_NODE_GONE_SECONDS, What.NODE_BACK, gone)
        self._nodes()
        for running in [
            one for one in self.cluster.running.values() if any(p.node == gone for p in one.parts)
        ]:
            self._finish(running, preempted=False, lost_node=gone)
        for held in [one for one in self.cluster.others.values() if one.node == gone]:
            self.cluster.release_other(held.id)

    def _nodes(self) -> None:
        up = [place for place in self.site.nodes if place.node.name not in self._gone_nodes]
        self.cluster.replace(up, self.cluster.cordoned)

    def _trial(self) -> None:
        """A Runner Trial takes what training leaves, and keeps off what is held or reserved."""
        self._later(self.random.uniform(100, 1500), What.TRIAL)
        kept = (
            {name for one in self.decision.reservations for name, _ in one.parts} if self.decision else set()
        )
        held = {one.node for one in self.decision.holds} if self.decision else set()
        for name, node in self.cluster.open.items():
            free = gpus_of(self.cluster.room.masks[node])
            if not free or name in kept or name in held or self.cluster.room.cpus[node] < 1:
                continue
            trial = f"trial-{self._number}"
            runs = self.random.uniform(50, 2000)
            amounts = Amounts(gpus=1, cpus=1)
            self.cluster.hold(Held(trial, trial, "trials", name, free[:1], amounts, self.now + runs))
            self._later(runs, What.TRIAL_END, trial)
            return

    def _pass(self) -> None:
        """Passes until one has nothing more to do, each made true and checked."""
        more = True
        while more:
            before = dict(self.cluster.running)
            tasks = dict(self.queue.tasks)
            decision = self.decision = decide(
                self.cluster, self.queue, self.table, now=self.now, rules=_RULES
            )
            more = decision.more
            invariants.check_evictions(decision, before, tasks, _RULES.min_run_seconds)
            places = {place.node.name: place for place in self.cluster.layout.nodes}
            for admission in decision.admissions:
                invariants.check_gang(admission, places, self.cluster.cordoned)
                self._admit(admission)
            for eviction in decision.evictions:
                victim = self.cluster.running[eviction.id]
                self.cluster.admit(victim.evicting(self.now, eviction.for_id, eviction.gone_by))
                obedient = self._tasks[victim.id].obedient
                seconds = self.random.uniform(1, 200) if obedient else _STUBBORN_SECONDS
                self._later(seconds, What.GONE, f"{victim.id}#{self._generation[victim.id]}")
                self.counts["evicted"] += 1
            self._store_plans(decision)
            self._check(decision)
        next_at = self._last().next_at
        self._next_at = None if next_at is None else max(next_at, self.now)
        require(self._next_at is None or self._next_at > self.now, "time", "a pass asks for itself", self.now)

    def _admit(self, admission: Admission) -> None:
        waiting = self.queue.tasks[admission.id]
        self.queue.remove(admission.id)
        task = self._tasks[admission.id]
        limit = admission.key.max_run_seconds
        self.cluster.admit(
            Running(
                admission.id,
                admission.key,
                admission.parts,
                self.now,
                waiting.queued_at,
                choice=admission.choice,
                expected_end=None if limit is None else self.now + limit + _RULES.overhead_seconds,
                supplement=admission.supplement,
            )
        )
        self.counts["admitted"] += 1
        self.counts["admitted on a plan"] += admission.planned
        self._generation[admission.id] += 1
        event = f"{admission.id}#{self._generation[admission.id]}"
        self._later(task.runs, What.END, event)
        if task.saves:
            self._later(task.runs * 0.6, What.SAVED, event)

    def _store_plans(self, decision: GangDecision) -> None:
        for waiting in list(self.queue.tasks.values()):
            plan = decision.plans.get(waiting.id)
            if plan != waiting.plan:
                self.counts["planned"] += plan is not None
                self.queue.add(replace(waiting, plan=plan))

    def _check(self, decision: GangDecision) -> None:
        invariants.check_booking(
            self.cluster.layout.nodes, self.cluster.running.values(), self.cluster.others.values()
        )
        invariants.check_quotas(self.table, self.cluster.running.values())
        invariants.check_plans(decision, self.cluster, self.queue.tasks)
        invariants.check_reasons(decision, self.queue)
        if self.steps % _CHECK_WHOLE_EVERY == 0:
            invariants.check_same(self.cluster)
            invariants.check_places(self.queue)


def simulate(seed: int, steps: int, *, sites: int | None = None) -> tuple[int, Counter[str], float]:
    """Sites with seeds from ``seed`` on until ``steps`` steps are done, or so many sites.

    Answers the number of sites, what happened how often (with ``steps``), and the longest time a site took
    to run dry. `BrokenPromise` names the seed of its site.
    """
    counts: Counter[str] = Counter()
    longest = 0.0
    number = 0
    while counts["steps"] < steps if sites is None else number < sites:
        site = SimulatedSite(seed + number)
        try:
            site.run()
        except BrokenPromise as broken:
            raise BrokenPromise(
                f"seed {seed + number}, step {site.steps}, time {site.now:.1f}: {broken}"
            ) from broken
        number += 1
        counts.update(site.counts)
        counts["steps"] += site.steps
        longest = max(longest, site.longest_drain)
    return number, counts, longest


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate and print a table; 1 if a promise did not hold."""
    parser = argparse.ArgumentParser(prog="python -m trainshed.policy.gangs.simulator", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first site; the next ones follow")
    parser.add_argument("--steps", type=int, default=100_000, help="in all, at least")
    parser.add_argument("--sites", type=int, help="so many sites instead, to repeat one, say")
    options = parser.parse_args(arguments)
    sys.stdout.write(f"seed {options.seed}\n")
    try:
        sites, counts, longest = simulate(options.seed, options.steps, sites=options.sites)
    except BrokenPromise as broken:
        sys.stdout.write(f"broken: {broken}\n")
        return 1
    rows = [("sites", f"{sites:,}"), *((what, f"{many:,}") for what, many in sorted(counts.items()))]
    rows.append(("longest drain, s", f"{longest:,.0f}"))
    width = max(len(what) for what, _ in rows)
    sys.stdout.write("".join(f"{what.ljust(width)}  {many:>12}\n" for what, many in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
