"""Every refusal of contract E b13 that applies here, over HTTP: its status, its code, nothing changed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.profiles import publish_runner, runner_toml
from support.site import Site, submission
from trainshed.model.errors import MAX_BODY_BYTES
from trainshed.model.submission import MAX_COMMAND_BYTES
from trainshed.store import jobs

V1_PROFILE = {"schema": "envloop.job-profile/v1", "inputs": {}, "recipe": {}, "plugins": []}
JOB = "job_01KB7Q3V9E8Z6R5T4W3X2Y1M0N"


@dataclass(frozen=True)
class Case:
    """A request and how it must be refused."""

    name: str
    status: int
    code: str
    body: Any = None
    method: str = "POST"
    path: str = "/v1/jobs"
    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


def trials(*entries: Any) -> dict[str, Any]:
    return {"type": "train", "request_id": "r", "trials": list(entries)}


def trial(**spec: Any) -> dict[str, Any]:
    return {"spec": submission(**spec)["spec"]}


def resources(**values: Any) -> dict[str, Any]:
    return submission(resources={"gpu_type": "H100", "gpus": 1, **values})


def changed(**root: Any) -> dict[str, Any]:
    return {**submission(), **root}


def spec_without(key: str) -> dict[str, Any]:
    document = submission()
    del document["spec"][key]
    return document


CASES = [
    Case("not JSON", 400, "INVALID_REQUEST", b"{"),
    Case("empty body", 400, "INVALID_REQUEST", b""),
    Case("not UTF-8", 400, "INVALID_REQUEST", b'{"type":"\xff"}'),
    Case("a list", 400, "INVALID_REQUEST", []),
    Case("a number", 400, "INVALID_REQUEST", 7),
    Case("NaN", 400, "INVALID_REQUEST", b'{"type": NaN}'),
    Case("a key twice", 400, "INVALID_REQUEST", b'{"type":"train","type":"train"}'),
    Case("nested too deeply", 400, "INVALID_REQUEST", b"[" * 100_000),
    Case("wrong method", 405, "METHOD_NOT_ALLOWED", method="PUT"),
    Case("unknown method", 405, "METHOD_NOT_ALLOWED", method="BREW"),
    Case("no key", 401, "AUTHENTICATION_REQUIRED", submission(), headers={"Authorization": ""}),
    Case(
        "another scheme",
        401,
        "AUTHENTICATION_REQUIRED",
        submission(),
        headers={"Authorization": "Basic eDp5"},
    ),
    Case("unknown key", 401, "AUTHENTICATION_REQUIRED", submission(), key="tsk_unknown"),
    Case("impossible key", 401, "AUTHENTICATION_REQUIRED", submission(), key="a b"),
    Case("foreign project", 403, "PROJECT_ACCESS_DENIED", submission(), headers={"X-Project-Id": "other"}),
    Case(
        "foreign workspace", 403, "WORKSPACE_ACCESS_DENIED", submission(), headers={"X-Workspace-ID": "other"}
    ),
    Case("unknown Job", 404, "JOB_NOT_FOUND", method="GET", path=f"/v1/job/{JOB}"),
    Case("unknown Job to stop", 404, "JOB_NOT_FOUND", path=f"/v1/jobs/{JOB}/stop"),
    Case("unknown Job's result", 404, "JOB_NOT_FOUND", method="GET", path=f"/v1/jobs/{JOB}/result"),
    Case("unknown Job's logs", 404, "JOB_NOT_FOUND", method="GET", path=f"/v1/jobs/{JOB}/logs"),
    Case("unknown Job's events", 404, "JOB_NOT_FOUND", method="GET", path=f"/v1/jobs/{JOB}/events"),
    Case("unknown Job's stream", 404, "JOB_NOT_FOUND", method="GET", path=f"/v1/jobs/{JOB}/events/stream"),
    Case("an id that is none", 404, "JOB_NOT_FOUND", method="GET", path="/v1/jobs/a%2Fb%00%20c"),
    Case("unknown Trial", 404, "TRIAL_NOT_FOUND", method="GET", path="/v1/trials/trial_x"),
    Case("unknown Trial's artifacts", 404, "TRIAL_NOT_FOUND", method="GET", path="/v1/trials/t/artifacts"),
    Case(
        "unknown Trial's content",
        404,
        "TRIAL_NOT_FOUND",
        method="GET",
        path="/v1/trials/t/artifacts/a/content",
    ),
    Case("Trials of an unknown Job", 404, "JOB_NOT_FOUND", method="GET", path=f"/v1/trials?job_id={JOB}"),
    Case("unknown path", 404, "NOT_FOUND", method="GET", path="/v1/nix"),
    Case("path outside the API", 404, "NOT_FOUND", method="GET", path="/"),
    Case("trailing slash", 404, "NOT_FOUND", method="GET", path="/v1/nix/"),
    Case("outside the scope", 404, "NOT_FOUND", method="GET", path="/v1/serving/profiles"),
    Case(
        "unknown Checkpoint", 404, "CHECKPOINT_NOT_FOUND", method="GET", path="/v1/job/checkpoints/download"
    ),
    Case("no type", 422, "INVALID_JOB_TYPE", {k: v for k, v in submission().items() if k != "type"}),
    Case("another type", 422, "INVALID_JOB_TYPE", changed(type="agent")),
    Case(
        "no request id",
        422,
        "INVALID_REQUEST_ID",
        {k: v for k, v in submission().items() if k != "request_id"},
    ),
    Case("empty request id", 422, "INVALID_REQUEST_ID", submission("")),
    Case("blank request id", 422, "INVALID_REQUEST_ID", submission(" \t")),
    Case("long request id", 422, "INVALID_REQUEST_ID", submission("x" * 129)),
    Case("number as request id", 422, "INVALID_REQUEST_ID", changed(request_id=7)),
    Case("a tab in the request id", 422, "INVALID_REQUEST_ID", submission("a\tb")),
    Case("a line end in the request id", 422, "INVALID_REQUEST_ID", submission("a\nb")),
    Case("an escape in the request id", 422, "INVALID_REQUEST_ID", submission("a\x1b[31m")),
    Case("a long namespace", 422, "INVALID_RUNNER", submission(runner=f"{'n' * 129}/x@main")),
    Case("a long Runner name", 422, "INVALID_RUNNER", submission(runner=f"n/{'x' * 129}@main")),
    Case("surrogate in request id", 422, "INVALID_REQUEST_ID", submission("a\ud800")),
    Case("E39 17 Trials", 422, "INVALID_TRIALS", trials(*[trial() for _ in range(17)])),
    Case("no Trials", 422, "INVALID_TRIALS", trials()),
    Case("both forms", 422, "INVALID_TRIALS", {**trials(trial()), "spec": submission()["spec"]}),
    Case("neither form", 422, "INVALID_TRIALS", {"type": "train", "request_id": "r"}),
    Case("trials an object", 422, "INVALID_TRIALS", changed(trials={}) | {"spec": None}),
    Case("a name twice", 422, "INVALID_TRIALS", trials({"name": "a", **trial()}, {"name": "a", **trial()})),
    Case("the default name twice", 422, "INVALID_TRIALS", trials(trial(), {"name": "trial-1", **trial()})),
    Case("unknown key at the root", 422, "INVALID_TRAIN_JOB_SPEC", changed(priority=1)),
    Case("unknown key in a Trial", 422, "INVALID_TRAIN_JOB_SPEC", trials({**trial(), "nome": "a"})),
    Case("unknown key in a spec", 422, "INVALID_TRAIN_JOB_SPEC", submission(comand="x")),
    Case("unknown key in resources", 422, "INVALID_TRAIN_JOB_SPEC", resources(gpu=1)),
    Case("E19 recipe beside a Runner", 422, "INVALID_TRAIN_JOB_SPEC", submission(recipe="r")),
    Case("E20 a dataset", 422, "INVALID_TRAIN_JOB_SPEC", submission(dataset="d")),
    Case("E20 a task", 422, "INVALID_TRAIN_JOB_SPEC", submission(task="t")),
    Case("E21 files", 422, "INVALID_TRAIN_JOB_SPEC", submission(files=[])),
    Case("E22 a snapshot", 422, "INVALID_TRAIN_JOB_SPEC", submission(snapshot_sha256="0" * 64)),
    Case("E55 an environment", 422, "INVALID_TRAIN_JOB_SPEC", submission(env={})),
    Case("E55 a params map", 422, "INVALID_TRAIN_JOB_SPEC", submission(params={})),
    Case("E55 a named profile", 422, "INVALID_TRAIN_JOB_SPEC", submission(profile="p")),
    Case("E10 an entrypoint", 422, "INVALID_TRAIN_JOB_SPEC", submission(entrypoint="other.sh")),
    Case("E60 a backend", 422, "UNSUPPORTED_TRAINING_BACKEND_SELECTION", submission(backend="ray")),
    Case("E60 an executor", 422, "UNSUPPORTED_TRAINING_BACKEND_SELECTION", changed(executor="x")),
    Case("E60 a provider", 422, "UNSUPPORTED_TRAINING_BACKEND_SELECTION", resources(provider="x")),
    Case("no Runner", 422, "INVALID_RUNNER", spec_without("runner")),
    Case("no revision", 422, "INVALID_RUNNER", submission(runner="envloop/bash")),
    Case("HEAD as revision", 422, "INVALID_RUNNER", submission(runner="envloop/bash@HEAD")),
    Case("a path as Runner", 422, "INVALID_RUNNER", submission(runner="../x/y@main")),
    Case("E2 unknown Runner", 404, "RUNNER_NOT_FOUND", submission(runner="no/body@main")),
    Case("E2 unknown revision", 404, "RUNNER_NOT_FOUND", submission(runner="envloop/bash@" + "0" * 40)),
    Case("E51 blank command", 422, "INVALID_COMMAND", submission(command=" \n\t")),
    Case("E52 NUL in the command", 422, "INVALID_COMMAND", submission(command="a\0b")),
    Case("E53 a command of 65537 bytes", 422, "INVALID_COMMAND", submission(command="x" * 65_537)),
    Case("E53 bytes, not characters", 422, "INVALID_COMMAND", submission(command="ü" * 32_769)),
    Case("lone surrogate in the command", 422, "INVALID_COMMAND", submission(command="\ud800")),
    Case("number as command", 422, "INVALID_COMMAND", submission(command=7)),
    Case("null as command", 422, "INVALID_COMMAND", submission(command=None)),
    Case("E84 17 tags", 422, "INVALID_TAG", submission(tags={f"k{n}": "v" for n in range(17)})),
    Case("E85 a bad tag key", 422, "INVALID_TAG", submission(tags={"-a": "v"})),
    Case("E85 a long tag key", 422, "INVALID_TAG", submission(tags={"a" * 65: "v"})),
    Case("E86 a long tag value", 422, "INVALID_TAG", submission(tags={"a": "v" * 257})),
    Case("E86 a control character", 422, "INVALID_TAG", submission(tags={"a": "x\n"})),
    Case("E83 a number as tag", 422, "INVALID_TAG", submission(tags={"a": 1})),
    Case("E83 a list of tags", 422, "INVALID_TAG", submission(tags=["a"])),
    *(
        Case(f"E40 {value!r} GPUs", 422, "INVALID_EXECUTION_CONFIG", resources(gpus=value))
        for value in (0, -1, 1.5, True, "1", None, 2**31, 10**30)
    ),
    *(
        Case(f"E40 {value!r} seconds", 422, "INVALID_EXECUTION_CONFIG", submission(timeout_seconds=value))
        for value in (0, -1, 1.5, True, "1", None)
    ),
    Case("two timeouts", 422, "INVALID_EXECUTION_CONFIG", submission(timeout_seconds=1, timeout_sec=2)),
    Case("timeout above the maximum", 422, "INVALID_EXECUTION_CONFIG", submission(timeout_seconds=10**7)),
    Case("malformed image", 422, "INVALID_EXECUTION_CONFIG", submission(image="UPPER case")),
    Case("resources a list", 422, "INVALID_EXECUTION_CONFIG", submission(resources=[])),
    Case("unknown GPU type", 422, "UNSUPPORTED_HARDWARE", resources(gpu_type="H900")),
    Case("more GPUs than any node has", 422, "UNSUPPORTED_HARDWARE", resources(gpus=9)),
    Case("more memory than any node has", 422, "UNSUPPORTED_HARDWARE", resources(memory_mb=2**30)),
    Case("an image", 503, "EXECUTOR_UNAVAILABLE", submission(image="repo/img:tag")),
    Case("malformed profile", 422, "INVALID_PROFILE", submission(profile=[])),
    Case("a profile of no known schema", 422, "INVALID_PROFILE", submission(profile={"schema": "x"})),
    Case("a profile", 422, "PROFILE_RUNNER_UNSUPPORTED", submission(profile=V1_PROFILE)),
    Case("Job status filter", 422, "INVALID_JOB_STATUS", method="GET", path="/v1/job?status=nix"),
    Case("Job type filter", 422, "INVALID_JOB_TYPE", method="GET", path="/v1/job?type=nix"),
    Case("Trial status filter", 422, "INVALID_TRIAL_STATUS", method="GET", path="/v1/trials?status=nix"),
    *(
        Case(f"limit {value}", 422, "INVALID_LIMIT", method="GET", path=f"/v1/{resource}?limit={value}")
        for resource in ("job", "jobs", "trials", "runners", "job/checkpoints", "profiles")
        for value in ("0", "101", "-1", "1.5", "x", "", "9" * 30, "%D9%A1")
    ),
    *(
        Case("cursor", 400, "INVALID_CURSOR", method="GET", path=f"/v1/{resource}?cursor={value}")
        for resource in ("job", "jobs", "trials", "runners", "job/checkpoints")
        for value in ("x", "", "%00", "A" * 200)
    ),
    Case("profiles", 404, "PROFILE_NOT_FOUND", method="GET", path="/v1/profiles/eA/versions"),
    Case("a new profile", 404, "PROFILE_NOT_FOUND", {}, path="/v1/profiles"),
]


def name_of(case: Case) -> str:
    return f"{case.code}: {case.name}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_request_is_refused_with_its_code_and_changes_nothing(module_site: Site, case: Case):
    body = case.body
    if not isinstance(body, bytes) and body is not None:
        body = json.dumps(body).encode()
    answer = module_site.request(case.method, case.path, body, key=case.key, headers=case.headers)
    found = answer.json()
    assert (answer.status_code, found["code"]) == (case.status, case.code), answer.text
    assert len(answer.content) <= MAX_BODY_BYTES
    assert found["code"] == found["errors"][0]["code"]
    assert all(found[key] for key in ("message", "hint", "request_id"))
    with module_site.services.database.read() as connection:
        assert not jobs.list_jobs(connection, "default")


def test_all_faults_are_answered_at_once_the_most_important_first(sqlite_site: Site):
    document = submission("", runner="nix", command="", tags={"-": 1}, resources={"gpus": 0})
    answer = sqlite_site.post("/v1/jobs", {**document, "type": "x"}).json()
    assert [fault["code"] for fault in answer["errors"]] == [
        "INVALID_JOB_TYPE",
        "INVALID_REQUEST_ID",
        "INVALID_RUNNER",
        "INVALID_COMMAND",
        "INVALID_TAG",
        "INVALID_TAG",
        "INVALID_EXECUTION_CONFIG",
    ]
    assert answer["errors"][2]["path"] == "spec.runner"


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"resources": {"gpu_type": "NOPE", "gpus": 1}, "timeout": "zz"}, {"timeout", "resources.gpu_type"}),
        ({"resources": {"gpus": "x", "gpu_type": "NOPE"}}, {"resources.gpus", "resources.gpu_type"}),
        ({"resources": {"gpus": 9, "gpu_type": 7}}, {"resources.gpus", "resources.gpu_type"}),
        (
            {"resources": {"gpus": 1, "memory_mb": "x", "cpus": 10**6}, "timeout_seconds": 10**7},
            {"resources.memory_mb", "resources.cpus", "timeout_seconds"},
        ),
        ({"resources": [], "timeout_seconds": 10**7}, {"resources", "timeout_seconds"}),
        # `gpu` may mean the count, so that none is missed; nor is any other value judged that nobody gave.
        ({"resources": {"gpu": 1}}, {"resources.gpu"}),
        ({"resources": {"gpu": 1, "gpu_type": "NOPE"}}, {"resources.gpu", "resources.gpu_type"}),
        (
            {"runner": "no/body@main", "resources": {"gpus": 9}, "timeout_seconds": 10**7},
            {"runner", "resources.gpus", "timeout_seconds"},
        ),
        ({"runner": "no/body@main", "resources": {}}, {"runner"}),
        ({"runner": 7, "resources": {"gpu_type": "NOPE"}}, {"runner", "resources.gpu_type"}),
    ],
)
def test_what_no_node_can_give_is_told_beside_what_is_malformed(module_site: Site, spec, told):
    answer = module_site.post("/v1/jobs", submission(**spec))
    assert {fault["path"].removeprefix("spec.") for fault in answer.json()["errors"]} == told


@pytest.mark.parametrize(
    ("instead", "told"),
    [
        ({"resorces": {"gpu_type": "H100", "gpus": 1}}, {"resorces"}),
        ({"gpus": 1, "gpu_type": "H100"}, {"gpus", "gpu_type"}),
        ({"colour": 1}, {"colour", "resources.gpus"}),
    ],
)
def test_what_a_misspelt_key_may_mean_is_not_told_as_missing_too(
    sqlite_site: Site, tmp_path: Path, instead, told
):
    text = runner_toml(resources={"cpus": 1})
    runner = publish_runner(sqlite_site, tmp_path / "runner", "team/bare", text)
    document = submission(**instead, runner=runner)
    del document["spec"]["resources"]
    answer = sqlite_site.post("/v1/jobs", document).json()
    assert {fault["path"].removeprefix("spec.") for fault in answer["errors"]} == told


def test_a_body_with_thousands_of_faults_answers_at_most_8192_bytes(sqlite_site: Site):
    document = {**submission(), **{f"unknown-{'k' * 300}-{n}": 1 for n in range(2000)}}
    answer = sqlite_site.post("/v1/jobs", document)
    assert answer.status_code == 422
    assert len(answer.content) <= MAX_BODY_BYTES
    assert answer.json()["errors_not_shown"] > 1900


def test_E53_a_command_of_65536_bytes_is_accepted_byte_for_byte(sqlite_site: Site):
    command = "é\n\"'\\" + "x" * (MAX_COMMAND_BYTES - 6)
    assert len(command.encode()) == MAX_COMMAND_BYTES
    job = sqlite_site.submit(command=command)
    assert job["training"]["trials"][0]["command"] == command


def test_E39_sixteen_trials_of_the_largest_commands_fit(sqlite_site: Site):
    entries = [{"name": f"t{n}", **trial(command="\x01" * MAX_COMMAND_BYTES)} for n in range(16)]
    answer = sqlite_site.post("/v1/jobs", trials(*entries))
    assert answer.status_code == 201, answer.text
    assert answer.json()["training"]["counts"] == {"queued": 16}


def test_every_operation_but_the_public_ones_asks_for_a_key(sqlite_site: Site):
    document = sqlite_site.get("/openapi.json").json()
    public = set()
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if operation["security"] == []:
                public.add(path)
                continue
            answer = sqlite_site.client.request(method.upper(), path.replace("{", "").replace("}", ""))
            assert answer.status_code == 401, (method, path, answer.text)
            assert answer.headers["WWW-Authenticate"] == "Bearer"
    signed = "/v1/downloads/{checkpoint_id}/{path}"
    assert sqlite_site.client.get(signed.replace("{", "").replace("}", "")).status_code == 403
    assert public == {"/healthz", "/readyz", "/metrics", "/openapi.json", signed}


def test_a_method_that_is_not_offered_names_those_that_are(sqlite_site: Site):
    answer = sqlite_site.request("DELETE", "/v1/jobs")
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "GET, HEAD, POST"


def test_an_unexpected_failure_is_answered_in_the_same_shape_without_details(make_site, monkeypatch):
    site = make_site()

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(jobs, "list_jobs", fail)
    answer = site.get("/v1/jobs")
    assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL_ERROR")
    assert "secret" not in answer.text
    assert answer.json()["request_id"] == answer.headers["X-Request-Id"]
