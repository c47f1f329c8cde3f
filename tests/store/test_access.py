"""Projects, members and keys: only hashes are stored, and a revoked key stops at once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from support.rows import add_project, project
from trainshed.model.access import (
    KEY_TEXT,
    ROLE_PERMISSIONS,
    KeyKind,
    Permission,
    Role,
    key_hash,
    new_key_text,
)
from trainshed.model.errors import Refusal
from trainshed.store import access, tables
from trainshed.store.records import Key


def key(secret: str, key_id: str = "key_1", **values) -> Key:
    facts = {
        "project_id": "p",
        "kind": "service",
        "label": "ci",
        "user": None,
        "permissions": json.dumps(["training.run"]),
        "owner": False,
        "created_at": 1.0,
        "created_by": "human:me",
        "expires_at": None,
        "revoked_at": None,
    }
    return Key(id=key_id, hash=key_hash(secret), **{**facts, **values})


def principal(database, secret, at=10.0):
    with database.read() as connection:
        return access.find_principal(connection, key_hash(secret), at=at)


def refusal(database, work) -> str:
    with pytest.raises(Refusal) as refused:
        database.write(work)
    return refused.value.code


def test_a_key_names_its_project_kind_and_permissions(database):
    add_project(database)
    secret = new_key_text()
    database.write(lambda c: access.insert_key(c, key(secret, kind="agent")))
    found = principal(database, secret)
    assert (found.project_id, found.kind, found.permissions) == (
        "p",
        KeyKind.AGENT,
        {Permission.TRAINING_RUN},
    )
    assert found.may(Permission.TRAINING_RUN)
    assert not found.may(Permission.ADMIN)
    assert found.actor == "agent:ci"
    assert principal(database, new_key_text()) is None


def test_P9_of_a_key_only_its_hash_is_stored(database, tmp_path):
    add_project(database)
    secret = new_key_text()
    assert KEY_TEXT.fullmatch(secret)
    database.write(lambda c: access.insert_key(c, key(secret)))
    with database.read() as connection:
        everything = [
            repr(row)
            for table in tables.metadata.tables.values()
            for row in connection.execute(table.select())
        ]
    assert not any(secret in row for row in everything)
    if database.dialect == "sqlite":
        files = [path.read_bytes() for path in tmp_path.iterdir() if path.is_file()]
        assert not any(secret.encode() in content for content in files)


def test_a_revoked_or_expired_key_is_nobody(database):
    add_project(database)
    database.write(lambda c: access.insert_key(c, key("one", "key_1")))
    database.write(lambda c: access.insert_key(c, key("two", "key_2", expires_at=20.0)))
    revoked = database.write(lambda c: access.revoke_key(c, "p", "key_1", at=9.0))
    again = database.write(lambda c: access.revoke_key(c, "p", "key_1", at=12.0))
    assert (revoked.revoked_at, again.revoked_at) == (9.0, 9.0)
    assert principal(database, "one") is None
    assert principal(database, "two", at=19.9) is not None
    assert principal(database, "two", at=20.0) is None


def test_a_key_is_revoked_only_in_its_own_project(database):
    add_project(database)
    add_project(database, "q")
    database.write(lambda c: access.insert_key(c, key("one")))
    assert refusal(database, lambda c: access.revoke_key(c, "q", "key_1", at=9.0)) == "KEY_NOT_FOUND"
    assert principal(database, "one") is not None


def test_permission_words_of_a_newer_program_grant_nothing(database):
    add_project(database)
    database.write(
        lambda c: access.insert_key(c, key("one", permissions=json.dumps(["training.run", "future.word"])))
    )
    assert principal(database, "one").permissions == {Permission.TRAINING_RUN}


def test_two_keys_cannot_have_one_secret(database):
    add_project(database)
    database.write(lambda c: access.insert_key(c, key("one", "key_1")))
    with pytest.raises(Exception, match=r"(?i)unique"):
        database.write(lambda c: access.insert_key(c, key("one", "key_2")))


def test_projects_are_made_once_and_changed_by_name(database):
    add_project(database, "p", name="First")
    again = project("p")
    assert refusal(database, lambda c: access.create_project(c, again)) == "ALREADY_EXISTS"
    changed = database.write(lambda c: access.update_project(c, "p", {"max_gpus": 8, "priority": 5}))
    assert (changed.max_gpus, changed.priority, changed.name) == (8, 5, "First")
    assert refusal(database, lambda c: access.update_project(c, "none", {})) == "PROJECT_NOT_FOUND"
    with database.read() as connection:
        assert [p.id for p in access.list_projects(connection)] == ["p"]


def test_a_members_role_changes_with_a_version_and_removal_revokes_their_keys(database):
    add_project(database)

    def put(role):
        return database.write(lambda c: access.put_member(c, "p", "ada", role, at=5.0, by="human:me"))

    assert (put(Role.VIEWER).version, put(Role.ADMIN).version) == (1, 2)
    database.write(lambda c: access.insert_key(c, key("hers", "key_1", user="ada")))
    database.write(lambda c: access.insert_key(c, key("other", "key_2", user="bob")))
    database.write(lambda c: access.remove_member(c, "p", "ada", at=7.0))
    assert principal(database, "hers") is None
    assert principal(database, "other") is not None
    assert refusal(database, lambda c: access.remove_member(c, "p", "ada", at=8.0)) == "MEMBER_NOT_FOUND"
    assert refusal(database, lambda c: access.put_member(c, "none", "ada", Role.VIEWER, at=1.0, by="x")) == (
        "PROJECT_NOT_FOUND"
    )


def test_a_member_added_twice_at_once_is_one_member(database):
    add_project(database)
    with ThreadPoolExecutor(8) as pool:
        members = list(
            pool.map(
                lambda _: database.write(
                    lambda c: access.put_member(c, "p", "ada", Role.VIEWER, at=5.0, by="human:me")
                ),
                range(8),
            )
        )
    assert {m.user for m in members} == {"ada"}
    with database.read() as connection:
        assert len(access.list_members(connection, "p")) == 1


def test_a_row_that_names_no_project_is_refused_by_the_database(database):
    with pytest.raises(Exception, match=r"(?i)foreign key"):
        database.write(lambda c: access.insert_key(c, key("one", project_id="nowhere")))
    with database.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM keys")).scalar_one() == 0


def test_only_admins_administer_and_every_role_reads():
    assert Permission.ADMIN in ROLE_PERMISSIONS[Role.ADMIN]
    assert Permission.ADMIN not in ROLE_PERMISSIONS[Role.DEVELOPER]
    assert ROLE_PERMISSIONS[Role.VIEWER] < ROLE_PERMISSIONS[Role.DEVELOPER] < ROLE_PERMISSIONS[Role.ADMIN]
    assert {Permission.TRAINING_RUN, Permission.TRAINING_STOP} <= ROLE_PERMISSIONS[Role.DEVELOPER]
