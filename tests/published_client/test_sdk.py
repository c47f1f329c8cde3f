"""The SDK of the published client 1.7.0: submit, wait, read, stop and download against this server."""

from __future__ import annotations

import uuid
from hashlib import sha256


def request(command="echo hello", **changes):
    spec = {
        "runner": "envloop/bash@main",
        "command": command,
        "resources": {"gpu_type": "H100", "gpus": 1},
        "timeout_seconds": 60,
    }
    return {"request_id": str(uuid.uuid4()), "spec": {**spec, **changes}}


def test_E18_a_training_job_is_submitted_and_waited_for(client):
    answer = client.sdk(
        "job = client.training_jobs.submit(request)\n"
        "answer = client.training_jobs.wait(job['job_id'], timeout=60)\n",
        request=request(),
    )
    assert answer["status"] == "completed"
    [trial] = answer["trials"]
    assert (trial["status"], trial["exit_code"], trial["command"]) == ("succeeded", 0, "echo hello")


def test_E24_a_retry_answers_the_same_job_and_a_change_raises_the_conflict(client):
    first = request()
    answer = client.sdk(
        "from envloop.http import RemoteError\n"
        "one, two = client.training_jobs.submit(first), client.training_jobs.submit(first)\n"
        "answer = [one['job_id'] == two['job_id']]\n"
        "try:\n"
        "    client.training_jobs.submit(changed)\n"
        "except RemoteError as error:\n"
        "    answer += [error.code, error.status_code]\n",
        first=first,
        changed={**first, "spec": {**first["spec"], "timeout_seconds": 61}},
    )
    assert answer == [True, "JOB_REQUEST_CONFLICT", 409]


def test_E23_E82_the_five_reads_and_actions_work_with_the_receipt(client):
    answer = client.sdk(
        "job_id = client.training_jobs.submit(request)['job_id']\n"
        "client.training_jobs.wait(job_id, timeout=60)\n"
        "trials = client.trials.list(type='train', job_id=job_id)['items']\n"
        "logs = client.training_jobs.logs(job_id, source='runtime')\n"
        "answer = {\n"
        "    'status': client.training_jobs.status(job_id)['status'],\n"
        "    'result': client.training_jobs.result(job_id)['status'],\n"
        "    'stop': client.training_jobs.stop(job_id)['status'],\n"
        "    'jobs': [job['job_id'] == job_id for job in client.training_jobs.list(limit=1)['items']],\n"
        "    'trials': [trial['job_id'] == job_id for trial in trials],\n"
        "    'trial': client.trials.status(trials[0]['trial_id'])['status'],\n"
        "    'metrics': client.trials.metrics(trials[0]['trial_id'])['items'],\n"
        "    'log': [record['content'] for record in logs['items']],\n"
        "    'eof': logs['eof'],\n"
        "}\n",
        request=request("echo one; echo 'loss=0.5 step=3'"),
    )
    assert answer == {
        "status": "completed",
        "result": "completed",
        "stop": "completed",
        "jobs": [True],
        "trials": [True],
        "trial": "succeeded",
        "metrics": [],
        "log": ["one", "loss=0.5 step=3"],
        "eof": True,
    }


def test_E73_artifacts_are_downloaded_and_verified(client, files_runner, tmp_path):
    document = {
        "request_id": str(uuid.uuid4()),
        "spec": {"runner": files_runner, "resources": {"gpu_type": "H100", "gpus": 1}},
    }
    answer = client.sdk(
        "job_id = client.training_jobs.submit(request)['job_id']\n"
        "job = client.training_jobs.wait(job_id, timeout=60)\n"
        "answer = client.trials.download_artifacts(job['trials'][0]['trial_id'], folder)\n",
        request=document,
        folder=str(tmp_path / "files"),
    )
    assert answer["skipped"] == []
    assert (tmp_path / "files/out/one.txt").read_bytes() == b"first file"
    large = (tmp_path / "files/out/deep/large.bin").read_bytes()
    assert sha256(large).digest() == sha256(b"x" * 300_000).digest()


def test_a_refusal_carries_its_code_and_status(client):
    answer = client.sdk(
        "from envloop.http import RemoteError\n"
        "try:\n"
        "    client.training_jobs.submit(request)\n"
        "except RemoteError as error:\n"
        "    answer = [error.code, error.status_code]\n",
        request=request(provider="somewhere"),
    )
    assert answer == ["UNSUPPORTED_TRAINING_BACKEND_SELECTION", 422]


def test_polling_ten_times_a_second_is_never_limited(client):
    """The published wait asks every 0.1 s and does not survive a 429 (contract E b3)."""
    answer = client.sdk(
        "job_id = client.training_jobs.submit(request)['job_id']\n"
        "answer = [client.training_jobs.status(job_id)['status'] for _ in range(120)][-1]\n",
        request=request(),
    )
    assert answer in {"queued", "running", "completed"}
