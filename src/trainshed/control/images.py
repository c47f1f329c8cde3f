"""Freezing images: a name becomes a digest before anything is allocated (E41-E45, A10)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from trainshed.content.registry import ImageRefused, RegistryClient, RegistryUnavailable
from trainshed.control.frozen import FrozenImage
from trainshed.model.errors import Fault, Refusal
from trainshed.model.images import machine_architecture
from trainshed.store import settings
from trainshed.store.database import Database

MAX_WAITING_SUBMISSIONS = 16
"""Submissions that wait for registries at one instant. Each holds a thread that answers requests."""
_MAX_THREADS = 16


class ImageFreezer:
    """Resolves image names. Asks registries, so it is never called inside a transaction. Thread-safe."""

    def __init__(self, database: Database, registries: RegistryClient) -> None:
        self._database = database
        self._registries = registries
        self._waiting = threading.BoundedSemaphore(MAX_WAITING_SUBMISSIONS)

    def freeze(self, names: Collection[str]) -> Mapping[str, FrozenImage | Refusal]:
        """The digest that each name has now, or why it cannot be used.

        Each name is asked for once, several at the same time, all until one deadline. Raises `Refusal` where
        no registry is asked at all: no engine can run images (the reason is the engine's own), or too many
        submissions wait for registries already.
        """
        machine = self._machine()
        if machine.why_no_images is not None:
            raise Refusal.of("EXECUTOR_UNAVAILABLE", f"no image can run here: {machine.why_no_images}")
        if not self._waiting.acquire(blocking=False):
            message = f"{MAX_WAITING_SUBMISSIONS} submissions are waiting for image registries already"
            raise Refusal([Fault("", "RATE_LIMITED", message)], retry_after=1)
        try:
            return self._ask(list(dict.fromkeys(names)), machine.architecture)
        finally:
            self._waiting.release()

    def _ask(self, names: list[str], architecture: str) -> Mapping[str, FrozenImage | Refusal]:
        deadline = time.monotonic() + self._registries.timeout_seconds

        def one(name: str) -> FrozenImage | Refusal:
            try:
                facts = self._registries.resolve(name, architecture, deadline=deadline)
            except ImageRefused as error:
                return Refusal.of("INVALID_EXECUTION_CONFIG", str(error))
            except RegistryUnavailable as error:
                later = None if error.retry_after is None else max(1, round(error.retry_after))
                return Refusal([Fault("", "EXECUTOR_UNAVAILABLE", str(error))], retry_after=later)
            return FrozenImage(requested=name, resolved=facts.resolved)

        if len(names) == 1:
            return {names[0]: one(names[0])}
        with ThreadPoolExecutor(min(len(names), _MAX_THREADS), thread_name_prefix="images") as threads:
            return dict(zip(names, threads.map(one, names), strict=True))

    def _machine(self) -> _Machine:
        with self._database.read() as connection:
            facts = json.loads(settings.get(connection, settings.MACHINE) or "{}")
        reason = facts.get("images", "no engine of this deployment has said that it runs images")
        return _Machine(reason, facts.get("architecture") or machine_architecture())


@dataclass(frozen=True, slots=True)
class _Machine:
    """What the controller says of the machine that runs Trials."""

    why_no_images: str | None
    architecture: str
