"""Downloading Artifacts and Runner files: ranges, conditions, what is not ready (contract E b6)."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from support.site import Site, finish, start, trials
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
