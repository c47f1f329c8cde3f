"""``client.scripts`` and its neighbours against a real server: a project that runs on this machine."""

from __future__ import annotations

import hashlib
import io

import pytest

from trainshed.model.content import ContentFile, ContentKind, make_manifest
from trainshed.sdk import Client
from trainshed.sdk.blobs import Upload
from trainshed.sdk.errors import ApiError, ConfigurationError, NotFound, PermissionRefused, RequestRefused
from trainshed.sdk.source import MARKERS

PROGRAM = b"""
import os
print("it runs")
with open(os.path.join(os.environ["GPU_OUTPUT_DIR"], "result.txt"), "w") as file:
    file.write("42")
"""


@pytest.fixture
def client(module_server, monkeypatch):
    for name in MARKERS:
        monkeypatch.delenv(name, raising=False)
    with Client(module_server.url, module_server.key) as opened:
        yield opened


def packed(client, files):
    """Send files as a packer does; the bundle for a spec."""
    entries = [ContentFile(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in files.items()]
    manifest = make_manifest(ContentKind.DATASETS, entries)
    every = [*files.values(), manifest.encode()]
    client.blob_uploads.send(
        [
            Upload(hashlib.sha256(data).hexdigest(), len(data), lambda data=data: io.BytesIO(data), "x")
            for data in every
        ]
    )
    return {"manifest_sha256": manifest.sha256, "files": len(files), "bytes": sum(map(len, files.values()))}


def spec(client, folder, files=None, **values):
    bundle = packed(client, files or {"train.py": PROGRAM})
    facts = {
        "kind": "script",
        "project_dir": str(folder),
        "bundle": bundle,
        "script": "train.py",
        "hours": 0.1,
    }
    return {**facts, **values}


def test_a_project_runs_on_this_machine_and_its_outputs_are_fetched(client, tmp_path):
    wanted = spec(client, tmp_path / "project", provider="local", smoke=True)
    plan = client.scripts.route(wanted)
    assert plan["route"]["outcome"] == "place"
    submitted = client.scripts.submit(wanted)
    assert submitted.submitted
    again = client.scripts.submit(wanted)
    assert (again.submitted, again.job.id) == (False, submitted.job.id)
    short = submitted.job.short_id
    done = client.scripts.wait(short, timeout=120)
    assert (done.state, done.provider) == ("done", "local"), done.raw
    words = [event["to"] for event in client.scripts.events(short) if event["kind"] == "transition"]
    assert words == ["queued", "routing", "provisioning", "running", "done"]
    lines = [line for page in client.scripts.follow(short, timeout=60) for line in page.lines]
    assert "it runs" in lines
    assert client.scripts.logs(short, tail=1000).lines == tuple(lines)
    [fetched] = client.scripts.fetch(short, tmp_path / "here", timeout=60)
    assert fetched.path.read_bytes() == b"42"
    assert [each["path"] for each in client.scripts.outputs(short)] == ["result.txt"]
    detail = client.scripts.get(short)
    assert [each["provider"] for each in detail.attempts] == ["local"]
    assert client.jobs.get(short).job_id == submitted.job.job_id
    assert submitted.job.id in {job.id for job in client.scripts.list(active=False)}


def test_a_Job_is_cancelled_while_it_runs(client, tmp_path):
    files = {"train.py": b"import time\nprint('up', flush=True)\ntime.sleep(600)\n"}
    job = client.scripts.submit(spec(client, tmp_path, files, provider="local")).job
    pages = client.scripts.follow(job.id, timeout=120)
    assert "up" in next(pages).lines
    assert client.scripts.cancel(job.id, source="cli").changed
    assert client.scripts.wait(job.id, timeout=120).state == "cancelled"
    assert not client.scripts.cancel(job.id).changed


def test_c6_what_an_agent_says_or_runs_counts_as_the_agents(client, tmp_path, monkeypatch):
    first = client.scripts.submit(spec(client, tmp_path / "a", hours=5), source="agent").job
    assert first.raw["source"] == "agent"
    monkeypatch.setenv("CLAUDECODE", "1")
    second = client.scripts.submit(spec(client, tmp_path / "b", hours=5), source="cli").job
    assert second.raw["source"] == "agent"
    for job in (first, second):
        found = client.scripts.get(job.id, wait_s=20, version=job.version).job
        while found.state in {"queued", "routing"}:
            found = client.scripts.get(job.id, wait_s=20, version=found.version).job
        assert found.state == "awaiting_approval", found.raw
        assert found.approval_id is not None
    with pytest.raises(PermissionRefused, match="agent"):
        client.approvals.answer(found.approval_id, approve=True, code="AAAA-AAAA")
    monkeypatch.delenv("CLAUDECODE")
    with pytest.raises(PermissionRefused):
        client.speak_as("agent").approvals.challenge(found.approval_id)
    client.speak_as("")
    questions = client.approvals.list(only_open=True)
    assert {first.job_id, second.job_id} <= {each["job_id"] for each in questions}
    assert client.approvals.get(found.approval_id)["reason"]
    for job in (first, second):
        client.scripts.cancel(job.id)


def test_refusals_are_those_of_the_tree(client, tmp_path):
    with pytest.raises(NotFound) as unknown:
        client.scripts.get("0123456789ab")
    assert unknown.value.code == "JOB_NOT_FOUND"
    with pytest.raises(RequestRefused) as bad:
        client.scripts.submit(spec(client, tmp_path, hours=-1, vram_gb=-1))
    assert {fault.path for fault in bad.value.faults} == {"spec.hours", "spec.vram_gb"}
    with pytest.raises(ApiError) as nowhere:
        client.scripts.route(spec(client, tmp_path, provider="kagle"))
    assert nowhere.value.code == "PROVIDER_NOT_FOUND"
    with pytest.raises(ConfigurationError):
        client.scripts.logs("0123456789ab", since="x:y")
    with pytest.raises(ConfigurationError):
        client.scripts.submit({}, source="robot")


def test_providers_rules_and_secrets_are_there(client):
    assert "local" in {each["name"] for each in client.providers.list()}
    assert client.providers.check("local")["health"] == "ok"
    assert "local" in {each["provider"] for each in client.providers.quota(refresh=True)["quota"]}
    assert client.approval_policy.get()["policy"]["version"] == 1
    client.secrets.put("WANDB_KEY", "v")
    assert [each["name"] for each in client.secrets.list()] == ["WANDB_KEY"]
    client.secrets.remove("WANDB_KEY")
    assert client.secrets.list().items == ()
