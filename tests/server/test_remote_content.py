"""A whole server over S3: what is read, kept, found damaged, collected and refused, and the cache's size."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support import lora
from support.contents import published_on
from support.profiles import ENTRYPOINT, recipe_files, runner_toml
from support.runners import publish, repository
from support.s3 import BUCKET, REGION, S3Server
from support.server import ServerProcess
from support.waiting import wait_until
from trainshed import Client, Conflict, NotFound
from trainshed.model.content import ContentKind

PREFIX = "whole"
CACHE_BYTES = 2 << 20
PART = 1 << 20
MAIN = """
mkdir -p out
(cd "$TRAINSHED_INPUTS/data" && find . -type f | sort | xargs sha256sum) > out/seen.txt
if touch "$TRAINSHED_INPUTS/data/new" 2> out/refused.txt; then echo written >> out/seen.txt; fi
cp -r adapter/. out/
"""


@pytest.fixture(scope="module")
def remote(moto: S3Server, tmp_path_factory) -> Iterator[ServerProcess]:
    place = tmp_path_factory.mktemp("remote")
    config = place / "remote.toml"
    config.write_text(
        f'[content]\nurl = "s3://{BUCKET}/{PREFIX}"\nendpoint = "{moto.endpoint}"\nregion = "{REGION}"\n'
        f"allow_http = true\ncache_bytes = {CACHE_BYTES}\n[http]\nmax_blob_bytes = {PART}\n"
    )
    options = ("--config", str(config))
    server = ServerProcess(place / "server", options=options, environment=moto.environment).start()
    repository(
        place / "runner",
        {
            "runner.toml": runner_toml("envloop.train-recipe/1", entrypoint=ENTRYPOINT, outputs=("out/**",)),
            "main.sh": MAIN,
            **lora.adapter("adapter", fill=7),
        },
    )
    publish(server, place / "runner", "team/reader")
    published_on(server, ContentKind.RECIPES, "team/recipe", recipe_files())
    yield server
    server.stop()


@pytest.fixture
def client(remote, tmp_path, monkeypatch) -> Iterator[Client]:
    monkeypatch.setenv("TRAINSHED_HOME", str(tmp_path / "home"))
    with Client(remote.url, remote.key) as opened:
        yield opened


@pytest.fixture(scope="module")
def bucket(moto) -> Bucket:
    return Bucket(moto)


class Bucket:
    """The objects of this server, as AWS's own client sees them."""

    def __init__(self, server: S3Server) -> None:
        self._client = server.client()

    def key(self, digest: str) -> str:
        return f"{PREFIX}/sha256/{digest[:2]}/{digest}"

    def holds(self, data: bytes) -> bool:
        digest = sha256(data)
        listed = self._client.list_objects_v2(Bucket=BUCKET, Prefix=self.key(digest))
        return [each["Key"] for each in listed.get("Contents", ())] == [self.key(digest)]

    def spoil(self, data: bytes, instead: bytes | None) -> None:
        where = {"Bucket": BUCKET, "Key": self.key(sha256(data))}
        if instead is None:
            self._client.delete_object(**where)
        else:
            self._client.put_object(**where, Body=instead)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def folder(place: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return place


def read(client: Client, name: str) -> Any:
    """The Trial of a Job that read this Dataset, once all that it held is released."""
    pinned = {
        kind: {"uri": version.uri.partition("@")[0] + f"@{version.manifest_sha256}",
               "manifest_sha256": version.manifest_sha256}
        for kind, version in (
            ("recipe", client.recipes.version("team/recipe")), ("data", client.datasets.version(name)),
        )
    }  # fmt: skip
    profile = {
        "schema": "envloop.job-profile/v2",
        "recipe": pinned["recipe"],
        "parameters": {"steps": 1},
        "inputs": {"data": pinned["data"]},
        "plugins": [],
    }
    spec = {"runner": "team/reader@main", "profile": profile, "resources": {"gpu_type": "H100", "gpus": 1}}
    job = client.training_jobs.submit({"spec": spec})
    job = client.jobs.wait(job.job_id, timeout=60, released=True)
    assert job.succeeded, job.raw
    return job.trials[0]


def test_P7_a_trial_reads_a_dataset_out_of_s3_and_leaves_outputs_and_a_checkpoint(
    client, remote, bucket, tmp_path
):
    files = {"large.bin": os.urandom(PART * 2 + 77), "deep/ü.txt": b"small", "empty": b""}
    done = client.datasets.publish(folder(tmp_path / "tree", files), name="s3/read", version="1")
    assert (done.uploaded, all(map(bucket.holds, files.values()))) == (3, True)
    client.datasets.download("s3/read@1", tmp_path / "copy")
    assert {name: (tmp_path / "copy" / name).read_bytes() for name in files} == files
    assert client.datasets.publish(tmp_path / "copy", name="s3/read", version="2").uploaded == 0
    asked = remote.http().post("/v1/content/blobs/missing", {"sha256": []}).json
    assert asked["max_blobs"] == 128, "each is a request of its own to the store"

    trial = read(client, "s3/read@1")
    client.trials.download(trial.trial_id, tmp_path / "out")
    seen = (tmp_path / "out/out/seen.txt").read_bytes()
    told = {line[66:].removeprefix("./"): line[:64] for line in seen.decode().splitlines()}
    assert told == {name: sha256(data) for name, data in files.items()}
    assert (tmp_path / "out/out/refused.txt").read_text()

    [checkpoint] = client.checkpoints.list(job_id=trial.raw["job_id"])
    assert all(result.path for result in client.checkpoints.download(checkpoint.uri, tmp_path / "got"))
    expected = lora.adapter("", fill=7)
    assert {name: (tmp_path / "got" / name).read_bytes() for name in expected} == expected
    assert bucket.holds(seen)
    assert all(map(bucket.holds, expected.values()))
    kept = {place.name for place in (remote.data / "content").rglob("*") if place.is_file()}
    assert kept.isdisjoint(map(sha256, [*files.values(), seen, *expected.values()])), "blobs lie in S3 alone"


@pytest.mark.parametrize(
    ("instead", "problem", "said"),
    [
        (b"dbmaged", "changed", "its 7 bytes have"),
        (b"dam", "changed", "its 3 bytes have"),
        (None, "missing", "its bytes are gone"),
    ],
)
def test_E105_verification_finds_what_was_damaged_in_the_bucket_and_publishing_again_heals(
    client, bucket, tmp_path, instead, problem, said
):
    content = f"damaged {problem} {instead}".encode()
    tree = folder(tmp_path / "tree", {"a": content, "b": b"whole"})
    name = f"s3/damaged-{len(instead or b'')}@1"
    client.datasets.publish(tree, name=name.removesuffix("@1"), version="1")
    assert [each["type"] for each in client.content.verify(name)][-1] == "end"
    bucket.spoil(content, instead)
    [damage] = [each for each in client.content.verify(name) if each["type"] == "damage"]
    assert (damage["sha256"], damage["problem"]) == (sha256(content), problem)
    assert said in damage["message"]
    assert damage["affected"]["versions"]["shown"] == [f"datasets {name}"]
    assert client.content.take_out(damage["sha256"])["damaged"] is True
    (tree / "a").touch()
    client.datasets.publish(tree, name=name.removesuffix("@1"), version="1")
    assert bucket.holds(content)
    *_, end = client.content.verify(name)
    assert end["damaged"] == 0


def test_garbage_is_removed_from_the_bucket_and_what_is_needed_stays(client, remote, bucket, tmp_path):
    shared, alone = os.urandom(64), os.urandom(PART + 5)
    client.models.publish(folder(tmp_path / "one", {"s": shared, "a": alone}), name="s3/gone", version="1")
    client.models.publish(folder(tmp_path / "two", {"s": shared}), name="s3/kept", version="1")
    client.models.withdraw("s3/gone@1")
    passed(client)
    assert bucket.holds(alone), "it was used a moment ago"
    with sqlite3.connect(remote.data / "trainshed.sqlite") as database:
        database.execute("UPDATE blobs SET touched_at = 1, created_at = 1")
        database.execute("UPDATE manifests SET created_at = 1")
        database.execute("UPDATE content_versions SET withdrawn_at = 1 WHERE withdrawn_at IS NOT NULL")
    database.close()
    assert passed(client)["blobs"] >= 2
    assert (bucket.holds(alone), bucket.holds(shared)) == (False, True)
    assert b"".join(client.models.read_file("s3/kept@1", "s")) == shared
    client.models.publish(tmp_path / "one", name="s3/gone", version="1")
    assert bucket.holds(alone), "publishing brings it back"


def passed(client: Client) -> Mapping[str, Any]:
    """A pass of the collector that was asked for now, once it is over."""
    asked = client.content.collect_garbage()

    def over() -> Mapping[str, Any] | None:
        state = client.content.passes()["asked"]
        return state if state["request_id"] == asked["request_id"] and state["state"] == "done" else None

    return wait_until(over, 60, "the pass of the collector")


def test_a_quota_refuses_before_anything_reaches_the_bucket(client, remote, bucket, tmp_path):
    def quota(most: int | None) -> None:
        body = {"max_content_bytes": most}
        assert remote.http().request("PATCH", "/v1/admin/projects/default", body).status == 200

    used = remote.http().get("/v1/workspaces/default/projects/default/limits").json["content_bytes"]
    too_much = os.urandom(PART * 2)
    tree = folder(tmp_path / "tree", {"large.bin": too_much})
    quota(used + PART)
    try:
        with pytest.raises(Conflict) as refused:
            client.datasets.publish(tree, name="s3/quota", version="1")
        assert (refused.value.code, bucket.holds(too_much)) == ("CONTENT_QUOTA_EXCEEDED", False)
        with pytest.raises(NotFound):
            client.datasets.get("s3/quota")
    finally:
        quota(None)
    client.datasets.publish(tree, name="s3/quota", version="1")
    assert bucket.holds(too_much)


def test_the_cache_of_a_node_keeps_to_the_size_that_is_set_and_lets_the_longest_unused_go(
    client, remote, tmp_path
):
    """What is set holds for what no Trial uses: it goes by its last use, and is brought again when needed."""
    contents = {name: os.urandom(CACHE_BYTES * 2 // 3) for name in ("one", "two")}
    for name, data in contents.items():
        client.datasets.publish(folder(tmp_path / name, {"data.bin": data}), name=f"s3/{name}", version="1")

    def here() -> set[str]:
        cached = {place.name for place in (remote.data / "cache").rglob("*") if place.is_file()}
        return {name for name, data in contents.items() if sha256(data) in cached}

    def held() -> int:
        places = {each.stat() for each in (remote.data / "cache" / "blobs").rglob("*") if each.is_file()}
        return sum(info.st_size for info in {info.st_ino: info for info in places}.values())

    for name in ("one", "two", "one"):
        read(client, f"s3/{name}@1")
        wait_until(lambda name=name: here() == {name}, 60, f"only {name} to be cached, not {here()}")
        assert held() <= CACHE_BYTES
