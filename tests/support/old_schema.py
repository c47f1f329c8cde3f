"""A database as the first release wrote it: schema 0001 with Runners, keys and a Job that ended."""

from __future__ import annotations

import json
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, MetaData, create_engine

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
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        _fill(connection)
    engine.dispose()


def _fill(connection: Connection) -> None:
    metadata = MetaData()
    metadata.reflect(connection)

    def put(table: str, **values: Any) -> None:
        connection.execute(metadata.tables[table].insert().values(**values))

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
