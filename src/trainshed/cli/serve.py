"""``trainshed serve``, ``status``, ``stop``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trainshed.cli.output import Fields, Sentence
from trainshed.cli.session import Session, json_option

ROLES = ("all", "api", "controller")


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=7717, show_default=True, help="0 = a free one."
)
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
    help="Pretend to have these GPUs, labelled simulated wherever they show. Repeatable.",
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
    )
    return run.serve(options)


@click.command()
@click.option("--timeout", type=click.FloatRange(min=0), default=60.0, show_default=True, help="Seconds.")
@json_option
@click.pass_obj
def stop(session: Session, timeout: float) -> None:
    """Stop your embedded server; its Jobs go on.

    The next server on the same data finds them again.
    """
    from trainshed.sdk import embedded  # noqa: PLC0415 - as in serve
    from trainshed.sdk.home import find_home  # noqa: PLC0415 - as in serve

    stopped = embedded.stop(find_home(), seconds=timeout)
    said = "Stopped; running Jobs go on." if stopped else "No embedded server was running."
    session.show({"stopped": stopped}, Sentence(lambda _: said))


@click.command()
@json_option
@click.pass_obj
def status(session: Session) -> None:
    """Show which server is used, why, and whether it answers.

    Starts nothing.
    """
    from trainshed.sdk.client import Client  # noqa: PLC0415 - as in serve
    from trainshed.sdk.discovery import find_connection  # noqa: PLC0415 - as in serve
    from trainshed.sdk.errors import ApiError, ConfigurationError, ConnectionFailed  # noqa: PLC0415 - as in serve
    from trainshed.sdk.transport import RetryPolicy  # noqa: PLC0415 - as in serve

    document: dict[str, Any] = {"server": None, "source": None, "answers": False, "reason": None}
    try:
        used = find_connection(session.url, project=session.project, start=False)
        document |= {"server": used.url, "source": used.source, "has_key": used.api_key is not None}
        with Client(connection=used, retry=RetryPolicy(attempts=1), timeout=5.0) as client:
            me = client.me()
            document |= {"answers": True, "project_id": me.get("project_id")}
    except (ApiError, ConnectionFailed, ConfigurationError) as error:
        document["reason"] = str(error)
        document["answers"] = isinstance(error, ApiError)
    view = Fields(
        (
            ("server", "server"),
            ("found by", "source"),
            ("answers", "answers"),
            ("project", "project_id"),
            ("reason", "reason"),
        ),
    )
    session.show(document, view)
