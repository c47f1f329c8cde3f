"""``train create``, ``validate``, ``edit``, ``resubmit`` and ``explain``: tasks before they run."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli import train_views as views
from trainshed.cli.exits import Exit
from trainshed.cli.output import Sentence
from trainshed.cli.parameters import SECONDS, Whole
from trainshed.cli.session import Session, json_option, quiet_option
from trainshed.cli.train_files import GivenFile, as_yaml, located, read_document, with_values
from trainshed.cli.train_watch import REFERENCE, follow_to_the_end, wait_to_the_end
from trainshed.cli.waiting import Deadline

if TYPE_CHECKING:
    from trainshed.sdk import Client, SubmittedTask
    from trainshed.sdk.errors import TrainshedError

MAX_SMOKE_MINUTES = 1440
_WHAT = "a task file"
_HIDDEN = "TRAINSHED-HIDDEN-VALUE"
_ID = Sentence(lambda document: str(document["name"]))

file_option = click.option(
    "-f", "--file", "file", metavar="FILE", required=True, help="Task file, YAML or JSON (`-` = stdin)."
)
set_option = click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Replace a field of the file, e.g. workers=3; values are YAML. Repeatable.",
)


@click.command()
@file_option
@set_option
@click.option("--request-id", metavar="ID", help="Names this submission; a retry finds the same task.")
@click.option(
    "--allow-duplicate", is_flag=True, help="Create it although the same was submitted within a minute."
)
@click.option("--wait", is_flag=True, help="Wait for the end; exit 1 unless the task succeeded.")
@click.option("--follow", is_flag=True, help="Print the log until its end, then as --wait.")
@click.option("--wait-timeout", type=SECONDS, help="Seconds to wait at most (exit 8).")
@quiet_option
@json_option
@click.pass_context
def create(  # noqa: PLR0913 - one argument for each option
    context: click.Context,
    *,
    file: str,
    settings: tuple[str, ...],
    request_id: str | None,
    allow_duplicate: bool,
    wait: bool,
    follow: bool,
    wait_timeout: float | None,
    quiet: bool,
) -> None:
    """Create the training task of a file.

    A file without a request_id gets one, which is printed: repeat the command with --request-id after a lost
    answer, and it finds the task instead of making another. What is wrong with the file is told with line
    and column, all of it at once.
    """
    session = context.ensure_object(Session)
    if quiet and follow:
        raise click.UsageError("--quiet prints the name alone and --follow prints the log; give one of them")
    if wait_timeout is not None and not wait and not follow:
        raise click.UsageError("--wait-timeout bounds --wait or --follow; give one of them")
    given = with_values(read_document(file, _WHAT), settings)
    deadline = Deadline(wait_timeout)
    with session.client() as client:
        made = submit(session, client, given, request_id=request_id, allow_duplicate=allow_duplicate)
        shown = [_ID] if quiet else [views.RECEIPT]
        if not wait and not follow:
            session.show({**made.raw, "request_id": made.request_id}, *shown)
            session.note(f"Follow it with `{session.program} train logs {made.name} --follow`.")
            return
        session.task = made.name
        session.note(f"{made.name} {'was created before' if made.accepted_before else 'is created'}.")
        if follow:
            follow_to_the_end(session, client, made.name, deadline)
        ended = wait_to_the_end(session, client, made.name, deadline.left())
        session.task = None
        # Who followed the log has its end on the screen already.
        end = [] if follow else [views.LAST_LINES]
        session.show(ended.raw, *([_ID] if quiet else [views.TASK, views.REPLICAS, *end]))
    context.exit(Exit.OK if ended.succeeded else Exit.FAILED)


def submit(
    session: Session, client: Client, given: GivenFile, *, request_id: str | None, allow_duplicate: bool
) -> SubmittedTask:
    """Create the task of a document; its warnings are told, its faults with their places."""
    from trainshed.sdk import errors  # noqa: PLC0415 - click only at import time

    request = dict(given.value)
    if request_id is not None:
        request["request_id"] = request_id
    made_here = "request_id" not in request
    if made_here:
        request["request_id"] = str(uuid.uuid4())
        session.note(f"request id {request['request_id']}")
    # A request id of our own is new for each run, so it does not tell two runs by mistake.
    allowed = True if allow_duplicate else False if made_here else None
    if "allow_duplicate" in request and not allow_duplicate:
        allowed = None
    try:
        found = client.tasks.create(request, allow_duplicate=allowed, make_request_id=False)
    except (errors.ConnectionFailed, errors.ServerUnavailable) as error:
        _how_to_repeat(error, str(request["request_id"]))
        raise
    except errors.ApiError as error:
        raise located(error, given, for_people=not session.json) from error
    for warning in views.warnings_of(found.raw):
        session.warn(warning)
    return found


@click.command()
@file_option
@set_option
@click.option(
    "--smoke",
    type=Whole(1, MAX_SMOKE_MINUTES),
    metavar="MINUTES",
    help="Judge a small copy of the task: one replica, and this time limit.",
)
@click.option("--workers", type=Whole(0), help="With --smoke: workers of the copy (default 0).")
@json_option
@click.pass_obj
def validate(
    session: Session, *, file: str, settings: tuple[str, ...], smoke: int | None, workers: int | None
) -> None:
    """Show what a task would come to; creates nothing.

    Tells whether it would start now, what the quota says, and what is wrong with the file.
    """
    if workers is not None and smoke is None:
        raise click.UsageError("--workers is for the small copy; give --smoke MINUTES too")
    given = with_values(read_document(file, _WHAT), settings)
    copy = None if smoke is None else {"minutes": smoke, "workers": workers or 0}
    from trainshed.sdk.errors import ApiError  # noqa: PLC0415 - click only at import time

    with session.client() as client:
        try:
            found = client.tasks.validate(given.value, smoke=copy)
        except ApiError as error:
            raise located(error, given, for_people=not session.json) from error
    for warning in views.warnings_of(found.raw):
        session.warn(warning)
    session.show(found.raw, views.VALIDATION, views.ROLES, views.QUOTA_OF_TASK)


@click.command()
@click.argument("task", type=REFERENCE)
@json_option
@click.pass_obj
def resubmit(session: Session, task: str) -> None:
    """Run a task that has ended once more.

    The input is the same, frozen when it was created; it takes a new place in the queue.
    """
    with session.client() as client:
        found = client.tasks.resubmit(task)
    session.show(found.raw, views.RECEIPT)


@click.command()
@click.argument("task", type=REFERENCE)
@click.option("--output", "-o", metavar="FILE", help="Write the file instead of printing it.")
@click.option("--open", "open_", is_flag=True, help="Edit it in $EDITOR and create what was saved.")
@json_option
@click.pass_obj
def edit(session: Session, *, task: str, output: str | None, open_: bool) -> None:
    """Print a task's file, to change it and create it anew.

    Every default is written out. Hidden values are not in it; a comment stands where each belongs.
    """
    if output is not None and open_:
        raise click.UsageError("--output and --open exclude each other")
    with session.client() as client:
        found = client.tasks.get(task)
        text = task_file(found.name, found.spec)
        if open_:
            _edit_and_create(session, client, found.name, text)
            return
    if output is not None:
        from trainshed.sdk.errors import LocalFileError  # noqa: PLC0415 - click only at import time

        try:
            Path(output).write_text(text, encoding="utf-8")
        except OSError as error:
            raise LocalFileError(f"cannot write {output}: {error.strerror}") from error
    document = {"name": found.name, "type": "train", "spec": found.spec, "file": output}
    session.show(document, Sentence(lambda _: "" if output is not None else text.rstrip("\n")))
    if output is not None:
        session.note(f"wrote {output}; `{session.program} train create -f {output}` creates it")


def task_file(name: str, spec: Mapping[str, Any]) -> str:
    """A file that `create` takes, of an effective spec."""
    body = as_yaml({"type": "train", "spec": _ordered(_marked(_asked_for(spec)))})
    body = body.replace(f"value: {_HIDDEN}", "# value: hidden; write it here")
    return f"# Made of {name}. Change it, then create it anew.\n{body}"


def _asked_for(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec without what the project gives: its variables come again with the next task (C10)."""
    given = {key: dict(each) if isinstance(each, Mapping) else each for key, each in spec.items()}
    for owner, key in ((given, "env"), (given.get("precheck"), "env")):
        if isinstance(owner, dict) and isinstance(owner.get(key), list):
            own = [each for each in owner[key] if each.get("source", "task") == "task"]
            plain = (
                {name: each[name] for name in ("name", "value", "hidden") if each.get(name)} for each in own
            )
            owner[key] = [{**each, "value": None} if each.get("hidden") else each for each in plain]
    return given


def _ordered(spec: Any) -> Any:
    """The spec with its keys in the order in which `explain` lists them."""
    from trainshed.model.training.fields import SPEC_FIELDS  # noqa: PLC0415 - click only at import time

    places = {field.path: number for number, field in enumerate(SPEC_FIELDS)}

    def sort(value: Any, path: str) -> Any:
        if isinstance(value, Mapping):
            inside = {key: f"{path}.{key}" if path else str(key) for key in value}
            order = sorted(value, key=lambda key: places.get(inside[key], len(places)))
            return {key: sort(value[key], inside[key]) for key in order}
        return [sort(each, f"{path}[]") for each in value] if isinstance(value, list) else value

    return sort(spec, "")


def _marked(value: Any) -> Any:
    """The spec with a mark for each hidden value."""
    if isinstance(value, Mapping):
        marked = {key: _marked(each) for key, each in value.items()}
        return {**marked, "value": _HIDDEN} if value.get("hidden") is True and "name" in value else marked
    return [_marked(each) for each in value] if isinstance(value, list) else value


def _edit_and_create(session: Session, client: Client, name: str, text: str) -> None:
    changed = click.edit(text, extension=".yaml", require_save=True)
    if changed is None:
        session.note("nothing was saved; nothing is created")
        session.show({"name": None}, Sentence(lambda _: ""))
        return
    # Kept, so that an hour of editing is not lost with a refusal.
    kept = Path(f"{name}.yaml")
    kept.write_text(changed, encoding="utf-8")
    session.note(f"kept as {kept}")
    made = submit(session, client, read_document(str(kept), _WHAT), request_id=None, allow_duplicate=False)
    session.show({**made.raw, "request_id": made.request_id}, views.RECEIPT)


@click.command()
@click.argument("field", required=False)
@json_option
@click.pass_obj
def explain(session: Session, field: str | None) -> None:
    """Say what a field of a task file means.

    With its limits, its default and what it is refused with; all fields without FIELD.
    """
    from trainshed.model.training import explain as fields  # noqa: PLC0415 - click only at import time

    explained(session, field, fields.explain, fields.field_names())


def explained(session: Session, field: str | None, explain_one: Any, names: tuple[str, ...]) -> None:
    """Show one field, or all of ``names`` with what they mean."""
    if field is None:
        found = [explain_one(name).as_dict() for name in names]
        session.show({"items": found}, Sentence(lambda document: "\n".join(_listed(document["items"]))))
        return
    try:
        one = explain_one(field)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    session.show(one.as_dict(), Sentence(lambda _: one.text()))


def _listed(items: list[Mapping[str, Any]]) -> Iterator[str]:
    width = max(len(str(each["field"])) for each in items)
    for each in items:
        needed = " (required)" if each["required"] else ""
        yield f"{each['field']!s:{width}}  {each['meaning']}{needed}"


def _how_to_repeat(error: TrainshedError, request_id: str) -> None:
    error.hint = (
        f"It may have been created all the same. Repeat with `--request-id {request_id}`: that finds it, "
        "or creates it."
    )
