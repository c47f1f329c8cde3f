"""A server whose blobs lie elsewhere: in a real S3 store, in another folder, or nowhere to be found."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from support.http import Http
from support.programs import artifact_names, bash
from support.runners import definition, publish, repository, trainshed
from support.s3 import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server
from support.server import ServerProcess
from support.waiting import wait_until
from trainshed import Client
from trainshed.sdk import RetryPolicy, blobs
from trainshed.sdk.blobs import BlobUploads, Upload
from trainshed.sdk.errors import ConnectionFailed
from trainshed.server.run import EXIT_FOLDER

DATA = os.urandom(1 << 20) * 3
NAME = hashlib.sha256(DATA).hexdigest()
PART = 1 << 20
Serve = Callable[..., ServerProcess]


@pytest.fixture
def serve(new_server, tmp_path) -> Serve:
    """A server with these settings of ``[content]``; not started."""

    def make(environment: Mapping[str, str] | None = None, **content: object) -> ServerProcess:
        lines = [f"{key} = {json.dumps(value)}" for key, value in content.items()]
        file = tmp_path / "trainshed.toml"
        file.write_text("\n".join(["[content]", *lines]))
        return new_server(options=["--config", str(file)], environment=environment)

    return make


def in_s3(
    serve: Serve, s3: S3Server, folder: str, environment: Mapping[str, str] | None = None
) -> ServerProcess:
    return serve(
        s3.environment if environment is None else environment,
        url=f"s3://{BUCKET}/{folder}",
        endpoint=s3.endpoint,
        region=REGION,
        allow_http=True,
        retry_seconds=1,
        timeout_seconds=5,
    )


def keys_below(s3: S3Server, folder: str) -> list[str]:
    found = s3.client().list_objects_v2(Bucket=BUCKET, Prefix=f"{folder}/")
    return [entry["Key"] for entry in found.get("Contents", ())]


def files_holding(folder: Path, secret: str) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if secret.encode() in path.read_bytes()]


def sent_in_parts(server: ServerProcess, monkeypatch) -> None:
    monkeypatch.setattr(blobs, "PART_BYTES", PART)
    with Client(server.url, server.key, retry=RetryPolicy(attempts=1)) as client:
        BlobUploads(client._transport).send([Upload(NAME, len(DATA), lambda: io.BytesIO(DATA), "a file")])


def test_P9_a_deployment_on_s3_publishes_runs_and_collects_and_shows_no_secret(
    serve, seaweedfs, tmp_path, monkeypatch
):
    server = in_s3(serve, seaweedfs, "whole").start()
    folder = tmp_path / "repo"
    files = {
        "runner.toml": definition(outputs=("out/**",)),
        "main.sh": "cat greeting; mkdir out; head -c 9000000 /dev/zero > out/large\n",
    }
    repository(folder, {**files, "greeting": "hello from s3\n"})
    published = publish(server, folder, "team/hello")
    job = server.submit({"request_id": "one", "spec": {"runner": published["selector"]}})
    trial = server.wait_for_release(job)[0]
    assert trial["exit_code"] == 0, trial
    assert any("hello from s3" in record["content"] for record in server.log_records(job))
    assert artifact_names(server, trial["trial_id"]) == ["out/large"]
    (item,) = server.http().get(f"/v1/trials/{trial['trial_id']}/artifacts").json["items"]
    where = f"/v1/trials/{trial['trial_id']}/artifacts/{item['artifact_id']}/content"
    assert server.http().get(where).body == bytes(9_000_000)
    assert server.http().get(where, headers={"Range": "bytes=8999990-"}).body == bytes(10)
    sent_in_parts(server, monkeypatch)
    assert f"whole/sha256/{NAME[:2]}/{NAME}" in keys_below(seaweedfs, "whole")
    assert not list((server.data / "content").rglob(NAME))

    system = server.http().get("/v1/system").json
    assert system["content_store"] == {
        "kind": "s3",
        "place": f"s3://{BUCKET}/whole at {seaweedfs.endpoint}",
    }
    doctor = trainshed(server, "doctor", "--json")
    assert json.loads(doctor.stdout)["server"]["content_store"]["kind"] == "s3"
    assert server.http().get("/readyz").json["checks"]["content"] == "ok"
    assert server.stop() == 0
    for secret in (SECRET_KEY, ACCESS_KEY):
        assert files_holding(server.data, secret) == []
        assert secret not in server.tail(10**7)
        assert secret not in json.dumps(system) + doctor.stdout + doctor.stderr


def test_a_store_that_goes_away_is_told_and_comes_back(serve, monkeypatch):
    s3 = S3Server("moto")
    try:
        server = in_s3(serve, s3, "away").start()
        s3.kill()
        ready = wait_until(lambda: _not_ready(server.http()), 30)
        assert "does not answer: Connection refused" in ready["content"]
        answer = server.http().request("PUT", f"/v1/content/blobs/{NAME}", raw=DATA)
        assert (answer.status, answer.code) == (503, "STORAGE_UNAVAILABLE")
        s3.start()
        s3.make_bucket(BUCKET)
        sent_in_parts(server, monkeypatch)
        assert keys_below(s3, "away")
        wait_until(lambda: server.http().get("/readyz").status == 200, 30)
    finally:
        s3.stop()


def _not_ready(http: Http) -> dict[str, str]:
    answer = http.get("/readyz")
    return answer.json["checks"] if answer.status == 503 else {}


def test_P9_refused_credentials_are_told_at_the_start_and_not_shown(serve, seaweedfs):
    wrong = {**seaweedfs.environment, "AWS_SECRET_ACCESS_KEY": "another-canary"}
    server = in_s3(serve, seaweedfs, "x", wrong)
    with pytest.raises(
        AssertionError,
        match=rf"ended with {EXIT_FOLDER}:\n(.*\n)*.* the store of content\.url .*refuses its credentials",
    ):
        server.start()
    assert "Traceback" not in server.tail(10**6)
    assert "another-canary" not in server.tail(10**6)
    assert files_holding(server.data, "another-canary") == []


def test_P1_an_upload_to_another_folder_goes_on_after_the_server_was_killed(serve, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    server = serve(url=f"file://{elsewhere}").start()
    monkeypatch.setattr(blobs, "PART_BYTES", 300_000)
    monkeypatch.setattr(blobs, "OUTAGE_SECONDS", 0.0)
    upload = Upload(NAME, len(DATA), lambda: io.BytesIO(DATA), "a file")
    told: list[int] = []

    def kill_at_half(done: int, total: int) -> None:
        told.append(done)
        if done > total / 2 and server.running:
            server.kill()

    with (
        Client(server.url, server.key, retry=RetryPolicy(attempts=1)) as client,
        pytest.raises(ConnectionFailed),
    ):
        BlobUploads(client._transport).send([upload], progress=kill_at_half)
    confirmed = told[-1]
    assert len(DATA) / 2 < confirmed < len(DATA)
    server.start()
    told.clear()
    with Client(server.url, server.key) as client:
        BlobUploads(client._transport).send([upload], progress=lambda done, _: told.append(done))
        assert told[0] >= confirmed
        assert BlobUploads(client._transport).missing([NAME]) == set()
    assert (elsewhere / "sha256" / NAME[:2] / NAME).read_bytes() == DATA
    assert list((elsewhere / "uploads").iterdir()) == []

    job = server.submit(bash("mkdir outputs; echo hi > outputs/file", "one"))
    trial = server.wait_for_release(job)[0]
    assert artifact_names(server, trial["trial_id"]) == ["outputs/file"]
    assert list((server.data / "content").rglob(NAME)) == []
    store = server.http().get("/v1/system").json["content_store"]
    assert store == {"kind": "file", "place": f"file://{elsewhere}"}
    assert server.http().get("/readyz").json["checks"]["content"] == "ok"
