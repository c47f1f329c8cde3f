"""E74, E106-E109, P7: what a training leaves can be fetched whole, and is what the next one goes on from."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import lora
from support.runners import definition, publish, repository
from support.server import ServerProcess
from support.waiting import wait_until
from trainshed import Client, Conflict, NotFound

RULES = "[checkpoints]\nresume = true\n"
SLOW = "import time\nwhile not __import__('pathlib').Path('/nowhere').exists(): time.sleep(0.05)\n"


@pytest.fixture(scope="module")
def client(module_server: ServerProcess) -> Iterator[Client]:
    with Client(module_server.url, module_server.key) as opened:
        yield opened


@pytest.fixture(scope="module")
def selector(module_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> str:
    return runner(module_server, tmp_path_factory.mktemp("runner"), "tests/lora")


def runner(
    server: ServerProcess, folder: Path, name: str, program: str = lora.PROGRAM, tables: str = RULES
) -> str:
    text = definition("main.py", outputs=("out/**",), params=("run_command",), tables=tables)
    repository(folder, {"runner.toml": text, "main.py": program})
    return str(publish(server, folder, name)["selector"])


def train(client: Client, selector: str, steps: str, **spec: object):
    """One finished Trial that saved at these steps."""
    spec = {"runner": selector, "command": steps, "timeout_seconds": 60, **spec}
    job = client.training_jobs.submit({"spec": spec})
    job = client.jobs.wait(job.job_id, timeout=60, released=True)
    assert job.succeeded, job.raw
    return job


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_E106_E109_P7_a_job_resumes_from_exactly_the_bytes_that_another_left(client, selector, tmp_path):
    first = train(client, selector, "1 2")
    newest, oldest = client.checkpoints.list(job_id=first.job_id)
    assert [newest.step, oldest.step] == [2, 1]
    assert [each.base_model for each in (newest, oldest)] == ["Qwen/Qwen3-0.6B"] * 2
    refs = client.jobs.result(first.job_id).raw["checkpoints"]
    assert [ref["checkpoint_id"] for ref in refs] == [oldest.checkpoint_id, newest.checkpoint_id]
    assert first.trials[0].cleanup_confirmed

    results = client.checkpoints.download(newest.uri, tmp_path / "got")
    assert all(result.path for result in results)
    here = digests(tmp_path / "got")
    assert here == {file.name: file.sha256 for file in newest.files}
    assert {"adapter_model.safetensors", "rng/state.bin", "trainer_state.json"} <= here.keys()
    weights = (tmp_path / "got" / "adapter_model.safetensors").read_bytes()
    assert struct.unpack("<8f", weights[-32:])[0] == 2.0

    second = train(client, selector, "10", resume_from=newest.uri)
    assert second.trials[0].raw["resume_from"] == newest.checkpoint_id
    log = "\n".join(record.text for record in client.jobs.logs(second.job_id))
    assert dict(re.findall(r"^resumed (\S+) ([0-9a-f]{64})$", log, re.MULTILINE)) == here
    (child,) = client.checkpoints.list(job_id=second.job_id)
    assert (child.step, child.parent, child.job_id) == (12, newest.checkpoint_id, second.job_id)
    assert client.trials.snapshot(second.trials[0].trial_id)["resume_from"] == newest.checkpoint_id


def test_E74_E108_artifacts_alone_are_no_checkpoint(client, module_server, tmp_path):
    program = (
        "import pathlib\np = pathlib.Path('out'); p.mkdir()\n(p / 'model.safetensors').write_bytes(b'x')\n"
    )
    job = train(client, runner(module_server, tmp_path / "r", "tests/plain", program), "1")
    assert client.jobs.result(job.job_id).raw["checkpoints"] == []
    assert [each.name for each in client.trials.artifacts(job.trials[0].trial_id)] == [
        "out/model.safetensors"
    ]


def test_a_program_cannot_change_what_it_resumes_from(client, selector, module_server, tmp_path):
    (found,) = client.checkpoints.list(job_id=train(client, selector, "7").job_id)
    before = {file.name: file.sha256 for file in found.files}
    program = (
        "import os, pathlib\n"
        "for path in pathlib.Path(os.environ['TRAINSHED_RESUME_FROM']).rglob('*'):\n"
        "    try:\n"
        "        path.write_bytes(b'spoiled') if path.is_file() else None\n"
        "    except OSError as error:\n"
        "        print('refused', error.errno)\n"
    )
    spoiler = runner(module_server, tmp_path / "r", "tests/spoiler", program)
    train(client, spoiler, "1", resume_from=found.checkpoint_id)
    client.checkpoints.download(found.checkpoint_id, tmp_path / "got")
    assert digests(tmp_path / "got") == before
    again = train(client, selector, "1", resume_from=found.checkpoint_id)
    log = "\n".join(record.text for record in client.jobs.logs(again.job_id))
    assert dict(re.findall(r"^resumed (\S+) ([0-9a-f]{64})$", log, re.MULTILINE)) == before


def test_a_checkpoint_in_use_is_kept_until_its_user_has_ended(client, selector, module_server, tmp_path):
    (found,) = client.checkpoints.list(job_id=train(client, selector, "3").job_id)
    waits = runner(module_server, tmp_path / "r", "tests/waits", SLOW)
    user = client.training_jobs.submit(
        {"spec": {"runner": waits, "resume_from": found.checkpoint_id, "timeout_seconds": 60}}
    )
    wait_until(lambda: client.jobs.get(user.job_id).status == "running", 30)
    with pytest.raises(Conflict, match=user.trials[0].trial_id):
        client.checkpoints.delete(found.checkpoint_id)
    client.jobs.stop(user.job_id)
    client.jobs.wait(user.job_id, timeout=60)
    assert client.checkpoints.delete(found.checkpoint_id)["status"] == "SUCCEEDED"
    with pytest.raises(NotFound, match="may have been deleted") as caught:
        client.training_jobs.submit({"spec": {"runner": selector, "resume_from": found.checkpoint_id}})
    assert caught.value.code == "CHECKPOINT_NOT_FOUND"


def test_a_download_that_has_begun_ends_well_although_the_checkpoint_is_deleted(
    client, module_server, tmp_path
):
    more = "Path('out/checkpoint-1/big.bin').write_bytes(bytes(range(256)) * 200_000)\nsys.exit(0)\n"
    program = lora.PROGRAM.replace("sys.exit(0)\n", more)
    job = train(client, runner(module_server, tmp_path / "r", "tests/big", program), "1")
    (found,) = client.checkpoints.list(job_id=job.job_id)
    announced = next(file.sha256 for file in found.files if file.name == "big.bin")
    url = client.checkpoints.urls(found.checkpoint_id)["big.bin"]
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=30) as answer:
        digest.update(answer.read(1000))
        client.checkpoints.delete(found.checkpoint_id)
        while piece := answer.read(1 << 20):
            digest.update(piece)
    assert digest.hexdigest() == announced
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(url, timeout=30)


def test_E107_a_damaged_adapter_stays_an_artifact_with_the_reason(client, module_server, tmp_path):
    program = lora.PROGRAM.replace('struct.pack("<Q", len(header))', 'struct.pack("<Q", 2**63)')
    assert program != lora.PROGRAM
    job = train(client, runner(module_server, tmp_path / "r", "tests/damaged", program), "1")
    assert client.jobs.result(job.job_id).raw["checkpoints"] == []
    said = [
        event.message for event in client.jobs.events(job.job_id) if event.code == "CHECKPOINT_NOT_REGISTERED"
    ]
    assert len(said) == 1
    assert str(2**63) in said[0]


def test_E72_rules_keep_the_best_by_a_declared_file_whatever_is_printed(client, module_server, tmp_path):
    rules = '[checkpoints]\nkeep_last = 1\nbest = {metric = "eval_loss", mode = "max", keep = 1}\n'
    job = train(client, runner(module_server, tmp_path / "r", "tests/rules", tables=rules), "1 2 3")
    rows = {each.step: each.raw for each in client.checkpoints.iter_all(job_id=job.job_id)}
    values = {step: row["metric_value"] for step, row in rows.items()}
    assert values == {step: 1 / (1 + step) for step in rows}
    assert {step for step, row in rows.items() if row["superseded"] is None} == {1, 3}
    assert "eval_loss" in json.dumps(rows.get(2, {"superseded": "eval_loss"})["superseded"])
