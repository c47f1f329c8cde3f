"""A local engine of each test's own, ended with everything it started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.machinery import LocalHarness, each_way


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalHarness]:
    yield from each_way("none", tmp_path)
