"""``job manifest`` and ``job rerun`` of packed projects and training tasks, on real servers."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.server import ServerProcess
from trainshed.cli.exits import Exit
from trainshed.model.content import ContentFile, ContentKind, make_manifest
from trainshed.sdk import Client
from trainshed.sdk.blobs import Upload
from trainshed.sdk.source import MARKERS

CANARY = "canary-7f3a91d2"
REQUIREMENTS = b"# nothing is needed\n"
TRAIN = {
    "requirements.txt": REQUIREMENTS,
    "train.py": b"""
import os, pathlib, sys
assert os.environ["HIDDEN_KEY"]
data = pathlib.Path(os.environ["GPU_DATA_DIR"], "numbers", "part.txt").read_text()
pathlib.Path(os.environ["GPU_OUTPUT_DIR"], "result").write_text(data + sys.argv[1])
""",
}
DATA = {"part.txt": b"1 2 3\n"}
Run = Callable[..., subprocess.CompletedProcess[str]]


def runner(server: ServerProcess) -> Run:
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TRAINSHED_", "ENVLOOP_")) and name not in MARKERS
    }

    def run(
        *arguments: str, status: int = 0, env: Mapping[str, str] | None = None, text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "trainshed", *arguments],
            input=text,
            capture_output=True,
            text=True,
            env={**own, **server.environment, **(env or {})},
            timeout=200,
            check=False,
        )
        assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture
def client(module_server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    for name in MARKERS:
        monkeypatch.delenv(name, raising=False)
    with Client(module_server.url, module_server.key) as opened:
        yield opened


@pytest.fixture
def run(module_server: ServerProcess) -> Run:
    return runner(module_server)


def sent(client: Client, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Send files as a packer does."""
    entries = [ContentFile(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in files.items()]
    manifest = make_manifest(ContentKind.DATASETS, entries)
    client.blob_uploads.send(
        [
            Upload(hashlib.sha256(data).hexdigest(), len(data), lambda data=data: io.BytesIO(data), "x")
            for data in (*files.values(), manifest.encode())
        ]
    )
    return {"manifest_sha256": manifest.sha256, "files": len(files), "bytes": sum(map(len, files.values()))}


def submitted(client: Client, folder: Path, **values: Any) -> Any:
    """A Job of a packed project with data, packages and a secret."""
    client.secrets.put("HIDDEN_KEY", CANARY)
    spec = {
        "kind": "script",
        "project_dir": str(folder),
        "bundle": sent(client, TRAIN),
        "script": "train.py",
        "args": ["4"],
        "hours": 0.1,
        "provider": "local",
        "secrets": ["HIDDEN_KEY"],
        "deps": {"kind": "requirements", "file": "requirements.txt"},
        "data": [{"mount": "numbers", **sent(client, DATA), "path": "data/numbers"}],
        **values,
    }
    return client.scripts.submit(spec).job


def test_the_manifest_of_a_packed_project_says_what_ran_and_holds_no_secret(client, run, tmp_path):
    job = submitted(client, tmp_path / "project")
    queued = client.jobs.manifest(job.job_id)
    assert client.scripts.wait(job.id, timeout=120).state == "done"
    done = run("job", "manifest", job.short_id, "--json")
    document = json.loads(done.stdout)
    assert (document["digest"], document["frozen"]) == (queued["digest"], queued["frozen"])
    [trial] = document["frozen"]["trials"]
    script = trial["script"]
    assert script["spec_hash"] == job.raw["spec_hash"]
    assert (script["owner"], script["source"]) == ("human:owner", "user")
    spec = script["spec"]
    assert spec["secrets"] == ["HIDDEN_KEY"]
    assert CANARY not in done.stdout
    counted = {key: spec["bundle"][key] for key in ("manifest_sha256", "files", "bytes")}
    assert counted == sent(client, TRAIN)
    assert spec["data"][0]["manifest_sha256"] == sent(client, DATA)["manifest_sha256"]
    assert spec["deps"] == {
        "kind": "requirements",
        "file": "requirements.txt",
        "packages": [],
        "python_requires": None,
        "sha256": hashlib.sha256(REQUIREMENTS).hexdigest(),
    }
    [outcome] = document["outcome"]["trials"]
    [attempt] = outcome["attempts"]
    assert (attempt["provider"], attempt["state"], attempt["exit_code"]) == ("local", "succeeded", 0)
    assert attempt["gpu_promised"] == "H100"
    assert attempt["gpu_model"] == "H100"
    assert attempt["resumed_from"] is None
    assert outcome["outputs"][0]["sha256"] == hashlib.sha256(b"1 2 3\n4").hexdigest()


def test_a_packed_project_runs_again_and_every_difference_is_shown(client, run, tmp_path):
    job = submitted(client, tmp_path / "project")
    again = json.loads(run("job", "rerun", job.short_id, "--wait", "--json").stdout)
    assert (again["same"], again["differences"]) == (True, [])
    assert again["job_id"] != job.job_id
    document = client.jobs.manifest(again["job_id"])
    [outcome] = document["outcome"]["trials"]
    assert outcome["outputs"][0]["sha256"] == hashlib.sha256(b"1 2 3\n4").hexdigest()
    # A request id that names a Job of the same arguments finds that, whatever files it ran.
    changed = {**TRAIN, "more.txt": b"more"}
    other = {"bundle": sent(client, changed), "project_dir": str(tmp_path / "project")}
    spec = {**document["frozen"]["trials"][0]["script"]["spec"], **other}
    client.scripts.submit(spec, request_id="taken")
    found = run("job", "rerun", job.job_id, "--request-id", "taken", "--json", status=Exit.DIFFERS)
    differences = {each["path"]: each for each in json.loads(found.stdout)["differences"]}
    bundle = differences.pop("trials[0].script.bundle.manifest_sha256")
    assert bundle["before"] == sent(client, TRAIN)["manifest_sha256"]
    assert (bundle["after"], bundle["runs"]) == (other["bundle"]["manifest_sha256"], True)
    assert {each["runs"] for each in differences.values()} == {False}


def test_an_agent_that_runs_it_again_is_judged_as_an_agent(client, run, tmp_path):
    job = submitted(client, tmp_path / "project", hours=5)
    client.scripts.cancel(job.id)
    done = run("job", "rerun", job.job_id, "--json", env={"TRAINSHED_AGENT": "1"})
    again = json.loads(done.stdout)
    assert [(each["path"], each["runs"]) for each in again["differences"]] == [
        ("trials[0].script.source", False)
    ]
    found = client.scripts.get(again["job_id"]).job
    while found.state in {"queued", "routing"}:
        found = client.scripts.get(found.id, wait_s=20, version=found.version).job
    assert found.state == "awaiting_approval"
    client.scripts.cancel(found.id)


def test_on_another_server_each_content_that_is_missing_is_named(client, run, new_server, tmp_path):
    job = submitted(client, tmp_path / "project")
    place = tmp_path / "manifest.json"
    run("job", "manifest", job.job_id, "--output", str(place))
    server = new_server("there").start()
    there = runner(server)
    done = there("job", "rerun", str(place), "--json", status=Exit.NOT_FOUND)
    bundle, data = sent(client, TRAIN)["manifest_sha256"], sent(client, DATA)["manifest_sha256"]
    told = json.loads(done.stderr.splitlines()[-1])
    where = f"`gpu run` against that server, in a folder that has the same files as {tmp_path}/project had"
    assert told["publish"] == [
        f"send the project (manifest {bundle}) there: {where}",
        f"send the data `numbers` (manifest {data}) there: {where}",
    ]
    with Client(server.url, server.key) as other:
        assert list(other.scripts.list()) == []
        sent(other, TRAIN)
        done = there("job", "rerun", str(place), status=Exit.NOT_FOUND)
        assert f"send the data `numbers` (manifest {data})" in done.stderr
        assert bundle not in done.stderr
        sent(other, DATA)
        other.secrets.put("HIDDEN_KEY", "of the other server")
    again = json.loads(there("job", "rerun", str(place), "--wait", "--json").stdout)
    assert (again["same"], again["differences"]) == (True, [])


TASK = f"""\
type: train
spec:
  kind: pytorch
  name_prefix: again
  image: host
  cmd: test "$SECRET" = {CANARY[:6]}"$TAIL" && cat /mnt/data/part.txt
  env:
  - {{name: SECRET, value: {CANARY}, hidden: true}}
  - {{name: TAIL, value: {CANARY[6:]}}}
  resource_type: ondemand
  instance: {{specs: [c1m1]}}
"""


def task(ok: Callable[..., Any], *settings: str) -> Any:
    words = [word for each in settings for word in ("--set", each)]
    return json.loads(ok("train", "create", "-f", "-", *words, "--wait", "--json", text=TASK).stdout)


@pytest.fixture
def dataset(run, tmp_path) -> str:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "part.txt").write_bytes(b"numbers\n")
    run("dataset", "publish", str(folder), "--name", "team/data", "--version", "1")
    return str(folder)


def test_a_task_runs_again_once_its_hidden_values_are_given(client, run, dataset, new_server, tmp_path):
    mount = "mounts=[{type: dataset, ref: team/data@1, mount_path: /mnt/data}]"
    made = task(run, mount)
    assert made["state"] == "Succeeded", made
    place = tmp_path / "manifest.json"
    run("job", "manifest", made["job_id"], "--output", str(place))
    assert CANARY not in place.read_text()
    document = json.loads(place.read_text())
    [trial] = document["frozen"]["trials"]
    variables = {each["name"]: each for each in trial["task"]["spec"]["env"]}
    assert (variables["SECRET"]["value"], variables["SECRET"]["hidden"]) == (None, True)
    assert trial["task"]["catalog_revision"] == 0, "a server without a catalogue of its own"
    [use] = trial["contents"]
    assert (use["role"], use["name"]) == ("mount:/mnt/data", "team/data")
    [outcome] = document["outcome"]["trials"]
    [attempt] = outcome["attempts"]
    assert attempt["cause"] == "initial"
    assert [(each["rank"], each["exit_code"]) for each in attempt["replicas"]] == [(0, 0)]

    before = len(list(client.tasks.list()))
    refused = run("job", "rerun", made["job_id"], status=Exit.USAGE)
    assert "no manifest holds the hidden values of a task; give env.SECRET" in refused.stderr
    assert "--hidden SECRET" in refused.stderr
    lacks = run("job", "rerun", made["job_id"], "--hidden", "SECRET", status=Exit.USAGE)
    assert "has no value of SECRET" in lacks.stderr
    more = ("--hidden", "SECRET", "--hidden", "TAIL")
    values = {"SECRET": CANARY, "TAIL": "x"}
    strange = run("job", "rerun", made["job_id"], *more, status=Exit.USAGE, env=values)
    assert "the task has no hidden TAIL" in strange.stderr
    assert len(list(client.tasks.list())) == before

    again = run("job", "rerun", str(place), "--hidden", "SECRET", "--wait", "--json", env=values)
    assert json.loads(again.stdout)["same"] is True
    assert [each["path"] for each in json.loads(again.stdout)["differences"]] == [
        "trials[0].task.mounts[/mnt/data].ref"
    ]
    assert CANARY not in again.stdout + again.stderr

    there = runner(new_server("there").start())
    options = ("--hidden", "SECRET", "--json")
    done = there("job", "rerun", str(place), *options, status=Exit.REFUSED, env=values)
    [publish] = json.loads(done.stderr.splitlines()[-1])["publish"]
    assert "`trainshed dataset publish PATH --name team/data`" in publish, "a rerun goes by digest"
    there("dataset", "publish", dataset, "--name", "team/data", "--version", "1")
    assert json.loads(there("job", "rerun", str(place), *options, env=values).stdout)["same"] is True
