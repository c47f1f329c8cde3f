"""The launch intent: all that a shim has to know, in the attempt folder before anything else happens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trainshed.engines.contract import EngineError, Launch
from trainshed.engines.local import inputs
from trainshed.engines.local.containers import MARK, Containers
from trainshed.engines.local.environment import program_environment
from trainshed.engines.local.images import ImageCache
from trainshed.engines.local.isolation import Isolation
from trainshed.engines.local.meetings import Meetings
from trainshed.engines.local.runtimes import Bind
from trainshed.engines.local.training import TrainingIntents
from trainshed.jobkit import cgroups, folder, mounts, neighbours, sandbox
from trainshed.jobkit import container as containers
from trainshed.model.resources import Amounts


class Intents:
    """Turns launches into folders that a shim can work from."""

    def __init__(  # noqa: PLR0913 - what an engine consists of
        self,
        *,
        root: Path,
        instance: str,
        totals: Amounts,
        layout: cgroups.Layout,
        private_shm: bool,
        isolation: Isolation | None,
        images: ImageCache,
        containers: Containers,
        meetings: Meetings,
    ) -> None:
        self._root = root
        self._instance = instance
        self._totals = totals
        self._layout = layout
        self._private_shm = private_shm
        self._isolation = isolation
        self._images = images
        self._containers = containers
        self._training = TrainingIntents(root / "attempts", meetings, may_mount=private_shm)

    def record(self, path: Path, launch: Launch, *, real_gpus_present: bool) -> None:
        """Write the launch into the attempt folder ``path``. Raises `EngineError`, `OSError`."""
        if not launch.argv:
            raise EngineError("LAUNCH_INVALID", "there is nothing to execute", retryable=False)
        limits, totals = launch.limits, self._totals
        memory_mb = min(limits.memory_mb, totals.memory_mb)
        apart = self._isolation is not None or launch.image is not None
        may_mount = self._private_shm or apart
        self._training.check(launch)
        self._check_staging(launch, apart=apart)
        stage = path / folder.VOLUMES if self._private_shm else None
        mounted = inputs.mounts(launch, self._root, may_mount=may_mount, stage=stage)
        content = mounts.SANDBOX_CONTENT if apart else os.fspath(path / folder.CONTENT)
        own = {**launch.env, **inputs.variables(launch.paths, launch.mounts, content)}
        environment = program_environment(
            own | self._training.variables(launch, apart=apart),
            launch.gpus,
            attempt_id=launch.attempt_id,
            instance=self._instance,
            real_gpus_present=real_gpus_present,
            isolated=self._isolation is not None,
            image=launch.image is not None,
        )
        container = self._container(launch, mounted)
        path.mkdir(mode=0o700, exist_ok=True)
        elsewhere = [] if may_mount else inputs.elsewhere(launch, content)
        self._training.write(path, launch, apart=apart, elsewhere=elsewhere)
        kept_apart = containers.NAME if launch.image is not None else sandbox.NAME if apart else ""
        if launch.image is not None:
            (path / MARK).write_text(launch.image, encoding="utf-8")
        folder.write_durably(
            path,
            folder.LAUNCH,
            {
                "attempt_id": launch.attempt_id,
                "argv": list(launch.argv),
                "env": environment,
                "files": [[file.path, os.fspath(file.source), file.executable] for file in launch.files],
                # Simulated GPUs make the accounting larger than the machine; real limits are not.
                "limits": {
                    "cpus": min(limits.cpus, totals.cpus),
                    "memory_mb": memory_mb,
                    "storage_mb": limits.storage_mb,
                    "shm_mb": min(limits.shm_mb, memory_mb),
                    "pids": limits.pids,
                    "log_bytes": limits.log_bytes,
                },
                "timeout": launch.timeout_seconds,
                "grace": launch.stop_grace_seconds,
                "cgroups": self._layout.to_json(),
                "killing": self._layout.killing(),
                "private_shm": self._private_shm,
                "mounts": mounted,
                "staged": inputs.staged(launch, may_mount=self._private_shm),
                "sandbox": self._sandbox(launch, mounted),
                "container": container,
                **self._training.for_child(launch, apart=kept_apart),
            },
        )

    def _check_staging(self, launch: Launch, *, apart: bool) -> None:
        """Refuse a part of a volume where what shows it to the program takes nothing but a name for it.

        Whoever writes to the volume could have the name lead elsewhere before it is mounted.
        """
        if not apart or not any(mount.within for mount in launch.mounts):
            return
        reason = ""
        if not self._private_shm:
            reason = "the server may not mount here; run it with CAP_SYS_ADMIN"
        elif launch.image is not None and self._containers.runtime.name == "docker":
            reason = "docker mounts by name alone; use podman (images.runtime)"
        if reason:
            message = f"a `sub_path` of a volume cannot be mounted safely, mount the whole volume: {reason}"
            raise EngineError("MOUNT_IMPOSSIBLE", message, retryable=False)

    def _container(self, launch: Launch, mounted: list[list[Any]]) -> dict[str, Any] | None:
        if launch.image is None:
            return None
        known = self._images.find(launch.image)
        if known is None:
            message = f"{launch.image} is not on this machine; it has to be pulled again"
            raise EngineError("IMAGE_GONE", message, retryable=True)
        if known.fault:
            raise EngineError("IMAGE_UNSUITABLE", known.fault, retryable=False)
        binds = [
            Bind(Path(source), where, read_only=not writable)
            for source, place, target, writable in mounted
            for where in (f"{mounts.SANDBOX_CONTENT}/{place}", target)
            if where
        ]
        binds += [Bind(Path(source), where, read_only=True) for source, where in self._shown(launch)]
        return self._containers.box(launch, known.id, binds)

    def _shown(self, launch: Launch) -> list[tuple[str, str]]:
        """What a member of a gang sees of the others where it sees folders of its own."""
        if launch.gang is None:
            return []
        return neighbours.shown(os.fspath(self._root / "attempts" / launch.attempt_id), inside=True)

    def _sandbox(self, launch: Launch, mounted: list[list[Any]]) -> dict[str, Any] | None:
        if self._isolation is None or launch.image is not None:
            return None
        shown = self._shown(launch)
        return {**self._isolation.sandbox(launch.gpus), "mounts": mounted, "shown": shown}
