"""Downloading Artifacts and Runner files: ranges, conditions, what is not ready (contract E b6)."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from support import lora
from support.site import Site, finish, start, trials
from trainshed.model.access import Permission
from trainshed.server.ranges import byte_range
from trainshed.store.tables import artifacts

CONTENT = bytes(range(256)) * 9000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def artifact(sqlite_site: Site) -> str:
    """The path of an uploaded Artifact's content."""
    (trial,) = trials(sqlite_site, sqlite_site.submit()["job_id"])
    finish(sqlite_site, trial, start(sqlite_site, trial), artifacts={'outputs/ä "b".bin': CONTENT})
    (item,) = sqlite_site.get(f"/v1/trials/{trial.id}/artifacts?limit=100").json()["items"]
    assert (item["name"], item["size"], item["sha256"]) == ('outputs/ä "b".bin', len(CONTENT), SHA256)
    assert item["upload_state"] == item["state"] == "uploaded"
    return f"/v1/trials/{trial.id}/artifacts/{item['artifact_id']}/content"


def test_the_bytes_come_directly_with_their_digest(sqlite_site: Site, artifact: str):
    answer = sqlite_site.get(artifact)
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["ETag"] == f'"{SHA256}"'
    assert answer.headers["Content-Length"] == str(len(CONTENT))
    assert answer.headers["Content-Disposition"] == "attachment; filename*=UTF-8''%C3%A4%20%22b%22.bin"
    head = sqlite_site.request("HEAD", artifact)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["Content-Length"] == str(len(CONTENT))


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=5-9", 5, 10),
        ("bytes=100-", 100, len(CONTENT)),
        ("bytes=-7", len(CONTENT) - 7, len(CONTENT)),
        ("bytes=10-99999999999", 10, len(CONTENT)),
        ("bytes=-99999999999", 0, len(CONTENT)),
    ],
)
def test_one_range_may_be_asked_for(sqlite_site: Site, artifact: str, asked: str, start: int, end: int):
    answer = sqlite_site.get(artifact, headers={"Range": asked})
    assert (answer.status_code, answer.content) == (206, CONTENT[start:end])
    assert answer.headers["Content-Range"] == f"bytes {start}-{end - 1}/{len(CONTENT)}"


@pytest.mark.parametrize("asked", ["bytes=99999999-", "bytes=-0"])
def test_a_range_outside_the_content_is_416(sqlite_site: Site, artifact: str, asked: str):
    answer = sqlite_site.get(artifact, headers={"Range": asked})
    assert answer.status_code == 416
    assert answer.headers["Content-Range"] == f"bytes */{len(CONTENT)}"


@pytest.mark.parametrize("asked", ["bytes=1-2,4-5", "lines=1-2", "bytes=x-", "bytes=5-2", "bytes=-"])
def test_other_ranges_are_ignored(sqlite_site: Site, artifact: str, asked: str):
    assert sqlite_site.get(artifact, headers={"Range": asked}).status_code == 200


def test_conditions_hold_for_the_digest(sqlite_site: Site, artifact: str):
    for known in (f'"{SHA256}"', f'W/"{SHA256}"', f'"x", "{SHA256}"', "*"):
        assert sqlite_site.get(artifact, headers={"If-None-Match": known}).status_code == 304
    assert sqlite_site.get(artifact, headers={"If-None-Match": '"x"'}).status_code == 200
    stale = {"Range": "bytes=0-1", "If-Range": '"other"'}
    assert sqlite_site.get(artifact, headers=stale).status_code == 200
    assert sqlite_site.get(artifact, headers={**stale, "If-Range": f'"{SHA256}"'}).status_code == 206


def test_an_artifact_that_is_not_uploaded_is_not_ready(sqlite_site: Site, artifact: str):
    sqlite_site.services.database.write(
        lambda c: c.execute(update(artifacts).values(upload_state="uploading"))
    )
    answer = sqlite_site.get(artifact)
    assert (answer.status_code, answer.json()["code"]) == (409, "ARTIFACT_NOT_READY")
    missing = sqlite_site.get(artifact.replace("/art_", "/art_x"))
    assert (missing.status_code, missing.json()["code"]) == (404, "ARTIFACT_NOT_FOUND")


def test_stored_bytes_that_are_gone_are_said_to_be(sqlite_site: Site, artifact: str):
    sqlite_site.services.blobs.delete(SHA256)
    answer = sqlite_site.get(artifact)
    assert (answer.status_code, answer.json()["code"]) == (409, "CONTENT_DAMAGED")
    assert "its stored bytes are gone" in answer.json()["message"]
    assert "trainshed job rerun job_" in answer.json()["hint"]


def test_pages_of_artifacts_give_each_once(site: Site):
    (trial,) = trials(site, site.submit()["job_id"])
    names = [f"outputs/{number}" for number in range(5)]
    finish(site, trial, start(site, trial), artifacts={name: name.encode() for name in names})
    found, cursor = [], ""
    while True:
        page = site.get(f"/v1/trials/{trial.id}/artifacts?limit=2{cursor}").json()
        found += [item["name"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert found == names


@given(
    st.integers(0, 50), st.text("bytes=-0123456789, ", max_size=12) | st.from_regex(r"bytes=\d{0,2}-\d{0,2}")
)
def test_any_range_header_answers_a_part_of_the_content_or_all_or_is_refused(size: int, header: str):
    try:
        found = byte_range(header, size)
    except ValueError:
        return
    if found is not None:
        assert 0 <= found[0] < found[1] <= size


# Deleting


def test_the_artifacts_of_an_ended_trial_are_deleted_by_name(site: Site):
    job_id = site.submit()["job_id"]
    (trial,) = trials(site, job_id)
    files = {"out/a.pt": b"aa", "out/b/c.pt": b"ccc", "out/d.txt": b"dddd"}
    finish(site, trial, start(site, trial), artifacts=files)
    path = f"/v1/trials/{trial.id}/artifacts"
    would = site.request("DELETE", f"{path}?name=**/*.pt&dry_run=true").json()
    assert would == {
        "job_id": job_id,
        "trial_id": trial.id,
        "artifacts": 2,
        "size_bytes": 5,
        "kept_bytes": 0,
        "dry_run": True,
    }
    done = site.request("DELETE", f"{path}?name=**/*.pt").json()
    assert done == would | {"dry_run": False}
    assert site.request("DELETE", f"{path}?name=**/*.pt").json()["artifacts"] == 0
    states = {item["name"]: item["upload_state"] for item in site.get(path).json()["items"]}
    assert states == {"out/a.pt": "deleted", "out/b/c.pt": "deleted", "out/d.txt": "uploaded"}
    (item,) = [item for item in site.get(path).json()["items"] if item["name"] == "out/a.pt"]
    refused = site.get(f"{path}/{item['artifact_id']}/content").json()
    assert refused["code"] == "ARTIFACT_NOT_READY"
    assert refused["message"].startswith("`out/a.pt` was deleted by human:")
    rest = site.request("DELETE", f"/v1/job/{job_id}/artifacts").json()
    assert (rest["artifacts"], rest["trial_id"]) == (1, None)
    (shown,) = site.get(f"/v1/jobs/{job_id}").json()["training"]["trials"]
    assert shown["output_status"] == "complete"


def test_what_a_live_checkpoint_keeps_is_told_and_stays_there(sqlite_site: Site):
    (trial,) = trials(sqlite_site, sqlite_site.submit()["job_id"])
    files = lora.adapter("out") | {"log.txt": b"log"}
    finish(sqlite_site, trial, start(sqlite_site, trial), artifacts=files)
    done = sqlite_site.request("DELETE", f"/v1/trials/{trial.id}/artifacts").json()
    sizes = {name: len(content) for name, content in files.items()}
    assert (done["artifacts"], done["size_bytes"]) == (3, sum(sizes.values()))
    assert done["kept_bytes"] == done["size_bytes"] - sizes["log.txt"]
    (checkpoint,) = sqlite_site.get("/v1/job/checkpoints").json()["items"]
    query = f"path={checkpoint['checkpoint_id']}"
    urls = sqlite_site.get(f"/v1/job/checkpoints/download?{query}").json()["urls"]
    assert all(sqlite_site.client.get(url).status_code == 200 for url in urls.values())


def test_while_a_trial_runs_nothing_of_its_job_is_deleted(sqlite_site: Site):
    job_id = sqlite_site.submit()["job_id"]
    (trial,) = trials(sqlite_site, job_id)
    start(sqlite_site, trial)
    for path in (f"/v1/trials/{trial.id}/artifacts", f"/v1/jobs/{job_id}/artifacts"):
        for query in ("", "?dry_run=true"):
            answer = sqlite_site.request("DELETE", path + query)
            assert (answer.status_code, answer.json()["code"]) == (409, "RESOURCE_IN_USE")
            assert trial.id in answer.json()["message"]


def test_deleting_needs_the_right_to_publish_and_a_pattern_that_is_one(sqlite_site: Site, artifact: str):
    path = artifact.rpartition("/art_")[0]
    reader = sqlite_site.add_key("default", Permission.TRAINING_READ)
    assert sqlite_site.request("DELETE", path, key=reader).json()["code"] == "PERMISSION_DENIED"
    sqlite_site.add_project("other")
    assert sqlite_site.request("DELETE", path, key=sqlite_site.add_key("other")).status_code == 404
    for query in ("name=../x", "name=", "dry_run=perhaps"):
        assert sqlite_site.request("DELETE", f"{path}?{query}").json()["code"] == "INVALID_REQUEST"
    assert sqlite_site.get(artifact).status_code == 200
