"""``trainshed catalog``: what training tasks choose from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainshed.cli.lazy import Group
from trainshed.cli.output import Sentence, count, local_time
from trainshed.cli.session import Session, json_option
from trainshed.cli.train_files import as_yaml, located, read_document
from trainshed.cli.train_submit import explained

if TYPE_CHECKING:
    from trainshed.sdk.catalogs import CatalogApplied

_MARKS = {"added": "+", "removed": "-", "changed": "~", "reordered": "~"}


@click.group(cls=Group)
def catalog() -> None:
    """Show and change what training tasks choose from."""


@catalog.command()
@click.option("--output", "-o", metavar="FILE", help="Write the document to FILE, ready for apply.")
@json_option
@click.pass_obj
def show(session: Session, *, output: str | None) -> None:
    """Print the catalogue in force; URLs of alarm channels are masked."""
    with session.client() as client:
        found = client.catalog.show()
    at = local_time(found.applied_at.isoformat()) if found.applied_at else ""
    made = f"applied {at} by {found.applied_by}" if at else "made of what the machine has"
    text = f"# Revision {found.revision}, {made}.\n{as_yaml(found.document)}"
    if output is None:
        session.show(found.raw, Sentence(lambda _: text.rstrip("\n")))
        return
    from trainshed.sdk.errors import LocalFileError  # noqa: PLC0415 - click only at import time

    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise LocalFileError(f"cannot write {output}: {error.strerror}") from error
    session.show({**found.raw, "file": output}, Sentence(lambda _: f"Wrote {output}."))


@catalog.command()
@click.option(
    "-f", "--file", "file", metavar="FILE", required=True, help="The catalogue, YAML or JSON (`-` = stdin)."
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@json_option
@click.pass_obj
def apply(session: Session, *, file: str, yes: bool, dry_run: bool) -> None:
    """Make FILE the catalogue: shows what changes, asks, then applies it.

    The same file again changes nothing. With --json nobody is asked: give --yes or --dry-run. Needs the
    owner key.
    """
    given = read_document(file, "a catalogue")
    if session.json and not yes and not dry_run:
        raise click.UsageError("with --json nobody can be asked; give --yes or --dry-run")
    if file == "-" and not yes and not dry_run:
        raise click.UsageError("the file is read from stdin, where the answer would come from; give --yes")
    from trainshed.sdk.errors import ApiError  # noqa: PLC0415 - click only at import time

    with session.client() as client:
        # What was shown is what is applied: another revision that came meanwhile is refused.
        revision = client.catalog.show().revision
        try:
            found = client.catalog.apply(given.value, expected_revision=revision, dry_run=True)
        except ApiError as error:
            raise located(error, given, for_people=not session.json) from error
        if dry_run or (not found.changes and revision):
            session.show(found.raw, Sentence(lambda _: _diff(found) if found.changes else "Nothing changes."))
            return
        if not session.json:
            unchanged = "Nothing changes but that this file counts from now on, whatever the machine has."
            click.echo(_diff(found) if found.changes else unchanged)
        if not yes:
            click.confirm(f"Apply {count(len(found.changes), 'change')}?", abort=True, err=True)
        done = client.catalog.apply(given.value, expected_revision=revision)
    session.show(done.raw, Sentence(lambda _: f"Applied as revision {done.revision}."))


@catalog.command()
@click.argument("field", required=False)
@json_option
@click.pass_obj
def explain(session: Session, field: str | None) -> None:
    """Say what a field of a catalogue means, its limits and its default; all fields without FIELD."""
    from trainshed.model.training import explain as fields  # noqa: PLC0415 - click only at import time

    explained(session, field, fields.explain_catalog, fields.catalog_field_names())


def _diff(found: CatalogApplied) -> str:
    lines = [
        f"{_MARKS.get(each.action, '~')} {each.what}" + (f": {each.details}" if each.details else "")
        for each in found.changes
    ]
    return "\n".join(lines)
