"""What must hold for every fleet, queue and history: limits, order, progress, determinism."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from policy.worlds import World, arrivals, classes, held, limits, node, nodes, started
from support.examples import examples
from trainshed.policy import Cluster, PassRules, ProjectLimits, Queue, WaitCode, place, rank

HARDWARE = {
    WaitCode.GPUS_BUSY,
    WaitCode.CPU_BUSY,
    WaitCode.MEMORY_BUSY,
    WaitCode.DISK_BUSY,
    WaitCode.SHM_BUSY,
}
slots = st.none() | st.integers(1, 4)
some = settings(max_examples=examples(150), deadline=None)


def lone_queue(keys):
    found = Queue()
    for number, key in enumerate(keys):
        found.add(f"t{number:03d}", key, float(number // 2))
    return found


def fits_somewhere(free, cluster, key):
    return any(
        free.masks[model][number].bit_count() >= key.amounts.gpus and free.fits(number, key.amounts)
        for model in cluster.meaning(key.gpu_type)
        for number in range(len(cluster.nodes))
    )


def after(fleet, decision):
    """The cluster once the placements of a decision are held."""
    cluster = Cluster(fleet)
    for placed in decision.placements:
        cluster.hold(
            held(
                placed.trial_id,
                placed.node,
                placed.gpus,
                cpus=placed.key.amounts.cpus,
                memory_mb=placed.key.amounts.memory_mb,
            )
        )
    return cluster


@some
@given(nodes, arrivals(priorities=(0, 1, 5)), limits, slots, st.integers(1, 5))
def test_P5_no_node_gpu_project_or_server_limit_is_ever_exceeded(fleet, trials, bounds, most, batch):
    rules = PassRules(max_placements=batch, max_active_trials=most, overhead_seconds=0.0)
    # The world itself asserts every limit after every step.
    World(fleet, bounds, rules).run(trials)


@some
@given(nodes, arrivals())
def test_P11_the_first_in_line_starts_by_the_time_it_was_promised(fleet, trials):
    world = World(fleet).run(trials)
    for trial_id, promised in world.promises.items():
        assert world.starts[trial_id] <= promised, f"{trial_id} was overtaken"


@some
@given(arrivals(projects=("p",), gpu_types=("H100",)), st.integers(1, 12), st.none() | st.integers(1, 4))
def test_P11_the_first_of_a_project_at_its_limit_starts_when_it_was_told(trials, gpus, own):
    ample = [node("a", 256, cpus=10_000, memory_mb=10_000)]
    world = World(ample, {"p": ProjectLimits(max_gpus=gpus, max_active_trials=own)}).run(trials)
    for trial_id, expected in world.expected.items():
        assert world.starts[trial_id] <= expected, f"{trial_id} was overtaken"


@some
@given(
    nodes,
    arrivals(priorities=(0, 3)),
    st.none() | st.integers(1, 12),
    st.none() | st.integers(1, 3),
    slots,
)
def test_P11_every_trial_that_can_run_at_all_runs_in_the_end(fleet, trials, gpus, own, most):
    bounds = {"p": ProjectLimits(max_gpus=gpus, max_active_trials=own)}
    world = World(fleet, bounds, PassRules(max_active_trials=most, overhead_seconds=0.0)).run(trials)
    empty = Cluster(fleet)
    for trial_id, trial in world.arrivals.items():
        key = trial.key
        within = key.project != "p" or gpus is None or key.amounts.gpus <= gpus
        possible = within and empty.ever_fits(empty.meaning(key.gpu_type), key.amounts)
        assert (trial_id in world.starts) == possible
        if not possible and len(world.running) == 0 and world.decision.reason(key):
            never = world.decision.reason(key)
            assert never.code is WaitCode.NO_NODE or never.never or world.decision.rest


@some
@given(nodes, st.lists(classes(priorities=(0, 2)), min_size=1, max_size=30))
def test_every_reason_is_true_and_nothing_that_could_start_is_left_waiting(fleet, keys):
    cluster, waiting = Cluster(fleet), lone_queue(keys)
    decision = place(cluster, waiting, {}, now=100.0)
    left = after(fleet, decision)
    reserved = {reservation.node for reservation in decision.reservations}
    for key, reason in decision.reasons.items():
        fits = fits_somewhere(left.free, left, key)
        if reason.code is WaitCode.NO_NODE:
            assert not fits_somewhere(cluster.free, cluster, key)
        elif reason.code is WaitCode.BEHIND_OTHERS:
            assert reserved
        else:
            assert reason.code in HARDWARE
            assert not fits
        if fits:
            assert reason.code is WaitCode.BEHIND_OTHERS
    waits = {key for key in keys if any(waiting.key_of(t) == key for t in left_over(waiting, decision))}
    assert waits == set(decision.reasons)


def left_over(waiting, decision):
    placed = set(started(decision))
    return [trial_id for line in waiting.lines() for _, trial_id in line.entries if trial_id not in placed]


@some
@given(nodes, st.lists(classes(priorities=(0, 2)), min_size=1, max_size=30), st.integers(1, 40))
def test_a_class_is_served_first_come_first(fleet, keys, batch):
    waiting = lone_queue(keys)
    decision = place(Cluster(fleet), waiting, {}, now=100.0, rules=PassRules(max_placements=batch))
    for line in waiting.lines():
        mine = [placed.trial_id for placed in decision.placements if placed.key == line.key]
        assert mine == [trial_id for _, trial_id in line.entries][: len(mine)]


@some
@given(nodes, st.lists(classes(priorities=(0, 2)), min_size=1, max_size=30))
def test_without_a_limit_nobody_is_placed_before_someone_better_ranked_that_fits_as_well(fleet, keys):
    decision = place(Cluster(fleet), lone_queue(keys), {}, now=100.0)
    ranks = {f"t{n:03d}": (rank(key.priority, float(n // 2)), f"t{n:03d}") for n, key in enumerate(keys)}
    order = [ranks[trial_id] for trial_id in started(decision)]
    assert order == sorted(order)


@some
@given(nodes, arrivals(priorities=(0, 1)), st.randoms(use_true_random=False))
def test_the_same_snapshot_gives_the_same_decision_however_it_came_about(fleet, trials, shuffle):
    world = World(fleet).run(trials[: len(trials) // 2])
    for number, trial in enumerate(trials[len(trials) // 2 :]):
        world.queue.add(f"u{number:03d}", trial.key, trial.at)
    live = place(world.cluster, world.queue, {}, now=world.now)
    for placed in live.placements[::2]:
        world.start(placed)
    kept = list(world.cluster)
    shuffle.shuffle(kept)
    entries = [
        (trial_id, line.key, place_) for line in world.queue.lines() for place_, trial_id in line.entries
    ]
    shuffle.shuffle(entries)
    rebuilt = Queue()
    for trial_id, key, place_ in entries:
        rebuilt.add(trial_id, key, place_ + key.priority * 86_400)
    again = list(fleet)
    random.Random(0).shuffle(again)
    now = world.now + 1
    assert place(Cluster(again, kept), rebuilt, {}, now=now) == place(world.cluster, world.queue, {}, now=now)


@some
@given(nodes, arrivals(priorities=(0, 1)))
def test_deciding_changes_nothing(fleet, trials):
    cluster, waiting = Cluster(fleet), Queue()
    for number, trial in enumerate(trials):
        waiting.add(f"t{number:03d}", trial.key, trial.at)
    first = place(cluster, waiting, {}, now=100.0)
    assert first == place(cluster, waiting, {}, now=100.0)
    assert len(waiting) == len(trials)
    assert len(cluster) == 0
