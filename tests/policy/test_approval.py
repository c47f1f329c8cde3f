"""What asks a person first, and when one that runs is stopped (contract G, section c)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.errors import FaultList
from trainshed.policy.approval import (
    Cost,
    Policy,
    Question,
    Rule,
    Rules,
    as_document,
    judge,
    judge_cost,
    judge_waiting,
    overrun_after,
    read,
)

DEFAULT = Policy()
AGENT = Question("agent", "kaggle", "T4", hours=0.5)
USER = replace(AGENT, source="user")


@pytest.mark.parametrize(
    ("hours", "asked"),
    [(None, True), (0.25, False), (1.0, False), (1.01, True), (6.0, True), (336.0, True)],
)
@pytest.mark.parametrize("provider", ["kaggle", "local"])
def test_G21_G22_G23_hours_of_an_agents_job(hours, asked, provider):
    verdict = judge(replace(AGENT, hours=hours, provider=provider), DEFAULT)
    assert verdict.ask is asked
    if asked:
        assert verdict.rules == ((Rule.UNKNOWN_HOURS,) if hours is None else (Rule.HOURS,))


def test_c3_the_reason_names_provider_gpu_and_time():
    assert judge(replace(AGENT, hours=6.0), DEFAULT).reason == "over the 1h auto limit · kaggle T4 · ~6h"
    unknown = judge(Question("agent", "local"), DEFAULT)
    assert unknown.reason == "no hours given · local · runtime unknown"


def test_G24_secrets_ask_an_agent_even_where_the_provider_is_exempt():
    names = ("HF_A", "HF_B", "HF_C", "HF_D", "HF_E", "HF_F")
    verdict = judge(replace(AGENT, secrets=names), DEFAULT)
    assert verdict.rules == (Rule.SECRETS,)
    assert verdict.reason == "it is given secrets: HF_A, HF_B, HF_C, HF_D +2 more · kaggle T4 · ~0.5h"
    exempt = replace(DEFAULT, agent=replace(DEFAULT.agent, exempt_providers=frozenset({"kaggle"})))
    assert judge(replace(AGENT, secrets=names[:1]), exempt).rules == (Rule.SECRETS,)
    assert not judge(replace(AGENT, hours=300.0), exempt).ask
    assert not judge(replace(USER, secrets=names), DEFAULT).ask


@pytest.mark.parametrize(
    ("left", "asked"), [(1.0, False), (0.99, True), (0.0, True), (-1.0, True), (None, False)]
)
def test_G25_more_than_half_of_the_quota_left_asks(left, asked):
    verdict = judge(replace(AGENT, quota_left=left), DEFAULT)
    assert verdict.ask is asked
    assert (verdict.rules == (Rule.QUOTA_SHARE,)) is asked


def test_c2_the_share_asks_users_too_and_again_at_another_provider():
    tight = replace(USER, quota_left=0.6)
    assert judge(tight, DEFAULT).rules == (Rule.QUOTA_SHARE,)
    approved = replace(tight, approved=True, approved_share_at={"kaggle"})
    assert not judge(approved, DEFAULT).ask
    assert judge(replace(approved, provider="colab"), DEFAULT).rules == (Rule.QUOTA_SHARE,)
    assert not judge(replace(approved, provider="colab", quota_left=10.0), DEFAULT).ask


def test_c2_a_yes_covers_everything_that_was_named():
    question = replace(AGENT, hours=6.0, secrets=("A",), quota_left=7.0)
    policy = replace(DEFAULT, agent=replace(DEFAULT.agent, ask_providers=frozenset({"kaggle"})))
    asked = judge(question, policy)
    assert set(asked.rules) == {Rule.QUOTA_SHARE, Rule.PROVIDER, Rule.SECRETS, Rule.HOURS}
    assert asked.reason.count(" and ") == 3
    assert not judge(replace(question, approved=True, approved_share_at={"kaggle"}), policy).ask


def test_c2_what_gpu_yaml_asks_for_comes_first_and_only_once():
    question = replace(USER, provider="local", requires_approval=True)
    assert judge(question, DEFAULT).rules == (Rule.REQUIRES_APPROVAL,)
    assert not judge(replace(question, approved=True), DEFAULT).ask


def test_c2_one_that_waits_asks_at_once_where_it_would_ask_anywhere():
    waits = Question("agent", "", hours=None, secrets=("WANDB",), quota_left=0.1)
    asked = judge_waiting(waits, ["kaggle", "colab"], DEFAULT)
    assert asked.rules == (Rule.SECRETS, Rule.UNKNOWN_HOURS)
    assert asked.reason == (
        "it is given secrets: WANDB and no hours given · kaggle or colab · runtime unknown"
    )
    some = replace(DEFAULT, agent=replace(DEFAULT.agent, exempt_providers=frozenset({"colab"})))
    assert judge_waiting(replace(waits, secrets=()), ["kaggle", "colab"], some).ask is False
    short = Question("agent", "", hours=1.0, quota_left=0.1)
    assert judge_waiting(short, ["kaggle"], DEFAULT).ask is False, "more may be left by then"
    assert judge_waiting(waits, [], DEFAULT).ask is False


def test_c4_one_that_goes_on_from_a_checkpoint_needs_less():
    assert judge(replace(AGENT, hours=4.0, done_fraction=0.5), DEFAULT).rules == (Rule.HOURS,)
    assert not judge(replace(AGENT, hours=4.0, done_fraction=0.75), DEFAULT).ask
    assert replace(AGENT, hours=4.0, done_fraction=1.0).hours_left == pytest.approx(0.2)


@pytest.mark.parametrize(("hours", "minutes"), [(0.1, 21), (0.25, 30), (0.5, 45), (1.0, 90), (4.0, 360)])
def test_G26_the_limit_of_an_overrun(hours, minutes):
    seconds = overrun_after(DEFAULT, "agent", "kaggle", hours, interactive=False)
    assert seconds == pytest.approx(minutes * 60)


def test_c4_who_is_never_stopped():
    exempt = replace(DEFAULT, agent=replace(DEFAULT.agent, exempt_providers=frozenset({"local"})))
    assert overrun_after(DEFAULT, "user", "kaggle", 1.0, interactive=False) is None
    assert overrun_after(DEFAULT, "agent", "kaggle", 1.0, interactive=True) is None
    assert overrun_after(DEFAULT, "agent", "kaggle", None, interactive=False) is None
    assert overrun_after(exempt, "agent", "local", 1.0, interactive=False) is None
    assert overrun_after(DEFAULT, "agent", "local", 1.0, interactive=False) is not None


def test_P13_costly_jobs_of_other_kinds_ask_by_the_rules_of_their_project():
    policy = replace(DEFAULT, max_gpu_hours=100.0, max_cost=50.0, ask_agents=True)
    assert not judge_cost(Cost("user", 100.0, 50.0), policy).ask
    assert judge_cost(Cost("user", 100.5, 50.5), policy).rules == (Rule.GPU_HOURS, Rule.COST)
    assert judge_cost(Cost("user", None), policy).rules == (Rule.GPU_HOURS,)
    assert judge_cost(Cost("agent", 1.0), policy).rules == (Rule.AGENT,)
    assert not judge_cost(Cost("agent", None, 1e9), DEFAULT).ask


_hours = st.none() | st.floats(0, 336)
_rules = st.builds(
    Rules,
    auto_max_hours=_hours,
    unknown_hours=st.sampled_from(["ask", "auto"]),
    ask_secrets=st.booleans(),
    max_quota_share=st.none() | st.floats(0, 1),
    enforce_hours=st.booleans(),
    ask_providers=st.frozensets(st.sampled_from(["local", "kaggle"])),
    exempt_providers=st.frozensets(st.sampled_from(["local", "kaggle"])),
)
_policies = st.builds(
    Policy,
    agent=_rules,
    user=_rules,
    overrun_factor=st.floats(1, 10),
    overrun_grace_hours=st.floats(0, 24),
    max_gpu_hours=_hours,
    max_cost=_hours,
    ask_agents=st.booleans(),
)
_questions = st.builds(
    Question,
    source=st.sampled_from(["agent", "user"]),
    provider=st.sampled_from(["local", "kaggle"]),
    hours=st.none() | st.floats(0.01, 336),
    quota_left=st.none() | st.floats(0, 100),
    secrets=st.lists(st.just("NAME"), max_size=2),
    requires_approval=st.booleans(),
    done_fraction=st.floats(0, 1),
)


@given(_policies)
def test_a_policy_is_read_back_as_it_was_written(policy):
    faults = FaultList()
    assert read(as_document(policy), faults) == policy
    assert not faults


@given(_questions, _policies)
def test_a_yes_to_everything_that_was_asked_lets_the_job_run(question, policy):
    verdict = judge(question, policy)
    answered = replace(question, approved=True, approved_share_at={question.provider})
    assert not judge(answered, policy).ask
    assert verdict.ask is bool(verdict.rules)
    assert verdict.ask is bool(verdict.reason)


@given(_questions, _policies, st.floats(0, 100))
def test_more_hours_never_ask_less(question, policy, more):
    if question.hours is None or not judge(question, policy).ask:
        return
    assert judge(replace(question, hours=question.hours + more), policy).ask


def test_every_fault_of_a_policy_is_named_at_once():
    faults = FaultList()
    read(
        {
            "version": 2,
            "agent": {"auto_max_hours": "1", "unknown_hours": "never", "ask_secrets": 1, "auto_max_hour": 1},
            "user": {"max_quota_share": 1.5, "exempt_providers": "local"},
            "overrun_factor": 0.5,
            "budget": 1,
        },
        faults,
    )
    assert {fault.path for fault in faults.faults} == {
        "version",
        "agent.auto_max_hours",
        "agent.unknown_hours",
        "agent.ask_secrets",
        "agent.auto_max_hour",
        "user.max_quota_share",
        "user.exempt_providers",
        "overrun_factor",
        "budget",
    }
