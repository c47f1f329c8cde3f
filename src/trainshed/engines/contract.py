"""What an engine is: the one interface between the controller and whatever runs programs.

The controller is level-triggered. It may be killed between any two calls and will then make the same
call again, so every method below is idempotent. The numbered rules are what the conformance suite
(``tests/engines/conformance.py``) proves of every engine.

1.  ``launch`` starts user code of an attempt **at most once**, however often it is called, also
    across restarts of this process and of the server (promise P3).
2.  ``launch`` returns once the intent is durable; it does not wait for the program.
3.  ``observe`` reports facts from durable evidence, never from this process's memory.
4.  An attempt that the engine never heard of is ``ABSENT``: launching it is safe.
5.  An attempt whose start cannot be excluded and whose end is unknown is ``LOST``, never ``ABSENT``.
6.  ``stop`` asks the program to end (SIGTERM, then SIGKILL after the grace); it is remembered, so a
    ``stop`` before the program started means that it never starts.
7.  ``release`` ends every process of the attempt, also those that left its session or were
    re-parented, and answers ``confirmed`` only on evidence (promise P6).
8.  ``sweep`` finds and ends whatever carries our mark and belongs to no attempt in ``known``.
9.  The work directory stays readable until ``release``; the log until ``forget``.
10. ``kill`` ends an attempt whose own watcher does not: within seconds it is ``EXITED`` or ``LOST``,
    with its work directory still there.
11. Exit codes are raw: a signal ``N`` is reported as ``128 + N`` together with ``signal=N``.
12. Mounts are read-only for the program and cost no copy; ``paths`` lead to them. They are gone after
    ``release``, and what they show is untouched.
13. With an image, rules 1 to 12 hold as without one; an engine that runs none says why in ``images``.
14. The members of a gang come in one ``launch_many``. User code of none of them starts before all have
    reported (C27), and none starts at all if one does not within ``Gang.start_seconds``.
15. When one member of a gang ends with anything but exit code zero, or is lost, the others are ended
    within 60 s, without the server's help (c8); they say ``EndedBy.GANG``. Those that are being stopped or
    that save after a notice are left to that, and others wait up to 30 s for a stop or notice of their own.
16. ``notify`` begins the exit notice (C36) once; the program's end, its answer or the deadline ends it.
    Whatever its exit code then is, it says ``EndedBy.STOP``.
17. ``reports`` and ``samples`` are kept as durably as the log, in their order, until ``forget``.
18. ``meet`` is decided once for a gang: the same hosts and ports are answered for ever, and no two gangs
    that are not released share a port on an address.
19. A member with a rank of `Gang.size` or more joins a gang that has begun: it was given its place by
    ``join``, starts no user code before the gang's start is decided and none if there is no start; nobody
    waits for it. Its end ends nobody, and neither does that of a member in `Gang.optional` whose user
    code had begun (C51). Rule 15 ends them all the same, and so does, within 60 s, the end of rank 0.
20. ``open_shell`` starts a shell beside a program that runs (C50): as its user, in its namespaces, its work
    directory and its control groups, with its variables. It ends with `Shell.close`, with this process
    however that ends, and with the attempt: ``release`` counts it as any other process. It changes nothing of
    how the attempt ends. Where ``shells`` says why there are none, it raises ``NOT_SUPPORTED_BY_ENGINE``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from trainshed.engines.shell import Shell
from trainshed.model.logs import LogFiles
from trainshed.model.resources import Gpu, Node


class Phase(StrEnum):
    """How far an attempt got, by durable evidence."""

    ABSENT = "absent"
    """The engine holds nothing under this id."""
    PREPARING = "preparing"
    """Accepted; user code has certainly not started."""
    RUNNING = "running"
    """The start marker exists and the replica's shim is alive."""
    EXITED = "exited"
    """An exit record exists; no more output will come."""
    LOST = "lost"
    """User code may have started, nothing watches it and no exit record exists."""


class EndedBy(StrEnum):
    """Why a program ended, as the shim saw it."""

    EXIT = "exit"
    """By itself: exit code or a signal nobody of ours sent."""
    STOP = "stop"
    """It was asked to; without an exit code if that was before it started."""
    TIMEOUT = "timeout"
    MEMORY = "memory"
    """The kernel's out-of-memory killer acted inside the attempt's limit."""
    GANG = "gang"
    """Another member of its gang failed or was lost."""
    PRECHECK = "precheck"
    """The check before training failed; user code never started (C31)."""
    DISK = "disk"
    """The work directory outgrew the attempt's disk limit."""
    NOT_STARTED = "not_started"
    """The platform could not start it; ``detail`` says why."""


@dataclass(frozen=True, slots=True)
class TreeFile:
    """One file that the work directory holds at start, copied from ``source``."""

    path: str
    """Relative POSIX path, already validated."""
    source: Path
    """A file with the exact bytes (usually a blob). It must not be modified or hard-linked."""
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one replica. What the machine cannot enforce is reported in `Observation.enforcement`."""

    cpus: int
    memory_mb: int
    storage_mb: int
    shm_mb: int
    pids: int = 4096
    log_bytes: int = 4 << 30


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of the machine that the program sees, read-only, without a copy being made."""

    source: Path
    """Absolute. It must stay until the attempt is released."""
    place: str
    """Relative POSIX path below the engine's own content folder, e.g. ``inputs/data``."""
    target: str | None = None
    """An absolute path where the program finds it as well (C12), where the engine can do that."""
    writable: bool = False
    """Whether the program may write there (a Volume, C13); its bytes are the source's own."""
    within: str = ""
    """Show only this folder of the source, a plain relative path. It is found when it is mounted, without
    following a link below the source, whatever programs that write there do meanwhile; where the program may
    write it is made if it is missing. What is neither fails the start."""

    def __post_init__(self) -> None:
        if self.writable and self.target is None:
            msg = "a writable mount needs a target"
            raise ValueError(msg)


class Role(StrEnum):
    """What a member does in its gang (C18, C19)."""

    MASTER = "master"
    WORKER = "worker"
    HEAD = "head"
    SUBMITTER = "submitter"


@dataclass(frozen=True, slots=True)
class Host:
    """One member of a gang as the others reach it."""

    name: str
    """Resolves on every member."""
    address: str
    slots: int
    """GPUs, 1 where there are none (C39)."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the members of a gang find one another (C41)."""

    hosts: tuple[Host, ...]
    """By rank."""
    port: int
    """Free on the first host, and kept for this gang."""
    dashboard_port: int = 0
    """Another one of the same kind, for a web page of the program's (C50); 0: the engine keeps none."""


@dataclass(frozen=True, slots=True)
class Gang:
    """The place of one member among all that run together or not at all."""

    id: str
    """The Attempt."""
    rank: int
    size: int
    role: Role
    node: str
    """Where it was placed."""
    meeting: Meeting
    start_seconds: float = 600.0
    """How long members wait for one another, from the first one's start."""
    optional: tuple[int, ...] = ()
    """Ranks of those that begin together whose later end ends nobody (rule 19); the same for all members."""
    host: Host | None = None
    """Of a member that joins: what `Engine.join` answered."""

    @property
    def joins(self) -> bool:
        """Whether it comes to a gang that has begun (rule 19)."""
        return self.rank >= self.size


@dataclass(frozen=True, slots=True)
class ExitNotice:
    """How a program is told to save before it must go (C36)."""

    timeout_seconds: float
    signal: str = "SIGUSR1"


@dataclass(frozen=True, slots=True)
class Precheck:
    """The check before training (C31, C32)."""

    env: Mapping[str, str]
    """Over the program's own variables, for the check alone."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """``min_tflops`` per GPU, ``min_bus_gbps``; what is missing is only measured."""
    timeout_seconds: float = 600.0
    port: int = 0
    """Its rendezvous on the first host; 0: the engine takes one, beside that of `Meeting.port`."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """As ``env``, but with values that appear nowhere (as `Launch.secrets`)."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Prometheus text of the program at ``127.0.0.1:port/path`` (C37)."""

    port: int
    path: str


@dataclass(frozen=True, slots=True)
class Ssh:
    """Passwordless login among the members (C39); texts of files, made once for the Attempt."""

    private_key: str
    public_key: str
    host_private_keys: tuple[str, ...]
    """By rank."""
    host_public_keys: tuple[str, ...]
    port: int = 2222


@dataclass(frozen=True, slots=True)
class Report:
    """Something the watcher of a member has to say: becomes an event of the task (c2)."""

    number: int
    """From 1, without gaps, for each member."""
    at: float
    """Unix seconds."""
    code: str
    """``READY``, ``PRECHECK_PASSED``, ``EXIT_NOTICE_HEARD``, ``METRICS_PORT_TAKEN`` ... (docs/engines.md)."""
    message: str
    level: str = "info"
    """``info``, ``warning`` or ``error``."""
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """Measurements of one member at one moment."""

    at: float
    values: Mapping[str, float]
    """Prometheus series -> value, e.g. ``cpu_percent``, ``memory_bytes``, ``gpu0_utilization_percent``."""
    endpoint: str = ""
    """``port/path`` of the program's own endpoint; empty for resource metrics."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything needed to start one replica of an attempt. Frozen before any side effect."""

    attempt_id: str
    """Of a member of a gang always ``GANG.RANK``."""
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """The program's own variables; the engine adds PATH, HOME and the GPU variables."""
    files: Sequence[TreeFile]
    gpus: tuple[Gpu, ...]
    limits: Limits
    timeout_seconds: int
    """Counted from the start of user code, enforced without the server."""
    stop_grace_seconds: float = 10.0
    image: str | None = None
    """``repository@sha256:…``, which `Engine.prepare` made present; ``None``: the machine's own programs."""
    mounts: tuple[Mount, ...] = ()
    """Read-only folders and files that the program sees."""
    paths: Mapping[str, str] = field(default_factory=dict)
    """Variable -> a `Mount.place` or a folder above some: it is set to where the program finds that."""
    gang: Gang | None = None
    """Its place among the members of its Attempt; ``None``: it runs alone."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variables whose values appear nowhere: not in argv, reports or records, and masked in the log (C9)."""
    notice: ExitNotice | None = None
    precheck: Precheck | None = None
    endpoints: tuple[Endpoint, ...] = ()
    sample_seconds: float | None = None
    """How often resources and endpoints are measured; ``None``: never."""
    ssh: Ssh | None = None
    node: str = ""
    """Where it was placed, for an engine of several nodes; of one that runs alone (see `Gang.node`)."""
    carry: bool = False
    """An engine of other machines brings the files and what the mounts show to the node from this machine's
    disk, however many bytes; the sources stay as they are until it has started, and links in them are left
    out. What the program writes is then had while the engine can be asked for it, not by `work_directory`."""


@dataclass(frozen=True, slots=True)
class Exit:
    """The durable exit record of a replica."""

    code: int | None
    """Raw exit code; ``None`` if the program never started."""
    signal: int | None
    ended_by: EndedBy
    finished_at: float
    """Unix seconds."""
    detail: str = ""
    usage: Mapping[str, float] = field(default_factory=dict)
    """``max_memory_mb``, ``cpu_seconds``, ``log_bytes``, ``dropped_log_bytes`` where known."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What durable evidence says about one attempt now."""

    phase: Phase
    started_at: float | None = None
    """Unix seconds, written just before user code was executed; ``None`` if it did not start."""
    exit: Exit | None = None
    detail: str = ""
    stage: str = ""
    """Of one that prepares: ``pulling``, ``sending`` (`Launch.carry`), ``starting``, ``ready`` (waits for its
    gang) or ``prechecking``."""
    noticed: bool = False
    """Whether an exit notice is under way."""
    reports: int = 0
    """The number of its newest `Report`."""
    enforcement: Mapping[str, str] = field(default_factory=dict)
    """Limit name -> how it is enforced (``cgroup-v1``, ``rlimit``, ``watched``) or ``not enforced``."""


@dataclass(frozen=True, slots=True)
class Release:
    """The outcome of one try to release an attempt."""

    confirmed: bool
    checks: Mapping[str, str]
    """Each check made and what it saw, e.g. ``{"cgroup": "empty, removed", "shim": "gone"}``."""
    killed: int = 0
    """Processes that were still there and had to be killed."""


class EngineError(Exception):
    """An engine could not do what it was asked. ``retryable`` says whether asking again can help."""

    def __init__(self, code: str, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable


class Engine(Protocol):
    """One place where attempts run. See the numbered rules at the top of this module."""

    name: str

    def nodes(self) -> Sequence[Node]:
        """The machines there are now, with their totals (not what is free)."""
        ...

    def enforcement(self) -> Mapping[str, str]:
        """How each limit would be enforced here (for ``trainshed doctor``)."""
        ...

    def images(self) -> str | None:
        """Why no image can run here, in a sentence; ``None`` if images can run."""
        ...

    def prepare(self, image: str, on_progress: Callable[[str], None], cancelled: Callable[[], bool]) -> None:
        """Make ``repository@sha256:…`` present and prove that Trials can run in it (E45).

        Blocks; thread-safe. ``on_progress`` gets sentences for people. Raises `EngineError`:
        ``IMAGE_PULL_FAILED`` (retryable or not), ``IMAGE_UNSUITABLE``, ``PREPARE_CANCELLED``, and
        ``IMAGES_UNAVAILABLE`` where what runs images does not answer. What was prepared
        may be evicted while no attempt uses it; ``launch`` of an image that is gone fails as a start that
        may be tried again.
        """
        ...

    def launch(self, launch: Launch) -> None:
        """Start the attempt at most once. Raises `EngineError` if it cannot even be prepared."""
        ...

    def launch_many(self, launches: Iterable[Launch]) -> Mapping[str, EngineError]:
        """``launch`` for each; failures by attempt id. Cheaper than a loop where that is possible."""
        ...

    def observe(self, attempt_ids: Collection[str]) -> Mapping[str, Observation]:
        """What evidence says about each of these attempts; every id gets an answer."""
        ...

    def changed(self, timeout: float) -> set[str]:
        """Ids that may have changed since the last call; waits up to ``timeout`` seconds.

        A hint only: ids may be missing (after a restart, say) or listed without a change.
        """
        ...

    def interrupt(self) -> None:
        """Make a waiting ``changed`` return at once (thread-safe)."""
        ...

    def stop(self, attempt_id: str, *, grace_seconds: float | None = None) -> None:
        """Ask the attempt to end; returns at once. Unknown ids are remembered as stopped."""
        ...

    def meet(self, gang_id: str, nodes: Sequence[str], slots: Sequence[int]) -> Meeting:
        """Where members placed on ``nodes``, by rank, will meet (rule 18). Raises `EngineError`."""
        ...

    def join(self, gang_id: str, rank: int, slots: int) -> Host:
        """Where one that joins a gang that met will be reached (rule 19); decided once, as by ``meet``.

        Raises `EngineError`: ``NOT_SUPPORTED_BY_ENGINE`` where nobody can, ``LAUNCH_INVALID`` for a gang that
        never met.
        """
        ...

    def notify(self, attempt_id: str, *, reason: str, deadline: float) -> None:
        """Tell the program to save and go (C36); returns at once. ``deadline`` in Unix seconds.

        After the notice the attempt is stopped as by ``stop``. Without `Launch.notice` it is a ``stop``.
        """
        ...

    def reports(self, attempt_id: str, after: int) -> Sequence[Report]:
        """Reports with a number greater than ``after``, oldest first."""
        ...

    def samples(self, attempt_id: str, after: float) -> Sequence[Sample]:
        """Samples taken later than ``after`` (Unix seconds), oldest first; at most some ten thousand."""
        ...

    def shells(self) -> str | None:
        """Why no shell can be opened here, in a sentence; ``None`` if shells can be."""
        ...

    def open_shell(self, attempt_id: str, *, rows: int, columns: int, terminal: bool = True) -> Shell:
        """Open a shell beside the program (rule 20); may block seconds. Thread-safe.

        Without ``terminal`` it gets pipes: no prompt, no echo, and a real end of what it reads.

        Raises `EngineError`: ``SHELL_UNAVAILABLE`` where the program does not run or has no shell, and
        ``NOT_SUPPORTED_BY_ENGINE``.
        """
        ...

    def faults(self) -> Mapping[str, str]:
        """Nodes, or ``NODE/gpu:INDEX``, that broke (C34) -> the evidence in a sentence."""
        ...

    def kill(self, attempt_id: str) -> None:
        """End the attempt by force, its watcher included; may block seconds. Its outputs stay readable.

        For attempts that did not end when they had to: after a stop and its grace, or past their timeout.
        """
        ...

    def work_directory(self, attempt_id: str) -> Path:
        """Where declared outputs are collected from."""
        ...

    def logs(self, attempt_id: str) -> LogFiles:
        """Where the attempt's output lies; the files need not exist yet."""
        ...

    def release(self, attempt_id: str) -> Release:
        """End and remove everything the attempt holds except its log; bounded, may block seconds."""
        ...

    def forget(self, attempt_id: str) -> None:
        """Delete what is left of a released attempt, its log included (retention)."""
        ...

    def sweep(self, known: Collection[str]) -> Sequence[str]:
        """End strangers: what carries our mark but belongs to no id in ``known``. Returns their ids."""
        ...

    def close(self) -> None:
        """Let go of this process's handles. Attempts go on running."""
        ...
