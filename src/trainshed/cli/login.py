"""``trainshed login``, ``logout``, ``whoami``."""

from __future__ import annotations

import sys

import click

from trainshed.cli.output import Fields, Sentence
from trainshed.cli.session import Session, json_option

IDENTITY = Fields(
    (
        ("server", "server"),
        ("found by", "source"),
        ("project", "project_id"),
        ("workspace", "workspace_id"),
        ("key", "key_id"),
        ("kind", "kind"),
        ("permissions", "permissions"),
    ),
)


@click.command()
@click.argument("url", required=False)
@json_option
@click.pass_obj
def login(session: Session, url: str | None) -> None:
    """Check a key and save it for later commands.

    The key is read from stdin, or asked for at a terminal; it is never an argument, where other users of the
    machine could see it. URL defaults to --url, else to TRAINSHED_URL.
    """
    from trainshed.sdk.client import Client  # noqa: PLC0415 - 60 ms that `--help` must not pay
    from trainshed.sdk.discovery import Connection, normalise_url, save_login  # noqa: PLC0415 - as above
    from trainshed.sdk.home import find_home  # noqa: PLC0415 - as above

    address = url or session.url or _environment_url()
    if not address:
        raise click.UsageError("give the server's URL, e.g. `login https://trainshed.example.org`")
    address = normalise_url(address)
    key = _read_key(address)
    connection = Connection(address, key, session.project, "argument")
    with Client(connection=connection, on_retry=session.note) as client:
        me = dict(client.me())
    home = find_home()
    save_login(home, address, key, session.project)
    session.show({**me, "server": address, "source": "login", "saved_in": str(home.login)}, IDENTITY)
    session.note(f"saved in {home.login}")


@click.command()
@json_option
@click.pass_obj
def logout(session: Session) -> None:
    """Forget the saved login."""
    from trainshed.sdk.discovery import remove_login  # noqa: PLC0415 - as in login
    from trainshed.sdk.home import find_home  # noqa: PLC0415 - as in login

    removed = remove_login(find_home())
    said = "The saved login is forgotten; the key itself stays valid." if removed else "No login was saved."
    session.show({"removed": removed}, Sentence(lambda _: said))


@click.command()
@json_option
@click.pass_obj
def whoami(session: Session) -> None:
    """Show which server and which key are in use."""
    with session.client() as client:
        me = dict(client.me())
        used = client.connection
    session.show({**me, "server": used.url, "source": used.source}, IDENTITY)


def _environment_url() -> str | None:
    import os  # noqa: PLC0415 - one look-up

    return os.environ.get("TRAINSHED_URL")


def _read_key(address: str) -> str:
    from trainshed.model.access import KEY_TEXT  # noqa: PLC0415 - only here

    text = (
        click.prompt(f"Key for {address}", hide_input=True, err=True)
        if sys.stdin.isatty()
        else sys.stdin.readline()
    )
    key = str(text).strip()
    if not KEY_TEXT.fullmatch(key):
        raise click.UsageError("that is no key: 1 to 512 letters, digits and . _ ~ - are expected on stdin")
    return key
