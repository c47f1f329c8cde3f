"""The life of a script Job, row by row of section b, at a provider in memory and on this machine."""

from __future__ import annotations

from support.cloud import LocalCourse, runs
from support.deployment import fleet
from trainshed.model.resources import Amounts, Node
from trainshed.store import jobs


def test_G38_a_plain_job_goes_from_queued_to_done_and_its_outputs_are_in_its_folder(cloud):
    d = cloud()
    d.cloud.course = runs(60.0)
    job = d.pack()
    tale = d.rest(job)
    assert tale.words == ["queued", "routing", "provisioning", "running", "done"]
    assert tale.reasons == ["submitted", "routing_started", "placed", "started", "completed"]
    assert d.outputs(job) == {"outputs/model.bin": b"weights"}
    assert d.delivered(job) == {"model.bin": b"weights"}


def test_G4_a_quick_test_runs_on_this_machine_without_any_login(cloud):
    d = cloud(local=True, clouds={}, default=LocalCourse(run_seconds=30.0, files={"outputs/a/b.txt": b"x"}))
    job = d.pack(smoke=True, hours=None)
    tale = d.rest(job)
    assert tale.words == ["queued", "routing", "provisioning", "running", "done"]
    assert tale.look.script.provider == "local"
    assert tale.look.script.gpu == "H100"
    assert d.delivered(job) == {"a/b.txt": b"x"}
    [attempt] = d.world.attempts.values()
    launch = attempt.launch
    assert launch.argv == ("python3", "gpu_runner/__main__.py")
    assert {"code/train.py", "code/lib/util.py", "gpu_runner/lib/gpu.py", "manifest.json"} <= {
        file.path for file in launch.files
    }
    assert launch.env["TRAINSHED_JOB_ID"] == tale.look.job.digits
    assert [gpu.model for gpu in launch.gpus] == ["H100"]


def test_G4_a_machine_without_gpus_runs_what_needs_none(cloud):
    node = Node("plain", (), Amounts(cpus=4, memory_mb=8_000, storage_mb=8_000, shm_mb=100))
    d = cloud(local=True, clouds={}, nodes=(node,), default=LocalCourse(run_seconds=3.0))
    tale = d.rest(d.pack(provider="local"))
    assert tale.words[-1] == "done"
    assert tale.look.script.gpu is None
    with d.database.read() as connection:
        [held] = jobs.allocations_of(connection, [tale.look.trial.id])[tale.look.trial.id]
    assert (held.node, held.gpus, held.cpus) == ("plain", 0, 2)


def test_G77_on_this_machine_two_jobs_run_one_after_the_other(cloud):
    d = cloud(local=True, clouds={}, default=LocalCourse(run_seconds=20.0))
    first, second = d.pack(provider="local"), d.pack(provider="local")
    d.until(first, "running", pause=1.0)
    waiting = d.tale(second)
    assert waiting.word == "queued"
    assert waiting.look.script.not_before is not None
    assert "takes no more at once" in waiting.look.script.message
    d.rest(first)
    assert d.rest(second).words[-4:] == ["routing", "provisioning", "running", "done"]
    starts = sorted(attempt.launched_at for attempt in d.world.attempts.values())
    assert starts[1] - starts[0] >= 20.0


def test_G44_a_script_that_fails_is_failed_with_its_exit_code_and_its_outputs_are_kept(cloud):
    d = cloud()
    d.cloud.course = runs(60.0, code=3)
    job = d.pack()
    tale = d.rest(job)
    assert tale.words == ["queued", "routing", "provisioning", "running", "failed"]
    assert tale.reasons[-1] == "script_failed"
    assert (tale.look.trial.exit_code, tale.look.script.failure_kind) == (3, "user_error")
    assert tale.look.script.message == "The script ended with exit code 3."
    assert "outputs_kept" in tale.notes
    assert d.delivered(job) == {"model.bin": b"weights"}


def test_a_run_that_began_and_failed_between_two_looks_is_failed(cloud):
    d = cloud()
    d.cloud.course = runs(1.0, start_after=0.5, code=2)
    tale = d.rest(d.pack(), pause=30.0)
    assert tale.words[-3:] == ["provisioning", "running", "failed"]
    assert tale.look.trial.exit_code == 2


def test_P10_a_job_that_waits_for_this_machines_gpus_says_so_and_runner_trials_keep_their_order(cloud):
    d = cloud(local=True, clouds={}, nodes=(fleet(1),), default=LocalCourse(run_seconds=40.0))
    first = d.submit(d.publish(), "runner")
    d.step()
    job = d.pack(provider="local")
    for _ in range(3):
        d.pass_time(5.0)
        d.step()
    waiting = d.tale(job)
    assert waiting.word == "routing"
    assert "H100" in waiting.look.script.message
    assert d.facts(first).trial.state == "running"
    tale = d.rest(job)
    assert tale.words[-3:] == ["provisioning", "running", "done"]
    ends = d.facts(first).trial.finished_at
    assert tale.attempts[0].submitted_at >= ends, "nothing is given out twice (P5)"
