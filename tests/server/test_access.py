"""Keys, scopes, permissions, administration (contract E a, b11, E1, E30, A11)."""

from __future__ import annotations

import json

import pytest

from support.contents import manifest_of, publish
from support.site import Site, submission
from trainshed.model.access import KEY_TEXT, Permission
from trainshed.model.content import ContentKind
from trainshed.store import access

P = Permission


def code(answer) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def test_me_tells_all_that_the_published_client_reads(site: Site):
    me = site.get("/v1/me").json()
    assert me["auth_method"] == "api_key"
    assert me["workspace"]["workspace_id"] == me["workspace_id"] == me["project"]["workspace_id"]
    assert me["project"]["project_id"] == me["project_id"] == "default"
    assert "training.run" in me["permissions"]


def test_every_path_is_served_under_api_as_well(sqlite_site: Site):
    assert sqlite_site.get("/api/v1/me").json() == sqlite_site.get("/v1/me").json()
    assert sqlite_site.get("/api/healthz").status_code == 404


@pytest.mark.parametrize("header", ["X-Project-ID", "x-project-id", "X-Project-Id"])
def test_scope_headers_may_repeat_the_keys_project_in_any_case(sqlite_site: Site, header: str):
    same = {header: "default", "X-Workspace-ID": "default"}
    assert sqlite_site.get("/v1/me", headers=same).status_code == 200
    assert code(sqlite_site.get("/v1/me", headers={header: "other"})) == (403, "PROJECT_ACCESS_DENIED")


PERMISSIONS = [
    ("POST", "/v1/jobs", P.TRAINING_RUN),
    ("POST", "/v1/jobs/x/stop", P.TRAINING_STOP),
    ("POST", "/v1/trials/x/stop", P.TRAINING_STOP),
    ("POST", "/v1/runners/a/b/revisions", P.RUNNER_PUBLISH),
    ("PUT", "/v1/runners/a/b/visibility", P.RUNNER_PUBLISH),
    ("DELETE", "/v1/runners/a/b/c", P.RUNNER_PUBLISH),
    ("GET", "/v1/admin/projects", P.ADMIN),
    ("POST", "/v1/admin/projects", P.ADMIN),
    ("POST", "/v1/admin/projects/default/keys", P.ADMIN),
    ("DELETE", "/v1/admin/projects/default/keys/k", P.ADMIN),
    ("PUT", "/v1/admin/projects/default/members/ada", P.ADMIN),
]


@pytest.mark.parametrize(("method", "path", "permission"), PERMISSIONS)
def test_E1_without_the_permission_the_request_is_refused(
    module_site: Site, method: str, path: str, permission: Permission
):
    key = module_site.add_key("default", *(set(Permission) - {permission}))
    answer = module_site.request(method, path, {}, key=key)
    assert code(answer) == (403, "PERMISSION_DENIED")
    assert permission in answer.json()["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", f"/v1/content/blobs/{'0' * 64}"), ("POST", "/v1/content/blobs/missing")],
)
def test_blobs_are_sent_by_whoever_may_publish_something(module_site: Site, method: str, path: str):
    either = {P.RUNNER_PUBLISH, P.CONTENT_PUBLISH}
    for permission in either:
        key = module_site.add_key("default", permission)
        assert module_site.request(method, path, {}, key=key).status_code != 403
    key = module_site.add_key("default", *(set(Permission) - either))
    assert code(module_site.request(method, path, {}, key=key)) == (403, "PERMISSION_DENIED")


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/trials", "/v1/system"])
def test_a_key_that_may_neither_read_nor_run_reads_nothing(module_site: Site, path: str):
    key = module_site.add_key("default", P.RUNNER_PUBLISH)
    assert code(module_site.get(path, key=key)) == (403, "PERMISSION_DENIED")


def test_a_key_with_training_run_alone_can_follow_what_it_started(sqlite_site: Site):
    key = sqlite_site.add_key("default", P.TRAINING_RUN)
    job = sqlite_site.submit(key=key)
    for path in (f"/v1/jobs/{job['job_id']}", f"/v1/jobs/{job['job_id']}/logs", "/v1/runners", "/v1/trials"):
        assert sqlite_site.get(path, key=key).status_code == 200


def test_another_projects_ids_are_not_found(site: Site):
    site.add_project("other")
    other = site.add_key("other")
    job = site.submit()
    trial = job["training"]["trials"][0]["trial_id"]
    assert code(site.get(f"/v1/jobs/{job['job_id']}", key=other)) == (404, "JOB_NOT_FOUND")
    assert code(site.post(f"/v1/jobs/{job['job_id']}/stop", key=other)) == (404, "JOB_NOT_FOUND")
    assert code(site.get(f"/v1/trials/{trial}", key=other)) == (404, "TRIAL_NOT_FOUND")
    assert code(site.get(f"/v1/trials/{trial}/logs/raw", key=other)) == (404, "TRIAL_NOT_FOUND")
    assert site.get("/v1/jobs", key=other).json()["items"] == []
    assert site.get("/v1/trials", key=other).json()["items"] == []


def test_a_revoked_or_expired_key_stops_with_the_next_request(site: Site):
    made = site.post("/v1/admin/projects/default/keys", {"label": "a", "role": "viewer"}).json()
    assert site.get("/v1/me", key=made["key"]).status_code == 200
    revoked = site.request("DELETE", f"/v1/admin/projects/default/keys/{made['key_id']}").json()
    assert revoked["revoked_at"] is not None
    assert code(site.get("/v1/me", key=made["key"])) == (401, "AUTHENTICATION_REQUIRED")
    short = {"label": "b", "role": "viewer", "expires_in_seconds": 60}
    expiring = site.post("/v1/admin/projects/default/keys", short).json()
    assert site.get("/v1/me", key=expiring["key"]).status_code == 200
    site.clock.now += 61
    assert code(site.get("/v1/me", key=expiring["key"])) == (401, "AUTHENTICATION_REQUIRED")


def test_P9_a_key_is_shown_once_and_only_its_hash_is_stored(site: Site):
    made = site.post("/v1/admin/projects/default/keys", {"label": "a", "permissions": ["training.run"]})
    assert made.status_code == 201
    secret = made.json()["key"]
    assert KEY_TEXT.fullmatch(secret)
    assert secret not in site.get("/v1/admin/projects/default/keys").text
    with site.services.database.read() as connection:
        stored = access.list_keys(connection, "default")
    assert secret not in json.dumps([key.hash for key in stored])


def test_A11_a_key_with_training_run_also_gets_training_stop(sqlite_site: Site):
    made = sqlite_site.post(
        "/v1/admin/projects/default/keys", {"label": "a", "permissions": ["training.run"]}
    ).json()
    assert made["permissions"] == ["training.run", "training.stop"]


def test_P13_a_key_of_an_agent_cannot_administer(sqlite_site: Site):
    body = {"label": "a", "kind": "agent", "role": "admin"}
    assert code(sqlite_site.post("/v1/admin/projects/default/keys", body)) == (422, "INVALID_SPEC")


def test_projects_members_and_keys_are_administered(site: Site):
    made = site.post("/v1/admin/projects", {"project_id": "team:a", "max_gpus": 4, "budget_gpu_hours": 1.5})
    assert made.status_code == 201
    assert made.json()["max_gpus"] == 4
    path = "/v1/admin/projects/team%3Aa"
    assert site.get(path).json() == made.json()
    assert code(site.post("/v1/admin/projects", {"project_id": "team:a"})) == (409, "ALREADY_EXISTS")
    changed = site.request("PATCH", path, {"max_gpus": None, "priority": 3}).json()
    assert (changed["max_gpus"], changed["priority"], changed["budget_gpu_hours"]) == (None, 3, 1.5)
    member = site.request("PUT", f"{path}/members/ada%2F1", {"role": "developer"}).json()
    assert (member["user"], member["version"]) == ("ada/1", 1)
    assert site.request("PUT", f"{path}/members/ada%2F1", {"role": "admin"}).json()["version"] == 2
    key = site.post(
        f"{path}/keys", {"label": "ada", "kind": "human", "role": "admin", "user": "ada/1"}
    ).json()
    assert site.get("/v1/me", key=key["key"]).json()["project_id"] == "team:a"
    assert site.get(f"{path}/members", key=key["key"]).json()["items"][0]["user"] == "ada/1"
    assert site.request("DELETE", f"{path}/members/ada%2F1").json()["removed"] is True
    assert code(site.get("/v1/me", key=key["key"])) == (401, "AUTHENTICATION_REQUIRED")
    assert code(site.request("DELETE", f"{path}/members/ada%2F1")) == (404, "MEMBER_NOT_FOUND")
    ids = [item["project_id"] for item in site.get("/v1/admin/projects").json()["items"]]
    assert ids == ["default", "team:a"]


def test_a_projects_admin_administers_that_project_only(site: Site):
    site.add_project("team")
    key = site.add_key("team", *Permission)
    assert site.get("/v1/admin/projects/team", key=key).status_code == 200
    assert code(site.get("/v1/admin/projects/default", key=key)) == (403, "PROJECT_ACCESS_DENIED")
    assert [p["project_id"] for p in site.get("/v1/admin/projects", key=key).json()["items"]] == ["team"]
    assert code(site.post("/v1/admin/projects", {"project_id": "x"}, key=key)) == (403, "PERMISSION_DENIED")
    raised = site.request("PATCH", "/v1/admin/projects/team", {"max_gpus": 99}, key=key)
    assert code(raised) == (403, "PERMISSION_DENIED")
    assert site.request("PATCH", "/v1/admin/projects/team", {"name": "T"}, key=key).json()["name"] == "T"
    other = site.post("/v1/admin/projects/default/keys", {"label": "x", "role": "viewer"}, key=key)
    assert code(other) == (403, "PROJECT_ACCESS_DENIED")


BAD_ADMIN_BODIES = [
    ("POST", "/v1/admin/projects", {}),
    ("POST", "/v1/admin/projects", {"project_id": "a b"}),
    ("POST", "/v1/admin/projects", {"project_id": "x", "max_gpus": True}),
    ("POST", "/v1/admin/projects", {"project_id": "x", "max_gpus": -1}),
    ("POST", "/v1/admin/projects", {"project_id": "x", "budget_gpu_hours": "1"}),
    ("POST", "/v1/admin/projects", {"project_id": "x", "nome": "x"}),
    ("PATCH", "/v1/admin/projects/default", {"priority": 1.5}),
    ("PATCH", "/v1/admin/projects/default", {"name": "a\nb"}),
    ("PUT", "/v1/admin/projects/default/members/ada", {}),
    ("PUT", "/v1/admin/projects/default/members/ada", {"role": "boss"}),
    ("PUT", "/v1/admin/projects/default/members/%00", {"role": "viewer"}),
    ("POST", "/v1/admin/projects/default/keys", {"label": "x"}),
    ("POST", "/v1/admin/projects/default/keys", {"label": "x", "permissions": ["training.runn"]}),
    ("POST", "/v1/admin/projects/default/keys", {"label": "x", "permissions": ["admin"], "role": "viewer"}),
    ("POST", "/v1/admin/projects/default/keys", {"label": "x", "role": "viewer", "kind": "robot"}),
    ("POST", "/v1/admin/projects/default/keys", {"label": "x", "role": "viewer", "expires_in_seconds": 0}),
]


@pytest.mark.parametrize(("method", "path", "body"), BAD_ADMIN_BODIES)
def test_a_bad_administration_body_is_refused(module_site: Site, method: str, path: str, body):
    answer = module_site.request(method, path, body)
    assert code(answer) == (422, "INVALID_SPEC"), answer.text
    assert answer.json()["errors"][0]["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/members/ada"),
        ("DELETE", "/members/ada"),
        ("PATCH", ""),
        ("POST", "/archive"),
    ],
)
def test_writes_of_the_workspace_ask_for_a_human_session(module_site: Site, method: str, path: str):
    answer = module_site.request(method, f"/v1/workspaces/default/projects/default{path}", {})
    assert code(answer) == (403, "HUMAN_SESSION_REQUIRED")


def test_a_change_of_a_project_answers_what_content_it_uses(site: Site):
    path = "/v1/admin/projects/default"
    assert site.request("PATCH", path, {"priority": 1}).json()["content_bytes"] == 0
    assert publish(site, files={"a": b"123456"}, version="1").status_code == 201
    changed = site.request("PATCH", path, {"max_content_bytes": 100}).json()
    own = len(manifest_of(ContentKind.DATASETS, {"a": b"123456"}).encode())
    assert (changed["content_bytes"], changed["max_content_bytes"]) == (6 + own, 100)
    assert site.get(path).json() == changed
    made = site.post("/v1/admin/projects", {"project_id": "team"}).json()
    assert made["content_bytes"] == 0


def test_workspace_reads_answer_pages_and_limits(site: Site):
    base = "/v1/workspaces/default/projects/default"
    assert site.get("/v1/workspaces").json()["items"][0]["workspace_id"] == "default"
    assert site.get("/v1/workspaces/default/projects").json()["items"][0]["project_id"] == "default"
    assert site.get(base).json()["name"] == "Default"
    limits = site.get(f"{base}/limits").json()
    assert (limits["max_gpus"], limits["gpus_in_use"], limits["used_gpu_hours"]) == (None, 0, 0.0)
    assert (limits["max_content_bytes"], limits["content_bytes"]) == (None, 0)
    for user in ("ada", "bob"):
        site.request("PUT", f"/v1/admin/projects/default/members/{user}", {"role": "viewer"})
    first = site.get(f"{base}/members?limit=1").json()
    second = site.get(f"{base}/members?limit=1&cursor={first['next_cursor']}").json()
    assert [first["items"][0]["user"], second["items"][0]["user"]] == ["ada", "bob"]
    assert second["next_cursor"] is None
    assert site.get(f"{base}/member-candidates?q=a").json() == {"items": [], "next_cursor": None}
    assert code(site.get("/v1/workspaces/nix/projects")) == (403, "WORKSPACE_ACCESS_DENIED")
    other = site.add_key("default")
    site.add_project("secret")
    assert code(site.get("/v1/workspaces/default/projects/secret", key=other)) == (
        403,
        "PROJECT_ACCESS_DENIED",
    )


@pytest.mark.parametrize("name", ["account", "prices", "ledger?limit=25", "usage?start=a&end=b&group_by=day"])
def test_billing_is_empty(module_site: Site, name: str):
    assert module_site.get(f"/v1/billing/{name}").json()["items"] == []


def test_named_profiles_are_an_empty_page(module_site: Site):
    answer = module_site.get("/v1/profiles?include_archived=false&limit=50")
    assert answer.json() == {"items": [], "next_cursor": None}


def test_E30_A2_a_retry_after_access_was_revoked_is_refused(site: Site):
    site.add_project("other")
    key = site.add_key("other")
    site.submit("first", key=key)
    site.request("PUT", "/v1/runners/envloop/bash/visibility", {"visibility": "project"})
    assert code(site.post("/v1/jobs", submission("first"), key=key)) == (404, "RUNNER_NOT_FOUND")
