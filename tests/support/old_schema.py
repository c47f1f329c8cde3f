"""A database as the first release wrote it: schema 0001 with Runners, keys and a Job that ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import MetaData, create_engine

from support.rows import IDS
from trainshed.model.runner_tree import RunnerFile, snapshot_sha256, tree_manifest
from trainshed.store.schema import MIGRATIONS

COMMIT = "a" * 40
OTHER_COMMIT = "b" * 40
FILES = [RunnerFile("main.sh", "100644", 5, "1" * 64), RunnerFile("runner.toml", "100644", 7, "2" * 64)]
"""Of two Runners; a third one has the first of them only."""
SNAPSHOT, SMALL = snapshot_sha256(FILES), snapshot_sha256(FILES[:1])
OUTPUT = "3" * 64
KEYS: dict[str, list[str]] = {
    "reader": ["runner.read", "training.read"],
    "publisher": ["runner.publish", "runner.read"],
    "runs": ["training.run", "training.stop"],
    "admin": ["admin"],
    "owner": ["admin", "runner.publish", "runner.read", "training.read", "training.run", "training.stop"],
}
JOB, TRIAL = IDS.job(), IDS.trial()


def build(url: str) -> None:
    """Make the database at ``url``, which has no tables yet."""
    _upgrade(url, "0001", _fill)


def delete_checkpoint(url: str) -> None:
    """Bring it to schema 0006, where the Job had two Checkpoints and a rule deleted the first of them."""
    _upgrade(url, "0006", _put_checkpoints)


def _upgrade(url: str, schema: str, fill: Callable[[Callable[..., None]], None]) -> None:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, schema)
        metadata = MetaData()
        metadata.reflect(connection)

        def put(table: str, **values: Any) -> None:
            connection.execute(metadata.tables[table].insert().values(**values))

        fill(put)
    engine.dispose()


def _fill(put: Callable[..., None]) -> None:
    put("projects", id="p", name="p", priority=0, used_gpu_seconds=0.0, created_at=1.0)
    for name, permissions in KEYS.items():
        put(
            "keys",
            id=f"key_{name}",
            hash=name,
            project_id="p",
            kind="human",
            label=name,
            permissions=json.dumps(permissions),
            owner=name == "owner",
            created_at=1.0,
            created_by="somebody",
        )
    put("namespaces", name="team", project_id="p", created_at=1.0)
    for blob, size in ((FILES[0].sha256, 5), (FILES[1].sha256, 7), (OUTPUT, 9)):
        put("blobs", sha256=blob, size=size, created_at=2.0)
    for runner, commit, files, at in (
        ("team/one", COMMIT, FILES, 20.0),
        ("team/two", OTHER_COMMIT, FILES, 10.0),
        ("team/small", COMMIT, FILES[:1], 30.0),
    ):
        put("runners", name=runner, namespace="team", project_id="p", visibility="public", created_at=at)
        put(
            "runner_revisions",
            runner=runner,
            revision=commit,
            snapshot_sha256=snapshot_sha256(files),
            manifest=tree_manifest(files).decode(),
            definition=json.dumps({"execution": {"entrypoint": "main.sh", "outputs": ["out/**"]}}),
            published_at=at,
            published_by="somebody",
        )
    _put_job(put)


def _put_job(put: Any) -> None:
    put(
        "jobs",
        id=JOB,
        project_id="p",
        request_id="old",
        type="train",
        canonical=json.dumps({"trials": [{"spec": {"runner": "team/one@main"}}], "type": "train"}),
        status="completed",
        submitted_by="human:somebody",
        created_at=40.0,
        updated_at=50.0,
        finished_at=50.0,
    )
    put(
        "trials",
        id=TRIAL,
        job_id=JOB,
        project_id="p",
        position=0,
        name="trial-1",
        state="succeeded",
        runner="team/one",
        revision=COMMIT,
        selector="team/one@main",
        source_ref="main",
        snapshot_sha256=SNAPSHOT,
        entrypoint="main.sh",
        gpu_type="H100",
        gpus=1,
        cpus=1,
        memory_mb=1024,
        storage_mb=1024,
        shm_mb=64,
        timeout_seconds=60,
        outputs='["out/**"]',
        params="{}",
        tags="{}",
        created_at=40.0,
        priority=0,
        queue_rank=40.0,
        not_before=0.0,
        launch_failures=0,
        updated_at=50.0,
        finished_at=50.0,
        user_code_started=True,
        exit_code=0,
        output_status="complete",
    )
    put(
        "artifacts",
        id=IDS.artifact(),
        trial_id=TRIAL,
        name="out/a",
        size=9,
        sha256=OUTPUT,
        upload_state="uploaded",
        created_at=45.0,
    )


LIVE, DELETED = IDS.checkpoint(), IDS.checkpoint()


def _put_checkpoints(put: Callable[..., None]) -> None:
    """The deleted one has a file of its own, one that both have, and one that was collected again later."""
    put("attempts", id=f"{TRIAL}-1", trial_id=TRIAL, number=1, engine="local", created_at=40.0)
    for key, folder, files, gone in (
        (DELETED, "", {"step-1/own": "4", "step-2/both": "5", "again": "6"}, 60.0),
        (LIVE, "step-2", {"both": "5"}, None),
    ):
        put(
            "checkpoints",
            id=key,
            project_id="p",
            job_id=JOB,
            trial_id=TRIAL,
            attempt_id=f"{TRIAL}-1",
            folder=folder,
            checkpoint_type="lora",
            base_model="m",
            pinned=False,
            superseded=None if gone is None else "Newer ones are kept.",
            created_at=45.0,
            deleted_at=gone,
            deleted_by=None if gone is None else "controller",
        )
        for name, digit in files.items():
            put("checkpoint_files", checkpoint_id=key, name=name, size=9, sha256=digit * 64)
    for name, digit, at in (
        ("step-1/own", "4", 45.0),
        ("step-2/both", "5", 45.0),
        ("again", "6", 70.0),
        ("step-1/other", "7", 45.0),
    ):
        values = {"name": name, "size": 9, "sha256": digit * 64, "created_at": at}
        put("artifacts", id=IDS.artifact(), trial_id=TRIAL, upload_state="uploaded", **values)
