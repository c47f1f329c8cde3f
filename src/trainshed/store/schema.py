"""Bringing a database to this program's schema, and refusing one from a newer program."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine, inspect, text
from sqlalchemy.exc import DBAPIError

from trainshed.store.database import Database, DatabaseUnavailable

MIGRATIONS = Path(__file__).parent / "migrations"
_LOCK_KEY = 0x747261696E736864
"""Of PostgreSQL's advisory lock; the letters ``trainshd``, so that no other program takes it by chance."""


class SchemaTooNew(Exception):
    """The database was written by a newer program than this one."""


def is_current(url: str) -> bool:
    """Whether `migrate` has nothing to do in the database at ``url``, which is closed again.

    Raises `DatabaseUnavailable` where it cannot be looked at, and what `Database` raises.
    """
    database = Database(url)
    try:
        return _is_current(database.engine)
    except DBAPIError as error:
        raise DatabaseUnavailable(str(error.orig)) from error
    finally:
        database.close()


def migrate(engine: Engine) -> None:
    """Run the missing migrations, in one transaction; processes that start together take turns.

    Raises `SchemaTooNew` for a newer program's database and `DatabaseUnavailable` where it cannot be used;
    nothing was changed then.
    """
    try:
        if not _is_current(engine):
            _migrate(engine)
    except DBAPIError as error:
        raise DatabaseUnavailable(str(error.orig)) from error


def _is_current(engine: Engine) -> bool:
    """Whether nothing is to be done: as a rule, and then the library for migrations is not even loaded."""
    newest = max(path.stem.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return False
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all()
    return list(found) == [newest]


def _migrate(engine: Engine) -> None:
    # 6 MB that a server does not need again until its program is newer.
    from alembic import command  # noqa: PLC0415 - see above
    from alembic.config import Config  # noqa: PLC0415 - see above
    from alembic.runtime.migration import MigrationContext  # noqa: PLC0415 - see above
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - see above

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
        known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        current = MigrationContext.configure(connection).get_current_revision()
        if current is not None and current not in known:
            raise SchemaTooNew(
                f"the database has schema {current}, which this program does not know; "
                "run the newer Trainshed that wrote it, or restore an older backup",
            )
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
