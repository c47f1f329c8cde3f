"""``gpu secrets``: values that Jobs get as variables; asked for without echo, and shown to nobody."""

from __future__ import annotations

import sys

import click

from trainshed.cli.lazy import Group
from trainshed.cli.output import Column, Sentence, Table
from trainshed.cli.session import Session, json_option

NAMES = Table(
    (Column("NAME", "name"), Column("SET", "updated_at", rank=1)),
    empty="No secrets; `gpu secrets set NAME` keeps one.",
)


@click.group(cls=Group)
def secrets() -> None:
    """Keep values that Jobs get as variables."""


@secrets.command("set")
@click.argument("name")
@click.option(
    "--stdin", "from_stdin", is_flag=True, help="Read the value from stdin; one line end is dropped."
)
@json_option
@click.pass_obj
def set_(session: Session, *, name: str, from_stdin: bool) -> None:
    """Keep a value; one of that name is replaced.

    It is asked for without echo, and is never an argument, where other users of the machine could see it.
    Jobs get it where gpu.yaml lists NAME under `secrets:`. For people only.
    """
    if from_stdin:
        value = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    elif sys.stdin.isatty():
        value = str(click.prompt(f"Value of {name}", hide_input=True, err=True))
    else:
        raise click.UsageError("there is no terminal to ask at; pipe the value in and give --stdin")
    with session.client() as client:
        found = client.secrets.put(name, value).raw
    session.show(found, Sentence(lambda row: f"{row['name']} is kept; list it under `secrets:` in gpu.yaml"))


@secrets.command("list")
@json_option
@click.pass_obj
def list_(session: Session) -> None:
    """List the names; values are shown to nobody."""
    with session.client() as client:
        found = client.secrets.list().raw
    session.show(found, NAMES)


@secrets.command()
@click.argument("name")
@json_option
@click.pass_obj
def rm(session: Session, name: str) -> None:
    """Forget a value.

    Jobs that list it and have not started will fail.
    """
    with session.client() as client:
        client.secrets.remove(name)
    session.show({"name": name, "removed": True}, Sentence(lambda _: f"{name} is forgotten"))
