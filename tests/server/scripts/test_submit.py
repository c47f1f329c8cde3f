"""Submitting script Jobs: what is refused, what is the same submission, what is kept (contract G, a.1)."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.scripts import TRAIN, document, send_script, send_tree
from trainshed.control.garbage import Collector
from trainshed.control.verification import Pace, Place, Verification
from trainshed.model.access import Permission
from trainshed.model.content import ContentFile, ContentKind, make_manifest
from trainshed.store import holders, jobs, scripts

FOLDERS = iter(f"/home/ada/p{number}" for number in range(10_000))


@pytest.fixture
def folder():
    """A project folder that no other test has."""
    return next(FOLDERS)


def job_of(answer):
    assert answer.status_code in {200, 201}, answer.text
    return answer.json()["job"]


def faults(answer):
    return {(fault["path"], fault["code"]) for fault in answer.json()["errors"]}


def test_G36_a_submission_is_answered_with_its_Job_and_its_bundle(module_site, folder):
    answer = send_script(module_site, project_dir=folder)
    assert answer.status_code == 201
    body = answer.json()
    assert body["submitted"] is True
    assert body["duplicate_of"] is None
    assert (body["bundle"]["files"], body["bundle"]["bytes"]) == (2, sum(map(len, TRAIN.values())))
    job = body["job"]
    assert (job["state"], job["source"], job["project_dir"]) == ("queued", "user", folder)
    assert job["outputs_dir"] == f"{folder}/runs/{job['short_id']}"
    assert job["id"].startswith(job["short_id"])
    assert len(job["id"]) == 12
    assert job["created_at"].endswith("Z")
    assert module_site.woken


def test_G32_the_same_arguments_name_the_same_Job_while_it_is_active(module_site, folder):
    first = job_of(send_script(module_site, project_dir=folder))
    again = send_script(module_site, project_dir=folder)
    assert again.status_code == 200
    body = again.json()
    assert (body["submitted"], body["duplicate_of"], body["job"]["id"]) == (
        False,
        first["short_id"],
        first["id"],
    )
    assert body["bundle"]["warnings"] == []


def test_G32_ten_calls_at_once_make_one_Job(sqlite_site):
    body = {"type": "train", "spec": document(send_tree(sqlite_site, TRAIN))}
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: sqlite_site.post("/v1/jobs", body), range(10)))
    assert sorted(answer.status_code for answer in answers) == [200] * 9 + [201]
    assert len({answer.json()["job"]["id"] for answer in answers}) == 1


def test_G32_ten_calls_at_once_make_one_Job_on_every_database(site):
    body = {"type": "train", "request_id": "same", "spec": document(send_tree(site, TRAIN))}
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: site.post("/v1/jobs", body), range(10)))
    assert sorted(answer.status_code for answer in answers) == [200] * 9 + [201]
    del body["request_id"]
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: site.post("/v1/jobs", body), range(10)))
    assert {answer.status_code for answer in answers} == {200}


def test_a1_a_duplicate_says_that_the_files_have_changed(module_site, folder):
    job_of(send_script(module_site, project_dir=folder))
    again = send_script(module_site, project_dir=folder, files={**TRAIN, "train.py": b"print('new')\n"})
    assert again.json()["submitted"] is False
    [warning] = again.json()["bundle"]["warnings"]
    assert "have changed" in warning


def test_G33_after_its_end_the_same_arguments_make_a_new_Job(module_site, folder):
    first = job_of(send_script(module_site, project_dir=folder))
    assert module_site.post(f"/v1/scripts/{first['short_id']}/cancel").json()["changed"] is True
    second = send_script(module_site, project_dir=folder)
    assert second.status_code == 201
    assert second.json()["job"]["id"] != first["id"]


def test_G34_a_request_id_names_the_same_Job_even_after_its_end(module_site, folder):
    first = job_of(send_script(module_site, project_dir=folder, request_id="r-1"))
    module_site.post(f"/v1/scripts/{first['id']}/cancel")
    again = send_script(module_site, project_dir=folder, request_id="r-1")
    assert again.status_code == 200
    assert (again.json()["job"]["id"], again.json()["job"]["state"]) == (first["id"], "cancelled")
    assert again.json()["job"]["request_id"] == "r-1"


def test_G35_a_new_request_id_makes_a_second_Job(module_site, folder):
    first = job_of(send_script(module_site, project_dir=folder, request_id="r-1"))
    second = job_of(send_script(module_site, project_dir=folder, request_id="r-2"))
    assert first["id"] != second["id"]
    assert first["spec_hash"] == second["spec_hash"]


def test_a1_a_request_id_with_another_spec_is_a_conflict_that_names_the_keys(module_site, folder):
    first = job_of(send_script(module_site, project_dir=folder, request_id="r-1"))
    other = send_script(module_site, project_dir=folder, request_id="r-1", hours=2, args=["--x"])
    assert other.status_code == 409
    body = other.json()
    assert body["code"] == "JOB_REQUEST_CONFLICT"
    assert (body["keys"], body["short_id"]) == (["args", "hours"], first["short_id"])


def test_a1_a_request_id_is_one_persons_in_one_folder(module_site, folder):
    first = job_of(send_script(module_site, project_dir=folder, request_id="mine"))
    elsewhere = job_of(send_script(module_site, project_dir=folder + "-b", request_id="mine", hours=3))
    other = module_site.add_key(user="bob", kind="human")
    theirs = job_of(send_script(module_site, project_dir=folder, request_id="mine", hours=4, key=other))
    assert len({first["id"], elsewhere["id"], theirs["id"]}) == 3


@pytest.mark.parametrize("request_id", ["", "x" * 65, "a b", "é", "a/b", 7])
def test_G79_other_request_ids_are_refused(module_site, folder, request_id):
    answer = send_script(module_site, project_dir=folder, request_id=request_id)
    assert answer.status_code == 422
    assert answer.json()["code"] == "INVALID_REQUEST_ID"


@pytest.mark.parametrize("project_dir", [None, "relative", "~/x", "/a/../b", "/a/", "/a\0b", 3])
def test_G80_a_project_folder_that_is_none_is_refused(module_site, project_dir):
    answer = send_script(module_site, project_dir=project_dir)
    assert answer.status_code == 400
    assert ("spec.project_dir", "INVALID_REQUEST") in faults(answer)


@pytest.mark.parametrize("hours", [0, -1, 336.5, "2", True, float("inf")])
def test_G60_hours_that_are_none_are_refused(module_site, folder, hours):
    body = {"type": "train", "spec": document(send_tree(module_site, TRAIN), project_dir=folder)}
    body["spec"]["hours"] = hours
    answer = module_site.post("/v1/jobs", json.dumps(body).encode())
    assert answer.status_code in {400, 422}
    assert answer.json()["code"] in {"INVALID_SPEC", "INVALID_REQUEST"}


def test_G59_a_name_is_shown_and_bounded(module_site, folder):
    shown = job_of(send_script(module_site, project_dir=folder, name="my\x07 run"))
    assert shown["name"] == "my run"
    assert job_of(send_script(module_site, project_dir=folder + "-b"))["name"] == "train"
    long = send_script(module_site, project_dir=folder, name="x" * 81)
    assert faults(long) == {("spec.name", "INVALID_SPEC")}


@pytest.mark.parametrize(
    "script", ["../train.py", "/train.py", "-train.py", "~/train.py", "a/../../x.py", ""]
)
def test_G65_a_script_outside_the_project_is_refused(module_site, folder, script):
    answer = send_script(module_site, project_dir=folder, script=script)
    assert ("spec.script", "INVALID_SPEC") in faults(answer)


def test_G65_a_script_that_was_not_packed_is_refused(module_site, folder):
    answer = send_script(module_site, project_dir=folder, script="other.py")
    assert faults(answer) == {("spec.script", "INVALID_SPEC")}
    assert "not among the 2 files" in answer.json()["message"]


def test_G81_a_script_is_looked_for_below_its_folder_in_the_tree(module_site, folder):
    files = {"sub/project/train.py": b"1", "lib/mod.py": b"2"}
    assert job_of(send_script(module_site, project_dir=folder, files=files, workdir="sub/project"))
    wrong = send_script(module_site, project_dir=folder, files=files, workdir="sub")
    assert faults(wrong) == {("spec.script", "INVALID_SPEC")}


@pytest.mark.parametrize(
    ("name", "value"), [("WANDB_API_KEY", "x1"), ("MY_TOKEN", "abc"), ("DB_URL", "postgres://x")]
)
def test_G48_G50_variables_with_names_of_secrets_are_refused(module_site, folder, name, value):
    answer = send_script(module_site, project_dir=folder, env={name: value, "SEED": "1"})
    assert answer.status_code == 400
    assert faults(answer) == {(f"spec.env.{name}", "INVALID_REQUEST")}
    assert f"gpu secrets set {name}" in answer.json()["message"]
    assert "secrets:" in answer.json()["message"]


def test_G49_values_that_look_like_secrets_are_refused_and_not_echoed(module_site, folder):
    value = "hf_" + "a1B2" * 8
    answer = send_script(module_site, project_dir=folder, env={"HARMLESS": value, "OTHER": value})
    assert faults(answer) == {("spec.env.HARMLESS", "INVALID_REQUEST"), ("spec.env.OTHER", "INVALID_REQUEST")}
    assert value not in answer.text


def test_G47_a_plain_variable_is_part_of_the_spec(module_site, folder):
    assert job_of(send_script(module_site, project_dir=folder, env={"SEED": "7"}))["spec"]["env"] == {
        "SEED": "7"
    }


def test_G78_an_unknown_provider_is_refused_with_the_nearest(module_site, folder):
    answer = send_script(module_site, project_dir=folder, provider="kagle")
    assert answer.status_code == 404
    assert answer.json()["code"] == "PROVIDER_NOT_FOUND"
    assert "kaggle" in answer.json()["hint"]
    assert "`fake`" not in send_script(module_site, project_dir=folder, provider="fakes").json()["hint"]


def test_every_fault_of_a_spec_is_told_at_once(module_site):
    bundle = send_tree(module_site, TRAIN)
    spec = document(
        bundle,
        project_dir="x",
        hours=-1,
        vram_gb=700,
        command=["a"],
        hourz=3,
        args="a b",
        deps={"kind": "conda"},
        data=[{"mount": "A"}, {"mount": "b", "uri": "s3://x"}],
        secrets=["HF_TOKEN"],
        max_attempts=0,
    )
    answer = module_site.post("/v1/jobs", {"type": "train", "spec": spec, "extra": 1})
    found = {path for path, _ in faults(answer)}
    assert found >= {
        "extra",
        "spec.project_dir",
        "spec.hours",
        "spec.vram_gb",
        "spec.script",
        "spec.hourz",
        "spec.args",
        "spec.deps.kind",
        "spec.data[0]",
        "spec.data[0].mount",
        "spec.data[1].uri",
        "spec.secrets",
        "spec.max_attempts",
    }
    assert "did you mean `hours`" in answer.text


def test_P7_what_the_project_has_not_sent_is_refused_as_missing(module_site, folder):
    absent = {"manifest_sha256": "e" * 64, "files": 1, "bytes": 1}
    answer = module_site.post("/v1/jobs", {"type": "train", "spec": document(absent, project_dir=folder)})
    assert answer.status_code == 404
    assert (answer.json()["code"], answer.json()["missing"]) == ("BLOB_NOT_FOUND", ["e" * 64])
    # What another project has sent is as if nobody had.
    module_site.add_project("stranger")
    other = module_site.add_key("stranger")
    bundle = send_tree(module_site, {"train.py": b"only mine"})
    answer = module_site.post(
        "/v1/jobs", {"type": "train", "spec": document(bundle, project_dir=folder)}, key=other
    )
    assert answer.json()["code"] == "BLOB_NOT_FOUND"


def test_P7_a_blob_that_is_missing_is_named(module_site, folder):
    bundle = send_tree(module_site, {"train.py": b"one"})
    lost = hashlib.sha256(b"never sent").hexdigest()
    manifest = make_manifest(
        ContentKind.DATASETS,
        [ContentFile("train.py", 3, hashlib.sha256(b"one").hexdigest()), ContentFile("x.py", 10, lost)],
    )
    module_site.request("PUT", f"/v1/content/blobs/{manifest.sha256}", manifest.encode())
    spec = document({**bundle, "manifest_sha256": manifest.sha256}, project_dir=folder)
    answer = module_site.post("/v1/jobs", {"type": "train", "spec": spec})
    assert (answer.json()["code"], answer.json()["missing"]) == ("BLOB_NOT_FOUND", [lost])


def test_data_is_counted_by_its_manifest_and_a_single_file_has_to_be_one(module_site, folder):
    tree = send_tree(module_site, {"a.bin": b"12345"})
    item = {"mount": "a", "manifest_sha256": tree["manifest_sha256"], "single_file": "a.bin", "path": "a.bin"}
    hub = {"mount": "hub", "uri": "hf://datasets/team/words@main", "path": "hf://datasets/team/words@main"}
    job = job_of(send_script(module_site, project_dir=folder, data=[item, hub]))
    assert [(each["mount"], each["files"], each["bytes"]) for each in job["spec"]["data"]] == [
        ("a", 1, 5),
        ("hub", 0, 0),
    ]
    wrong = send_script(module_site, project_dir=folder, data=[{**item, "single_file": "b.bin"}])
    assert faults(wrong) == {("spec.data[0].single_file", "INVALID_SPEC")}


def test_what_was_packed_is_kept_while_its_Job_is_known(sqlite_site):
    files = {"train.py": b"kept", "data.txt": b"kept too", "Data.txt": b"differs in case"}
    job = job_of(send_script(sqlite_site, files=files))
    services, clock = sqlite_site.services, sqlite_site.clock
    send_tree(sqlite_site, {"stray.py": b"nobody names this"})
    clock.now += 10 * 86_400
    Collector(services.database, services.blobs, clock, grace_seconds=3600).run()
    assert not services.blobs.missing([hashlib.sha256(data).hexdigest() for data in files.values()])
    assert services.blobs.missing([hashlib.sha256(b"nobody names this").hexdigest()])
    with services.database.read() as connection:
        [contents] = jobs.contents_of(connection, [job["trial_id"]]).values()
    assert [(use.role, use.kind) for use in contents] == [("bundle", "bundle")]
    found = list(Verification(services.database, services.blobs, holders.Scope(), Pace(1e9)).run(Place()))
    assert [step.damage for step in found if step.damage] == []


def test_P9_names_of_secrets_are_kept_and_no_value_is_asked_for(module_site, folder):
    job = job_of(send_script(module_site, project_dir=folder, secrets=["WANDB_API_KEY"]))
    assert job["spec"]["secrets"] == ["WANDB_API_KEY"]


def test_c6_who_submits_is_remembered(module_site, folder):
    by_header = job_of(send_script(module_site, project_dir=folder, source="agent"))
    key = module_site.add_key(kind="agent", label="robot")
    by_key = job_of(send_script(module_site, project_dir=folder + "-b", key=key, source="cli"))
    assert (by_header["source"], by_key["source"]) == ("agent", "agent")
    with module_site.services.database.read() as connection:
        events = scripts.events_of(connection, by_header["trial_id"])
    assert [(event.after, event.actor) for event in events] == [("queued", "agent")]


def test_a_key_that_may_not_run_submits_nothing(module_site, folder):
    reader = module_site.add_key("default", Permission.TRAINING_READ, Permission.CONTENT_PUBLISH)
    answer = send_script(module_site, project_dir=folder, key=reader)
    assert answer.status_code == 403
