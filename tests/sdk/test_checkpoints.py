"""``client.checkpoints``: lists, verified downloads over URLs that expire, deletion that is waited for."""

from __future__ import annotations

import random

import pytest

from support import documents
from support.fake_server import Reply, in_turn, refusal
from trainshed.sdk import (
    Conflict,
    IntegrityError,
    InvalidAnswer,
    NotFound,
    TrainshedError,
    UnsafeName,
    WaitTimeout,
)

ID = documents.CHECKPOINT_ID
LIST = "GET /v1/jobs/checkpoints"
ONE = f"GET /v1/jobs/checkpoints/{ID}"
SIGN = "GET /v1/jobs/checkpoints/download"
DELETE = f"DELETE /v1/jobs/checkpoints/{ID}"
OPERATION = "GET /v1/projects/default/operations/op_01KB7Q3V9E8Z6R5T4W3X2Y1M0N"
BIG = random.Random(11).randbytes(300_000)
FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": BIG, "deep/rng.bin": b""}
PLACES = {
    "adapter_config.json": f"/v1/downloads/{ID}/adapter_config.json",
    "adapter_model.safetensors": f"/v1/downloads/{ID}/adapter_model.safetensors",
    "deep/rng.bin": f"/v1/downloads/{ID}/deep%2Frng.bin",
}


def signed(base="https://elsewhere.example/team"):
    """Answers URLs that tell how often was asked for them."""
    count = 0

    def handler(_):
        nonlocal count
        count += 1
        urls = {name: f"{base}{path}?key=k&signature=s{count}" for name, path in PLACES.items()}
        return Reply(body={"checkpoint_id": ID, "urls": urls, "expires_at": documents.NOW})

    return handler


def whole(content, **options):
    return Reply(200, content, **options)


@pytest.fixture
def holding(serve):
    """A server with one Checkpoint; ``routes`` replace its own."""

    def make(routes=None, files=FILES):
        served = {f"GET {PLACES[name]}": whole(content) for name, content in files.items() if name in PLACES}
        own = {ONE: Reply(body=documents.checkpoint(files)), SIGN: signed(), **served}
        return serve(own | (routes or {}))

    return make


def test_a_checkpoint_is_read_with_its_lineage_and_files(holding):
    _, client = holding()
    found = client.checkpoints.get(f"envloop://{documents.JOB_ID}/{ID}")
    assert (found.checkpoint_id, found.job_id, found.trial_id) == (ID, documents.JOB_ID, documents.TRIAL_ID)
    assert (found.step, found.parent, found.pinned) == (500, None, False)
    assert {file.name: file.size for file in found.files} == {n: len(c) for n, c in FILES.items()}
    assert found.size == len(BIG) + 2
    assert found.created_at is not None


def test_lists_are_walked_page_by_page_and_narrowed(serve):
    other = documents.checkpoint(checkpoint_id="ckpt_other")

    def pages(request):
        last = "cursor" in request.query
        return Reply(
            body=documents.page(other) if last else documents.page(documents.checkpoint(), cursor="c")
        )

    server, client = serve({LIST: pages})
    found = list(client.checkpoints.iter_all(job_id="job_1", trial_id="trial_1"))
    assert [each.checkpoint_id for each in found] == [ID, "ckpt_other"]
    first, second = server.asked(LIST)
    assert first.query == {"job_id": "job_1", "run_id": "trial_1", "limit": "100"}
    assert second.query["cursor"] == "c"


def test_a_list_that_never_ends_is_told(serve):
    _, client = serve({LIST: Reply(body=documents.page(documents.checkpoint(), cursor="same"))})
    with pytest.raises(InvalidAnswer, match="does not end"):
        list(client.checkpoints.iter_all())


def test_every_file_arrives_verified_from_the_server_in_use(holding, tmp_path):
    server, client = holding()
    moves = []
    results = client.checkpoints.download(
        ID, tmp_path / "new", progress=lambda file, done: moves.append((file.name, done))
    )
    assert [result.artifact.name for result in results] == list(FILES)
    for name, content in FILES.items():
        assert (tmp_path / "new" / name).read_bytes() == content
    assert ("adapter_model.safetensors", len(BIG)) in moves
    assert len(server.asked(SIGN)) == 1
    (request,) = server.asked(f"GET {PLACES['adapter_model.safetensors']}")
    assert request.query == {"key": "k", "signature": "s1"}


def test_named_files_alone_may_be_fetched(holding, tmp_path):
    _, client = holding()
    (result,) = client.checkpoints.download(ID, tmp_path, names=["adapter_config.json"] * 2)
    assert result.path == tmp_path / "adapter_config.json"
    with pytest.raises(NotFound, match="no file other") as caught:
        client.checkpoints.download(ID, tmp_path, names=["other"])
    assert f"trainshed checkpoint show {ID}" in caught.value.hint


def test_a_url_that_expired_is_asked_for_anew_and_gone_on_with(holding, tmp_path):
    place = PLACES["adapter_model.safetensors"]
    expired = refusal(403, "URL_EXPIRED", "this URL has expired")

    def rest(request):
        start = int(request.headers["range"].removeprefix("bytes=").rstrip("-"))
        headers = {"Content-Range": f"bytes {start}-{len(BIG) - 1}/{len(BIG)}"}
        return Reply(206, BIG[start:], headers)

    first = iter([Reply(200, BIG, cut_after=100_000), expired])
    server, client = holding({f"GET {place}": lambda request: next(first, None) or rest(request)})
    (result,) = client.checkpoints.download(ID, tmp_path, names=["adapter_model.safetensors"])
    assert result.path is not None, result.error
    assert result.path.read_bytes() == BIG
    signatures = [request.query["signature"] for request in server.asked(f"GET {place}")]
    assert signatures == ["s1", "s1", "s2"]
    assert server.asked(f"GET {place}")[-1].headers["range"] == "bytes=100000-"


def test_a_second_refusal_is_the_answer(holding, tmp_path):
    place = PLACES["adapter_config.json"]
    server, client = holding({f"GET {place}": refusal(403, "URL_EXPIRED")})
    (result,) = client.checkpoints.download(ID, tmp_path, names=["adapter_config.json"])
    assert result.error is not None
    assert result.error.code == "URL_EXPIRED"
    assert len(server.asked(SIGN)) == 2


def test_bytes_that_are_not_the_announced_ones_are_refused(holding, tmp_path):
    _, client = holding({f"GET {PLACES['adapter_config.json']}": whole(b"[]")})
    results = {each.artifact.name: each for each in client.checkpoints.download(ID, tmp_path)}
    assert isinstance(results["adapter_config.json"].error, IntegrityError)
    assert not (tmp_path / "adapter_config.json").exists()
    assert results["adapter_model.safetensors"].path is not None


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../b", "a\\b", ""])
def test_a_name_that_would_leave_the_folder_stops_everything(holding, tmp_path, name):
    _, client = holding(files={"adapter_config.json": b"{}", name: b"x"})
    with pytest.raises((UnsafeName, InvalidAnswer)):
        client.checkpoints.download(ID, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("urls", [{}, {"adapter_config.json": "https://elsewhere.example/x"}, None])
def test_urls_that_are_none_of_this_api_are_an_invalid_answer(holding, tmp_path, urls):
    _, client = holding({SIGN: Reply(body={"checkpoint_id": ID, "urls": urls})})
    (result,) = client.checkpoints.download(ID, tmp_path, names=["adapter_config.json"])
    assert isinstance(result.error, InvalidAnswer)


def test_urls_for_other_programs_are_given_as_they_are(holding):
    _, client = holding()
    urls = client.checkpoints.urls(f"envloop://{documents.JOB_ID}/{ID}")
    assert urls["deep/rng.bin"].startswith("https://elsewhere.example/team/v1/downloads/")


def test_a_deletion_that_takes_a_while_is_waited_for(serve):
    pending = documents.receipt("RUNNING")
    server, client = serve(
        {
            DELETE: Reply(body=pending),
            OPERATION: in_turn(Reply(body=pending), Reply(body=documents.receipt())),
        }
    )
    assert client.checkpoints.delete(ID)["status"] == "SUCCEEDED"
    assert len(server.asked(OPERATION)) == 2
    assert client.checkpoints.delete(ID, wait=False)["status"] == "RUNNING"
    with pytest.raises(WaitTimeout):
        serve({DELETE: Reply(body=pending), OPERATION: Reply(body=pending)})[1].checkpoints.delete(
            ID, timeout=0
        )


def test_a_deletion_that_failed_is_an_error(serve):
    _, client = serve({DELETE: Reply(body=documents.receipt("BLOCKED"))})
    with pytest.raises(TrainshedError, match="BLOCKED"):
        client.checkpoints.delete(ID)


def test_a_lost_answer_to_a_deletion_is_asked_for_again(serve):
    server, client = serve({DELETE: in_turn(Reply(status=0), Reply(body=documents.receipt()))})
    assert client.checkpoints.delete(ID)["status"] == "SUCCEEDED"
    assert len(server.asked(DELETE)) == 2


def test_what_is_in_use_is_a_conflict(serve):
    _, client = serve({DELETE: refusal(409, "RESOURCE_IN_USE", "it is pinned")})
    with pytest.raises(Conflict, match="pinned"):
        client.checkpoints.delete(ID)


def test_pinning_answers_the_checkpoint(serve):
    pin, unpin = (f"POST /v1/jobs/checkpoints/{ID}/{word}" for word in ("pin", "unpin"))
    _, client = serve(
        {pin: Reply(body=documents.checkpoint(pinned=True)), unpin: Reply(body=documents.checkpoint())}
    )
    assert client.checkpoints.pin(ID).pinned
    assert not client.checkpoints.unpin(ID).pinned
