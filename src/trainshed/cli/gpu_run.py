"""``gpu run`` and ``gpu route``: from a folder to a Job, and to its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trainshed.cli.gpu_common import (
    AGENT,
    ASKS,
    ENDED,
    SETTLE_SECONDS,
    Follower,
    source_of,
    told,
    wait_until_settled,
)
from trainshed.cli.gpu_exits import GpuExit, exit_of
from trainshed.cli.gpu_words import Ambiguous, split
from trainshed.cli.output import Sentence, count
from trainshed.cli.session import Session, json_option

if TYPE_CHECKING:
    from trainshed.sdk import Client
    from trainshed.sdk.packing import Packed

F = TypeVar("F", bound=Callable[..., Any])


class ScriptCommand(click.Command):
    """A command with a script and its words behind our options (`trainshed.cli.gpu_words`)."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        try:
            found = split(args)
        except Ambiguous as error:
            raise click.UsageError(str(error), ctx) from None
        words = [] if found.script is None else [found.script, *found.theirs]
        return super().parse_args(ctx, [*found.ours, "--", *words])


def _asked(command: F) -> F:
    """The options that say what is run and with what."""
    options = (
        click.argument("words", metavar="[SCRIPT] [ARGS]...", nargs=-1, type=click.UNPROCESSED),
        click.option("--vram", metavar="GB", help="Only GPUs with so much memory, above 0, at most 640."),
        click.option("--hours", metavar="H", help="An honest estimate of its time, above 0, at most 336."),
        click.option("--provider", "-p", metavar="NAME", help="Only there; `local` is this machine."),
        click.option("--gpu", metavar="TYPE", help="Only GPUs of this type, e.g. T4."),
        click.option("--data", metavar="[NAME=]PATH", multiple=True, help="A dataset beside it. Repeatable."),
        click.option(
            "--include", metavar="PATTERN", multiple=True, help="Ship although ignored. Repeatable."
        ),
        click.option(
            "--smoke", is_flag=True, help="A quick test: prefers this machine, counts as 15 minutes."
        ),
        click.option(
            "--project", "-C", metavar="DIR", default=".", show_default=True, help="The project's folder."
        ),
        click.option("--as-agent", is_flag=True, help="Have the rules for agents applied."),
        json_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(cls=ScriptCommand, context_settings={"allow_interspersed_args": False})
@_asked
@click.option("--name", metavar="TEXT", help="A label, at most 80 characters.")
@click.option("--env", "-e", metavar="NAME=VALUE", multiple=True, help="A variable, no secret. Repeatable.")
@click.option("--request-id", metavar="ID", help="The same id is the same Job, however often it is sent.")
@click.option("--wait", "-w", is_flag=True, help="With --json: wait for the end. Else that is done anyway.")
@click.option("--detach", "-d", is_flag=True, help="Return once it is placed or asks; it goes on.")
@click.option("--dry-run", is_flag=True, help="As `route`: say what would happen, and do nothing.")
@click.pass_context
def run(
    context: click.Context,
    /,
    *,
    project: str,
    as_agent: bool,
    request_id: str | None,
    wait: bool,
    detach: bool,
    dry_run: bool,
    **asked: Any,
) -> None:
    """Run a project's script where there is a GPU, and bring back what it wrote.

    Says what ships and what does not, where it runs and why, prints its log, and brings its outputs to
    runs/ID. Ctrl-C detaches and never cancels. With --json it detaches unless --wait is given.

    Options stand before the script. Behind it only --json, --wait, --detach, --dry-run, --help, --as-agent,
    --vram, --hours, -p and --gpu TYPE are ours; behind `--` nothing is.
    """
    session = context.ensure_object(Session)
    if wait and detach:
        raise click.UsageError("--wait and --detach exclude each other")
    source = source_of(as_agent=as_agent)
    packed = _packed(project, asked)
    if dry_run:
        context.exit(_route(session, packed, source))
    with session.client() as client:
        _say_what_ships(session, packed)
        _warn_of_unset_secrets(session, client, packed)
        packed.upload(client)
        session.submitting = True
        answer = client.scripts.submit(packed.spec, request_id=request_id, source=source).raw
        session.submitting = False
        job = answer["job"]
        session.script = job["short_id"]
        more = {
            key: answer[key]
            for key in ("submitted", "duplicate_of", "message")
            if answer.get(key) is not None
        }
        more["bundle"] = packed.summary
        session.note(_submitted(answer))
        if detach or (session.json and not wait):
            job = wait_until_settled(client, job, SETTLE_SECONDS)
            session.script = None
            _show_detached(session, job, more)
            context.exit(exit_of(job))
        if session.json:
            job = _waited(client, job, source)
        else:
            job = Follower(session, client, job["short_id"]).until_the_end(stop_at_question=source == AGENT)
        session.script = None
        if job["state"] not in ENDED:
            _show_detached(session, job, more)
            context.exit(GpuExit.OK)
        if job["accepted_attempts"]:
            more["outputs"] = _brought(session, client, job)
            job = client.scripts.get(job["short_id"]).job.raw
    if session.json:
        session.show(told(job, **more))
    session.note(_ended(session, job))
    context.exit(exit_of(job))


@click.command(cls=ScriptCommand, context_settings={"allow_interspersed_args": False})
@_asked
@click.pass_context
def route(context: click.Context, /, *, project: str, as_agent: bool, **asked: Any) -> None:
    """Say where it would run and whether you would be asked; creates nothing.

    By the same rules as `run`, which does what this says while nothing changes. Exits with 12 if nothing
    fits.
    """
    session = context.ensure_object(Session)
    context.exit(_route(session, _packed(project, asked), source_of(as_agent=as_agent)))


def _packed(project: str, asked: Mapping[str, Any]) -> Packed:
    """The project with what was asked of it; all that is wrong is told before a server is looked for."""
    from trainshed.sdk.packing import pack  # noqa: PLC0415 - not for `--help`

    words: tuple[str, ...] = asked["words"]
    given: dict[str, Any] = {
        "script": words[0] if words else None,
        "args": list(words[1:]) or None,
        "vram_gb": _number(asked["vram"]),
        "hours": _number(asked["hours"]),
        "gpu": asked["gpu"],
        "provider": asked["provider"],
        "name": asked.get("name"),
        "env": _variables(asked.get("env") or ()) or None,
        "data": list(asked["data"]) or None,
        "include": list(asked["include"]) or None,
        "smoke": asked["smoke"] or None,
    }
    folder = os.path.abspath(os.path.expanduser(project))  # noqa: PTH100, PTH111 - links stay as they were named
    return pack(folder, given)


def _number(text: str | None) -> float | int | str | None:
    """A number, or the text, so that what is wrong with it is told with everything else."""
    if text is None:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _variables(given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise click.UsageError("--env takes NAME=VALUE")
        found[name] = value
    return found


def _route(session: Session, packed: Packed, source: str) -> GpuExit:
    with session.client() as client:
        answer = client.scripts.route(packed.spec, source=source).raw
    spec = {key: value for key, value in answer["spec"].items() if key != "bundle"}
    document = {
        "spec": spec,
        "route": answer["route"],
        "approval": answer["approval"],
        "bundle": packed.summary,
    }
    session.show(document, Sentence(_routed))
    return GpuExit.NO_FIT if answer["route"]["outcome"] == "no_fit" else GpuExit.OK


def _routed(document: Mapping[str, Any]) -> str:
    """A dry run as people read it."""
    found, asks = document["route"], document["approval"]
    said = {"place": "it would run", "wait": "it would wait", "no_fit": "nothing fits"}[found["outcome"]]
    reason = found["reason"].removeprefix("waits: ").removeprefix("no provider fits: ")
    lines = [*bundle_lines(document["bundle"]), f"route     {said}: {reason}"]
    lines += [
        f"{'not':<9} {each['provider']}: {each['why']}"
        for each in found["rejected"]
        if f"{each['provider']}: {each['why']}" not in reason
        and f"{each['provider']}, and {each['why']}" not in reason
    ]
    if asks:
        would = f"a person would be asked: {asks['reason']}" if asks["would_ask"] else "nobody would be asked"
        lines.append(f"approval  {would}")
    return "\n".join(lines)


def bundle_lines(bundle: Mapping[str, Any], *, advise: bool = True) -> list[str]:
    """What ships and what does not, as people read it; with ``advise`` also what to do about it."""
    lines = [f"ships     {count(bundle['files'], 'file')}, {bundle['size']}"]
    for key, title in (("included", "included"), ("left_out", "left out"), ("warnings", "warning")):
        lines += [f"{title:<9} {line}" for line in bundle.get(key, ())]
    if more := bundle.get("left_out_not_shown"):
        lines.append(f"{'':<9} and {more} more left out")
    if advise and (hint := bundle.get("hint")):
        lines.append(f"hint      {hint}")
    return lines


def _say_what_ships(session: Session, packed: Packed) -> None:
    from trainshed.cli.gpu_hints import is_new  # noqa: PLC0415 - not for `--help`

    advise = not session.json and is_new(packed.script.project_dir, packed.summary.get("left_out", ()))
    for line in bundle_lines(packed.summary, advise=advise):
        session.note(line)


def _warn_of_unset_secrets(session: Session, client: Client, packed: Packed) -> None:
    """Name secrets that the Job lists and nobody keeps: it would end failed, however long it waited."""
    wanted = packed.script.secrets
    if not wanted:
        return
    from trainshed.sdk.errors import ApiError  # noqa: PLC0415 - not for `--help`

    try:
        kept = {each["name"] for each in client.secrets.list().raw["items"]}
    except ApiError:
        # Who may submit need not be allowed to list secrets; the Job itself says what is missing.
        return
    for name in wanted:
        if name not in kept:
            session.warn(
                f"no secret {name} is kept, without which the Job fails; `{session.gpu} secrets set {name}`"
            )


def _submitted(answer: Mapping[str, Any]) -> str:
    short = answer["job"]["short_id"]
    if answer["submitted"]:
        return f"{short} is submitted"
    return answer.get("message") or f"{short} is what was asked for already ({answer['job']['state']})"


def _waited(client: Client, job: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """The Job at its end; of an agent also once a person is asked, as the agent has to say so."""
    if source != AGENT:
        return client.scripts.wait(job["short_id"]).raw
    while job["state"] not in ENDED and job["state"] != ASKS:
        job = client.scripts.get(job["short_id"], wait_s=10, version=job["version"]).job.raw
    return job


def _show_detached(session: Session, job: Mapping[str, Any], more: Mapping[str, Any]) -> None:
    document = told(job, **more)
    session.show(document, Sentence(lambda row: _standing(session, row)))


def _standing(session: Session, document: Mapping[str, Any]) -> str:
    """A Job that goes on, and what to do with it."""
    job, guide = document["job"], document["guidance"]
    short = job["short_id"]
    if guide["needs_approval"]:
        rules = [guide["rules"]] if job["source"] == AGENT else []
        return "\n".join([f"{short}  {job['state']}", guide["tell_user"], *rules])
    where = f" on {job['provider']}" if job["provider"] else ""
    lines = [f"{short}  {job['state']}{where}"]
    if job["route_reason"]:
        lines.append(f"why       {job['route_reason']}")
    if job["state"] not in ENDED:
        lines.append(f"go on     {session.gpu} logs {short} -f · {session.gpu} fetch {short}")
    elif job["message"]:
        lines.append(f"message   {job['message']}")
    return "\n".join(lines)


def _brought(session: Session, client: Client, job: Mapping[str, Any]) -> dict[str, Any] | None:
    """Its outputs; what keeps them away does not change how the Job ended (i.2)."""
    from trainshed.cli.gpu_fetch import bring, outputs_text  # noqa: PLC0415 - not for `--help`
    from trainshed.sdk.errors import TrainshedError  # noqa: PLC0415 - as above

    try:
        found = bring(client, job)
    except TrainshedError as error:
        session.warn(
            f"outputs are not here: {error.message}; `{session.gpu} fetch {job['short_id']}` tries again"
        )
        return None
    for line in outputs_text(found).splitlines():
        session.note(line)
    return found


def _ended(session: Session, job: Mapping[str, Any]) -> str:
    short, said = job["short_id"], f": {job['message']}" if job["message"] else ""
    if job["state"] == "failed":
        code = f" with exit code {job['exit_code']}" if job["exit_code"] is not None else ""
        return f"{short} failed{code}{said}"
    del session
    return f"{short} is {job['state']}{said if job['state'] != 'done' else ''}"
