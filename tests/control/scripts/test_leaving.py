"""Checkpoints, losses, handoffs and overruns: the lower rows of section b's table (c.4, g.9)."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from support.cloud import CLOUD, runs, wire
from trainshed.engines.providers.contract import Capabilities, GpuOffer, Health, QuotaReading, Unavailable
from trainshed.engines.providers.fake import RemoteWorld, Save

HOUR = 3600.0
SAVES = (Save(100.0, 10, {"state": b"ten"}), Save(200.0, 20, {"state": b"twenty"}))


def key(d, number, job):
    return f"gpu-{d.tale(job).look.job.digits}-{number}"


def test_G42_a_save_shows_as_checkpointing(cloud):
    d = cloud()
    begin, end = wire("ckpt_begin", where="script"), wire("ckpt_end", where="script", ok=True)
    d.cloud.course = runs(100.0, lines=((10.0, begin), (40.0, end)))
    tale = d.rest(d.pack())
    assert tale.words[3:] == ["running", "checkpointing", "running", "done"]
    assert tale.reasons[4:6] == ["checkpoint_begin", "checkpoint_end"]


def test_b_a_save_that_does_not_end_is_not_waited_for(cloud):
    d = cloud()
    d.cloud.course = runs(2000.0, lines=((10.0, wire("ckpt_begin", where="script")),))
    tale = d.rest(d.pack(), pause=50.0)
    assert tale.reasons[4:6] == ["checkpoint_begin", "checkpoint_stalled"]
    assert tale.words[-1] == "done"


def test_G43_a_lost_session_goes_on_elsewhere_from_its_checkpoint(cloud):
    d = cloud()
    lines = ((5.0, wire("total", n=40)), (210.0, wire("metric", step=20, values={"loss": 0.5})))
    d.cloud.course = runs(1000.0, lost_after=250.0, saves=SAVES, lines=lines)
    job = d.pack()
    d.until(job, "running")
    d.cloud.courses[key(d, 2, job)] = runs(50.0)
    tale = d.rest(job, pause=10.0)
    left = [word for word in tale.words if word != "checkpointing"]
    assert left[-5:] == ["migrating", "provisioning", "running", "done"] or "migrating" in left
    assert "session_lost" in tale.reasons
    assert [each.state for each in tale.attempts] == ["lost", "succeeded"]
    assert tale.checkpoints[0].step == 20
    assert tale.attempts[1].resumed_from == tale.checkpoints[0].number
    resumed = d.cloud.runs[key(d, 2, job)].resumed
    assert resumed["files/state"] == b"twenty"
    assert json.loads(resumed["manifest.json"])["step"] == 20
    assert tale.look.script.free_attempts == 1
    assert json.loads(tale.look.script.progress)["step"] == 20


def test_g9_without_a_checkpoint_it_starts_afresh_and_says_so(cloud):
    d = cloud()
    d.cloud.course = runs(1000.0, lost_after=20.0)
    job = d.pack()
    d.until(job, "running")
    d.cloud.courses[key(d, 2, job)] = runs(5.0)
    tale = d.rest(job)
    assert any("starts afresh" in event.message for event in tale.events)
    assert d.cloud.runs[key(d, 2, job)].resumed == {}


def test_g9_a_damaged_checkpoint_is_passed_over_for_the_one_before_it(cloud):
    d = cloud()
    damaged = replace(SAVES[1], damaged=True)
    d.cloud.course = runs(1000.0, lost_after=250.0, saves=(SAVES[0], damaged))
    job = d.pack()
    d.until(job, "running")
    d.cloud.courses[key(d, 2, job)] = runs(5.0)
    tale = d.rest(job, pause=10.0)
    assert [each.step for each in tale.checkpoints] == [10]
    assert d.cloud.runs[key(d, 2, job)].resumed["files/state"] == b"ten"


def test_three_checkpoints_are_kept_and_one_whose_bytes_broke_here_is_not_used(cloud):
    d = cloud()
    saves = tuple(Save(400.0 * n, n, {"state": str(n).encode()}) for n in range(1, 6))
    d.cloud.course = runs(4000.0, lost_after=2100.0, saves=saves)
    job = d.pack()
    d.until(job, "running")
    d.cloud.courses[key(d, 2, job)] = runs(None)
    d.until(job, "migrating", pause=20.0)
    d.step()
    assert [each.step for each in d.tale(job).checkpoints] == [5, 4, 3]
    newest = d.tale(job).checkpoints[0].manifest_sha256
    d.blobs.path(newest).unlink()
    d.until(job, "running", pause=10.0)
    assert d.cloud.runs[key(d, 2, job)].resumed["files/state"] == b"4"
    assert [each.step for each in d.tale(job).checkpoints] == [4, 3]


def test_b_six_attempts_without_a_newer_checkpoint_are_the_end(cloud):
    d = cloud()
    d.cloud.course = runs(1000.0, lost_after=10.0)
    tale = d.until(d.pack(), "failed", pause=30.0)
    assert tale.reasons[-1] == "gave_up"
    assert tale.look.script.accepted_attempts == 6
    assert tale.look.script.failure_kind == "provider_error"
    starts = [each.submitted_at for each in tale.attempts]
    gaps = [after - before for before, after in pairwise(starts)]
    assert gaps == sorted(gaps), "they come ever later"


def test_b_max_attempts_of_gpu_yaml_counts_every_attempt(cloud):
    d = cloud()
    d.cloud.course = runs(1000.0, lost_after=10.0)
    tale = d.until(d.pack(max_attempts=2), "failed", pause=30.0)
    assert len(tale.attempts) == 2


@pytest.mark.parametrize("code", [90, 139])
def test_b_a_failed_environment_is_not_blamed_on_the_script(cloud, code):
    d = cloud()
    d.cloud.course = runs(3.0, code=code)
    job = d.pack()
    d.until(job, "migrating")
    d.cloud.courses[key(d, 2, job)] = runs(5.0)
    tale = d.rest(job, pause=10.0)
    assert tale.words[-1] == "done"
    assert tale.attempts[0].state == "lost"


def test_b_packages_that_are_not_there_twice_end_the_job_with_the_installers_line(cloud):
    d = cloud()
    why = "No matching distribution found for no_such_thing"
    said = f"requirements.txt could not be installed: {why}; -m pip install ended with exit status 1"
    about = {"code": 90, "signal": None, "stage": "install", "stopped": False, "message": said}
    d.cloud.course = runs(3.0, code=90, lines=((2.0, wire("exit", **about)),))
    tale = d.rest(d.pack(), pause=10.0)
    assert (tale.words[-1], tale.look.script.failure_kind) == ("failed", "user_error")
    assert why in tale.look.script.message
    assert [each.state for each in tale.attempts] == ["lost", "failed"]


def test_b_a_signal_after_a_while_is_the_scripts_own(cloud):
    d = cloud()
    d.cloud.course = runs(300.0, code=139)
    tale = d.rest(d.pack(), pause=10.0)
    assert tale.words[-1] == "failed"
    assert tale.look.trial.exit_code == 139


def test_b_what_is_interactive_ends_with_its_session(cloud):
    d = cloud()
    d.cloud.capabilities = Capabilities(interactive=True, max_concurrency=4)
    d.boot()
    d.cloud.course = runs(1000.0, lost_after=50.0)
    tale = d.rest(d.pack(interactive=True), pause=10.0)
    assert tale.reasons[-1] == "interactive_lost"
    assert len(tale.attempts) == 1


def test_b_a_provider_that_does_not_answer_is_told_and_believed_lost_after_three_hours(cloud):
    d = cloud(clouds={CLOUD: RemoteWorld(offers=(GpuOffer("T4", 16.0),)), "second": RemoteWorld()})
    d.clouds["second"].course = runs(5.0)
    d.cloud.course = runs(None)
    job = d.pack()
    d.until(job, "running")
    d.cloud.down = True
    for _ in range(36):
        d.pass_time(60.0)
        d.step()
    assert "status_unreachable" in d.tale(job).notes
    d.cloud.down = False
    d.pass_time(30.0)
    d.step()
    assert "status_recovered" in d.tale(job).notes
    d.cloud.down = True
    tale = d.until(job, "migrating", pause=60.0)
    assert tale.reasons[-1] == "status_lost"
    tale = d.until(job, "done", pause=30.0)
    assert [each.state for each in tale.attempts] == ["abandoned", "succeeded"]
    d.cloud.down = False
    tale = d.rest(job, pause=30.0)
    assert d.cloud.live(d.now()) == [], "met again, it is cancelled"
    assert "orphan_cancelled" in tale.notes


def test_k5_a_sleep_of_the_machine_is_no_time_without_an_answer(cloud):
    d = cloud()
    d.cloud.course = runs(None)
    job = d.pack()
    d.until(job, "running")
    d.cloud.failures["status"] = [Unavailable("net down")] * 2
    d.pass_time(5.0)
    d.step()
    d.pass_time(20 * HOUR)
    d.step()
    assert d.tale(job).word == "running"
    assert d.tale(job).attempts[0].unreachable_seconds < 300


def test_g9_half_an_hour_before_its_session_ends_it_saves_and_goes_on_elsewhere(cloud):
    d = cloud()
    d.cloud.capabilities = Capabilities(max_session_hours=1.0, max_concurrency=4)
    d.boot()
    d.cloud.course = runs(3 * HOUR, answers_after=60.0)
    job = d.pack(hours=3.0)
    tale = d.until(job, "running")
    began = tale.attempts[0].started_at
    d.cloud.courses[key(d, 2, job)] = runs(60.0)
    d.run_until(lambda: "migrating" in d.tale(job).words, pause=50.0)
    assert d.now() - began == pytest.approx(1800 + 60, abs=400)
    tale = d.rest(job, pause=20.0)
    assert "handoff" in tale.reasons
    assert tale.notes.count("handoff_requested") == 1
    assert d.cloud.runs[key(d, 2, job)].resumed["files/model.bin"] == b"weights"
    assert tale.words[-1] == "done"


def test_g9_what_cannot_go_on_elsewhere_stays_to_the_end_of_its_session(cloud):
    d = cloud()
    d.cloud.capabilities = Capabilities(max_session_hours=1.0, max_concurrency=4)
    d.boot()
    d.cloud.course = runs(3000.0)
    tale = d.rest(d.pack(hours=0.9, checkpoint_interval_min=0), pause=100.0)
    assert tale.notes.count("handoff_skipped") == 1
    assert tale.words[-1] == "done"
    assert len(tale.attempts) == 1


def test_g9_half_an_hour_before_a_quota_ends_it_saves_and_goes_on_elsewhere(cloud):
    d = cloud(
        clouds={CLOUD: RemoteWorld(capabilities=Capabilities(max_concurrency=4)), "second": RemoteWorld()}
    )
    d.clouds["second"].health = Health(ok=False, code="provider_unavailable")
    d.cloud.reading = hours_left(3.0)
    d.cloud.course = runs(3 * HOUR, answers_after=60.0)
    job = d.pack(hours=3.0)
    d.until(job, "running")
    d.cloud.reading = hours_left(0.6)
    d.pass_time(1000.0)
    d.step()
    assert d.tale(job).word == "running", "there is time left"
    d.cloud.reading, d.clouds["second"].health = hours_left(0.45), Health(ok=True)
    d.clouds["second"].course = runs(60.0)
    tale = d.rest(job, pause=20.0)
    assert "handoff" in tale.reasons
    [asked] = [each for each in tale.events if each.reason == "handoff_requested"]
    assert "What is left of the hours at cloud ends soon." in asked.message
    assert [each.provider for each in tale.attempts] == [CLOUD, "second"], "it is not sent back"
    assert d.clouds["second"].runs[key(d, 2, job)].resumed["files/model.bin"] == b"weights"
    assert tale.words[-1] == "done"


def test_g9_what_will_end_before_its_quota_stays(cloud):
    d = cloud()
    d.cloud.reading = hours_left(0.4)
    d.boot()
    d.cloud.course = runs(900.0)
    tale = d.rest(d.pack(hours=0.15), pause=20.0)
    assert tale.words == ["queued", "routing", "provisioning", "running", "done"]
    assert "handoff_skipped" not in tale.notes


def test_g9_what_needs_more_than_the_minutes_that_are_left_waits_for_the_renewal(cloud):
    d = cloud()
    d.cloud.reading = replace(hours_left(0.4), resets_at=d.now() + 5 * HOUR)
    d.boot()
    job = d.pack(hours=2.0)
    d.run_until(lambda: d.tale(job).look.script.not_before)
    tale = d.tale(job)
    assert tale.look.script.not_before == d.cloud.reading.resets_at
    assert "24 minutes of its quota are left, about 2 h are needed" in tale.look.script.message


def hours_left(hours):
    return QuotaReading(10.0 - hours, 10.0, "gpu_hours", None, live=True)


# Overrun


def overrun(d, **course):
    d.cloud.course = runs(**{"seconds": 4 * HOUR, "answers_after": 30.0, **course})
    job = d.pack("agent", hours=0.5)
    d.until(job, "running")
    d.cloud.courses[key(d, 2, job)] = runs(2 * HOUR)
    return job


def test_G26_an_agents_job_past_its_limit_is_stopped_and_asks_and_a_yes_lets_it_finish(cloud):
    d = cloud()
    job = overrun(d)
    began = d.tale(job).attempts[0].started_at
    tale = d.until(job, "awaiting_approval", pause=100.0)
    stopped = tale.attempts[0].ended_at
    assert stopped - began == pytest.approx(0.75 * HOUR, abs=400)  # max(1.5 * 0.5, 0.5 + 0.25) hours
    assert tale.reasons[-2:] == ["hours_exceeded", "approval_required"]
    assert tale.look.asked[-1].rule_names == ("enforce_hours",)
    assert d.cloud.live(d.now()) == []
    d.answer(job, "approved")
    tale = d.rest(job, pause=200.0)
    assert tale.words[-3:] == ["provisioning", "running", "done"]
    assert len(tale.attempts) == 2, "there is no second stop"
    assert d.cloud.runs[key(d, 2, job)].resumed


def test_G26_a_no_after_an_overrun_ends_it_denied_and_keeps_what_there_is(cloud):
    d = cloud()
    job = overrun(d)
    d.until(job, "awaiting_approval", pause=100.0)
    d.answer(job, "denied")
    tale = d.rest(job)
    assert tale.words[-1] == "denied"
    assert len(tale.checkpoints) == 1
    assert d.outputs(job) == {"outputs/model.bin": b"weights"}


def test_c4_one_that_cannot_save_is_stopped_all_the_same_and_the_question_says_so(cloud):
    d = cloud()
    job = overrun(d, answers_after=None)
    tale = d.until(job, "awaiting_approval", pause=100.0)
    assert "no checkpoint" in tale.look.asked[-1].reason
    assert tale.checkpoints == []


def test_c4_one_that_does_not_save_in_ten_minutes_is_stopped(cloud):
    d = cloud()
    job = overrun(d, answers_after=2 * HOUR)
    tale = d.until(job, "awaiting_approval", pause=100.0)
    ran = tale.attempts[0].ended_at - tale.attempts[0].started_at
    assert ran == pytest.approx(0.75 * HOUR + 600, abs=250)


def test_c4_jobs_of_people_are_not_stopped(cloud):
    d = cloud()
    d.cloud.course = runs(2 * HOUR)
    tale = d.rest(d.pack(hours=0.5), pause=200.0)
    assert tale.words == ["queued", "routing", "provisioning", "running", "done"]


def test_b_a_result_that_comes_late_counts(cloud):
    d = cloud()
    job = overrun(d, seconds=0.75 * HOUR + 150, answers_after=None, cancel_takes=None)
    tale = d.rest(job, pause=30.0)
    assert tale.words[-2:] == ["migrating", "done"]
    assert tale.reasons[-1] == "late_result"
    assert d.outputs(job) == {"outputs/model.bin": b"weights"}
