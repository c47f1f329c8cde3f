"""The client against a real server, through a network that drops, cuts and repeats."""

from __future__ import annotations

import hashlib

import pytest

from support.proxy import Fault, FaultProxy, in_turn
from support.runners import definition, repository
from trainshed import Client
from trainshed.sdk import Conflict, NotFound, NotFreezable, PermissionRefused, RequestRefused, RetryPolicy

QUICK = RetryPolicy(attempts=6, first=0.01, longest=0.1)
MAIN = """
mkdir -p out/deep
head -c 300000 /dev/urandom > out/deep/random.bin
echo hello; echo oops >&2; printf 'no newline'
"""


@pytest.fixture(scope="module")
def client(module_server):
    with Client(module_server.url, module_server.key, retry=QUICK) as opened:
        yield opened


@pytest.fixture(scope="module")
def published(client, tmp_path_factory):
    folder = tmp_path_factory.mktemp("work") / "runner"
    repository(
        folder, {"runner.toml": definition(outputs=("out/**",), params=("run_command",)), "main.sh": MAIN}
    )
    return client.runners.publish(folder, name="sdk/writer").runner


def request(published, **spec):
    return {"spec": {"runner": published.selector, "resources": {"gpu_type": "H100", "gpus": 1}, **spec}}


@pytest.mark.parametrize(
    "faults",
    [
        [Fault.DROP_REQUEST],
        [Fault.DROP_REPLY],
        [Fault.CUT_REPLY],
        [Fault.REPEAT_REQUEST],
        [Fault.DROP_REPLY, Fault.REPEAT_REQUEST, Fault.CUT_REPLY],
    ],
    ids=lambda faults: "+".join(fault.name for fault in faults),
)
def test_P2_one_job_comes_of_a_submission_whatever_the_network_does(module_server, published, faults):
    plan = in_turn(faults, method="POST", path="/v1/jobs")
    with (
        FaultProxy(module_server.url, plan) as proxy,
        Client(proxy.url, module_server.key, retry=QUICK) as client,
    ):
        before = {job.job_id for job in client.jobs.iter_all()}
        job = client.training_jobs.submit(request(published))
        after = {job.job_id for job in client.jobs.iter_all()}
        assert after - before == {job.job_id}
        client.jobs.wait(job.job_id, timeout=60, released=True)


def test_the_whole_path_through_a_network_that_cuts_every_third_answer(module_server, published, tmp_path):
    count = iter(range(10**6))

    def plan(_method: str, _path: str) -> Fault:
        return Fault.CUT_REPLY if next(count) % 3 == 2 else Fault.NONE

    with (
        FaultProxy(module_server.url, plan) as proxy,
        Client(proxy.url, module_server.key, retry=QUICK) as client,
    ):
        job = client.training_jobs.submit(request(published))
        records = list(client.jobs.follow(job.job_id, source="runtime"))
        ended = client.jobs.wait(job.job_id, timeout=60, released=True)
        (trial,) = ended.trials
        (result,) = client.trials.download(trial.trial_id, tmp_path)
        exact = client.trials.raw_log(trial.trial_id)
        assert b"".join(exact) == b"hello\nno newline"
    assert len({record.id for record in records}) == len(records)
    out = b"".join(r.data + (b"" if r.partial else b"\n") for r in records if r.stream == "stdout")
    assert out == b"hello\nno newline"
    assert [record.text for record in records if record.stream == "stderr"] == ["oops"]
    content = result.path.read_bytes()
    assert (result.artifact.name, len(content)) == ("out/deep/random.bin", 300_000)
    assert hashlib.sha256(content).hexdigest() == result.artifact.sha256
    assert (trial.status, trial.exit_code, trial.cleanup_confirmed) == ("succeeded", 0, True)


def test_E28_a_changed_request_under_the_same_id_names_the_fields_that_differ(client, published):
    first = {"request_id": "sdk-conflict", **request(published)}
    job = client.training_jobs.submit(first)
    assert client.training_jobs.submit(first).job_id == job.job_id
    with pytest.raises(Conflict) as caught:
        client.training_jobs.submit({"request_id": "sdk-conflict", **request(published, timeout_seconds=5)})
    assert caught.value.code == "JOB_REQUEST_CONFLICT"
    assert any("timeout_seconds" in fault.path for fault in caught.value.faults)
    client.jobs.wait(job.job_id, timeout=60, released=True)


def test_every_fault_of_a_request_arrives_at_once(client, published):
    with pytest.raises(RequestRefused) as caught:
        client.training_jobs.submit(request(published, command=" ", tags={"-": "x"}, timeout_seconds=True))
    paths = {fault.path for fault in caught.value.faults}
    assert len(paths) >= 3


def test_E76_stopping_cancels_and_releases(client, published):
    job = client.training_jobs.submit(request(client.runners.get("envloop/bash@main"), command="sleep 600"))
    client.jobs.stop(job.job_id)
    client.jobs.stop(job.job_id)
    ended = client.jobs.wait(job.job_id, timeout=60, released=True)
    assert ended.status == "cancelled"
    assert [event.code for event in client.jobs.events(job.job_id)]


def test_E8_publishing_is_of_the_commit_and_repeatable(client, tmp_path):
    folder = tmp_path / "runner"
    commit = repository(folder, {"sub/runner.toml": definition(), "sub/main.sh": "echo one"})
    first = client.runners.publish(folder / "sub", name="sdk/frozen", visibility="public")
    (folder / "sub" / "main.sh").write_text("echo two")
    (folder / "sub" / "extra").write_text("x")
    again = client.runners.publish(folder / "sub", name="sdk/frozen")
    assert first.runner.revision == again.runner.revision == commit
    assert first.warnings == ()
    assert [warning.split(" ")[0] for warning in again.warnings] == ["the", "1"]
    assert again.uploaded == 0
    assert client.runners.read_file(first.runner.selector, "main.sh") == b"echo one"
    assert client.runners.read_file("sdk/frozen@main", "main.sh") == b"echo one"
    assert {file["path"] for file in client.runners.get(first.runner.selector).raw["files"]} == {
        "main.sh",
        "runner.toml",
    }
    assert first.runner.selector in [runner.selector for runner in client.runners.iter_all()]
    client.runners.withdraw(first.runner.selector)
    with pytest.raises(NotFound):
        client.runners.get(first.runner.selector)


def test_what_cannot_be_frozen_is_refused_before_anything_is_sent(client, tmp_path):
    repository(tmp_path, {"runner.toml": "[execution]\nentrypoint = 'other.sh'", "other.sh": ""})
    with pytest.raises(NotFreezable) as caught:
        client.runners.publish(tmp_path, name="sdk/broken")
    assert caught.value.code == "INVALID_RUNNER"
    assert caught.value.faults
    with pytest.raises(NotFreezable, match="NOT_A_DIRECTORY"):
        client.runners.publish(tmp_path / "absent", name="sdk/broken")


def test_a_key_does_what_its_role_says_until_it_is_revoked(client, module_server, published):
    client.projects.create("sdk-team", max_gpus=1)
    assert client.projects.set("sdk-team", {"max_gpus": None, "priority": 3})["priority"] == 3
    client.members.set("sdk-team", "ada", "developer")
    assert [member["user"] for member in client.members.list("sdk-team")] == ["ada"]
    made = client.keys.create("sdk-team", label="viewing", role="viewer")
    with Client(module_server.url, made["key"], retry=QUICK) as viewer:
        assert viewer.me()["project_id"] == "sdk-team"
        assert viewer.jobs.list().items == ()
        with pytest.raises(PermissionRefused):
            viewer.training_jobs.submit(request(published))
        with pytest.raises(PermissionRefused):
            viewer.keys.list("sdk-team")
    client.runners.set_visibility("sdk/writer", "projects", ["sdk-team"])
    client.members.remove("sdk-team", "ada")
    client.keys.revoke("sdk-team", made["key_id"])
    with (
        Client(module_server.url, made["key"], retry=QUICK) as viewer,
        pytest.raises(Exception, match="AUTHENTIC"),
    ):
        viewer.me()
