"""``trainshed plugin``: what all kinds of content have, and which packages may run here.

A version never changes, so a label is as good as a digest for the server. It is not for a person, who decides
on bytes: an approval shows them first, or names them itself.
"""

from __future__ import annotations

import sys

import click

from trainshed.cli.content_kinds import more, plugin
from trainshed.cli.nearest import near_contents
from trainshed.cli.output import Column, Fields, Table, cell, count, size
from trainshed.cli.parameters import Whole
from trainshed.cli.session import Session, json_option
from trainshed.model.content import SHA256, plain_ref

__all__ = ["plugin"]

APPROVALS = Table(
    (
        Column("PLUGIN", "name"),
        Column("APPROVED", "approved"),
        Column("MANIFEST", "manifest_sha256"),
        Column("SINCE", lambda row: row.get("revoked_at") or row.get("approved_at"), rank=2),
        Column("BY", lambda row: row.get("revoked_by") or row.get("approved_by"), rank=1),
    ),
    empty="No plugin was ever approved here.",
)
APPROVAL = Fields(
    (
        ("plugin", "name"),
        ("manifest", "manifest_sha256"),
        ("approved", "approved"),
        ("approved at", "approved_at"),
        ("approved by", "approved_by"),
        ("revoked at", "revoked_at"),
        ("revoked by", "revoked_by"),
    )
)


@plugin.command()
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@click.pass_obj
def approve(session: Session, name: str, *, yes: bool) -> None:
    """Allow a Plugin's package (NS/NAME@VERSION) on this deployment. Needs the owner key.

    What is allowed is the digest: another version needs its own approval. At a terminal the package is shown
    and you are asked; elsewhere give --yes, or name the package by its digest.
    """
    with session.client() as client, near_contents(session, client.plugins, name):
        named, at, ref = name.rpartition("@")
        asks = not yes and bool(at)  # without a version it is refused for that
        if asks and sys.stdin.isatty() and not session.json:
            found = client.plugins.version(name)
            for label, value in (
                ("plugin", found.raw["name"]),
                ("version", found.raw["version"]),
                ("manifest", found.manifest_sha256),
                ("published by", f"{found.raw['published_by']}, {cell(found.raw['published_at'])}"),
                ("holds", f"{count(found.raw['files'], 'file')}, {size(found.raw['bytes'])}"),
            ):
                click.echo(f"{label:<12}  {cell(value)}", err=True)
            click.confirm("Allow exactly this package here?", abort=True, err=True)
            name = f"{named}@{found.manifest_sha256}"  # what was shown, whatever happened meanwhile
        elif asks and not SHA256.fullmatch(plain_ref(ref)):
            digest = client.plugins.version(name).manifest_sha256
            raise click.UsageError(
                "nobody can be asked here, where stdin is no terminal; give --yes, or name the package by "
                f"its digest: `{session.program} plugin approve {named}@{digest}`"
            )
        session.show(client.plugins.approve(name), APPROVAL)


@plugin.command()
@click.argument("name")
@json_option
@click.pass_obj
def revoke(session: Session, name: str) -> None:
    """Stop allowing a Plugin's package (NS/NAME@VERSION). Needs the owner key.

    Trials that wait with it will not start; those that run go on.
    """
    with session.client() as client, near_contents(session, client.plugins, name):
        session.show(client.plugins.revoke(name), APPROVAL)


@plugin.command()
@click.option("--limit", type=Whole(), default=25, show_default=True, help="Packages per page, 1 to 100.")
@click.option("--cursor", help="Go on after an earlier page.")
@json_option
@click.pass_obj
def approved(session: Session, *, limit: int, cursor: str | None) -> None:
    """List the Plugins that were approved or revoked on this deployment."""
    with session.client() as client:
        page = client.plugins.approvals(limit=limit, cursor=cursor)
    session.show(page.raw, APPROVALS, *more(page.raw))
