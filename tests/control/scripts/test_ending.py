"""Cancels, outputs, logs and what a restart finds (a.4, a.5, i, k)."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cloud import CLOUD, LocalCourse, runs, wire
from trainshed.content.logs import LogReader
from trainshed.engines.contract import EndedBy
from trainshed.engines.local import log_files
from trainshed.engines.providers.contract import Unavailable
from trainshed.engines.providers.fake import FakeProvider
from trainshed.model.scripts.wire import hidden
from trainshed.store import scripts

# Cancels


def test_G41_a_cancel_of_a_run_goes_through_cancelling_and_keeps_what_it_wrote(cloud):
    d = cloud()
    d.cloud.course = runs(None, cancel_takes=20.0)
    job = d.pack()
    d.until(job, "running")
    d.cancel(job)
    tale = d.rest(job)
    assert tale.words[-3:] == ["running", "cancelling", "cancelled"]
    assert tale.reasons[-2:] == ["user_cancel", "cancelled"]
    assert d.outputs(job) == {"outputs/model.bin": b"weights"}
    assert d.delivered(job) == {"model.bin": b"weights"}
    assert d.cloud.live(d.now()) == []


def test_G41_a_cancel_of_one_that_waits_is_immediate(cloud):
    d = cloud()
    job = d.pack("agent", hours=None)
    d.until(job, "awaiting_approval")
    d.cancel(job)
    tale = d.rest(job)
    assert tale.words[-2:] == ["awaiting_approval", "cancelled"]


def test_b_a_cancel_that_is_not_confirmed_in_five_minutes_is_believed_and_goes_on(cloud):
    d = cloud()
    d.cloud.course = runs(None, cancel_takes=None)
    job = d.pack()
    d.until(job, "running")
    d.cancel(job)
    tale = d.until(job, "cancelled", pause=20.0)
    assert tale.reasons[-1] == "cancel_unconfirmed"
    assert tale.look.now - tale.look.trial.stop_accepted_at == pytest.approx(300, abs=40)
    assert d.unreleased(), "what it holds is not proven gone"


def test_b_a_cancel_while_it_is_being_submitted_leaves_nothing_there(cloud):
    d = cloud()
    d.cloud.lost_answers["submit"] = 1
    d.cloud.failures["lookup_by_key"] = [Unavailable("down")] * 3
    d.cloud.course = runs(None)
    job = d.pack()
    d.until(job, "provisioning")
    d.cancel(job)
    tale = d.rest(job)
    assert tale.words[-2:] == ["cancelling", "cancelled"]
    assert (len(d.cloud.runs), d.cloud.live(d.now())) == (1, [])


def test_b_a_run_that_somebody_stops_at_the_provider_is_cancelled(cloud):
    d = cloud()
    d.cloud.course = runs(None, ended_outside_after=50.0)
    tale = d.rest(d.pack())
    assert tale.words[-2:] == ["running", "cancelled"]
    assert tale.reasons[-1] == "remote_cancelled"


def test_a5_one_that_had_ended_well_when_the_cancel_came_keeps_its_outputs(cloud):
    d = cloud()
    d.cloud.course = runs(20.0)
    job = d.pack()
    d.until(job, "running", pause=1.0)
    d.pass_time(30.0)
    d.cancel(job)
    tale = d.rest(job)
    assert tale.words[-1] == "cancelled"
    assert d.outputs(job) == {"outputs/model.bin": b"weights"}


def test_a_cancel_on_this_machine_stops_the_program(cloud):
    d = cloud(local=True, clouds={}, default=LocalCourse(run_seconds=None))
    job = d.pack(provider="local")
    d.until(job, "running", pause=1.0)
    d.cancel(job)
    tale = d.rest(job)
    assert tale.words[-2:] == ["cancelling", "cancelled"]
    assert d.engine.live() == set()


# A runner that is killed

TOLD = {"code": 3, "signal": None, "stage": "script", "stopped": False, "message": "", "checkpoint": None}


@pytest.mark.parametrize(
    ("course", "attempts", "kind", "said"),
    [
        ({"ended_by": EndedBy.EXIT}, 6, "provider_error", "6 Attempts"),
        ({"ended_by": EndedBy.MEMORY}, 1, "user_error", "exit code 137."),
        ({"run_seconds": 0.0, "output": wire("exit", **TOLD).encode() + b"\n"}, 1, "user_error", "code 3."),
    ],
    ids=["by somebody", "for want of memory", "once it had told of the end"],
)
def test_b_a_runner_that_is_killed_proves_nothing_of_its_program(cloud, course, attempts, kind, said):
    killed = LocalCourse(**{"run_seconds": 60.0, "code": 137, "signal": 9, **course})
    d = cloud(local=True, clouds={}, default=killed)
    tale = d.rest(d.pack(provider="local"))
    assert (tale.words[-1], len(tale.attempts), tale.look.script.failure_kind) == ("failed", attempts, kind)
    assert said in tale.look.script.message
    assert (tale.reasons[-1] == "gave_up") is (attempts > 1), "the usual budget"


# Outputs


def test_i2_outputs_that_cannot_be_fetched_now_are_fetched_after_20_and_60_seconds(cloud):
    d = cloud()
    d.cloud.course = runs(20.0)
    d.cloud.failures["fetch"] = [Unavailable("net")] * 2
    job = d.pack()
    tale = d.rest(job, pause=2.0)
    assert tale.words[-1] == "done"
    assert d.delivered(job) == {"model.bin": b"weights"}
    assert tale.look.trial.finished_at - tale.attempts[0].ended_at >= 80


def test_i2_outputs_that_never_come_leave_the_job_done_and_a_note(cloud):
    d = cloud()
    d.cloud.course = runs(20.0)
    d.cloud.failures["fetch"] = [Unavailable("net")] * 3
    job = d.pack()
    tale = d.rest(job)
    assert tale.words[-1] == "done"
    assert "fetch_failed" in tale.notes
    d.database.write(lambda c: scripts.change(c, job, {"fetch_requested_at": d.now()}))
    d.step()
    assert d.delivered(job) == {"model.bin": b"weights"}, "gpu fetch tries again"


def test_i1_a_job_that_never_ran_leaves_no_folder_even_where_its_outputs_are_asked_for(cloud):
    d = cloud()
    d.cloud.course = runs(10.0, start_after=1e6, outputs={})
    job = d.pack()
    d.until(job, "provisioning")
    d.step()
    d.cancel(job)
    tale = d.rest(job)
    assert (tale.words[-1], [each.started_at for each in tale.attempts]) == ("cancelled", [None])
    folder = Path(tale.look.script.outputs_dir)
    d.database.write(lambda c: scripts.change(c, job, {"fetch_requested_at": d.now()}))
    d.step()
    tale = d.tale(job)
    assert tale.look.script.outputs_fetched, "nobody waits for more"
    assert (tale.look.script.outputs_count, tale.notes[-1]) == (0, "fetched")
    d.boot()
    d.step()
    assert not folder.exists()


def test_i2_a_folder_that_is_a_link_is_refused_and_nothing_is_written_through_it(cloud):
    d = cloud()
    d.cloud.course = runs(20.0)
    job = d.pack()
    d.until(job, "running")
    target = Path(d.tale(job).look.script.outputs_dir)
    elsewhere = d.root / "elsewhere"
    elsewhere.mkdir()
    target.parent.mkdir(parents=True)
    target.symlink_to(elsewhere)
    d.until(job, "done")
    for _ in range(12):
        d.pass_time(10.0)
        d.step()
    tale = d.tale(job)
    assert list(elsewhere.iterdir()) == []
    assert tale.notes.count("fetch_failed") == 1
    assert not tale.look.script.outputs_fetched


def test_i2_files_of_other_names_stay_and_those_of_the_same_name_are_replaced(cloud):
    d = cloud()
    d.cloud.course = runs(20.0)
    job = d.pack()
    d.until(job, "running")
    target = Path(d.tale(job).look.script.outputs_dir)
    target.mkdir(parents=True)
    (target / "mine.txt").write_text("mine")
    (target / "model.bin").write_text("old")
    d.rest(job)
    assert d.delivered(job) == {"mine.txt": b"mine", "model.bin": b"weights"}


def test_a4_outputs_of_a_project_on_another_machine_are_left_to_its_client(cloud):
    d = cloud()
    d.cloud.course = runs(20.0)
    job = d.pack(host="another-host")
    tale = d.rest(job)
    d.step()
    assert not Path(tale.look.script.outputs_dir).exists()
    assert d.outputs(job)


# Logs


def test_k5_each_line_of_a_remote_log_is_kept_once_also_across_restarts(cloud):
    d = cloud()
    lines = tuple((float(n), f"line {n}") for n in range(1, 250))
    helper = ((30.0, wire("metric", step=3, values={"loss": 0.25})),)
    d.cloud.course = runs(260.0, lines=lines + helper)
    job = d.pack()
    d.until(job, "running")
    for _ in range(12):
        d.pass_time(10.0)
        d.step()
        d.boot()
    d.rest(job)
    attempt = d.tale(job).attempts[0]
    with LogReader(log_files(d.root / "engines" / CLOUD, attempt.attempt_id)) as reader:
        kept = [record.data.decode() for record in reader.records()]
        assert reader.ended
    assert [line for line in kept if not hidden(line)] == [line for _, line in lines]
    assert attempt.lines == 250


def test_f_guesses_count_until_the_helper_speaks(cloud):
    d = cloud()
    d.cloud.course = runs(
        100.0,
        lines=(
            (1.0, "step 5/50 loss=0.9"),
            (50.0, wire("metric", step=7, values={"loss": 0.5})),
            (60.0, "step 40/50 loss=0.1"),
        ),
    )
    job = d.pack()
    d.until(job, "running")
    d.pass_time(10.0)
    d.step()
    assert '"source": "guess"' in d.tale(job).look.script.progress
    tale = d.rest(job)
    assert '"step": 7' in tale.look.script.progress
    assert '"source": "helper"' in tale.look.script.progress


# Restarts


def test_k4_a_restart_goes_on_with_every_job_and_says_so(cloud):
    d = cloud()
    d.cloud.course = runs(300.0)
    running, asking = d.pack(), d.pack("agent", hours=None)
    d.until(running, "running")
    d.until(asking, "awaiting_approval")
    d.boot()
    assert [d.tale(job).notes.count("recovered") for job in (running, asking)] == [1, 1]
    assert d.tale(asking).word == "awaiting_approval"
    tale = d.rest(running)
    assert (tale.words[-1], len(tale.attempts), len(d.cloud.runs)) == ("done", 1, 1)


def test_h4_what_a_run_elsewhere_prints_of_a_secret_is_masked_before_it_is_kept(cloud):
    d = cloud()
    d.secrets["API"] = "value-of-the-secret"
    d.cloud.course = runs(60.0, lines=((5.0, "token=value-of-the-secret!"),))
    job = d.pack(secrets=("API",))
    attempt = d.rest(job).attempts[0]
    with LogReader(log_files(d.root / "engines" / CLOUD, attempt.attempt_id)) as reader:
        assert [record.data.decode() for record in reader.records()] == ["token=***!"]


def test_what_goes_wrong_here_is_told_once_and_tried_again(cloud, monkeypatch):
    d = cloud()
    d.cloud.course = runs(20.0)
    faults = [RuntimeError("a bug")] * 2
    status = FakeProvider.status

    def failing(self, run):
        if faults:
            raise faults.pop()
        return status(self, run)

    monkeypatch.setattr(FakeProvider, "status", failing)
    tale = d.rest(d.pack())
    assert tale.words[-1] == "done"
    assert tale.notes.count("internal_error") == 1
