"""Knowing a digest gives nobody the bytes: who names a blob must have sent it (promise P7)."""

from __future__ import annotations

import json
import os

import pytest
from sqlalchemy import func, select

from support.contents import manifest_of, publish, sha256, upload
from support.runners import definition, repository
from support.site import Site, finish, start, trials
from trainshed.control.garbage import Collector
from trainshed.model.content import ContentFile, ContentKind, make_manifest
from trainshed.sdk.runner_tree import freeze
from trainshed.store.tables import blobs, project_blobs

DATASETS = ContentKind.DATASETS
SECRET = os.urandom(3000)
FILES = {"train.txt": SECRET}
DIGEST = sha256(SECRET)
ABOUT = {"type": "data", "configs": {"default": {"train": ["**"]}}}
COPY = "/v1/content/datasets/mine/copy"
BLOB = f"/v1/content/blobs/{DIGEST}"


@pytest.fixture
def mallory(site: Site) -> str:
    """A key of another project, which may publish and read whatever is its own."""
    site.add_project("other")
    return site.add_key("other")


def code(answer) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def missing(site: Site, key: str | None, *names: str) -> list[str]:
    answer = site.post("/v1/content/blobs/missing", {"sha256": list(names)}, key=key)
    return answer.json()["missing"]


def told(answer, *names: str) -> str:
    """What a refusal says with digests blotted out, so that two can be compared."""
    text = json.dumps({**answer.json(), "request_id": ""})
    for name in names:
        text = text.replace(name, "DIGEST")
    return text


def rows(site: Site, table) -> int:
    with site.services.database.read() as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar_one()


def test_P7_the_digest_of_a_private_manifest_is_not_enough_to_publish_it(site: Site, mallory: str):
    digest = publish(site, files=FILES).json()["manifest_sha256"]
    answer = site.post(f"{COPY}/versions", {"manifest_sha256": digest}, key=mallory)
    assert (code(answer), answer.json()["missing"]) == ((404, "BLOB_NOT_FOUND"), [digest])
    unknown = site.post(f"{COPY}/versions", {"manifest_sha256": "0" * 64}, key=mallory)
    assert told(answer, digest) == told(unknown, "0" * 64)
    assert code(site.get(COPY, key=mallory)) == (404, "CONTENT_NOT_FOUND")


@pytest.mark.parametrize("manifest_is", ["sent along", "a blob"])
def test_P7_the_digest_of_a_private_file_is_not_enough_to_publish_it(
    site: Site, mallory: str, manifest_is: str
):
    publish(site, files=FILES)
    manifest = manifest_of(DATASETS, FILES)
    body = {"manifest_sha256": manifest.sha256}
    if manifest_is == "sent along":
        body["manifest"] = json.loads(manifest.encode())
    else:
        # Whoever knows the files' digests knows the manifest's bytes too.
        upload(site, manifest.encode(), key=mallory)
    answer = site.post(f"{COPY}/versions", body, key=mallory)
    assert (code(answer), answer.json()["missing"]) == ((404, "BLOB_NOT_FOUND"), [DIGEST])
    other = manifest_of(DATASETS, {"train.txt": os.urandom(3000)})
    absent = other.files[0].sha256
    body = {"manifest_sha256": other.sha256, "manifest": json.loads(other.encode())}
    unknown = site.post(f"{COPY}/versions", body, key=mallory)
    assert told(answer, DIGEST) == told(unknown, absent), "it cannot be told from what nobody has"
    assert code(site.get(f"{COPY}/versions/{manifest.sha256}/blobs/{DIGEST}", key=mallory)) == (
        404,
        "CONTENT_NOT_FOUND",
    )


def test_P7_the_digest_of_an_artifact_is_not_enough_to_publish_it(site: Site, mallory: str):
    (trial,) = trials(site, site.submit("r")["job_id"])
    finish(site, trial, start(site, trial), artifacts={"outputs/weights.bin": SECRET})
    manifest = make_manifest(DATASETS, [ContentFile("weights.bin", len(SECRET), DIGEST)], ABOUT)
    body = {"manifest_sha256": manifest.sha256, "manifest": json.loads(manifest.encode())}
    answer = site.post(f"{COPY}/versions", body, key=mallory)
    assert (code(answer), answer.json()["missing"]) == ((404, "BLOB_NOT_FOUND"), [DIGEST])


def test_P7_what_others_stored_is_missing_and_no_upload_knows_of_it(site: Site, mallory: str):
    upload(site, SECRET)
    assert missing(site, None, DIGEST) == []
    assert missing(site, mallory, DIGEST, "0" * 64) == [DIGEST, "0" * 64]
    nothing = {"sha256": DIGEST, "offset": 0, "size": None, "stored": False}
    assert site.get(f"{BLOB}/upload", key=mallory).json() == nothing
    empty = site.request("PUT", f"{BLOB}/upload?offset=0&size={len(SECRET)}", b"", key=mallory)
    assert (empty.json()["offset"], empty.json()["stored"]) == (0, False)
    wrong = bytes(len(SECRET))
    record = b"%s %d\n" % (DIGEST.encode(), len(wrong)) + wrong
    for answer in (
        site.request("PUT", BLOB, wrong, key=mallory),
        site.post("/v1/content/blobs", record, key=mallory),
        site.request("PUT", f"{BLOB}/upload?offset=0&size={len(wrong)}", wrong, key=mallory),
    ):
        assert code(answer) == (409, "CONTENT_HASH_MISMATCH")
    assert missing(site, mallory, DIGEST) == [DIGEST]


def test_P7_a_runner_that_names_anothers_file_is_refused_as_if_nobody_had_it(
    site: Site, mallory: str, tmp_path
):
    repository(tmp_path / "repo", {"runner.toml": definition(), "main.sh": "echo secret\n"})
    frozen = freeze(tmp_path / "repo")
    held = {file.sha256: file.read() for file in frozen.files}
    upload(site, *held.values())
    body = frozen.publication().as_document()
    answer = site.post("/v1/runners/mine/train/revisions", body, key=mallory)
    assert code(answer) == (404, "BLOB_NOT_FOUND")
    assert sorted(answer.json()["missing"]) == sorted(held)
    upload(site, *held.values(), key=mallory)
    assert site.post("/v1/runners/mine/train/revisions", body, key=mallory).status_code == 201


@pytest.mark.parametrize("way", ["whole", "batch", "parts"])
def test_P7_who_has_the_bytes_sends_them_and_they_are_stored_once(site: Site, mallory: str, way: str):
    first = publish(site, files=FILES).json()["manifest_sha256"]
    stored, names = rows(site, blobs), {blob.sha256 for blob in site.services.blobs.names()}
    if way == "whole":
        answer = site.request("PUT", BLOB, SECRET, key=mallory)
    elif way == "batch":
        record = b"%s %d\n" % (DIGEST.encode(), len(SECRET)) + SECRET
        answer = site.post("/v1/content/blobs", record, key=mallory)
    else:
        where = f"{BLOB}/upload?size={len(SECRET)}&offset="
        begun = site.request("PUT", f"{where}0", SECRET[:1000], key=mallory).json()
        assert (begun["offset"], begun["stored"]) == (1000, False)
        assert missing(site, mallory, DIGEST) == [DIGEST]
        answer = site.request("PUT", f"{where}1000", SECRET[1000:], key=mallory)
        assert answer.json()["stored"]
    assert answer.status_code == 200
    assert missing(site, mallory, DIGEST) == []
    made = publish(site, "mine/copy", FILES, store=False, key=mallory)
    assert (made.status_code, made.json()["manifest_sha256"]) == (201, first)
    again = site.post(f"{COPY}/versions", {"version": "2", "manifest_sha256": first}, key=mallory)
    assert again.status_code == 201
    assert site.get(f"{COPY}/versions/2/files/train.txt", key=mallory).content == SECRET
    assert rows(site, blobs) == stored
    assert {blob.sha256 for blob in site.services.blobs.names()} == names


def test_P7_what_was_collected_has_to_be_sent_again_by_everybody(site: Site, mallory: str):
    services, shipped = site.services, rows(site, blobs)
    for key in (None, mallory):
        upload(site, SECRET, key=key)
    assert rows(site, project_blobs) == 2
    site.clock.now += services.gc_grace_seconds + 1
    Collector(services.database, services.blobs, site.clock, grace_seconds=services.gc_grace_seconds).run()
    assert (rows(site, blobs), rows(site, project_blobs)) == (shipped, 0)
    upload(site, SECRET)
    assert missing(site, None, DIGEST) == []
    assert missing(site, mallory, DIGEST) == [DIGEST], "the bytes of another prove nothing"
    assert code(publish(site, "mine/copy", FILES, store=False, key=mallory)) == (404, "BLOB_NOT_FOUND")
    assert publish(site, "mine/copy", FILES, key=mallory).status_code == 201
