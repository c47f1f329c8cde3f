"""Who may see and change a training task (contract C5, c7)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, update

from support.site import Site, submission
from support.tasks import place, task_document
from trainshed.store import events, jobs, tables

Submit = Callable[..., dict[str, Any]]
Person = Callable[..., str]

READS = (
    "/v1/tasks/{name}",
    "/v1/tasks/{task_uuid}",
    "/v1/tasks/{job_id}",
    "/v1/tasks/{trial_id}",
    "/v1/tasks/{name}/why",
    "/v1/tasks/{name}/events",
    "/v1/tasks/{name}/logs",
    "/v1/alarms?task={name}",
    "/v1/jobs/{job_id}",
    "/v1/jobs/{job_id}/result",
    "/v1/jobs/{job_id}/events",
    "/v1/jobs/{job_id}/events/stream",
    "/v1/jobs/{job_id}/logs",
    "/v1/jobs/{job_id}/logs/stream",
    "/v1/jobs/{job_id}/manifest",
    "/v1/jobs/{job_id}/resource-metrics",
    "/v1/trials?job_id={job_id}",
    "/v1/trials/{trial_id}",
    "/v1/trials/{trial_id}/snapshot",
    "/v1/trials/{trial_id}/metrics",
    "/v1/trials/{trial_id}/artifacts",
    "/v1/trials/{trial_id}/checkpoints",
    "/v1/trials/{trial_id}/logs/raw",
    "/v1/job/checkpoints?job_id={job_id}",
)
LISTS = ("/v1/tasks", "/v1/jobs", "/v1/trials")
CHANGES = (
    ("POST", "/v1/tasks/{name}/stop"),
    ("POST", "/v1/tasks/{name}/resubmit"),
    ("PATCH", "/v1/tasks/{name}"),
    ("DELETE", "/v1/tasks/{name}"),
    ("POST", "/v1/jobs/{job_id}/stop"),
    ("POST", "/v1/trials/{trial_id}/stop"),
    ("POST", "/v1/jobs/{job_id}/pause"),
)


def named(site: Site, path: str, key: str) -> set[str]:
    answer = site.get(path, key=key)
    assert answer.status_code == 200, answer.text
    return {item["job_id"] for item in answer.json()["items"]}


def test_C5_others_get_404_on_every_read_of_a_task_that_is_not_public(
    site: Site, submit: Submit, person: Person
):
    task, bob = submit(person("ann")), person("bob")
    for path in READS:
        answer = site.get(path.format(**task), key=bob)
        assert answer.status_code == 404, (path, answer.text)
        assert answer.json()["code"] in {"JOB_NOT_FOUND", "TRIAL_NOT_FOUND"}, path


def test_C5_its_owner_sees_it_with_any_of_their_keys(site: Site, submit: Submit, person: Person):
    task, other_key = submit(person("ann")), person("ann")
    for path in (path for path in READS if "stream" not in path):
        answer = site.get(path.format(**task), key=other_key)
        assert answer.status_code == 200, (path, answer.text)


def test_C5_lists_leave_out_what_others_keep_to_themselves(site: Site, submit: Submit, person: Person):
    ann, bob = person("ann"), person("bob")
    hers, his = submit(ann), submit(bob, name_prefix="his")
    public = submit(ann, public=True, name_prefix="open")
    runner = site.submit("r")["job_id"]
    for path in LISTS:
        runners = set() if path == "/v1/tasks" else {runner}
        assert named(site, path, ann) == {hers["job_id"], public["job_id"], *runners}
        assert named(site, path, bob) == {his["job_id"], public["job_id"], *runners}
        everything = {hers["job_id"], public["job_id"], his["job_id"], *runners}
        assert named(site, path, site.owner_key) == everything


def test_C5_pages_hold_as_many_tasks_as_asked_for_whoever_owns_those_between(
    site: Site, submit: Submit, person: Person
):
    ann, bob = person("ann"), person("bob")
    mine = [
        submit(ann if number % 3 == 0 else bob, name_prefix=f"t{number}")["job_id"] for number in range(9)
    ][::3]
    first = site.get("/v1/jobs?limit=2", key=ann).json()
    second = site.get(f"/v1/jobs?limit=2&cursor={first['next_cursor']}", key=ann).json()
    found = [item["job_id"] for page in (first, second) for item in page["items"]]
    assert (found, second["next_cursor"]) == (mine[::-1], None)


def test_C5_tasks_that_others_keep_to_themselves_take_no_place_among_the_matches_of_a_prefix(
    site: Site, submit: Submit, person: Person
):
    ann, bob = person("ann"), person("bob")
    hers = [submit(ann, name_prefix=f"t{number}")["job_id"] for number in range(11)]
    his = submit(bob, name_prefix="his")["job_id"]

    def name_them(connection: Connection) -> None:
        for number, job_id in enumerate([*hers, his]):
            digits = {"digits": f"a{number:05x}{number:06x}", "short_id": f"a{number:05x}"}
            connection.execute(update(tables.jobs).where(tables.jobs.c.id == job_id).values(digits))

    site.services.database.write(name_them)
    assert site.get("/v1/tasks/a0000", key=bob).json()["job_id"] == his, "the last of all that begin so"
    assert site.get("/v1/tasks/a0000", key=ann).json()["code"] == "AMBIGUOUS_JOB_REF"


def test_C5_a_share_with_nobody_is_refused(site: Site, submit: Submit, person: Person):
    ann, _ = person("ann"), person("bob")
    path = f"/v1/tasks/{submit(ann)['name']}"
    refused = site.request("PATCH", path, {"public": True, "shares": ["bob", "nobody"]}, key=ann)
    assert refused.status_code == 422
    assert [(fault["path"], "`nobody`" in fault["message"]) for fault in refused.json()["errors"]] == [
        ("shares", True)
    ]
    assert (site.get(path, key=ann).json()["public"], site.get(path, key=ann).json()["shares"]) == (False, [])
    assert "train list" in site.get("/v1/tasks/nobody", key=ann).json()["hint"]


def test_C5_a_share_lets_one_person_see_and_not_change(site: Site, submit: Submit, person: Person):
    ann, bob, eve = person("ann"), person("bob"), person("eve")
    task = submit(ann)
    changed = site.request("PATCH", f"/v1/tasks/{task['name']}", {"shares": ["bob"]}, key=ann)
    assert (changed.status_code, changed.json()["shares"]) == (200, ["bob"])
    assert site.get(f"/v1/tasks/{task['name']}", key=bob).status_code == 200
    assert site.get(f"/v1/tasks/{task['name']}", key=eve).status_code == 404
    refused = site.post(f"/v1/tasks/{task['name']}/stop", key=bob)
    assert (refused.status_code, refused.json()["code"]) == (403, "PERMISSION_DENIED")
    assert "ann" in refused.json()["message"]


def test_C5_its_owner_may_make_it_public_later_and_take_that_back(site: Site, submit: Submit, person: Person):
    ann, bob = person("ann"), person("bob")
    name = submit(ann)["name"]
    for public, status in ((True, 200), (False, 404)):
        site.request("PATCH", f"/v1/tasks/{name}", {"public": public}, key=ann)
        assert site.get(f"/v1/tasks/{name}", key=bob).status_code == status


def test_C5_nobody_changes_what_they_do_not_see(site: Site, submit: Submit, person: Person):
    task, bob = submit(person("ann")), person("bob")
    for method, path in CHANGES:
        answer = site.request(method, path.format(**task), {"public": True}, key=bob)
        assert answer.status_code == 404, (path, answer.text)
    assert site.get(f"/v1/tasks/{task['name']}").json()["internal_state"] == "queued"


def test_C5_a_public_task_is_stopped_by_its_owner_and_by_admins_only(
    site: Site, submit: Submit, person: Person
):
    task, bob = submit(person("ann"), public=True), person("bob")
    paths = [path for method, path in CHANGES if path.endswith("/stop")]
    for path in paths:
        refused = site.post(path.format(**task), key=bob)
        assert (refused.status_code, refused.json()["code"]) == (403, "PERMISSION_DENIED"), path
    for path in paths:
        assert site.post(path.format(**task)).status_code == 200, path


SECRET = {"name": "TOKEN", "value": "swordfish", "hidden": True}


def refusal(site: Site, document: dict[str, Any], key: str | None) -> dict[str, Any]:
    """What a conflict says, without what differs from answer to answer."""
    answer = site.post("/v1/jobs", document, key=key)
    assert (answer.status_code, answer.json()["code"]) == (409, "JOB_REQUEST_CONFLICT"), answer.text
    return {key: value for key, value in answer.json().items() if key != "request_id"}


def test_C5_the_request_id_of_somebody_else_tells_nothing_of_their_task(site: Site, person: Person):
    ann, bob = person("ann"), person("bob")
    document = task_document(env=[SECRET], cmd="echo private")
    created = site.post("/v1/jobs", document, key=ann)
    assert created.status_code == 201, created.text
    guess = {**document, "spec": {**document["spec"], "env": [{**SECRET, "value": "guess"}]}}
    other = {**task_document(), "request_id": document["request_id"]}
    runner = submission(document["request_id"])
    answers = [refusal(site, sent, bob) for sent in (document, guess, other, runner)]
    assert answers == [answers[0]] * 4
    assert answers[0]["message"] == "this request id is taken in this project; choose another"
    assert [fault["path"] for fault in answers[0]["errors"]] == ["request_id"]
    assert set(answers[0]) == {"code", "message", "hint", "errors"}
    site.request("DELETE", f"/v1/tasks/{created.json()['task_uuid']}", key=ann)
    for key in (ann, bob, site.owner_key):
        assert [refusal(site, sent, key) for sent in (document, guess)] == [answers[0]] * 2


def test_C5_why_a_task_waits_names_another_only_to_those_who_may_see_it(
    site: Site, submit: Submit, person: Person
):
    ann, bob = person("ann"), person("bob")
    place(site, submit(ann, name_prefix="runs", max_run_seconds=600))
    hers = submit(ann, instance={"specs": ["h100x8"]}, name_prefix="first")
    his = submit(bob, name_prefix="late")
    site.services.outlook.forget()

    def said(key: str | None) -> list[str]:
        paths = [f"/v1/tasks/{his['name']}/why", f"/v1/tasks/{his['name']}", f"/v1/trials/{his['trial_id']}"]
        paths += [f"/v1/jobs/{his['job_id']}"]
        answers = [site.get(path, key=key).text for path in paths]
        document = task_document(name_prefix="other")
        return [*answers, site.post("/v1/jobs/validate", document, key=key).text]

    for text in said(bob):
        assert "is kept for another task, which comes first" in text
        assert hers["trial_id"] not in text
        assert hers["name"] not in text
    for text in said(site.owner_key):
        assert f"is kept for {hers['name']}, which comes first" in text
    site.request("PATCH", f"/v1/tasks/{hers['name']}", {"public": True}, key=ann)
    for text in said(bob):
        assert f"is kept for {hers['name']}, which comes first" in text


def test_C9_those_who_see_a_task_learn_of_its_hidden_values_at_most_that_they_differ(
    site: Site, person: Person
):
    ann, bob = person("ann"), person("bob")
    document = task_document(env=[SECRET], public=True)
    assert site.post("/v1/jobs", document, key=ann).status_code == 201
    guess = {**document, "spec": {**document["spec"], "env": [{**SECRET, "value": "guess"}]}}
    mine = refusal(site, guess, ann)
    assert [(fault["path"], fault["message"]) for fault in mine["errors"]] == [
        ("spec.env.TOKEN", "the hidden value differs from that of the stored task")
    ]
    theirs = [refusal(site, sent, key) for sent in (document, guess) for key in (bob, site.owner_key)]
    assert theirs == [theirs[0]] * 4
    other = {**guess, "spec": {**guess["spec"], "workers": 2}}
    assert "the stored task has 0, this request 2" in json.dumps(refusal(site, other, bob))
    with site.services.database.read() as connection:
        (stored,) = [job.canonical for job in jobs.list_jobs(connection, "default")]
    (digest,) = json.loads(stored)["hidden"].values()
    for key in (ann, bob):
        said = json.dumps(refusal(site, other, key))
        assert digest[:8] not in said
        assert "swordfish" not in said


def test_C56_a_conflict_counts_entries_of_lists(site: Site):
    document = task_document(env=[{"name": "A", "value": "1"}])
    assert site.post("/v1/jobs", document).status_code == 201
    sent = {**document, "spec": {**document["spec"], "env": []}}
    (fault,) = refusal(site, sent, None)["errors"]
    assert (fault["path"], fault["message"]) == ("spec.env", "the stored task has 1 entry, this request 0")


def test_c7_a_deleted_task_is_hidden_at_once_from_everybody_and_its_records_stay(
    site: Site, submit: Submit, person: Person
):
    ann = person("ann")
    task = submit(ann)
    answer = site.request("DELETE", f"/v1/tasks/{task['name']}", key=ann)
    assert (answer.status_code, answer.json()) == (202, {"job_id": task["job_id"], "deleted": True})
    for key in (ann, site.owner_key):
        assert all(task["job_id"] not in named(site, path, key) for path in LISTS)
        assert site.get(f"/v1/tasks/{task['name']}", key=key).status_code == 404
        assert site.get(f"/v1/jobs/{task['job_id']}", key=key).status_code == 404
    with site.services.database.read() as connection:
        codes = [event.code for event in events.of_job(connection, task["job_id"])]
    assert codes[-1] == "DELETED"
    assert "CANCELLED" in codes
