"""Whether containers run on this machine, what one looks like to a Trial, and that none is left."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import trainshed
from trainshed.engines.contract import EngineError, Launch
from trainshed.engines.local import links, runtimes
from trainshed.engines.local.isolation import Isolation
from trainshed.engines.local.podman import Podman, oci_runtimes
from trainshed.engines.local.runtimes import Bind, Container, Runtime
from trainshed.jobkit import cgroups, folder, mounts, procs, sandbox
from trainshed.jobkit.container import OUTPUT
from trainshed.model.images import RegistryRules
from trainshed.model.resources import Gpu

GROUP = ".images"
"""Where the runtime's own control groups lie among ours; no attempt id begins with a dot."""
MARK = "image"
"""File of an attempt folder: the image that it uses. It goes with the container."""
MOUNTED = (sandbox.WORK, mounts.SANDBOX_CONTENT, *sandbox.TEMPORARY)
"""Where a Trial in an image has something of ours."""
_CODE_ROOT = Path(trainshed.__file__).resolve().parent.parent
_TRY = "import sys; sys.path.append(sys.argv.pop()); from trainshed.jobkit.rehearsal import main; main()"
_TRY_SECONDS = 60.0
_TRY_BYTES = 1 << 14
_TRY_LIMITS = {"cpus": 1, "memory_mb": 512, "pids": 64}
_MACHINE_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "usr", "nix")


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """How images are got and kept."""

    registries: RegistryRules = field(default_factory=RegistryRules)
    cache_bytes: int = 50 << 30
    """How much disk images that no attempt uses may keep."""
    keep_seconds: float = 600.0
    """An image used so recently stays whatever the limit: it is about to be launched."""
    stall_seconds: float = 60.0
    """A pull that gets nothing for so long has failed."""
    runtime: str = "auto"
    """``podman``, ``docker``, the first of them that works (``auto``), or ``none``."""
    layers: Callable[[str], Mapping[str, int]] | None = None
    """Asks for the layers of an image by digest: their sizes in bytes by digest, nothing where nobody says.

    It may take its time and be asked by any thread."""


class Containers:
    """The container runtime of one engine. Cheap to make; nothing is looked for before it is needed."""

    def __init__(
        self,
        root: Path,
        instance: str,
        layout: cgroups.Layout,
        settings: ImageSettings,
        isolation: Isolation | None,
    ) -> None:
        self.home = root / "images"
        self.instance = instance
        self._attempts = root / "attempts"
        self._settings = settings
        self._isolation = isolation
        self._layout = layout
        self._hierarchies = cgroups.hierarchies()
        self._group = _relative(layout, self._hierarchies)
        self._guard = threading.Lock()
        self._runtime: Runtime | None = None
        self._version = ""
        self._tries: set[str] = set()
        self._reason: str | None = None
        self._passed_over: list[str] = []

    # Whether and how

    @property
    def runtime(self) -> Runtime:
        """The runtime, tried out. Raises `EngineError` where there is none that works."""
        with self._guard:
            if self._runtime is None:
                try:
                    self._runtime = self._find()
                except OSError as error:  # a full disk must not keep the engine from its Trials
                    words = f"{error.filename or self.home}: {error.strerror}"
                    raise EngineError("IMAGES_UNAVAILABLE", words, retryable=True) from error
            return self._runtime

    def why_impossible(self) -> str | None:
        """Why no container runs here, or ``None``. The first answer takes a second; it is kept for good."""
        if self._reason is not None:
            return self._reason
        try:
            self.runtime  # noqa: B018 - finding it is the question
        except EngineError as error:
            if not error.retryable:
                self._reason = error.message
            return error.message
        return None

    def version(self) -> str | None:
        """What runs containers, as in ``podman 4.3.1``; ``None`` if nothing does."""
        return self._version if self.why_impossible() is None else None

    def why_no_gpus(self, gpus: Sequence[Gpu]) -> str | None:
        """Why programs in images cannot get these real GPUs of this machine, or ``None``."""
        if reason := self.why_impossible():
            return reason
        try:
            missing = self.runtime.why_no_gpus(gpus)
        except EngineError as error:
            return error.message
        return f"images get no GPUs here: {missing}" if missing else None

    def passed_over(self) -> str | None:
        """Why the runtime that is used is not the first that is installed; ``None`` if it is."""
        return "; ".join(self._passed_over) if self.why_impossible() is None and self._passed_over else None

    def _find(self) -> Runtime:
        """The first of the runtimes that works. Raises `EngineError`, at once where another try may help."""
        wanted, reasons = self._settings.runtime, []
        for name, program in runtimes.installed(wanted):
            try:
                found = self._find_docker(program) if name == "docker" else self._find_podman(program)
            except EngineError as error:
                if error.retryable:
                    raise
                reasons.append(error.message)
            else:
                self._passed_over = reasons
                return found
        words = {
            "auto": "neither podman nor docker is installed on the server's machine",
            "none": "its administrator switched images off (images.runtime)",
        }.get(wanted, f"{wanted} is not installed on the server's machine")
        raise EngineError("IMAGES_UNAVAILABLE", "; ".join(reasons) or words, retryable=False)

    def _find_docker(self, program: str) -> Runtime:
        from trainshed.engines.local.docker import Docker  # noqa: PLC0415 - rarely needed

        runtime = Docker(program, self.home)
        if reason := runtime.why_unusable():
            raise EngineError("IMAGES_UNAVAILABLE", reason, retryable=False)
        self._version = runtime.version()
        proof = self._proof(runtime, [self._version, runtime.drivers])
        if not proof.exists():
            if reason := self._try(runtime):
                words = f"docker is installed but runs no container: {reason}"
                raise EngineError("IMAGES_UNAVAILABLE", words, retryable=False)
            runtimes.write(proof, self._version)
        return runtime

    def _find_podman(self, program: str) -> Runtime:
        reasons = []
        for oci_runtime in (*oci_runtimes(), None):
            runtime = Podman(program, self.home, self.instance, oci_runtime)
            proof = self._proof(runtime, [oci_runtime])
            with suppress(OSError):
                self._version = proof.read_text(encoding="utf-8")
                return runtime
            reason = self._try(runtime)
            if reason is None:
                self._version = runtime.version()
                runtimes.write(proof, self._version)
                return runtime
            reasons.append(f"with {oci_runtime}: {reason}" if oci_runtime else reason)
        words = f"podman is installed but runs no container ({'; '.join(reasons)})"
        raise EngineError("IMAGES_UNAVAILABLE", words, retryable=False)

    def _proof(self, runtime: Runtime, settings: Sequence[str | None]) -> Path:
        """A file that says for this boot that the runtime as it is runs containers."""
        program = Path(runtime.program).resolve()
        about = [os.fspath(program), program.stat().st_mtime_ns, *settings, self._group is not None]
        about.append(self._user)
        return runtime.shared / f"runs-{sha256(json.dumps(about).encode()).hexdigest()[:16]}"

    def _try(self, runtime: Runtime) -> str | None:
        """Run this machine's own shell in a container of nothing else, as a program would be run."""
        with tempfile.TemporaryDirectory(prefix="try-", dir=self.home) as name:
            path = Path(name)
            root = path / "root"
            root.mkdir()
            binds = []
            for each in _MACHINE_FOLDERS:
                place = Path("/", each)
                if place.is_symlink():
                    (root / each).symlink_to(place.readlink())
                elif place.is_dir():
                    binds.append(Bind(place, f"/{each}", read_only=True))
            with runtime.bare(root) as image:
                code, said = self._rehearse(runtime, path, ".try", image, ("bash", "-c", ":"), binds=binds)
        if code == 0:
            return None
        return runtimes.last_words(said) if code is not None else "it took too long"

    def rehearse(
        self, image_id: str, argv: Sequence[str], cancelled: Callable[[], bool]
    ) -> tuple[int | None, str]:
        """Run a program of an image as those of Trials are run, without network and anything to write to.

        Returns its exit status, ``None`` if it took too long or was cancelled, and what it said; that is the
        reason where the status is 1 and the program did not run.
        """
        name = f".check-{secrets.token_hex(4)}"
        with tempfile.TemporaryDirectory(prefix="check-", dir=self.home) as path:
            temporary = Path(path, folder.TEMPORARY)
            temporary.mkdir()
            binds = [Bind(temporary, place, read_only=True) for place in MOUNTED[1:]]
            return self._rehearse(
                self.runtime,
                Path(path),
                name,
                (image_id,),
                argv,
                binds=binds,
                read_only=True,
                cancelled=cancelled,
            )

    def link(self, image_id: str) -> str | None:
        """A place where every Trial has something mounted and the image has a symbolic link on the way."""
        places = {place.as_posix(): None for each in MOUNTED for place in reversed(Path(each).parents)}
        places |= dict.fromkeys(MOUNTED)
        del places["/"]
        return links.find(self.runtime, image_id, list(places))

    def _rehearse(
        self,
        runtime: Runtime,
        path: Path,
        name: str,
        image: Sequence[str],
        argv: Sequence[str],
        *,
        binds: Sequence[Bind] = (),
        read_only: bool = False,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> tuple[int | None, str]:
        ours = [Bind(path / folder.WORK, sandbox.WORK, read_only)]
        wanted = replace(self._template(name), image=image, binds=[*ours, *binds], read_only=read_only)
        box = self._box(runtime, path, wanted)
        launch = {"container": box, "attempt_id": name, "argv": list(argv), "limits": _TRY_LIMITS}
        launch["cgroups"] = self._layout.to_json()
        command = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            _TRY,
            os.fspath(path),
            json.dumps(launch),
            str(_CODE_ROOT),
        ]
        said = bytearray()
        code = None
        self._tries.add(name)
        deadline = time.monotonic() + _TRY_SECONDS
        try:
            with runtimes.process(command, runtime.environment) as running:
                while not runtimes.read_output(running, said):
                    if cancelled() or time.monotonic() > deadline or len(said) > _TRY_BYTES:
                        break
                else:
                    with suppress(subprocess.TimeoutExpired):
                        code = running.wait(timeout=max(0.1, deadline - time.monotonic()))
        finally:
            group = cgroups.Group(self._layout, name)
            group.kill_until_empty(_TRY_SECONDS)
            runtime.remove(self._name(name))
            group.remove(1.0)
            self._remove_groups(name)
            self._tries.discard(name)
        return code, said.decode(errors="replace")

    # An attempt's container

    @property
    def _user(self) -> int:
        """Whose id programs have in a container: its root, without privileges, unless another is asked."""
        if self._isolation is not None and os.geteuid() == 0:
            return self._isolation.user
        return 0

    def box(self, launch: Launch, image_id: str, binds: Sequence[Bind]) -> dict[str, Any]:
        """The form in which a launch hands its container to the shim. Raises `EngineError`."""
        runtime = self.runtime
        path = self._attempts / launch.attempt_id
        ours = [Bind(path / folder.WORK, sandbox.WORK, read_only=False)]
        ours += [Bind(path / folder.TEMPORARY, place, read_only=False) for place in sandbox.TEMPORARY]
        apart = self._isolation is not None and self._isolation.network
        wanted = replace(
            self._template(launch.attempt_id),
            image=(image_id,),
            network="none" if apart else "host",
            shm_mb=launch.limits.shm_mb,
            binds=[*ours, *binds],
            gpus=[gpu for gpu in launch.gpus if not gpu.simulated],
        )
        writable = [bind.target for bind in binds if not bind.read_only]
        return {**self._box(runtime, path, wanted), "writable": writable}

    def _template(self, attempt_id: str) -> Container:
        """A container of nothing yet, by itself and without network."""
        # A sweep ends what carries the engine's mark and is no attempt; a try is neither.
        instance = f"{self.instance}.try" if attempt_id.startswith(".") else self.instance
        return Container(
            name=self._name(attempt_id),
            instance=self.instance,
            image=(),
            user=self._user,
            network="none",
            shm_mb=1,
            marks={procs.ATTEMPT_VARIABLE: attempt_id, procs.INSTANCE_VARIABLE: instance},
            binds=(),
            gpus=(),
            group=self._parent(attempt_id),
        )

    def _box(self, runtime: Runtime, path: Path, wanted: Container) -> dict[str, Any]:
        runtime.get_ready()
        starting = runtime.starting(wanted, path)
        return {
            "commands": [list(command) for command in starting.commands],
            "environment": dict(runtime.environment),
            "keeper": os.fspath(starting.keeper) if starting.keeper else None,
            "monitor": os.fspath(starting.monitor) if starting.monitor else None,
            "replace": list(starting.replace),
            "user": self._user or None,
        }

    def release(self, attempt_id: str) -> str | None:
        """Remove the container of an attempt whose processes are gone; why it is still there, or ``None``.

        The proof of its absence is what the runtime says, and that none of its control groups exists.
        """
        name, path = self._name(attempt_id), self._attempts / attempt_id
        if (path / OUTPUT).exists() and not (path / folder.STARTED).exists():
            with suppress(FileNotFoundError):
                if image := (path / MARK).read_text(encoding="utf-8"):
                    self.runtime.settle(name, image)
        reason = self.runtime.remove(name)
        if reason is None and not self._remove_groups(attempt_id):
            reason = "a control group of it cannot be removed"
        if reason is None:
            (path / MARK).unlink(missing_ok=True)
        return reason

    def uses(self, attempt_id: str) -> bool:
        """Whether the attempt may have a container."""
        return (self._attempts / attempt_id / MARK).exists()

    def used_images(self) -> set[str]:
        """The images of attempts that are not released."""
        found = set()
        for mark in self._attempts.glob(f"*/{MARK}"):
            with suppress(OSError):
                found.add(mark.read_text(encoding="utf-8"))
        return found

    def strangers(self, known: set[str]) -> set[str]:
        """Attempts that belong to none of ``known`` and have a container; it is noted in their folders.

        What a try of a server that was killed left is removed here.
        """
        if self._runtime is None and not self.home.is_dir():
            return set()
        with suppress(EngineError):
            prefix = self._name("")
            names = self.runtime.containers(self.instance)
            found = {name.removeprefix(prefix) for name in names if name.startswith(prefix)} - known
            for name in [each for each in found if each.startswith(".")]:
                found.discard(name)
                if name not in self._tries:
                    self.runtime.remove(self._name(name))
                    self._remove_groups(name)
            for attempt_id in found:
                path = self._attempts / attempt_id
                path.mkdir(mode=0o700, exist_ok=True)
                (path / MARK).touch()
            return found
        return set()

    def _name(self, attempt_id: str) -> str:
        return f"trainshed-{self.instance}-{attempt_id}"

    # Control groups that the runtime makes

    def _parent(self, name: str) -> str | None:
        return f"{self._group}/{GROUP}/{name}" if self._group else None

    def _remove_groups(self, name: str) -> bool:
        parent = self._parent(name)
        if parent is None:
            return True
        left = [mount for mount in self._hierarchies if not cgroups.remove_tree(mount + parent)]
        return not left

    def close(self) -> None:
        """Remove what is of no use without an engine: empty groups, and files of this boot.

        Not while an attempt may have its container made, which the next engine finds.
        """
        if self.used_images():
            return
        if self._runtime is not None:
            self._runtime.close()
        if self._group is None or not self.home.is_dir():
            return
        for mount in self._hierarchies:
            ours = Path(mount + self._group)
            for path in (ours / GROUP, ours, ours.parent):
                with suppress(OSError):
                    path.rmdir()


def _relative(layout: cgroups.Layout, hierarchies: Sequence[str]) -> str | None:
    """The group of all our attempts below the mount of its hierarchy; root only makes groups for others."""
    if os.geteuid() != 0:
        return None
    for parent in layout.parents():
        for mount in sorted(hierarchies, key=len, reverse=True):
            if parent.startswith(f"{mount}/"):
                return parent.removeprefix(mount)
    return None
