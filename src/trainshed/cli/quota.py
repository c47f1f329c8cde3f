"""``trainshed quota``: what projects may hold, and hold."""

from __future__ import annotations

from dataclasses import replace

import click

from trainshed.cli.lazy import Group
from trainshed.cli.output import Column, Table
from trainshed.cli.session import Session, json_option

TYPES = ("reserved", "ondemand", "spot", "idle")
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
@click.option("--pool", metavar="POOL", help="Only of this pool.")
@click.option("--type", "resource_type", type=click.Choice(TYPES), help="Only of this resource type.")
@click.option("--spec", metavar="NAME", help="Only of this instance spec.")
@click.option("--used", is_flag=True, help="Only those of which something is in use.")
@json_option
@click.pass_obj
def list_(session: Session, /, *, project: str | None, used: bool, **narrowed: str | None) -> None:
    """List quotas in units: limit, in use, free."""
    with session.client() as client:
        found = client.quotas.list(project=project).raw
    wanted = {key: value for key, value in narrowed.items() if value is not None}
    rows = [
        row
        for row in found.get("items") or ()
        if all(row.get(key) == value for key, value in wanted.items()) and (row.get("used") or not used)
    ]
    empty = "No such quota." if wanted or used else QUOTAS.empty
    session.show({**found, "items": rows}, replace(QUOTAS, empty=empty))
