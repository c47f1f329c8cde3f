"""Blobs over HTTP: what is missing, whole ones, parts, and whose fault it is when they are refused."""

from __future__ import annotations

import hashlib
import io
import os
import random

import pytest
from sqlalchemy import select, update

from support.site import Site
from trainshed.content.blobs import Blob, ReadBackMismatch, StoreFull, StoreUnavailable
from trainshed.content.uploads import MAX_UNFINISHED
from trainshed.model.access import Permission
from trainshed.server.services import BodyLimits
from trainshed.store import queue, usage
from trainshed.store.tables import blobs

DATA = random.Random(20).randbytes(5000)
NAME = hashlib.sha256(DATA).hexdigest()
ABSENT = "0" * 64
WHOLE = f"/v1/content/blobs/{NAME}"
UPLOAD = f"{WHOLE}/upload"


def part(site: Site, start: int, end: int, *, size: int = len(DATA), data: bytes = DATA, **kwargs):
    return site.request("PUT", f"{UPLOAD}?offset={start}&size={size}", data[start:end], **kwargs)


def code(answer) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def missing(site: Site, *names: str) -> list[str]:
    answer = site.post("/v1/content/blobs/missing", {"sha256": list(names)})
    assert answer.status_code == 200, answer.text
    return answer.json()["missing"]


def mark(site: Site, at: float | None) -> None:
    going = update(blobs).where(blobs.c.sha256 == NAME).values(deleting_at=at)
    site.services.database.write(lambda c: c.execute(going))


def touched(site: Site) -> float:
    with site.services.database.read() as connection:
        return connection.execute(select(blobs.c.touched_at).where(blobs.c.sha256 == NAME)).scalar_one()


def test_E105_a_blob_comes_in_parts(site: Site):
    nothing = {"sha256": NAME, "offset": 0, "size": None, "stored": False}
    assert site.get(UPLOAD).json() == nothing
    begun = {"sha256": NAME, "offset": 3000, "size": 5000, "stored": False}
    assert part(site, 0, 3000).json() == begun
    assert site.get(UPLOAD).json() == begun
    assert missing(site, NAME) == [NAME]
    done = {"sha256": NAME, "offset": 5000, "size": 5000, "stored": True}
    assert part(site, 3000, 5000).json() == done
    assert missing(site, NAME) == []
    # Whatever is sent now was sent already.
    assert part(site, 3000, 5000).json() == part(site, 5000, 5000).json() == site.get(UPLOAD).json() == done
    assert site.services.blobs.verify(NAME) == Blob(NAME, 5000)


def test_a_wrong_offset_is_refused_with_the_right_one(sqlite_site: Site):
    part(sqlite_site, 0, 1000)
    answer = part(sqlite_site, 2000, 3000)
    assert code(answer) == (409, "UPLOAD_OFFSET_MISMATCH")
    assert answer.json()["offset"] == 1000
    assert sqlite_site.get(UPLOAD).json()["offset"] == 1000


def test_parts_belong_to_the_project_of_the_key(sqlite_site: Site):
    sqlite_site.add_project("other")
    key = sqlite_site.add_key("other", Permission.CONTENT_PUBLISH)
    part(sqlite_site, 0, 1000)
    assert sqlite_site.get(UPLOAD, key=key).json()["offset"] == 0
    assert code(part(sqlite_site, 1000, 2000, key=key))[1] == "UPLOAD_OFFSET_MISMATCH"


@pytest.mark.parametrize("permission", [Permission.RUNNER_PUBLISH, Permission.CONTENT_PUBLISH])
def test_who_may_publish_anything_may_upload(sqlite_site: Site, permission):
    key = sqlite_site.add_key("default", permission)
    assert part(sqlite_site, 0, 100, key=key).status_code == 200
    assert sqlite_site.request("PUT", WHOLE, DATA, key=key).status_code == 200
    body = {"sha256": [NAME]}
    assert sqlite_site.post("/v1/content/blobs/missing", body, key=key).json()["missing"] == []


def test_nobody_else_may(sqlite_site: Site):
    others = set(Permission) - {Permission.RUNNER_PUBLISH, Permission.CONTENT_PUBLISH}
    key = sqlite_site.add_key("default", *others)
    for answer in (
        part(sqlite_site, 0, 100, key=key),
        sqlite_site.get(UPLOAD, key=key),
        sqlite_site.request("PUT", WHOLE, DATA, key=key),
        sqlite_site.post("/v1/content/blobs", packed(DATA), key=key),
        sqlite_site.post("/v1/content/blobs/missing", {"sha256": [NAME]}, key=key),
    ):
        assert code(answer) == (403, "PERMISSION_DENIED")


def test_all_faults_of_a_part_are_told_at_once(sqlite_site: Site):
    answer = sqlite_site.request("PUT", f"{UPLOAD}?offset=-1&size=many", b"x")
    assert code(answer) == (422, "INVALID_SPEC")
    assert [fault["path"] for fault in answer.json()["errors"]] == ["offset", "size"]
    for query, path in (
        ("", "offset"),
        ("?offset=0", "size"),
        ("?offset=6&size=5", "offset"),
        ("?offset=0&size=4", "size"),
        (f"?offset=0&size={10**18 - 1}", "size"),
    ):
        answer = sqlite_site.request("PUT", UPLOAD + query, b"12345")
        assert code(answer) == (422, "INVALID_SPEC"), query
        assert answer.json()["errors"][0]["path"] == path
    answer = sqlite_site.request("PUT", "/v1/content/blobs/ABC/upload?offset=0&size=1", b"x")
    assert (code(answer), answer.json()["errors"][0]["path"]) == ((422, "INVALID_SPEC"), "sha256")


def test_a_part_is_not_larger_than_a_blob_that_is_sent_whole(make_site):
    site = make_site(bodies=BodyLimits(blob=2000))
    assert code(part(site, 0, 2001)) == (413, "REQUEST_TOO_LARGE")
    assert site.get(UPLOAD).json()["offset"] == 0
    for start in (0, 2000, 4000):
        answer = part(site, start, min(5000, start + 2000))
        assert answer.status_code == 200
    assert answer.json()["stored"]
    body = {"sha256": [NAME]}
    told = {"missing": [], "max_blob_bytes": 2000, "max_blobs": 1000}
    assert site.post("/v1/content/blobs/missing", body).json() == told


def test_wrong_bytes_are_refused_and_the_right_ones_taken_afterwards(sqlite_site: Site):
    wrong = bytes(5000)
    part(sqlite_site, 0, 3000, data=wrong)
    assert code(part(sqlite_site, 3000, 5000, data=wrong)) == (409, "CONTENT_HASH_MISMATCH")
    assert missing(sqlite_site, NAME) == [NAME]
    assert part(sqlite_site, 0, 5000).json()["stored"]


def test_a_project_cannot_begin_uploads_without_end(sqlite_site: Site):
    for number in range(MAX_UNFINISHED):
        path = f"/v1/content/blobs/{number:064x}/upload?offset=0&size=2"
        assert sqlite_site.request("PUT", path, b"x").status_code == 200
    assert code(part(sqlite_site, 0, 100)) == (409, "CONTENT_QUOTA_EXCEEDED")


def each_door(site: Site) -> list[tuple[int, str]]:
    """What storing the blob is answered whole, with others, and as a part."""
    batch = b"%s %d\n%s" % (NAME.encode(), len(DATA), DATA)
    return [
        code(site.request("PUT", WHOLE, DATA)),
        code(site.request("POST", "/v1/content/blobs", batch)),
        code(part(site, 0, 3000)),
    ]


def test_what_a_project_sends_and_never_names_is_held_to_its_quota(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(usage, "ALWAYS_SENT_BYTES", 0)
    site.request("PATCH", "/v1/admin/projects/default", {"max_content_bytes": len(DATA) + 99})
    other = os.urandom(100)
    where = f"/v1/content/blobs/{hashlib.sha256(other).hexdigest()}"
    assert site.request("PUT", where, other).is_success
    assert each_door(site) == [(409, "CONTENT_QUOTA_EXCEEDED")] * 3
    assert site.request("PUT", where, other).is_success, "it adds nothing"
    assert not site.services.blobs.exists(NAME)
    site.request("PATCH", "/v1/admin/projects/default", {"max_content_bytes": len(DATA) + 100})
    assert site.request("PUT", WHOLE, DATA).is_success


def test_every_door_leaves_disk_to_everything_else(sqlite_site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite_site.services.uploads, "_reserve", 1 << 62)
    assert each_door(sqlite_site) == [(507, "STORAGE_FULL")] * 3
    assert not sqlite_site.services.blobs.exists(NAME)


def test_asking_and_storing_keep_a_blob(site: Site):
    site.request("PUT", WHOLE, DATA)
    first = touched(site)
    site.clock.now += queue.TOUCH_SECONDS + 1
    assert missing(site, NAME, ABSENT, NAME) == [ABSENT]
    assert touched(site) == site.clock.now > first
    site.clock.now += queue.TOUCH_SECONDS + 1
    part(site, 0, 10)
    assert touched(site) == site.clock.now
    site.clock.now += queue.TOUCH_SECONDS + 1
    site.request("PUT", WHOLE, DATA)
    assert touched(site) == site.clock.now


def test_a_blob_that_is_being_removed_is_missing_and_cannot_be_stored_yet(site: Site):
    site.request("PUT", WHOLE, DATA)
    mark(site, site.clock.now)
    assert missing(site, NAME) == [NAME]
    assert not site.get(UPLOAD).json()["stored"]
    for answer in (site.request("PUT", WHOLE, DATA), part(site, 0, 5000)):
        assert code(answer) == (503, "BLOB_BEING_DELETED")
        assert answer.headers["Retry-After"] == "1"
    site.services.blobs.delete(NAME)
    site.services.database.write(lambda c: c.execute(blobs.delete().where(blobs.c.sha256 == NAME)))
    assert part(site, 0, 5000).json()["stored"]
    assert missing(site, NAME) == []


def test_a_part_of_a_blob_that_began_to_go_meanwhile_is_finished_later(sqlite_site: Site):
    site = sqlite_site
    part(site, 0, 3000)
    at = site.clock.now
    site.services.database.write(lambda c: queue.put_blobs(c, {NAME: 5000}, at=at))
    mark(site, at)
    assert code(part(site, 3000, 5000)) == (503, "BLOB_BEING_DELETED")
    mark(site, None)
    again = part(site, 3000, 5000)
    assert (code(again), again.json()["offset"]) == ((409, "UPLOAD_OFFSET_MISMATCH"), 5000), "all of it came"
    assert part(site, 5000, 5000).json()["stored"]


def test_what_the_store_lost_is_missing_again_and_heals(sqlite_site: Site):
    sqlite_site.request("PUT", WHOLE, DATA)
    sqlite_site.services.blobs.delete(NAME)
    assert missing(sqlite_site, NAME) == [NAME]
    assert not sqlite_site.get(UPLOAD).json()["stored"]
    assert part(sqlite_site, 0, 5000).json()["stored"]
    assert missing(sqlite_site, NAME) == []


def test_what_the_database_does_not_know_does_not_count(sqlite_site: Site):
    sqlite_site.services.blobs.put(io.BytesIO(DATA))
    assert missing(sqlite_site, NAME) == [NAME]
    assert part(sqlite_site, 0, 10).json()["offset"] == 10


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StoreFull("no room"), (507, "STORAGE_FULL")),
        (StoreUnavailable("no answer"), (503, "STORAGE_UNAVAILABLE")),
        (ReadBackMismatch("other bytes"), (503, "STORAGE_UNAVAILABLE")),
    ],
)
def test_E105_faults_of_the_storage_are_not_the_senders(sqlite_site: Site, monkeypatch, error, expected):
    def fail(*_: object, **__: object) -> None:
        raise error

    store = type(sqlite_site.services.blobs)
    with monkeypatch.context() as patched:
        patched.setattr(store, "put", fail)
        patched.setattr(store, "put_many", fail)
        patched.setattr(store, "adopt", fail)
        assert code(sqlite_site.request("PUT", WHOLE, DATA)) == expected
        assert code(part(sqlite_site, 0, 5000)) == expected
        assert code(sqlite_site.post("/v1/content/blobs", packed(DATA))) == expected
        assert missing(sqlite_site, NAME) == [NAME]
    assert part(sqlite_site, 5000, 5000).json()["stored"]


def packed(*contents: bytes, names: tuple[str, ...] = ()) -> bytes:
    found = names or [hashlib.sha256(content).hexdigest() for content in contents]
    return b"".join(
        b"%s %d\n" % (name.encode(), len(content)) + content
        for name, content in zip(found, contents, strict=True)
    )


def test_E105_several_small_ones_are_stored_together(site: Site):
    contents = (DATA, b"", b"\n", b"0" * 64 + b" 5\n")
    answer = site.post("/v1/content/blobs", packed(*contents, DATA))
    assert answer.json() == {"stored": 4, "bytes": sum(map(len, contents))}
    names = [hashlib.sha256(content).hexdigest() for content in contents]
    assert missing(site, *names) == []
    for name, content in zip(names, contents, strict=True):
        assert site.services.blobs.verify(name).size == len(content)
    assert site.post("/v1/content/blobs", packed(*contents)).status_code == 200
    assert site.post("/v1/content/blobs", b"").json() == {"stored": 0, "bytes": 0}


def test_of_several_none_is_stored_where_one_is_wrong_or_being_removed(site: Site):
    answer = site.post("/v1/content/blobs", packed(DATA, b"x", names=(NAME, ABSENT)))
    assert code(answer) == (409, "CONTENT_HASH_MISMATCH")
    assert missing(site, NAME, ABSENT) == [NAME, ABSENT]
    site.request("PUT", WHOLE, DATA)
    mark(site, site.clock.now)
    assert code(site.post("/v1/content/blobs", packed(b"x", DATA))) == (503, "BLOB_BEING_DELETED")
    other = hashlib.sha256(b"x").hexdigest()
    assert missing(site, other) == [other]


@pytest.mark.parametrize(
    "body",
    [
        b"x",
        packed(DATA)[:-1],
        packed(DATA) + b"\n",
        packed(DATA).replace(b"\n", b"\r\n", 1),
        packed(DATA).replace(b" ", b"  ", 1),
        packed(DATA).upper(),
        f"{NAME} -1\n".encode(),
        f"{NAME} 99999999999999999999\n".encode(),
        packed(*(b"%d" % n for n in range(1001))),
    ],
)
def test_a_batch_that_is_none_is_refused(sqlite_site: Site, body):
    assert code(sqlite_site.post("/v1/content/blobs", body)) == (422, "INVALID_SPEC")
    assert missing(sqlite_site, NAME) == [NAME]


def test_a_batch_has_eight_mebibytes_at_most(sqlite_site: Site, make_site):
    large = packed(os.urandom(8 << 20))
    assert code(sqlite_site.post("/v1/content/blobs", large)) == (413, "REQUEST_TOO_LARGE")
    narrow = make_site(bodies=BodyLimits(blob=2000))
    assert code(narrow.post("/v1/content/blobs", packed(DATA))) == (413, "REQUEST_TOO_LARGE")


def test_malformed_questions_are_refused(sqlite_site: Site):
    for body in ({}, {"sha256": "x"}, {"sha256": [NAME.upper()]}, {"sha256": [], "more": 1}):
        assert code(sqlite_site.post("/v1/content/blobs/missing", body)) == (422, "INVALID_SPEC")
    many = {"sha256": [f"{n:064x}" for n in range(10_001)]}
    assert code(sqlite_site.post("/v1/content/blobs/missing", many)) == (422, "INVALID_SPEC")
    assert missing(sqlite_site, *many["sha256"][1:]) == many["sha256"][1:]
