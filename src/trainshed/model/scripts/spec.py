"""What a script Job is asked to be, after `gpu.yaml` and arguments were merged (sections a.1, d, e)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

SMOKE_HOURS = 0.25
"""What a quick test without hours counts as, everywhere (c.2)."""
MAX_HOURS, MAX_VRAM_GB = 336.0, 640.0
MAX_NAME, MAX_SCRIPT, MAX_INCLUDES, MAX_INCLUDE = 80, 4096, 64, 300
MAX_BUNDLE_BYTES = 200 * 10**6
"""Uncompressed."""
LOCAL, RAY = "local", "ray"
OWN_ENGINES = frozenset({LOCAL, RAY})
"""The providers that are engines of the server: this machine, a Ray cluster. They keep logs themselves."""


class DepsKind(StrEnum):
    """Where the packages come from that are installed before the script runs (e.13)."""

    NONE = "none"
    REQUIREMENTS = "requirements"
    PYPROJECT = "pyproject"


@dataclass(frozen=True, slots=True)
class Deps:
    """Packages of a Job; ``file`` is a path inside the shipped tree."""

    kind: DepsKind = DepsKind.NONE
    file: str | None = None
    packages: tuple[str, ...] = ()
    """Requirements of a pyproject.toml as pip reads them; empty for a requirements file."""
    python_requires: str | None = None
    sha256: str | None = None
    """Of ``file`` as it was packed; the server reads it from the manifest, whatever a client says."""


@dataclass(frozen=True, slots=True)
class DataItem:
    """One dataset, readable at ``gpu.data_dir()/MOUNT``: packed content, or a place on the hub."""

    mount: str
    """``^[a-z0-9][a-z0-9._-]{0,63}$``."""
    manifest_sha256: str | None = None
    """Of packed content. Exactly one of this and ``uri``."""
    single_file: str | None = None
    """The name of the one file in the manifest, where a file was given and not a folder (e.11)."""
    files: int = 0
    bytes: int = 0
    uri: str | None = None
    """``hf://datasets/OWNER/REPO[@REV][/SUB]``, its revision a commit where that could be asked (e.12)."""
    path: str = ""
    """As the user gave it; shown, never read again."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What was packed, and what to say of it (a.1, e.6, e.7)."""

    manifest_sha256: str
    """Of the content manifest of the whole shipped tree."""
    files: int
    bytes: int
    included: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    left_out_not_shown: int = 0
    hint: str | None = None
    warnings: tuple[str, ...] = ()
    source: str = "git"
    """How it was chosen what ships: ``git`` or ``walk`` (e.1, e.2)."""
    untracked: int = 0
    """How many of the files git does not track."""


@dataclass(frozen=True, slots=True)
class ScriptSpec:
    """Everything that decides how and where a packed project runs. Frozen at acceptance."""

    project_dir: str
    """Absolute, on the submitter's machine."""
    bundle: Bundle
    workdir: str = ""
    """Where ``project_dir`` lies inside the shipped tree; empty for its top. Relative POSIX path."""
    name: str = ""
    script: str | None = None
    """A Python file, relative to ``workdir``; begins with ``../`` where gpu.yaml of the git root names one
    and ``workdir`` is below. Exactly one of this and ``command``."""
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] = ()
    hours: float | None = None
    """As given; a guess never stands here."""
    vram_gb: float | None = None
    gpu: str | None = None
    provider: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    """Names in the secret store."""
    deps: Deps = field(default_factory=Deps)
    data: tuple[DataItem, ...] = ()
    smoke: bool = False
    checkpoint_interval_min: int = 20
    """0: never."""
    interactive: bool = False
    requires_approval: bool = False
    max_attempts: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    provider_options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    host: str = ""
    """Which machine ``project_dir`` is on, by a hash of its id; outputs are brought there if it is ours."""

    @property
    def declared_hours(self) -> float | None:
        """The hours that approval and overrun go by: as given, or those of a quick test (c.2)."""
        if self.hours is None and self.smoke:
            return SMOKE_HOURS
        return self.hours
