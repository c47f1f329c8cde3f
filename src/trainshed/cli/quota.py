"""``trainshed quota``: what projects may hold, and hold."""

from __future__ import annotations

import click

from trainshed.cli.lazy import Group
from trainshed.cli.output import Column, Table
from trainshed.cli.session import Session, json_option

QUOTAS = Table(
    (
        Column("PROJECT", "project", rank=2),
        Column("TYPE", "resource_type"),
        Column("POOL", "pool", rank=1),
        Column("SPEC", "spec"),
        Column("OWN", "units", rank=4),
        Column("LIMIT", "limit"),
        Column("USED", "used"),
        Column("FREE", "free"),
        Column("BORROWED", "borrowed", rank=3),
        Column("COHORT", "cohort", rank=5),
    ),
    empty="No quotas: without one a project has nothing but idle units.",
)


@click.group(cls=Group)
def quota() -> None:
    """Look at quotas of training tasks."""


@quota.command("list")
@click.option("--project", metavar="ID", help="Of this project; of your key's by default.")
@json_option
@click.pass_obj
def list_(session: Session, *, project: str | None) -> None:
    """List quotas in units: limit, in use, free."""
    with session.client() as client:
        session.show(client.quotas.list(project=project).raw, QUOTAS)
