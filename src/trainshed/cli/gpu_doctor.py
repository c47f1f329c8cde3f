"""``gpu doctor``: what is missing for each provider (G82)."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli.gpu_providers import ENABLE, NEEDS, gpus
from trainshed.cli.output import Column, Fields, Table
from trainshed.cli.session import Session, json_option

if TYPE_CHECKING:
    from trainshed.sdk import Client

OK, WARNING, MISSING = "ok", "warning", "missing"
SECRETS = (
    "sealed in the server's database; the key to them is in a file of the server's data folder that only its "
    "owner may read (0600)"
)
CHECKS = Table(
    (
        Column("CHECK", "name"),
        Column("STATE", "state"),
        Column("FOUND", "found", rank=2),
    ),
    empty="Nothing was checked.",
    rows="checks",
    below=lambda row: row["remedy"] and f"to do: {row['remedy']}",
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at, and what to do where it is not well."""

    name: str
    state: str
    found: str
    remedy: str | None = None


@click.command()
@json_option
@click.pass_obj
def doctor(session: Session) -> None:
    """Say what is missing for each provider.

    Asks the server that runs, if one does, and each of its providers; starts nothing. A missing login is no
    error: Jobs run where nothing is missing.
    """
    from trainshed.sdk.source import marker  # noqa: PLC0415 - not for `--help`

    agent = marker()
    checks = [
        _program("git", "packing a git repository", "Install git."),
        Check(
            "caller",
            OK,
            f"an agent ({agent}): its rules count" if agent else "a person: the rules for users count",
        ),
        _agents(),
        Check("secrets", OK, SECRETS),
        *_server(session),
    ]
    document: dict[str, Any] = {
        "checks": [asdict(each) for each in checks],
        "missing": [each.name for each in checks if each.state == MISSING],
        "python": sys.version.split()[0],
    }
    session.show(document, Fields((("python", "python"),)), CHECKS)


def _program(name: str, what: str, remedy: str) -> Check:
    path = shutil.which(name)
    return Check(name, OK, path) if path else Check(name, MISSING, f"not installed: {what}", remedy)


def _agents() -> Check:
    if importlib.util.find_spec("mcp") is None:
        return Check("agents", MISSING, "the protocol's library is not installed", "Install `mcp`.")
    return Check("agents", OK, "`gpu mcp` can serve them; `gpu setup` says how they are told")


def _server(session: Session) -> list[Check]:
    """The server in use and its providers, or why there is nothing to say of them."""
    from trainshed.sdk.client import Client  # noqa: PLC0415 - not for `--help`
    from trainshed.sdk.discovery import find_connection  # noqa: PLC0415 - as above
    from trainshed.sdk.errors import TrainshedError  # noqa: PLC0415 - as above
    from trainshed.sdk.transport import RetryPolicy  # noqa: PLC0415 - as above

    try:
        used = find_connection(session.url, project=session.project, start=False)
        with Client(connection=used, retry=RetryPolicy(attempts=1)) as client:
            found = [_provider(client, each["name"]) for each in client.providers.list()]
    except TrainshedError as error:
        start = f"`{session.gpu} daemon start`, and ask again."
        return [Check("server", WARNING, error.message, error.hint or start)]
    unknown = [name for name in NEEDS if f"provider {name}" not in {each.name for each in found}]
    found += [
        Check(
            f"provider {name}",
            MISSING,
            f"not at this server; needs {NEEDS[name]}",
            ENABLE,
        )
        for name in unknown
    ]
    return [Check("server", OK, f"{used.url} ({used.source})"), *found]


def _provider(client: Client, name: str) -> Check:
    row: Mapping[str, Any] = client.providers.check(name).raw
    said = f": {row['message']}" if row["message"] else ""
    if row["health"] != OK:
        return Check(
            f"provider {name}", MISSING, f"{row['health']}{said}", f"It needs {NEEDS.get(name, 'a login')}."
        )
    return Check(f"provider {name}", OK, f"GPUs: {gpus(row)}{said}")
