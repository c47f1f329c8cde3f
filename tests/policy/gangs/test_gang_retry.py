"""T6: the resubmission ledger in all orders, whose fault an end was, and crash loops (C33, C34, C35)."""

import itertools

import pytest

from trainshed.policy.gangs.retry import (
    MACHINE_XIDS,
    Cause,
    EndedBy,
    Evidence,
    ExitClass,
    FaultPolicy,
    GangEnd,
    GiveUp,
    PastAttempt,
    ReplicaEnd,
    Resubmit,
    back_off,
    classify,
    decide_retry,
    resubmissions_used,
)

FAIL = GangEnd(
    [ReplicaEnd(0, "a", EndedBy.EXIT, 1, at=5.0), ReplicaEnd(1, "b", EndedBy.STOP, 143, at=6.0)], (), 500
)
PREEMPT = GangEnd([ReplicaEnd(0, "a", EndedBy.PREEMPTION, 1)], (), 500)
BROKEN = GangEnd([ReplicaEnd(1, "b", EndedBy.EXIT, 1)], (Evidence("b", "xid", 79),), 500)
NOT_STARTED = GangEnd([ReplicaEnd(0, "a", EndedBy.NOT_STARTED)])
ENDS = {"fail": FAIL, "preempt": PREEMPT, "replace": BROKEN, "platform": NOT_STARTED}
CAUSES = {
    "fail": Cause.AUTO_FAILURE,
    "preempt": Cause.PREEMPTED,
    "replace": Cause.NODE_REPLACED,
    "platform": Cause.PLATFORM,
}


def play(story, policy):
    """The ledger after a story of ends and manual resubmissions, and what came of each."""
    ledger, answers = [PastAttempt(Cause.INITIAL)], []
    for word in story:
        if word == "manual":
            ledger.append(PastAttempt(Cause.MANUAL))
            continue
        answer = decide_retry(ledger, ENDS[word], policy)
        verdict = classify(ENDS[word])
        ledger[-1] = PastAttempt(
            ledger[-1].cause, verdict.exit_class, verdict.fingerprint, ENDS[word].ran_seconds
        )
        answers.append(answer)
        if isinstance(answer, GiveUp):
            break
        ledger.append(PastAttempt(answer.cause))
    return ledger, answers


@pytest.mark.parametrize("budget", [0, 1, 2])
def test_C33_in_every_order_only_failures_count(budget):
    words = ["fail", "fail", "preempt", "replace", "manual", "platform"]
    policy = FaultPolicy(enabled=True, max_resubmissions=budget, replace_node=True)
    for story in set(itertools.permutations(words)):
        ledger, answers = play(story, policy)
        fails = 0
        for word, answer in zip([w for w in story if w != "manual"], answers, strict=False):
            fails += word == "fail"
            if word == "fail" and fails > budget:
                assert isinstance(answer, GiveUp), story
                assert answer.code == "NONZERO_EXIT"
            else:
                assert isinstance(answer, Resubmit), story
                assert answer.cause is CAUSES[word]
                assert answer.number == fails, story
        assert resubmissions_used(ledger) == min(budget, fails)


def test_C33_zero_disables_and_so_does_not_being_enabled():
    for policy in (
        FaultPolicy(enabled=True, max_resubmissions=0),
        FaultPolicy(enabled=False, max_resubmissions=5),
    ):
        assert isinstance(decide_retry([PastAttempt(Cause.INITIAL)], FAIL, policy), GiveUp)


def test_C33_the_whole_gang_restarts_once_however_many_replicas_fell():
    both = GangEnd([ReplicaEnd(r, "ab"[r], EndedBy.EXIT, 1, at=5.0) for r in range(2)], (), 500)
    answer = decide_retry([PastAttempt(Cause.INITIAL)], both, FaultPolicy(enabled=True, max_resubmissions=3))
    assert (answer.cause, answer.number) == (Cause.AUTO_FAILURE, 1)


def test_C33_the_pause_doubles_from_10_seconds_to_300():
    assert [back_off(n) for n in range(7)] == [10, 20, 40, 80, 160, 300, 300]
    assert back_off(10_000) == 300


def test_C34_a_machine_fault_gets_another_node_and_is_not_counted():
    policy = FaultPolicy(enabled=True, max_resubmissions=0, replace_node=True)
    answer = decide_retry([PastAttempt(Cause.INITIAL)], BROKEN, policy)
    assert isinstance(answer, Resubmit)
    assert (answer.exclude_node, answer.cordon_node, answer.number) == ("b", "b", 0)
    assert "XID 79 on node b" in answer.message


def test_C34_without_replace_node_a_machine_fault_is_a_failure_like_others():
    ledger = [PastAttempt(Cause.INITIAL)]
    assert isinstance(decide_retry(ledger, BROKEN, FaultPolicy(enabled=True, max_resubmissions=0)), GiveUp)
    answer = decide_retry(ledger, BROKEN, FaultPolicy(enabled=True, max_resubmissions=1))
    assert (answer.cause, answer.exclude_node) == (Cause.AUTO_FAILURE, None)


@pytest.mark.parametrize("xid", [13, 31, 43, *sorted(MACHINE_XIDS)])
def test_C34_only_the_xids_of_the_table_are_evidence(xid):
    end = GangEnd([ReplicaEnd(0, "a", EndedBy.EXIT, 1)], (Evidence("a", "xid", xid),), 500)
    assert classify(end).exit_class is (ExitClass.MACHINE if xid in MACHINE_XIDS else ExitClass.USER)


@pytest.mark.parametrize("kind", ["device_lost", "nic_down", "heartbeat_lost", "node_lost"])
def test_C34_other_evidence(kind):
    end = GangEnd([ReplicaEnd(0, "a", EndedBy.EXIT, 1)], (Evidence("c", kind),), 500)
    assert (classify(end).exit_class, classify(end).node) == (ExitClass.MACHINE, "c")


@pytest.mark.parametrize(
    ("by", "code", "message", "expected"),
    [
        (EndedBy.EXIT, 1, "", ExitClass.USER),
        (EndedBy.EXIT, 137, "", ExitClass.OOM),
        (EndedBy.EXIT, -9, "", ExitClass.OOM),
        (EndedBy.EXIT, 1, "torch.OutOfMemoryError: CUDA out of memory.", ExitClass.OOM),
        (EndedBy.MEMORY, None, "", ExitClass.OOM),
        (EndedBy.TIMEOUT, None, "", ExitClass.USER),
        (EndedBy.IMAGE, None, "", ExitClass.IMAGE),
        (EndedBy.NOT_STARTED, None, "", ExitClass.PLATFORM),
        (EndedBy.LOST, None, "", ExitClass.MACHINE),
    ],
)  # fmt: skip
def test_C35_whose_fault_an_exit_was(by, code, message, expected):
    assert classify(GangEnd([ReplicaEnd(0, "a", by, code, message=message)])).exit_class is expected


def test_C35_the_replica_that_fell_first_decides():
    end = GangEnd(
        [ReplicaEnd(0, "a", EndedBy.EXIT, 1, at=9.0), ReplicaEnd(1, "b", EndedBy.MEMORY, 137, at=3.0)]
    )
    assert (classify(end).exit_class, classify(end).node) == (ExitClass.OOM, "b")


def test_C35_three_equal_quick_exits_are_a_crash_loop():
    quick = GangEnd([ReplicaEnd(0, "a", EndedBy.EXIT, 2)], (), 3.0)
    policy = FaultPolicy(enabled=True, max_resubmissions=100)
    ledger = [PastAttempt(Cause.INITIAL)]
    for _ in range(2):
        answer = decide_retry(ledger, quick, policy)
        assert isinstance(answer, Resubmit)
        ledger[-1] = PastAttempt(ledger[-1].cause, ExitClass.USER, classify(quick).fingerprint, 3.0)
        ledger.append(PastAttempt(answer.cause))
    answer = decide_retry(ledger, quick, policy)
    assert (answer.code, answer.exit_class) == ("CRASH_LOOP", ExitClass.USER)


@pytest.mark.parametrize("other", ["slow", "another code"])
def test_C35_different_or_slow_exits_are_no_crash_loop(other):
    quick = GangEnd([ReplicaEnd(0, "a", EndedBy.EXIT, 2)], (), 3.0)
    mark = classify(quick).fingerprint
    odd = PastAttempt(
        Cause.AUTO_FAILURE,
        ExitClass.USER,
        mark if other == "slow" else "exit:3",
        60.0 if other == "slow" else 3.0,
    )
    ledger = [PastAttempt(Cause.INITIAL, ExitClass.USER, mark, 3.0), odd, PastAttempt(Cause.AUTO_FAILURE)]
    answer = decide_retry(ledger, quick, FaultPolicy(enabled=True, max_resubmissions=100))
    assert isinstance(answer, Resubmit)


@pytest.mark.parametrize(
    ("by", "code"),
    [
        (EndedBy.PRECHECK, "PRECHECK_FAILED"),
        (EndedBy.TIMEOUT, "TRIAL_TIMEOUT"),
        (EndedBy.IMAGE, "IMAGE_PULL_FAILED"),
    ],
)
def test_C35_what_would_happen_again_is_not_tried_again(by, code):
    policy = FaultPolicy(enabled=True, max_resubmissions=9)
    answer = decide_retry([PastAttempt(Cause.INITIAL)], GangEnd([ReplicaEnd(0, "a", by)]), policy)
    assert answer.code == code


def test_C35_what_the_platform_did_is_tried_again_but_not_for_ever():
    ledger = [PastAttempt(Cause.INITIAL)]
    tries = 0
    while isinstance(answer := decide_retry(ledger, NOT_STARTED, FaultPolicy()), Resubmit):
        tries += 1
        assert f"tried again ({tries} of 20 in a row), not counted: replica 0" in answer.message
        ledger.append(PastAttempt(answer.cause))
    assert tries == 20
    assert answer.code == "LAUNCH_FAILED"


def test_C35_a_start_that_cannot_work_says_why():
    end = GangEnd([ReplicaEnd(0, "a", EndedBy.NOT_STARTED, code="BASH_MISSING")])
    answer = decide_retry([PastAttempt(Cause.INITIAL)], end, FaultPolicy(enabled=True, max_resubmissions=3))
    assert answer.code == "BASH_MISSING"


LOST = ReplicaEnd(0, "a", EndedBy.LOST)


def _lost_again_and_again(ran, policy, *, proofs=()):
    """What follows each of at most ten Attempts whose watcher was lost."""
    end = GangEnd([LOST], proofs, ran)
    ledger, answers = [PastAttempt(Cause.INITIAL)], []
    while len(answers) < 10:
        answers.append(decide_retry(ledger, end, policy))
        if isinstance(answers[-1], GiveUp):
            break
        verdict = classify(end)
        ledger[-1] = PastAttempt(ledger[-1].cause, verdict.exit_class, verdict.fingerprint, ran)
        ledger.append(PastAttempt(answers[-1].cause))
    return answers


REPLACES = FaultPolicy(enabled=True, max_resubmissions=0, replace_node=True)


def test_C35_a_program_that_kills_its_watcher_at_once_is_a_crash_loop():
    answers = _lost_again_and_again(3.0, REPLACES)
    assert [type(answer) for answer in answers] == [Resubmit, Resubmit, GiveUp]
    assert (answers[-1].code, answers[-1].exit_class) == ("CRASH_LOOP", ExitClass.MACHINE)


def test_C34_a_lost_watcher_alone_closes_no_node_but_the_next_try_is_elsewhere():
    answers = _lost_again_and_again(100.0, REPLACES)
    assert {(a.exclude_node, a.cordon_node) for a in answers[:-1]} == {("a", None)}


@pytest.mark.parametrize("proofs", [(), (Evidence("a", "node_lost"),)], ids=["unproven", "proven"])
def test_C34_nodes_are_not_replaced_for_ever_without_progress(proofs):
    answers = _lost_again_and_again(100.0, REPLACES, proofs=proofs)
    assert [type(answer) for answer in answers] == [Resubmit] * 3 + [GiveUp]
    assert answers[-1].code == "EXECUTION_LOST"
    assert "3 tries in a row in place of lost ones brought less than 600 s" in answers[-1].message


def test_C34_progress_between_losses_starts_the_count_anew():
    assert all(isinstance(answer, Resubmit) for answer in _lost_again_and_again(600.0, REPLACES))


def test_C34_what_others_cut_short_between_two_losses_does_not_start_the_count_anew():
    causes = [Cause.INITIAL, *[Cause.NODE_REPLACED, Cause.PREEMPTED, Cause.PLATFORM] * 3]
    ledger = [PastAttempt(cause, ExitClass.MACHINE, "lost:None", 100.0) for cause in causes]
    assert isinstance(decide_retry(ledger, GangEnd([LOST], (), 100.0), REPLACES), GiveUp)
    manual = [*ledger, PastAttempt(Cause.MANUAL)]
    assert isinstance(decide_retry(manual, GangEnd([LOST], (), 100.0), REPLACES), Resubmit)
