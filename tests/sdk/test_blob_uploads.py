"""Uploads by the client: only what is missing, in parallel, in parts, through faults of either side."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from support.fake_server import FakeServer, Reply, in_turn, refusal
from support.http import Http
from support.proxy import Fault, FaultProxy
from support.proxy import in_turn as faults_in_turn
from trainshed import Client, ContentChanged
from trainshed.sdk import RetryPolicy, blobs
from trainshed.sdk.blobs import BlobUploads, Upload
from trainshed.sdk.errors import (
    Conflict,
    IntegrityError,
    InvalidAnswer,
    LocalFileError,
    PermissionRefused,
    ServerUnavailable,
)
from trainshed.sdk.transport import Transport, route

QUICK = RetryPolicy(attempts=4, first=0.001, longest=0.002)
PART = 50_000


def upload_of(data: bytes, label: str = "a file") -> Upload:
    return Upload(hashlib.sha256(data).hexdigest(), len(data), lambda: io.BytesIO(data), label)


def upload_from(path: Path) -> Upload:
    data = path.read_bytes()
    return Upload(hashlib.sha256(data).hexdigest(), len(data), lambda: path.open("rb"), str(path))


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(blobs, "PART_BYTES", PART)


@pytest.fixture
def http(module_server) -> Http:
    return module_server.http()


@pytest.fixture
def client(module_server):
    with Client(module_server.url, module_server.key, retry=QUICK) as opened:
        yield opened


@pytest.fixture
def uploads(client) -> BlobUploads:
    return BlobUploads(client._transport)


def stored(http: Http, *wanted: Upload) -> bool:
    body = {"sha256": [upload.sha256 for upload in wanted]}
    return http.post("/v1/content/blobs/missing", body).json["missing"] == []


@pytest.mark.parametrize(("said", "requests"), [({}, 12), ({"max_blobs": 1000}, 2), ({"max_blobs": 700}, 3)])
def test_as_many_small_ones_go_together_as_the_server_likes(said, requests):
    many = [upload_of(b"%d" % number) for number in range(1500)]
    digests = [upload.sha256 for upload in many]
    # An older server says nothing of it.
    asked = Reply(body={"missing": digests, "max_blob_bytes": 64 << 20, **said})
    routes = {MISSING: asked, "POST /v1/content/blobs": Reply(body={})}
    with FakeServer(routes) as server, Client(server.url, "key", retry=QUICK) as client:
        assert BlobUploads(client._transport).send(many, parallel=1) == len(many)
        sent = [seen for seen in server.seen if (seen.method, seen.path) == ("POST", "/v1/content/blobs")]
    assert len(sent) == requests


def test_a_server_takes_as_many_small_ones_together_as_it_says(module_server, client, uploads, http):
    many = [upload_of(os.urandom(20)) for _ in range(1002)]
    with FaultProxy(module_server.url, lambda *_: Fault.NONE) as proxy:
        with Client(proxy.url, module_server.key, retry=QUICK) as opened:
            assert BlobUploads(opened._transport).send(many, parallel=1) == len(many)
        sent = [seen for seen in proxy.seen if (seen.method, seen.path) == ("POST", "/v1/content/blobs")]
    assert len(sent) == 2
    assert stored(http, *many)


def test_only_what_is_missing_is_sent(uploads, http):
    large, small, empty = (upload_of(data) for data in (os.urandom(3 * PART + 1), os.urandom(10), b""))
    told: list[tuple[int, int]] = []
    total = large.size + small.size
    assert uploads.send([small, large], progress=lambda *said: told.append(said)) == 2
    assert stored(http, large, small)
    assert told == sorted(told)
    assert told[-1] == (total, total)
    told.clear()
    assert uploads.send([large, small, large], progress=lambda *said: told.append(said)) == 0
    assert told == [(total, total)]
    assert uploads.missing([large.sha256, "0" * 64]) == {"0" * 64}
    uploads.send([empty])
    assert stored(http, empty)
    assert uploads.send([]) == 0


def test_several_are_sent_at_once_and_no_more_than_wanted(uploads, http):
    together = threading.Barrier(3)

    def opened(data: bytes) -> io.BytesIO:
        together.wait(30)
        return io.BytesIO(data)

    datas = [os.urandom(blobs.SMALL_BYTES + 1) for _ in range(6)]
    wanted = [
        Upload(hashlib.sha256(data).hexdigest(), len(data), lambda data=data: opened(data), "a file")
        for data in datas
    ]
    assert uploads.send(wanted, parallel=3) == 6
    assert stored(http, *wanted)


def test_many_small_ones_go_together(module_server, http, monkeypatch):
    monkeypatch.setattr(blobs, "_MOST_TOGETHER", 20)
    monkeypatch.setattr(blobs, "_BATCH_BYTES", 30_000)
    small = [upload_of(os.urandom(8)) for _ in range(50)]
    larger = [upload_of(os.urandom(9_000)) for _ in range(10)]
    too_large = upload_of(os.urandom(31_000))
    told = []
    with (
        FaultProxy(module_server.url, faults_in_turn([])) as proxy,
        Client(proxy.url, module_server.key) as client,
    ):
        sent = BlobUploads(client._transport).send(
            [*small, too_large, *larger], parallel=2, progress=lambda done, _: told.append(done)
        )
    assert sent == 61
    assert stored(http, *small, *larger, too_large)
    assert told[-1] == 8 * 50 + 9_000 * 10 + 31_000
    asked = Counter((seen.method, seen.path) for seen in proxy.seen)
    # Three of 9,000 bytes fit into one; the last of them takes small ones along.
    assert asked["POST", "/v1/content/blobs"] == 6
    assert asked["PUT", f"/v1/content/blobs/{too_large.sha256}"] == 1


def test_of_many_the_one_that_changed_is_named(uploads, http, tmp_path):
    paths = [tmp_path / f"{number}.txt" for number in range(10)]
    for path in paths:
        path.write_bytes(os.urandom(20))
    wanted = [upload_from(path) for path in paths]
    paths[7].write_bytes(os.urandom(20))
    with pytest.raises(ContentChanged, match=r"7\.txt was changed .* its sha256 is now"):
        uploads.send(wanted, parallel=1)
    assert not stored(http, wanted[0])
    paths[7].write_bytes(os.urandom(19))
    with pytest.raises(ContentChanged, match=r"7\.txt was changed .* shorter"):
        uploads.send(wanted, parallel=1)
    paths[7].unlink()
    with pytest.raises(LocalFileError, match=r"7\.txt: No such file"):
        uploads.send(wanted, parallel=1)


@pytest.mark.parametrize("fault", [each for each in Fault if each is not Fault.NONE])
def test_P2_lost_and_repeated_messages_change_nothing(module_server, http, fault):
    data = os.urandom(4 * PART + 7)
    large, small = upload_of(data), upload_of(os.urandom(100))
    plan = faults_in_turn(itertools.islice(itertools.cycle([Fault.NONE, fault]), 12), path="/v1/content")
    with (
        FaultProxy(module_server.url, plan) as proxy,
        Client(proxy.url, module_server.key, retry=QUICK) as client,
    ):
        BlobUploads(client._transport).send([large, small])
    assert fault in {seen.fault for seen in proxy.seen}
    assert stored(http, large, small)


def test_an_upload_that_somebody_began_goes_on_there(uploads, client, http):
    data = os.urandom(5 * PART)
    large = upload_of(data)
    begun = {"offset": 0, "size": large.size}
    where = route("content", "blobs", large.sha256, "upload")
    client._transport.call("PUT", where, query=begun, content=data[: 3 * PART + 5])
    told: list[int] = []
    uploads.send([large], progress=lambda done, _: told.append(done))
    assert told[0] == 3 * PART + 5
    assert stored(http, large)


def test_two_clients_that_send_the_same_file_both_come_to_the_end(module_server, http):
    large = upload_of(os.urandom(12 * PART))
    failures = []

    def send() -> None:
        try:
            with Client(module_server.url, module_server.key, retry=QUICK) as client:
                BlobUploads(client._transport).send([large])
        except Exception as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert stored(http, large)


@pytest.mark.parametrize("size", [1000, 3 * PART + 10], ids=["whole", "parts"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:-1], "shorter"),
        (lambda data: data + b"x", "longer"),
        (lambda data: bytes([data[0] ^ 1]) + data[1:], "sha256 is now"),
    ],
    ids=["shorter", "longer", "other"],
)
def test_a_file_that_changed_since_it_was_hashed_is_named(uploads, http, tmp_path, size, change, said):
    path = tmp_path / "weights.bin"
    path.write_bytes(data := os.urandom(size))
    large = upload_from(path)
    path.write_bytes(change(data))
    with pytest.raises(ContentChanged, match=rf"weights\.bin was changed .*{said}") as failed:
        uploads.send([large])
    assert failed.value.hint
    assert not stored(http, large)
    path.write_bytes(data)
    uploads.send([large])
    assert stored(http, large)


@pytest.mark.parametrize("size", [PART // 2, 3 * PART + 10], ids=["whole", "parts"])
def test_what_is_sent_to_another_machine_is_read_while_it_is_sent_too(
    module_server, http, monkeypatch, tmp_path, size
):
    """There is no other machine here: the library that would speak to it speaks to this one."""
    monkeypatch.setattr(Transport, "_plain", False)
    path = tmp_path / "weights.bin"
    path.write_bytes(data := os.urandom(size))
    large = upload_from(path)
    plan = faults_in_turn([Fault.NONE, Fault.DROP_REPLY], path="/v1/content")
    with (
        FaultProxy(module_server.url, plan) as proxy,
        Client(proxy.url, module_server.key, retry=QUICK) as client,
    ):
        sender = BlobUploads(client._transport)
        path.write_bytes(data[:-1])
        with pytest.raises(ContentChanged, match="shorter"):
            sender.send([large])
        path.write_bytes(data)
        sender.send([large])
    assert stored(http, large)


def test_a_file_that_cannot_be_read_is_named(uploads, tmp_path):
    path = tmp_path / "gone"
    path.write_bytes(b"soon")
    gone = upload_from(path)
    path.unlink()
    with pytest.raises(LocalFileError, match="gone: No such file"):
        uploads.send([gone])


def test_a_failure_ends_the_others(uploads):
    """The second one ends only because the first one failed: its source never does."""
    begun = threading.Event()

    class Endless(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            begun.set()
            return bytes(size or 1)

        def seek(self, *_: int) -> int:
            return 0

        def tell(self) -> int:
            return 0

    def fail() -> io.BytesIO:
        begun.wait(30)
        raise PermissionError(13, "Permission denied")

    failing = Upload("f" * 64, 10, fail, "the failing one")
    with pytest.raises(LocalFileError, match="the failing one: Permission denied"):
        uploads.send([failing, Upload("e" * 64, 1 << 39, Endless, "endless")])


def test_a_key_that_may_not_publish_is_told_at_once(module_server):
    body = {"label": "reader", "role": "viewer"}
    made = module_server.http().post("/v1/admin/projects/default/keys", body).json
    with (
        Client(module_server.url, made["key"], retry=QUICK) as client,
        pytest.raises(PermissionRefused, match=r"content\.publish"),
    ):
        BlobUploads(client._transport).send([upload_of(b"x")])


# Against a server that says what a test scripts.

MISSING = "POST /v1/content/blobs/missing"


def scripted(upload: Upload, **routes) -> FakeServer:
    path = f"/v1/content/blobs/{upload.sha256}"
    found = {f"{method}_UPLOAD": f"{method} {path}/upload" for method in ("GET", "PUT", "DELETE")}
    found["PUT"] = f"PUT {path}"
    asked = {MISSING: Reply(body={"missing": [upload.sha256], "max_blob_bytes": 1 << 20})}
    return FakeServer(asked | {found[name]: reply for name, reply in routes.items()})


def state(offset: int, size: int | None, *, stored: bool = False) -> Reply:
    return Reply(body={"sha256": "", "offset": offset, "size": size, "stored": stored})


def send(server: FakeServer, upload: Upload) -> None:
    with Client(server.url, "key-1", retry=QUICK) as client:
        BlobUploads(client._transport).send([upload])


def test_a_blob_that_is_being_removed_is_waited_for():
    small = upload_of(b"some bytes")
    going = refusal(503, "BLOB_BEING_DELETED", headers={"Retry-After": "0"})
    with scripted(small, PUT=in_turn(going, going, Reply(body={"sha256": small.sha256}))) as server:
        send(server, small)
    assert len(server.seen) == 4


def test_a_full_disk_is_told_at_once():
    small = upload_of(b"some bytes")
    with (
        scripted(small, PUT=refusal(507, "STORAGE_FULL")) as server,
        pytest.raises(ServerUnavailable, match="STORAGE_FULL"),
    ):
        send(server, small)


def requests(server: FakeServer, method: str, upload: Upload) -> int:
    path = f"/v1/content/blobs/{upload.sha256}/upload"
    return sum((seen.method, seen.path) == (method, path) for seen in server.seen)


@pytest.mark.parametrize(
    ("status", "code", "given_up"), [(409, "CONTENT_QUOTA_EXCEEDED", 1), (507, "STORAGE_FULL", 0)]
)
def test_an_upload_is_given_up_only_where_going_on_later_makes_no_sense(status, code, given_up):
    large = upload_of(os.urandom(2 * PART))
    answers = in_turn(state(PART, large.size), refusal(status, code))
    with scripted(
        large, GET_UPLOAD=state(0, None), PUT_UPLOAD=answers, DELETE_UPLOAD=state(0, None)
    ) as server:
        with pytest.raises((Conflict, ServerUnavailable), match=code):
            send(server, large)
        assert (requests(server, "PUT", large), requests(server, "DELETE", large)) == (2, given_up)


def test_what_is_refused_for_good_gives_up_the_others_too_and_nobody_minds_an_older_server():
    others, refused = upload_of(os.urandom(2 * PART)), upload_of(os.urandom(2 * PART + 1))
    path = "/v1/content/blobs/{}/upload"
    asked = Reply(body={"missing": [others.sha256, refused.sha256], "max_blob_bytes": 1 << 20})
    routes = {MISSING: asked, f"PUT {path.format(refused.sha256)}": refusal(409, "CONTENT_QUOTA_EXCEEDED")}
    for each in (others, refused):
        routes[f"GET {path.format(each.sha256)}"] = state(0, None)
        routes[f"DELETE {path.format(each.sha256)}"] = refusal(405, "METHOD_NOT_ALLOWED")
    routes[f"PUT {path.format(others.sha256)}"] = state(PART, others.size)
    with FakeServer(routes) as server, Client(server.url, "key", retry=QUICK) as client:
        with pytest.raises(Conflict, match="CONTENT_QUOTA_EXCEEDED"):
            BlobUploads(client._transport).send([others, refused])
        assert requests(server, "DELETE", refused) == 1
        assert requests(server, "DELETE", others) == min(1, requests(server, "GET", others))


def test_an_upload_of_a_file_that_changed_is_given_up(uploads, client, tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(data := os.urandom(3 * PART))
    large = upload_from(path)
    path.write_bytes(data[:-1])
    with pytest.raises(ContentChanged):
        uploads.send([large])
    left = client._transport.call("GET", route("content", "blobs", large.sha256, "upload"))
    assert (left["offset"], left["size"]) == (0, None)


def test_a_server_that_still_finishes_is_waited_for(monkeypatch):
    monkeypatch.setattr(blobs, "_FINISHING_PAUSE_SECONDS", 0.001)
    large = upload_of(os.urandom(PART + 1))
    size = large.size
    answers = in_turn(state(PART, size), *[state(size, size)] * 30, state(size, size, stored=True))
    with scripted(large, GET_UPLOAD=state(0, None), PUT_UPLOAD=answers) as server:
        send(server, large)
    asked = [request for request in server.seen if request.method == "PUT"]
    assert Counter(request.query["offset"] for request in asked) == {"0": 1, str(PART): 1, str(size): 30}
    assert all(not request.body for request in asked[2:])


def test_a_server_that_lost_what_it_had_gets_it_again():
    large = upload_of(os.urandom(3 * PART))
    size = large.size
    lost = Reply(409, {"code": "UPLOAD_OFFSET_MISMATCH", "message": "lost", "errors": [], "offset": 0})
    answers = in_turn(
        state(PART, size), lost, state(PART, size), state(2 * PART, size), state(size, size, stored=True)
    )
    with scripted(large, GET_UPLOAD=state(0, None), PUT_UPLOAD=answers) as server:
        send(server, large)
    asked = [int(request.query["offset"]) for request in server.seen if request.method == "PUT"]
    assert asked == [0, PART, 0, PART, 2 * PART]


def test_an_upload_of_another_size_is_begun_anew():
    large = upload_of(os.urandom(PART + 5))
    with scripted(
        large, GET_UPLOAD=state(700, 70_000), PUT_UPLOAD=state(large.size, large.size, stored=True)
    ) as server:
        send(server, large)
    assert server.seen[-1].query["offset"] == "0"


@pytest.mark.parametrize(
    "answer", [state(5, 2 * PART), Reply(body={"offset": "all"}), Reply(body={"offset": -1}), Reply(body=[])]
)
def test_a_server_that_makes_no_sense_is_given_up(answer):
    large = upload_of(os.urandom(2 * PART))
    with (
        scripted(large, GET_UPLOAD=state(0, None), PUT_UPLOAD=answer) as server,
        pytest.raises(InvalidAnswer),
    ):
        send(server, large)


def test_bytes_that_change_on_the_wire_are_not_the_files_fault():
    small = upload_of(b"some bytes")
    with (
        scripted(small, PUT=refusal(409, "CONTENT_HASH_MISMATCH")) as server,
        pytest.raises(IntegrityError, match="other bytes reached the server"),
    ):
        send(server, small)
