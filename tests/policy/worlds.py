"""Fleets, Trials and a virtual clock for the tests of this folder."""

import heapq
from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import strategies as st

from trainshed.model.resources import Amounts, Gpu, Node
from trainshed.policy import (
    Cluster,
    Held,
    PassRules,
    Project,
    ProjectLimits,
    Queue,
    RunningTrial,
    TrialClass,
    account,
    charge,
    place,
)

H100 = "NVIDIA H100 80GB HBM3"
A100 = "NVIDIA A100-SXM4-80GB"
ROOM = Amounts(gpus=0, cpus=64, memory_mb=1 << 20, storage_mb=1 << 20, shm_mb=1 << 18)


def node(name="a", gpus=8, model=H100, **room):
    """A node whose other amounts are ample unless given."""
    models = [model] * gpus if isinstance(model, str) else list(model)
    amounts = {**{key: getattr(ROOM, key) for key in ("cpus", "memory_mb", "storage_mb", "shm_mb")}, **room}
    return Node(
        name,
        tuple(Gpu(index, kind, f"GPU-{name}-{index}", 80_000) for index, kind in enumerate(models)),
        Amounts(gpus=len(models), **amounts),
    )


def kind(gpus=1, project="p", priority=0, gpu_type="H100", timeout=100, **need):
    """A class of Trials."""
    amounts = {"cpus": 1, "memory_mb": 1024, "storage_mb": 1024, "shm_mb": 64, **need}
    return TrialClass(project, priority, gpu_type, Amounts(gpus=gpus, **amounts), timeout)


def held(trial_id, where="a", gpus=(0,), end=100.0, project="p", **need):
    amounts = {"cpus": 1, "memory_mb": 1024, "storage_mb": 1024, "shm_mb": 64, **need}
    return Held(trial_id, trial_id, project, where, tuple(gpus), Amounts(gpus=len(gpus), **amounts), end)


def queue(*entries):
    """A queue of ``(trial id, class)``, each queued one second after the one before."""
    found = Queue()
    for second, (trial_id, key) in enumerate(entries):
        found.add(trial_id, key, float(second))
    return found


def started(decision):
    return [placed.trial_id for placed in decision.placements]


@dataclass
class Arrival:
    at: float
    key: TrialClass
    runs: float
    """How long the program runs; at most its timeout."""


@dataclass
class World:
    """Runs arrivals to the end under a virtual clock and checks every limit after every pass."""

    nodes: list
    limits: dict = field(default_factory=dict)
    rules: PassRules = field(default_factory=lambda: PassRules(overhead_seconds=0.0))
    now: float = 0.0
    used: dict = field(default_factory=lambda: defaultdict(int))
    starts: dict = field(default_factory=dict)
    promises: dict = field(default_factory=dict)
    """Trial id -> the time of its first reservation as the first of all that wait."""
    expected: dict = field(default_factory=dict)
    """Trial id -> the first time at which its reason expected the obstacle to be gone."""

    def run(self, arrivals):
        self.queue, self.cluster = Queue(), Cluster(self.nodes)
        self.running = {}
        self.arrivals = {f"t{number:03d}": arrival for number, arrival in enumerate(arrivals)}
        events = [(arrival.at, 1, trial_id) for trial_id, arrival in self.arrivals.items()]
        heapq.heapify(events)
        while events:
            self.now = events[0][0]
            while events and events[0][0] == self.now:
                _, arrives, trial_id = heapq.heappop(events)
                if arrives:
                    self.queue.add(trial_id, self.arrivals[trial_id].key, self.now)
                else:
                    self.end(trial_id)
            for trial_id in self.step():
                heapq.heappush(events, (self.now + self.arrivals[trial_id].runs, 0, trial_id))
        return self

    def step(self):
        ids, more = [], True
        while more:
            decision = place(self.cluster, self.queue, self.projects(), now=self.now, rules=self.rules)
            more = decision.more
            for placed in decision.placements:
                self.start(placed)
            ids += started(decision)
            self.check()
            self.decision = decision
            for reservation in decision.reservations[:1]:
                self.promises.setdefault(reservation.trial_id, reservation.at)
            for key, reason in decision.reasons.items():
                if reason.until is not None and reason.behind is None:
                    head = next(trial_id for _, trial_id, line in self.queue.heads if line.key == key)
                    self.expected.setdefault(head, reason.until)
        return ids

    def start(self, placed):
        self.queue.remove(placed.trial_id)
        end = self.now + placed.key.timeout_seconds
        one = Held(
            f"alloc-{placed.trial_id}",
            placed.trial_id,
            placed.key.project,
            placed.node,
            placed.gpus,
            placed.key.amounts,
            end,
        )
        self.cluster.hold(one)
        self.running[placed.trial_id] = (placed, self.now)
        self.starts[placed.trial_id] = self.now

    def end(self, trial_id):
        placed, since = self.running.pop(trial_id)
        self.cluster.release(f"alloc-{trial_id}")
        key = placed.key
        self.used[key.project] += charge(key.amounts.gpus, key.timeout_seconds, since, self.now)

    def projects(self):
        return {name: Project(limits, self.account(name)) for name, limits in self.limits.items()}

    def account(self, name):
        running = [
            RunningTrial(placed.key.amounts.gpus, placed.key.timeout_seconds, since)
            for placed, since in self.running.values()
            if placed.key.project == name
        ]
        return account(self.limits[name], self.used[name], running, now=self.now)

    def check(self):
        taken, sums = set(), defaultdict(Amounts)
        models = {(n.name, gpu.index): gpu.model for n in self.nodes for gpu in n.gpus}
        for placed, _ in self.running.values():
            here = {(placed.node, index) for index in placed.gpus}
            assert len(here) == placed.key.amounts.gpus
            assert not here & taken, "a GPU was handed out twice"
            assert {models[gpu] for gpu in here} == {placed.model}
            taken |= here
            sums[placed.node] += placed.key.amounts
        for one in self.nodes:
            assert sums[one.name].fits_in(one.amounts), f"{one.name} is over-committed"
        if self.rules.max_active_trials is not None:
            assert len(self.running) <= self.rules.max_active_trials
        for name, limits in self.limits.items():
            mine = [placed for placed, _ in self.running.values() if placed.key.project == name]
            gpus = sum(placed.key.amounts.gpus for placed in mine)
            assert limits.max_gpus is None or gpus <= limits.max_gpus
            assert limits.max_active_trials is None or len(mine) <= limits.max_active_trials
            left = self.account(name).left
            assert left is None or left >= 0


MODELS = (H100, A100, "NVIDIA H100 NVL")
GPU_TYPES = ("H100", "H100", "H100", "A100", "H100 NVL", "NVIDIA H100 80GB HBM3")


@st.composite
def fleets(draw):
    """One to three nodes, mostly of one model, tight in CPU and memory as often as not."""
    found = []
    for number in range(draw(st.integers(1, 3))):
        mixed = draw(st.integers(0, 3)) == 0
        count = draw(st.sampled_from((2, 4, 8)))
        models = [draw(st.sampled_from(MODELS)) for _ in range(count)] if mixed else [H100] * count
        cpus, memory = draw(st.sampled_from((6, 12, 64))), draw(st.sampled_from((6, 12, 64)))
        found.append(node(f"n{number}", model=models, cpus=cpus, memory_mb=memory))
    return found


nodes = fleets()


def classes(*, projects=("p", "q", "r"), priorities=(0,), gpu_types=GPU_TYPES):
    return st.builds(
        lambda project, priority, gpu_type, gpus, cpus, memory, timeout: kind(
            gpus, project, priority, gpu_type, timeout, cpus=cpus, memory_mb=memory
        ),
        st.sampled_from(projects),
        st.sampled_from(priorities),
        st.sampled_from(gpu_types),
        st.sampled_from((1, 1, 1, 2, 2, 3, 4, 8)),
        st.integers(1, 4),
        st.integers(1, 4),
        st.sampled_from((1, 2, 5, 10, 20, 40)),
    )


@st.composite
def arrivals(draw, **options):
    """Trials of a few classes over time: several at once are common, so are whole timeouts."""
    kinds = draw(st.lists(classes(**options), min_size=2, max_size=6))
    # Drawn as a seed: hypothesis tends to lists too short for a queue to form.
    chance = draw(st.randoms(use_true_random=False))
    at, found = 0.0, []
    for _ in range(draw(st.integers(8, 48))):
        at += chance.choice((0, 0, 0, 1, 1, 3))
        key = chance.choice(kinds)
        runs = key.timeout_seconds * chance.choice((0.25, 0.5, 1, 1, 1))
        found.append(Arrival(at, key, runs))
    return found


limits = st.fixed_dictionaries(
    {
        name: st.builds(
            ProjectLimits,
            max_gpus=st.none() | st.integers(0, 12),
            max_active_trials=st.none() | st.integers(0, 4),
            budget_gpu_seconds=st.none() | st.integers(0, 400),
        )
        for name in ("p", "q")
    },
)
