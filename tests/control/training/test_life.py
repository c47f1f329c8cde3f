"""The life of a gang from its admission to its release, in virtual time."""

from __future__ import annotations

import json

import pytest

from support.deployment import fleet
from support.gangs import catalog, task, two_clusters
from trainshed.engines.contract import EndedBy, EngineError, Report
from trainshed.engines.fake import FakeEngine, ImageScript, Script
from trainshed.model.states import AllocationState, State
from trainshed.model.training.catalog import ANY, Quota, Volume
from trainshed.model.training.spec import Endpoint, EnvVar, Metrics, Mount, MountType, Precheck, ResourceType
from trainshed.store import settings

IMAGE = "example/train@sha256:" + "1" * 64


def test_C27_two_replicas_are_placed_start_together_succeed_and_are_released(site):
    d = site(default=Script(start_after=1.0, run_seconds=5.0))
    job = d.create(task(workers=1, specs=["h100x4"]))
    d.step()
    assert d.trial(job).state is State.PREPARING
    assert sorted(d.nodes_of(job)) == ["n1", "n2"]
    facts = d.settle(job)
    assert facts.trial.state is State.SUCCEEDED
    assert [replica.state for replica in d.replicas(job)] == ["Succeeded", "Succeeded"]
    [held] = facts.allocations[facts.trial.id]
    assert held.state is AllocationState.RELEASED
    assert set(json.loads(held.evidence)) >= {"replica 0: processes", "replica 1: processes"}
    assert facts.codes() == [
        "SUBMITTED",
        "QUEUED",
        "ADMITTED",
        "PLACED",
        "READY",
        "READY",
        "STARTED",
        "ENDED",
        "FINISHED",
        "RELEASED",
    ]
    assert not d.engine.live()


def test_C27_eight_free_gpus_on_two_nodes_are_not_one_of_eight(site):
    d = site(default=Script(run_seconds=5.0))
    job = d.create(task(specs=["h100x4"], count=2))
    d.step()
    assert d.trial(job).state is State.QUEUED
    assert not d.unreleased()


def test_C41_C45_every_replica_gets_the_variables_and_its_own_rank(site):
    d = site(default=Script(run_seconds=None))
    spec = task(workers=1, specs=["h100x2"], env=(EnvVar("EPOCHS", "3"), EnvVar("TOKEN", "", hidden=True)))
    job = d.create(spec, secrets={"env.TOKEN": "secret", "precheck.env.OTHER": "x"})
    d.step()
    launches = [d.world.attempts[unit].launch for unit in d.units(job)]
    for rank, launch in enumerate(launches):
        address, port = launch.gang.meeting.hosts[0].address, str(launch.gang.meeting.port)
        assert dict(launch.env) == {
            "PYTHONUNBUFFERED": "1",
            "EPOCHS": "3",
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            "WORLD_SIZE": "2",
            "RANK": str(rank),
            "PET_MASTER_ADDR": address,
            "PET_MASTER_PORT": port,
            "PET_NNODES": "2",
            "PET_NODE_RANK": str(rank),
            "PET_NPROC_PER_NODE": "2",
            "X_USER_NAME": "ann",
            "X_ORG_NAME": "default",
            "X_TENANT_ID": "default",
            "X_REGION": "local",
            "X_CLUSTER": "local",
            "TASK_UUID": d.task(job).task_uuid,
            "TRAINSHED_ATTEMPT": "1",
            "TRAINSHED_RESUBMISSION": "0",
        }
        assert dict(launch.secrets) == {"TOKEN": "secret"}
        assert len(launch.gpus) == 2
        assert launch.sample_seconds == 15.0
    d.stop(job)
    d.settle(job)


def test_C15_the_command_arrives_byte_for_byte(site):
    d = site(default=Script(run_seconds=1.0))
    command = 'echo $(X) $$ "quo\'tes"\n\techo ünïcode && false || true  \n'
    job = d.create(task(cmd=command))
    d.step()
    [unit] = d.units(job)
    assert d.world.attempts[unit].launch.argv == ("bash", "-c", command)
    d.settle(job)


def test_C31_C36_C37_C39_options_become_parts_of_every_launch(site):
    d = site(default=Script(run_seconds=1.0))
    spec = task(
        workers=1,
        ssh=True,
        notice=45,
        precheck=Precheck(enabled=True, env=(EnvVar("NCCL_DEBUG", "INFO"),)),
        metrics=Metrics(enabled=True, endpoints=(Endpoint(9400, "/metrics"),)),
    )
    job = d.create(spec)
    d.step()
    first, second = (d.world.attempts[unit].launch for unit in d.units(job))
    assert first.ssh == second.ssh
    assert first.ssh.private_key.startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
    assert first.ssh.public_key.startswith("ssh-ed25519 ")
    assert len(first.ssh.host_private_keys) == 2
    assert (first.notice.timeout_seconds, first.notice.signal) == (45.0, "SIGUSR1")
    assert dict(first.precheck.env) == {"NCCL_DEBUG": "INFO"}
    assert [(end.port, end.path) for end in first.endpoints] == [(9400, "/metrics")]
    assert first.env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "45"
    assert d.settle(job).trial.state is State.SUCCEEDED


def test_c8_one_failure_ends_the_attempt_and_says_who_failed(site):
    d = site(default=Script(run_seconds=None, output=b"epoch 1\n"))
    job = d.create(task(workers=1))
    d.until(job, State.RUNNING)
    d.members(job, [1], run_seconds=0.0, code=3, output=b"boom\n")
    facts = d.settle(job)
    assert facts.trial.state is State.FAILED
    assert (facts.trial.error_code, facts.trial.exit_code) == ("NONZERO_EXIT", 3)
    assert "replica 1 on n1" in facts.trial.error_message
    assert "boom" in facts.trial.error_message
    [attempt] = d.attempts(job)
    assert (attempt.exit_class, attempt.failed_rank, attempt.log_tail) == ("user", 1, "boom")
    assert [replica.state for replica in d.replicas(job)] == ["Failed", "Failed"]


def test_c8_a_worker_that_ends_after_the_master_still_ends_by_itself(site):
    d = site(default=Script(run_seconds=5.0))
    job = d.create(task(workers=1))
    d.until(job, State.RUNNING)
    d.members(job, [1], run_seconds=35.0)
    d.pass_time(10.0)
    d.step()
    assert d.trial(job).state is State.RUNNING
    assert d.settle(job).trial.state is State.SUCCEEDED


def test_c8_others_that_the_engine_does_not_end_are_ended_within_a_minute(site):
    d = site(default=Script(run_seconds=None, deaf=True))
    job = d.create(task(workers=1))
    d.until(job, State.RUNNING)
    d.members(job, [0], run_seconds=0.0, code=1)
    begun = d.now()
    facts = d.settle(job)
    assert facts.trial.state is State.FAILED
    assert d.now() - begun < 120.0


@pytest.mark.parametrize("retries", [0, 2])
def test_C38_pulls_are_tried_again_as_often_as_the_task_allows(site, retries):
    d = site(default=Script(run_seconds=1.0))
    error = EngineError("IMAGE_PULL_FAILED", "no route", retryable=True)
    d.engine.script_image(IMAGE, ImageScript(failures=(error,) * (retries + 1)))
    job = d.create(task(image="example/train", image_pull_retries=retries), image=IMAGE)
    if retries:
        d.step()
        assert (d.task(job).stage, [r.state for r in d.replicas(job)]) == ("pulling", ["Pulling"])
    facts = d.settle(job)
    assert facts.trial.state is State.FAILED
    assert facts.trial.error_code == "IMAGE_PULL_FAILED"
    assert "no route" in facts.trial.error_message
    assert facts.codes().count("IMAGE_PULL_RETRY") == retries
    assert facts.codes().count("IMAGE_PULLING") == 1
    assert d.world.prepared[IMAGE] == retries + 1


def test_C38_without_a_limit_pulls_go_on_until_one_succeeds(site):
    d = site(default=Script(run_seconds=1.0))
    error = EngineError("IMAGE_PULL_FAILED", "no route", retryable=True)
    d.engine.script_image(IMAGE, ImageScript(failures=(error,) * 7))
    job = d.create(task(image="example/train", image_pull_retries=-1), image=IMAGE)
    assert d.settle(job).trial.state is State.SUCCEEDED
    assert d.facts(job).codes().count("IMAGE_PULL_RETRY") == 7


def test_C31_a_failed_check_fails_the_task_whatever_its_budget(site):
    found = "replica 0, GPU 1, gemm: 3 TFLOP/s"
    d = site(default=Script(precheck_seconds=5.0, precheck_failure=found))
    job = d.create(task(precheck=Precheck(enabled=True), tries=5))
    d.step()
    d.pass_time(1.0)
    d.step()
    assert d.task(job).stage == "prechecking"
    facts = d.settle(job)
    assert (facts.trial.state, facts.trial.error_code) == (State.FAILED, "PRECHECK_FAILED")
    assert found in facts.trial.error_message
    assert len(d.attempts(job)) == 1
    assert not facts.trial.user_code_started


def test_C11_C13_volumes_are_mounted_where_the_task_says(site, tmp_path):
    volume = tmp_path / "volume"
    (volume / "in").mkdir(parents=True)
    d = site(
        default=Script(run_seconds=1.0),
        catalog_=catalog(volumes=[Volume("vol", (ANY,), str(volume), multi_writer=True)]),
    )
    mounts = (
        Mount(MountType.VOLUME, "vol", "/volume/out", sub_path="runs/1"),
        Mount(MountType.VOLUME, "vol", "/mnt/in", sub_path="in", read_only=True),
    )
    job = d.create(task(mounts=mounts))
    d.step()
    [unit] = d.units(job)
    made = d.world.attempts[unit].launch.mounts
    assert [(each.target, each.source, each.within, each.writable) for each in made] == [
        ("/volume/out", volume, "runs/1", True),
        ("/mnt/in", volume, "in", False),
    ]
    assert d.settle(job).trial.state is State.SUCCEEDED


def test_C11_a_link_in_a_volume_leads_no_mount_out_of_it(site, tmp_path):
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    volume.mkdir()
    outside.mkdir()
    (volume / "link").symlink_to(outside)
    d = site(catalog_=catalog(volumes=[Volume("vol", (ANY,), str(volume))]))
    job = d.create(task(mounts=(Mount(MountType.VOLUME, "vol", "/volume/out", sub_path="link"),)))
    d.step()
    assert not d.engine.live()
    assert d.trial(job).state is State.QUEUED
    assert "leads out of it" in d.trial(job).error_message


def test_c2_reports_become_events_exactly_once_with_rank_and_level(site):
    said = (Report(0, 1.0, "METRICS_PORT_TAKEN", "Port 9400 is taken.", "warning"),)
    d = site(default=Script(run_seconds=3.0, reports=said))
    job = d.create(task(workers=1))
    facts = d.settle(job)
    found = [e for e in facts.events if e.code == "METRICS_PORT_TAKEN"]
    assert sorted((e.replica, e.level) for e in found) == [(0, "warning"), (1, "warning")]
    assert all(replica.reports == 2 for replica in d.replicas(job))


def test_a_time_limit_ends_a_task_without_another_try(site):
    d = site(default=Script(run_seconds=None))
    job = d.create(task(max_run_seconds=30, tries=3))
    facts = d.settle(job, pause=5.0)
    assert (facts.trial.state, facts.trial.error_code) == (State.FAILED, "TRIAL_TIMEOUT")
    assert len(d.attempts(job)) == 1


def test_an_engine_that_does_not_answer_is_never_a_failure(site, monkeypatch):
    d = site(default=Script(run_seconds=1000.0))
    job = d.create(task(tries=3))
    d.until(job, State.RUNNING)

    def silent(_units):
        raise EngineError("ENGINE_UNREACHABLE", "no answer", retryable=True)

    with monkeypatch.context() as patched:
        patched.setattr(d.engine, "observe", silent)
        for _ in range(10):
            d.pass_time(60.0)
            d.step()
        assert d.trial(job).state is State.RUNNING
    assert d.settle(job, pause=60.0).trial.state is State.SUCCEEDED


def test_C23_units_of_a_quota_are_never_exceeded(site):
    quotas = [Quota(ANY, ResourceType.ONDEMAND, "default", ANY, 3)]
    d = site(default=Script(run_seconds=10.0), catalog_=catalog(quotas))
    jobs = [d.create(task(workers=1)) for _ in range(2)]
    d.step()
    assert [d.trial(job).state for job in jobs] == [State.PREPARING, State.QUEUED]
    assert all(d.settle(job).trial.state is State.SUCCEEDED for job in jobs)


def test_a_gang_of_which_one_member_never_arrives_is_tried_again(site):
    d = site(default=Script(run_seconds=5.0))
    job = d.create(task(workers=1, tries=0))
    d.step()
    first = d.attempts(job)[0]
    assert first.cause == "initial"
    d.members(job, [1], not_started="no room", run_seconds=1.0)
    d.run_until(lambda: len(d.attempts(job)) == 2, pause=5.0)
    assert d.attempts(job)[1].cause == "platform"
    assert d.settle(job, pause=5.0).trial.state is State.SUCCEEDED


def test_E_an_ending_by_memory_has_its_own_code(site):
    d = site(default=Script(run_seconds=1.0, code=137, signal=9, ended_by=EndedBy.MEMORY))
    job = d.create(task())
    facts = d.settle(job)
    assert facts.trial.error_code == "MEMORY_LIMIT_EXCEEDED"
    assert d.attempts(job)[0].exit_class == "oom"


def test_P8_the_logs_of_every_member_go_when_their_time_is_over(site):
    d = site(default=Script(run_seconds=1.0, output=b"line\n"), log_retention_days=1.0)
    job = d.create(task(workers=1))
    d.settle(job)
    units = d.units(job)
    assert all(d.engine.logs(unit).frames.exists() for unit in units)
    d.pass_time(2 * 86_400.0)
    d.controller._retired = float("-inf")
    d.step()
    assert not any((d.root / "engine" / unit).exists() for unit in units)
    assert d.attempts(job)[0].log_deleted_at is not None


def test_C1_a_cluster_that_comes_later_runs_what_waited_for_it(site, tmp_path):
    """Its engine is opened beside the controller's thread, again and again until it answers."""
    tries: list[str] = []
    far = FakeEngine(tmp_path / "far", nodes=[fleet(4, name="far1")], default=Script(run_seconds=5.0))

    def open_engine(cluster):
        tries.append(cluster.address)
        if len(tries) < 3:
            raise EngineError("ENGINE_UNREACHABLE", "no route", retryable=True)
        return far

    d = site(open_engine=open_engine, catalog_=two_clusters())
    far.world = d.world
    here, there = d.create(task()), d.create(task(cluster="far", pool="far", workers=1))
    d.step()
    assert (d.trial(here).state, d.trial(there).state) == (State.PREPARING, State.QUEUED)
    assert d.settle(there).trial.state is State.SUCCEEDED
    assert tries == ["10.0.0.1:6379"] * 3
    assert d.nodes_of(there) == ["far1", "far1"]
    [held] = d.facts(there).allocations[d.trial(there).id]
    assert held.engine == "ray:10.0.0.1:6379"
    with d.database.read() as connection:
        published = json.loads(settings.get(connection, settings.FLEET))
    assert [row["node"]["name"] for row in published["far"]] == ["far1"]
