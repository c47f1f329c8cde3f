"""Submitting, validating and looking at training tasks (contract C16, C23-C25, C29, C55-C59, T12)."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from support.site import Site
from support.tasks import task_document
from trainshed.model.training.words import SHOWN

Submit = Callable[..., dict[str, Any]]
Person = Callable[..., str]
RESOURCE_TYPES = ("reserved", "ondemand", "spot", "idle")


def test_C55_a_submission_answers_its_names_and_place_and_is_found_by_the_next_call(site: Site):
    answer = site.post("/v1/jobs", task_document())
    assert answer.status_code == 201
    task = answer.json()
    assert (task["state"], task["status"], task["position"], task["kind"]) == (
        "Queuing",
        "queued",
        1,
        "pytorch",
    )
    assert [each["code"] for each in task["warnings"]] == ["NO_WRITABLE_VOLUME"]
    assert task["training"]["trials"][0]["runner"] is None
    assert site.woken
    for text in (task["name"], task["task_uuid"], task["job_id"], task["name"][:5]):
        items = site.get(f"/v1/tasks?q={text}").json()["items"]
        assert [item["job_id"] for item in items] == [task["job_id"]]


def test_C56_the_same_request_id_with_the_same_input_answers_200_and_the_first_task(site: Site):
    document = task_document(env=[{"name": "TOKEN", "value": "hidden-1234", "hidden": True}])
    first, again = site.post("/v1/jobs", document), site.post("/v1/jobs", document)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["task_uuid"] == first.json()["task_uuid"]
    document["spec"]["env"][0]["value"] = "hidden-5678"
    refused = site.post("/v1/jobs", document)
    assert (refused.status_code, refused.json()["code"]) == (409, "JOB_REQUEST_CONFLICT")
    assert "hidden-" not in json.dumps(refused.json())


def test_T12_twenty_parallel_identical_submissions_make_one_task(site: Site):
    document = task_document()
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: site.post("/v1/jobs", document), range(20)))
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
    assert len({answer.json()["task_uuid"] for answer in answers}) == 1
    assert len(site.get("/v1/tasks").json()["items"]) == 1


def test_C56_without_a_request_id_a_twin_is_suspected_and_may_be_allowed(site: Site, person: Person):
    document = task_document()
    del document["request_id"]
    key = person("ann")
    assert site.post("/v1/jobs", document, key=key).status_code == 201
    refused = site.post("/v1/jobs", document, key=person("ann"))
    assert (refused.status_code, refused.json()["code"]) == (409, "DUPLICATE_SUSPECTED")
    assert site.post("/v1/jobs", document, key=person("bob")).status_code == 201
    assert site.post("/v1/jobs", {**document, "allow_duplicate": True}, key=key).status_code == 201


def test_T1_several_faults_of_a_task_are_answered_at_once_and_nothing_is_created(site: Site):
    document = task_document(
        resource_type="gold", instance={"specs": ["h900x1"]}, image=None, priority="urgent", volume=1
    )
    answer = site.post("/v1/jobs", document)
    assert answer.status_code == 422
    assert answer.json()["code"] == "INVALID_SPEC"
    found = {fault["code"] for fault in answer.json()["errors"]}
    assert found >= {
        "RESOURCE_TYPE_UNKNOWN", "SPEC_UNKNOWN", "IMAGE_REQUIRED", "PRIORITY_NOT_ALLOWED", "UNKNOWN_FIELD",
    }  # fmt: skip
    assert site.post("/v1/jobs/validate", document).json()["errors"] == answer.json()["errors"]
    assert site.get("/v1/tasks").json()["items"] == []


def test_C17_a_resource_type_is_one_of_four_and_one_that_the_pool_offers(site: Site, submit: Submit):
    def refused(resource_type: Any) -> list[tuple[str, str]]:
        document = task_document()
        document["spec"]["resource_type"] = resource_type
        answer = site.post("/v1/jobs", document)
        assert answer.status_code == 422, answer.text
        return [(fault["path"], fault["code"]) for fault in answer.json()["errors"]]

    assert {submit(resource_type=word)["state"] for word in RESOURCE_TYPES} == {"Queuing"}
    kept = {task["resource_type"] for task in site.get("/v1/tasks").json()["items"]}
    assert kept == set(RESOURCE_TYPES)
    for word in ("Reserved", "on-demand", "", 7, None):
        assert refused(word) == [("spec.resource_type", "RESOURCE_TYPE_UNKNOWN")]
    catalog = site.get("/v1/catalog").json()["document"]
    catalog["pools"][0]["resource_types"] = ["reserved", "ondemand"]
    catalog["quotas"] = []
    assert site.request("PUT", "/v1/catalog", {"document": catalog}).status_code == 200
    for word in ("spot", "idle"):
        assert ("spec.resource_type", "RESOURCE_TYPE_NOT_OFFERED") in refused(word)
    assert len(site.get("/v1/tasks").json()["items"]) == 4


def test_C16_validate_tells_everything_but_creates_nothing(site: Site):
    answer = site.post("/v1/jobs/validate", task_document(workers=3, instance={"specs": ["h100x2"]}))
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["totals"]["replicas"], found["totals"]["units"], found["totals"]["gpus"]) == (4, 4, 8)
    assert found["effective_spec"]["pool"] == "default"
    (quota,) = found["quota"]
    assert (quota["requested"], quota["limit"], quota["used"], quota["free"]) == (4, 4, 0, 4)
    assert (found["would_start"], found["reason"], found["position"]) == (True, None, 1)
    assert site.get("/v1/tasks").json()["items"] == []


def test_C16_a_smoke_copy_is_the_same_task_with_few_workers_and_a_limit(site: Site):
    document = task_document(workers=3, instance={"specs": ["h100x2"]})
    found = site.post("/v1/jobs/validate", {**document, "smoke": {"minutes": 5, "workers": 0}}).json()
    assert (found["totals"]["replicas"], found["effective_spec"]["max_run_seconds"]) == (1, 300)
    refused = site.post("/v1/jobs", {**document, "smoke": {"minutes": 5, "workers": 0}})
    assert [fault["code"] for fault in refused.json()["errors"]] == ["SMOKE_INVALID"]


def test_C23_more_than_the_quota_can_ever_give_is_refused_with_numbers(site: Site):
    answer = site.post("/v1/jobs", task_document(workers=4, instance={"specs": ["h100x2"]}))
    assert answer.status_code == 422
    codes = {fault["code"] for fault in answer.json()["errors"]}
    assert codes & {"QUOTA_EXCEEDED", "NEVER_FITS"}
    assert (
        answer.json()["quota"][0] | {"spec": "h100x2", "requested": 5, "limit": 4}
        == answer.json()["quota"][0]
    )


def test_C24_two_tasks_that_fit_alone_and_not_together_are_both_accepted_and_the_second_waits_for_numbers(
    site: Site, submit: Submit
):
    submit(instance={"specs": ["h100x4"]}, workers=1)
    second = submit(instance={"specs": ["h100x4"]}, workers=1, name_prefix="second")
    assert second["position"] == 2
    why = site.get(f"/v1/tasks/{second['name']}/why").json()
    assert (why["position"], why["queue_length"], why["ahead"]) == (2, 2, [{"priority": 500, "tasks": 1}])
    assert why["code"] in {"WaitingForQuota", "WaitingForResources", "PendingEvaluation"}
    assert why["unblock"]
    found = site.post(
        "/v1/jobs/validate", task_document(instance={"specs": ["h100x1"]}, name_prefix="third")
    ).json()
    assert (found["would_start"], found["position"]) == (False, 3)
    assert found["reason"]["code"] != ""


def test_C29_priority_changes_while_a_task_waits_and_places_follow(site: Site, submit: Submit):
    first, second = submit(), submit(name_prefix="second")
    changed = site.request("PATCH", f"/v1/tasks/{second['name']}", {"priority": "high"})
    assert (changed.status_code, changed.json()["priority"], changed.json()["position"]) == (200, "high", 1)
    assert site.get(f"/v1/tasks/{first['name']}").json()["position"] == 2
    for wrong in ("urgent", 5000, True, 1.5):
        refused = site.request("PATCH", f"/v1/tasks/{second['name']}", {"priority": wrong})
        assert refused.status_code == 422
        assert [fault["code"] for fault in refused.json()["errors"]] == ["PRIORITY_NOT_ALLOWED"]


def test_C6_lists_are_filtered_by_labels_kind_state_and_owner(site: Site, submit: Submit, person: Person):
    one = submit(labels={"team": "nlp", "run": "1"})
    two = submit(labels={"team": "nlp", "run": "2"}, name_prefix="two")
    three = submit(person("ann"), name_prefix="three")

    def found(query: str) -> list[str]:
        answer = site.get(f"/v1/tasks?{query}")
        assert answer.status_code == 200, answer.text
        return [item["job_id"] for item in answer.json()["items"]]

    assert found("label=team=nlp") == [two["job_id"], one["job_id"]]
    assert found("label=team=nlp&label=run=2") == [two["job_id"]]
    assert found("owner=ann") == [three["job_id"]]
    assert found("state=Queuing&limit=2") == [three["job_id"], two["job_id"]]
    assert found("state=Running") == []
    assert found("kind=ray") == []
    assert found("label=run") == [two["job_id"], one["job_id"]]
    assert found("label=run&label=team=hpc") == []
    assert found("owner=human:ann") == [three["job_id"]]
    refused = site.get("/v1/tasks?state=Walking&kind=mpi&label==x")
    assert (refused.status_code, len(refused.json()["errors"])) == (422, 3)


def test_C9_hidden_values_are_null_on_every_read(site: Site, submit: Submit):
    task = submit(
        env=[{"name": "TOKEN", "value": "s3cr3t-value", "hidden": True}, {"name": "A", "value": "1"}]
    )
    for path in (
        "/v1/tasks/{name}",
        "/v1/jobs/{job_id}",
        "/v1/jobs/{job_id}/manifest",
        "/v1/tasks/{name}/events",
    ):
        text = site.get(path.format(**task)).text
        assert "s3cr3t-value" not in text
    env = {
        each["name"]: each["value"] for each in site.get(f"/v1/tasks/{task['name']}").json()["spec"]["env"]
    }
    assert env == {"A": "1", "TOKEN": None}


def test_C57_events_are_read_in_order_and_by_pages(site: Site, submit: Submit):
    task = submit()
    site.post(f"/v1/tasks/{task['name']}/stop")
    page = site.get(f"/v1/tasks/{task['name']}/events").json()
    codes = [event["code"] for event in page["items"]]
    assert codes == ["SUBMITTED", "QUEUED", "STOP_ACCEPTED", "CANCELLED"]
    assert [event["state"] for event in page["items"]][1::2] == ["Queuing", "Stopped"]
    first = site.get(f"/v1/tasks/{task['name']}/events?limit=3").json()
    rest = site.get(f"/v1/tasks/{task['name']}/events?after={first['next_after']}").json()
    assert [each["id"] for each in first["items"] + rest["items"]] == [each["id"] for each in page["items"]]


def test_C59_list_page_job_and_trial_tell_the_same_state(site: Site, submit: Submit):
    task = submit()
    site.post(f"/v1/tasks/{task['name']}/stop")
    words = {
        site.get("/v1/tasks").json()["items"][0]["state"],
        site.get(f"/v1/tasks/{task['name']}").json()["state"],
        site.get(f"/v1/jobs/{task['job_id']}").json()["state"],
        site.get(f"/v1/trials/{task['trial_id']}").json()["state"],
    }
    assert words == {"Stopped"}
    assert {str(word) for word in SHOWN.values()} >= words


def test_c7_a_resubmission_takes_a_new_place_and_is_refused_while_the_task_lives(site: Site, submit: Submit):
    task, other = submit(), submit(name_prefix="other")
    refused = site.post(f"/v1/tasks/{task['name']}/resubmit")
    assert (refused.status_code, refused.json()["code"]) == (409, "RESOURCE_IN_USE")
    site.post(f"/v1/tasks/{task['name']}/stop")
    site.clock.now += 60
    again = site.post(f"/v1/tasks/{task['name']}/resubmit").json()
    assert (again["state"], again["position"], again["detail"]) == ("Queuing", 2, "Resubmitted by a person")
    assert site.get(f"/v1/tasks/{other['name']}").json()["position"] == 1
