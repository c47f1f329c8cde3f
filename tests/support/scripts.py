"""Script Jobs for tests: specs, and rows as an acceptance stores them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from support.http import Http
from support.rows import IDS, new_job, trial_row
from support.site import Site
from trainshed.control.scripts.accept import NO_LIMIT_SECONDS
from trainshed.model.content import ContentFile, ContentKind, make_manifest
from trainshed.model.scripts.document import spec_hash, to_document
from trainshed.model.scripts.spec import Bundle, ScriptSpec
from trainshed.model.states import OutputStatus
from trainshed.model.strict_json import canonical_json
from trainshed.store import scripts
from trainshed.store.database import Database
from trainshed.store.records import Job
from trainshed.store.script_records import Script

BUNDLE = Bundle(manifest_sha256="d" * 64, files=3, bytes=900)


def script_spec(**values: Any) -> ScriptSpec:
    """A small project with ``train.py``; ``values`` are fields of `ScriptSpec`."""
    facts: dict[str, Any] = {
        "project_dir": "/home/ada/project",
        "bundle": BUNDLE,
        "name": "train",
        "script": "train.py",
        "hours": 0.5,
        "host": "h" * 16,
    }
    return ScriptSpec(**{**facts, **values})


def add_script(
    database: Database,
    request_id: str = "s-1",
    *,
    project_id: str = "p",
    owner: str = "human:test",
    source: str = "user",
    spec: ScriptSpec | None = None,
    at: float = 10.0,
) -> tuple[Job, Script]:
    """Store a script Job as an acceptance does, without the bytes of its bundle."""
    wanted = spec or script_spec()
    job = new_job(request_id, project_id, submitted_by=owner, created_at=at, updated_at=at)
    trial = trial_row(
        job,
        name=wanted.name,
        kind=scripts.SCRIPT,
        runner="",
        revision="",
        selector="",
        source_ref=None,
        snapshot_sha256="",
        entrypoint="",
        gpu_type="",
        gpus=0,
        timeout_seconds=NO_LIMIT_SECONDS,
        outputs='["outputs/**"]',
        output_status=OutputStatus.NONE,
    )
    script = Script(
        trial_id=trial["id"],
        job_id=job.id,
        project_id=project_id,
        owner=owner,
        source=source,
        spec=canonical_json(to_document(wanted)),
        spec_hash=spec_hash(wanted),
        outputs_dir=f"{wanted.project_dir}/runs/{job.id[-6:].lower()}",
        host=wanted.host,
        **FRESH,
    )
    made = database.write(
        lambda c: scripts.insert_script(c, job, trial, script, [], message="Submitted.", actor="api")
    )
    return made, script


FRESH: dict[str, Any] = {
    "phase": "waiting",
    "word": "queued",
    "provider": None,
    "gpu": None,
    "route": None,
    "route_reason": None,
    "not_before": None,
    "waiting_since": None,
    "excluded": "{}",
    "placements": 0,
    "accepted_attempts": 0,
    "free_attempts": 0,
    "ran_seconds": 0.0,
    "overrun_approved": False,
    "progress": None,
    "metrics": None,
    "failure_kind": None,
    "message": None,
    "outputs_fetched": False,
    "outputs_count": None,
    "cancel_requested_at": None,
    "fetch_requested_at": None,
    "version": 1,
}
"""What a script's columns hold before anything happened to it."""


def new_attempt_id() -> str:
    return IDS.attempt()


TRAIN = {"train.py": b"print('hello')\n", "gpu.yaml": b"script: train.py\n"}


def send_tree(site: Site, files: Mapping[str, bytes], *, key: str | None = None) -> dict[str, Any]:
    """Send files and their manifest as a packer does; the manifest's digest and what it counts."""
    entries = [ContentFile(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in files.items()]
    manifest = make_manifest(ContentKind.DATASETS, entries)
    for data in (*files.values(), manifest.encode()):
        put = site.request("PUT", f"/v1/content/blobs/{hashlib.sha256(data).hexdigest()}", data, key=key)
        assert put.status_code in {200, 201}, put.text
    return {"manifest_sha256": manifest.sha256, "files": len(files), "bytes": sum(map(len, files.values()))}


def document(bundle: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    """The spec of a small project, as a client sends it."""
    facts = {
        "kind": "script",
        "project_dir": "/home/ada/project",
        "bundle": dict(bundle),
        "script": "train.py",
        "hours": 0.5,
        "host": "host-1",
    }
    return {key: value for key, value in {**facts, **values}.items() if value is not None}


def send_script(
    site: Site,
    *,
    request_id: str | None = None,
    files: Mapping[str, bytes] = TRAIN,
    key: str | None = None,
    source: str | None = None,
    **values: Any,
) -> Any:
    """Send a project and submit it; the answer, whatever it is."""
    body: dict[str, Any] = {"type": "train", "spec": document(send_tree(site, files, key=key), **values)}
    if request_id is not None:
        body["request_id"] = request_id
    headers = {} if source is None else {"Trainshed-Source": source}
    return site.post("/v1/jobs", body, key=key, headers=headers)


def packed_over_http(http: Http, files: Mapping[str, bytes]) -> dict[str, Any]:
    """The same at a real server."""
    entries = [ContentFile(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in files.items()]
    manifest = make_manifest(ContentKind.DATASETS, entries)
    for data in (*files.values(), manifest.encode()):
        put = http.request("PUT", f"/v1/content/blobs/{hashlib.sha256(data).hexdigest()}", raw=data)
        assert put.status in {200, 201}, put.body
    return {"manifest_sha256": manifest.sha256, "files": len(files), "bytes": sum(map(len, files.values()))}
