"""Driving a real local engine whose programs run in an image: podman or docker, a registry on loopback."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import pytest

from engines.conformance import written
from engines.machinery import LocalHarness
from support.processes import command_of
from support.registry import Registry, bash_tree
from trainshed.engines import EngineError, Launch
from trainshed.engines.local import ImageSettings, Isolation, LocalEngine
from trainshed.jobkit import cgroups, container, frames, mounts, sandbox

PULLED = ImageSettings(keep_seconds=0, stall_seconds=20)
VERSION = "#!/bin/bash\necho python 3.11.0\n"
"""A ``python3`` that does no more than say which it is."""


@dataclass(frozen=True)
class ImageGround:
    """An engine's folder that holds an image already; tests follow each other on it."""

    root: Path
    image: str
    """``127.0.0.1:PORT/team/python@sha256:…``: Bash, coreutils and this Python."""
    runtime: str


def make_ground(root: Path, registry: Registry, runtime: str = "podman") -> ImageGround:
    """Pull the image that programs of the tests run in, once for all of them."""
    digest = registry.push(registry.image("python", marker="of the image"), "team/python", "1")
    image = registry.name("team/python", digest=digest)
    engine = LocalEngine(root, images=ImageSettings(runtime=runtime))
    try:
        engine.prepare(image, lambda _sentence: None, lambda: False)
    finally:
        engine.close()
    return ImageGround(root, image, runtime)


class ImageHarness(LocalHarness):
    """The same in an image. A start shows in the log, as a program can write nothing of the host's."""

    engine: LocalEngine
    interpreter = "python3"
    started = "cat /proc/sys/kernel/random/uuid >&2"
    says: Mapping[str, str] = MappingProxyType({"isolation": container.NAME})
    taken_over = frozenset()

    def __init__(self, path: Path, ground: ImageGround, **settings: object) -> None:
        self.image = ground.image
        self.runtime = ground.runtime
        self._seen: dict[str, set[bytes]] = {}
        settings.setdefault("images", ImageSettings(runtime=ground.runtime))
        super().__init__(path, root=ground.root, **settings)

    def program(self, *arguments: object, **settings: object) -> Launch:  # type: ignore[override] # as above
        return replace(super().program(*arguments, **settings), image=self.image)  # type: ignore[arg-type]

    def starts(self, attempt_id: str) -> int:
        log = self.engine.logs(attempt_id).frames
        if log.exists():
            lines = written(log, frames.STDERR).splitlines()
            self._seen.setdefault(attempt_id, set()).update(lines)
        return len(self._seen.get(attempt_id, ()))

    def directory(self, _attempt_id: str) -> str:
        return sandbox.WORK

    def close(self) -> None:
        """End everything, and leave the folder as the next test wants it."""
        self.engine.sweep(())
        for attempt in list((self.root / "attempts").iterdir()):
            self.engine.forget(attempt.name)
        super().close()
        assert not self.leftovers()

    def programs(self, attempt_id: str) -> set[int]:
        """What runs of an attempt beside its container, which docker's daemon keeps until the release."""
        own = self.processes(attempt_id)
        return {pid for pid in own if container.KEEPER[-1] not in command_of(pid)}

    def containers(self) -> list[str]:
        """Containers of this engine's that are there, also those that its runtime no longer counts."""
        return [
            *left_containers(self.root),
            *self.engine._containers.runtime.containers(self.engine.instance),
        ]

    def leftovers(self) -> list[str]:
        """Control groups, containers and mounts that are still there after the engine was closed."""
        return [
            *super().leftovers(),
            *left_groups(self.engine.instance),
            *self.containers(),
            *mounts.mounted_below(str(self.root)),
        ]


def image_way(
    path: Path, ground: ImageGround, *, isolated: bool = False, **settings: object
) -> Iterator[ImageHarness]:
    """What a fixture yields: an engine on the common folder, ended with everything it started."""
    harness = ImageHarness(path, ground, isolation=Isolation(hide=(path,)) if isolated else None, **settings)
    yield harness
    harness.close()


image_engine = contextlib.contextmanager(image_way)
"""The same for a ``with`` of a test's own."""


def left_groups(instance: str) -> list[str]:
    """Control groups of an engine in any hierarchy, also those that only a runtime makes."""
    return [
        str(place)
        for mount in cgroups.hierarchies()
        for place in Path(mount, "trainshed", instance).rglob("*")
        if place.is_dir()
    ]


def left_containers(root: Path) -> list[str]:
    """What podman still keeps of containers, by their ids."""
    folder = root / "images" / "store" / "overlay-containers"
    return [entry.name for entry in folder.iterdir() if entry.is_dir()] if folder.is_dir() else []


def pushed(registry: Registry, marker: str, tag: str = "1", kind: str = "busybox") -> str:
    """An image of its own, by digest. It has no Bash; pulling it takes a moment only."""
    repository = f"team/{kind}-{marker}"
    return registry.name(
        repository, digest=registry.push(registry.image(kind, marker=marker), repository, tag)
    )


def built(
    registry: Registry, name: str, change: Callable[[Path], None], *, python: str = VERSION, **config: str
) -> str:
    """A small image of Bash and a script called ``python3`` that was changed, by digest."""
    tree = registry.folder / f"made-{name}"
    tree.mkdir()
    tree.chmod(0o755)
    bash_tree(tree)
    if python:
        (tree / "usr/bin/python3").write_text(python)
        (tree / "usr/bin/python3").chmod(0o755)
    change(tree)
    image = registry.build(name, tree, **config)
    shutil.rmtree(tree)
    return registry.name(f"team/{name}", digest=registry.push(image, f"team/{name}", "1"))


def refusal(engine: LocalEngine, image: str, said: list[str] | None = None) -> EngineError:
    progress: list[str] = [] if said is None else said
    with pytest.raises(EngineError) as refused:
        engine.prepare(image, progress.append, lambda: False)
    return refused.value


def pulls_below(path: Path) -> list[int]:
    """Processes that pull an image for an engine below ``path``."""
    mark = f"HOME={path}/".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
                pulls = b"\0pull\0" in words or b"/docker_pull.py\0" in words
                if pulls and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def make(harness: ImageHarness, name: str) -> None:
    """Have the runtime make a container that no attempt of the engine's asked for."""
    containers = harness.engine._containers
    wanted = replace(containers._template(name), image=(harness.image,))
    command = containers.runtime.starting(wanted, harness.path).commands[0]
    subprocess.run(command, env=dict(containers.runtime.environment), check=True, capture_output=True)
