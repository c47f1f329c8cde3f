"""Routing, approval and the start of an Attempt: the upper rows of section b's table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.cloud import CLOUD, runs, wire
from trainshed.engines.providers.contract import (
    AuthRequired,
    Capabilities,
    GpuOffer,
    Health,
    InvalidJob,
    ProviderPermanent,
    QuotaExhausted,
    RateLimited,
    Unavailable,
)
from trainshed.engines.providers.fake import RemoteWorld
from trainshed.store import approvals, jobs, providers, tables

HOUR = 3600.0


def other(**values) -> RemoteWorld:
    """A second provider, slower to be chosen than the first."""
    facts = {"capabilities": Capabilities(max_concurrency=4), "offers": (GpuOffer("T4", 16.0),)}
    world = RemoteWorld(**{**facts, **values})
    world.course = runs(30.0)
    return world


def state_of(d, name=CLOUD):
    with d.database.read() as connection:
        return providers.state_of(connection, name)


def test_routing_to_queued_while_every_provider_is_busy_and_on_when_one_has_room(cloud):
    d = cloud()
    d.cloud.capabilities = Capabilities(max_concurrency=1)
    d.boot()
    d.cloud.course = runs(120.0)
    first, second = d.pack(), d.pack()
    tale = d.until(second, "queued")
    d.step()
    assert tale.reasons[-1] == "no_capacity"
    assert tale.look.script.not_before > d.now()
    ended = d.rest(first).attempts[0].ended_at
    tale = d.rest(second)
    assert tale.words[-4:] == ["routing", "provisioning", "running", "done"]
    assert tale.attempts[0].submitted_at - ended < 20, "it did not wait for its time to look again"


def test_G52_a_gpu_that_nobody_offers_fails_with_what_is_offered(cloud):
    d = cloud()
    tale = d.rest(d.pack(gpu="H900"))
    assert tale.words == ["queued", "routing", "failed"]
    assert tale.reasons[-1] == "no_provider_fits"
    assert tale.look.script.failure_kind == "no_provider"
    assert "H900" in tale.look.script.message
    assert "P100, T4" in tale.look.script.message
    assert d.cloud.calls["submit"] == 0


def test_G76_a_pin_is_kept_although_another_provider_has_room(cloud):
    d = cloud(clouds={CLOUD: other(), "second": other()})
    tale = d.rest(d.pack(provider="second"))
    assert [each.provider for each in tale.attempts] == ["second"]
    assert d.cloud.calls["submit"] == 0


def test_b_nobody_has_room_for_six_hours_and_the_job_gives_up(cloud):
    d = cloud()
    d.cloud.health = Health(ok=False, code="provider_unavailable", message="it is being repaired")
    d.boot()
    job = d.pack()
    tale = d.until(job, "failed", pause=600.0)
    assert tale.reasons[-1] == "gave_up"
    assert d.now() - tale.look.trial.created_at == pytest.approx(6 * HOUR, abs=900)
    assert tale.look.script.failure_kind == "no_provider"


# Approval


def test_G21_an_agents_job_without_hours_asks_and_nothing_is_sent_before_the_answer(cloud):
    d = cloud()
    d.cloud.course = runs(30.0)
    job = d.pack("agent", hours=None, data=(d.dataset("set", {"x": b"1"}),))
    tale = d.until(job, "awaiting_approval")
    assert tale.words == ["queued", "routing", "awaiting_approval"]
    [question] = tale.look.asked
    assert question.reason == "no hours given · cloud P100 · runtime unknown"
    assert question.provider == CLOUD
    d.pass_time(HOUR)
    d.step()
    assert (d.cloud.calls["submit"], d.cloud.calls["stage_data"]) == (0, 0)  # G31
    d.answer(job, "approved")
    tale = d.rest(job)
    assert tale.words[2:] == ["awaiting_approval", "provisioning", "running", "done"]  # G39
    assert len(d.cloud.runs) == 1


def test_G40_a_job_that_is_denied_ran_nowhere(cloud):
    d = cloud()
    job = d.pack("agent", hours=None)
    d.until(job, "awaiting_approval")
    d.answer(job, "denied")
    assert d.rest(job).words[-1] == "denied"
    assert d.cloud.runs == {}


def test_c5_a_question_that_nobody_answers_in_a_day_denies(cloud):
    d = cloud()
    job = d.pack("agent", hours=None)
    d.until(job, "awaiting_approval")
    d.pass_time(24 * HOUR - 60)
    d.step()
    assert d.tale(job).word == "awaiting_approval"
    d.pass_time(61)
    tale = d.until(job, "denied")
    assert tale.reasons[-1] == "approval_expired"
    assert tale.look.asked[-1].answer == "expired"


def test_b_a_job_that_asks_anywhere_asks_at_once_although_every_provider_is_busy(cloud):
    d = cloud()
    d.cloud.capabilities = Capabilities(max_concurrency=1)
    d.boot()
    d.cloud.course = runs(300.0)
    first = d.pack()
    d.until(first, "running")
    job, quiet = d.pack("agent", hours=None), d.pack("agent", hours=0.5)
    tale = d.until(job, "awaiting_approval")
    assert tale.words == ["queued", "routing", "awaiting_approval"]
    [question] = tale.look.asked
    assert (question.reason, question.provider) == ("no hours given · cloud · runtime unknown", CLOUD)
    d.step()
    tale = d.until(quiet, "queued")
    assert (tale.reasons[-1], list(tale.look.asked)) == ("no_capacity", []), "it would not ask"
    d.answer(job, "approved")
    assert d.until(job, "queued").reasons[-1] == "no_capacity"
    tale = d.rest(job)
    assert tale.words[-1] == "done"
    assert len(tale.look.asked) == 1, "asked once"


def test_b_a_job_that_asks_anywhere_asks_at_once_while_its_provider_is_left_alone_after_errors(cloud):
    d = cloud()
    d.cloud.failures["submit"] = [RateLimited("slow down", retry_after=600.0)]
    first = d.pack()
    assert d.until(first, "queued").words[-2:] == ["provisioning", "queued"]
    job = d.pack("agent", hours=None)
    tale = d.until(job, "awaiting_approval")
    assert state_of(d).cooldown_until > d.now(), "there is no room yet"
    [question] = tale.look.asked
    assert (question.reason, question.provider) == ("no hours given · cloud · runtime unknown", CLOUD)
    d.answer(job, "approved")
    assert d.until(job, "queued").reasons[-1] == "no_capacity"
    tale = d.rest(job)
    assert tale.words[-1] == "done"
    assert len(tale.look.asked) == 1, "asked once"


def test_awaiting_approval_to_queued_where_the_place_is_taken_meanwhile(cloud):
    d = cloud()
    d.cloud.capabilities = Capabilities(max_concurrency=1)
    d.boot()
    d.cloud.course = runs(300.0)
    job = d.pack("agent", hours=None)
    d.until(job, "awaiting_approval")
    other_job = d.pack()
    d.until(other_job, "running")
    d.answer(job, "approved")
    tale = d.until(job, "queued")
    assert tale.reasons[-1] == "no_capacity"
    d.rest(other_job)
    assert d.rest(job).words[-1] == "done"
    with d.database.read() as connection:
        assert len(approvals.of_jobs(connection, [tale.look.job.id])[tale.look.job.id]) == 1, "asked once"


# From provisioning back


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RateLimited("slow down", retry_after=90.0), "rate_limited"),
        (Unavailable("no answer"), "provider_unavailable"),
        (QuotaExhausted("used up", resets_at=1_000_000.0 + 7 * 86_400), "quota_exhausted"),
        (AuthRequired("log in again"), "auth_required"),
        (InvalidJob("too many files"), "invalid_for_provider"),
    ],
)
def test_provisioning_to_queued_and_on_at_another_provider(cloud, error, reason):
    d = cloud(clouds={CLOUD: other(), "second": other()})
    d.cloud.failures["submit"] = [error]
    tale = d.rest(d.pack(), pause=20.0)
    assert tale.words[:4] == ["queued", "routing", "provisioning", "queued"]
    assert tale.reasons[3] == reason
    assert tale.words[-1] == "done"
    assert [(each.provider, each.state) for each in tale.attempts] == [
        (CLOUD, "rejected"),
        ("second", "succeeded"),
    ]
    assert "retry_scheduled" in tale.notes
    known = state_of(d)
    assert (known.cooldown_until is not None) == (reason in {"rate_limited", "provider_unavailable"})
    assert (known.exhausted_until is not None) == (reason == "quota_exhausted")
    assert (known.health == "auth_required") == (reason == "auth_required")
    assert (CLOUD in tale.look.script.excluded_providers) == (reason == "invalid_for_provider")  # g.7


def test_provisioning_to_failed_where_no_other_try_would_help(cloud):
    d = cloud(clouds={CLOUD: other(), "second": other()})
    d.cloud.failures["submit"] = [ProviderPermanent("the account is closed")]
    tale = d.rest(d.pack())
    assert tale.words == ["queued", "routing", "provisioning", "failed"]
    assert tale.reasons[-1] == "provider_permanent"
    assert tale.look.script.failure_kind == "provider_error"
    assert d.clouds["second"].runs == {}


def test_provisioning_to_queued_when_it_does_not_begin_in_half_an_hour(cloud):
    d = cloud(clouds={CLOUD: other(), "second": other()})
    d.cloud.course = runs(10.0, start_after=10 * HOUR)
    tale = d.rest(d.pack(), pause=30.0)
    assert "provision_timeout" in tale.reasons
    assert [each.state for each in tale.attempts] == ["abandoned", "succeeded"]
    assert d.cloud.live(d.now()) == [], "it was cancelled there"


def test_provisioning_to_queued_when_the_run_is_lost_before_it_began(cloud):
    d = cloud()
    d.cloud.courses = {}
    d.cloud.course = runs(10.0, start_after=60.0)
    job = d.pack()
    tale = d.until(job, "provisioning")
    d.step()
    [run] = d.cloud.runs.values()
    run.gone = True
    tale = d.rest(job)
    assert "lost_before_start" in tale.reasons
    assert [each.state for each in tale.attempts] == ["lost", "succeeded"]


def test_b_a_run_that_ended_between_two_looks_began_when_it_was_submitted(cloud):
    d = cloud()
    d.cloud.course = runs(0.0, start_after=0.0)
    tale = d.rest(d.pack())
    assert tale.words[-3:] == ["provisioning", "running", "done"]
    assert tale.attempts[0].started_at == pytest.approx(tale.attempts[0].submitted_at)


def test_b_thirty_placements_in_vain_are_the_end(cloud):
    d = cloud()
    d.cloud.failures["submit"] = [RateLimited("no", retry_after=1.0)] * 40
    tale = d.until(d.pack(), "failed", pause=300.0)
    assert tale.reasons[-1] == "gave_up"
    assert tale.look.script.placements == 30
    assert len(tale.attempts) == 30


# k.2: what nobody knows


def test_k2_a_lost_answer_makes_no_second_run(cloud):
    d = cloud(clouds={CLOUD: other(), "second": other()})
    d.cloud.lost_answers["submit"] = 1
    tale = d.rest(d.pack())
    assert len(tale.attempts) == 1
    assert (len(d.cloud.runs), len(d.clouds["second"].runs)) == (1, 0)
    assert tale.notes.count("submit_confirmed") == 1
    assert tale.words[-1] == "done"


def test_k2_where_nobody_can_be_asked_the_job_waits_and_is_placed_nowhere_else(cloud):
    d = cloud(clouds={CLOUD: other(), "second": other()})
    d.cloud.lost_answers["submit"] = 1
    d.cloud.failures["lookup_by_key"] = [Unavailable("still down")] * 20
    job = d.pack()
    d.until(job, "provisioning")
    for _ in range(10):
        d.pass_time(10.0)
        d.step()
    tale = d.tale(job)
    assert tale.word == "provisioning"
    assert tale.notes.count("submit_ambiguous") == 1
    assert d.clouds["second"].runs == {}
    tale = d.rest(job)
    assert (tale.words[-1], len(d.cloud.runs), len(tale.attempts)) == ("done", 1, 1)


def test_k2_where_runs_cannot_be_looked_up_the_same_submission_is_made_again(cloud):
    d = cloud()
    d.cloud.capabilities = replace(d.cloud.capabilities, lookup_by_key=False)
    d.boot()
    d.cloud.lost_answers["submit"] = 2
    d.cloud.course = runs(10.0)
    tale = d.rest(d.pack())
    assert (tale.words[-1], len(d.cloud.runs), len(tale.attempts)) == ("done", 1, 1)


def test_the_database_allows_one_live_attempt_of_a_job(cloud):
    d = cloud()
    d.cloud.course = runs(None)
    job = d.pack()
    d.until(job, "running")
    with d.database.read() as connection:
        [row] = connection.execute(tables.metadata.tables["script_attempts"].select()).mappings()
    again = {**row, "attempt_id": "att_second", "number": 2, "key": "other"}
    with pytest.raises(Exception, match=r"(?i)unique|foreign"):
        d.database.write(
            lambda c: c.execute(tables.metadata.tables["script_attempts"].insert().values(**again))
        )


# What it is given


def test_G58_a_dataset_is_sent_once_and_once_more_after_a_byte_changed(cloud):
    d = cloud()
    d.cloud.course = runs(5.0)
    first = d.rest(d.pack(data=(d.dataset("set", {"x": b"1"}),)))
    second = d.rest(d.pack(data=(d.dataset("set", {"x": b"1"}),)))
    third = d.rest(d.pack(data=(d.dataset("set", {"x": b"2"}),)))
    assert d.cloud.calls["upload"] == 2
    assert ("data_uploaded" in first.notes, "data_reused" in second.notes) == (True, True)
    assert "data_uploaded" in third.notes
    submission = next(iter(d.cloud.runs.values())).submission
    assert [(item.mount, item.single_file) for item in submission.data] == [("set", None)]


def test_G51_secrets_reach_the_run_and_one_that_is_missing_ends_the_job(cloud):
    d = cloud()
    d.cloud.course = runs(5.0)
    tale = d.until(d.pack(secrets=("API",)), "failed")
    assert tale.look.script.failure_kind == "user_error"
    assert "gpu secrets set API" in tale.look.script.message
    assert d.cloud.runs == {}
    d.secrets["API"] = "sealed-value"
    job = d.pack(secrets=("API",), env={"PLAIN": "x"})
    assert d.rest(job).words[-1] == "done"
    [run] = d.cloud.runs.values()
    assert dict(run.submission.secrets) == {"API": "sealed-value"}
    assert run.submission.env["PLAIN"] == "x"
    assert "API" not in run.submission.env


def test_e8_equal_bundles_have_equal_archives_without_owners_and_times(cloud):
    d = cloud()
    d.cloud.course = runs(None)
    archives = []
    for _ in range(2):
        job = d.pack()
        d.until(job, "running")
        submission = d.cloud.runs[d.tale(job).attempts[0].key].submission
        assert (submission.bundle / "manifest.json").is_file()
        archives.append(submission.archive().read_bytes())
    assert archives[0] == archives[1]


def test_g6_a_gpu_with_less_memory_than_needed_is_left_for_another(cloud):
    d = cloud(clouds={CLOUD: other(), "second": other()})
    device = wire("device", kind="cuda", name="Tesla K80", vram_gb=12.0, count=1)
    d.cloud.course = runs(600.0, lines=((1.0, device),))
    d.clouds["second"].course = runs(5.0)
    tale = d.rest(d.pack(vram_gb=16.0), pause=20.0)
    assert "gpu_mismatch" in tale.notes
    assert [each.provider for each in tale.attempts] == [CLOUD, "second"]
    assert tale.words[-1] == "done"


def test_g7_a_job_that_its_only_provider_refuses_ends_without_a_wait(cloud):
    d = cloud()
    d.cloud.failures["submit"] = [InvalidJob("too many files")]
    job = d.pack()
    d.step()
    tale = d.tale(job)
    assert (tale.word, tale.look.script.failure_kind) == ("failed", "no_provider")
    assert "too many files" in (tale.look.script.message or "")


def test_every_allocation_of_a_job_is_released_with_evidence(cloud):
    d = cloud(clouds={CLOUD: other(), "second": other()})
    d.cloud.failures["submit"] = [InvalidJob("no")]
    tale = d.rest(d.pack(), pause=20.0)
    with d.database.read() as connection:
        held = jobs.allocations_of(connection, [tale.look.trial.id])[tale.look.trial.id]
    assert [each.node for each in held] == [CLOUD, "second"]
    assert all(each.evidence for each in held)
