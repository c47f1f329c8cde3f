"""``gpu daemon``: this user's own server, by the name that contract G has for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from trainshed.cli.gpu_exits import GpuExit
from trainshed.cli.lazy import Group
from trainshed.cli.output import Fields, Sentence
from trainshed.cli.session import Session, json_option

_IN_USE, _SETTINGS = 4, 2
"""How `serve` exits where another server has the data, and where its settings are wrong."""
UNIT = """\
[Unit]
Description=Trainshed: this user's server for GPU jobs

[Service]
ExecStart="{program}" {words}daemon run
Restart=on-failure
RestartPreventExitStatus=5

[Install]
WantedBy=default.target
"""
VIEW = Fields(
    (
        ("running", "running"),
        ("url", "url"),
        ("process", "pid"),
        ("data", "data_dir"),
        ("log", "log"),
        ("used", "used"),
        ("found by", "used_because"),
    )
)


@click.group(cls=Group)
def daemon() -> None:
    """Run, start, stop and look at the server that Jobs go through."""


@daemon.command("run")
@click.option("--port", default="0", show_default=True, help="0 = a free one.")
@click.pass_context
def run(context: click.Context, port: str) -> None:
    """Run it in the foreground until Ctrl-C or SIGTERM.

    Jobs go on meanwhile, and the next server finds them again. Exits with 5 if one runs already.
    """
    from trainshed.cli.serve import serve  # noqa: PLC0415 - not for `--help`

    with serve.make_context("serve", ["--port", port], parent=context.find_root()) as inner:
        status = int(serve.invoke(inner) or 0)
    context.exit(
        {0: GpuExit.OK, _SETTINGS: GpuExit.USAGE, _IN_USE: GpuExit.CONFLICT}.get(status, GpuExit.OTHER)
    )


@daemon.command()
@json_option
@click.pass_obj
def start(session: Session) -> None:
    """Start it in the background; one that runs is left alone.

    Any command that needs it does the same, unless TRAINSHED_NO_AUTOSTART=1.
    """
    from trainshed.sdk import embedded  # noqa: PLC0415 - not for `--help`
    from trainshed.sdk.home import find_home  # noqa: PLC0415 - as above

    embedded.ensure(find_home(), on_start=lambda: session.note("starting it; this takes some seconds"))
    session.show(_document(session), VIEW)


@daemon.command()
@json_option
@click.pass_context
def stop(context: click.Context) -> None:
    """Stop it; Jobs go on, and the next server finds them again."""
    from trainshed.cli.serve import stop as stop_server  # noqa: PLC0415 - not for `--help`

    context.invoke(stop_server, timeout=60.0)


@daemon.command()
@json_option
@click.pass_context
def status(context: click.Context) -> None:
    """Show whether it runs, and which server commands use.

    Starts nothing. Exits with 3 if it does not run.
    """
    document = _document(context.ensure_object(Session))
    context.ensure_object(Session).show(document, VIEW)
    context.exit(GpuExit.OK if document["running"] else GpuExit.NO_SERVER)


@daemon.command()
@json_option
@click.pass_obj
def service(session: Session) -> None:
    """Print a systemd unit that runs it from login on, and where it belongs; writes nothing."""
    text = UNIT.format(program=Path(sys.argv[0]).absolute(), words="" if session.gpu == "gpu" else "gpu ")
    document = {"path": "~/.config/systemd/user/trainshed.service", "unit": text}
    session.show(document, Sentence(lambda row: row["unit"].rstrip("\n")))
    session.note(f"write it to {document['path']}, then `systemctl --user enable --now trainshed`")


def _document(session: Session) -> dict[str, Any]:
    from trainshed.sdk import embedded  # noqa: PLC0415 - not for `--help`
    from trainshed.sdk.discovery import find_connection  # noqa: PLC0415 - as above
    from trainshed.sdk.errors import TrainshedError  # noqa: PLC0415 - as above
    from trainshed.sdk.home import find_home  # noqa: PLC0415 - as above

    home = find_home()
    found = embedded.find(home)
    try:
        used = find_connection(session.url, project=session.project, start=False)
    except TrainshedError:
        used = None
    return {
        "running": found is not None,
        "url": found.url if found else None,
        "pid": found.pid if found else None,
        "data_dir": str(home.server_data),
        "log": str(home.server_log),
        "used": used.url if used else None,
        "used_because": used.source if used else None,
    }
