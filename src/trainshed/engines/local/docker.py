"""docker, for machines without podman. Its daemon is shared: only what carries our label is touched.

Registries and mirrors are the daemon's own settings; ours are for podman.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trainshed.engines.contract import EngineError
from trainshed.engines.local import cdi, docker_pull, runtimes
from trainshed.engines.local.runtimes import Container, ImageFacts, Starting
from trainshed.jobkit import container
from trainshed.model.images import ImageReference, RegistryRules
from trainshed.model.resources import Gpu

_SLICES = "systemd"
"""The daemon's driver of control groups that takes no groups of others."""

_NVIDIA = "nvidia"
"""What the runtime is called that adds GPUs by itself (nvidia-container-toolkit)."""
_SHARED = Path("/run/trainshed")
_HOST = "unix:///var/run/docker.sock"
_CAME = "came"
"""File with the number of bytes that a pull has brought."""
_SETTLE_SECONDS = 30.0


class Docker:
    """The docker daemon that ``DOCKER_HOST`` or its own default names."""

    name = "docker"

    def __init__(self, program: str, home: Path) -> None:
        self.program = program
        for path in (home, home / "home", home / runtimes.DOWNLOADS):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        runtimes.clear_downloads(home)
        self.environment: dict[str, str] = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": os.fspath(home / "home"),  # nobody's credentials
        }
        for name, value in os.environ.items():
            if name.startswith("DOCKER_") and name != "DOCKER_CONFIG":
                self.environment[name] = value
        self.shared = _SHARED
        self._version = self.drivers = ""
        """The daemon's drivers of control groups and of storage, once it was asked."""
        self._specifications: list[Path] = []
        self._runtimes: frozenset[str] = frozenset()

    def why_unusable(self) -> str | None:
        """Why its containers cannot be used, or ``None``."""
        if os.geteuid() != 0:
            return "the containers of docker belong to root, and the server is another user; install podman"
        done = runtimes.call([self.program, "info", "--format={{json .}}"], self.environment)
        if done.returncode != 0:
            return f"docker does not answer: {runtimes.last_words(done.stderr)}"
        said = json.loads(done.stdout)
        if not said.get("ServerVersion"):  # some clients succeed without a daemon
            return f"docker does not answer: {' '.join(said.get('ServerErrors') or ['no word about why'])}"
        self._take(said)
        self.shared.mkdir(mode=0o700, parents=True, exist_ok=True)
        return None

    def _take(self, said: Mapping[str, Any]) -> None:
        """What the daemon says of itself; it names folders of specifications where it reads any (CDI)."""
        self._version = str(said["ServerVersion"])
        self.drivers = f"{said['CgroupDriver']} {said['Driver']}"
        self._specifications = [Path(place) for place in said.get("CDISpecDirs") or ()]
        self._runtimes = frozenset(said.get("Runtimes") or {})

    def version(self) -> str:
        return f"docker {self._version}".rstrip()

    def get_ready(self) -> None:
        """The daemon is ready or it is not."""

    def starting(self, wanted: Container, folder: Path) -> Starting:
        del folder
        gpus, visible = self._gpu_options(wanted.gpus)
        options = [each for each in runtimes.common_options(wanted, visible) if self._takes(each)]
        run = [self.program, "run", "--detach", f"--name={wanted.name}", "--pull=never", *gpus, *options]
        run += ["--entrypoint=bash", *wanted.image, *container.KEEPER]
        look = [self.program, "inspect", "--format={{.State.Pid}}", wanted.name]
        return Starting([run, look], None, None, replace=self._removing(wanted.name))

    def why_no_gpus(self, gpus: Sequence[Gpu]) -> str | None:
        if self._specifications:
            missing = cdi.names(gpus, self._specifications)[1]
        else:
            which = "28 does by itself, 25 with its feature `cdi`"
            missing = f"its daemon {self._version} reads no CDI specifications ({which})"
        if missing is None or _NVIDIA in self._runtimes:
            return None
        return f"docker gives them none: {missing}, and it has no runtime called `{_NVIDIA}`"

    def _gpu_options(self, gpus: Sequence[Gpu]) -> tuple[list[str], str]:
        """Options that add these GPUs, and what NVIDIA's own runtime is told. Raises `EngineError`."""
        if not gpus:
            return [], "void"
        if reason := self.why_no_gpus(gpus):
            raise EngineError("GPU_LOST", reason, retryable=True)
        names, missing = cdi.names(gpus, self._specifications)
        if missing is None:
            return [f"--device={name}" for name in names], "void"
        options = [f"--runtime={_NVIDIA}", "--env=NVIDIA_DRIVER_CAPABILITIES=all"]
        return options, ",".join(gpu.uuid for gpu in gpus)

    @contextmanager
    def bare(self, root: Path) -> Iterator[Sequence[str]]:
        archive = root.with_suffix(".tar")
        with tarfile.open(archive, "w") as tar:
            tar.add(root, "/")
        done = runtimes.call([self.program, "import", os.fspath(archive)], self.environment)
        if done.returncode != 0:
            raise EngineError("IMAGES_UNAVAILABLE", runtimes.last_words(done.stderr), retryable=True)
        image = done.stdout.strip()
        try:
            yield (image,)
        finally:
            self.remove_image(image)

    def pulling(
        self, image: ImageReference, registries: RegistryRules, downloads: Path, *, one_by_one: bool
    ) -> tuple[list[str], Mapping[str, str]]:
        del registries, one_by_one  # settings of the daemon
        scheme, _, place = self.environment.get("DOCKER_HOST", _HOST).partition("://")
        if scheme != "unix" or image.digest is None:
            return [self.program, "pull", str(image)], self.environment
        repository = f"{image.host}/{image.repository}"
        file = os.fspath(downloads / _CAME)
        command = [sys.executable, "-I", "-S", docker_pull.__file__, place, repository, image.digest, file]
        return command, self.environment

    def downloaded(self, downloads: Path) -> int:
        """What the daemon says of it; it keeps the bytes to itself."""
        with suppress(FileNotFoundError):
            return int((downloads / _CAME).read_text(encoding="ascii"))
        return 0

    def layers_here(self) -> frozenset[str]:
        return frozenset()  # the daemon says it

    def worked(self, pid: int) -> int:
        del pid
        return 0  # the daemon tells what it unpacks

    def inspect(self, image: str) -> ImageFacts | None:
        done = runtimes.call([self.program, "image", "inspect", image], self.environment)
        return runtimes.facts(done.stdout) if done.returncode == 0 else None

    def remove_image(self, image: str) -> bool:
        done = runtimes.call([self.program, "image", "rm", image], self.environment)
        return done.returncode == 0 or "No such image" in done.stderr

    def containers(self, instance: str) -> list[str]:
        return runtimes.names([self.program, "ps", "--all"], instance, self.environment)

    def settle(self, name: str, image: str) -> None:
        """The daemon goes on for a client that was killed, and a name is taken before it is seen anywhere.

        A container of our own that gets the name proves that no other is on its way to it.
        """
        create = [self.program, "create", f"--name={name}", "--network=none", image, "true"]
        deadline = time.monotonic() + _SETTLE_SECONDS
        while time.monotonic() < deadline:
            done = runtimes.call(create, self.environment)
            if container.TAKEN not in done.stderr:
                return
            self.remove(name)
            time.sleep(runtimes.LOOK_SECONDS)

    def remove(self, name: str) -> str | None:
        done = runtimes.call(self._removing(name), self.environment)
        gone = done.returncode == 0 or "No such container" in done.stderr
        return None if gone else runtimes.last_words(done.stderr)

    def close(self) -> None:
        """Nothing of a boot is kept."""

    def _removing(self, name: str) -> list[str]:
        return [self.program, "rm", "--force", "--volumes", name]

    def _takes(self, option: str) -> bool:
        return not self.drivers.startswith(_SLICES) or not option.startswith("--cgroup-parent")
