"""What a provider is: the one interface between the controller and whatever runs packed projects (g.8).

The controller may be killed between any two calls and then makes the same call again. The numbered rules are
what the conformance suite (``tests/engines/providers/conformance.py``) proves of every provider.

1.  ``submit`` makes at most one remote run per key, however often it is called and whatever answers get lost.
2.  ``submit`` raises a definite class (all but `Unavailable` and `RateLimited`) only if nothing was made.
3.  ``lookup_by_key`` finds what a lost ``submit`` made, where `Capabilities.lookup_by_key` says so.
4.  ``status``, ``logs``, ``quota`` and ``healthcheck`` change nothing anywhere.
5.  ``cancel`` may be repeated; of a run that has ended it changes nothing.
6.  A log cursor stays good across restarts: reading from it yields each line exactly once.
7.  ``fetch`` may be repeated, deletes nothing that it did not write, and follows no link.
8.  Nothing is raised but the classes below, and no message holds a credential.
9.  Time comes from the injected clock; nothing is kept but what the provider itself keeps.
10. Every call ends within its limit (`LIMITS`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

LIMITS: Mapping[str, float] = {
    "submit": 300.0,
    "status": 60.0,
    "logs": 60.0,
    "cancel": 60.0,
    "quota": 60.0,
    "healthcheck": 60.0,
    "lookup_by_key": 60.0,
    "fetch": 1800.0,
    "stage_data": 3600.0,
}
"""Seconds each call may take."""


class ProviderError(Exception):
    """A provider could not do what it was asked; ``code`` is the word for it (section j)."""

    code = "provider_unavailable"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        """Seconds, where the provider said so."""


class Unavailable(ProviderError):
    """It did not answer, or not so that one knows what happened."""


class RateLimited(ProviderError):
    """Too many calls."""

    code = "rate_limited"


class QuotaExhausted(ProviderError):
    """Its hours are used up."""

    code = "quota_exhausted"

    def __init__(self, message: str, *, resets_at: float | None = None) -> None:
        super().__init__(message)
        self.resets_at = resets_at
        """Unix seconds, where known."""


class AuthRequired(ProviderError):
    """No login, or one that is not good any more."""

    code = "auth_required"


class RemoteNotFound(ProviderError):
    """The run is not there (any more)."""

    code = "remote_not_found"


class InvalidJob(ProviderError):
    """This Job cannot run there, whenever it is tried."""

    code = "invalid_job"


class ProviderPermanent(ProviderError):
    """It failed in a way that no other try will mend."""

    code = "provider_permanent"


class Phase(StrEnum):
    """How far a remote run got."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"


ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED, Phase.LOST})


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider can do."""

    lookup_by_key: bool = True
    named_by_attempt: bool = False
    """Whether a run's name is its Attempt's id: known before it is submitted."""
    live_logs: bool = True
    interactive: bool = False
    resume: bool = True
    fetch: bool = True
    cancel_confirms: bool = True
    """Whether a cancel is known to have worked once `status` says so."""
    live_quota: bool = False
    max_session_hours: float | None = None
    max_concurrency: int | None = 1
    max_bundle_mb: float | None = None
    poll_interval_s: float = 5.0
    fetch_interval_s: float = 300.0
    """How often checkpoints are brought here while a run goes on."""
    provision_s: float = 1800.0
    """After so long a run that did not begin is given up."""
    data: bool = True
    cluster: str | None = None
    """Of a cluster of the catalogue: its id; empty: the only one that there is. Places there are given by
    the pass over training tasks."""


@dataclass(frozen=True, slots=True)
class GpuOffer:
    """One kind of accelerator that a provider offers."""

    type: str
    """As people write it: ``T4``, ``P100``, ``H100``."""
    vram_gb: float
    count: int = 1
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class StagedData:
    """One dataset as the provider knows it."""

    mount: str
    ref: str
    """What `Provider.stage_data` answered."""
    single_file: str | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """One Attempt, ready to be started."""

    key: str
    """``gpu-<job>-<n>``: the identity of the remote run."""
    name: str
    bundle: Path
    """The folder that holds ``code/``, ``gpu_runner/`` and ``manifest.json``. It must not be changed."""
    archive: Callable[[], Path]
    """Makes (once) the deterministic archive of it (e.8)."""
    env: Mapping[str, str]
    """For the script, without secrets."""
    secrets: Mapping[str, str]
    """Reach the script's environment by the provider's least public way; appear nowhere else."""
    gpu: GpuOffer | None
    """What was promised; ``None``: a machine without one."""
    timeout_seconds: float | None
    """When the run is to end by itself."""
    data: tuple[StagedData, ...] = ()
    resume: Path | None = None
    """A folder with the checkpoint that it begins from."""
    options: Mapping[str, object] = field(default_factory=dict)
    """``provider_options`` of gpu.yaml for this provider."""
    attempt_id: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """A remote run as the provider names it; small, kept in the database as text."""

    ref: str
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """What a provider says of a run now."""

    phase: Phase
    exit_code: int | None = None
    started_at: float | None = None
    finished_at: float | None = None
    gpu: str | None = None
    """The accelerator that is really there, where the provider says so."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Some lines of a run, and where to go on."""

    lines: tuple[str, ...]
    """Without their line ends; the helper's own lines among them."""
    cursor: str
    finished: bool = False
    """No more will come."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What `Provider.fetch` brought."""

    files: int
    bytes: int
    skipped: tuple[str, ...] = ()
    """Links and names that would lead out of the folder."""


@dataclass(frozen=True, slots=True)
class QuotaReading:
    """What is used and left, as the provider says or as we reckon (g.6)."""

    used: float | None
    limit: float | None
    unit: str
    """``gpu_hours``, ``credits`` or ``usd``."""
    resets_at: float | None
    live: bool
    detail: str = ""
    observed_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a provider can be used now."""

    ok: bool
    code: str = "ok"
    """``ok``, ``auth_required``, ``not_installed``, ``disabled`` or ``provider_unavailable``."""
    message: str = ""
    hint: str = ""
    """What to do about it, e.g. a command."""


class Provider(Protocol):
    """One place where packed projects run. See the numbered rules at the top of this module."""

    name: str

    def capabilities(self) -> Capabilities:
        """What it can do; costs nothing."""
        ...

    def offers(self) -> Iterable[GpuOffer]:
        """The accelerators it offers now; empty for a machine without one."""
        ...

    def submit(self, submission: Submission) -> Run:
        """Start a run, or answer the one this key has (rules 1 and 2)."""
        ...

    def status(self, run: Run) -> Status:
        """How it goes. Raises `RemoteNotFound` where nothing is known of it."""
        ...

    def logs(self, run: Run, cursor: str | None) -> LogChunk:
        """Lines from ``cursor`` on, or from the begin."""
        ...

    def fetch(self, run: Run, into: Path) -> Fetched:
        """Bring what the run wrote: ``outputs/`` and ``checkpoints/`` below ``into``."""
        ...

    def cancel(self, run: Run) -> None:
        """Have it end; `status` says when it did."""
        ...

    def request_checkpoint(self, run: Run) -> bool:
        """Ask the program to save now; whether it could be told."""
        ...

    def lookup_by_key(self, key: str) -> Run | None:
        """The run that was made for a key, if there is one."""
        ...

    def release(self, run: Run) -> bool:
        """Remove what is left of an ended run but its outputs; whether it is proved that nothing runs."""
        ...

    def quota(self) -> QuotaReading | None:
        """What is left; ``None`` where there is no such thing."""
        ...

    def healthcheck(self) -> Health:
        """Whether it can be used, and what to do if not."""
        ...

    def stage_data(self, manifest_sha256: str, folder: Path, *, single_file: str | None) -> str:
        """Bring a dataset to the provider, or find it there by its digest; a reference for `Submission`."""
        ...
