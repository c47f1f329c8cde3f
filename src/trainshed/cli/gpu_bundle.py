"""``gpu bundle``: what of a folder would ship; nothing is sent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from trainshed.cli.session import Session, json_option


@click.command()
@click.argument("path", required=False, default=".")
@click.option("--script", metavar="SCRIPT", help="What would be run; without it, what gpu.yaml says.")
@click.option("--include", metavar="PATTERN", multiple=True, help="Ship although ignored. Repeatable.")
@click.option("--data", metavar="[NAME=]PATH", multiple=True, help="A dataset beside it. Repeatable.")
@click.option("--files", is_flag=True, help="List every file that ships.")
@click.option("--explain", metavar="FILE", help="Say which rule decides for this path, relative to PATH.")
@json_option
@click.pass_obj
def bundle(
    session: Session,
    *,
    path: str,
    script: str | None,
    include: tuple[str, ...],
    data: tuple[str, ...],
    files: bool,
    explain: str | None,
) -> None:
    """Show what of a folder would ship, and why the rest would not."""
    from trainshed.cli.output import Sentence  # noqa: PLC0415 - not for `--help`
    from trainshed.sdk.packing.look import look  # noqa: PLC0415 - as above

    project = os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - links stay as they were named
    given: dict[str, Any] = {"script": script, "include": list(include) or None, "data": list(data) or None}
    seen = look(project, given)
    if explain is not None:
        verdict = seen.explain(explain)
        session.show(verdict, Sentence(lambda told: f"{told['path']}: {told['why']}"))
        return
    document = seen.document()
    if files:
        document["listing"] = seen.listing()
    session.show(document, Sentence(_told))


def _told(document: Mapping[str, Any]) -> str:
    """The bundle as people read it."""
    from trainshed.cli.output import count  # noqa: PLC0415 - not for `--help`

    lines = [f"{count(document['files'], 'file')}, {document['size']}, would ship from {document['root']}"]
    if document.get("runs"):
        lines.append(f"runs      {document['runs']}")
    for key, title in (("included", "included"), ("left_out", "left out"), ("warnings", "warning")):
        lines += [f"{title:<9} {line}" for line in document.get(key, ())]
    if more := document.get("left_out_not_shown"):
        lines.append(f"{'':<9} and {more} more left out")
    lines += [f"{'data':<9} {line}" for line in document.get("data", ())]
    if hint := document.get("hint"):
        lines.append(f"hint      {hint}")
    lines += [f"{each['bytes']:>12}  {each['path']}" for each in document.get("listing", ())]
    return "\n".join(lines)
