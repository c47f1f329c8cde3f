"""Why a Trial waits: the codes, the facts behind one of them, and both in words (promise P10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from trainshed.policy.budget import gpu_hours_text, worst_case
from trainshed.policy.waiting import TrialClass


class WaitCode(StrEnum):
    """The kinds of reasons; ``docs/scheduling.md`` lists them for users."""

    GPUS_BUSY = "GPUS_BUSY"
    """No node has enough free GPUs of the type."""
    CPU_BUSY = "CPU_BUSY"
    """Nodes with enough free GPUs have too few free CPU cores."""
    MEMORY_BUSY = "MEMORY_BUSY"
    """Nodes with enough free GPUs have too little free memory."""
    DISK_BUSY = "DISK_BUSY"
    """Nodes with enough free GPUs have too little free disk."""
    SHM_BUSY = "SHM_BUSY"
    """Nodes with enough free GPUs have too little free shared memory."""
    BEHIND_OTHERS = "BEHIND_OTHERS"
    """It would fit now, but could delay a Trial that comes first."""
    PROJECT_GPU_LIMIT = "PROJECT_GPU_LIMIT"
    """The project holds as many GPUs as it may."""
    PROJECT_TRIAL_LIMIT = "PROJECT_TRIAL_LIMIT"
    """The project runs as many Trials as it may."""
    PROJECT_BUDGET = "PROJECT_BUDGET"
    """The project's GPU-hours left do not cover the Trial's timeout."""
    SERVER_TRIAL_LIMIT = "SERVER_TRIAL_LIMIT"
    """The server runs as many Trials as it may."""
    NO_NODE = "NO_NODE"
    """No node that is up could serve the Trial even if it were empty."""
    STARTING_RETRY = "STARTING_RETRY"
    """A start failed before user code ran; the next try comes after a pause."""
    NEXT_TURN = "NEXT_TURN"
    """It has not been looked at yet; the next pass comes at once."""


@dataclass(frozen=True, slots=True)
class WaitReason:
    """One code and its facts; `sentence` puts them in words."""

    code: WaitCode
    have: int | None = None
    """How much there is of what is short: free amount, or the limit's remainder."""
    behind: str | None = None
    """The Trial that must not be delayed."""
    until: float | None = None
    """Unix seconds at which what blocks is expected to be gone; ``None`` if nobody can say."""
    own: bool = False
    """Whether ``behind`` is a Trial of the same project, and the project's limits are what it needs."""
    never: bool = False
    """Whether no Trial that ends can help: an admin must change something."""

    @property
    def amount(self) -> int:
        """``have``, or zero where there is nothing to count."""
        return self.have or 0

    @property
    def then(self) -> str:
        """When what blocks is expected to be gone, as the end of a sentence."""
        return "" if self.until is None else f", expected by {iso(self.until)}"


Words = tuple[str, str]
"""What blocks, and what would unblock."""


def sentence(key: TrialClass, reason: WaitReason, pool: tuple[int, int, int] | None) -> Words:
    """What blocks a Trial of this class and what would unblock it, each with numbers.

    ``pool`` counts the GPUs of its type: all, free, and most free on one node.
    """
    if reason.code is WaitCode.GPUS_BUSY:
        return _gpus_busy(key, reason, pool)
    return _WORDS[reason.code](key, reason)


def iso(seconds: float) -> str:
    """Unix seconds as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(round(seconds), UTC).isoformat()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _gpus_busy(key: TrialClass, reason: WaitReason, pool: tuple[int, int, int] | None) -> Words:
    total, free, largest = pool or (0, 0, 0)
    there = f"{free} of {total} are free, at most {largest} on one node" if pool else "none is free"
    gpus = _count(key.amounts.gpus, f"{key.gpu_type} GPU")
    more = _count(max(key.amounts.gpus - largest, 1), f"more {key.gpu_type} GPU")
    return f"needs {gpus} on one node; {there}", f"{more} free on one node{reason.then}"


def _scarce(name: str, unit: str) -> Callable[[TrialClass, WaitReason], Words]:
    def words(key: TrialClass, reason: WaitReason) -> Words:
        want = getattr(key.amounts, name)
        gpus = _count(key.amounts.gpus, f"{key.gpu_type} GPU")
        return (
            f"needs {want} {unit} beside {gpus}; nodes with that many free GPUs have {reason.amount} free",
            f"{want - reason.amount} more {unit} free on such a node{reason.then}, or a request for less",
        )

    return words


def _behind(key: TrialClass, reason: WaitReason) -> Words:
    first = f"Trial {reason.behind}" if reason.behind else "a training task"
    start = f"the start of {reason.behind or 'that task'}{reason.then}"
    if reason.own:
        return (
            f"{first} of the same project comes first; the project's limits do not cover both",
            f"{start}, a timeout short enough to end before, or higher limits",
        )
    gpus = _count(key.amounts.gpus, f"{key.gpu_type} GPU")
    late = f"a run of up to {key.timeout_seconds} s could delay it"
    return (
        f"{gpus} would be free, but {first} comes first and {late}",
        f"{start}, or a timeout short enough to end before",
    )


def _project_gpus(key: TrialClass, reason: WaitReason) -> Words:
    gpus = _count(key.amounts.gpus, "GPU")
    if reason.never:
        return (
            f"needs {gpus}; project {key.project} may hold {reason.amount} at a time",
            f"an admin lets the project hold {gpus}",
        )
    back = _count(key.amounts.gpus - reason.amount, "GPU")
    return (
        f"needs {gpus}; project {key.project} may take {max(reason.amount, 0)} more now",
        f"running Trials of the project return {back}{reason.then}, or a higher limit",
    )


def _project_trials(key: TrialClass, reason: WaitReason) -> Words:
    helps = "an admin raises the limit" if reason.never else f"one of them ends{reason.then}"
    return f"project {key.project} runs as many Trials as it may ({reason.amount})", helps


def _project_budget(key: TrialClass, reason: WaitReason) -> Words:
    cost = worst_case(key.amounts.gpus, key.timeout_seconds)
    left = gpu_hours_text(max(reason.amount, 0))
    returns = "" if reason.never else "running Trials return what they do not use, or "
    return (
        f"may use {gpu_hours_text(cost)}; project {key.project} has {left} left beside what runs",
        f"{returns}an admin adds {gpu_hours_text(cost - reason.amount)}",
    )


def _server_trials(_: TrialClass, reason: WaitReason) -> Words:
    return f"the server runs as many Trials as it may ({reason.amount})", "one of them ends"


def _no_node(key: TrialClass, _: WaitReason) -> Words:
    need = key.amounts
    gpus = _count(need.gpus, f"{key.gpu_type} GPU")
    blocked = (
        f"no node that is up has {gpus}, {need.cpus} CPU cores, {need.memory_mb} MiB of memory,"
        f" {need.storage_mb} MiB of disk and {need.shm_mb} MiB of shared memory together, even when idle"
    )
    return blocked, "such a node comes up, or a new Job asks for less"


def _retry(_key: TrialClass, reason: WaitReason) -> Words:
    return "a start failed before user code ran", f"the next try{reason.then}"


def _next_turn(_key: TrialClass, _reason: WaitReason) -> Words:
    return "the scheduler has not looked at it yet", "the next pass, within a second"


_WORDS: Mapping[WaitCode, Callable[[TrialClass, WaitReason], Words]] = {
    WaitCode.CPU_BUSY: _scarce("cpus", "CPU cores"),
    WaitCode.MEMORY_BUSY: _scarce("memory_mb", "MiB of memory"),
    WaitCode.DISK_BUSY: _scarce("storage_mb", "MiB of disk"),
    WaitCode.SHM_BUSY: _scarce("shm_mb", "MiB of shared memory"),
    WaitCode.BEHIND_OTHERS: _behind,
    WaitCode.PROJECT_GPU_LIMIT: _project_gpus,
    WaitCode.PROJECT_TRIAL_LIMIT: _project_trials,
    WaitCode.PROJECT_BUDGET: _project_budget,
    WaitCode.SERVER_TRIAL_LIMIT: _server_trials,
    WaitCode.NO_NODE: _no_node,
    WaitCode.STARTING_RETRY: _retry,
    WaitCode.NEXT_TURN: _next_turn,
}
