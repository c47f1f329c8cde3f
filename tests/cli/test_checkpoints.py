"""``trainshed checkpoint``: what people and programs are shown, and what each outcome exits with."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

import pytest

from support import documents
from support.fake_server import Reply, refusal
from trainshed.cli.exits import Exit
from trainshed.cli.output import local_time

ID = documents.CHECKPOINT_ID
URI = f"envloop://{documents.JOB_ID}/{ID}"
LIST = "GET /v1/jobs/checkpoints"
ONE = f"GET /v1/jobs/checkpoints/{ID}"
SIGN = "GET /v1/jobs/checkpoints/download"
DELETE = f"DELETE /v1/jobs/checkpoints/{ID}"
SUBMIT = "POST /v1/jobs"
FILES = {"adapter_config.json": b"{}", "deep/rng.bin": b"random"}


@pytest.fixture
def holding(fake):
    urls = {name: f"{fake.url}/v1/downloads/{ID}/{name.replace('/', '%2F')}" for name in FILES}
    fake.routes |= {
        ONE: Reply(body=documents.checkpoint(FILES)),
        SIGN: Reply(body={"checkpoint_id": ID, "urls": urls, "expires_at": documents.NOW}),
        f"GET /v1/downloads/{ID}/adapter_config.json": Reply(200, FILES["adapter_config.json"]),
        f"GET /v1/downloads/{ID}/deep%2Frng.bin": Reply(200, FILES["deep/rng.bin"]),
    }
    return fake


def test_checkpoints_are_listed_as_a_table_as_json_and_as_ids(run, fake):
    kept = documents.checkpoint(FILES)
    others = [
        documents.checkpoint(checkpoint_id="ckpt_pinned", pinned=True, step=None, metric_value=None),
        documents.checkpoint(checkpoint_id="ckpt_old", superseded="The rules do not keep it."),
    ]
    page = documents.page(kept, *others, cursor="next")
    fake.routes[LIST] = Reply(body=page)
    ran = run("checkpoint", "list", "--job-id", "job_1", "--trial", "trial_1", "--limit", "3")
    header, first, second, third, *_ = ran.out.splitlines()
    assert header.split() == ["CHECKPOINT", "JOB/TRIAL", "STEP", "METRIC", "SIZE", "KEPT", "CREATED"]
    assert (ID in first, "0.25 eval_loss" in first, "yes" in first) == (True, True, True)
    # In a pipe ids and times are whole.
    assert f"  {kept['job_id']}/{kept['trial_id']}  " in first
    assert first.endswith(local_time(kept["created_at"]))
    assert "pinned" in second
    assert "superseded" in third
    assert "--cursor next" in ran.out
    assert fake.asked(LIST)[0].query == {"job_id": "job_1", "run_id": "trial_1", "limit": "3"}
    assert run("checkpoint", "list", "--json").json == page
    assert run("checkpoint", "list", "-q").out.split() == [ID, "ckpt_pinned", "ckpt_old"]


def test_a_list_takes_a_line_a_row_at_100_columns(run, fake, monkeypatch):
    rows = [
        documents.checkpoint(checkpoint_id=f"{ID[:-1]}{n}", step=10_000 * n, size_bytes=10**9)
        for n in range(3)
    ]
    fake.routes[LIST] = Reply(body=documents.page(*rows))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = run("checkpoint", "list").out.splitlines()
    assert len(shown) == len(rows) + 1
    assert all(len(line) <= 100 for line in shown)


def test_no_checkpoints_says_where_one_comes_from(run, fake):
    fake.routes[LIST] = Reply(body=documents.page())
    assert "LoRA" in run("checkpoint", "list").out


@pytest.mark.parametrize("name", [ID, URI])
def test_one_is_shown_with_its_lineage_and_files(run, holding, name):
    holding.routes[ONE] = Reply(body=documents.checkpoint(FILES, parent="ckpt_parent"))
    ran = run("checkpoint", "show", name)
    assert ran.status == Exit.OK
    for said in (
        URI,
        "team/base",
        "500",
        "eval_loss 0.25",
        documents.TRIAL_ID,
        "ckpt_parent",
        "deep/rng.bin",
    ):
        assert said in ran.out
    assert run("checkpoint", "show", name, "--json").json == documents.checkpoint(FILES, parent="ckpt_parent")


def test_a_metric_that_nothing_declares_is_shown(run, fake):
    said = "none of 3 Checkpoints has eval_los; metrics.json has eval_loss"
    fake.routes[ONE] = Reply(body=documents.checkpoint(FILES, metric_value=None, metric_fault=said))
    assert re.search(rf"^no metric +{said}$", run("checkpoint", "show", ID).out, re.MULTILINE)


def test_a_checkpoint_is_downloaded_whole_and_verified(run, holding, tmp_path):
    ran = run("checkpoint", "download", URI, "--to", str(tmp_path / "new"), "--json")
    assert ran.status == Exit.OK
    assert ran.json["checkpoint_id"] == ID
    assert {item["name"]: item["state"] for item in ran.json["items"]} == dict.fromkeys(FILES, "verified")
    for name, content in FILES.items():
        assert (tmp_path / "new" / name).read_bytes() == content
    table = run("checkpoint", "download", ID, "deep/rng.bin", "--to", str(tmp_path / "new"))
    assert [line.split()[0] for line in table.out.splitlines()] == ["NAME", "deep/rng.bin"]


def test_the_folder_is_the_checkpoints_id_unless_said_otherwise(run, holding, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("checkpoint", "download", URI)
    assert (tmp_path / ID / "adapter_config.json").read_bytes() == b"{}"


def test_signed_urls_are_printed_with_their_end(run, holding):
    ran = run("checkpoint", "urls", URI)
    header, first, second, _, until = ran.out.splitlines()
    assert header.split() == ["FILE", "URL"]
    assert first.split() == ["adapter_config.json", f"{holding.url}/v1/downloads/{ID}/adapter_config.json"]
    assert second.split()[0] == "deep/rng.bin"
    assert until.startswith("Good until ")
    document = run("checkpoint", "urls", ID, "--json").json
    assert (set(document["urls"]), document["expires_at"]) == (set(FILES), documents.NOW)
    assert run("checkpoint", "urls", ID, "-q").out.split() == list(document["urls"].values())


def test_a_file_that_cannot_be_had_fails_the_download_and_is_named(run, holding, tmp_path):
    holding.routes[f"GET /v1/downloads/{ID}/adapter_config.json"] = Reply(200, b"[]")
    ran = run("checkpoint", "download", ID, "--to", str(tmp_path), "--json")
    assert ran.status == Exit.FAILED
    assert ran.json["failed"] == ["adapter_config.json"]
    assert (tmp_path / "deep" / "rng.bin").exists()


def test_deleting_says_what_was_deleted(run, fake):
    fake.routes[DELETE] = Reply(body=documents.receipt())
    ran = run("checkpoint", "delete", URI, "--wait")
    assert ran.status == Exit.OK
    assert ran.out.startswith(f"Deleted {ID}")
    assert run("checkpoint", "delete", ID, "--json").json == documents.receipt()


@pytest.mark.parametrize(
    ("answer", "more", "status"),
    [(b"y\n", (), Exit.OK), (b"n\n", (), Exit.INTERRUPTED), (b"", ("--yes",), Exit.OK)],
)
def test_at_a_terminal_a_person_is_asked_before_a_checkpoint_goes(fake, tmp_path, answer, more, status):
    fake.routes[DELETE] = Reply(body=documents.receipt())
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRAINSHED_", "ENVLOOP_"))
    }
    place = {"TRAINSHED_URL": fake.url, "TRAINSHED_API_KEY": "tsk_test", "TRAINSHED_HOME": str(tmp_path)}
    mine, theirs = pty.openpty()
    os.write(mine, answer)
    ran = subprocess.run(
        [sys.executable, "-m", "trainshed", "checkpoint", "delete", ID, *more],
        env=own | place,
        stdin=theirs,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    os.close(theirs)
    os.close(mine)
    assert ran.returncode == status, ran
    assert (f"Delete {ID} and the Artifacts that are its files?" in ran.stderr + ran.stdout) is bool(answer)
    assert len(fake.asked(DELETE)) == (1 if status == Exit.OK else 0)


def test_what_is_in_use_exits_as_a_conflict(run, fake):
    fake.routes[DELETE] = refusal(409, "RESOURCE_IN_USE", "it is pinned; unpin it first")
    ran = run("checkpoint", "delete", ID)
    assert ran.status == Exit.CONFLICT
    assert "unpin it first" in ran.err


def test_what_is_not_there_exits_as_not_found(run, fake):
    fake.routes[ONE] = refusal(404, "CHECKPOINT_NOT_FOUND")
    assert run("checkpoint", "show", ID).status == Exit.NOT_FOUND


@pytest.mark.parametrize("word", ["pin", "unpin"])
def test_pinning_shows_how_it_stands_then(run, fake, word):
    answer = documents.checkpoint(pinned=word == "pin")
    fake.routes[f"POST /v1/jobs/checkpoints/{ID}/{word}"] = Reply(body=answer)
    assert run("checkpoint", word, ID, "--json").json == answer
    assert ("pinned" in run("checkpoint", word, ID).out) == (word == "pin")


def test_an_id_of_another_kind_is_refused_before_anything_is_sent(run, fake):
    ran = run("checkpoint", "show", documents.JOB_ID)
    assert ran.status == Exit.USAGE
    assert f"job get {documents.JOB_ID}" in ran.err
    assert "checkpoint show" in run("job", "get", ID).err
    assert not fake.seen


# --resume-from


def test_E12_resume_from_goes_into_every_trial(run, fake, tmp_path):
    fake.routes[SUBMIT] = Reply(201, documents.job("queued"))
    run("job", "submit", "--runner", "a/b@main", "--trials", "2", "--resume-from", URI)
    specs = [trial["spec"] for trial in fake.asked(SUBMIT)[-1].json["trials"]]
    assert specs == [{"runner": "a/b@main", "resume_from": URI}] * 2
    file = tmp_path / "request.json"
    trials = [{"name": "a", "spec": {"runner": "x/y@main", "resume_from": "ckpt_old"}}]
    file.write_text(json.dumps({"request_id": "r", "trials": trials}))
    run("job", "submit", "--spec", str(file))
    assert fake.asked(SUBMIT)[-1].json["trials"] == trials
    run("job", "submit", "--spec", str(file), "--resume-from", ID)
    assert fake.asked(SUBMIT)[-1].json["trials"][0]["spec"] == {"runner": "x/y@main", "resume_from": ID}


def test_a_trial_shows_what_it_resumes_from(run, fake):
    fake.routes[f"GET /v1/trials/{documents.TRIAL_ID}"] = Reply(body=documents.trial(resume_from=ID))
    assert re.search(rf"^resumes from +{ID}$", run("trial", "get", documents.TRIAL_ID).out, re.MULTILINE)
