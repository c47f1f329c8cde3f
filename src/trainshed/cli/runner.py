"""``trainshed runner``: publish and look at Runners."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli import views
from trainshed.cli.lazy import Group
from trainshed.cli.nearest import near_runners
from trainshed.cli.output import Column, Fields, Sentence, Table, sent_again, size
from trainshed.cli.parameters import Whole
from trainshed.cli.session import MAX_SUGGESTIONS, Session, json_option, quiet_option

if TYPE_CHECKING:
    from trainshed.sdk import Runner, TrainshedError


def checkpoint_rules(row: Mapping[str, Any]) -> str | None:
    """What a Runner says about its Checkpoints, a line each."""
    found = row.get("checkpoints")
    if not isinstance(found, Mapping):
        return None
    said = ["a Job may resume from one (`--resume-from`)" if found.get("resume") else "no resuming from one"]
    if found.get("keep_last"):
        said.append(f"keeps the last {found['keep_last']} of each Trial")
    if isinstance(best := found.get("best"), Mapping):
        order = "lowest" if best.get("mode") == "min" else "highest"
        said.append(f"keeps the {best.get('keep')} with the {order} {best.get('metric')} of each Trial")
    return "\n".join(said if len(said) > 1 else [*said, "keeps all"])


VISIBILITIES = ("public", "project", "projects")
RUNNERS = Table(
    (
        Column("RUNNER", "selector"),
        Column("REF", "source_ref"),
        Column("VISIBILITY", "visibility", rank=2),
        Column("ENTRY", "entrypoint", rank=4),
        Column("PARAMS", "params", rank=3),
        Column("CREATED", "created_at", rank=1),
    ),
    empty="No Runners that this key may read. `runner publish PATH` publishes one.",
)
RUNNER = Fields(
    (
        ("runner", "name"),
        ("revision", "revision"),
        ("selector", "selector"),
        ("source ref", "source_ref"),
        ("refs", "refs"),
        ("visibility", "visibility"),
        ("projects", lambda row: row.get("projects") or None),
        ("entrypoint", "entrypoint"),
        ("parameters", lambda row: row.get("params") or None),
        ("outputs", "execution.outputs"),
        ("checkpoints", checkpoint_rules),
        ("timeout (s)", "execution.timeout_seconds"),
        ("gpu", "gpu"),
        ("image", "image"),
        ("abi", "abi"),
        ("recipe entrypoint", "recipe_entrypoint"),
        ("snapshot", "snapshot_sha256"),
        ("created", "created_at"),
        ("published by", "published_by"),
    ),
)
FILES = Table(
    (
        Column("MODE", "mode"),
        Column("SIZE", lambda row: size(row["size"])),
        Column("PATH", "path"),
        Column("SHA256", "sha256", rank=1),
    ),
    empty="No files.",
    rows="files",
)
_SELECTOR = Sentence(lambda document: str(document["selector"]))
_LISTED_FILES = 10
VISIBILITY = Fields((("runner", "name"), ("visibility", "visibility"), ("projects", "projects")))


@click.group(cls=Group)
def runner() -> None:
    """Publish and look at Runners."""


@runner.command("list")
@click.option("--limit", type=Whole(), default=25, show_default=True, help="Revisions per page, 1 to 100.")
@click.option("--cursor", help="Go on after an earlier page.")
@quiet_option
@json_option
@click.pass_obj
def list_(session: Session, *, limit: int, cursor: str | None, quiet: bool) -> None:
    """List the Revisions that your key may read, newest first."""
    with session.client() as client:
        page = client.runners.list(limit=limit, cursor=cursor)
    shown = [views.ids("selector")] if quiet else [RUNNERS, *views.more(page.raw)]
    session.show(page.raw, *shown)


@runner.command("get")
@click.argument("name")
@json_option
@click.pass_obj
def get_(session: Session, name: str) -> None:
    """Show a Runner (NAMESPACE/NAME) or one Revision (NAMESPACE/NAME@REVISION)."""
    with session.client() as client, near_runners(session, client, name):
        found = client.runners.get(name).raw
    session.show(found, RUNNER, *([FILES] if "files" in found else []))


@runner.command()
@click.argument("selector")
@click.argument("path", required=False)
@json_option
@click.pass_obj
def files(session: Session, selector: str, path: str | None) -> None:
    """List the files of a Revision, or print the one at PATH byte for byte."""
    with session.client() as client, near_runners(session, client, selector):
        found = client.runners.get(selector)
        if "files" not in found.raw:
            found = client.runners.get(found.selector)
        listed = [file for file in found.raw["files"] if path is None or file["path"] == path]
        if not listed and path is not None:
            raise _no_such_file(found, path)
        if path is not None and not session.json:
            sys.stdout.buffer.write(client.runners.read_file(found.selector, path))
            sys.stdout.buffer.flush()
            return
    document = {"name": found.name, "revision": found.revision, "selector": found.selector, "files": listed}
    session.show(document, FILES)


def _no_such_file(found: Runner, path: str) -> TrainshedError:
    """The refusal of a file that a Revision does not have, with those that it has."""
    from trainshed.sdk.errors import NotFound  # noqa: PLC0415 - click only at import time

    there = [str(file["path"]) for file in found.raw["files"]]
    near = difflib.get_close_matches(path, there, n=MAX_SUGGESTIONS) or there[:_LISTED_FILES]
    more = "" if len(near) == len(there) else f" ({len(there)} files in all)"
    return NotFound(
        HTTPStatus.NOT_FOUND,
        "NOT_FOUND",
        f"{found.name} has no file {path!r} at {found.revision}",
        hint=f"It has {', '.join(near)}{more}.",
    )


@runner.command()
@click.argument("path", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--name", metavar="NS/NAME", help="Publish under this name instead of [runner] name.")
@click.option("--ref", help="Commit, tag or branch to freeze; the checked-out commit by default.")
@click.option("--visibility", type=click.Choice(VISIBILITIES), help="Who may read it (a new one: project).")
@quiet_option
@json_option
@click.pass_obj
def publish(
    session: Session, path: Path, *, name: str | None, ref: str | None, visibility: str | None, quiet: bool
) -> None:
    """Freeze the Runner in directory PATH of a git repository, and publish it.

    What is published is the tree of a commit, never the work tree. The same commit twice is one Revision.
    """
    with session.client() as client:
        published = client.runners.publish(path, name=name, ref=ref, visibility=visibility)
    for warning in published.warnings:
        session.warn(warning)
    session.show(published.runner.raw, _SELECTOR if quiet else RUNNER)
    said = "Published."
    if published.published_before:
        said = f"This commit was published before; {sent_again(published.uploaded)}."
    selector = published.runner.selector
    session.note(f"\n{said} Run it with `{session.program} job submit --type train --runner {selector}`.")


@runner.command()
@click.argument("name")
@click.argument("who", type=click.Choice(VISIBILITIES))
@click.option("--to", "projects", multiple=True, metavar="PROJECT", help="With `projects`: who. Repeatable.")
@json_option
@click.pass_obj
def visibility(session: Session, name: str, who: str, projects: tuple[str, ...]) -> None:
    """Decide who may read a Runner: everybody, its own project, or also the projects named."""
    if (who == "projects") != bool(projects):
        raise click.UsageError("`projects` needs at least one --to PROJECT, and only `projects` takes it")
    with session.client() as client, near_runners(session, client, name):
        session.show(client.runners.set_visibility(name, who, projects), VISIBILITY)


@runner.command()
@click.argument("selector")
@json_option
@click.pass_obj
def withdraw(session: Session, selector: str) -> None:
    """Make a Revision unfindable for new submissions; Jobs that started go on."""
    with session.client() as client, near_runners(session, client, selector):
        session.show(client.runners.withdraw(selector), Fields((("withdrawn", "selector"),)))
