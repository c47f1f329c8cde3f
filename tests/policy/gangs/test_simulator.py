"""The simulator itself: a hundred thousand steps over many random sites, and that a seed repeats one."""

from random import Random

import pytest

from policy.gangs.gang_worlds import World, gang, nodes
from trainshed.policy.gangs import invariants, simulator
from trainshed.policy.gangs.simulator import SimulatedSite, simulate

PIECES = 40
STEPS = 2_500


@pytest.mark.parametrize("piece", range(PIECES))
def test_P4_P5_P10_P11_hold_after_every_step_of_random_sites(piece):
    """Repeat a failure with the seed that it names: `--seed N --sites 1`."""
    sites, counts, _ = simulate(1000 * piece, STEPS)
    assert sites > 1
    assert counts["steps"] >= STEPS
    assert counts["admitted"] > 0


def test_what_makes_scheduling_hard_happens_in_the_simulator():
    _, counts, _ = simulate(0, STEPS)
    for what in (
        "evicted",
        "admitted on a plan",
        "node lost",
        "cordon",
        "resubmitted",
        "Runner Trial",
        "saved",
    ):
        assert counts[what] > 0, what


def test_a_seed_repeats_a_site():
    first, second = SimulatedSite(7, 100).run(), SimulatedSite(7, 100).run()
    assert (first.steps, first.counts, first.now) == (second.steps, second.counts, second.now)


def test_the_command_prints_its_seed_and_a_table(capsys):
    assert simulator.main(["--seed", "3", "--sites", "1"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("seed 3\n")
    assert "admitted" in printed


def test_a_broken_promise_names_its_seed(monkeypatch, capsys):
    def broken(*_):
        raise invariants.BrokenPromise("P5: for the test")

    monkeypatch.setattr(invariants, "check_quotas", broken)
    assert simulator.main(["--seed", "5", "--sites", "1"]) == 1
    assert "broken: seed 5, step 1" in capsys.readouterr().out


def test_T11_C27_two_gangs_that_each_fit_half_never_block_each_other():
    """Both want more than half: one runs whole, then the other, in a thousand random rounds."""
    random = Random(11)
    for _ in range(1000):
        count = random.randint(2, 6)
        world = World(nodes(count))
        sizes = [random.randint(count // 2 + 1, count) for _ in range(2)]
        limits = [random.choice((None, 100)) for _ in range(2)]
        for number in random.sample(range(2), 2):
            world.add(
                f"g{number}", gang(sizes[number], max_run_seconds=limits[number]), queued_at=random.random()
            )
        done = []
        for second in range(1, 4):
            started = world.step(second)
            assert len(started) <= 1
            for name in started:
                assert len(world.cluster.running[name].parts) == sizes[int(name[1])]
                done.append(name)
                assert world.step(second) == []
                world.end(name)
        assert sorted(done) == ["g0", "g1"]
