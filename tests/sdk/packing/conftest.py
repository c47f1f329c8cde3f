"""Projects to pack, each test with a home of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.projects import Uploads, project, set_home
from trainshed.sdk.packing import InvalidSpec, Packed, pack

Make = Callable[[Mapping[str, str | bytes]], Path]
TRAIN = "print('training')\n"


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return set_home(monkeypatch, tmp_path)


@pytest.fixture
def make(tmp_path: Path, home: Path) -> Make:
    """A repository with these files and a `train.py`, all committed that is not ignored."""

    def make(files: Mapping[str, str | bytes]) -> Path:
        return project(tmp_path / "work" / "proj", {"train.py": TRAIN, **files})

    return make


def packed(place: Path, **arguments: Any) -> Packed:
    return pack(place, {"script": "train.py", **arguments})


def shipped(found: Packed) -> dict[str, bytes]:
    """What the Job would have: read back from what was uploaded, after the numbers were compared (G18)."""
    server = Uploads()
    found.upload(server)
    tree = server.tree(found.spec["bundle"]["manifest_sha256"])
    assert found.summary["files"] == len(tree)
    assert found.summary["bytes"] == sum(map(len, tree.values()))
    return tree


def refusal(place: Path | str, **arguments: Any) -> InvalidSpec:
    with pytest.raises(InvalidSpec) as caught:
        pack(place, arguments)
    assert caught.value.message
    return caught.value
