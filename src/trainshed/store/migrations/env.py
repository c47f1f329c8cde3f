"""Alembic's entry: runs the migrations on the connection that ``store.schema`` hands over."""

from alembic import context

from trainshed.store import tables, training_tables

assert tables.metadata is training_tables.metadata, "both fill what is compared"
metadata = tables.metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
context.run_migrations()
