"""``trainshed train``: PyTorch and Ray tasks on several replicas."""

from __future__ import annotations

import sys

import click

from trainshed.cli import train_views as views
from trainshed.cli.exits import Exit
from trainshed.cli.lazy import Group
from trainshed.cli.output import Sentence
from trainshed.cli.parameters import SECONDS, Whole
from trainshed.cli.session import Session, json_option, quiet_option
from trainshed.cli.train_shell import dashboard, shell
from trainshed.cli.train_submit import create, edit, explain, resubmit, validate
from trainshed.cli.train_watch import REFERENCE, alarms, events, logs, metrics, wait_to_the_end, why
from trainshed.cli.views import ids, more


@click.group(cls=Group)
def train() -> None:
    """Run PyTorch and Ray tasks on several replicas."""


@click.command("list")
@click.option("--kind", type=click.Choice(["pytorch", "ray"]), help="Only tasks of this kind.")
@click.option("--state", metavar="WORD", help="Only tasks in this state, e.g. Running.")
@click.option(
    "--label",
    "labels",
    metavar="KEY[=VALUE]",
    multiple=True,
    help="Only with this label; without a value: with any. Repeatable.",
)
@click.option("--q", metavar="TEXT", help="Part of a name or uuid.")
@click.option("--owner", metavar="USER", help="Only tasks of this user.")
@click.option("--limit", type=Whole(), default=25, show_default=True, help="Tasks per page, 1 to 100.")
@click.option("--cursor", help="Go on after an earlier page.")
@quiet_option
@json_option
@click.pass_obj
def list_(  # noqa: PLR0913 - one argument for each option
    session: Session,
    *,
    kind: str | None,
    state: str | None,
    labels: tuple[str, ...],
    q: str | None,
    owner: str | None,
    limit: int,
    cursor: str | None,
    quiet: bool,
) -> None:
    """List the tasks that you may see, newest first."""
    pairs: dict[str, str | None] = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not key:
            raise click.BadParameter(f"{label!r} is not KEY=VALUE or KEY", param_hint="--label")
        pairs[key] = value if equals else None
    with session.client() as client:
        page = client.tasks.list(
            kind=kind, state=_word(state), labels=pairs, q=q, owner=owner, limit=limit, cursor=cursor
        )
    session.show(page.raw, *([ids("name")] if quiet else [views.TASKS, *more(page.raw)]))


def _word(state: str | None) -> str | None:
    """A state in the server's letters, however it was typed; what is none goes there as it is."""
    from trainshed.model.training.words import Shown  # noqa: PLC0415 - click only at import time

    return {word.lower(): str(word) for word in Shown}.get((state or "").lower(), state)


@click.command("get")
@click.argument("task", type=REFERENCE)
@json_option
@click.pass_obj
def get_(session: Session, task: str) -> None:
    """Show a task as it is now.

    With its replicas, its Attempts, and why it waits or failed.
    """
    with session.client() as client:
        found = client.tasks.get(task)
    shown = [views.TASK, views.REPLICAS, views.ATTEMPTS] if found.attempts else [views.TASK]
    session.show(found.raw, *shown, *([views.LAST_LINES] if found.failure else []))


@click.command()
@click.argument("task", type=REFERENCE)
@click.option("--wait", is_flag=True, help="Wait until it has ended.")
@click.option("--wait-timeout", type=SECONDS, help="Seconds to wait at most (exit 8).")
@json_option
@click.pass_obj
def stop(session: Session, *, task: str, wait: bool, wait_timeout: float | None) -> None:
    """Stop a task. Repeatable.

    One with an exit notice is given its time to save first; resources are released after that.
    """
    with session.client() as client:
        found = client.tasks.stop(task)
        if wait:
            found = wait_to_the_end(session, client, found.name, wait_timeout)
    session.show(found.raw, views.RECEIPT)


@click.command()
@click.argument("task", type=REFERENCE)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@click.pass_obj
def delete(session: Session, *, task: str, yes: bool) -> None:
    """Stop a task and hide it; its records stay for audit."""
    with session.client() as client:
        name = client.tasks.get(task).name
        if not yes and not session.json:
            if not sys.stdin.isatty():
                raise click.UsageError("nobody can be asked here, where stdin is no terminal; give --yes")
            click.confirm(f"Delete {name}? Nobody will see it any more.", abort=True, err=True)
        client.tasks.delete(task)
    session.show({"name": name, "deleted": True}, Sentence(lambda _: f"{name} is deleted."))


@click.command("wait")
@click.argument("task", type=REFERENCE)
@click.option("--wait-timeout", type=SECONDS, help="Seconds to wait at most (exit 8).")
@json_option
@click.pass_context
def wait_(context: click.Context, *, task: str, wait_timeout: float | None) -> None:
    """Wait for a task to end; exit 1 unless it succeeded."""
    session = context.ensure_object(Session)
    session.task = task
    with session.client() as client:
        ended = wait_to_the_end(session, client, task, wait_timeout)
    session.task = None
    session.show(ended.raw, views.TASK, views.REPLICAS, views.LAST_LINES)
    context.exit(Exit.OK if ended.succeeded else Exit.FAILED)


@click.command()
@click.argument("task", type=REFERENCE)
@click.option("--public/--private", "public", default=None, help="Whether its whole project may see it.")
@click.option(
    "--with", "users", metavar="USER", multiple=True, help="Share it with this user too. Repeatable."
)
@click.option(
    "--without", "gone", metavar="USER", multiple=True, help="No longer with this user. Repeatable."
)
@json_option
@click.pass_obj
def share(
    session: Session, *, task: str, public: bool | None, users: tuple[str, ...], gone: tuple[str, ...]
) -> None:
    """Decide who may see a task.

    Its owner and the admins of its project always may. Without an option: show who.
    """
    with session.client() as client:
        found = client.tasks.get(task)
        shares = [user for user in dict.fromkeys((*found.shares, *users)) if user not in gone]
        if public is not None or users or gone:
            found = client.tasks.change(task, public=public, shares=shares if users or gone else None)
    session.show(found.raw, Sentence(lambda row: f"{row['name']} is visible {views.visible_text(row)}."))


@click.command()
@click.argument("task", type=REFERENCE)
@click.argument("priority")
@json_option
@click.pass_obj
def priority(session: Session, *, task: str, priority: str) -> None:
    """Change the priority of a waiting task.

    PRIORITY is a class of the catalogue, or a number; the larger goes first.
    """
    number = priority.removeprefix("-")
    wanted = int(priority) if number.isascii() and number.isdigit() else priority
    with session.client() as client:
        found = client.tasks.change(task, priority=wanted)
    session.show(found.raw, views.PLACED)


for _command in (
    create,
    validate,
    list_,
    get_,
    logs,
    events,
    alarms,
    why,
    metrics,
    wait_,
    stop,
    delete,
    resubmit,
    edit,
    share,
    priority,
    explain,
    shell,
    dashboard,
):
    train.add_command(_command)
