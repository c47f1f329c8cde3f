"""Projects to pack, each test with a home of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from support.projects import project, set_home

Make = Callable[[Mapping[str, str | bytes]], Path]


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return set_home(monkeypatch, tmp_path)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A repository with these files and a `train.py`, all committed that is not ignored."""

    def make(files: Mapping[str, str | bytes]) -> Path:
        return project(tmp_path / "work" / "proj", {"train.py": "print('training')\n", **files})

    return make
