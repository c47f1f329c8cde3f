"""What a person and a program are told when a command does not work, and how it exits."""

from __future__ import annotations

import _thread
import json

import pytest

from support import documents
from support.fake_server import DROP, Reply, refusal
from support.runners import repository
from trainshed.cli.exits import MEANINGS, Exit
from trainshed.cli.reference import commands

JOB = f"GET /v1/jobs/{documents.JOB_ID}"
GET = ("job", "get", documents.JOB_ID)


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (refusal(400, "INVALID_CURSOR"), Exit.REFUSED),
        (refusal(422, "INVALID_LIMIT"), Exit.REFUSED),
        (refusal(402, "INSUFFICIENT_BALANCE"), Exit.REFUSED),
        (refusal(401, "AUTHENTICATION_REQUIRED"), Exit.ACCESS),
        (refusal(403, "PERMISSION_DENIED"), Exit.ACCESS),
        (refusal(404, "JOB_NOT_FOUND"), Exit.NOT_FOUND),
        (refusal(410, "LOG_CURSOR_EXPIRED"), Exit.NOT_FOUND),
        (refusal(409, "JOB_REQUEST_CONFLICT"), Exit.CONFLICT),
        (refusal(412, "PRECONDITION_FAILED"), Exit.CONFLICT),
        (refusal(429, "RATE_LIMITED"), Exit.UNAVAILABLE),
        (refusal(500, "INTERNAL_ERROR"), Exit.UNAVAILABLE),
        (refusal(503, "EXECUTOR_UNAVAILABLE"), Exit.UNAVAILABLE),
        (DROP, Exit.UNAVAILABLE),
        (Reply(body=b"<html>"), Exit.FAILED),
    ],
)
def test_every_kind_of_refusal_has_its_exit_status(run, fake, reply, status):
    fake.routes[JOB] = reply
    ran = run(*GET)
    assert ran.status == status
    assert ran.raw == b""
    if isinstance(reply.body, dict):
        assert reply.body["code"] in ran.err
        assert "hint: Do better." in ran.err


def test_every_fault_is_listed_with_its_path(run, fake):
    faults = [
        {"path": "trials[0].spec.image", "code": "INVALID_EXECUTION_CONFIG", "message": "no image"},
        {"path": "trials[1].name", "code": "INVALID_TRIALS", "message": "twice\x1b[31m"},
    ]
    body = {
        "code": "INVALID_TRIALS",
        "message": "twice",
        "hint": "h",
        "errors": faults,
        "errors_not_shown": 3,
    }
    fake.routes[JOB] = Reply(422, body)
    ran = run(*GET)
    assert "trials[0].spec.image: no image [INVALID_EXECUTION_CONFIG]" in ran.err
    assert "trials[1].name: twice" in ran.err
    assert "3 more" in ran.err
    assert "\x1b" not in ran.err


def test_one_fault_is_said_once_with_its_place(run, fake):
    fault = {"path": "trials[0].spec.image", "code": "INVALID_TRIALS", "message": "no image"}
    fake.routes[JOB] = Reply(422, {"code": "INVALID_TRIALS", "message": "no image", "errors": [fault]})
    assert run(*GET).err == "error: INVALID_TRIALS (422): no image\n  at trials[0].spec.image\n"


def test_the_same_fault_of_several_trials_is_said_once(run, fake):
    faults = [
        {"path": f"trials[{n}].spec.image", "code": "INVALID_TRIALS", "message": "no image"} for n in range(4)
    ]
    fake.routes[JOB] = Reply(422, {"code": "INVALID_TRIALS", "message": "no image", "errors": faults})
    err = run(*GET).err
    assert err.count("no image") == 1
    assert "at trials[0].spec.image (and 3 more)" in err


def test_a_program_reads_the_refusal_as_one_json_line_on_stderr(run, fake):
    body = {"code": "JOB_REQUEST_CONFLICT", "message": "m", "hint": "h", "errors": [], "differences": ["x"]}
    fake.routes[JOB] = Reply(409, body)
    ran = run(*GET, "--json")
    assert ran.raw == b""
    found = json.loads(ran.err.splitlines()[-1])
    assert (found["code"], found["status"], found["differences"]) == ("JOB_REQUEST_CONFLICT", 409, ["x"])


def test_an_unknown_runner_names_the_nearest_ones(run, fake):
    fake.routes |= {
        "POST /v1/jobs": refusal(404, "RUNNER_NOT_FOUND"),
        "GET /v1/runners": Reply(
            body=documents.page(
                {"name": "envloop/bash", "revision": "0" * 40, "source_ref": "main"},
                {"name": "other/thing", "revision": "1" * 40, "source_ref": None},
            )
        ),
    }
    for arguments in (("job", "submit", "--runner"), ("runner", "get")):
        fake.routes["GET /v1/runners/envlop/bash"] = refusal(404, "RUNNER_NOT_FOUND")
        ran = run(*arguments, "envlop/bash@v1")
        assert ran.status == Exit.NOT_FOUND
        assert "did you mean envloop/bash@main?" in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["jbo", "list"], "did you mean `job`?"),
        (["job", "sumbit"], "did you mean `submit`"),
        (["runner", "show", "a/b"], "no such command `show`; did you mean `get`?"),
        (["job", "show", "x"], "did you mean `get`?"),
        (["dataset", "get", "a/b"], "did you mean `show`?"),
        (["checkpoint", "info", "x"], "did you mean `show`?"),
        (["job", "ls"], "did you mean `list`?"),
        (["job", "cancel", "x"], "did you mean `stop`?"),
        (["job", "logs", "x"], "did you mean `log`?"),
        (["gpu", "log", "x"], "did you mean `logs`?"),
        (["trial", "fetch", "x"], "did you mean `download`?"),
        (["zzz"], "known: job, train, gpu, trial"),
        (["job", "get", "x", "--jsno"], "--json"),
        (["job", "get"], "JOB_ID"),
        (["job", "get", documents.TRIAL_ID], f"see `trainshed trial get {documents.TRIAL_ID}`"),
        (["trial", "get", documents.JOB_ID], f"see `trainshed job get {documents.JOB_ID}`"),
    ],
)
def test_a_mistyped_command_exits_2_and_says_what_was_meant(run, quiet, arguments, said):
    ran = run(*arguments)
    assert ran.status == Exit.USAGE
    assert said in ran.err


JSON_COMMANDS = [
    name for name, command in commands() if any("--json" in each.opts for each in command.params)
]


@pytest.mark.parametrize("name", JSON_COMMANDS)
@pytest.mark.parametrize("words", [("--json", "--no-such-option"), ("--no-such-option", "--json")])
def test_a_program_is_told_of_a_wrong_command_line_as_json(run, quiet, name, words):
    ran = run(*name.split(), *words)
    assert (ran.status, ran.raw) == (Exit.USAGE, b"")
    found = json.loads(ran.err.splitlines()[-1])
    assert "no-such-option" in found["message"]
    assert f"`trainshed {name} --help`" in found["hint"]
    code = "invalid_request" if name.startswith("gpu ") else None
    assert (found["error"], found["code"], found["status"], found["errors"]) == ("UsageError", code, None, [])


@pytest.mark.parametrize(
    "arguments",
    [
        ("jbo", "list", "--json"),
        ("gpu", "jobz", "--json"),
        ("job", "get", "--json"),
        ("job", "list", "--limit", "0", "--json"),
        ("job", "rerun", "no-file.json", "--json"),
        ("job", "submit", "--json"),
        ("dataset", "publish", "no-file", "--name", "lab/x", "--version", "1", "--json"),
        ("train", "create", "-f", "no-file", "--json"),
        ("job", "submit", "--json", "--runner"),
        ("gpu", "logs", "--json", "x", "--tail"),
        ("--url", "http://127.0.0.1:1", "job", "list", "--json=1"),
    ],
)
def test_every_refusal_of_a_command_line_is_one_json_line(run, quiet, arguments):
    ran = run(*arguments)
    assert (ran.status, ran.raw) == (Exit.USAGE, b"")
    assert json.loads(ran.err.splitlines()[-1]).keys() >= {"code", "status", "message", "hint", "errors"}


def test_json_that_is_no_option_of_the_command_is_told_in_words(run, quiet):
    for arguments in (("serve", "--json"), ("job", "get", "--", "--json", "x")):
        assert run(*arguments).err.startswith("Usage: ")


def test_a_refusal_of_this_machine_has_the_keys_that_programs_read(run, quiet):
    found = json.loads(run(*GET, "--json").err.splitlines()[-1])
    assert (found["error"], found["code"], found["status"]) == ("ConfigurationError", None, None)
    assert found["errors"] == []


def test_without_any_server_the_command_says_what_to_set(run, quiet):
    ran = run(*GET)
    assert ran.status == Exit.USAGE
    assert "TRAINSHED_URL" in ran.err


def test_no_key_is_ever_shown(run, fake, monkeypatch):
    monkeypatch.setenv("TRAINSHED_API_KEY", "canary-key")
    fake.routes[JOB] = refusal(401, "AUTHENTICATION_REQUIRED")
    for arguments in (GET, ("status",), ("status", "--json"), ("whoami",)):
        ran = run(*arguments)
        assert "canary" not in ran.out + ran.err


def test_an_interrupt_exits_130(run, fake):
    def interrupt(_):
        _thread.interrupt_main()
        return Reply(body=documents.job("running"))

    fake.routes[JOB] = interrupt
    ran = run("job", "wait", documents.JOB_ID)
    assert ran.status == Exit.INTERRUPTED
    assert (
        f"{documents.JOB_ID} goes on; `trainshed job log {documents.JOB_ID} --follow` follows it" in ran.err
    )
    assert f"`trainshed job stop {documents.JOB_ID}` ends it" in ran.err


def test_status_tells_by_its_exit_whether_a_server_answers(run, fake, monkeypatch):
    fake.routes["GET /v1/me"] = Reply(body={"project_id": "p"})
    assert run("status").status == Exit.OK
    assert run("status", "--quiet").out == f"{fake.url}\n"
    fake.routes["GET /v1/me"] = refusal(401, "AUTHENTICATION_REQUIRED")
    assert run("status").status == Exit.ACCESS
    fake.routes["GET /v1/me"] = DROP
    assert run("status").status == Exit.UNAVAILABLE
    monkeypatch.delenv("TRAINSHED_URL")
    assert run("status").status == Exit.UNAVAILABLE


def test_a_file_that_a_runner_does_not_have_is_answered_with_those_it_has(run, fake):
    revision = {"name": "a/b", "revision": "0" * 40, "files": [{"path": "main.sh"}, {"path": "runner.toml"}]}
    fake.routes |= {
        "GET /v1/runners/a/b": Reply(body={**revision, "refs": {"main": "0" * 40}}),
        f"GET /v1/runners/a/b/{'0' * 40}": Reply(body=revision),
    }
    ran = run("runner", "files", "a/b@main", "zzz.py")
    assert ran.status == Exit.NOT_FOUND
    assert "It has main.sh, runner.toml." in ran.err


def test_every_exit_status_has_a_meaning():
    assert set(MEANINGS) == set(Exit)


def test_faults_of_a_folder_are_told_once_each_below_one_headline(run, fake, tmp_path):
    fake.routes = {}
    (tmp_path / "a").write_text("x")
    publish = ("dataset", "publish", str(tmp_path), "--name", "team/words")
    (tmp_path / "dataset.toml").write_text('[dataset]\nlicence = "x"\ntyp = "data"\n')
    assert run(*publish).err.splitlines() == [
        f"error: INVALID_CONTENT: {tmp_path} cannot be published: 2 faults",
        "  - dataset.toml: `licence` is not a key that counts: did you mean `license`?",
        "  - dataset.toml: `typ` is not a key that counts: did you mean `type`?",
        "hint: Correct or move away what is named; nothing was sent.",
    ]
    (tmp_path / "dataset.toml").write_text('[dataset]\nlicence = "x"\n')
    one, _ = run(*publish).err.splitlines()
    assert one.endswith(
        "published: dataset.toml: `licence` is not a key that counts: did you mean `license`?"
    )


def test_faults_of_a_runner_are_told_once_each_below_their_number(run, fake, tmp_path):
    fake.routes = {}
    repository(
        tmp_path,
        {
            "runner.toml": '[runner]\nname = "a"\nfoo = 1\n[execution]\nentrypoint = "main.sh"\n',
            "main.sh": "",
        },
    )
    told = run("runner", "publish", str(tmp_path)).err.splitlines()
    assert told[0] == "error: INVALID_RUNNER: 2 faults"
    assert [line.split()[1:3] for line in told[1:3]] == [
        ["runner.toml:", "`runner.foo`"],
        ["runner.toml:", "`runner.name`"],
    ]
    assert told[3:] == ["hint: Correct it, commit, and publish again."]


@pytest.mark.parametrize("word", ["unlimited", "none"])
def test_a_limit_is_lifted_with_the_word_that_shows_it(run, fake, word):
    fake.routes = {
        "PATCH /v1/admin/projects/team": Reply(body={"project_id": "team"}),
        "POST /v1/admin/projects": Reply(body={"project_id": "team"}),
    }
    limits = ("--max-gpus", word, "--gpu-hours", word, "--max-content", word)
    assert run("project", "set", "team", *limits).status == Exit.OK
    sent = json.loads(fake.seen[-1].body)
    assert sent == dict.fromkeys(("max_gpus", "budget_gpu_hours", "max_content_bytes"))
    assert run("project", "create", "team", *limits).status == Exit.OK
    made = json.loads(fake.seen[-1].body)
    assert [made.get(key) for key in sent] == [None, None, None]
    assert run("project", "set", "team", "--max-gpus", "many").status == Exit.USAGE
