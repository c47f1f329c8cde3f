"""Runners: namespaces, Revisions, moving refs, and who may read them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, delete, insert, or_, select, true, update

from trainshed.model.access import Permission, Principal, Visibility
from trainshed.model.errors import Refusal
from trainshed.model.selectors import Selector
from trainshed.store.namespaces import claim_namespace
from trainshed.store.records import Revision, Runner
from trainshed.store.tables import runner_grants, runner_refs, runner_revisions, runners

_MIN_SHORT_COMMIT = 7


def _readable(*, owner: bool) -> Select[Any]:
    """Revisions that the project ``:project`` may read, or all for the owner."""
    granted = select(runner_grants.c.runner).where(runner_grants.c.project_id == bindparam("project"))
    allowed: ColumnElement[bool] = or_(
        runners.c.visibility == Visibility.PUBLIC,
        runners.c.project_id == bindparam("project"),
        (runners.c.visibility == Visibility.PROJECTS) & runners.c.name.in_(granted),
    )
    return (
        select(runner_revisions)
        .join(runners, runners.c.name == runner_revisions.c.runner)
        .where(runner_revisions.c.withdrawn_at.is_(None), true() if owner else allowed)
    )


# Every submission asks these; building a statement costs several times what running it does.
_READABLE = {owner: _readable(owner=owner) for owner in (False, True)}
_READABLE_OF = {
    owner: query.where(runners.c.name == bindparam("runner")) for owner, query in _READABLE.items()
}
_READABLE_ONE = {
    owner: query.where(runner_revisions.c.revision == bindparam("commit"))
    for owner, query in _READABLE_OF.items()
}
_REVISION = select(runner_revisions).where(
    runner_revisions.c.runner == bindparam("runner"), runner_revisions.c.revision == bindparam("commit")
)
_POINTED = select(runner_refs.c.revision).where(
    runner_refs.c.runner == bindparam("runner"), runner_refs.c.ref == bindparam("name")
)


def find_runner(connection: Connection, name: str) -> Runner | None:
    row = connection.execute(select(runners).where(runners.c.name == name)).first()
    return Runner(*row) if row else None


def claim(
    connection: Connection, principal: Principal, name: str, visibility: Visibility, *, at: float
) -> Runner:
    """The Runner to publish in, made on first use.

    A namespace belongs to the project that first publishes in it; only the owner key may use any. Raises
    `Refusal` ``NAMESPACE_TAKEN``.
    """
    holder = claim_namespace(connection, principal, name, at=at)
    there = find_runner(connection, name)
    if there is not None:
        return there
    namespace = name.split("/", 1)[0]
    made = Runner(name, namespace, holder, visibility, at)
    connection.execute(
        insert(runners).values(
            name=name, namespace=namespace, project_id=holder, visibility=visibility, created_at=at
        ),
    )
    return made


def find_revision(connection: Connection, runner: str, revision: str) -> Revision | None:
    """A Revision by full commit, withdrawn ones included."""
    row = connection.execute(_REVISION, {"runner": runner, "commit": revision}).first()
    return Revision(*row) if row else None


def insert_revision(connection: Connection, values: dict[str, Any]) -> Revision:
    """Insert a new Revision (columns of ``runner_revisions`` but ``id``)."""
    connection.execute(insert(runner_revisions).values(**values))
    made = find_revision(connection, values["runner"], values["revision"])
    assert made is not None  # noqa: S101 - written above in the same transaction
    return made


def restore_revision(connection: Connection, revision: Revision) -> None:
    """Publishing the same bytes again makes a withdrawn Revision readable again."""
    connection.execute(
        update(runner_revisions).where(runner_revisions.c.id == revision.id).values(withdrawn_at=None),
    )


def withdraw(connection: Connection, runner: str, revision: str, *, at: float) -> bool:
    """Make a Revision unreadable; whether one was readable before."""
    changed = connection.execute(
        update(runner_revisions)
        .where(
            runner_revisions.c.runner == runner,
            runner_revisions.c.revision == revision,
            runner_revisions.c.withdrawn_at.is_(None),
        )
        .values(withdrawn_at=at),
    )
    return changed.rowcount > 0


def move_ref(connection: Connection, runner: str, ref: str, revision: str, *, at: float) -> None:
    """Let a branch or tag name point at a Revision (E25: accepted Jobs keep what they froze)."""
    connection.execute(delete(runner_refs).where(runner_refs.c.runner == runner, runner_refs.c.ref == ref))
    connection.execute(insert(runner_refs).values(runner=runner, ref=ref, revision=revision, moved_at=at))


def list_refs(connection: Connection, runner: str) -> dict[str, str]:
    rows = connection.execute(
        select(runner_refs.c.ref, runner_refs.c.revision).where(runner_refs.c.runner == runner)
    )
    return dict(rows.all())


def set_visibility(
    connection: Connection, runner: str, visibility: Visibility, granted: Collection[str]
) -> None:
    """Decide who may read a Runner; ``granted`` counts for `Visibility.PROJECTS` only."""
    connection.execute(update(runners).where(runners.c.name == runner).values(visibility=visibility))
    connection.execute(delete(runner_grants).where(runner_grants.c.runner == runner))
    if granted:
        connection.execute(
            insert(runner_grants),
            [{"runner": runner, "project_id": project} for project in sorted(set(granted))],
        )


def list_grants(connection: Connection, runner: str) -> list[str]:
    found = connection.execute(select(runner_grants.c.project_id).where(runner_grants.c.runner == runner))
    return sorted(found.scalars())


def resolve(
    connection: Connection, principal: Principal, selector: Selector, *, to_run: bool = False
) -> tuple[Revision, str | None]:
    """The readable Revision that ``selector`` names, and the moving ref it was named by, if any.

    The owner key reads every Runner; what is ``to_run`` its project must be able to read, since that is
    whom a Trial runs for and what is checked again before it starts (A2).

    Unknown, withdrawn and unreadable Runners are one refusal, so that nothing is learned about other
    projects' content (E2): `Refusal` ``RUNNER_NOT_FOUND``; ``RUNNER_VERSION_AMBIGUOUS`` for a short commit
    with several matches.
    """
    if not principal.may(Permission.RUNNER_READ) and not principal.may(Permission.TRAINING_RUN):
        raise _not_found(selector)
    wanted, ref = selector.revision, None
    if not selector.pinned:
        pointed = connection.execute(
            _POINTED, {"runner": selector.full_name, "name": wanted}
        ).scalar_one_or_none()
        if pointed is not None:
            wanted, ref = pointed, selector.revision
    owner = principal.owner and not to_run
    whose = {"project": principal.project_id, "runner": selector.full_name}
    rows = connection.execute(_READABLE_ONE[owner], {**whose, "commit": wanted}).all()
    if not rows and not selector.pinned and _looks_short(wanted):
        short = _READABLE_OF[owner].where(runner_revisions.c.revision.startswith(wanted)).limit(3)
        rows = connection.execute(short, whose).all()
    if not rows:
        raise _not_found(selector)
    if len(rows) > 1:
        some = ", ".join(row.revision for row in rows)
        raise Refusal.of(
            "RUNNER_VERSION_AMBIGUOUS", f"`{wanted}` is short for several commits: {some}", path="runner"
        )
    return Revision(*rows[0]), ref


def still_readable(connection: Connection, project_id: str, runner: str, revision: str) -> bool:
    """Whether a project may still read what a queued Trial froze (A2)."""
    wanted = {"project": project_id, "runner": runner, "commit": revision}
    return connection.execute(_READABLE_ONE[False], wanted).first() is not None


def reads_snapshot(connection: Connection, project_id: str, runner: str, snapshot_sha256: str) -> bool:
    """Whether a project may read a Revision of the Runner that has these files."""
    mine = _READABLE_OF[False].where(runner_revisions.c.snapshot_sha256 == snapshot_sha256).limit(1)
    return connection.execute(mine, {"project": project_id, "runner": runner}).first() is not None


def list_revisions(
    connection: Connection,
    principal: Principal,
    *,
    before: int | None,
    limit: int,
    name: str | None = None,
) -> list[tuple[Revision, str]]:
    """Readable Revisions with their Runner's visibility, newest first (E7)."""
    query = _READABLE[principal.owner].add_columns(runners.c.visibility)
    if name is not None:
        query = query.where(runners.c.name == name)
    if before is not None:
        query = query.where(runner_revisions.c.id < before)
    query = query.order_by(runner_revisions.c.id.desc()).limit(limit)
    rows = connection.execute(query, {"project": principal.project_id})
    return [(Revision(*row[:-1]), row[-1]) for row in rows]


def _looks_short(text: str) -> bool:
    return len(text) >= _MIN_SHORT_COMMIT and all(c in "0123456789abcdef" for c in text)


def _not_found(selector: Selector) -> Refusal:
    return Refusal.of("RUNNER_NOT_FOUND", f"there is no readable Runner Revision `{selector}`", path="runner")
