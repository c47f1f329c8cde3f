"""A local engine of each test's own, ended with everything it started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.containers import ImageGround, ImageHarness, image_way, make_ground
from engines.machinery import LocalHarness, each_way
from support.registry import Registry


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalHarness]:
    yield from each_way("none", tmp_path)


@pytest.fixture(scope="session")
def image_ground(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> ImageGround:
    """An engine's folder with an image in it, which all tests of images share: pulling takes seconds."""
    return make_ground(tmp_path_factory.mktemp("images") / "engine", registry)


@pytest.fixture
def podman(tmp_path: Path, image_ground: ImageGround) -> Iterator[ImageHarness]:
    yield from image_way(tmp_path, image_ground)
