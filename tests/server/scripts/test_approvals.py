"""Questions to people: who may answer them and how, for script Jobs (contract G, c; promise P13)."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import replace

import pytest
import uvicorn

from support.contents import publish
from support.person import Person
from support.scripts import TRAIN, document, send_script, send_tree
from support.waiting import wait_until
from trainshed.control.scripts import approving
from trainshed.model.access import Permission
from trainshed.model.content import ContentKind
from trainshed.model.scripts.states import Phase, Reason
from trainshed.policy.approval import Rule, Verdict
from trainshed.store import approvals, jobs, moves, scripts

FOLDERS = iter(f"/srv/q{number}" for number in range(10_000))
VERDICT = Verdict(ask=True, rules=(Rule.HOURS,), reason="over the 1h auto limit · kaggle T4 · ~6h")
AGENT = {"Trainshed-Source": "agent"}


@pytest.fixture
def team(make_site):
    """A server of a team: people answer from anywhere, with their own keys."""
    return make_site(personal=False)


@pytest.fixture(scope="module")
def served(module_site):
    """The address of the module's site on a real socket: one person's own server."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(module_site.app, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    wait_until(lambda: server.started, 30.0, "the server")
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(30)


@pytest.fixture
def person(module_site, served, tmp_path):
    """Makes people at terminals."""
    with contextlib.ExitStack() as stack:
        number = iter(range(10))

        def make(**values):
            made = Person(tmp_path / f"person-{next(number)}", served, module_site.owner_key, **values)
            stack.callback(made.close)
            return made

        yield make


def asked(site, *, verdict=VERDICT, key=None):
    """A Job that waits for an answer, and the question's id."""
    answer = send_script(site, project_dir=next(FOLDERS), hours=6, key=key)
    assert answer.status_code == 201, answer.text
    job = answer.json()["job"]

    def ask(connection):
        args = (connection, job["trial_id"], Phase.ROUTING, Reason.ROUTING_STARTED, "said")
        scripts.set_phase(*args, at=site.clock())
        moves.lock_jobs(connection, [job["job_id"]])
        [trial] = jobs.trials_of(connection, [job["job_id"]])[job["job_id"]]
        return approving.ask(
            connection, [trial], job["spec_hash"], verdict, provider="kaggle", at=site.clock()
        )

    return job, site.services.database.write(ask)


def state(site, job):
    return site.get(f"/v1/scripts/{job['id']}").json()["job"]


def human(site, label, *permissions, **values):
    return site.add_key("default", *permissions, kind="human", label=label, **values)


# The person's own server: a code on the person's own terminal


def test_P13_c7_a_person_approves_with_the_code_that_their_terminal_shows(module_site, person):
    job, question = asked(module_site)
    ada = person()
    status, answer = ada.request("POST", f"/v1/approvals/{question}/challenge")
    assert status == 200, answer
    code = ada.code()
    assert code not in str(answer)
    assert code.replace("-", "") not in str(answer)
    assert answer["channel"].startswith("terminal /dev/pts/")
    assert job["short_id"] in ada.shown()
    status, refused = ada.request("POST", f"/v1/approvals/{question}/answer", {"answer": "approved"})
    assert (status, refused["code"]) == (403, "FORBIDDEN")
    body = {"answer": "approved", "code": code.lower(), "note": "go on"}
    status, answered = ada.request("POST", f"/v1/approvals/{question}/answer", body)
    assert (status, answered["answer"], answered["note"]) == (200, "approved", "go on")
    found = state(module_site, job)
    assert (found["state"], found["approval_id"], found["approved_by"]) == (
        "awaiting_approval",
        None,
        answered["answered_by"],
    )
    with module_site.services.database.read() as connection:
        script = scripts.of_jobs(connection, [job["job_id"]])[job["job_id"]]
        last = scripts.events_of(connection, job["trial_id"])[-1]
    assert (script.phase, last.kind, last.reason) == ("routing", "note", "approved")


def test_a9_nothing_of_a_project_moves_the_cursor_of_the_terminal(module_site, person):
    odd = "over the 1h auto limit\x1b[2K\r\u202e · kaggle T4"
    _, question = asked(module_site, verdict=replace(VERDICT, reason=odd))
    ada = person()
    assert ada.request("POST", f"/v1/approvals/{question}/challenge")[0] == 200
    ada.code()
    assert "over the 1h auto limit[2K · kaggle T4" in ada.shown()
    assert not {"\x1b", "\u202e"} & set(ada.shown())


def test_P13_a_code_is_of_one_question_and_good_once(module_site, person):
    _, first = asked(module_site)
    _, second = asked(module_site)
    ada = person()
    ada.request("POST", f"/v1/approvals/{first}/challenge")
    body = {"answer": "approved", "code": ada.code()}
    assert ada.request("POST", f"/v1/approvals/{second}/answer", body)[0] == 403
    for _ in range(5):
        wrong = {"answer": "approved", "code": "0000-0000"}
        assert ada.request("POST", f"/v1/approvals/{first}/answer", wrong)[0] == 403
    assert ada.request("POST", f"/v1/approvals/{first}/answer", body)[0] == 403  # spoilt


def test_P13_G30_what_an_agent_runs_is_refused_at_a_terminal_too(module_site, person):
    job, question = asked(module_site)
    for values in (
        {"env": {"CLAUDECODE": "1"}},
        {"env": {"CODEX_SANDBOX": "seatbelt"}},
        {"env": {"CODEX_SANDBOX_NETWORK_DISABLED": "1"}},
        {"env": {"TRAINSHED_AGENT": "1"}},
        {"ancestor": {"CLAUDECODE": "1"}},
        # It left its ancestors and has a clean environment, but the terminal is an agent's, or shows one.
        {"screen": {"CLAUDECODE": "1"}},
        {"ancestor": {"CLAUDECODE": "1"}, "orphan": True},
    ):
        agent = person(**values)
        status, refused = agent.request("POST", f"/v1/approvals/{question}/challenge")
        assert (status, refused["code"]) == (403, "FORBIDDEN"), values
        assert "in its environment" in refused["message"]
        for answer in ("approved", "denied"):
            status, refused = agent.request("POST", f"/v1/approvals/{question}/answer", {"answer": answer})
            assert (status, refused["code"]) == (403, "FORBIDDEN"), values
        assert "code" not in agent.shown()
    assert state(module_site, job)["approval_id"] == question


def test_P13_no_code_is_shown_without_a_terminal_or_in_the_background(module_site, person):
    _, question = asked(module_site)
    for values in ({"terminal": False}, {"background": True}):
        hidden = person(**values)
        status, refused = hidden.request("POST", f"/v1/approvals/{question}/challenge")
        assert (status, refused["code"]) == (403, "FORBIDDEN"), values
        assert "terminal" in refused["message"]
        assert "code" not in hidden.shown()


def test_P13_the_rules_are_not_changed_by_what_an_agent_runs(module_site, person):
    agent = person(env={"CLAUDECODE": "1"})
    status, refused = agent.request("PUT", "/v1/approval-policy", {"user": {"ask_secrets": True}})
    assert (status, refused["code"]) == (403, "FORBIDDEN")
    # Nor by one that left its ancestors, or that nobody knows: it has no terminal.
    for values in ({"ancestor": {"CLAUDECODE": "1"}, "orphan": True}, {"screen": {"CLAUDECODE": "1"}}):
        assert person(**values).request("PUT", "/v1/approval-policy", {})[0] == 403, values
    for method in ("PUT", "DELETE"):
        status, refused = person(terminal=False).request(method, "/v1/approval-policy", {})
        assert (status, refused["code"]) == (403, "FORBIDDEN")
    assert module_site.get("/v1/approval-policy").json()["changed"] == {}
    ada = person()
    assert ada.request("PUT", "/v1/approval-policy", {"user": {"ask_secrets": True}})[0] == 200
    assert ada.request("DELETE", "/v1/approval-policy")[0] == 200


def test_P13_a_process_that_cannot_be_found_changes_neither_rules_nor_secrets(module_site):
    """One that hangs up at once, say: its client has no address here."""
    for path, body in (("approval-policy", {"user": {"ask_secrets": True}}), ("secrets/K", {"value": "x"})):
        answer = module_site.request("PUT", f"/v1/{path}", body)
        assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN")
    assert module_site.request("DELETE", "/v1/secrets/K").json()["code"] == "FORBIDDEN"
    assert module_site.get("/v1/secrets").json()["items"] == []


def test_P13_what_an_agent_runs_changes_no_secret(module_site, person):
    agent, ada = person(ancestor={"CLAUDECODE": "1"}), person(terminal=False)
    for method, body in (("PUT", {"value": "x"}), ("DELETE", None)):
        status, refused = agent.request(method, "/v1/secrets/SOME_KEY", body)
        assert (status, refused["code"]) == (403, "FORBIDDEN")
    assert ada.request("PUT", "/v1/secrets/SOME_KEY", {"value": "x"})[0] == 200
    assert ada.request("DELETE", "/v1/secrets/SOME_KEY")[0] == 200


def test_P13_E94_what_an_agent_runs_approves_no_plugin(module_site, person):
    publish(module_site, "team/filter", {"f.py": b"x"}, kind=ContentKind.PLUGINS, version="1")
    where = "/v1/content/plugins/team/filter/versions/1/approval"
    agents = [person(env={"CLAUDECODE": "1"}), person(ancestor={"CLAUDECODE": "1"})]
    for agent in agents:
        status, refused = agent.request("PUT", where)
        assert (status, refused["code"]) == (403, "FORBIDDEN")
        assert "agent" in refused["message"]
    assert module_site.request("PUT", where).json()["code"] == "FORBIDDEN"  # nobody knows who asks
    assert person(terminal=False).request("PUT", where)[1]["approved"] is True
    assert agents[0].request("DELETE", where)[1]["approved"] is False


def test_P13_c6_what_an_agent_submits_is_an_agents_although_it_does_not_say_so(module_site, person):
    bundle = send_tree(module_site, TRAIN)
    for values, source in (({"ancestor": {"CLAUDECODE": "1"}}, "agent"), ({}, "user")):
        body = {"type": "train", "spec": document(bundle, project_dir=next(FOLDERS), hours=6)}
        status, answer = person(**values).request("POST", "/v1/jobs", body)
        assert (status, answer["job"]["source"]) == (201, source), answer


def test_a_process_that_cannot_be_found_gets_no_code(module_site):
    _, question = asked(module_site)
    refused = module_site.post(f"/v1/approvals/{question}/challenge")  # its client has no address at all
    assert refused.json()["code"] == "FORBIDDEN"
    body = {"answer": "approved", "code": "AAAA-AAAA"}
    assert module_site.post(f"/v1/approvals/{question}/answer", body).json()["code"] == "FORBIDDEN"


# Whoever answers


@pytest.mark.parametrize("answer", ["approved", "denied"])
def test_G30_P13_no_agent_and_no_service_answers(team, answer):
    job, question = asked(team)
    path = f"/v1/approvals/{question}/answer"
    keys = [team.add_key(kind="agent", label="robot"), team.add_key(kind="service", label="ci")]
    # A key of a person that an agent uses is the agent's as long as it says so.
    attempts = [(None, AGENT), *((key, {}) for key in keys), (keys[0], {"Trainshed-Source": "cli"})]
    for key, headers in attempts:
        refused = team.post(path, {"answer": answer}, key=key, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")
        assert team.post(f"/v1/approvals/{question}/challenge", key=key, headers=headers).status_code == 403
    assert state(team, job)["approval_id"] == question


def test_c7_on_a_team_server_the_owner_or_an_admin_answers_with_their_own_key(team):
    ada, bob = human(team, "ada", user="ada"), human(team, "bob", user="bob")
    _, question = asked(team, key=ada)
    path = f"/v1/approvals/{question}/answer"
    assert team.post(path, {"answer": "approved"}, key=bob).json()["code"] == "PERMISSION_DENIED"
    answered = team.post(path, {"answer": "approved"}, key=ada).json()
    assert (answered["answer"], answered["answered_by"]) == ("approved", "ada")
    _, second = asked(team, key=ada)
    root = human(team, "root", *Permission)
    assert team.post(f"/v1/approvals/{second}/answer", {"answer": "approved"}, key=root).status_code == 200
    _, third = asked(team, key=ada)
    reader = human(team, "reader", Permission.TRAINING_READ, user="ada")
    assert team.post(f"/v1/approvals/{third}/answer", {"answer": "denied"}, key=reader).status_code == 403
    assert team.woken


def test_G40_a_denied_Job_is_denied_and_its_question_closed(team):
    job, question = asked(team)
    path = f"/v1/approvals/{question}/answer"
    assert team.post(path, {"answer": "denied", "note": "too long"}).json()["note"] == "too long"
    found = state(team, job)
    assert (found["state"], found["approval_id"], found["approved_at"]) == ("denied", None, None)
    assert team.post(path, {"answer": "denied"}).status_code == 200  # the same again
    other = team.post(path, {"answer": "approved"})
    assert (other.status_code, other.json()["code"]) == (409, "INVALID_TRANSITION")
    assert team.get(f"/v1/jobs/{job['id']}").json()["status"] == "cancelled"


@pytest.mark.parametrize("body", [{}, {"answer": "yes"}, {"answer": None}, {"answer": "denied", "x": 1}])
def test_other_answers_are_refused(team, body):
    job, question = asked(team)
    assert team.post(f"/v1/approvals/{question}/answer", body).status_code == 422
    assert state(team, job)["approval_id"] == question


def test_G26_a_yes_to_an_overrun_lets_it_finish(team):
    job, question = asked(team, verdict=replace(VERDICT, rules=(Rule.OVERRUN,)))
    team.post(f"/v1/approvals/{question}/answer", {"answer": "approved"})
    with team.services.database.read() as connection:
        assert scripts.of_jobs(connection, [job["job_id"]])[job["job_id"]].overrun_approved


def test_c5_nobodys_answer_denies_after_a_day(team):
    job, question = asked(team)
    database, clock = team.services.database, team.clock
    clock.now += 24 * 3600 - 1
    assert approving.expire(database, clock()) == 0
    clock.now += 1
    assert approving.expire(database, clock()) == 1
    assert approving.expire(database, clock()) == 0
    assert state(team, job)["state"] == "denied"
    assert team.get(f"/v1/approvals/{question}").json()["answer"] == "expired"
    assert team.post(f"/v1/approvals/{question}/answer", {"answer": "approved"}).status_code == 409


def test_c5_what_nobody_answered_in_time_is_not_answered_later_although_nobody_denied_it_yet(team):
    job, question = asked(team)
    team.clock.now += 24 * 3600
    for answer in ("approved", "denied"):
        late = team.post(f"/v1/approvals/{question}/answer", {"answer": answer})
        assert (late.status_code, late.json()["code"]) == (409, "INVALID_TRANSITION")
    assert state(team, job)["approval_id"] == question
    assert approving.expire(team.services.database, team.clock()) == 1
    assert state(team, job)["state"] == "denied"


def test_a_cancelled_Job_takes_its_question_back(team):
    job, question = asked(team)
    team.post(f"/v1/scripts/{job['id']}/cancel")
    assert team.get(f"/v1/approvals/{question}").json()["answer"] == "withdrawn"
    assert team.post(f"/v1/approvals/{question}/answer", {"answer": "approved"}).status_code == 409
    assert state(team, job)["state"] == "cancelled"


def test_c7_an_answer_binds_to_the_spec_that_was_asked_about(team):
    job, question = asked(team)
    team.services.database.write(lambda c: scripts.change(c, job["trial_id"], {"spec_hash": "f" * 64}))
    refused = team.post(f"/v1/approvals/{question}/answer", {"answer": "approved"})
    assert (refused.status_code, refused.json()["code"]) == (409, "INVALID_TRANSITION")


def test_questions_are_listed_with_what_they_are_about(team):
    job, question = asked(team)
    _, other = asked(team)
    team.post(f"/v1/approvals/{other}/answer", {"answer": "denied"})
    listed = team.get("/v1/approvals", params={"open": "1"}).json()["items"]
    assert [(each["id"], each["short_id"], each["kind"]) for each in listed] == [
        (question, job["short_id"], "script")
    ]
    assert (listed[0]["reason"], listed[0]["rules"]) == (VERDICT.reason, ["auto_max_hours"])
    about = team.get("/v1/approvals", params={"job": job["short_id"]}).json()["items"]
    assert [each["id"] for each in about] == [question]
    page = team.get("/v1/approvals", params={"limit": 1}).json()
    rest = team.get("/v1/approvals", params={"limit": 1, "cursor": page["next_cursor"]}).json()
    assert [each["id"] for each in (*page["items"], *rest["items"])] == [other, question]
    team.add_project("elsewhere")
    stranger = team.add_key("elsewhere", kind="human")
    for path in (f"/v1/approvals/{question}", "/v1/approvals/x", "/v1/approvals/9999999"):
        assert team.get(path, key=stranger).json()["code"] == "APPROVAL_NOT_FOUND"


# The rules


def test_c1_the_rules_are_shown_set_and_reset_by_admins(team):
    shown = team.get("/v1/approval-policy").json()
    assert (shown["policy"]["agent"]["auto_max_hours"], shown["changed"]) == (1.0, {})
    changed = team.request("PUT", "/v1/approval-policy", {"agent": {"auto_max_hours": 2}}).json()
    assert changed["policy"]["agent"] == {**shown["policy"]["agent"], "auto_max_hours": 2.0}
    assert changed["changed"] == {"agent": {"auto_max_hours": 2}}
    developer = human(team, "dev")
    assert team.request("PUT", "/v1/approval-policy", {}, key=developer).status_code == 403
    assert team.request("DELETE", "/v1/approval-policy").json()["changed"] == {}


def test_c1_bad_rules_are_refused_with_every_fault(team):
    body = {"agent": {"auto_max_hours": -1, "unknown_hours": "maybe"}, "users": {}, "max_cost": "x"}
    answer = team.request("PUT", "/v1/approval-policy", body)
    assert {fault["path"] for fault in answer.json()["errors"]} == {
        "agent.auto_max_hours",
        "agent.unknown_hours",
        "users",
        "max_cost",
    }
    assert team.get("/v1/approval-policy").json()["changed"] == {}


def test_P13_an_agent_sets_no_rule(team):
    for headers in (AGENT,):
        put = team.request("PUT", "/v1/approval-policy", {}, headers=headers)
        assert (put.status_code, put.json()["code"]) == (403, "FORBIDDEN")
        assert team.request("DELETE", "/v1/approval-policy", headers=headers).json()["code"] == "FORBIDDEN"


def test_c5_a_change_of_the_rules_answers_no_question(team):
    job, question = asked(team)
    team.request("PUT", "/v1/approval-policy", {"agent": {"auto_max_hours": 100}})
    assert state(team, job)["approval_id"] == question
    with team.services.database.read() as connection:
        assert approvals.open_of(connection, job["job_id"]).id == question
