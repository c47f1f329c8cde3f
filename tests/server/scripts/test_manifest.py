"""The manifest of a packed project over HTTP, and a submission made from it (contract G, a.1, k)."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from support.rows import allocation
from support.scripts import TRAIN, new_attempt_id, send_script
from trainshed.model.access import Permission
from trainshed.model.provenance import check_manifest, compare, rerun_request
from trainshed.store import attempts, jobs, script_attempts
from trainshed.store.script_records import ScriptAttempt, ScriptCheckpoint


def submitted(site, **values):
    answer = send_script(site, **values)
    assert answer.status_code == 201, answer.text
    return answer.json()["job"]


def manifest(site, job, key=None):
    answer = site.get(f"/v1/jobs/{job['job_id']}/manifest", key=key)
    assert answer.status_code == 200, answer.text
    check_manifest(answer.json())
    return answer.json()


def test_the_digest_of_the_packages_file_is_the_servers_word(module_site):
    deps = {"kind": "requirements", "file": "requirements.txt"}
    files = {**TRAIN, "requirements.txt": b"numpy==2.0\n"}
    job = submitted(module_site, project_dir="/deps/a", files=files, deps={**deps, "sha256": "f" * 64})
    [trial] = manifest(module_site, job)["frozen"]["trials"]
    assert trial["script"]["spec"]["deps"]["sha256"] == hashlib.sha256(b"numpy==2.0\n").hexdigest()
    job = submitted(module_site, project_dir="/deps/b", deps=deps)
    [trial] = manifest(module_site, job)["frozen"]["trials"]
    assert "sha256" not in trial["script"]["spec"]["deps"]


def test_what_an_attempt_went_on_from_is_named_by_digest(module_site):
    site = module_site
    job = submitted(site, project_dir="/resumed")
    before = manifest(site, job)
    saved = ScriptCheckpoint(
        trial_id=job["trial_id"],
        number=1,
        attempt=1,
        step=40,
        manifest_sha256=job["bundle_sha256"],
        files=2,
        bytes=9,
        saved_at=site.clock(),
        gone_at=None,
    )
    first = ScriptAttempt(
        attempt_id="",
        trial_id=job["trial_id"],
        number=1,
        key=f"gpu-{job['id']}-1",
        provider="kaggle",
        state="lost",
        remote_ref="r",
        url=None,
        gpu_promised="T4",
        gpu_real="P100",
        resumed_from=None,
        submitted_at=site.clock(),
        started_at=site.clock(),
        ended_at=site.clock(),
        exit_code=137,
        cursor=None,
        lines=0,
        seen_at=None,
        unreachable_seconds=0.0,
        message="not for the manifest",
    )
    second = replace(
        first, number=2, key=f"gpu-{job['id']}-2", provider="colab", state="running", resumed_from=1
    )

    def store(connection):
        [trial] = jobs.trials_of(connection, [job["job_id"]])[job["job_id"]]
        script_attempts.insert_checkpoint(connection, saved)
        for each in (first, replace(second, ended_at=None, exit_code=None)):
            held = allocation(trial, new_attempt_id(), engine=each.provider)
            attempts.open_all(connection, [(held, each.number)])
            script_attempts.insert_attempt(connection, replace(each, attempt_id=held.attempt_id))
            if each.exit_code is not None:
                attempts.end_all(connection, [attempts.End(held.attempt_id, site.clock(), "lost")])
                attempts.let_go(connection, [held.id])

    site.services.database.write(store)
    after = manifest(site, job)
    assert (after["digest"], after["frozen"]) == (before["digest"], before["frozen"])
    [outcome] = after["outcome"]["trials"]
    said = ("provider", "state", "gpu_promised", "gpu_real", "resumed_from", "exit_code")
    digest = job["bundle_sha256"]
    assert [tuple(each[key] for key in said) for each in outcome["attempts"]] == [
        ("kaggle", "lost", "T4", "P100", None, 137),
        ("colab", "running", "T4", "P100", {"number": 1, "manifest_sha256": digest}, None),
    ]
    assert outcome["checkpoints"] == [
        {
            "number": 1,
            "attempt": 1,
            "step": 40,
            "manifest_sha256": digest,
            "files": 2,
            "bytes": 9,
            "kept": True,
        }
    ]


def test_it_is_submitted_again_through_the_same_door_as_anything(module_site):
    site = module_site
    job = submitted(site, project_dir="/again", hours=0.5, env={"A": "b"})
    before = manifest(site, job)["frozen"]
    agent = site.add_key(kind="agent", label="robot")
    answer = site.post("/v1/jobs", rerun_request(before, "by-agent"), key=agent)
    assert answer.status_code == 201, answer.text
    made = answer.json()["job"]
    assert made["source"] == "agent"
    assert [(each.path, each.runs) for each in compare(before, manifest(site, made)["frozen"])] == [
        ("trials[0].script.source", False)
    ]
    reader = site.add_key("default", Permission.TRAINING_READ)
    assert manifest(site, job, reader)["frozen"] == before
    refused = site.post("/v1/jobs", rerun_request(before, "by-reader"), key=reader)
    assert refused.json()["code"] == "PERMISSION_DENIED"


def test_who_never_sent_the_files_cannot_run_them_by_their_digests(module_site):
    site = module_site
    files = {**TRAIN, "secret.py": b"print('of one project')\n"}
    job = submitted(site, project_dir="/owned", files=files)
    before = manifest(site, job)["frozen"]
    site.add_project("stranger")
    key = site.add_key("stranger")
    answer = site.post("/v1/jobs", rerun_request(before, "mine-now"), key=key)
    assert (answer.status_code, answer.json()["code"]) == (404, "BLOB_NOT_FOUND")
    assert answer.json()["missing"] == [job["bundle_sha256"]]
    assert site.get("/v1/scripts", key=key).json()["items"] == []
