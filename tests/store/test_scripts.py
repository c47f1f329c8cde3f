"""Script Jobs in the store: words and events of section b, questions, providers, secrets (contract G)."""

from __future__ import annotations

import hashlib
import json

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError

from support.rows import add_project
from support.scripts import add_script, new_attempt_id, script_spec
from trainshed.model.scripts.document import content_digests, from_document, spec_hash, to_document
from trainshed.model.scripts.spec import Bundle, DataItem, Deps, DepsKind
from trainshed.model.scripts.states import ImpossibleTransition, Note, Phase, Reason
from trainshed.model.states import ImpossibleMove, State
from trainshed.store import (
    approvals,
    events,
    jobs,
    moves,
    policies,
    providers,
    script_attempts,
    scripts,
    user_secrets,
)
from trainshed.store.database import DatabaseUnavailable
from trainshed.store.moves import Move
from trainshed.store.script_records import ScriptAttempt, StagedRow, UserSecret
from trainshed.store.tables import attempts

S = State


@pytest.fixture
def stored(database):
    add_project(database)
    job, script = add_script(database)
    return Course(database, job, script.trial_id)


class Course:
    """Drives one script Job through its states, as the controller does."""

    def __init__(self, database, job, trial_id):
        self.database, self.job, self.trial_id = database, job, trial_id
        self.at = 20.0

    def trial(self):
        with self.database.read() as connection:
            [trial] = jobs.trials_of(connection, [self.job.id])[self.job.id]
        return trial

    def script(self):
        with self.database.read() as connection:
            return scripts.of_trials(connection, [self.trial_id])[self.trial_id]

    def move(self, after, code="X", actor="controller", channel=None):
        self.at += 1
        trial = self.trial()
        made = Move(trial, trial.state, after, code, f"to {after}")
        self.database.write(lambda c: moves.apply(c, [made], at=self.at, actor=actor, channel=channel))

    def phase(self, phase, reason, **values):
        self.at += 1
        return self.database.write(
            lambda c: scripts.set_phase(c, self.trial_id, phase, reason, "because", at=self.at, values=values)
        )

    def stop(self, **named):
        self.at += 1
        self.database.write(
            lambda c: moves.accept_stop(c, self.job.id, trial_id=None, at=self.at, actor="human:ada", **named)
        )

    def events(self):
        with self.database.read() as connection:
            return scripts.events_of(connection, self.trial_id)

    def words(self):
        """The states as they were seen, with the reason of each change."""
        return [(event.after, event.reason) for event in self.events() if event.kind == "transition"]


def test_G38_a_plain_Job_is_queued_routed_placed_runs_and_is_done(stored):
    assert stored.phase(Phase.ROUTING, Reason.ROUTING_STARTED)
    stored.move(S.PREPARING)
    stored.move(S.RUNNING)
    stored.move(S.COLLECTING)
    stored.move(S.SUCCEEDED, "COMPLETED")
    assert stored.words() == [
        ("queued", "submitted"),
        ("routing", "routing_started"),
        ("provisioning", "placed"),
        ("running", "started"),
        ("done", "completed"),
    ]
    assert stored.script().word == "done"
    before = [event.before for event in stored.events()]
    assert before == [None, "queued", "routing", "provisioning", "running"]


def test_G39_an_approved_Job_goes_from_the_question_to_its_place(stored):
    stored.phase(Phase.ROUTING, Reason.ROUTING_STARTED)
    stored.move(S.AWAITING_APPROVAL)
    stored.move(S.QUEUED, scripts.APPROVED, actor="human:ada")
    assert (stored.script().word, stored.script().phase) == ("awaiting_approval", "routing")
    stored.move(S.PREPARING)
    assert stored.words()[2:] == [("awaiting_approval", "approval_required"), ("provisioning", "placed")]


def test_an_approved_Job_that_finds_no_room_waits_in_the_queue(stored):
    stored.phase(Phase.ROUTING, Reason.ROUTING_STARTED)
    stored.move(S.AWAITING_APPROVAL)
    stored.move(S.QUEUED, scripts.APPROVED)
    stored.phase(Phase.WAITING, Reason.NO_CAPACITY, not_before=99.0)
    assert stored.words()[-1] == ("queued", "no_capacity")
    assert stored.script().not_before == 99.0


@pytest.mark.parametrize("code", ["DENIED", "APPROVAL_EXPIRED"])
def test_G40_a_denied_Job_is_denied_and_stays_so(stored, code):
    stored.phase(Phase.ROUTING, Reason.ROUTING_STARTED)
    stored.move(S.AWAITING_APPROVAL)
    stored.move(S.DENIED, code)
    assert stored.words()[-1] == ("denied", code.lower())
    with pytest.raises(ImpossibleMove):
        stored.move(S.QUEUED)


def test_G41_a_Job_that_holds_nothing_is_cancelled_at_once(stored):
    stored.stop(channel="user:cli")
    assert stored.words()[-1] == ("cancelled", "user_cancel")
    assert [event.actor for event in stored.events()] == ["api", "user:cli"]


def test_G41_a_Job_that_runs_is_cancelled_through_cancelling(stored):
    stored.phase(Phase.ROUTING, Reason.ROUTING_STARTED)
    stored.move(S.PREPARING)
    stored.move(S.RUNNING)
    stored.stop()
    stored.move(S.CANCELLED, "CANCELLED")
    assert stored.words()[-2:] == [("cancelling", "user_cancel"), ("cancelled", "cancelled")]


def test_G43_a_lost_session_shows_migrating_until_it_runs_elsewhere(stored):
    stored.phase(Phase.ROUTING, Reason.ROUTING_STARTED)
    stored.move(S.PREPARING)
    stored.move(S.RUNNING)
    stored.move(S.MIGRATING, "SESSION_LOST")
    stored.move(S.QUEUED)
    assert (stored.script().word, stored.script().phase) == ("migrating", "resuming")
    stored.move(S.PREPARING)
    stored.move(S.RUNNING)
    assert stored.words()[-3:] == [
        ("migrating", "session_lost"),
        ("provisioning", "placed"),
        ("running", "started"),
    ]


def test_a_late_result_ends_a_Job_that_is_migrating(stored):
    stored.phase(Phase.ROUTING, Reason.ROUTING_STARTED)
    for state in (S.PREPARING, S.RUNNING, S.MIGRATING, S.COLLECTING, S.SUCCEEDED):
        stored.move(state, "LATE_RESULT" if state is S.SUCCEEDED else "X")
    assert stored.words()[-2:] == [("migrating", "session_lost"), ("done", "late_result")]


def test_G42_a_checkpoint_shows_between_running_and_running(stored):
    stored.phase(Phase.ROUTING, Reason.ROUTING_STARTED)
    for state in (S.PREPARING, S.RUNNING, S.CHECKPOINTING, S.RUNNING):
        stored.move(state)
    assert stored.words()[-2:] == [("checkpointing", "checkpoint_begin"), ("running", "checkpoint_end")]


def test_a_transition_that_section_b_does_not_have_changes_nothing(stored):
    version = stored.script().version
    with pytest.raises(ImpossibleTransition):
        stored.move(S.PREPARING)  # it was not routed
    with pytest.raises(ImpossibleTransition):
        stored.phase(Phase.ROUTING, Reason.NO_CAPACITY)
    assert (stored.trial().state, stored.script().word, stored.script().version) == (
        S.QUEUED,
        "queued",
        version,
    )
    assert len(stored.events()) == 1


def test_a_phase_is_set_only_while_the_Trial_is_queued(stored):
    stored.phase(Phase.ROUTING, Reason.ROUTING_STARTED)
    stored.move(S.PREPARING)
    assert not stored.phase(Phase.WAITING, Reason.NO_CAPACITY)
    assert stored.script().word == "provisioning"


def test_a_note_leaves_the_state_alone_and_wakes_who_follows(stored):
    version = stored.script().version
    stored.database.write(
        lambda c: scripts.note(
            c, stored.trial_id, Note.PROVIDER_EXCLUDED, "kaggle refused it", at=30.0, values={"message": "m"}
        )
    )
    script = stored.script()
    assert (script.word, script.message, script.version) == ("queued", "m", version + 1)
    last = stored.events()[-1]
    assert (last.kind, last.reason, last.before, last.after) == ("note", "provider_excluded", None, None)
    with stored.database.read() as connection:
        assert events.of_job(connection, stored.job.id)[-1].code == "PROVIDER_EXCLUDED"


def test_events_are_read_on_from_the_last_one_seen(stored):
    stored.phase(Phase.ROUTING, Reason.ROUTING_STARTED)
    first, second = stored.events()
    with stored.database.read() as connection:
        assert scripts.events_of(connection, stored.trial_id, after=first.id) == [second]
        assert scripts.events_of(connection, stored.trial_id, limit=1, newest=True) == [second]


def test_lists_are_newest_first_and_of_one_project(stored):
    other, _ = add_script(stored.database, "s-2", spec=script_spec(project_dir="/srv/b"), at=11.0)
    add_project(stored.database, "q")
    last, _ = add_script(stored.database, "s-3", project_id="q")
    stored.stop()
    with stored.database.read() as connection:

        def listed(**named):
            return [job.id for job, _, _ in scripts.list_scripts(connection, "p", **named)]

        assert listed() == [other.id, stored.job.id]
        assert listed(active=True) == [other.id]
        assert listed(active=False) == [stored.job.id]
        assert listed(active=False, since=stored.at) == []
        assert listed(project_dir="/srv/b") == [other.id]
        assert listed(before=other.id) == [stored.job.id]
        assert scripts.counts(connection, "p") == {"queued": 1, "cancelled": 1}
        assert scripts.find(connection, "q", other.id) is None
        assert [script.job_id for _, script in scripts.unfinished(connection)] == [other.id, last.id]


def test_at_most_one_Attempt_of_a_Job_is_live(stored):
    first = attempt(stored, 1)
    assert live(stored) == first
    with pytest.raises((IntegrityError, DatabaseUnavailable)):
        attempt(stored, 2)
    stored.database.write(lambda c: script_attempts.change_attempt(c, first.attempt_id, {"state": "lost"}))
    second = attempt(stored, 2)
    assert live(stored) == second
    with stored.database.read() as connection:
        numbers = [
            each.number
            for each in script_attempts.attempts_of(connection, [stored.trial_id])[stored.trial_id]
        ]
        assert numbers == [1, 2]
        assert script_attempts.live_at(connection, "kaggle") == [second]
        assert script_attempts.live_at(connection, "colab") == []


def live(stored):
    with stored.database.read() as connection:
        return script_attempts.live_attempt(connection, stored.trial_id)


def attempt(stored, number):
    made = ScriptAttempt(
        attempt_id=new_attempt_id(),
        trial_id=stored.trial_id,
        number=number,
        key=f"gpu-{stored.job.digits}-{number}",
        provider="kaggle",
        state="submitting",
        remote_ref=None,
        url=None,
        gpu_promised="T4",
        gpu_real=None,
        resumed_from=None,
        submitted_at=None,
        started_at=None,
        ended_at=None,
        exit_code=None,
        cursor=None,
        lines=0,
        seen_at=None,
        unreachable_seconds=0.0,
        message=None,
    )

    def store(connection):
        values = {"id": made.attempt_id, "trial_id": stored.trial_id, "number": number, "engine": "kaggle"}
        connection.execute(insert(attempts).values(**values, created_at=1.0))
        script_attempts.insert_attempt(connection, made)

    stored.database.write(store)
    return made


def ask(database, job, **values):
    facts = {"spec_hash": "h" * 64, "rules": ["auto_max_hours"], "provider": "kaggle", "reason": "over 1h"}
    new = approvals.NewApproval(job.id, job.project_id, **{**facts, **values})
    return database.write(lambda c: approvals.ask(c, new, at=30.0, expires_at=90.0))


def test_a_Job_has_one_open_question_and_its_first_answer_counts(stored):
    database, job = stored.database, stored.job
    question = ask(database, job)
    assert ask(database, job, reason="another") == question
    assert database.write(lambda c: approvals.close(c, question, "approved", by="human:ada", at=40.0))
    assert not database.write(lambda c: approvals.close(c, question, "denied", by="human:bob", at=41.0))
    again = ask(database, job, rules=["max_quota_share"])
    with database.read() as connection:
        assert approvals.open_of(connection, job.id).id == again
        assert [each.answer for each in approvals.of_jobs(connection, [job.id])[job.id]] == ["approved", None]
        assert approvals.find(connection, "p", question).answered_by == "human:ada"
        assert approvals.find(connection, "q", question) is None
        assert [each.id for each in approvals.list_approvals(connection, "p", only_open=True)] == [again]
        assert [each.id for each in approvals.expired(connection, 90.0)] == [again]
        assert approvals.expired(connection, 89.0) == []


def test_a_code_is_good_once_for_a_while_and_for_few_tries(stored):
    database = stored.database
    question = ask(database, stored.job)
    right, wrong = (hashlib.sha256(text.encode()).hexdigest() for text in ("right", "wrong"))

    def put():
        database.write(lambda c: approvals.put_code(c, question, right, at=30.0, expires_at=60.0))

    def tried(digest, at=31.0):
        return database.write(lambda c: approvals.try_code(c, question, digest, at=at))

    assert not tried(right)  # none was made
    put()
    assert not tried(wrong)
    assert tried(right)
    assert not tried(right)
    put()
    assert not tried(right, at=60.0)
    for _ in range(approvals.MAX_TRIES):
        assert not tried(wrong)
    assert not tried(right)
    put()
    assert tried(right)


def test_providers_are_remembered_with_their_quotas_and_what_lies_there(database):
    database.write(lambda c: providers.change_state(c, "kaggle", {"health": "ok", "checked_at": 5.0}))
    database.write(lambda c: providers.change_state(c, "kaggle", {"cooldown_until": 9.0}))
    reading = {"used": 3.0, "quota_limit": 30.0, "unit": "gpu_hours", "resets_at": None, "detail": ""}
    for at, is_live in ((1.0, True), (2.0, False)):
        values = {**reading, "live": is_live, "observed_at": at}
        database.write(lambda c, values=values: providers.record_quota(c, "kaggle", values))
    row = StagedRow("kaggle", "a" * 64, "ds/1", 10, 1.0, 1.0)
    database.write(lambda c: providers.put_staged(c, row))
    database.write(lambda c: providers.put_staged(c, StagedRow("kaggle", "a" * 64, "ds/1", 10, 1.0, 7.0)))
    with database.read() as connection:
        state = providers.state_of(connection, "kaggle")
        assert (state.health, state.cooldown_until, state.enabled) == ("ok", 9.0, True)
        assert list(providers.states(connection)) == ["kaggle"]
        assert providers.newest_quota(connection, "kaggle").observed_at == 2.0
        assert providers.newest_quota(connection, "kaggle", live=True).observed_at == 1.0
        assert providers.newest_quota(connection, "colab") is None
        assert providers.staged(connection, "kaggle", "a" * 64).used_at == 7.0
        assert providers.unused_staged(connection, before=7.0) == []
    assert database.write(lambda c: providers.forget_quota(c, before=2.0)) == 1
    database.write(lambda c: providers.drop_staged(c, "kaggle", "a" * 64))
    with database.read() as connection:
        assert providers.staged(connection, "kaggle", "a" * 64) is None


def test_secrets_are_one_persons_in_one_project(stored):
    database = stored.database
    for owner, text in (("ada", "s1"), ("bob", "s2"), ("ada", "s3")):
        database.write(
            lambda c, owner=owner, text=text: user_secrets.put(c, UserSecret("p", owner, "WANDB", text, 1.0))
        )
    with database.read() as connection:
        assert user_secrets.sealed(connection, "p", "ada", ["WANDB", "OTHER"]) == {"WANDB": "s3"}
        assert [each.name for each in user_secrets.names(connection, "p", "bob")] == ["WANDB"]
        assert user_secrets.sealed(connection, "q", "ada", ["WANDB"]) == {}
    assert database.write(lambda c: user_secrets.remove(c, "p", "ada", "WANDB"))
    assert not database.write(lambda c: user_secrets.remove(c, "p", "ada", "WANDB"))


def test_a_projects_approval_rules_are_kept_until_they_are_reset(stored):
    database = stored.database
    database.write(lambda c: policies.put(c, "p", {"ask_agents": True}, at=1.0, by="human:ada"))
    database.write(lambda c: policies.put(c, "p", {"max_cost": 5}, at=2.0, by="human:ada"))
    with database.read() as connection:
        assert policies.document(connection, "p") == {"max_cost": 5}
    assert database.write(lambda c: policies.remove(c, "p"))
    with database.read() as connection:
        assert policies.document(connection, "p") == {}


def test_a_spec_comes_back_from_the_database_as_it_was():
    spec = script_spec(
        command=("bash", "run.sh"),
        script=None,
        deps=Deps(DepsKind.PYPROJECT, "pyproject.toml", ("torch",), ">=3.10"),
        data=(
            DataItem("images", "a" * 64, "one.bin", 1, 5, path="data/one.bin"),
            DataItem("h", uri="hf://datasets/a/b"),
        ),
        provider_options={"kaggle": {"accelerator": "T4"}},
        bundle=Bundle("e" * 64, 1, 2, ("x",), ("data/ (2 GB, ignored)",), 3, "hint", ("w",)),
    )
    assert from_document(json.loads(json.dumps(to_document(spec)))) == spec


def test_a1_what_the_files_hold_is_not_what_makes_two_submissions_the_same():
    first = script_spec(
        data=(DataItem("d", "a" * 64, path="data"),), deps=Deps(DepsKind.PYPROJECT, "p.toml", ("a",))
    )
    other = script_spec(
        data=(DataItem("d", "b" * 64, files=2, path="data"),),
        deps=Deps(DepsKind.PYPROJECT, "p.toml", ("b",)),
        bundle=Bundle("f" * 64, 9, 9),
    )
    assert spec_hash(first) == spec_hash(other)
    assert content_digests(first) != content_digests(other)
    assert spec_hash(script_spec(hours=2)) != spec_hash(script_spec(hours=3))
