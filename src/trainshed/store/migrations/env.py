"""Alembic's entry: runs the migrations on the connection that ``store.schema`` hands over."""

from alembic import context

from trainshed.store import (
    script_tables,  # noqa: F401 - importing it fills the metadata
    tables,  # noqa: F401 - importing it fills the metadata
    training_tables,  # noqa: F401 - importing it fills the metadata
)
from trainshed.store.columns import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
context.run_migrations()
