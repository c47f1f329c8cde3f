"""A local engine of each test's own, ended with everything it started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.machinery import LocalHarness


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path)
    yield harness
    harness.close()
    assert not harness.leftovers()
