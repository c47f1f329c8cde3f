"""Bringing a database to this program's schema, and refusing one from a newer program."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

MIGRATIONS = Path(__file__).parent / "migrations"


class SchemaTooNew(Exception):
    """The database was written by a newer program than this one."""


def migrate(engine: Engine) -> None:
    """Run the missing migrations, in one transaction; raises `SchemaTooNew` and changes nothing if it is newer."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        current = MigrationContext.configure(connection).get_current_revision()
        if current is not None and current not in known:
            raise SchemaTooNew(
                f"the database has schema {current}, which this program does not know; "
                "run the newer Trainshed that wrote it, or restore an older backup",
            )
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
