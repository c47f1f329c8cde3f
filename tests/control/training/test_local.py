"""Gangs on the local engine: real programs on this machine. How torchrun finds itself: tests/training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from support.databases import on_one_kind
from support.gangs import catalog, task
from support.local_gangs import LocalGangs
from support.ray_cluster import need_ray
from support.waiting import wait_until
from trainshed.model.states import State
from trainshed.model.training.catalog import ANY, Volume
from trainshed.model.training.spec import EnvVar, Kind, Mount, MountType

pytestmark = on_one_kind


@pytest.fixture
def here(database, tmp_path) -> Iterator[Callable[..., LocalGangs]]:
    made: list[LocalGangs] = []

    def make(**options: object) -> LocalGangs:
        deployment = LocalGangs(database, tmp_path / f"site{next(count())}", nodes=(), **options)
        made.append(deployment)
        return deployment

    yield make
    for deployment in made:
        deployment.close()


def test_C42_C43_two_replicas_run_and_each_knows_its_rank(here):
    d = here()
    command = 'echo "rank $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT, token $TOKEN, $X_USER_NAME"'
    spec = task(workers=1, cmd=command, env=(EnvVar("TOKEN", "", hidden=True),))
    job = d.create(spec, secrets={"env.TOKEN": "s3cr3t-value"})
    d.settled(job)
    assert d.trial(job).state is State.SUCCEEDED, d.trial(job).error_message
    said = [d.output(unit).decode() for unit in d.units(job)]
    [held] = d.facts(job).allocations[d.trial(job).id]
    meeting = json.loads(held.meeting)
    where = f"{meeting['hosts'][0][1]}:{meeting['port']}"
    for rank, text in enumerate(said):
        assert f"rank {rank} of 2 at {where}" in text
        assert "s3cr3t-value" not in text, "hidden values are masked"
        assert "ann" in text


def test_c8_a_replica_that_fails_ends_the_other(here):
    d = here()
    command = 'if [ "$RANK" = 1 ]; then echo broken >&2; exit 9; fi; sleep 600'
    job = d.create(task(workers=1, cmd=command))
    d.settled(job)
    trial = d.trial(job)
    assert (trial.state, trial.error_code, trial.exit_code) == (State.FAILED, "NONZERO_EXIT", 9)
    assert "broken" in trial.error_message


def test_C36_a_stopped_program_saves_to_its_volume_and_the_next_attempt_goes_on(here, tmp_path):
    volume = tmp_path / "volume"
    volume.mkdir()
    d = here(catalog_=catalog(volumes=[Volume("vol", (ANY,), str(volume), multi_writer=True)]))
    command = (
        f"step=$(cat {volume}/step 2>/dev/null || echo 0); echo started from $step; "
        f"trap 'echo $((step + 1)) > {volume}/step; exit 0' USR1; touch {volume}/ready$step; "
        "while true; do sleep 0.1; done"
    )
    job = d.create(task(cmd=command, notice=30, mounts=(Mount(MountType.VOLUME, "vol", "/volume/out"),)))

    def started() -> bool:
        d.controller.step()
        d.pass_time(1.0)
        return (volume / "ready0").exists() or d.trial(job).state is State.FAILED

    wait_until(started, 60)
    d.stop(job)
    d.settled(job)
    assert d.trial(job).state is State.CANCELLED, d.trial(job).error_message
    assert (volume / "step").read_text() == "1\n"
    assert "EXIT_NOTICE_SENT" in d.facts(job).codes()


def test_P14_gangs_run_on_while_the_server_restarts(here):
    d = here()
    job = d.create(task(workers=1, cmd="sleep 2; echo done"))

    def running() -> bool:
        d.controller.step()
        d.pass_time(1.0)
        return d.trial(job).state is not State.QUEUED and d.trial(job).state is not State.PREPARING

    wait_until(running, 60)
    d.controller.stop()
    d.engine.close()
    d.boot()
    d.settled(job)
    assert d.trial(job).state is State.SUCCEEDED, d.trial(job).error_message
    assert len(d.attempts(job)) == 1
    assert [d.output(unit) for unit in d.units(job)] == [b"done\n", b"done\n"]


@pytest.mark.xdist_group("ray")
@pytest.mark.timeout(400)
def test_C46_C52_a_ray_task_has_a_cluster_of_its_own_and_its_driver_decides(here):
    path = f"{need_ray().parent}:/usr/local/bin:/usr/bin:/bin"
    driver = (
        "python -c 'import ray, os; ray.init(); "
        'print("nodes", len(ray.nodes()), os.environ["TASK_UUID"])\' && exit 5'
    )
    d = here()
    spec = task(kind=Kind.RAY, specs=["c2"], workers=1, cmd=driver, env=(EnvVar("PATH", path),))
    job = d.create(spec)
    d.settled(job, 350)
    trial = d.trial(job)
    said = "".join(d.output(unit).decode() for unit in d.units(job))
    assert (trial.state, trial.error_code, trial.exit_code) == (State.FAILED, "NONZERO_EXIT", 5), (
        trial.error_message,
        said,
        [event.message for event in d.facts(job).events],
    )
    assert f"nodes 2 {d.task(job).task_uuid}" in d.output(d.units(job)[2]).decode()
    assert d.attempts(job)[0].failed_rank == 2
    assert not d.unreleased()
