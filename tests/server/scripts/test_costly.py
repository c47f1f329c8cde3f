"""The team's rules for Runner Jobs and training tasks: which of them wait for a person (P13)."""

from __future__ import annotations

from decimal import Decimal

import pytest

from support.site import submission, trials
from support.tasks import task_document
from trainshed.control.costs import runner_cost, task_cost
from trainshed.control.scripts import approving
from trainshed.policy.approval import Policy, judge_cost

AGENT = {"Trainshed-Source": "agent"}


@pytest.fixture
def team(make_site):
    return make_site(personal=False)


def rules(site, **document):
    assert site.request("PUT", "/v1/approval-policy", document).status_code == 200


def submitted(site, document, **options):
    answer = site.post("/v1/jobs", document, **options)
    assert answer.status_code == 201, answer.text
    return answer.json()


def states(site, job):
    return [str(trial.state) for trial in trials(site, job["job_id"])]


def test_without_rules_nothing_but_script_Jobs_asks(team):
    assert states(team, submitted(team, submission("r"))) == ["queued"]
    rules(team, agent={"auto_max_hours": 0})
    assert states(team, submitted(team, submission("s"), headers=AGENT)) == ["queued"]


def test_a_task_without_an_end_or_over_the_limit_asks(team):
    rules(team, max_gpu_hours=2)
    short = submitted(team, task_document(max_run_seconds=3600))
    long = submitted(team, task_document(max_run_seconds=3 * 3600))
    endless = submitted(team, task_document())
    assert [states(team, job) for job in (short, long, endless)] == [
        ["queued"],
        ["awaiting_approval"],
        ["awaiting_approval"],
    ]
    shown = team.get(f"/v1/tasks/{long['name']}").json()
    assert (shown["state"], shown["reason"]["code"]) == ("Queuing", "AwaitingApproval")
    assert "a person has to approve" in team.get(f"/v1/tasks/{long['name']}/why").json()["message"].lower()
    [question] = [
        each
        for each in team.get("/v1/approvals", params={"open": "1"}).json()["items"]
        if each["job_id"] == long["job_id"]
    ]
    assert (question["kind"], question["rules"]) == ("pytorch", ["max_gpu_hours"])
    assert team.post(f"/v1/approvals/{question['id']}/answer", {"answer": "approved"}).status_code == 200
    assert states(team, long) == ["queued"]
    assert team.get(f"/v1/tasks/{long['name']}").json()["state"] == "Queuing"


def test_C_a_denied_task_is_stopped_with_its_code(team):
    rules(team, max_gpu_hours=0.1)
    task = submitted(team, task_document(max_run_seconds=3600))
    [question] = team.get("/v1/approvals", params={"open": "1"}).json()["items"]
    team.post(f"/v1/approvals/{question['id']}/answer", {"answer": "denied"})
    found = team.get(f"/v1/tasks/{task['name']}").json()
    assert (found["state"], found["internal_state"]) == ("Stopped", "denied")
    assert trials(team, task["job_id"])[0].error_code == "APPROVAL_DENIED"


def test_every_Job_of_an_agent_may_be_made_to_ask(team):
    rules(team, ask_agents=True)
    assert states(team, submitted(team, submission("mine"))) == ["queued"]
    assert states(team, submitted(team, submission("its"), headers=AGENT)) == ["awaiting_approval"]
    key = team.add_key(kind="agent", label="robot")
    assert states(team, submitted(team, submission("by-key"), key=key)) == ["awaiting_approval"]
    assert states(team, submitted(team, task_document(), headers=AGENT)) == ["awaiting_approval"]


def test_all_Trials_of_a_Job_are_counted_and_wait_together(team):
    rules(team, max_gpu_hours=1)
    one = {
        "runner": "envloop/bash@main",
        "resources": {"gpu_type": "H100", "gpus": 1},
        "timeout_seconds": 1200,
    }
    document = {"type": "train", "request_id": "r", "trials": [{"spec": one} for _ in range(4)]}
    job = submitted(team, document)
    assert states(team, job) == ["awaiting_approval"] * 4
    [question] = team.get("/v1/approvals", params={"open": "1"}).json()["items"]
    again = team.post("/v1/jobs", document)
    assert again.status_code == 200
    team.post(f"/v1/approvals/{question['id']}/answer", {"answer": "approved"})
    assert states(team, job) == ["queued"] * 4


def test_C33_C50_resubmissions_and_what_is_kept_afterwards_count(team):
    rules(team, max_gpu_hours=5)
    hour = {"max_run_seconds": 3600}
    again = {"enabled": True, "max_resubmissions": 9}
    kept = {
        "kind": "ray",
        "cmd": "python main.py",
        "workers": 1,
        "debug": {"enabled": True, "retention_seconds": 7200},
    }
    found = [
        submitted(team, task_document(**hour, **more)) for more in ({}, {"fault_tolerance": again}, kept)
    ]
    assert [states(team, job) for job in found] == [["queued"], ["awaiting_approval"], ["awaiting_approval"]]


def test_C51_a_task_that_grows_is_judged_at_its_largest(team):
    rules(team, max_gpu_hours=5)
    ray = {"kind": "ray", "cmd": "python main.py", "workers": 1, "max_run_seconds": 3600}
    small, large = (
        submitted(team, task_document(**ray, autoscaling={"enabled": True, "min": 1, "max": most}))
        for most in (2, 7)
    )
    assert [states(team, job) for job in (small, large)] == [["queued"], ["awaiting_approval"]]
    team.post(f"/v1/tasks/{small['name']}/stop")
    rules(team, max_gpu_hours=2.5)
    assert team.post(f"/v1/tasks/{small['name']}/resubmit").status_code == 200
    assert states(team, small) == ["awaiting_approval"]


def test_a_resubmitted_task_asks_again(team):
    rules(team, max_gpu_hours=2)
    task = submitted(team, task_document(max_run_seconds=3600))
    team.post(f"/v1/tasks/{task['name']}/stop")
    rules(team, max_gpu_hours=0.5)
    assert team.post(f"/v1/tasks/{task['name']}/resubmit").status_code == 200
    assert states(team, task) == ["awaiting_approval"]


def test_a_stop_takes_the_question_back_and_a_day_without_an_answer_denies(team):
    rules(team, max_gpu_hours=0.1)
    stopped, forgotten = (submitted(team, submission(name)) for name in ("a", "b"))
    team.post(f"/v1/jobs/{stopped['job_id']}/stop")
    [question] = team.get("/v1/approvals", params={"open": "1"}).json()["items"]
    assert question["job_id"] == forgotten["job_id"]
    team.clock.now += 25 * 3600
    assert approving.expire(team.services.database, team.clock()) == 1
    assert states(team, forgotten) == ["denied"]


def test_money_counts_where_specs_have_a_price():
    prices = {"USD": Decimal("2.50"), "EUR": Decimal(1)}
    cost = task_cost("user", 8, 4 * 3600.0, prices)
    assert (cost.gpu_hours, cost.money) == (32.0, 10.0)
    assert judge_cost(cost, Policy(max_cost=9.99)).ask
    assert not judge_cost(cost, Policy(max_cost=10.0)).ask
    assert task_cost("user", 8, 3600.0, None).money is None
    endless = judge_cost(task_cost("user", 8, None, prices), Policy(max_cost=1e9))
    assert (endless.ask, endless.reason) == (
        True,
        "up to any amount in money, over the limit of 1000000000.00",
    )
    assert task_cost("user", 0, None, None).gpu_hours == 0.0
    assert runner_cost("user", [(1, 1800), (2, 3600)]).gpu_hours == 2.5
