"""``client.tasks``, ``pools``, ``quotas`` and ``catalog``: what is sent, and what is made of the answers."""

from __future__ import annotations

import dataclasses

import pytest

from support.fake_server import DROP, Reply, in_turn, refusal
from trainshed.sdk import Conflict, ConnectionFailed, InvalidAnswer, NotFound, RequestRefused, WaitTimeout


@pytest.fixture
def pair(serve):
    return serve({})


@pytest.fixture
def fake(pair):
    return pair[0]


@pytest.fixture
def client(pair):
    return pair[1]


AT = "2026-01-02T03:04:05+00:00"
TASK = {
    "job_id": "job_1",
    "trial_id": "trial_1",
    "task_uuid": "u-1",
    "name": "sft-7k2m9q",
    "kind": "pytorch",
    "state": "Running",
    "priority": "high",
    "labels": {"a": "b"},
    "queued_at": AT,
    "position": None,
    "reason": {"code": "Behind", "message": "2 are ahead"},
    "estimated_start": {"earliest": AT, "latest": AT},
    "failure": {
        "code": "X",
        "class": "user",
        "replica": 1,
        "exit_code": 3,
        "message": "m",
        "last_lines": ["l"],
    },
    "attempts": [
        {
            "number": 1,
            "cause": "initial",
            "replicas": [{"rank": 1, "role": "worker", "index": 0, "state": "Lost", "gpu_indices": [2, 3]}],
        }
    ],
    "shares": ["bob"],
    "spec": {"env": [{"name": "A", "value": None, "hidden": True}]},
    "totals": {"gpus": 2},
}


def test_C57_a_task_is_read_with_its_attempts_and_replicas(client, fake):
    fake.routes = {"GET /v1/tasks/sft-7k2m9q": Reply(200, TASK)}
    found = client.tasks.get("sft-7k2m9q")
    assert (found.state, found.ended, found.priority, found.labels) == ("Running", False, "high", {"a": "b"})
    assert found.reason.code == "Behind"
    assert found.estimated_start.earliest == found.queued_at
    assert (found.failure.exit_class, found.failure.replica, found.failure.last_lines) == ("user", 1, ("l",))
    (replica,) = found.attempts[0].replicas
    assert (replica.rank, replica.index, replica.state, replica.gpu_indices) == (1, 0, "Lost", (2, 3))
    assert found.spec["env"][0]["value"] is None
    assert found.raw == TASK
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.state = "Failed"


@pytest.mark.parametrize("lost", ["job_id", "name", "task_uuid", "state"])
def test_an_answer_that_lacks_what_names_a_task_is_refused(client, fake, lost):
    fake.routes = {"GET /v1/tasks/x": Reply(200, {key: value for key, value in TASK.items() if key != lost})}
    with pytest.raises(InvalidAnswer, match=lost):
        client.tasks.get("x")


def test_C56_a_submission_gets_a_request_id_and_is_repeated_under_it(client, fake):
    fake.routes = {"POST /v1/jobs": in_turn(DROP, Reply(200, TASK))}
    made = client.tasks.create({"spec": {"kind": "ray"}})
    sent = [request.json for request in fake.seen]
    assert len(sent) == 2
    assert sent[0] == sent[1] == {"type": "train", "spec": {"kind": "ray"}, "request_id": made.request_id}
    assert made.accepted_before is False
    assert client.tasks.create({"request_id": "r", "spec": {"kind": "ray"}}).accepted_before is True


def test_C56_without_a_request_id_nothing_is_sent_twice(client, fake):
    fake.routes = {"POST /v1/jobs": DROP}
    with pytest.raises(ConnectionFailed):
        client.tasks.create({"spec": {"task_type": "RayJob"}}, make_request_id=False, allow_duplicate=True)
    (sent,) = fake.seen
    assert sent.json == {"type": "train", "spec": {"task_type": "RayJob"}, "allow_duplicate": True}
    fake.routes = {"POST /v1/jobs": refusal(409, "DUPLICATE_SUSPECTED")}
    with pytest.raises(Conflict, match="DUPLICATE_SUSPECTED"):
        client.tasks.create({"spec": {"task_type": "RayJob"}}, make_request_id=False)


def test_C4_what_names_no_kind_is_judged_as_a_task_before_it_is_sent(client, fake):
    fake.routes = {"POST /v1/jobs/validate": refusal(422, "INVALID_SPEC")}
    for spec in ({"kind": "pytroch"}, {}):
        with pytest.raises(RequestRefused, match="INVALID_SPEC"):
            client.tasks.create({"spec": spec})


def test_C16_validating_sends_the_small_copy_that_is_asked_for(client, fake):
    answer = {
        "effective_spec": {"workers": 0},
        "totals": {"gpus": 1},
        "quota": [{"spec": "h100x1", "requested": 1}],
        "would_start": False,
        "reason": {"code": "Fragmented", "message": "m"},
        "position": 4,
        "warnings": [{"code": "NO_WRITABLE_VOLUME", "path": "spec.mounts", "message": "m"}],
    }
    fake.routes = {"POST /v1/jobs/validate": Reply(200, answer)}
    found = client.tasks.validate({"spec": {}}, smoke={"minutes": 5, "workers": 0})
    assert fake.seen[0].json["smoke"] == {"minutes": 5, "workers": 0}
    assert (found.would_start, found.reason.code, found.position) == (False, "Fragmented", 4)
    assert found.warnings[0].code == "NO_WRITABLE_VOLUME"
    fake.routes = {"POST /v1/jobs/validate": refusal(422, "INVALID_SPEC")}
    with pytest.raises(RequestRefused):
        client.tasks.validate({"spec": {}})


def test_every_task_is_listed_page_by_page(client, fake):
    first = {"items": [TASK], "next_cursor": "c"}
    fake.routes = {"GET /v1/tasks": in_turn(Reply(200, first), Reply(200, {"items": [TASK]}))}
    assert len(list(client.tasks.iter_all(labels={"a": "b", "c": "d"}))) == 2
    assert fake.seen[1].query == {"label": "a=b", "cursor": "c", "limit": "100"}
    assert fake.seen[1].target.count("label=") == 2


def test_c7_stop_and_change_are_repeated_and_resubmit_is_not(client, fake):
    fake.routes = {
        "POST /v1/tasks/x/stop": in_turn(DROP, Reply(200, TASK)),
        "PATCH /v1/tasks/x": in_turn(DROP, Reply(200, TASK)),
        "POST /v1/tasks/x/resubmit": DROP,
        "DELETE /v1/tasks/x": Reply(202, {"job_id": "job_1"}),
    }
    client.tasks.stop("x")
    client.tasks.change("x", public=False, shares=[])
    assert fake.asked("PATCH /v1/tasks/x")[1].json == {"public": False, "shares": []}
    with pytest.raises(ConnectionFailed):
        client.tasks.resubmit("x")
    assert len(fake.asked("POST /v1/tasks/x/resubmit")) == 1
    client.tasks.delete("x")


def test_c2_events_are_followed_past_pages_to_the_end(client, fake):
    pages = {
        "0": {"items": [{"id": 1, "code": "A"}], "next_after": 1},
        "1": {"items": [{"id": 2, "code": "B", "replica": 0}], "next_after": None},
        "2": {"items": [{"id": 7, "code": "C"}], "next_after": None},
    }
    fake.routes = {
        "GET /v1/tasks/x": in_turn(Reply(200, TASK), Reply(200, {**TASK, "state": "Stopped"})),
        "GET /v1/tasks/x/events": lambda request: Reply(200, pages[request.query["after"]]),
    }
    found = list(client.tasks.follow_events("x"))
    assert [(each.id, each.code, each.replica) for each in found] == [
        (1, "A", None),
        (2, "B", 0),
        (7, "C", None),
    ]
    fake.routes["GET /v1/tasks/x"] = Reply(200, TASK)
    with pytest.raises(WaitTimeout, match="had not ended"):
        list(client.tasks.follow_events("x", after=1, timeout=0))


def test_waiting_ends_with_the_task_or_its_time(client, fake):
    fake.routes = {"GET /v1/tasks/x": in_turn(Reply(200, TASK), Reply(200, {**TASK, "state": "Succeeded"}))}
    assert client.tasks.wait("x").succeeded
    fake.routes = {"GET /v1/tasks/x": Reply(200, TASK)}
    with pytest.raises(WaitTimeout, match="sft-7k2m9q is Running"):
        client.tasks.wait("x", timeout=0)


def test_P10_why_is_typed(client, fake):
    answer = {
        "code": "Behind",
        "message": "m",
        "position": 3,
        "ahead": [{"priority": 5, "tasks": 2}],
        "unblock": ["u"],
    }
    fake.routes = {"GET /v1/tasks/x/why": Reply(200, answer)}
    found = client.tasks.why("x")
    assert (found.position, found.ahead[0]["tasks"], found.unblock, found.estimated_start) == (
        3,
        2,
        ("u",),
        None,
    )


def test_C37_metrics_are_asked_for_by_job(client, fake):
    sample = {"at": AT, "replica": 1, "attempt": 2, "endpoint": "", "values": {"cpu": 1, "odd": "x"}}
    fake.routes = {
        "GET /v1/tasks/x": Reply(200, TASK),
        "GET /v1/jobs/job_1/resource-metrics": Reply(200, {"items": [sample], "next_after": 1.5}),
    }
    (found,) = client.tasks.metrics("x", replica=1, after=2.5, series="cpu")
    assert (found.attempt, found.values) == (2, {"cpu": 1.0})
    assert fake.seen[-1].target.endswith("?replica=1&after=2.5&series=cpu")


def test_C50_a_refusal_of_the_server_is_raised_and_one_of_the_dashboard_is_handed_on(client, fake):
    fake.routes = {"GET /v1/tasks/x/dashboard/a": refusal(409, "RESOURCE_IN_USE")}
    with pytest.raises(Conflict):
        client.tasks.dashboard("x", "GET", "a")
    fake.routes = {"GET /v1/tasks/x/dashboard/a": Reply(404, b"not here", {"Content-Type": "text/plain"})}
    assert client.tasks.dashboard("x", "GET", "a?b=1")[::2] == (404, b"not here")
    assert fake.seen[-1].query == {"b": "1"}
    fake.routes = {"GET /v1/tasks/x/dashboard/a": DROP}
    with pytest.raises(ConnectionFailed):
        client.tasks.dashboard("x", "GET", "a")


def test_C24_C25_pools_and_what_is_idle_are_typed(client, fake):
    pool = {
        "id": "default",
        "cluster": "local",
        "region": "local",
        "resource_types": ["spot"],
        "nodes": 2,
        "specs": [{"spec": "h100x1", "total": 8, "free": 3, "in_use": 4, "cordoned": 1, "as_of": AT}],
    }
    idle = {"spec": "h100x1", "idle_units": 3, "stability": "low", "fragmentation": 0.5, "largest_gang": 1}
    fake.routes = {
        "GET /v1/pools": Reply(200, {"items": [pool]}),
        "GET /v1/pools/default": Reply(200, pool),
        "GET /v1/pools/default/idle": Reply(200, {"pool": "default", "as_of": AT, "specs": [idle]}),
    }
    (found,) = client.pools.list()
    assert found == client.pools.get("default")
    assert (found.specs[0].free, found.specs[0].cordoned, found.nodes) == (3, 1, 2)
    (spec,) = client.pools.idle("default", units=8).specs
    assert (spec.idle_units, spec.fragmentation) == (3, 0.5)
    assert fake.seen[-1].query == {"units": "8"}
    with pytest.raises(NotFound):
        client.pools.get("other")


def test_C34_cordons_are_set_once_and_cleared(client, fake):
    row = {"id": 7, "cluster": "local", "node": "n", "gpu": 1, "reason": "hot", "at": AT, "by": "key:1"}
    fake.routes = {
        "POST /v1/cordons": Reply(201, row),
        "GET /v1/cordons": Reply(200, {"items": [row]}),
        "DELETE /v1/cordons/7": Reply(200, {"id": 7}),
        "GET /v1/clusters": Reply(200, {"items": [{"id": "local", "pools": ["default"]}]}),
        "GET /v1/clusters/local": Reply(200, {"id": "local", "capabilities": [{"field": "ssh"}]}),
    }
    made = client.pools.cordon("local", "n", reason="hot", gpu=1)
    assert fake.seen[0].json == {"cluster": "local", "node": "n", "reason": "hot", "gpu": 1}
    assert list(client.pools.cordons()) == [made]
    client.pools.uncordon(made.cordon_id)
    assert client.pools.clusters().items[0].pools == ("default",)
    assert client.pools.cluster("local").capabilities == ({"field": "ssh"},)


def test_C23_quotas_are_typed(client, fake):
    row = {
        "project": "p",
        "resource_type": "spot",
        "pool": "d",
        "spec": "s",
        "units": 4,
        "limit": 6,
        "used": 5,
        "free": 1,
    }
    fake.routes = {"GET /v1/quotas": Reply(200, {"items": [{**row, "borrowed": 1}]})}
    (found,) = client.quotas.list(project="p")
    assert (found.units, found.limit, found.used, found.free, found.borrowed) == (4, 6, 5, 1, 1)
    assert fake.seen[0].query == {"project": "p"}


def test_a_catalogue_is_applied_against_the_revision_that_was_looked_at(client, fake):
    change = {"action": "added", "what": "pool x", "details": ""}
    fake.routes = {
        "GET /v1/catalog": Reply(
            200, {"revision": 3, "document": {"regions": []}, "applied_at": AT, "applied_by": "o"}
        ),
        "PUT /v1/catalog": Reply(200, {"revision": 4, "changes": [change], "applied": True}),
    }
    shown = client.catalog.show()
    done = client.catalog.apply(shown.document, expected_revision=shown.revision)
    assert fake.seen[1].json == {"document": {"regions": []}, "dry_run": False, "expected_revision": 3}
    assert (done.revision, done.applied, [str(each) for each in done.changes]) == (4, True, ["added pool x"])
