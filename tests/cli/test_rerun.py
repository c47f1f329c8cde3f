"""``job manifest`` and ``job rerun``: against a scripted server, and between two real ones."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import documents
from support.fake_server import Reply
from support.profiles import ABI, V1, runner_toml
from support.runners import repository
from support.server import ServerProcess
from trainshed.cli.exits import Exit
from trainshed.model.provenance import job_manifest, manifest_digest
from trainshed.model.strict_json import canonical_json

SUBMIT = "POST /v1/jobs"
OLD, NEW = documents.JOB_ID, "job_01KB7Q3V9E8Z6R5T4W3X2Y1M9Z"
DATA, RECIPE = "d" * 64, "e" * 64


def frozen(job_id: str = OLD, **changes: Any) -> dict[str, Any]:
    """The manifest of a Job with one Trial; ``changes`` are made to the Trial."""
    trial = {
        "trial_id": "trial_1",
        "name": "t",
        "runner": {
            "name": "team/run",
            "revision": "a" * 40,
            "tree_id": None,
            "selector": f"team/run@{'a' * 40}",
            "source_ref": None,
            "snapshot_sha256": "b" * 64,
        },
        "entrypoint": "main.sh",
        "command": "true",
        "params": {},
        "outputs": [],
        "tags": {},
        "image": None,
        "profile": None,
        "contents": [],
        "resources": {
            "gpu_type": "H100",
            "gpus": 1,
            "cpus": 1,
            "memory_mb": 1024,
            "storage_mb": 1024,
            "shm_mb": 64,
        },
        "timeout_seconds": 60,
        "resume_from": None,
    }
    document = {
        "job": {"job_id": job_id, "type": "train", "platform_version": "1"},
        "request": {},
        "runner_files": {"b" * 64: []},
        "trials": [{**trial, **changes}],
    }
    return job_manifest(document, {"status": "completed"})


@pytest.fixture
def scripted(fake):
    """A server that accepts the rerun; what the new Job froze is the test's to say."""

    def script(after: dict[str, Any], before: dict[str, Any] | None = None) -> Any:
        fake.routes[SUBMIT] = Reply(201, {**documents.job("queued"), "job_id": NEW})
        fake.routes[f"GET /v1/jobs/{OLD}/manifest"] = Reply(200, before or frozen())
        fake.routes[f"GET /v1/jobs/{NEW}/manifest"] = Reply(200, after)
        return fake

    return script


def test_the_document_goes_to_stdout_and_its_digest_is_told(run, scripted):
    scripted(frozen())
    ran = run("job", "manifest", OLD)
    assert ran.json == frozen()
    assert ran.err == f"digest {frozen()['digest']}\n"
    ran = run("job", "manifest", OLD, "--json")
    assert (ran.json, ran.err) == (frozen(), "")


def test_a_file_gets_the_canonical_document_or_stays_as_it_was(run, scripted, tmp_path):
    scripted(frozen())
    place = tmp_path / "manifest.json"
    ran = run("job", "manifest", OLD, "--output", str(place))
    assert ran.out == f"{frozen()['digest']}  {place}\n"
    assert place.read_text() == canonical_json(frozen())
    ran = run("job", "manifest", OLD, "--output", str(tmp_path / "nowhere" / "file"), "--json")
    assert ran.status == Exit.FAILED
    assert "nowhere" in ran.err
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["manifest.json"]


def test_a_rerun_is_pinned_and_the_same_is_exit_0(run, scripted):
    fake = scripted(frozen(NEW))
    ran = run("job", "rerun", OLD, "--request-id", "again", "--json")
    assert ran.status == Exit.OK, ran.err
    (request,) = fake.asked(SUBMIT)
    assert request.json == {
        "type": "train",
        "request_id": "again",
        "trials": [
            {
                "name": "t",
                "spec": {
                    "runner": f"team/run@{'a' * 40}",
                    "command": "true",
                    "resources": frozen()["frozen"]["trials"][0]["resources"],
                    "timeout_seconds": 60,
                },
            }
        ],
    }
    assert ran.json["same"] is True
    assert ran.json["differences"] == []
    assert ran.json["job_id"] == NEW
    assert ran.json["rerun_of"] == {"job_id": OLD, "digest": frozen()["digest"]}


def test_a_file_that_cannot_be_written_is_named_as_it_was_given(run, scripted):
    scripted(frozen())
    ran = run("job", "manifest", OLD, "-o", "/nope/x")
    assert ran.status == Exit.FAILED
    assert "cannot write /nope/x:" in ran.err
    assert "tmp" not in ran.err


def test_what_only_is_named_otherwise_is_shown_and_still_the_same(run, scripted):
    runner = {**frozen()["frozen"]["trials"][0]["runner"], "source_ref": "main"}
    scripted(frozen(NEW), frozen(runner=runner))
    ran = run("job", "rerun", OLD)
    assert ran.status == Exit.OK
    assert "trials[0].runner.source_ref" in ran.out
    assert "only named so" in ran.out


def test_a_difference_in_what_runs_is_exit_9_and_a_line_with_both_values(run, scripted):
    resources = {**frozen()["frozen"]["trials"][0]["resources"], "cpus": 4}
    scripted(frozen(NEW, resources=resources))
    ran = run("job", "rerun", OLD)
    assert ran.status == Exit.DIFFERS == 9
    [line] = [line for line in ran.out.splitlines() if "trials[0].resources.cpus" in line]
    assert line.split() == ["trials[0].resources.cpus", "1", "4", "yes"]
    ran = run("job", "rerun", OLD, "--json")
    assert (ran.status, ran.json["same"]) == (Exit.DIFFERS, False)
    assert ran.json["differences"] == [
        {"path": "trials[0].resources.cpus", "before": 1, "after": 4, "runs": True}
    ]


def test_a_file_or_stdin_stands_for_a_job_of_another_server(run, scripted, tmp_path, monkeypatch):
    fake = scripted(frozen(NEW))
    place = tmp_path / "manifest.json"
    place.write_text(json.dumps(frozen(), indent=2))
    assert run("job", "rerun", str(place), "--json").json["same"] is True
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(place.read_bytes())))
    assert run("job", "rerun", "-", "--json").json["same"] is True
    assert len(fake.asked(SUBMIT)) == 2
    assert fake.asked(f"GET /v1/jobs/{OLD}/manifest") == []


def test_a_file_that_was_changed_is_refused_and_nothing_is_sent(run, scripted, tmp_path):
    fake = scripted(frozen(NEW))
    document = frozen()
    document["frozen"]["trials"][0]["command"] = "rm -rf /"
    place = tmp_path / "manifest.json"
    for text, said in (
        (json.dumps(document), "it was changed after it was written"),
        ("[]", "a Job manifest holds one JSON object"),
        ("{", "is not JSON"),
        ("{}", "a Job manifest is an object with"),
    ):
        place.write_text(text)
        ran = run("job", "rerun", str(place))
        assert ran.status == Exit.USAGE
        assert said in ran.err
    assert run("job", "rerun", str(tmp_path / "none.json")).status == Exit.USAGE
    assert fake.asked(SUBMIT) == []


PROFILE = {
    "sha256": "c" * 64,
    "document": {
        "schema": "envloop.job-profile/v2",
        "recipe": {
            "uri": f"envloop://recipes/a/recipe@{RECIPE}",
            "manifest_sha256": RECIPE,
            "entrypoint": "m",
        },
        "parameters_given": {},
        "parameters": {},
        "dependencies": {},
        "inputs": {"data": {"uri": "envloop://datasets/a/data@1", "manifest_sha256": DATA}},
        "plugins": [],
    },
}
CONTENTS = [
    {"role": "input:data", "kind": "datasets", "name": "a/data", "version": "1", "manifest_sha256": DATA},
    {"role": "recipe", "kind": "recipes", "name": "a/recipe", "version": RECIPE, "manifest_sha256": RECIPE},
]


@pytest.mark.parametrize(
    ("path", "status", "code", "said"),
    [
        (
            "runner",
            404,
            "RUNNER_NOT_FOUND",
            f"trainshed runner publish PATH --ref {'a' * 40} --name team/run",
        ),
        (
            "profile.inputs.data.uri",
            403,
            "ACCESS_DENIED",
            "trainshed dataset publish PATH --name a/data --version 1",
        ),
        (
            "profile.recipe",
            403,
            "ACCESS_DENIED",
            "trainshed recipe publish PATH --name a/recipe",
        ),
        (
            "profile.inputs.data.uri",
            422,
            "INVALID_PROFILE",
            "trainshed dataset publish PATH --name a/data --version 1",
        ),
        (
            "profile.recipe",
            422,
            "INVALID_PROFILE",
            "trainshed recipe publish PATH --name a/recipe",
        ),
        ("image", 422, "INVALID_EXECUTION_CONFIG", "make the image docker.io/a/b@sha256:1 available"),
        ("resume_from", 404, "CHECKPOINT_NOT_FOUND", "a Checkpoint stays on its server"),
    ],
)
def test_what_is_missing_there_is_said_with_what_to_publish(run, scripted, path, status, code, said):
    before = frozen(
        profile=PROFILE,
        contents=CONTENTS,
        image={"requested": "a/b", "resolved": "docker.io/a/b@sha256:1", "digest": "sha256:1"},
        resume_from={"checkpoint_id": "ckpt_1", "files": [], "lineage": []},
    )
    fake = scripted(frozen(NEW), before)
    fault = {"path": f"trials[0].spec.{path}", "code": code, "message": "not here"}
    fake.routes[SUBMIT] = Reply(status, {"code": code, "message": "not here", "hint": "x", "errors": [fault]})
    ran = run("job", "rerun", OLD)
    assert ran.status in {Exit.NOT_FOUND, Exit.ACCESS, Exit.REFUSED}
    assert said in ran.err
    ran = run("job", "rerun", OLD, "--json")
    document = json.loads(ran.err.splitlines()[-1])
    assert (document["code"], len(document["publish"])) == (code, 1)
    assert said in document["publish"][0]


PLUGIN = "f" * 64


@pytest.mark.parametrize(
    ("path", "said", "unsaid"),
    [
        ("profile.plugins[0]", f"trainshed plugin approve a/plugin@{PLUGIN}", "plugin publish"),
        ("profile.plugins[0].uri", "trainshed plugin publish PATH --name a/plugin", "no plugin"),
        ("profile.plugins[0].uri", f"trainshed plugin approve a/plugin@{PLUGIN}", "no plugin"),
    ],
)
def test_E94_a_plugin_is_approved_there_and_published_only_where_it_is_not(run, scripted, path, said, unsaid):
    reference = {"uri": f"envloop://plugins/a/plugin@{PLUGIN}", "manifest_sha256": PLUGIN, "name": "a/plugin"}
    use = {"kind": "plugins", "name": "a/plugin", "version": PLUGIN, "manifest_sha256": PLUGIN}
    profile = {**PROFILE, "document": {**PROFILE["document"], "plugins": [reference]}}
    contents = [*CONTENTS, {"role": "plugin:a/plugin", **use}]
    fake = scripted(frozen(NEW), frozen(profile=profile, contents=contents))
    fault = {"path": f"trials[0].spec.{path}", "code": "ACCESS_DENIED", "message": "no"}
    answer = {"code": "ACCESS_DENIED", "message": "no", "hint": "x", "errors": [fault]}
    fake.routes[SUBMIT] = Reply(403, answer)
    ran = run("job", "rerun", OLD)
    assert said in ran.err
    assert unsaid not in ran.err


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(), max_size=5),
    lambda each: st.lists(each, max_size=2) | st.dictionaries(st.text(max_size=3), each, max_size=2),
    max_leaves=4,
)
"""Any JSON; lone surrogates, which no UTF-8 has, may be written as escapes."""


def slots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every table and list inside, with each of its keys and indexes."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield value, key
        yield from slots(each)


SCRIPT = {
    "spec": {
        "kind": "script",
        "project_dir": "/home/ada/p",
        "bundle": {"manifest_sha256": DATA, "included": ["a"]},
        "data": [{"mount": "d", "manifest_sha256": RECIPE, "path": "d"}],
        "deps": {"kind": "none"},
    },
    "source": "user",
}
TASK = {
    "spec": {
        "kind": "pytorch",
        "image": "a/b",
        "env": [
            {"name": "A", "value": "b", "hidden": False, "source": "task"},
            {"name": "P", "value": None, "hidden": True, "source": "project"},
        ],
        "mounts": [{"type": "dataset", "ref": "a/data@1", "mount_path": "/mnt/d"}],
        "precheck": {"env": [{"name": "B", "value": "c", "hidden": False}]},
    },
    "totals": {"replicas": 1},
    "catalog_revision": 1,
}
MOUNTED = {**CONTENTS[0], "role": "mount:/mnt/d"}
OF_A_KIND = {
    "runner": {},
    "script": {"script": SCRIPT},
    "task": {"task": TASK, "contents": [MOUNTED]},
}


@pytest.mark.parametrize("how", [(), ("--json",)])
@pytest.mark.parametrize("kind", OF_A_KIND)
@settings(
    max_examples=settings.default.max_examples // 4,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(data=st.data())
def test_whatever_json_a_file_holds_a_rerun_ends_in_a_refusal_or_a_job(
    run, scripted, tmp_path, how, kind, data
):
    fake = scripted(frozen(NEW))
    document = frozen(
        **{
            "profile": copy.deepcopy(PROFILE),
            "contents": copy.deepcopy(CONTENTS),
            "image": {"requested": "a/b", "resolved": "docker.io/a/b@sha256:1", "digest": "sha256:1"},
            "resume_from": {"checkpoint_id": "ckpt_1", "files": [], "lineage": []},
            **copy.deepcopy(OF_A_KIND[kind]),
        }
    )
    fault = {"path": data.draw(st.sampled_from(FAULTY)), "code": "ACCESS_DENIED", "message": "no"}
    if data.draw(st.booleans()):
        fake.routes[SUBMIT] = Reply(403, {"code": "ACCESS_DENIED", "message": "no", "errors": [fault]})
    inside, key = data.draw(st.sampled_from([(document, None), *slots(document["frozen"])]))
    if key is None:
        document = data.draw(anything)
    else:
        if data.draw(st.booleans()):
            inside[key] = data.draw(anything)
        else:
            del inside[key]
        document["digest"] = manifest_digest(document["frozen"])
    place = tmp_path / "manifest.json"
    place.write_text(json.dumps(document))
    before = len(fake.asked(SUBMIT))
    ran = run("job", "rerun", str(place), *how)
    assert ran.status in {Exit.OK, Exit.DIFFERS, Exit.USAGE, Exit.ACCESS}, ran.err
    assert (len(fake.asked(SUBMIT)) == before) == (ran.status == Exit.USAGE)


FAULTY = [f"trials[0].spec.{each}" for each in ("runner", "image", "resume_from", "profile.plugins[0]")]
FAULTY += ["spec.image", "spec.mounts[0].ref", "spec.data[0].manifest_sha256", "spec.data[9].manifest_sha256"]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (5, "`job` must be an object, not 5"),
        ({}, "`job.job_id` is missing; `job.type` is missing; `job.platform_version` is missing"),
        ({"job_id": OLD, "type": "train"}, "`job.platform_version` is missing"),
        ({"type": "train", "platform_version": "1"}, "`job.job_id` is missing"),
    ],
)
def test_a_file_without_what_is_told_of_its_job_is_refused_and_nothing_is_sent(
    run, scripted, tmp_path, job, said
):
    fake = scripted(frozen(NEW))
    whole = {**frozen()["frozen"], "job": job}
    place = tmp_path / "manifest.json"
    place.write_text(json.dumps(job_manifest(whole, {})))
    ran = run("job", "rerun", str(place))
    assert (ran.status, said in ran.err) == (Exit.USAGE, True), ran.err
    assert fake.asked(SUBMIT) == []


# Two real servers

Command = Callable[..., subprocess.CompletedProcess[str]]


def command(server: ServerProcess, key: str | None = None) -> Command:
    """Runs commands against a server, with its owner key or another one."""
    environment = {**server.environment, **({} if key is None else {"TRAINSHED_API_KEY": key})}
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRAINSHED_", "ENVLOOP_"))
    }

    def run(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "trainshed", *arguments],
            capture_output=True,
            text=True,
            env={**own, **environment},
            timeout=120,
            check=False,
        )
        assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


PROGRAM = """
mkdir -p out
sha256sum "$TRAINSHED_INPUTS/data/part.txt" | cut -d' ' -f1 > out/result
echo "$TRAINSHED_PARAM_RUN_COMMAND" >> out/result
"""


def test_a_job_runs_again_on_another_server_from_its_manifest(new_server, tmp_path: Path):
    here, there = (command(new_server(name).start()) for name in ("here", "there"))
    runner, data = tmp_path / "runner", tmp_path / "data"
    text = runner_toml(ABI, V1, outputs=("out/**",), params=("run_command",))
    commit = repository(runner, {"runner.toml": text, "main.sh": PROGRAM})
    data.mkdir()
    (data / "part.txt").write_bytes(b"numbers\n")
    publish_runner = ("runner", "publish", str(runner), "--name", "team/run", "--json")
    publish_data = ("dataset", "publish", str(data), "--name", "team/data", "--version", "1", "--json")
    here(*publish_runner)
    dataset = json.loads(here(*publish_data).stdout)
    reference = {"uri": "envloop://datasets/team/data@1", "manifest_sha256": dataset["manifest_sha256"]}
    request = {
        "type": "train",
        "request_id": "first",
        "spec": {
            "runner": "team/run@main",
            "command": "of the first",
            "tags": {"seed": "7"},
            "resources": {"gpu_type": "H100", "gpus": 1},
            "profile": {"schema": V1, "recipe": {}, "inputs": {"data": reference}, "plugins": []},
        },
    }
    file = tmp_path / "request.json"
    file.write_text(json.dumps(request))
    first = json.loads(here("job", "submit", "--spec", str(file), "--wait", "--json").stdout)
    place = tmp_path / "manifest.json"
    digest = here("job", "manifest", first["job_id"], "--output", str(place)).stdout.split()[0]
    document = json.loads(place.read_text())
    assert document["digest"] == digest
    [trial] = document["frozen"]["trials"]
    assert trial["runner"]["revision"] == commit
    assert trial["contents"][0]["manifest_sha256"] == dataset["manifest_sha256"]

    # Nothing is there yet: one refusal says all that is to be published.
    done = there("job", "rerun", str(place), status=Exit.ACCESS)
    assert f"trainshed runner publish PATH --ref {commit} --name team/run" in done.stderr
    assert "trainshed dataset publish PATH --name team/data --version 1" in done.stderr
    there(*publish_runner)
    there(*publish_data)
    again = json.loads(there("job", "rerun", str(place), "--wait", "--json").stdout)
    assert again["same"] is True
    assert again["rerun_of"] == {"job_id": first["job_id"], "digest": digest}
    assert {each["path"] for each in again["differences"]} == {
        "trials[0].runner.selector",
        "trials[0].runner.source_ref",
    }
    second = json.loads(there("job", "manifest", again["job_id"], "--json").stdout)
    [old], [new] = document["outcome"]["trials"], second["outcome"]["trials"]
    assert old["outputs"] == new["outputs"]
    expected = f"{hashlib.sha256(b'numbers' + bytes([10])).hexdigest()}\nof the first\n".encode()
    assert new["outputs"][0]["sha256"] == hashlib.sha256(expected).hexdigest()
    # On its own server too, by its id.
    assert json.loads(here("job", "rerun", first["job_id"], "--json").stdout)["same"] is True
