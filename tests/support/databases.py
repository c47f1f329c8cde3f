"""On which kinds of database tests run: all of them, or one where it is not the database that is proven."""

from __future__ import annotations

import os

import pytest

KINDS = os.environ.get("TRAINSHED_TEST_DATABASES", "sqlite,postgresql").split(",")

on_one_kind = pytest.mark.parametrize("database_url", KINDS[:1], indirect=True)
"""Of a test or a module (``pytestmark``) that asks for ``database`` or ``database_url`` in any way."""
