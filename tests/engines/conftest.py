"""A local engine of each test's own, ended with everything it started."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engines.containers import (
    PULLED,
    ImageGround,
    ImageHarness,
    image_way,
    left_containers,
    left_groups,
    make_ground,
)
from engines.machinery import LocalHarness, each_way
from support.ray_cluster import RayCluster, shared_cluster
from support.registry import Registry
from trainshed.engines.local import ImageSettings, LocalEngine
from trainshed.jobkit import mounts


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalHarness]:
    yield from each_way("none", tmp_path)


@pytest.fixture(scope="session")
def image_ground(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> ImageGround:
    """An engine's folder with an image in it, which all tests of images share: pulling takes seconds."""
    return make_ground(tmp_path_factory.mktemp("images") / "engine", registry)


@pytest.fixture(scope="session")
def docker_ground(
    registry: Registry, docker_host: str, tmp_path_factory: pytest.TempPathFactory
) -> ImageGround:
    """The same with a docker daemon of the tests' own."""
    del docker_host  # the environment names it
    return make_ground(tmp_path_factory.mktemp("docker") / "engine", registry, "docker")


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """A real Ray cluster of three nodes with simulated GPUs, one for all processes of this test run."""
    base = tmp_path_factory.getbasetemp()
    place = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with shared_cluster(place / "ray") as cluster:
        yield cluster


@pytest.fixture
def podman(tmp_path: Path, image_ground: ImageGround) -> Iterator[ImageHarness]:
    yield from image_way(tmp_path, image_ground)


@pytest.fixture(params=["image_ground", "docker_ground"], ids=["podman", "docker"])
def ground(request: pytest.FixtureRequest) -> ImageGround:
    """With podman, and with docker where a daemon can be started."""
    found: ImageGround = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def contained(tmp_path: Path, ground: ImageGround) -> Iterator[ImageHarness]:
    """An engine on that ground, ended with everything it started."""
    yield from image_way(tmp_path, ground)


@pytest.fixture(params=["podman", "docker"])
def runtime(request: pytest.FixtureRequest, registry: Registry) -> str:
    """What runs images: each in turn."""
    del registry  # whoever has it has podman
    if request.param == "docker":
        request.getfixturevalue("docker_host")
    return str(request.param)


@pytest.fixture
def fresh(tmp_path: Path, runtime: str) -> Iterator[Callable[..., LocalEngine]]:
    """Makes engines on a folder of the test's own. None brought an image; docker's daemon may have some."""
    made: list[LocalEngine] = []

    def make(settings: ImageSettings = PULLED) -> LocalEngine:
        for engine in made:
            engine.close()
        made.append(LocalEngine(tmp_path / "engine", images=replace(settings, runtime=runtime)))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
        engine._layout.remove_parents()
        assert not left_groups(engine.instance)
        assert not engine._containers.runtime.containers(engine.instance)
    root = tmp_path / "engine"
    assert not left_containers(root)
    assert not mounts.mounted_below(str(root))
