"""Pools, idle figures, quotas, clusters, cordons, the catalogue and help (contract C1, C23-C25, c6, c9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.site import Site
from support.tasks import place, task_document
from trainshed.model.access import Permission
from trainshed.store import gangs

Submit = Callable[..., dict[str, Any]]
CHANNEL = {"id": "ops", "type": "webhook", "url": "https://hooks.example/T0K3N"}


def spec_of(site: Site, name: str, path: str = "/v1/pools/default") -> dict[str, Any]:
    return next(each for each in site.get(path).json()["specs"] if each["spec"] == name)


def test_C24_a_pool_tells_what_is_there_free_in_use_and_closed(site: Site, submit: Submit):
    keys = ("total", "free", "in_use", "cordoned")
    assert [spec_of(site, "h100x2")[key] for key in keys] == [4, 4, 0, 0]
    place(site, submit(workers=1, instance={"specs": ["h100x2"]}))
    site.services.outlook.forget()
    assert [spec_of(site, "h100x2")[key] for key in keys] == [4, 2, 2, 0]
    closed = {"cluster": "local", "node": "n1", "gpu": 7, "reason": "XID 79"}
    assert site.post("/v1/cordons", closed).status_code == 201
    assert [spec_of(site, "h100x1")[key] for key in keys] == [8, 3, 0, 1]
    assert [pool["id"] for pool in site.get("/v1/pools").json()["items"]] == ["default"]
    assert site.get("/v1/pools/none").status_code == 404


def test_C23_a_quota_tells_what_is_used_of_it_and_a_task_above_the_rest_waits(site: Site, submit: Submit):
    place(site, submit(workers=1, instance={"specs": ["h100x4"]}))
    site.services.outlook.forget()
    rows = {(row["resource_type"], row["spec"]): row for row in site.get("/v1/quotas").json()["items"]}
    row = rows["ondemand", "h100x4"]
    assert (row["units"], row["limit"], row["used"], row["free"]) == (2, 2, 2, 0)
    task = submit(instance={"specs": ["h100x4"]}, name_prefix="late")
    site.services.outlook.forget()
    why = site.get(f"/v1/tasks/{task['name']}/why").json()
    assert why["code"] == "WaitingForQuota"
    assert (why["blocked_by"]["requested"], why["blocked_by"]["available"], why["blocked_by"]["limit"]) == (
        1,
        0,
        2,
    )
    page = site.get(f"/v1/tasks/{task['name']}").json()
    trial = site.get(f"/v1/trials/{task['trial_id']}").json()
    assert page["reason"]["code"] == trial["waiting"]["code"] == why["code"]
    found = site.post(
        "/v1/jobs/validate", task_document(instance={"specs": ["h100x4"]}, name_prefix="x")
    ).json()
    assert [(each["used"], each["free"]) for each in found["quota"]] == [(2, 0)]
    assert (found["would_start"], found["reason"]["code"]) == (False, "WaitingForQuota")


def test_C23_another_projects_quotas_are_for_the_owner_key(site: Site):
    key = site.add_key("default", Permission.TRAINING_READ)
    site.add_project("other")
    assert site.get("/v1/quotas?project=other", key=key).json()["code"] == "PROJECT_ACCESS_DENIED"
    assert site.get("/v1/quotas?project=other").status_code == 200


def test_C25_idle_figures_follow_the_samples_of_a_day(site: Site, submit: Submit):
    def idle(query: str = "spec=h100x1") -> dict[str, Any]:
        (found,) = site.get(f"/v1/pools/default/idle?{query}").json()["specs"]
        return dict(found)

    assert idle() == {
        "spec": "h100x1", "idle_units": 8, "stability": "low", "fragmentation": 0.0, "largest_gang": 8,
    }  # fmt: skip
    now = site.clock()
    for hour in range(24):
        at = now - 3600 * (24 - hour)
        site.services.database.write(
            lambda connection, at=at: gangs.put_idle_samples(connection, at, {("default", "h100x1"): 8})
        )
    assert idle()["stability"] == "high"
    place(site, submit())
    site.services.outlook.forget()
    assert idle("spec=h100x1&units=4") | {
        "idle_units": 7,
        "largest_gang": 1,
        "fragmentation": 0.4286,
    } == idle("spec=h100x1&units=4")
    # Seven free GPUs are three replicas of h100x2: the seventh is of no use to it.
    assert [idle("spec=h100x2")[key] for key in ("idle_units", "largest_gang", "fragmentation")] == [
        3, 3, 0.1429,
    ]  # fmt: skip


def test_C34_nodes_are_closed_and_opened_by_the_owner_key_only(site: Site):
    closed = {"cluster": "local", "node": "n1", "reason": "fan"}
    admin = site.add_key("default", *Permission)
    assert site.post("/v1/cordons", closed, key=admin).json()["code"] == "PERMISSION_DENIED"
    made = site.post("/v1/cordons", closed).json()
    assert site.post("/v1/cordons", closed).json()["code"] == "ALREADY_EXISTS"
    found = site.post("/v1/jobs/validate", task_document()).json()
    assert (found["would_start"], found["reason"]["code"]) == (False, "NoMatchingSpec")
    assert site.get("/v1/clusters/local").json()["nodes"][0]["cordoned"] is True
    assert site.request("DELETE", f"/v1/cordons/{made['id']}").json() == {"id": made["id"], "cleared": True}
    assert site.request("DELETE", f"/v1/cordons/{made['id']}").status_code == 404
    assert site.post("/v1/jobs/validate", task_document()).json()["would_start"] is True


def test_c9_a_cluster_lists_what_its_engine_can_do(site: Site):
    found = site.get("/v1/clusters/local").json()
    notes = {each["field"]: each["note"] for each in found["capabilities"]}
    assert "one machine" in notes["fault_tolerance.replace_node"]
    assert (found["engine"], [node["name"] for node in found["nodes"]]) == ("local", ["n1"])
    assert site.get("/v1/clusters").json()["items"][0]["pools"] == ["default"]


def test_c9_what_an_engine_cannot_honour_is_refused_by_its_field(site: Site):
    document = site.get("/v1/catalog").json()["document"]
    document["regions"] = [*document["regions"], {"id": "far"}]
    document["clusters"] = [
        *document["clusters"],
        {"id": "shared", "region": "far", "engine": "ray", "address": "x:1"},
    ]
    document["pools"] = [*document["pools"], {"id": "shared", "cluster": "shared", "specs": ["h100x1"]}]
    quota = {"project": "*", "resource_type": "ondemand", "pool": "shared", "spec": "h100x1", "units": 9}
    document["quotas"] = [*document["quotas"], quota]
    assert site.request("PUT", "/v1/catalog", {"document": document}).json()["applied"] is True
    task = task_document(
        kind="ray", cmd="python x.py", region="far", cluster="shared", pool="shared", debug={"enabled": True}
    )
    codes = {fault["path"]: fault["code"] for fault in site.post("/v1/jobs", task).json()["errors"]}
    assert codes["spec.debug"] == "NOT_SUPPORTED_BY_ENGINE"


def test_C1_a_catalogue_is_compared_applied_and_guarded_by_its_revision(site: Site):
    before = site.get("/v1/catalog").json()
    assert (before["revision"], before["applied_by"]) == (0, None)
    document = {**before["document"], "alarm_channels": [CHANNEL], "organization": "acme"}
    dry = site.request("PUT", "/v1/catalog", {"document": document, "dry_run": True}).json()
    assert (dry["applied"], dry["revision"]) == (False, 0)
    assert [(change["action"], change["what"]) for change in dry["changes"]] == [
        ("added", "alarm channel ops"),
        ("changed", "organization"),
    ]
    assert site.get("/v1/catalog").json() == before
    done = site.request("PUT", "/v1/catalog", {"document": document, "expected_revision": 0}).json()
    assert (done["applied"], done["revision"]) == (True, 1)
    late = site.request("PUT", "/v1/catalog", {"document": document, "expected_revision": 0})
    assert (late.status_code, late.json()["code"]) == (412, "PRECONDITION_FAILED")
    shown = site.get("/v1/catalog")
    assert "T0K3N" not in shown.text
    again = site.request("PUT", "/v1/catalog", {"document": shown.json()["document"]}).json()
    assert (again["applied"], again["changes"]) == (False, [])


def test_C1_the_first_catalogue_is_compared_with_what_the_machine_has(site: Site):
    document = site.get("/v1/catalog").json()["document"]
    same = site.request("PUT", "/v1/catalog", {"document": document, "dry_run": True}).json()
    assert (same["applied"], same["changes"]) == (False, [])
    own = {**document, "pools": [{**document["pools"][0], "id": "lab"}], "quotas": []}
    dry = site.request("PUT", "/v1/catalog", {"document": own, "dry_run": True}).json()
    found = {(change["action"], change["what"]) for change in dry["changes"]}
    assert {("removed", "pool default"), ("added", "pool lab")} <= found
    assert {what.partition(" ")[0] for _, what in found} == {"pool", "quota"}


def test_C1_a_wrong_catalogue_is_refused_with_every_fault_and_changes_nothing(site: Site):
    wrong = {
        "regions": [{"id": "a"}, {"id": "a"}],
        "clusters": [{"id": "c", "region": "b", "engine": "moon"}],
    }
    answer = site.request("PUT", "/v1/catalog", {"document": wrong})
    assert answer.status_code == 422
    assert len(answer.json()["errors"]) >= 2
    hint = site.request("PUT", "/v1/catalog", {"document": {"regionz": []}}).json()["hint"]
    assert "`trainshed catalog explain`" in hint
    assert "train explain" not in hint
    assert site.get("/v1/catalog").json()["revision"] == 0


@pytest.mark.parametrize(
    "permissions", [(Permission.TRAINING_RUN,), tuple(Permission)], ids=["member", "admin"]
)
def test_C1_only_the_owner_key_applies_a_catalogue(sqlite_site: Site, permissions: tuple[Permission, ...]):
    key = sqlite_site.add_key("default", *permissions)
    answer = sqlite_site.request("PUT", "/v1/catalog", {"document": {}}, key=key)
    assert (answer.status_code, answer.json()["code"]) == (403, "PERMISSION_DENIED")


def test_C40_a_channel_that_this_server_has_no_program_for_is_refused(
    sqlite_site: Site, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("trainshed.server.routes.catalog.apprise_is_there", lambda: False)
    document = sqlite_site.get("/v1/catalog").json()["document"]
    document["alarm_channels"] = [{"id": "chat", "type": "apprise", "url": "slack://a/b/c"}]
    answer = sqlite_site.request("PUT", "/v1/catalog", {"document": document})
    assert [(each["path"], each["code"]) for each in answer.json()["errors"]] == [
        ("alarm_channels[0].type", "ALARM_CHANNEL_UNAVAILABLE")
    ]
    assert "trainshed[alarms]" in answer.json()["message"]


def test_C16_the_schema_and_the_fields_of_a_task_file_are_served(sqlite_site: Site):
    schema = sqlite_site.get("/v1/train/schema").json()
    assert schema["$schema"].endswith("2020-12/schema")
    names = [each["field"] for each in sqlite_site.get("/v1/train/fields").json()["items"]]
    assert {"kind", "instance", "alarms"} <= set(names)
    (found,) = sqlite_site.get("/v1/train/fields?name=exit_notice.timeout_seconds").json()["items"]
    assert (found["default"], found["kinds"]) == (600, ["pytorch"])
    refused = sqlite_site.get("/v1/train/fields?name=exit_notise")
    assert (refused.status_code, "exit_notice" in refused.json()["message"]) == (404, True)
