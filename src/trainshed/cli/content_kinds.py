"""``trainshed dataset|model|recipe|plugin``: publish, read and share contents; one set of commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli.content_progress import bars
from trainshed.cli.lazy import Group
from trainshed.cli.nearest import near_contents
from trainshed.cli.output import Column, Fields, Sentence, Table, View, cell, count, sent_again, size
from trainshed.cli.parameters import Whole
from trainshed.cli.recipe_profile import profile
from trainshed.cli.session import Session, json_option, quiet_option

if TYPE_CHECKING:
    from trainshed.sdk import Client, PublishProgress
    from trainshed.sdk.contents import Contents

_FOLDER = click.Path(path_type=Path, file_okay=False)
VISIBILITIES = ("public", "project", "projects")
FILES = Table(
    (
        Column("SIZE", lambda row: size(row["size"])),
        Column("PATH", "path"),
        Column("SHA256", "sha256", rank=1),
    ),
    empty="No files.",
)
VERSIONS = Table(
    (
        Column("VERSION", "version"),
        Column("FILES", "files", rank=3),
        Column("SIZE", lambda row: size(row["bytes"])),
        Column("MANIFEST", "manifest_sha256", rank=1),
        Column("PUBLISHED", "published_at", rank=2),
    ),
    empty="No versions that this key may read.",
)
VISIBILITY = Fields((("name", "name"), ("visibility", "visibility"), ("projects", "projects")))
WITHDRAWN = Fields((("name", "name"), ("withdrawn", "withdrawn")))
_NAMED = 3
"""Paths that are named where more were left out."""
_URI = Sentence(lambda document: str(document["uri"]))
_ABOUT = ("description", "type", "base_model", "license", "authors", "tags", "entrypoint")


def _splits(document: Mapping[str, Any]) -> str | None:
    """The configs of a Dataset and the splits of each, a line a config."""
    configs = document.get("about", {}).get("configs")
    return (
        "\n".join(f"{config}: {', '.join(splits)}" for config, splits in configs.items()) if configs else None
    )


def _parameters(document: Mapping[str, Any]) -> str | None:
    """A Recipe's parameters, a line each: type, default, and what else bounds it."""
    given = document.get("about", {}).get("parameters") or {}
    properties = given.get("properties", given) if isinstance(given, Mapping) else {}
    needed = given.get("required", ()) if isinstance(given, Mapping) else ()
    lines = []
    for name, said in properties.items():
        if not isinstance(said, Mapping):
            continue
        rest = [f"{key} {cell(value)}" for key, value in said.items() if key not in {"type", "description"}]
        if name in needed and "required" not in said:
            rest.append("required")
        lines.append(f"{name}: {', '.join([str(said.get('type', 'any')), *rest])}")
    return "\n".join(lines) or None


def _inputs(document: Mapping[str, Any]) -> str | None:
    """A Recipe's inputs, a line each."""
    given = document.get("about", {}).get("inputs") or {}
    return "\n".join(f"{name}: {cell(said)}" for name, said in given.items()) or None


def _dependencies(document: Mapping[str, Any]) -> str | None:
    """A Recipe's dependencies, a line each."""
    given = document.get("about", {}).get("dependencies") or {}
    if not isinstance(given, Mapping):
        return cell(given)
    return "\n".join(f"{name}: {each.get('uri', each)}" for name, each in given.items()) or None


def _approved(document: Mapping[str, Any]) -> bool | None:
    decided = document.get("approval")
    return bool(decided["approved"]) if isinstance(decided, Mapping) else None


VERSION = Fields(
    (
        ("uri", "uri"),
        ("manifest", "manifest_sha256"),
        ("visibility", "visibility"),
        ("approved", _approved),
        ("files", "files"),
        ("size", lambda row: size(row["bytes"])),
        *((key.replace("_", " "), f"about.{key}") for key in _ABOUT),
        ("splits", _splits),
        ("parameters", _parameters),
        ("inputs", _inputs),
        ("dependencies", _dependencies),
        ("published", "published_at"),
        ("published by", "published_by"),
    )
)
CONTENT = Fields(
    (
        ("name", "name"),
        ("visibility", "visibility"),
        ("projects", lambda row: row.get("projects") or None),
        ("versions", "versions"),
        ("newest", "newest.uri"),
        ("manifest", "newest.manifest_sha256"),
        ("files", "newest.files"),
        ("size", lambda row: size(row["newest"]["bytes"])),
        *((key.replace("_", " "), f"about.{key}") for key in _ABOUT),
        ("splits", _splits),
        ("parameters", _parameters),
        ("inputs", _inputs),
        ("dependencies", _dependencies),
        ("created", "created_at"),
        ("updated", "updated_at"),
    )
)


def _listing(noun: str) -> Table:
    return Table(
        (
            Column(noun.upper(), "name"),
            Column("NEWEST", "newest.version", shortest=12),
            Column("SIZE", lambda row: size(row["newest"]["bytes"]), rank=3),
            Column("VERSIONS", "versions", rank=4),
            Column("VISIBILITY", "visibility", rank=2),
            Column("DESCRIPTION", "description", rank=5, shortest=12),
            Column("UPDATED", "updated_at", rank=1),
        ),
        empty=f"No {noun}s that this key may read. `{noun} publish PATH --name NS/NAME` publishes one.",
    )


def _kind_group(noun: str, help_text: str) -> click.Group:
    """The commands of one kind; ``noun`` is ``dataset``, its door in the client is ``client.datasets``."""

    def door(client: Client) -> Contents:
        found: Contents = getattr(client, f"{noun}s")
        return found

    group = Group(noun, help=help_text)
    group.add_command(_publish(noun, door))
    group.add_command(_list(noun, door))
    for command in (_show, _versions, _files, _download, _visibility, _withdraw):
        group.add_command(command(noun, door))
    return group


Door = Callable[["Client"], "Contents"]


def _publish(noun: str, door: Door) -> click.Command:
    @click.command(
        "publish",
        help=f"Publish folder or file PATH as a version of a {noun.capitalize()}.\n\n"
        "Only what the server lacks is uploaded, and only files touched since the last time are read. "
        "The same files twice are one version.",
    )
    @click.argument("path", type=click.Path(path_type=Path, exists=True))
    @click.option("--name", metavar="NS/NAME", required=True, help="What it is called.")
    @click.option("--version", metavar="V", help="A label for good; the manifest's SHA-256 by default.")
    @click.option(
        "--visibility", type=click.Choice(VISIBILITIES), help="Who may read it (a new one: project)."
    )
    @click.option(
        "--to",
        "projects",
        multiple=True,
        metavar="PROJECT",
        help="With visibility `projects`: who. Repeatable.",
    )
    @click.option(
        "--exclude",
        multiple=True,
        metavar="GLOB",
        help="What to leave out, as a line of a .gitignore: `*.log`, `/build/`, `!keep.log`. Repeatable.",
    )
    @click.option("--parallel", type=Whole(), default=4, show_default=True, help="Uploads at once.")
    @quiet_option
    @json_option
    @click.pass_obj
    def command(session: Session, /, path: Path, *, quiet: bool, **wanted: Any) -> None:
        visibility, projects = wanted["visibility"], wanted["projects"]
        if (visibility == "projects") != bool(projects):
            raise click.UsageError(
                "--visibility projects needs at least one --to PROJECT, and only it takes any"
            )
        with session.client() as client, bars(session) as progress:
            done = door(client).publish(path, progress=progress, **wanted)
        document = {
            **done.version.raw,
            "uploaded": done.uploaded,
            "hashed": done.hashed,
            "skipped": list(done.skipped),
            "reasons": dict(done.reasons),
            "published_before": done.published_before,
        }
        for why, paths in _left_out(done.reasons).items():
            more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
            session.note(f"Left out: {', '.join(map(cell, paths[:_NAMED]))}{more} ({why}).")
        session.show(document, _URI if quiet else VERSION)
        if done.published_before:
            sent = sent_again(done.uploaded)
            session.note(f"\nThis version was published before with the same files; {sent}.")
        else:
            session.note(f"\nPublished; {count(done.uploaded, 'file')} uploaded.")
        if visibility is not None:
            who = f" ({', '.join(projects)})" if projects else ""
            name = wanted["name"]
            session.note(f"The visibility of {name}, with all its versions, is now `{visibility}`{who}.")

    return command


def _left_out(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """What was not published by each reason; the rules of credentials are one reason."""
    found: dict[str, list[str]] = {}
    for path, why in reasons.items():
        found.setdefault(why.partition(" (")[0], []).append(path)
    return found


def _list(noun: str, door: Door) -> click.Command:
    @click.command("list", help=f"List the {noun.capitalize()}s that your key may read, newest first.")
    @click.option("--q", metavar="TEXT", help="Part of a name.")
    @click.option("--limit", type=Whole(), default=25, show_default=True, help="Names per page, 1 to 100.")
    @click.option("--cursor", help="Go on after an earlier page.")
    @quiet_option
    @json_option
    @click.pass_obj
    def command(session: Session, *, q: str | None, limit: int, cursor: str | None, quiet: bool) -> None:
        with session.client() as client:
            page = door(client).list(limit=limit, cursor=cursor, q=q)
        shown = [_ids("name")] if quiet else [_listing(noun), *more(page.raw)]
        session.show(page.raw, *shown)

    return command


def _show(noun: str, door: Door) -> click.Command:
    @click.command("show", help=f"Show a {noun.capitalize()} (NS/NAME) or one version (NS/NAME@VERSION).")
    @click.argument("name")
    @json_option
    @click.pass_obj
    def command(session: Session, name: str) -> None:
        with session.client() as client, near_contents(session, door(client), name):
            if "@" in name:
                session.show(door(client).version(name).raw, VERSION)
            else:
                found = door(client).get(name)
                # The same keys as of one version, so that a script that pins one can read either.
                newest = {key: found.newest.raw.get(key) for key in ("uri", "version", "manifest_sha256")}
                session.show({**newest, **found.raw}, CONTENT)

    return command


def _versions(noun: str, door: Door) -> click.Command:
    @click.command("versions", help=f"List the versions of a {noun.capitalize()}, newest first.")
    @click.argument("name")
    @click.option("--limit", type=Whole(), default=25, show_default=True, help="Versions per page, 1 to 100.")
    @click.option("--cursor", help="Go on after an earlier page.")
    @quiet_option
    @json_option
    @click.pass_obj
    def command(session: Session, name: str, *, limit: int, cursor: str | None, quiet: bool) -> None:
        with session.client() as client, near_contents(session, door(client), name):
            page = door(client).versions(name, limit=limit, cursor=cursor)
        session.show(page.raw, *([_ids("uri")] if quiet else [VERSIONS, *more(page.raw)]))

    return command


def _files(noun: str, door: Door) -> click.Command:
    @click.command(
        "files",
        help=f"List the files of a {noun.capitalize()}'s version, or print the one at PATH "
        "byte for byte.\n\nWithout @VERSION the newest counts.",
    )
    @click.argument("name")
    @click.argument("path", required=False)
    @click.option("--limit", type=Whole(), default=100, show_default=True, help="Files per page, 1 to 100.")
    @click.option("--cursor", help="Go on after an earlier page.")
    @json_option
    @click.pass_obj
    def command(session: Session, name: str, path: str | None, *, limit: int, cursor: str | None) -> None:
        if path is not None and session.json:
            raise click.UsageError("a file is printed as it is; leave out --json, or PATH")
        with session.client() as client, near_contents(session, door(client), name):
            if path is not None:
                for piece in door(client).read_file(name, path):
                    sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
                return
            page = door(client).files(name, limit=limit, cursor=cursor)
        session.show(page.raw, FILES, *more(page.raw))

    return command


def _download(noun: str, door: Door) -> click.Command:
    @click.command(
        "download",
        help=f"Download a version of a {noun.capitalize()} into FOLDER, every file "
        "verified.\n\nRun it again to finish what was interrupted. Without @VERSION the newest counts.",
    )
    @click.argument("name")
    @click.argument("place", metavar="[FOLDER]", required=False, type=_FOLDER)
    @click.option("--to", "folder", type=_FOLDER, help="Folder to write into; the content's name by default.")
    @click.option("--overwrite", is_flag=True, help="Replace files there that have other content.")
    @click.option("--parallel", type=Whole(), default=4, show_default=True, help="Files at once.")
    @json_option
    @click.pass_obj
    def command(
        session: Session,
        name: str,
        place: Path | None,
        *,
        folder: Path | None,
        overwrite: bool,
        parallel: int,
    ) -> None:
        if place is not None and folder is not None:
            raise click.UsageError("give the folder once: as FOLDER or with --to")
        folder = place or folder or Path(name.partition("@")[0].rpartition("/")[2])
        with session.client() as client, near_contents(session, door(client), name), bars(session) as tell:
            moved = None if tell is None else _downloading(tell, "downloading")
            named = None if tell is None else _downloading(tell, "downloading files")
            version = door(client).download(
                name, folder, overwrite=overwrite, parallel=parallel, progress=moved, files_progress=named
            )
        session.show({**version.raw, "folder": str(folder)}, VERSION)
        session.note(f"\n{count(version.files, 'file')} in {folder}, each verified.")

    return command


def _visibility(noun: str, door: Door) -> click.Command:
    @click.command(
        "visibility",
        help=f"Decide who may read a {noun.capitalize()}: everybody, its own project, "
        "or also the projects named.",
    )
    @click.argument("name")
    @click.argument("who", type=click.Choice(VISIBILITIES))
    @click.option(
        "--to", "projects", multiple=True, metavar="PROJECT", help="With `projects`: who. Repeatable."
    )
    @json_option
    @click.pass_obj
    def command(session: Session, name: str, who: str, projects: tuple[str, ...]) -> None:
        if (who == "projects") != bool(projects):
            raise click.UsageError("`projects` needs at least one --to PROJECT, and only `projects` takes it")
        with session.client() as client, near_contents(session, door(client), name):
            session.show(door(client).set_visibility(name, who, projects), VISIBILITY)

    return command


def _withdraw(noun: str, door: Door) -> click.Command:
    @click.command(
        "withdraw",
        help=f"Make a version of a {noun.capitalize()} (NS/NAME@VERSION) unfindable.\n\n"
        "Trials that wait for it will not start; those that run go on. A manifest's SHA-256 after the @ "
        "withdraws all its versions.",
    )
    @click.argument("name")
    @json_option
    @click.pass_obj
    def command(session: Session, name: str) -> None:
        with session.client() as client, near_contents(session, door(client), name):
            session.show(door(client).withdraw(name), WITHDRAWN)

    return command


dataset = _kind_group("dataset", "Publish, share and fetch Datasets.")
model = _kind_group("model", "Publish, share and fetch Models.")
recipe = _kind_group("recipe", "Publish, share and fetch Recipes.")
plugin = _kind_group("plugin", "Publish and fetch Plugins, and decide which are allowed.")
recipe.add_command(profile)


def _ids(key: str) -> View:
    from trainshed.cli import views  # noqa: PLC0415 - not for publishing, which is to be quick

    return views.ids(key)


def more(document: Mapping[str, Any]) -> list[View]:
    from trainshed.cli import views  # noqa: PLC0415 - as above

    return list(views.more(document))


def _downloading(tell: Callable[[PublishProgress], None], stage: str) -> Callable[[int, int], None]:
    from trainshed.sdk import PublishProgress  # noqa: PLC0415 - click only at import time

    return lambda done, total: tell(PublishProgress(stage, done, total))
