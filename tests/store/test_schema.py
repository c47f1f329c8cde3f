"""The schema: what the migrations build is what the program means, and a newer one is left alone."""

from __future__ import annotations

import dataclasses
import json
import threading
import time

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError

from support import old_schema
from support.rows import add_job, add_project
from trainshed.model.access import Permission
from trainshed.model.runner_tree import tree_manifest
from trainshed.model.states import MOVES, REOPENINGS, TERMINAL, ImpossibleMove, State, check_move
from trainshed.store import (
    columns,
    garbage,
    jobs,
    operation_tables,
    records,
    runners,
    script_records,
    script_tables,
    tables,
    training_tables,
)
from trainshed.store.database import Database
from trainshed.store.schema import SchemaTooNew, is_current, migrate


def opened(url: str) -> Database:
    database = Database(url)
    migrate(database.engine)
    return database


def test_the_chain_of_migrations_builds_exactly_the_tables_of_the_program(empty_database_url):
    database = opened(empty_database_url)
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, columns.metadata) == []
    database.close()


def test_constraints_of_words_match_the_words_of_the_program(empty_database_url):
    """Alembic does not compare CHECK constraints, so this does."""
    database = opened(empty_database_url)
    inspector = inspect(database.engine)
    built = {
        str(check["name"]): frozenset(str(check["sqltext"]).split("'")[1::2])
        for table in columns.metadata.tables
        for check in inspector.get_check_constraints(table)
    }
    meant = {
        str(check.name): frozenset(str(check.sqltext).split("'")[1::2])
        for table in columns.metadata.tables.values()
        for check in table.constraints
        if hasattr(check, "sqltext")
    }
    assert built == meant
    database.close()


def test_migrating_again_changes_nothing(empty_database_url):
    assert not is_current(empty_database_url)
    database = opened(empty_database_url)
    assert is_current(empty_database_url)
    add_project(database)
    migrate(database.engine)
    with database.read() as connection:
        assert connection.execute(tables.projects.select()).all()
    database.close()


def test_processes_that_start_together_migrate_one_after_another(empty_database_url):
    errors: list[BaseException] = []

    def start() -> None:
        try:
            opened(empty_database_url).close()
        except BaseException as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []


def test_a_newer_programs_schema_is_refused_and_left_unchanged(empty_database_url):
    database = opened(empty_database_url)
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    assert not is_current(empty_database_url)
    with pytest.raises(SchemaTooNew, match="9999"):
        migrate(database.engine)
    with database.read() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == "9999"
    database.close()


def test_a_database_of_the_first_release_is_brought_along_with_all_it_holds(empty_database_url):
    old_schema.build(empty_database_url)
    database = opened(empty_database_url)
    with database.read() as connection:
        manifests = {row.sha256: row for row in connection.execute(tables.manifests.select())}
        held = {tuple(row) for row in connection.execute(tables.manifest_blobs.select())}
        blobs = connection.execute(tables.blobs.select()).all()
        keys = {
            row.label: set(json.loads(row.permissions)) for row in connection.execute(tables.keys.select())
        }
        job = jobs.get_job(connection, "p", old_schema.JOB)
        [trial] = jobs.trials_of(connection, [job.id])[job.id]
        [artifact] = jobs.list_artifacts(connection, trial.id)
        revision = runners.find_revision(connection, trial.runner, trial.revision)
        nothing_to_collect = garbage.unneeded_blobs(connection, "", "g" * 64, cutoff=1e12)
        nothing_to_let_go = garbage.dead_manifests(connection, "", "g" * 64, cutoff=1e12)
    snapshot, small = old_schema.SNAPSHOT, old_schema.SMALL
    files = [file.sha256 for file in old_schema.FILES]
    assert {(row.sha256, row.kind, row.created_at) for row in manifests.values()} == {
        (snapshot, "runners", 10.0),
        (small, "runners", 30.0),
    }
    assert manifests[snapshot].size == len(tree_manifest(old_schema.FILES))
    assert manifests[snapshot].let_go_at is None
    assert held == {(snapshot, files[0]), (snapshot, files[1]), (small, files[0])}
    assert {(row.touched_at, row.deleting_at) for row in blobs} == {(2.0, None)}
    assert (nothing_to_collect, nothing_to_let_go) == ([], [])
    assert keys == {
        "reader": {"runner.read", "training.read", "content.read"},
        "publisher": {"runner.publish", "runner.read", "content.publish", "content.read"},
        "runs": {"training.run", "training.stop"},
        "admin": {"admin"},
        "owner": set(Permission),
    }
    assert (job.status, job.platform_version) == ("completed", None)
    assert (trial.state, trial.image_digest, trial.profile, trial.resume_from) == (
        "succeeded",
        None,
        None,
        None,
    )
    assert (artifact.sha256, artifact.upload_state) == (old_schema.OUTPUT, "uploaded")
    assert revision is not None
    assert revision.tree_id is None
    database.close()


def test_E73_what_was_a_file_of_a_checkpoint_deleted_under_an_older_schema_is_deleted(empty_database_url):
    old_schema.build(empty_database_url)
    old_schema.delete_checkpoint(empty_database_url)
    before = time.time()
    database = opened(empty_database_url)
    with database.read() as connection:
        rows = {row.name: row for row in jobs.list_artifacts(connection, old_schema.TRIAL)}
    own = rows.pop("step-1/own")
    assert {row.upload_state for row in rows.values()} == {"uploaded"}, "live, later, or no file of it"
    assert (own.upload_state, own.size, own.sha256) == ("deleted", 9, "4" * 64)
    assert own.deletion == f"deleted with Checkpoint {old_schema.DELETED} by rule: Newer ones are kept"
    assert own.deleted_at is not None
    assert own.deleted_at >= before, "its bytes have the time of grace still"
    database.close()


def test_the_table_of_moves_in_the_database_is_that_of_the_model(database):
    with database.read() as connection:
        stored = {tuple(row) for row in connection.execute(tables.trial_moves.select())}
    assert stored == {
        (str(before), str(after), tasks_only)
        for moves, tasks_only in ((MOVES, False), (REOPENINGS, True))
        for before, afters in moves.items()
        for after in afters
    }


@pytest.mark.parametrize("ended", sorted(REOPENINGS))
def test_c7_only_a_training_task_that_has_ended_may_be_queued_again(database, ended):
    add_project(database)
    _, [trial] = add_job(database)
    mine = tables.trials.update().where(tables.trials.c.id == trial.id)
    for step in _path_to(ended):
        database.write(lambda c, step=step: c.execute(mine.values(state=step)))
    with pytest.raises(DBAPIError, match="trial_moves"):
        database.write(lambda c: c.execute(mine.values(state=State.QUEUED)))
    database.write(lambda c: c.execute(mine.values(kind="pytorch")))
    database.write(lambda c: c.execute(mine.values(state=State.QUEUED)))
    check_move(ended, State.QUEUED, task=True)
    with pytest.raises(ImpossibleMove):
        check_move(ended, State.QUEUED)


@pytest.mark.parametrize("before", State)
def test_the_database_itself_refuses_impossible_moves(database, before):
    """Also one that no code of ours would ask for (design section 6)."""
    add_project(database)
    _, [trial] = add_job(database)
    set_state = tables.trials.update().where(tables.trials.c.id == trial.id)

    def put(state: State) -> None:
        database.write(lambda c: c.execute(set_state.values(state=state)))

    for step in _path_to(before):
        put(step)
    for after in State:
        if after in MOVES[before] or after is before:
            continue
        with pytest.raises(DBAPIError, match="trial_moves"):
            put(after)
    with database.read() as connection:
        assert connection.execute(tables.trials.select()).mappings().one()["state"] == before
    assert (before in TERMINAL) == (not MOVES[before])


def _path_to(goal: State) -> list[State]:
    paths: dict[State, list[State]] = {State.QUEUED: []}
    frontier = [State.QUEUED]
    while frontier:
        state = frontier.pop(0)
        for following in sorted(MOVES[state]):
            if following not in paths:
                paths[following] = [*paths[state], following]
                frontier.append(following)
    return paths[goal]


@pytest.mark.parametrize(
    ("record", "table"),
    [
        (records.Project, tables.projects),
        (records.Member, tables.members),
        (records.Key, tables.keys),
        (records.Runner, tables.runners),
        (records.Revision, tables.runner_revisions),
        (records.Job, tables.jobs),
        (records.Trial, tables.trials),
        (records.Attempt, tables.attempts),
        (records.Allocation, tables.allocations),
        (records.Replica, tables.replicas),
        (records.Task, training_tables.tasks),
        (records.Artifact, tables.artifacts),
        (records.Content, tables.contents),
        (records.ContentVersion, tables.content_versions),
        (records.PluginApproval, tables.plugin_approvals),
        (records.TrialContent, tables.trial_contents),
        (records.Checkpoint, tables.checkpoints),
        (records.CheckpointFile, tables.checkpoint_files),
        (records.Operation, operation_tables.operations),
        (records.Event, tables.events),
        (script_records.Script, script_tables.scripts),
        (script_records.ScriptEvent, script_tables.script_events),
        (script_records.ScriptAttempt, script_tables.script_attempts),
        (script_records.ScriptCheckpoint, script_tables.script_checkpoints),
        (script_records.Approval, script_tables.approvals),
        (script_records.Confirmation, script_tables.confirmations),
        (script_records.ProviderState, script_tables.provider_states),
        (script_records.QuotaRow, script_tables.quota_readings),
        (script_records.StagedRow, script_tables.staged_data),
        (script_records.UserSecret, script_tables.user_secrets),
        (script_records.PolicyRow, script_tables.approval_policies),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_fields_of_a_record_are_the_columns_of_its_table_in_order(record, table):
    assert [field.name for field in dataclasses.fields(record)] == table.c.keys()


def test_P9_no_error_text_of_the_database_shows_the_values_of_a_statement(database):
    add_project(database)
    add_job(database, "r-1")
    with pytest.raises(DBAPIError) as caught:
        add_job(database, "r-1", canonical="canary-7f3a")
    assert "canary-7f3a" not in str(caught.value)
