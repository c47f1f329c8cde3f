"""``trainshed pool``: what there is to run tasks on, what is free, and what is taken out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from trainshed.cli.lazy import Group
from trainshed.cli.output import Column, Fields, Pick, Sentence, Table, count
from trainshed.cli.parameters import POSITIVE, Whole
from trainshed.cli.session import Session, json_option, quiet_option
from trainshed.cli.views import ids

Document = Mapping[str, Any]


def _rows(document: Document) -> list[Document]:
    """A row for each spec of each pool."""
    return [
        {"cluster": pool.get("cluster"), "pool": pool.get("id"), **spec}
        for pool in document.get("items") or ()
        for spec in pool.get("specs") or ()
    ]


def _share(row: Document) -> str | None:
    part = row.get("fragmentation")
    return f"{part * 100:.0f} %" if isinstance(part, int | float) else None


_ROWS: Pick = _rows
POOLS = Table(
    (
        Column("POOL", "pool"),
        Column("SPEC", "spec"),
        Column("FREE", "free"),
        Column("IN USE", "in_use", rank=1),
        Column("CORDONED", "cordoned", rank=2),
        Column("TOTAL", "total"),
        Column("CLUSTER", "cluster", rank=3),
    ),
    empty="No pools.",
    rows=_ROWS,
)
IDLE = Table(
    (
        Column("SPEC", "spec"),
        Column("IDLE UNITS", "idle_units"),
        Column("STABILITY", "stability"),
        Column("FRAGMENTATION", _share, rank=1),
        Column("LARGEST GANG", "largest_gang"),
    ),
    empty="Nothing is idle.",
    rows="specs",
)
CORDONS = Table(
    (
        Column("CORDON", "id"),
        Column("CLUSTER", "cluster", rank=1),
        Column("NODE", "node"),
        Column("GPU", "gpu"),
        Column("SINCE", "at", rank=2),
        Column("BY", "by", rank=3),
    ),
    empty="Nothing is cordoned.",
    below="reason",
)
CORDON = Fields(
    (
        ("cordon", "id"),
        ("cluster", "cluster"),
        ("node", "node"),
        ("GPU", "gpu"),
        ("reason", "reason"),
        ("since", "at"),
        ("by", "by"),
    )
)


@click.group(cls=Group)
def pool() -> None:
    """Look at pools, and take nodes out of them."""


@pool.command("list")
@json_option
@click.pass_obj
def list_(session: Session) -> None:
    """List the pools with their units: a reference value that changes, no reservation."""
    with session.client() as client:
        session.show(client.pools.list().raw, POOLS)


@pool.command()
@click.argument("name", metavar="POOL")
@click.option("--spec", metavar="NAME", help="For replicas of this instance spec only.")
@click.option("--units", type=POSITIVE, help="Units of the spec that one replica needs (default: 1).")
@json_option
@click.pass_obj
def idle(session: Session, *, name: str, spec: str | None, units: int | None) -> None:
    """Show what idle tasks could take of POOL now, how long it lasts, and how broken up it is.

    FRAGMENTATION is the share of the free GPUs, or CPU cores, that replicas of --units units cannot use;
    LARGEST GANG is how many such replicas fit now.
    """
    with session.client() as client:
        found = client.pools.idle(name, spec=spec, units=units).raw
    judged = Sentence(lambda _: f"Judged for replicas of {count(units or 1, 'unit')} of each spec (--units).")
    session.show(found, IDLE, judged)


@pool.group(cls=Group)
def cordon() -> None:
    """Take nodes or GPUs out, and put them back."""


@cordon.command("list")
@quiet_option
@json_option
@click.pass_obj
def list_cordons(session: Session, *, quiet: bool) -> None:
    """List what is taken out."""
    with session.client() as client:
        session.show(client.pools.cordons().raw, ids("id") if quiet else CORDONS)


@cordon.command()
@click.argument("node")
@click.option("--cluster", required=True, metavar="ID", help="The cluster that it is a node of.")
@click.option("--gpu", type=Whole(0), help="Only this GPU of it, by index.")
@click.option("--reason", required=True, metavar="TEXT", help="Why; shown to whoever waits for it.")
@json_option
@click.pass_obj
def add(session: Session, *, node: str, cluster: str, gpu: int | None, reason: str) -> None:
    """Place nothing new on NODE; what runs there goes on."""
    with session.client() as client:
        session.show(client.pools.cordon(cluster, node, reason=reason, gpu=gpu).raw, CORDON)


@cordon.command()
@click.argument("cordon_id", metavar="CORDON")
@json_option
@click.pass_obj
def clear(session: Session, *, cordon_id: str) -> None:
    """Put back what CORDON took out."""
    with session.client() as client:
        client.pools.uncordon(cordon_id)
    session.show({"id": cordon_id, "cleared": True}, Sentence(lambda _: f"Cordon {cordon_id} is cleared."))
