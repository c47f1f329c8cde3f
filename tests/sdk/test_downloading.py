"""Downloads: whole, verified, and never outside the folder."""

from __future__ import annotations

import random

import pytest

from support import documents
from support.fake_server import DROP, Reply, in_turn
from trainshed.sdk import IntegrityError, LocalFileError, NotFound, UnsafeName

LIST = f"GET /v1/trials/{documents.TRIAL_ID}/artifacts"
CONTENT = random.Random(7).randbytes(700_000)


def content_route(item):
    return f"GET /v1/trials/{documents.TRIAL_ID}/artifacts/{item['artifact_id']}/content"


def ranged(content, faults=()):
    """Serves ``content`` with ranges; each fault is a number of bytes after which the connection is cut."""
    left = list(faults)

    def handler(request):
        start = 0
        headers = {}
        if "range" in request.headers:
            start = int(request.headers["range"].removeprefix("bytes=").rstrip("-"))
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return Reply(206 if start else 200, content[start:], headers, cut_after=left.pop(0) if left else None)

    return handler


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def serve_one(serve, item, reply):
    return serve({LIST: Reply(body=documents.page(item)), content_route(item): reply})


def test_E73_every_artifact_arrives_whole_and_verified_in_its_place(serve, tmp_path):
    items = {f"out/deep/file-{number}": CONTENT[: number * 1000] for number in range(6)} | {"top": CONTENT}
    artifacts = [documents.artifact(name, content) for name, content in items.items()]
    routes = {content_route(item): Reply(body=items[item["name"]]) for item in artifacts}
    first, *rest = artifacts

    def pages(request):
        return Reply(
            body=documents.page(*rest) if "cursor" in request.query else documents.page(first, cursor="c")
        )

    _, client = serve({LIST: pages, **routes})
    moves = []
    results = client.trials.download(
        documents.TRIAL_ID,
        tmp_path / "new",
        progress=lambda artifact, done: moves.append((artifact.name, done)),
    )
    assert [result.artifact.name for result in results] == list(items)
    assert all(result.path.read_bytes() == items[result.artifact.name] for result in results)
    assert files_below(tmp_path / "new") == sorted(items)
    assert ("top", len(CONTENT)) in moves


def test_a_cut_download_continues_where_it_ended(serve, tmp_path):
    item = documents.artifact("model.bin", CONTENT)
    server, client = serve_one(serve, item, ranged(CONTENT, faults=[300_000, 200_000]))
    (result,) = client.trials.download(documents.TRIAL_ID, tmp_path)
    assert result.path.read_bytes() == CONTENT
    asked = [request.headers.get("range") for request in server.asked(content_route(item))]
    assert asked == [None, "bytes=300000-", "bytes=500000-"]
    assert server.seen[-1].headers["if-range"] == f'"{item["sha256"]}"'


def test_a_later_call_continues_what_an_earlier_one_left(serve, tmp_path):
    item = documents.artifact("model.bin", CONTENT)
    server, client = serve_one(serve, item, ranged(CONTENT, faults=[100_000, 0, 0, 0]))
    (failed,) = client.trials.download(documents.TRIAL_ID, tmp_path)
    assert failed.error.again
    assert [path.name.startswith(".") for path in tmp_path.iterdir()] == [True]
    (result,) = client.trials.download(documents.TRIAL_ID, tmp_path)
    assert server.seen[-1].headers["range"] == "bytes=100000-"
    assert result.path.read_bytes() == CONTENT
    assert files_below(tmp_path) == ["model.bin"]


def test_a_server_without_ranges_starts_over(serve, tmp_path):
    item = documents.artifact("model.bin", CONTENT)
    whole = in_turn(Reply(200, CONTENT, cut_after=1000), Reply(200, CONTENT))
    _, client = serve_one(serve, item, whole)
    (result,) = client.trials.download(documents.TRIAL_ID, tmp_path)
    assert result.path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    "sent",
    [CONTENT[:-1], CONTENT + b"x", b"x" + CONTENT[1:], b""],
    ids=["too short", "too long", "one byte differs", "empty"],
)
def test_bytes_that_are_not_the_announced_ones_leave_nothing(serve, tmp_path, sent):
    _, client = serve_one(serve, documents.artifact("model.bin", CONTENT), Reply(body=sent))
    (result,) = client.trials.download(documents.TRIAL_ID, tmp_path)
    assert isinstance(result.error, IntegrityError)
    assert files_below(tmp_path) == []


def test_an_empty_artifact_is_fetched_like_any_other(serve, tmp_path):
    _, client = serve_one(serve, documents.artifact("empty", b""), Reply(body=b""))
    (result,) = client.trials.download(documents.TRIAL_ID, tmp_path)
    assert result.path.read_bytes() == b""


@pytest.mark.parametrize(
    "name",
    ["../x", "a/../../x", "/etc/x", "a//b", ".", "a/.", "C:/x", "a\\b", "a\nb", "a\x00b", "a/\x7f"],
)
def test_a_name_that_could_leave_the_folder_is_refused_before_anything_is_written(serve, tmp_path, name):
    good = documents.artifact("good", b"1")
    routes = {LIST: Reply(body=documents.page(good, documents.artifact(name, b"1")))}
    _, client = serve({**routes, content_route(good): Reply(body=b"1")})
    with pytest.raises(UnsafeName):
        client.trials.download(documents.TRIAL_ID, tmp_path / "to")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("names", [("a", "a"), ("a", "a/b")], ids=["twice", "file and folder"])
def test_names_that_meet_are_refused(serve, tmp_path, names):
    _, client = serve({LIST: Reply(body=documents.page(*(documents.artifact(name, b"1") for name in names)))})
    with pytest.raises(UnsafeName):
        client.trials.download(documents.TRIAL_ID, tmp_path)


def test_links_in_the_way_are_never_followed(serve, tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "to"
    outside.mkdir()
    folder.mkdir()
    (outside / "file").write_bytes(b"precious")
    (folder / "dir").symlink_to(outside)
    (folder / "link").symlink_to(outside / "file")
    items = [documents.artifact("dir/file", b"1"), documents.artifact("link", b"1")]
    routes = {content_route(item): Reply(body=b"1") for item in items}
    _, client = serve({LIST: Reply(body=documents.page(*items)), **routes})
    results = client.trials.download(documents.TRIAL_ID, folder, overwrite=True)
    assert all(isinstance(result.error, UnsafeName) for result in results)
    assert (outside / "file").read_bytes() == b"precious"
    assert files_below(outside) == ["file"]


def test_a_planted_part_file_that_is_a_link_is_not_written_through(serve, tmp_path):
    item = documents.artifact("model.bin", CONTENT)
    server, client = serve_one(serve, item, ranged(CONTENT, faults=[10, 0, 0, 0]))
    client.trials.download(documents.TRIAL_ID, tmp_path)
    (part,) = tmp_path.iterdir()
    part.unlink()
    victim = tmp_path.with_name("victim")
    victim.write_bytes(b"precious")
    part.symlink_to(victim)
    (result,) = client.trials.download(documents.TRIAL_ID, tmp_path)
    assert isinstance(result.error, UnsafeName)
    assert victim.read_bytes() == b"precious"
    assert len(server.asked(content_route(item))) == 4


def test_other_content_is_kept_unless_overwriting_is_allowed(serve, tmp_path):
    (tmp_path / "model.bin").write_bytes(b"mine")
    _, client = serve_one(serve, documents.artifact("model.bin", b"new"), Reply(body=b"new"))
    (refused,) = client.trials.download(documents.TRIAL_ID, tmp_path)
    assert isinstance(refused.error, LocalFileError)
    assert (tmp_path / "model.bin").read_bytes() == b"mine"
    (done,) = client.trials.download(documents.TRIAL_ID, tmp_path, overwrite=True)
    assert done.path.read_bytes() == b"new"


def test_a_file_that_is_there_already_is_not_fetched_again(serve, tmp_path):
    item = documents.artifact("model.bin", b"same")
    (tmp_path / "model.bin").write_bytes(b"same")
    server, client = serve_one(serve, item, DROP)
    (result,) = client.trials.download(documents.TRIAL_ID, tmp_path)
    assert result.path
    assert server.asked(content_route(item)) == []


def test_what_the_server_does_not_hold_is_named_as_skipped(serve, tmp_path):
    item = documents.artifact("lost", b"1", upload_state="failed", sha256=None)
    _, client = serve({LIST: Reply(body=documents.page(item))})
    (result,) = client.trials.download(documents.TRIAL_ID, tmp_path)
    assert result.skipped


def test_single_files_are_chosen_by_name(serve, tmp_path):
    items = [documents.artifact("a", b"1"), documents.artifact("b", b"2")]
    routes = {content_route(item): Reply(body=b"12"[i : i + 1]) for i, item in enumerate(items)}
    _, client = serve({LIST: Reply(body=documents.page(*items)), **routes})
    client.trials.download(documents.TRIAL_ID, tmp_path, names=["b"])
    assert files_below(tmp_path) == ["b"]
    with pytest.raises(NotFound, match="no artifact c") as caught:
        client.trials.download(documents.TRIAL_ID, tmp_path, names=["c"])
    assert f"trainshed trial artifacts {documents.TRIAL_ID}" in caught.value.hint


def test_a_folder_that_cannot_be_one_is_named(serve, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    _, client = serve_one(serve, documents.artifact("a", b"1"), Reply(body=b"1"))
    with pytest.raises(LocalFileError, match="file"):
        client.trials.download(documents.TRIAL_ID, tmp_path / "file")
