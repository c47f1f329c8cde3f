"""What the handlers work with: one bag of collaborators, made once a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainshed.content.addresses import StoreAddress
from trainshed.content.blobs import BlobStore
from trainshed.content.uploads import Uploads
from trainshed.control.training.accept import TaskAcceptance
from trainshed.control.training.catalogs import Catalogs
from trainshed.control.training.operations import TaskOperations
from trainshed.engines.contract import Engine
from trainshed.model.ids import IdFactory
from trainshed.model.logs import LogFiles
from trainshed.server.cursors import CursorSeal
from trainshed.server.doors import DoorLimits, DoorsInUse
from trainshed.server.follow import JobWatch
from trainshed.server.keys import KeyWatch
from trainshed.server.limits import RateLimiter
from trainshed.server.metrics import HttpMetrics
from trainshed.server.outlook import OutlookReader
from trainshed.server.script_services import ScriptServices
from trainshed.server.signed_urls import SignedUrls
from trainshed.server.waiting import QueueReader
from trainshed.store.database import Database


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The largest accepted request bodies, in bytes."""

    submission: int = 8 << 20
    """16 Trials with 64 KiB commands each fit, in any JSON spelling."""
    revision: int = 32 << 20
    blob: int = 64 << 20
    other: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts about this process that do not change while it runs."""

    role: str
    data_dir: Path
    content: StoreAddress = field(default_factory=StoreAddress)
    """Where blobs lie."""


@dataclass(frozen=True, slots=True)
class Services:
    """Collaborators of the handlers. ``clock`` answers Unix seconds."""

    database: Database
    blobs: BlobStore
    uploads: Uploads
    accept: Callable[..., tuple[str, bool]]
    """Takes a `Principal`, a decoded submission and its ``source``; answers the Job's id and whether it is
    new (see ``control.accept``)."""
    log_files: Callable[[str], LogFiles]
    """Where the frames of an Attempt's output lie."""
    tasks: TaskAcceptance
    """Accepts training tasks (contract C)."""
    task_operations: TaskOperations
    catalogs: Catalogs
    outlook: OutlookReader
    """Why training tasks wait, and what a new one would get."""
    scripts: ScriptServices
    """Script Jobs, questions to people, providers (contract G)."""
    wake: Callable[[], None]
    """Tells the controller of this process, if there is one, that there is work. Only a hint."""
    machine: Machine
    seal: CursorSeal
    urls: SignedUrls
    watch: JobWatch
    keys: KeyWatch
    queue: QueueReader
    limiter: RateLimiter
    http_metrics: HttpMetrics
    clock: Callable[[], float]
    ids: IdFactory
    bodies: BodyLimits = field(default_factory=BodyLimits)
    gc_grace_seconds: float = 86_400.0
    """How long blobs stay after their last use."""
    run_grants_stop: bool = True
    """Whether a new key with `training.run` also gets `training.stop` (A11)."""
    engine: Engine | None = None
    """What runs programs on this machine; ``None`` where this process answers only."""
    doors: DoorsInUse = field(default_factory=DoorsInUse)
    door_limits: DoorLimits = field(default_factory=DoorLimits)
    ready_checks: Callable[[], Mapping[str, str]] = dict
    """Further checks of ``/readyz``: name -> ``ok`` or what is wrong."""
    extra_metrics: Callable[[], str] = str
    """Prometheus text of other parts of this process."""
