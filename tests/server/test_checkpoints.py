"""Checkpoints over HTTP: lists, signed downloads, deletion and its receipt, pins (contract E b7, b11)."""

from __future__ import annotations

import hashlib
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import pytest

from support import lora
from support.site import Site, finish, start, submission, trials
from trainshed.model.access import Permission
from trainshed.server.config import ConfigFaults, parse
from trainshed.server.routes import checkpoints as routes
from trainshed.store import access, jobs

NAME = 'deep/ä "b" #?%.bin'


def train(site: Site, request_id: str = "r", **files: bytes) -> dict:
    """A finished Job whose Trial left these files, two Checkpoints if none are named; the Job's result."""
    job_id = site.submit(request_id)["job_id"]
    (trial,) = trials(site, job_id)
    default = {**lora.adapter("out/checkpoint-1"), **lora.adapter("out/checkpoint-2", fill=2)}
    finish(site, trial, start(site, trial), artifacts=files or default)
    return site.get(f"/v1/job/{job_id}/result").json()


def listed(site: Site, query: str = "", **options) -> list[dict]:
    answer = site.get(f"/v1/job/checkpoints{query}", **options)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


def urls_of(site: Site, path: str, prefix: str = "/v1", **options) -> dict[str, str]:
    answer = site.get(f"{prefix}/job/checkpoints/download?{urlencode({'path': path})}", **options)
    assert answer.status_code == 200, answer.text
    return answer.json()["urls"]


def fetch(site: Site, url: str, method: str = "GET", **options):
    """As a stranger without any key."""
    return site.client.request(method, url, **options)


def changed(url: str, **query: str) -> str:
    parts = urlsplit(url)
    values = {name: value for name, (value,) in parse_qs(parts.query).items()} | query
    return urlunsplit(parts._replace(query=urlencode(values)))


@pytest.fixture
def one(sqlite_site: Site) -> dict:
    """A Checkpoint with a deep file of an awkward name."""
    train(sqlite_site, **lora.adapter("out"), **{f"out/{NAME}": b"0123456789" * 1000})
    (item,) = listed(sqlite_site)
    return item


# Lists


def test_E109_the_job_result_lists_its_checkpoints_apart_from_the_release(site: Site):
    result = train(site)
    first, second = result["checkpoints"]
    told = {"step", "metric", "metric_value", "pinned", "superseded"}
    assert set(first) == {"checkpoint_id", "trial_id", "uri", "durable", "folder"} | told
    known = {row["checkpoint_id"]: row for row in listed(site)}
    assert {key: second[key] for key in told} == {key: known[second["checkpoint_id"]][key] for key in told}
    assert first["uri"] == f"envloop://{result['job_id']}/{first['checkpoint_id']}"
    assert first["durable"] is True
    assert first["checkpoint_id"] < second["checkpoint_id"]
    (trial,) = result["training"]["trials"]
    assert trial["cleanup_confirmed"] is True
    assert site.get(f"/v1/jobs/{result['job_id']}/result").json()["checkpoints"] == [first, second]
    assert "checkpoints" not in site.get(f"/v1/job/{result['job_id']}").json()


def test_E109_checkpoints_say_nothing_about_the_release(sqlite_site: Site):
    result = train(sqlite_site, "r")
    (trial,) = trials(sqlite_site, result["job_id"])
    with sqlite_site.services.database.read() as connection:
        (held,) = jobs.allocations_of(connection, [trial.id])[trial.id]

    def hold_again(connection):
        connection.exec_driver_sql(f"UPDATE allocations SET state = 'releasing' WHERE id = '{held.id}'")

    sqlite_site.services.database.write(hold_again)
    result = sqlite_site.get(f"/v1/job/{result['job_id']}/result").json()
    assert result["training"]["trials"][0]["cleanup_confirmed"] is False
    assert len(result["checkpoints"]) == 2


def test_E74_E108_a_job_whose_outputs_are_no_adapters_has_none(sqlite_site: Site):
    assert train(sqlite_site, **{"out/model.safetensors": lora.weights()})["checkpoints"] == []
    assert listed(sqlite_site) == []


def test_E106_a_checkpoint_is_listed_with_its_lineage_and_files(site: Site):
    result = train(site)
    newest, oldest = listed(site)
    (trial,) = result["training"]["trials"]
    assert (newest["step"], oldest["step"]) == (2, 1)
    assert newest | {"files": 0, "created_at": 0} == {
        "checkpoint_id": result["checkpoints"][1]["checkpoint_id"],
        "job_id": result["job_id"],
        "train_job_id": result["job_id"],
        "trial_id": trial["trial_id"],
        "attempt_id": trial["attempts"][0]["attempt_id"],
        "checkpoint_type": "lora",
        "base_model": lora.BASE_MODEL,
        "lora_rank": 2,
        "step": 2,
        "parent": None,
        "metric": None,
        "metric_value": None,
        "metric_fault": None,
        "folder": "out/checkpoint-2",
        "uri": result["checkpoints"][1]["uri"],
        "tinker_path": result["checkpoints"][1]["uri"],
        "durable": True,
        "pinned": False,
        "superseded": None,
        "size_bytes": len(lora.config()) + len(lora.weights()),
        "files": 0,
        "created_at": 0,
    }
    assert newest["files"] == [
        {
            "name": name,
            "size_bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        for name, content in lora.adapter("", fill=2).items()
    ]
    assert site.get(f"/v1/job/checkpoints/{newest['checkpoint_id']}").json() == newest


def test_lists_are_pages_and_filters_narrow_them(site: Site):
    first, second = train(site, "a"), train(site, "b")
    every = listed(site)
    assert [item["job_id"] for item in every] == [second["job_id"]] * 2 + [first["job_id"]] * 2
    page = site.get("/v1/jobs/checkpoints?limit=3").json()
    rest = site.get(f"/v1/jobs/checkpoints?limit=3&cursor={page['next_cursor']}").json()
    assert page["items"] + rest["items"] == every
    assert rest["next_cursor"] is None
    of_first = every[2:]
    trial_id = of_first[0]["trial_id"]
    job_id = first["job_id"]
    assert listed(site, f"?job_id={job_id}") == of_first
    assert listed(site, f"?train_job_id={job_id}") == of_first
    assert listed(site, f"?train_job_id={job_id}&job_id={job_id}&run_id={trial_id}") == of_first
    assert listed(site, f"?train_job_id={job_id}&job_id={second['job_id']}") == []
    assert listed(site, f"?job_id={second['job_id']}&run_id={trial_id}") == []
    assert site.get(f"/v1/trials/{trial_id}/checkpoints").json()["items"] == of_first
    assert site.get(f"/v1/trials/{trial_id}/checkpoints?limit=1").json()["items"] == of_first[:1]


def test_a_page_is_cut_short_where_checkpoints_have_very_many_files(sqlite_site: Site, monkeypatch):
    train(sqlite_site)
    monkeypatch.setattr(routes, "MAX_FILES_A_PAGE", 3)
    seen, cursor = [], ""
    while True:
        page = sqlite_site.get(f"/v1/job/checkpoints?limit=100{cursor}").json()
        seen.append([item["step"] for item in page["items"]])
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == [[2], [1]]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1/job/checkpoints?job_id=job_unknown", "JOB_NOT_FOUND"),
        ("/v1/job/checkpoints?run_id=trial_unknown", "TRIAL_NOT_FOUND"),
        ("/v1/job/checkpoints?run_id=%00", "TRIAL_NOT_FOUND"),
        ("/v1/job/checkpoints?limit=0", "INVALID_LIMIT"),
        ("/v1/job/checkpoints?cursor=x", "INVALID_CURSOR"),
        ("/v1/job/checkpoints/ckpt_unknown", "CHECKPOINT_NOT_FOUND"),
        ("/v1/job/checkpoints/%00", "CHECKPOINT_NOT_FOUND"),
        ("/v1/job/checkpoints/download", "CHECKPOINT_NOT_FOUND"),
        ("/v1/job/checkpoints/download?path=ckpt_01KB7Q3V9E8Z6R5T4W3X2Y1M0N", "CHECKPOINT_NOT_FOUND"),
        ("/v1/trials/trial_unknown/checkpoints", "TRIAL_NOT_FOUND"),
        ("/v1/projects/default/operations/op_unknown", "OPERATION_NOT_FOUND"),
        ("/v1/projects/other/operations/op_unknown", "PROJECT_ACCESS_DENIED"),
    ],
)
def test_what_is_unknown_is_told_by_its_code(module_site: Site, path: str, code: str):
    assert module_site.get(path).json()["code"] == code


def test_a_checkpoint_of_another_project_is_not_there(sqlite_site: Site):
    train(sqlite_site)
    (item, _) = listed(sqlite_site)
    sqlite_site.add_project("other")
    key = sqlite_site.add_key("other")
    assert listed(sqlite_site, key=key) == []
    checkpoint = f"/v1/job/checkpoints/{item['checkpoint_id']}"
    for method, path in (
        ("GET", checkpoint),
        ("DELETE", checkpoint),
        ("POST", f"{checkpoint}/pin"),
        ("GET", f"/v1/job/checkpoints/download?path={item['checkpoint_id']}"),
        ("GET", f"/v1/job/checkpoints?job_id={item['job_id']}"),
    ):
        assert sqlite_site.request(method, path, key=key).status_code == 404


# Downloads


def test_each_file_has_a_url_that_needs_no_key(sqlite_site: Site, one: dict):
    urls = urls_of(sqlite_site, one["tinker_path"])
    assert set(urls) == {file["name"] for file in one["files"]}
    for file in one["files"]:
        answer = fetch(sqlite_site, urls[file["name"]])
        assert answer.status_code == 200
        assert hashlib.sha256(answer.content).hexdigest() == file["sha256"]
        assert len(answer.content) == file["size_bytes"]
    answer = fetch(sqlite_site, urls[NAME], "HEAD")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["Content-Disposition"].endswith("%C3%A4%20%22b%22%20%23%3F%25.bin")


def test_a_checkpoint_is_selected_by_its_id_or_its_path(sqlite_site: Site, one: dict):
    for key in ("checkpoint_id", "tinker_path", "uri"):
        query = f"path={one[key]}&job_id={one['job_id']}&run_id={one['trial_id']}"
        answer = sqlite_site.get(f"/v1/jobs/checkpoints/download?{query}").json()
        assert answer["checkpoint_id"] == one["checkpoint_id"]
        for wrong in ("job_id=job_x", "run_id=trial_x"):
            path = f"/v1/jobs/checkpoints/download?path={one[key]}&{wrong}"
            assert sqlite_site.get(path).json()["code"] == "CHECKPOINT_NOT_FOUND"


def test_a_signed_download_answers_ranges_and_conditions(sqlite_site: Site, one: dict):
    url = urls_of(sqlite_site, one["checkpoint_id"])[NAME]
    part = fetch(sqlite_site, url, headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, b"0123456789")
    known = {"If-None-Match": part.headers["ETag"]}
    assert fetch(sqlite_site, url, headers=known).status_code == 304
    assert fetch(sqlite_site, url, headers={"Range": "bytes=10000-"}).status_code == 416


def test_a_url_expires_and_a_new_one_is_good(sqlite_site: Site, one: dict):
    answer = sqlite_site.get(f"/v1/job/checkpoints/download?path={one['checkpoint_id']}").json()
    url = answer["urls"][NAME]
    sqlite_site.clock.now += 899
    assert fetch(sqlite_site, url).status_code == 200
    sqlite_site.clock.now += 1
    refused = fetch(sqlite_site, url)
    assert (refused.status_code, refused.json()["code"]) == (403, "URL_EXPIRED")
    assert fetch(sqlite_site, urls_of(sqlite_site, one["checkpoint_id"])[NAME]).status_code == 200


def test_a_url_is_good_for_what_was_signed_only(sqlite_site: Site, one: dict):
    urls = urls_of(sqlite_site, one["checkpoint_id"])
    url, other = urls[NAME], urls["adapter_config.json"]
    parts, others = urlsplit(url), urlsplit(other)
    signature = parse_qs(parts.query)["signature"][0]
    for forged in (
        urlunsplit(parts._replace(path=others.path)),
        urlunsplit(parts._replace(query="")),
        changed(url, expires="99999999999"),
        changed(url, expires=""),
        changed(url, key="key_other"),
        changed(url, signature=""),
        changed(url, signature=signature[:-1]),
        changed(url, signature=f"{signature}A"),
        changed(url, signature=f"\u00e9{signature[1:]}"),
        url.replace(one["checkpoint_id"], one["checkpoint_id"][:-1] + "Z"),
    ):
        assert forged != url
        answer = fetch(sqlite_site, forged)
        assert (answer.status_code, answer.json()["code"]) == (403, "URL_EXPIRED"), forged
    with_key = sqlite_site.get(urlunsplit(("", "", parts.path, "", "")))
    assert with_key.status_code == 403, "a key is no signature"


def test_a_url_dies_with_the_key_that_asked_for_it(sqlite_site: Site, one: dict):
    key = sqlite_site.add_key("default", Permission.TRAINING_READ)
    url = urls_of(sqlite_site, one["checkpoint_id"], key=key)[NAME]
    assert fetch(sqlite_site, url).status_code == 200
    key_id = parse_qs(urlsplit(url).query)["key"][0]
    sqlite_site.services.database.write(
        lambda c: access.revoke_key(c, "default", key_id, at=sqlite_site.clock())
    )
    assert fetch(sqlite_site, url).json()["code"] == "URL_EXPIRED"


def test_a_url_dies_with_its_checkpoint(sqlite_site: Site, one: dict):
    url = urls_of(sqlite_site, one["checkpoint_id"])[NAME]
    sqlite_site.request("DELETE", f"/v1/job/checkpoints/{one['checkpoint_id']}")
    assert fetch(sqlite_site, url).json()["code"] == "CHECKPOINT_NOT_FOUND"


def test_a_file_whose_bytes_are_gone_is_damaged(sqlite_site: Site, one: dict):
    url = urls_of(sqlite_site, one["checkpoint_id"])[NAME]
    sqlite_site.services.blobs.delete(next(f["sha256"] for f in one["files"] if f["name"] == NAME))
    refused = fetch(sqlite_site, url).json()
    assert refused["code"] == "CONTENT_DAMAGED"
    assert f"`{NAME}` of this Checkpoint" in refused["message"]
    assert f"trainshed content verify {one['job_id']}" in refused["hint"]


def test_a_url_leads_where_the_caller_reached_the_server(sqlite_site: Site, one: dict):
    for host in ("train.example:8443", "127.0.0.1:80", "[::1]:8080"):
        urls = urls_of(sqlite_site, one["checkpoint_id"], headers={"Host": host})
        assert all(url.startswith(f"http://{host}/v1/downloads/") for url in urls.values())


def test_a_host_header_that_is_no_host_is_not_repeated(sqlite_site: Site, one: dict):
    for host in ("evil@host", "host/path", "host?x=", "host#x", "a b", "[x]", "h:port", "-h", ""):
        urls = urls_of(sqlite_site, one["checkpoint_id"], headers={"Host": host})
        assert all(url.startswith("http://testserver:80/v1/downloads/") for url in urls.values())


def test_a_url_keeps_the_prefix_by_which_the_server_was_reached(sqlite_site: Site, one: dict):
    url = urls_of(sqlite_site, one["checkpoint_id"], "/api/v1")[NAME]
    assert urlsplit(url).path.startswith("/api/v1/downloads/")
    assert fetch(sqlite_site, url).status_code == 200


def test_a_configured_public_url_is_where_urls_lead(make_site):
    site = make_site(public_url="https://train.example.org/team")
    train(site)
    (item, _) = listed(site)
    urls = urls_of(site, item["checkpoint_id"], headers={"Host": "elsewhere"})
    assert all(url.startswith("https://train.example.org/team/v1/downloads/") for url in urls.values())


@pytest.mark.parametrize(
    "text",
    [
        "train.example",
        "ftp://h",
        "https://",
        "https://u@h",
        "https://h?q",
        "https://h#f",
        "https://h:99999",
        "x y",
    ],
)
def test_a_public_url_that_is_none_is_refused_at_the_start(text: str):
    with pytest.raises(ConfigFaults, match="public_url"):
        parse({"http": {"public_url": text}})


def test_a_public_url_may_end_in_a_slash():
    assert parse({"http": {"public_url": "https://h:8443/"}}).http.base_url == "https://h:8443"
    assert parse({}).http.base_url is None


# Deleting and pinning


def test_deleting_answers_a_receipt_that_can_be_read_and_asked_for_again(site: Site):
    result = train(site)
    keep, gone = (ref["checkpoint_id"] for ref in result["checkpoints"])
    receipt = site.request("DELETE", f"/v1/job/checkpoints/{gone}").json()
    assert receipt["status"] == "SUCCEEDED"
    assert (receipt["resource_id"], receipt["errors"]) == (gone, [])
    operation = f"/v1/projects/default/operations/{receipt['operation_id']}"
    assert site.get(operation).json() == receipt
    assert site.post(f"{operation}/retry", {}).json() == receipt
    assert site.request("DELETE", f"/v1/jobs/checkpoints/{gone}").json() == receipt
    assert [item["checkpoint_id"] for item in listed(site)] == [keep]
    left = site.get(f"/v1/job/{result['job_id']}/result").json()["checkpoints"]
    assert [ref["checkpoint_id"] for ref in left] == [keep]
    assert site.get(f"/v1/job/checkpoints/{gone}").json()["code"] == "CHECKPOINT_NOT_FOUND"


def test_E73_its_artifacts_are_deleted_with_it_and_say_so(site: Site):
    result = train(site)
    gone = result["checkpoints"][1]["checkpoint_id"]
    trial_id = result["training"]["trials"][0]["trial_id"]
    list_path, manifest_path = f"/v1/trials/{trial_id}/artifacts", f"/v1/jobs/{result['job_id']}/manifest"
    before, manifest = site.get(list_path).json()["items"], site.get(manifest_path).json()
    site.request("DELETE", f"/v1/job/checkpoints/{gone}")
    after = site.get(list_path).json()["items"]
    told = {"upload_state", "state", "deleted_at", "deletion"}
    assert [item | dict.fromkeys(told) for item in after] == [item | dict.fromkeys(told) for item in before]
    states = {item["name"].split("/")[1]: item["upload_state"] for item in after}
    assert states == {"checkpoint-1": "uploaded", "checkpoint-2": "deleted"}
    for item in after:
        answer = site.get(f"{list_path}/{item['artifact_id']}/content")
        if item["state"] == "uploaded":
            assert answer.status_code == 200
            continue
        assert (answer.status_code, answer.json()["code"]) == (409, "ARTIFACT_NOT_READY")
        assert f"was deleted with Checkpoint {gone} by human:" in answer.json()["message"]
        assert "job rerun" in answer.json()["hint"]
        assert item["deleted_at"] is not None
    (trial,) = site.get(f"/v1/job/{result['job_id']}").json()["training"]["trials"]
    assert trial["output_status"] == "complete"
    again = site.get(manifest_path).json()
    assert again["digest"] == manifest["digest"]
    (outcome,), (first,) = (each["outcome"]["trials"] for each in (again, manifest))
    assert [each["sha256"] for each in outcome["outputs"]] == [each["sha256"] for each in first["outputs"]]
    assert [each["upload_state"] for each in outcome["outputs"]] == ["uploaded"] * 2 + ["deleted"] * 2


def test_a_checkpoint_outlives_the_artifacts_it_was_made_of(sqlite_site: Site, one: dict):
    sqlite_site.services.database.write(
        lambda c: c.exec_driver_sql("UPDATE artifacts SET upload_state = 'deleted'")
    )
    (item,) = listed(sqlite_site)
    assert item["durable"] is True
    assert fetch(sqlite_site, urls_of(sqlite_site, item["checkpoint_id"])[NAME]).status_code == 200


def test_a_pinned_checkpoint_cannot_be_deleted_until_it_is_unpinned(site: Site):
    train(site)
    path = f"/v1/job/checkpoints/{listed(site)[0]['checkpoint_id']}"
    assert site.post(f"{path}/pin").json()["pinned"] is True
    refused = site.request("DELETE", path)
    assert (refused.status_code, refused.json()["code"]) == (409, "RESOURCE_IN_USE")
    assert "pinned" in refused.json()["message"]
    assert site.post(f"{path}/unpin").json()["pinned"] is False
    assert site.request("DELETE", path).status_code == 200
    assert site.post(f"{path}/pin").json()["code"] == "CHECKPOINT_NOT_FOUND"


def test_deleting_and_pinning_need_the_right_to_publish_content(sqlite_site: Site, one: dict):
    reader = sqlite_site.add_key("default", Permission.TRAINING_READ)
    path = f"/v1/job/checkpoints/{one['checkpoint_id']}"
    assert sqlite_site.get(path, key=reader).status_code == 200
    for method, what in (("DELETE", path), ("POST", f"{path}/pin"), ("POST", f"{path}/unpin")):
        assert sqlite_site.request(method, what, key=reader).json()["code"] == "PERMISSION_DENIED"
    publisher = sqlite_site.add_key("default", Permission.CONTENT_PUBLISH)
    assert sqlite_site.request("DELETE", path, key=publisher).status_code == 200


# Resuming, as callers see it


def test_a_runner_that_does_not_declare_it_refuses_to_resume(sqlite_site: Site, one: dict):
    answer = sqlite_site.post("/v1/jobs", submission("later", resume_from=one["uri"]))
    assert answer.status_code == 422
    assert answer.json()["code"] == "UNSUPPORTED_RESUME"
    assert answer.json()["errors"][0]["path"] == "spec.resume_from"


@pytest.mark.parametrize(
    "value", [None, 7, "", "latest", ["ckpt_01KB7Q3V9E8Z6R5T4W3X2Y1M0N"], "envloop://x/y"]
)
def test_a_malformed_resume_from_is_refused(module_site: Site, value: object):
    answer = module_site.post("/v1/jobs", submission("x", resume_from=value)).json()
    assert (answer["code"], answer["errors"][0]["path"]) == ("INVALID_TRAIN_JOB_SPEC", "spec.resume_from")
