"""What a Trial really gets, and whether this server can ever give it (E56-E60, A12, A19).

Each value comes from the request, else from the Runner, else from server policy. The result is frozen with
the Trial; later changes of Runner or policy do not touch it (E31).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from trainshed.model.errors import Fault
from trainshed.model.resources import Amounts, Node
from trainshed.model.submission import RESOURCE_COUNTS, TrialRequest
from trainshed.policy.budget import UNLIMITED, Account, ProjectLimits, gpu_hours_text, worst_case
from trainshed.policy.gpus import matching_models, nearest_models

DAY_SECONDS = 86_400
TIMEOUT = "timeout_seconds"
_NO_LIMITS = ProjectLimits()
_CONFIG = "INVALID_EXECUTION_CONFIG"
_HARDWARE = "UNSUPPORTED_HARDWARE"
_NAMES: Mapping[str, str] = {
    "gpus": "GPUs",
    "cpus": "CPU cores",
    "memory_mb": "MiB of memory",
    "storage_mb": "MiB of disk",
    "shm_mb": "MiB of shared memory",
}


class RunnerDefaults(Protocol):
    """What a Runner declares for the values that a request leaves out."""

    @property
    def resources(self) -> Mapping[str, int | str]:
        """Keys of ``resources`` in a request (contract E b2); any may be missing."""
        ...

    @property
    def timeout_seconds(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class ServerPolicy:
    """What the administrator decides for every Trial. The defaults fit any machine (1 CPU, 1 GiB)."""

    cpus: int = 1
    memory_mb: int = 1024
    storage_mb: int = 1024
    shm_mb: int = 64
    gpus: int | None = None
    """GPUs of a Trial when neither request nor Runner says; ``None`` refuses it (E58)."""
    gpu_type: str | None = None
    """As ``gpus``; ``None`` means the fleet's only model, where it has just one."""
    timeout_seconds: int = 3600
    max_timeout_seconds: int = 7 * DAY_SECONDS
    stop_grace_seconds: float = 10.0
    """Between asking a program to end and killing it."""
    collect_seconds: int = 300
    """How long outputs may be collected after a stop (E77)."""
    collect_bytes: int = 10 << 30
    """How many bytes of outputs may be collected after a stop (E77)."""
    max_active_trials: int | None = None
    """Trials that hold an allocation at one instant, all projects together."""
    wait_for_nodes: bool = False
    """Whether Trials are accepted, and wait, while the server has no node at all (A12)."""
    priority_worth_seconds: int = DAY_SECONDS
    """How many seconds of waiting one step of priority is worth (see `trainshed.policy.waiting.rank`)."""
    min_run_seconds: float = 600.0
    """How long a training task runs at least before it may have to make room for another (c4)."""

    def __post_init__(self) -> None:
        for name in (
            "cpus",
            "memory_mb",
            "storage_mb",
            "shm_mb",
            "timeout_seconds",
            "priority_worth_seconds",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.gpus is not None and self.gpus < 1:
            raise ValueError(f"gpus must be at least 1, not {self.gpus}")
        if self.timeout_seconds > self.max_timeout_seconds:
            raise ValueError(f"timeout_seconds is above max_timeout_seconds ({self.max_timeout_seconds})")


@dataclass(frozen=True, slots=True)
class EffectiveResources:
    """What one Trial is given; stored and shown as it is (E57, E63)."""

    gpu_type: str
    """As written in the request, the Runner or the policy; `matching_models` says what it means."""
    amounts: Amounts
    timeout_seconds: int

    def as_dict(self) -> dict[str, int | str]:
        """The keys of ``resources`` in a Trial (contract E b4)."""
        return {"gpu_type": self.gpu_type, **{key: getattr(self.amounts, key) for key in RESOURCE_COUNTS}}


class Fleet:
    """What the nodes offer in total, prepared for many questions. Build one per change of the nodes."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.models: dict[str, int] = {}
        """GPU model -> how many of it the best node has."""
        shapes: dict[tuple[tuple[tuple[str, int], ...], Amounts], str] = {}
        for node in sorted(nodes, key=lambda node: node.name):
            counts: dict[str, int] = {}
            for gpu in node.gpus:
                counts[gpu.model] = counts.get(gpu.model, 0) + 1
            for model, count in counts.items():
                self.models[model] = max(count, self.models.get(model, 0))
            shapes.setdefault((tuple(sorted(counts.items())), node.amounts), node.name)
        self._shapes = [(dict(counts), amounts, name) for (counts, amounts), name in shapes.items()]

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def describe(self) -> str:
        """The GPU models in words, for a refusal."""
        if not self.models:
            return "this server has no GPUs"
        listed = ", ".join(
            f"{model} (up to {count} on a node)" for model, count in sorted(self.models.items())
        )
        return f"this server has: {listed}"

    def nodes_with(self, models: Collection[str], gpus: int) -> list[tuple[str, Amounts]]:
        """One node of each shape that has ``gpus`` GPUs of one of these models."""
        return [
            (name, amounts)
            for counts, amounts, name in self._shapes
            if any(counts.get(model, 0) >= gpus for model in models)
        ]


def effective_resources(
    request: TrialRequest,
    runner: RunnerDefaults | None,
    policy: ServerPolicy,
    fleet: Fleet,
    *,
    limits: ProjectLimits = _NO_LIMITS,
    funds: Account = UNLIMITED,
    unread: Collection[str] = (),
    path: str = "spec",
) -> tuple[EffectiveResources | None, tuple[Fault, ...]]:
    """The effective resources of ``request``, or every reason why there are none, `quota_faults` among them.

    ``unread`` names what could not be read of a request at fault: keys of ``resources``, and
    ``timeout_seconds``. Nothing is put in its place, and what depends on it is not judged. ``runner`` is
    ``None`` where it is not known. ``path`` is that of the Trial's spec in the request (``trials[0].spec``);
    faults name fields below it.
    """
    faults: list[Fault] = []
    declared = {} if runner is None else runner.resources
    values: dict[str, int] = {}
    sources: dict[str, str] = {}
    for key in RESOURCE_COUNTS:
        found = _first(
            (request.counts.get(key), ""),
            (declared.get(key), " (from the Runner)"),
            (getattr(policy, key), " (from server policy)"),
        )
        if found is not None and key not in unread:
            values[key], sources[key] = int(found[0]), found[1]
    kind = _first((request.gpu_type, ""), (declared.get("gpu_type"), ""), (policy.gpu_type, ""))
    gpu_type = None if kind is None or "gpu_type" in unread else str(kind[0])
    if gpu_type is None and "gpu_type" not in unread and len(fleet.models) == 1:
        gpu_type = next(iter(fleet.models))
    timeout, said = _first(
        (request.timeout_seconds, ""),
        (None if runner is None else runner.timeout_seconds, " (from the Runner)"),
        (policy.timeout_seconds, " (from server policy)"),
    ) or (policy.timeout_seconds, "")
    seconds = None if TIMEOUT in unread else int(timeout)
    if seconds is not None and seconds > policy.max_timeout_seconds:
        faults.append(
            Fault(
                f"{path}.timeout_seconds",
                _CONFIG,
                f"a timeout of {timeout} s{said} is above the maximum here, {policy.max_timeout_seconds} s",
            )
        )
    faults += _gpu_request_faults(gpu_type, values.get("gpus"), fleet, unread, path)
    faults += _hardware_faults(gpu_type, values, sources, fleet, policy, path)
    faults += quota_faults(values.get("gpus"), seconds, limits, funds, path=path)
    if faults or gpu_type is None or seconds is None or len(values) < len(RESOURCE_COUNTS):
        return None, tuple(faults)
    return EffectiveResources(gpu_type, Amounts(**values), seconds), ()


def quota_faults(
    gpus: int | None,
    timeout_seconds: int | None,
    limits: ProjectLimits,
    funds: Account,
    *,
    path: str = "spec",
) -> tuple[Fault, ...]:
    """Why the project's limits can never admit this Trial; empty if it can run now or later (E36, E59).

    A limit that is only used up at the moment is no fault: the Trial waits. ``None`` is a value that is not
    known; limits of it are not looked at.
    """
    faults: list[Fault] = []
    capacity = "TRAIN_JOB_CAPACITY_EXCEEDED"
    if limits.max_gpus is not None and gpus is not None and gpus > limits.max_gpus:
        message = f"one Trial wants {gpus} GPUs; the project may hold {limits.max_gpus} at a time"
        faults.append(Fault(f"{path}.resources.gpus", capacity, message))
    if limits.max_active_trials is not None and limits.max_active_trials < 1:
        faults.append(Fault(path, capacity, "the project may hold no Trial at all (its limit is 0)"))
    if gpus is None or timeout_seconds is None:
        return tuple(faults)
    need, attainable = worst_case(gpus, timeout_seconds), funds.attainable
    if attainable is not None and need > attainable:
        message = (
            f"{gpus} GPUs for up to {timeout_seconds} s are {gpu_hours_text(need)}; of its"
            f" {gpu_hours_text(funds.budget or 0)} the project has {gpu_hours_text(max(attainable, 0))} left"
        )
        faults.append(Fault(f"{path}.timeout_seconds", "INSUFFICIENT_BALANCE", message))
    return tuple(faults)


def _first(*options: tuple[int | str | None, str]) -> tuple[int | str, str] | None:
    return next(((value, source) for value, source in options if value is not None), None)


def _gpu_request_faults(
    gpu_type: str | None, gpus: int | None, fleet: Fleet, unread: Collection[str], path: str
) -> list[Fault]:
    """E58 and A19: either half may be missing only if Runner or policy supplies it."""
    faults = []
    nothing_here = bool(fleet) and not fleet.models
    here = f"{fleet.describe()}; " if nothing_here else ""
    if gpus is None and "gpus" not in unread:
        faults.append(
            Fault(
                f"{path}.resources.gpus",
                _CONFIG,
                f"{here}no GPU count: give `--gpu N`, `gpus` in the request, or [resources] gpus in"
                " the Runner",
            )
        )
    if gpu_type is None and "gpu_type" not in unread:
        code = _HARDWARE if nothing_here else _CONFIG
        faults.append(
            Fault(
                f"{path}.resources.gpu_type",
                code,
                f"{fleet.describe()}; no GPU type: give `--gpu-type MODEL`, `gpu_type` in the request, or"
                " [resources] gpu_type in the Runner",
            )
        )
    return faults


def _hardware_faults(
    gpu_type: str | None,
    counts: Mapping[str, int],
    sources: Mapping[str, str],
    fleet: Fleet,
    policy: ServerPolicy,
    path: str,
) -> list[Fault]:
    """What no node can give.

    Where one value is at fault or not known the others are judged by any that could stand in its place, so
    that all of them are told at once.
    """
    resources = f"{path}.resources"
    if not fleet:
        if policy.wait_for_nodes:
            return []
        message = "no node is up at the moment, and this server lets no Trial wait for one"
        return [Fault(resources, "RUNNER_GPU_UNAVAILABLE", message)]
    faults: list[Fault] = []
    models: Collection[str] = () if gpu_type is None else matching_models(gpu_type, fleet.models)
    if gpu_type is not None and not models:
        near = nearest_models(gpu_type, fleet.models)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        message = (
            f'no node has a GPU of type "{gpu_type}"{hint}; {fleet.describe()}'
            if fleet.models
            else f'this server has no GPUs, so none of type "{gpu_type}"'
        )
        faults.append(Fault(f"{resources}.gpu_type", _HARDWARE, message))
    if not fleet.models:
        return faults
    of_type = f"{gpu_type} " if models else ""
    models = models or fleet.models
    most = max(fleet.models[model] for model in models)
    gpus = counts.get("gpus")
    if gpus is not None and gpus > most:
        message = (
            f"a Trial runs on one node: it wants {gpus} {of_type}GPUs{sources['gpus']},"
            f" the largest node has {most}"
        )
        faults.append(Fault(f"{resources}.gpus", _HARDWARE, message))
        gpus = None
    wanted = Amounts(**{**counts, "gpus": gpus or 1})
    rooms = fleet.nodes_with(models, wanted.gpus)
    if not any(wanted.fits_in(amounts) for _, amounts in rooms):
        number = "" if gpus is None else f"{gpus} "
        where = f"the nodes with {number}{of_type.strip() or 'GPUs'}"
        faults += _amount_faults(where, wanted, sources, rooms, resources)
    return faults


def _amount_faults(
    where: str,
    wanted: Amounts,
    sources: Mapping[str, str],
    rooms: list[tuple[str, Amounts]],
    path: str,
) -> list[Fault]:
    faults = []
    for key, name in _NAMES.items():
        want, there = getattr(wanted, key), max(getattr(amounts, key) for _, amounts in rooms)
        if want > there:
            message = f"wants {want} {name}{sources[key]}; of {where}, the largest has {there}"
            faults.append(Fault(f"{path}.{key}", _HARDWARE, message))
    if faults:
        return faults
    node, amounts = min(rooms, key=lambda room: len(wanted.shortfalls(room[1])))
    lacks = " and ".join(
        f"{there} of the {want} {_NAMES[key]} wanted"
        for key, (want, there) in wanted.shortfalls(amounts).items()
    )
    message = f"no single node has all of it together; the nearest, {node}, has {lacks}"
    return [Fault(path, _HARDWARE, message)]
