"""Ray tasks that scale, on the fake engine: what their heads would say, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from support.gangs import GangDeployment, task
from trainshed.control.training.scaling import WANTED
from trainshed.engines.contract import Phase, Report
from trainshed.model.states import State
from trainshed.model.training.spec import Autoscaling, AutoscalingMode, Kind, TaskSpec


def scaling_task(
    least: int = 1,
    most: int = 4,
    *,
    workers: int = 1,
    mode: AutoscalingMode = AutoscalingMode.DEFAULT,
    **changes: Any,
) -> TaskSpec:
    """A Ray task that scales between ``least`` and ``most`` workers of one GPU."""
    own = Autoscaling(enabled=True, min=least, max=most, idle_timeout_seconds=60, mode=mode)
    return task(kind=Kind.RAY, cmd="python main.py", workers=workers, autoscaling=own, **changes)


def head_says(d: GangDeployment, job: str, wanted: object, joined: object) -> None:
    """Have the head report how many workers the load wants, and who is there."""
    unit = d.units(job)[0]
    script = d.world.attempts[unit].script
    begun = d.engine.observe([unit])[unit].started_at
    assert begun is not None
    said = Report(0, d.now() - begun, WANTED, "The load …", data={"wanted": wanted, "joined": joined})
    d.engine.script(unit, replace(script, reports=(*script.reports, said)))
    d.engine.advance(0.0)


def workers(d: GangDeployment, job: str) -> list[int]:
    """Ranks of the workers that hold something now."""
    return [part["rank"] for part in d.parts(job) if part["role"] == "worker"]


def running(d: GangDeployment, job: str) -> list[int]:
    """Ranks of the workers whose programs run."""
    units = {row.rank: row.unit_id or "" for row in d.replicas(job) if row.role == "worker"}
    seen = d.engine.observe(units.values())
    return [rank for rank, unit in units.items() if seen[unit].phase is Phase.RUNNING]


def grown(d: GangDeployment, job: str, wanted: int) -> None:
    """Let the load want so many, and all of them join."""
    head_says(d, job, wanted, workers(d, job))
    d.run_until(lambda: len(running(d, job)) == wanted)
    head_says(d, job, wanted, workers(d, job))
    d.step()


def leave(d: GangDeployment, job: str, rank: int, *, code: int = 0) -> None:
    """Have a worker end, as its head says."""
    unit = next(row.unit_id or "" for row in d.replicas(job) if row.rank == rank)
    _end(d, unit, code)
    rest = [each for each in workers(d, job) if each != rank]
    head_says(d, job, len(rest) if code == 0 else len(rest) + 1, rest)


def _end(d: GangDeployment, unit: str, code: int) -> None:
    begun = d.engine.observe([unit])[unit].started_at
    seconds = 0.0 if begun is None else d.now() - begun
    d.engine.script(unit, replace(d.world.attempts[unit].script, run_seconds=seconds, code=code))


def driver_ends(d: GangDeployment, job: str, code: int = 0) -> None:
    """Have the driver end, and its cluster with it, workers first."""
    rows = d.replicas(job)
    for role in ("worker", "head", "submitter"):
        for row in rows:
            unit = row.unit_id or ""
            if row.role == role and unit in d.world.attempts:
                own = code if role == "submitter" else 0
                _end(d, unit, own)


def start(d: GangDeployment, spec: TaskSpec | None = None, **options: Any) -> str:
    """A task that scales, running with all of its first workers in its cluster."""
    job = d.create(spec or scaling_task(**options))
    d.until(job, State.RUNNING)
    head_says(d, job, len(workers(d, job)), workers(d, job))
    d.step()
    return job


def units_of(sources: Sequence[Sequence[Any]]) -> int:
    """Units that a gang runs on, by its own account."""
    return sum(own + borrowed + idle for _, own, borrowed, idle in sources)
