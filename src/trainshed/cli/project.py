"""``trainshed project``, ``member``, ``key``: administration of projects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli.lazy import Group
from trainshed.cli.output import Column, Fields, Sentence, Table, size
from trainshed.cli.parameters import POSITIVE, Whole
from trainshed.cli.session import Session, json_option
from trainshed.cli.submission import SIZE

if TYPE_CHECKING:
    from trainshed.sdk import Client

ROLES = ("viewer", "developer", "admin")
KINDS = ("human", "service", "agent")
UNLIMITED = "none"
_UNLIMITED_TOO = (UNLIMITED, "unlimited")
"""The word that views show is taken as well."""


def _limit(key: str) -> Callable[[Mapping[str, Any]], str]:
    """A limit of a project; none is a value too."""
    return lambda row: "unlimited" if row.get(key) is None else str(row[key])


def _bytes(key: str) -> Callable[[Mapping[str, Any]], str]:
    """A quota of content."""
    return lambda row: "unlimited" if row.get(key) is None else size(row[key])


def _used(row: Mapping[str, Any]) -> str | None:
    """Content that counts; a server need not say it."""
    used = row.get("content_bytes")
    return None if used is None else size(used)


def _hours(key: str) -> Callable[[Mapping[str, Any]], str]:
    """GPU-hours of a project."""
    return lambda row: "unlimited" if row.get(key) is None else f"{row[key]:.2f}"


_PROJECT_CELLS = (
    Column("PROJECT", "project_id"),
    Column("NAME", "name"),
    Column("PRIORITY", "priority"),
    Column("MAX GPUS", _limit("max_gpus")),
    Column("GPU HOURS", _hours("budget_gpu_hours")),
    Column("CONTENT", _bytes("max_content_bytes")),
)
PROJECTS = Table(_PROJECT_CELLS, empty="No projects.")
PROJECT = Fields(
    (
        ("project", "project_id"),
        ("name", "name"),
        ("priority", "priority"),
        ("max GPUs", _limit("max_gpus")),
        ("GPU-hours", _hours("budget_gpu_hours")),
        ("GPU-hours used", _hours("used_gpu_hours")),
        ("content used", _used),
        ("content quota", _bytes("max_content_bytes")),
        ("created", "created_at"),
    ),
)
MEMBERS = Table(
    (Column("USER", "user"), Column("ROLE", "role"), Column("SINCE", "added_at"), Column("BY", "added_by")),
    empty="No members.",
)
MEMBER = Fields((("user", "user"), ("role", "role")))
KEYS = Table(
    (
        Column("KEY", "key_id"),
        Column("LABEL", "label"),
        Column("KIND", "kind"),
        Column("PERMISSIONS", "permissions", rank=1),
        Column("CREATED", "created_at", rank=2),
        Column("EXPIRES", "expires_at"),
        Column("REVOKED", "revoked_at"),
    ),
    empty="No keys.",
)


class LimitType(click.ParamType[Any]):
    """A number of at least zero, or ``unlimited`` (``none``) for no limit."""

    name = "number|unlimited"

    def __init__(self, kind: type[int | float]) -> None:
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in _UNLIMITED_TOO:
            return UNLIMITED
        try:
            number = self.kind(value)
        except ValueError:
            number = self.kind(-1)
        if not 0 <= number < float("inf"):
            self.fail(
                f"{value!r} is neither a number of at least 0 nor `unlimited` (or `{UNLIMITED}`)", param, ctx
            )
        return number


class ContentLimit(click.ParamType[Any]):
    """A size such as ``500Gi``, in bytes, or ``unlimited`` (``none``) for no limit."""

    name = "size|unlimited"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return UNLIMITED if value in _UNLIMITED_TOO else SIZE.convert(value, param, ctx) << 20


@click.group(cls=Group)
def project() -> None:
    """Administer projects."""


@project.command("list")
@json_option
@click.pass_obj
def project_list(session: Session) -> None:
    """List the projects that your key may administer."""
    with session.client() as client:
        session.show(client.projects.list().raw, PROJECTS)


@project.command("get")
@click.argument("project_id")
@json_option
@click.pass_obj
def project_get(session: Session, project_id: str) -> None:
    """Show a project, its limits and what it used."""
    with session.client() as client:
        session.show(client.projects.get(project_id), PROJECT)


@project.command("create")
@click.argument("project_id")
@click.option("--name", help="Name for people; the id by default.")
@click.option("--priority", type=Whole(), help="Larger starts first (default 0).")
@click.option("--max-gpus", type=LimitType(int), help="GPUs at a time; unlimited by default.")
@click.option("--gpu-hours", type=LimitType(float), help="Budget in GPU-hours; unlimited by default.")
@click.option(
    "--max-content",
    type=ContentLimit(),
    help="Published content, whole MiB, e.g. 500Gi; unlimited by default.",
)
@json_option
@click.pass_obj
def project_create(
    session: Session,
    project_id: str,
    *,
    name: str | None,
    priority: int | None,
    max_gpus: int | str | None,
    gpu_hours: float | str | None,
    max_content: int | str | None,
) -> None:
    """Create a project."""
    with session.client() as client:
        found = client.projects.create(
            project_id,
            name=name,
            priority=priority,
            max_gpus=None if isinstance(max_gpus, str) else max_gpus,
            budget_gpu_hours=None if isinstance(gpu_hours, str) else gpu_hours,
            max_content_bytes=None if isinstance(max_content, str) else max_content,
        )
    session.show(found, PROJECT)
    session.note(
        f"Make a key for it: `{session.program} --project {project_id} key create LABEL --role admin`."
    )


@project.command("set")
@click.argument("project_id")
@click.option("--name", help="Name for people.")
@click.option("--priority", type=Whole(), help="Larger starts first.")
@click.option("--max-gpus", type=LimitType(int), help="GPUs at a time, or `unlimited`.")
@click.option("--gpu-hours", type=LimitType(float), help="Budget in GPU-hours, or `unlimited`.")
@click.option(
    "--max-content", type=ContentLimit(), help="Published content, whole MiB, e.g. 500Gi, or `unlimited`."
)
@json_option
@click.pass_obj
def project_set(
    session: Session,
    /,
    project_id: str,
    *,
    gpu_hours: float | str | None,
    max_content: int | str | None,
    **given: Any,
) -> None:
    """Change a project's name, priority or limits."""
    named = {**given, "budget_gpu_hours": gpu_hours, "max_content_bytes": max_content}
    changes = {
        key: None if value == UNLIMITED else value for key, value in named.items() if value is not None
    }
    if not changes:
        raise click.UsageError(
            "nothing to change: give --name, --priority, --max-gpus, --gpu-hours or --max-content"
        )
    with session.client() as client:
        session.show(client.projects.set(project_id, changes), PROJECT)


@click.group(cls=Group)
def member() -> None:
    """Administer the members of a project."""


@member.command("list")
@json_option
@click.pass_obj
def member_list(session: Session) -> None:
    """List the members of your key's project (or --project)."""
    with session.client() as client:
        session.show(client.members.list(_project(session, client)).raw, MEMBERS)


@member.command("set")
@click.argument("user")
@click.argument("role", type=click.Choice(ROLES))
@json_option
@click.pass_obj
def member_set(session: Session, user: str, role: str) -> None:
    """Add a member, or change the role of one."""
    with session.client() as client:
        session.show(client.members.set(_project(session, client), user, role), MEMBER)


@member.command("remove")
@click.argument("user")
@json_option
@click.pass_obj
def member_remove(session: Session, user: str) -> None:
    """Remove a member; the keys made for that user end too."""
    with session.client() as client:
        client.members.remove(_project(session, client), user)
    session.show({"user": user, "removed": True}, Sentence(lambda _: f"{user} is no member any more."))


@click.group(cls=Group)
def key() -> None:
    """Administer the API keys of a project."""


@key.command("list")
@json_option
@click.pass_obj
def key_list(session: Session) -> None:
    """List keys of your key's project (or --project); their texts are not kept anywhere."""
    with session.client() as client:
        session.show(client.keys.list(_project(session, client)).raw, KEYS)


@key.command("create")
@click.argument("label")
@click.option("--kind", type=click.Choice(KINDS), default="human", show_default=True, help="Who holds it.")
@click.option("--role", type=click.Choice(ROLES), help="Permissions of this role (default developer).")
@click.option(
    "--permission",
    "permissions",
    multiple=True,
    help="Exactly these permissions, e.g. training.read. Repeatable.",
)
@click.option("--user", help="The member it belongs to.")
@click.option("--expires-in", "expires_in_seconds", type=POSITIVE, help="Seconds it is valid.")
@json_option
@click.pass_obj
def key_create(
    session: Session, /, label: str, *, role: str | None, permissions: tuple[str, ...], **given: Any
) -> None:
    """Make a key. Its text is printed once, alone on stdout, and cannot be shown again."""
    if role and permissions:
        raise click.UsageError("--role and --permission exclude each other")
    chosen = role or (None if permissions else "developer")
    with session.client() as client:
        found = client.keys.create(
            _project(session, client), label=label, role=chosen, permissions=permissions or None, **given
        )
    session.show(found, Sentence(lambda row: str(row["key"])))
    session.note(f"{found.get('key_id')} ({label}); keep the key: it is not stored and not shown again.")


@key.command("revoke")
@click.argument("key_id")
@json_option
@click.pass_obj
def key_revoke(session: Session, key_id: str) -> None:
    """End a key at once."""
    with session.client() as client:
        client.keys.revoke(_project(session, client), key_id)
    session.show({"key_id": key_id, "revoked": True}, Sentence(lambda _: f"{key_id} is revoked."))


def _project(session: Session, client: Client) -> str:
    """The project named by --project, else the key's own."""
    return session.project or str(client.me()["project_id"])
