"""``job submit``: what is sent for which options and files (E11-E14, E32-E41, E87, A4, A6)."""

from __future__ import annotations

import io
import json
import shlex
import sys

import pytest

from support import documents
from support.fake_server import DROP, Reply, in_turn, refusal

SUBMIT = "POST /v1/jobs"
RESULT = f"GET /v1/jobs/{documents.JOB_ID}/result"
JOB = f"GET /v1/jobs/{documents.JOB_ID}"
LOGS = f"GET /v1/jobs/{documents.JOB_ID}/logs"
ALL_OPTIONS = {
    "--gpu-type": ("H100", ("resources", "gpu_type"), "H100"),
    "--gpu": ("4", ("resources", "gpus"), 4),
    "--cpu": ("8", ("resources", "cpus"), 8),
    "--memory": ("64Gi", ("resources", "memory_mb"), 65536),
    "--disk": ("100Gi", ("resources", "storage_mb"), 102400),
    "--shm-size": ("16Gi", ("resources", "shm_mb"), 16384),
    "--docker": ("repo/img:1", ("image",), "repo/img:1"),
    "--command": ("a 'b'\n\"c\" é ", ("command",), "a 'b'\n\"c\" é "),
    "--timeout-seconds": ("60", ("timeout_seconds",), 60),
    "--runner": ("a/b@main", ("runner",), "a/b@main"),
}


@pytest.fixture
def accepting(fake):
    fake.routes[SUBMIT] = Reply(201, documents.job("queued"))
    return fake


def sent(fake):
    (request,) = fake.asked(SUBMIT)
    return request.json


def test_E32_E34_the_published_example_sends_exactly_this(run, accepting):
    arguments = shlex.split(
        "job submit --type train --runner a/b@main --trials 2 --gpu-type H100 --gpu 4 --docker repo/img:1 "
        "--cpu 8 --memory 64Gi --disk 100Gi --shm-size 16Gi --timeout-seconds 600 --request-id r-1"
    )
    ran = run(*arguments, "--command", "python train.py")
    spec = {
        "runner": "a/b@main",
        "image": "repo/img:1",
        "command": "python train.py",
        "timeout_seconds": 600,
        "resources": {
            "gpu_type": "H100",
            "gpus": 4,
            "cpus": 8,
            "memory_mb": 65536,
            "storage_mb": 102400,
            "shm_mb": 16384,
        },
    }
    assert ran.status == 0
    assert sent(accepting) == {
        "type": "train",
        "request_id": "r-1",
        "trials": [{"name": "trial-1", "spec": spec}, {"name": "trial-2", "spec": spec}],
    }


def test_E38_one_trial_without_anything_that_was_not_given(run, accepting):
    run("job", "submit", "--runner", "a/b@main")
    request = sent(accepting)
    assert request["trials"] == [{"name": "trial-1", "spec": {"runner": "a/b@main"}}]
    assert request["request_id"]


def test_A4_an_empty_request_id_is_sent_for_the_server_to_refuse(run, accepting):
    run("job", "submit", "--runner", "a/b@main", "--request-id", "")
    assert sent(accepting)["request_id"] == ""


@pytest.mark.parametrize("option", ALL_OPTIONS)
def test_E12_E13_A6_an_option_wins_in_every_trial_of_a_file(run, accepting, tmp_path, option):
    text, path, value = ALL_OPTIONS[option]
    sizes = {"gpu_type": "A100", "gpus": 1, "cpus": 1, "memory_mb": 1, "storage_mb": 1, "shm_mb": 1}
    resources = {**sizes, "a key without an option": [1]}
    spec = {
        "runner": "x/y@1",
        "image": "old",
        "command": "old",
        "timeout_sec": 5,
        "tags": {"k": "v"},
        "resources": resources,
    }
    bare = {"runner": "x/y@2", "resources": {"cpus": 7}}
    file = tmp_path / "request.json"
    original = {"request_id": "r", "trials": [{"name": "a", "spec": spec}, {"spec": bare}]}
    file.write_text(json.dumps(original))
    assert run("job", "submit", "--spec", str(file), option, text).status == 0
    first, second = (entry["spec"] for entry in sent(accepting)["trials"])
    for found, before in ((first, spec), (second, bare)):
        place = found if len(path) == 1 else found[path[0]]
        assert place[path[-1]] == value
        # E13: everything else is as the file has it, Trial by Trial.
        expected = json.loads(json.dumps(before))
        if len(path) == 1:
            expected[path[0]] = value
        else:
            expected.setdefault(path[0], {})[path[1]] = value
        if option == "--timeout-seconds":
            expected.pop("timeout_sec", None)
        assert found == expected


@pytest.mark.parametrize("form", [{"spec": {"runner": "a/b@c"}}, {"trials": [{"spec": {"runner": "a/b@c"}}]}])
def test_E11_a_request_file_is_sent_as_it_is(run, accepting, tmp_path, form):
    document = {"request_id": "r", "type": "train", **form, "of a later version": {"x": None}}
    file = tmp_path / "request.json"
    file.write_text(json.dumps(document, indent=4))
    assert run("job", "submit", "--spec", str(file)).status == 0
    assert sent(accepting) == document


def test_E16_the_single_form_is_overridden_too(run, accepting, tmp_path):
    file = tmp_path / "request.json"
    file.write_text('{"request_id": "r", "spec": {"runner": "x/y@1"}}')
    run("job", "submit", "--spec", str(file), "--gpu", "2", "--request-id", "other")
    assert sent(accepting) == {
        "type": "train",
        "request_id": "other",
        "spec": {"runner": "x/y@1", "resources": {"gpus": 2}},
    }


def test_a_file_is_read_from_stdin_and_keeps_its_own_type(run, accepting, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"type": "agent", "request_id": "r"}')))
    run("job", "submit", "--spec", "-")
    assert sent(accepting) == {"type": "agent", "request_id": "r"}


def test_A4_no_request_id_is_added_to_a_file(run, fake, tmp_path):
    fake.routes[SUBMIT] = refusal(422, "INVALID_REQUEST_ID")
    file = tmp_path / "request.json"
    file.write_text('{"spec": {"runner": "x/y@1"}}')
    assert run("job", "submit", "--spec", str(file)).status == 3
    assert "request_id" not in sent(fake)


@pytest.mark.parametrize(
    "document", ['{"trials": 5}', '{"trials": [3, {"spec": []}], "spec": "x"}', '{"spec": {"resources": 1}}']
)
def test_what_is_no_object_is_left_for_the_server_to_name(run, accepting, tmp_path, document):
    file = tmp_path / "request.json"
    file.write_text(document)
    run("job", "submit", "--spec", str(file), "--gpu", "2")
    assert sent(accepting) == {"type": "train", **json.loads(document)}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--spec", "FILE", "--trials", "2"], "--trials cannot be used with --spec"),
        ([], "--runner"),
        (["--runner", "a/b@c", "--trials", "17"], "17"),
        (["--runner", "a/b@c", "--trials", "0"], "0"),
        (["--runner", "a/b@c", "--gpu", "0"], "--gpu"),
        (["--runner", "a/b@c", "--gpu", "-1"], "--gpu"),
        (["--runner", "a/b@c", "--gpu", "1.5"], "1.5"),
        (["--runner", "a/b@c", "--gpu", "true"], "true"),
        (["--runner", "a/b@c", "--memory", "64"], "64Gi or 64Mi"),
        (["--runner", "a/b@c", "--memory", "64G"], "64Gi"),
        (["--runner", "a/b@c", "--memory", "1Ki"], "whole number of MiB"),
        (["--runner", "a/b@c", "--memory", "0Gi"], "whole number of MiB"),
        (["--runner", "a/b@c", "--disk", "-1Gi"], "-1Gi"),
        (["--runner", "a/b@c", "--tags", "k=v"], "--tags"),
        (["--spec", "no-such-file"], "No such file"),
        (["--spec", "BROKEN"], "not JSON"),
        (["--spec", "TWICE"], "twice"),
        (["--spec", "LIST"], "one JSON object"),
        (["--runner", "a/b@c", "surplus"], "surplus"),
        (["--runner", "a/b@c", "--gpu", "0"], "0 is not a whole number of at least 1"),
        (["--runner", "a/b@c", "--trials", "x"], "'x' is not a whole number from 1 to 16"),
        (["--runner", "a/b@c", "--wait", "--wait-timeout", "soon"], "number of seconds"),
        (["--runner", "a/b@c", "--wait-timeout", "5"], "bounds --wait or --follow"),
        (["--runner", "a/b@c", "--quiet", "--follow"], "give one of them"),
    ],
)
def test_E14_E39_E40_E87_a_usage_error_exits_2_and_sends_nothing(run, accepting, tmp_path, arguments, said):
    files = {"FILE": '{"request_id": "r"}', "BROKEN": "{", "TWICE": '{"a": 1, "a": 2}', "LIST": "[]"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    ran = run("job", "submit", *(str(tmp_path / word) if word in files else word for word in arguments))
    assert ran.status == 2
    assert said in ran.err
    assert ran.raw == b""
    assert accepting.seen == []


@pytest.mark.parametrize(
    ("text", "mebibytes"),
    [
        ("1Mi", 1),
        ("512Mi", 512),
        ("64Gi", 65536),
        ("64GiB", 65536),
        ("1Ti", 1 << 20),
        ("1.5Gi", 1536),
        ("2048Ki", 2),
    ],
)
def test_sizes_are_whole_mebibytes(run, accepting, text, mebibytes):
    run("job", "submit", "--runner", "a/b@c", "--memory", text)
    assert sent(accepting)["trials"][0]["spec"]["resources"] == {"memory_mb": mebibytes}


def test_E24_a_lost_answer_is_repeated_under_the_same_request_id(run, fake):
    fake.routes[SUBMIT] = in_turn(DROP, Reply(200, documents.job("queued")))
    assert run("job", "submit", "--runner", "a/b@main").status == 0
    first, second = fake.asked(SUBMIT)
    assert first.json == second.json


def test_the_receipt_is_the_servers_document_and_says_how_to_go_on(run, accepting):
    assert run("job", "submit", "--runner", "a/b@main", "--json").json == documents.job("queued")
    ran = run("job", "submit", "--runner", "a/b@main", program="el")
    assert documents.JOB_ID in ran.out
    assert f"el job log {documents.JOB_ID} --follow" in ran.err


def test_the_receipt_does_not_complain_that_nobody_looked_yet(run, fake):
    document = documents.job("queued")
    waiting = {"code": "NEXT_TURN", "message": "the scheduler has not looked at it yet"}
    for trial in document["training"]["trials"]:
        trial["waiting"] = waiting
    fake.routes[SUBMIT] = Reply(201, document)
    assert "NEXT_TURN" not in run("job", "submit", "--runner", "a/b@main").out
    assert run("job", "submit", "--runner", "a/b@main", "--json").json == document
    for trial in document["training"]["trials"]:
        trial["waiting"] = {**waiting, "code": "GPUS_BUSY"}
    assert "GPUS_BUSY" in run("job", "submit", "--runner", "a/b@main").out


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("failed", 1), ("cancelled", 1)])
def test_waiting_exits_by_how_the_job_ended(run, accepting, status, code):
    accepting.routes[JOB] = in_turn(Reply(body=documents.job("running")), Reply(body=documents.job(status)))
    accepting.routes[RESULT] = Reply(body=documents.job(status, checkpoints=[]))
    ran = run("job", "submit", "--runner", "a/b@main", "--wait", "--json")
    assert ran.status == code
    assert ran.json["status"] == status


def test_waiting_gives_up_after_the_time_given(run, accepting):
    accepting.routes[JOB] = Reply(body=documents.job("running"))
    ran = run("job", "submit", "--runner", "a/b@main", "--wait", "--wait-timeout", "0.1")
    assert ran.status == 8
    assert "goes on" in ran.err


@pytest.mark.parametrize(
    "fault", [DROP, refusal(503, "DATABASE_UNAVAILABLE"), refusal(500, "INTERNAL_ERROR")]
)
@pytest.mark.parametrize("how", ["--wait", "--follow"])
def test_waiting_gives_up_after_the_time_given_also_while_the_server_fails(run, accepting, fault, how):
    accepting.routes |= {JOB: fault, LOGS: fault}
    ran = run("job", "submit", "--runner", "a/b@main", how, "--wait-timeout", "0.002")
    assert ran.status == 8
    assert f"{documents.JOB_ID} goes on; `trainshed job log {documents.JOB_ID} --follow`" in ran.err


def test_a_server_that_always_fails_ends_waiting_and_is_told_of_once(run, accepting):
    accepting.routes[JOB] = refusal(500, "INTERNAL_ERROR")
    ran = run("job", "submit", "--runner", "a/b@main", "--wait")
    assert ran.status == 7
    assert ran.err.count("trying again") == 1
    assert "goes on" in ran.err


def test_the_final_table_waits_a_moment_for_the_proof_of_release(run, accepting):
    held = documents.job("completed", [documents.trial(cleanup_confirmed=False)])
    accepting.routes[JOB] = in_turn(Reply(body=held), Reply(body=held), Reply(body=documents.job()))
    accepting.routes[RESULT] = Reply(body=documents.job(checkpoints=[]))
    assert run("job", "submit", "--runner", "a/b@main", "--wait").status == 0
    assert len(accepting.asked(JOB)) == 3


def test_following_prints_what_the_platform_did_after_the_end_of_the_log(run, accepting):
    late = documents.record(2, "Released 1 x H100.", source="system", stream=None)

    def log(request):
        asked = [late] if request.query["source"] == "system" else [documents.record(1)]
        return Reply(body=documents.log_page(asked, None))

    accepting.routes |= {LOGS: log, JOB: Reply(body=documents.job()), RESULT: Reply(body=documents.job())}
    ran = run("job", "submit", "--runner", "a/b@main", "--follow")
    assert ran.status == 0
    assert "-- Released 1 x H100." in ran.err


def test_E24_a_replay_says_that_nothing_new_was_started(run, fake):
    fake.routes[SUBMIT] = Reply(200, documents.job("queued"))
    ran = run("job", "submit", "--runner", "a/b@main")
    assert "was accepted before (1 Trial): the same Job" in ran.err


@pytest.mark.parametrize("more", [[], ["--wait"]])
def test_quiet_prints_the_id_and_nothing_else(run, accepting, more):
    accepting.routes |= {JOB: in_turn(DROP, Reply(body=documents.job())), RESULT: Reply(body=documents.job())}
    ran = run("job", "submit", "--runner", "a/b@main", "--quiet", *more)
    assert (ran.status, ran.out, ran.err) == (0, f"{documents.JOB_ID}\n", "")


def test_following_prints_the_log_and_then_the_result(run, accepting):
    accepting.routes |= {
        LOGS: Reply(body=documents.log_page([documents.record(1)], None)),
        JOB: Reply(body=documents.job()),
        RESULT: Reply(body=documents.job(checkpoints=[])),
    }
    ran = run("job", "submit", "--runner", "a/b@main", "--follow")
    assert ran.status == 0
    assert ran.out.startswith("line 1\n")
    ran = run("job", "submit", "--runner", "a/b@main", "--follow", "--json")
    assert ran.json["status"] == "completed"
    assert "line 1" in ran.err


PROFILE = {"schema": "envloop.job-profile/v1", "recipe": {"lr": "0.1"}, "inputs": {}, "plugins": []}


def test_E55_E6_a_profile_document_is_sent_in_every_trial(run, accepting, tmp_path):
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(PROFILE))
    ran = run("job", "submit", "--runner", "a/b@main", "--trials", "2", "--profile-file", str(file))
    assert ran.status == 0
    assert [trial["spec"]["profile"] for trial in sent(accepting)["trials"]] == [PROFILE, PROFILE]


def test_E12_a_profile_document_replaces_that_of_a_request_file(run, accepting, tmp_path, monkeypatch):
    file = tmp_path / "request.json"
    spec = {"runner": "x/y@1", "profile": {"schema": "old"}, "tags": {"k": "v"}}
    file.write_text(json.dumps({"request_id": "r", "spec": spec}))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(PROFILE).encode())))
    assert run("job", "submit", "--spec", str(file), "--profile-file", "-").status == 0
    assert sent(accepting)["spec"] == {**spec, "profile": PROFILE}


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1, "a": 2}', "{"])
def test_a_profile_file_that_is_no_json_object_is_a_usage_error(run, accepting, tmp_path, content):
    file = tmp_path / "profile.json"
    file.write_text(content)
    ran = run("job", "submit", "--runner", "a/b@main", "--profile-file", str(file))
    assert ran.status == 2
    assert str(file) in ran.err
    assert not accepting.asked(SUBMIT)


def test_stdin_is_read_for_one_of_two_files_only(run, accepting):
    ran = run("job", "submit", "--spec", "-", "--profile-file", "-")
    assert ran.status == 2
    assert "stdin" in ran.err
    assert not accepting.asked(SUBMIT)


def test_E55_there_is_no_option_for_a_named_profile(run, accepting):
    assert run("job", "submit", "--runner", "a/b@main", "--profile", "fast").status == 2
    assert not accepting.asked(SUBMIT)
