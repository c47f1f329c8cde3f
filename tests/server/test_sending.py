"""What a project with a quota sends counts while it is sent: at once, in parts, given up or killed."""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import func, select, update

from support.contents import manifest_of, publish
from support.site import Site
from trainshed.content.blobs import FolderBlobStore, StoreUnavailable
from trainshed.content.uploads import KEPT_SECONDS
from trainshed.model.content import ContentKind
from trainshed.server import storage
from trainshed.server.config import ContentSettings
from trainshed.store import usage
from trainshed.store.tables import blobs, reservations

SIZE = 1000
REFUSED = (409, "CONTENT_QUOTA_EXCEEDED")


@pytest.fixture
def held(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site whose project may send three blobs of `SIZE`."""
    monkeypatch.setattr(usage, "ALWAYS_SENT_BYTES", 0)
    limit(site, 3 * SIZE)
    return site


def limit(site: Site, size: int | None) -> None:
    assert site.request("PATCH", "/v1/admin/projects/default", {"max_content_bytes": size}).is_success


def blob() -> tuple[str, bytes]:
    data = os.urandom(SIZE)
    return f"/v1/content/blobs/{hashlib.sha256(data).hexdigest()}", data


def reserved(site: Site) -> int:
    with site.services.database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(reservations)).scalar_one())


def said(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json().get("code", "stored")


def part(site: Site, where: str, data: bytes, start: int, end: int) -> Any:
    return site.request("PUT", f"{where}/upload?offset={start}&size={len(data)}", data[start:end])


def test_of_blobs_that_are_sent_at_once_no_more_are_let_in_than_there_is_room_for(
    held: Site, monkeypatch: pytest.MonkeyPatch
):
    together = threading.Barrier(3)
    put = FolderBlobStore.put

    def all_of_them(*args: Any, **options: Any) -> Any:
        # Whoever was let in stores while the others are, too.
        together.wait(20)
        return put(*args, **options)

    monkeypatch.setattr(FolderBlobStore, "put", all_of_them)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda each: said(held.request("PUT", *each)), [blob() for _ in range(8)]))
    assert sorted(answers) == [(200, "stored")] * 3 + [REFUSED] * 5
    assert reserved(held) == 0
    assert said(held.request("PUT", *blob())) == REFUSED


def test_unfinished_uploads_count_at_their_full_size(held: Site):
    begun = [blob() for _ in range(3)]
    for where, data in begun:
        assert part(held, where, data, 0, SIZE - 1).status_code == 200
    more = blob()
    assert said(held.request("PUT", *more)) == said(part(held, *more, 0, 1)) == REFUSED
    assert held.get(f"{more[0]}/upload").json()["size"] is None
    assert sorted({path.stem for path in held.services.uploads._root.iterdir()}) == sorted(
        f"{where.rpartition('/')[2]}.{hashlib.sha256(b'default').hexdigest()[:16]}" for where, _ in begun
    )
    for where, data in begun:
        assert part(held, where, data, SIZE - 1, SIZE).json()["stored"]
    assert reserved(held) == 0
    assert said(held.request("PUT", *more)) == REFUSED


def test_what_fails_gives_its_room_back(held: Site, monkeypatch: pytest.MonkeyPatch):
    for _ in range(4):
        where, _ = blob()
        assert said(held.request("PUT", where, b"x" * SIZE)) == (409, "CONTENT_HASH_MISMATCH")
        assert said(part(held, where, b"x" * SIZE, 0, SIZE)) == (409, "CONTENT_HASH_MISMATCH")
        packed = b"%s %d\n" % (where.rpartition("/")[2].encode(), SIZE) + b"x" * SIZE
        assert said(held.post("/v1/content/blobs", packed)) == (409, "CONTENT_HASH_MISMATCH")

    def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as patched:
        for method in ("put", "put_many"):
            patched.setattr(FolderBlobStore, method, fail)
        for _ in range(4):
            assert said(held.request("PUT", *blob())) == (503, "STORAGE_UNAVAILABLE")
        patched.setattr(type(held.services.uploads), "_write", fail)
        for _ in range(4):
            assert said(part(held, *blob(), 0, SIZE)) == (503, "STORAGE_UNAVAILABLE")
    assert reserved(held) == 0
    for _ in range(3):
        assert said(held.request("PUT", *blob())) == (200, "stored")


def test_uploads_that_nobody_goes_on_with_give_their_room_back(held: Site):
    for _ in range(3):
        assert part(held, *blob(), 0, 1).status_code == 200
    assert said(held.request("PUT", *blob())) == REFUSED
    for path in held.services.uploads._root.iterdir():
        os.utime(path, (held.clock.now, held.clock.now))
    held.clock.now += KEPT_SECONDS + 1
    assert held.services.uploads.sweep() == 3
    assert reserved(held) == 0
    assert said(held.request("PUT", *blob())) == (200, "stored")


def test_what_a_killed_server_was_receiving_gives_its_room_back(held: Site):
    services = held.services
    killed = []
    for _ in range(3):
        where, data = blob()
        sizes = {where.rpartition("/")[2]: len(data)}
        killed.append(storage.reserved(services.database, "default", sizes, request=where, at=held.clock.now))
        killed[-1].__enter__()
    assert said(held.request("PUT", *blob())) == REFUSED
    if services.database.dialect == "sqlite":
        again = storage.open_uploads(
            ContentSettings(), services.blobs.root, services.blobs, services.database, held.clock
        )
        again.close()
        assert reserved(held) == 0
    else:
        held.clock.now += 901
    assert said(held.request("PUT", *blob())) == (200, "stored")


def test_a_batch_counts_as_a_whole(held: Site):
    many = [blob() for _ in range(4)]
    packed = [b"%s %d\n" % (where.rpartition("/")[2].encode(), SIZE) + data for where, data in many]
    assert said(held.post("/v1/content/blobs", b"".join(packed))) == REFUSED
    assert said(held.post("/v1/content/blobs", b"".join(packed[:3]))) == (200, "stored")
    assert said(held.post("/v1/content/blobs", b"".join(packed[:3]))) == (200, "stored"), "it adds nothing"
    assert reserved(held) == 0


@pytest.mark.parametrize("known", ["stored by others", ""])
def test_what_is_sent_under_a_digest_that_others_stored_is_answered_as_if_nobody_had(held: Site, known: str):
    where, data = blob()
    if known:
        held.add_project("pb")
        key = held.add_key("pb")
        assert said(held.request("PUT", where, data, key=key)) == (200, "stored")
    for _ in range(3):
        assert said(held.request("PUT", *blob())) == (200, "stored")
    junk = b"x" * SIZE
    assert said(held.request("PUT", where, junk)) == REFUSED
    packed = b"%s %d\n" % (where.rpartition("/")[2].encode(), SIZE) + junk
    assert said(held.post("/v1/content/blobs", packed)) == REFUSED
    assert said(part(held, where, junk, 0, 0)) == REFUSED
    huge = held.request("PUT", f"{where}/upload?offset=0&size={1 << 39}", junk)
    assert said(huge) == REFUSED
    asked = held.post("/v1/content/blobs/missing", {"sha256": [where.rpartition("/")[2]]})
    assert asked.json()["missing"] == [where.rpartition("/")[2]]
    assert held.get(f"{where}/upload").json() == held.request("DELETE", f"{where}/upload").json()
    assert not list(held.services.uploads._root.iterdir())


def test_that_what_others_sent_is_being_removed_is_told_only_to_who_has_its_bytes(held: Site):
    held.add_project("pb")
    where, data = blob()
    name = where.rpartition("/")[2]
    assert said(held.request("PUT", where, data, key=held.add_key("pb"))) == (200, "stored")
    going = update(blobs).where(blobs.c.sha256 == name).values(deleting_at=held.clock.now)
    held.services.database.write(lambda c: c.execute(going))
    junk = b"x" * SIZE
    packed = [b"%s %d\n" % (name.encode(), SIZE) + each for each in (junk, data)]
    for door in (("PUT", where, junk), ("POST", "/v1/content/blobs", packed[0])):
        assert said(held.request(*door)) == (409, "CONTENT_HASH_MISMATCH")
    assert said(part(held, where, junk, 0, SIZE)) == (409, "CONTENT_HASH_MISMATCH")
    for door in (("PUT", where, data), ("POST", "/v1/content/blobs", packed[1])):
        assert said(held.request(*door)) == (503, "BLOB_BEING_DELETED")
    assert said(part(held, where, data, 0, SIZE)) == (503, "BLOB_BEING_DELETED")


def test_of_many_who_send_one_blob_at_once_no_more_are_let_in_than_there_is_room_for(
    held: Site, monkeypatch: pytest.MonkeyPatch
):
    enough = threading.Event()
    busy: list[str] = []
    put = FolderBlobStore.put

    def after_the_others(*args: Any, **options: Any) -> Any:
        enough.wait(20)
        return put(*args, **options)

    def send(where: str) -> tuple[int, str]:
        answer = held.request("PUT", where, b"x" * SIZE)
        if answer.status_code == 503:
            assert answer.headers["retry-after"] == "1"
            busy.append(where)
            if len(busy) == 5:
                enough.set()
        return said(answer)

    monkeypatch.setattr(FolderBlobStore, "put", after_the_others)
    with ThreadPoolExecutor(8) as pool:
        answers = sorted(pool.map(send, [blob()[0]] * 8))
    assert answers == [(409, "CONTENT_HASH_MISMATCH")] * 3 + [(503, "UPLOAD_BUSY")] * 5
    assert reserved(held) == 0


def test_a_manifest_that_comes_along_has_room_or_is_not_stored(held: Site):
    files = {f"{number:04} {'x' * 200}": b"" for number in range(20)}
    manifest = manifest_of(ContentKind.DATASETS, files)
    for more in ({}, {"bytes": 0}):
        assert said(publish(held, files=files, version="1", **more)) == REFUSED
    assert not held.services.blobs.exists(manifest.sha256)
    assert reserved(held) == 0
    limit(held, len(manifest.encode()))
    assert publish(held, files=files, version="1").status_code == 201
    assert reserved(held) == 0
    assert said(held.request("PUT", *blob())) == REFUSED


def test_an_upload_that_is_given_up_returns_its_room_and_its_bytes_at_once(held: Site):
    begun = [blob() for _ in range(3)]
    for where, data in begun:
        assert part(held, where, data, 0, SIZE - 1).status_code == 200
    assert said(held.request("PUT", *blob())) == REFUSED
    where, _ = begun[0]
    gone = held.request("DELETE", f"{where}/upload")
    assert (gone.status_code, gone.json()["offset"], gone.json()["size"]) == (200, 0, None)
    assert held.request("DELETE", f"{where}/upload").json() == gone.json(), "given up once more"
    assert len(list(held.services.uploads._root.iterdir())) == 4
    assert reserved(held) == 2
    assert said(held.request("PUT", *begun[0])) == (200, "stored")
    assert held.request("DELETE", f"{where}/upload").json()["stored"], "what is stored stays"
    assert held.request("DELETE", "/v1/content/blobs/xyz/upload").status_code == 422


def test_collecting_garbage_gives_up_uploads_that_are_older_than_the_grace(held: Site):
    begun = [blob() for _ in range(2)]
    for where, data in begun:
        assert part(held, where, data, 0, 1).status_code == 200
    for path in held.services.uploads._root.glob(f"{begun[0][0].rpartition('/')[2]}.*"):
        old = held.clock.now - held.services.gc_grace_seconds - 1
        os.utime(path, (old, old))
    for path in held.services.uploads._root.glob(f"{begun[1][0].rpartition('/')[2]}.*"):
        os.utime(path, (held.clock.now, held.clock.now))
    assert held.post("/v1/admin/content/gc").status_code == 202
    offsets = [held.get(f"{where}/upload").json()["offset"] for where, _ in begun]
    assert offsets == [0, 1]
    assert reserved(held) == 1


def test_without_a_quota_nothing_is_reserved(site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(usage, "reserve", lambda *_, **__: pytest.fail("reserved"))
    assert said(site.request("PUT", *blob())) == (200, "stored")
    where, data = blob()
    assert part(site, where, data, 0, 10).status_code == 200
    assert part(site, where, data, 10, SIZE).json()["stored"]


def test_the_disk_that_uploads_leave_is_named_with_its_setting_and_the_numbers(
    sqlite_site: Site, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sqlite_site.services.uploads, "_reserve", 1 << 62)
    where, data = blob()
    for answer in (sqlite_site.request("PUT", where, data), part(sqlite_site, where, data, 0, SIZE)):
        assert said(answer) == (507, "STORAGE_FULL")
        told = answer.json()
        assert told["upload_reserve_bytes"] == 1 << 62
        assert 0 < told["free_bytes"] < 1 << 62
        for said_too in ("`content.upload_reserve_bytes`", f"{told['free_bytes']} bytes", str(1 << 62)):
            assert said_too in told["message"]
        assert "content.upload_reserve_bytes" in told["hint"]
    assert sqlite_site.get(f"{where}/upload").json()["size"] is None
