"""The table of receipts: what became of something that was asked for (contract E b7)."""

from __future__ import annotations

from sqlalchemy import Column, Double, ForeignKey, Index, String, Table, Text

from trainshed.store.columns import metadata

operations = Table(
    "operations",
    metadata,
    Column("id", String, primary_key=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("kind", String, nullable=False),
    Column("resource_id", String, nullable=False),
    Column("status", String, nullable=False),
    Column("errors", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Index("ix_operations_resource", "resource_id"),
)
