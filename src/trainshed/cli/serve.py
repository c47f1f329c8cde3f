"""``trainshed serve``, ``status``, ``stop``."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli import views
from trainshed.cli.exits import Exit, exit_for
from trainshed.cli.output import Fields, Sentence
from trainshed.cli.parameters import SECONDS, Whole
from trainshed.cli.session import Session, json_option

if TYPE_CHECKING:
    from trainshed.sdk.home import Home

STATUS_SECONDS = 5.0
ROLES = ("all", "api", "controller")


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=Whole(0, 65535), default=7717, show_default=True, help="0 = a free one.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="TRAINSHED_DATA_DIR",
    help="Folder for database, content, logs and work; your embedded server's folder by default.",
)
@click.option(
    "--database-url",
    envvar="TRAINSHED_DATABASE_URL",
    help="postgresql://… instead of the SQLite file in the data folder.",
)
@click.option(
    "--role", type=click.Choice(ROLES), default="all", show_default=True, help="This process's part."
)
@click.option(
    "--simulate-gpus",
    multiple=True,
    metavar="MODEL:COUNT",
    envvar="TRAINSHED_SIMULATE_GPUS",
    help="Pretend to have these GPUs, labelled simulated wherever they show; each brings 16 CPU cores, "
    "256 GiB of memory, 500 GiB of disk and 64 GiB of shared memory to the accounting. Repeatable.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    envvar="TRAINSHED_CONFIG",
    help="Settings file (TOML).",
)
def serve(
    *,
    host: str,
    port: int,
    data_dir: Path | None,
    database_url: str | None,
    role: str,
    simulate_gpus: tuple[str, ...],
    config: Path | None,
) -> int:
    """Run a server.

    Prints one line with its URL once it answers and runs until SIGTERM or Ctrl-C; Jobs go on meanwhile and
    the next server finds them again. The first start writes an owner key to DIR/owner.key.

    Exits 0 after a clean end, 2 for unusable settings, 3 for an unusable data folder, 4 if another server
    uses it, 5 if it cannot listen, 6 if the database does not answer or is newer than this program.
    """
    # Nothing runs yet, so nothing has to end; loading the server takes half a second.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(Exit.OK))
    from trainshed.mcp.http import WithMcp  # noqa: PLC0415 - as above
    from trainshed.sdk.home import find_home  # noqa: PLC0415 - `--help` must not pay for it
    from trainshed.server import run  # noqa: PLC0415 - as above

    home = find_home()
    options = run.ServeOptions(
        host=host,
        port=port,
        data_dir=(data_dir or home.server_data).absolute(),
        database_url=database_url,
        role=role,
        simulate_gpus=simulate_gpus,
        config=config,
        hide=(home.config, home.data),
        door=WithMcp,
    )
    return run.serve(options)


@click.command()
@click.option("--timeout", type=SECONDS, default=60.0, show_default=True, help="Seconds.")
@json_option
@click.pass_obj
def stop(session: Session, timeout: float) -> None:
    """Stop your embedded server; its Jobs go on.

    The next server on the same data finds them again.
    """
    from trainshed.sdk import embedded  # noqa: PLC0415 - as in serve
    from trainshed.sdk.home import find_home  # noqa: PLC0415 - as in serve

    home = find_home()
    states = _states_of_trials(home)
    stopped = embedded.stop(home, seconds=timeout)
    going = views.going(states)
    said = "No embedded server was running."
    if stopped:
        said = f"Stopped. {going[0].upper() + going[1:] if going else 'No Trial was going or waiting'}."
    session.show({"stopped": stopped, "trials": states if stopped else {}}, Sentence(lambda _: said))
    if stopped and going:
        session.note(
            "What is going goes on without the server, what is waiting waits for the next one. To end a Job: "
            f"`{session.program} job list` shows it (and starts the server again), "
            f"`{session.program} job stop JOB` ends it."
        )


def _states_of_trials(home: Home) -> Mapping[str, int]:
    """How many Trials of the embedded server are in each state that is not an end; empty if it is silent."""
    from trainshed.sdk.client import Client  # noqa: PLC0415 - as in serve
    from trainshed.sdk.discovery import running_embedded  # noqa: PLC0415 - as in serve
    from trainshed.sdk.errors import TrainshedError  # noqa: PLC0415 - as in serve
    from trainshed.sdk.transport import RetryPolicy  # noqa: PLC0415 - as in serve

    try:
        used = running_embedded(home)
        if used is None:
            return {}
        with Client(connection=used, retry=RetryPolicy(attempts=1), timeout=STATUS_SECONDS) as client:
            found: Mapping[str, int] = client.system().get("queue") or {}
            return found
    except TrainshedError:
        return {}


@click.command()
@click.option("--quiet", "-q", is_flag=True, help="Print the server's URL and nothing else.")
@json_option
@click.pass_context
def status(context: click.Context, *, quiet: bool) -> None:
    """Show which server is used, why, and whether it answers.

    Starts nothing. Exits 7 if nothing answers, and as any command if the server refuses the key (4).
    """
    from trainshed.sdk import embedded  # noqa: PLC0415 - as in serve
    from trainshed.sdk.client import Client  # noqa: PLC0415 - as in serve
    from trainshed.sdk.discovery import find_connection  # noqa: PLC0415 - as in serve
    from trainshed.sdk.errors import ApiError, ConfigurationError, ConnectionFailed  # noqa: PLC0415 - as in serve
    from trainshed.sdk.home import find_home  # noqa: PLC0415 - as in serve
    from trainshed.sdk.transport import RetryPolicy  # noqa: PLC0415 - as in serve

    session = context.ensure_object(Session)
    session.quiet = quiet
    document: dict[str, Any] = {"server": None, "source": None, "answers": False, "reason": None}
    code = Exit.OK
    try:
        used = find_connection(session.url, project=session.project, start=False)
        key_file = _key_file(find_home(), used.source, embedded.OWNER_KEY_FILE)
        has_key = used.api_key is not None
        document |= {"server": used.url, "source": used.source, "has_key": has_key, "key_file": key_file}
        with Client(connection=used, retry=RetryPolicy(attempts=1), timeout=STATUS_SECONDS) as client:
            me = client.me()
            document |= {"answers": True, "project_id": me.get("project_id")}
    except (ApiError, ConnectionFailed, ConfigurationError) as error:
        document["reason"] = str(error)
        document["answers"] = isinstance(error, ApiError)
        code = exit_for(error) if isinstance(error, ApiError) else Exit.UNAVAILABLE
    view = Fields(
        (
            ("server", "server"),
            ("found by", "source"),
            ("key in", "key_file"),
            ("answers", "answers"),
            ("project", "project_id"),
            ("reason", "reason"),
        ),
    )
    session.show(document, Sentence(lambda row: row["server"] or "") if quiet else view)
    context.exit(code)


def _key_file(home: Home, source: str, owner_key: str) -> str | None:
    """Where the key of this connection is kept, if that is a file of this user."""
    places = {"embedded": home.server_data / owner_key, "login": home.login}
    return str(places[source]) if source in places else None
