"""What a scenario answers: figures, each with its budget, its peers and a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Budget:
    """A bound of the design's speed budget, in the unit of its figure."""

    bound: float
    at_least: bool = False
    """Whether more is better."""

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Peer:
    """What somebody else reached in the same run, or why that cannot be told."""

    name: str
    value: float | None
    reason: str = ""

    def __str__(self) -> str:
        return (
            f"{self.name} {number(self.value)}" if self.value is not None else f"{self.name}: {self.reason}"
        )


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number."""

    name: str
    value: float
    unit: str
    budget: Budget | None = None
    peers: Sequence[Peer] = ()
    note: str = ""

    @property
    def verdict(self) -> str:
        """``met``, or by how much it was missed; nothing where no budget was set."""
        if self.budget is None:
            return ""
        if self.budget.met(self.value):
            return "met"
        off = abs(self.value - self.budget.bound)
        return f"missed by {number(off)} {self.unit} ({off / self.budget.bound:.0%})"

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "budget": str(self.budget) if self.budget else None,
            "verdict": self.verdict or None,
            "peers": [{"name": p.name, "value": p.value, "reason": p.reason or None} for p in self.peers],
            "note": self.note or None,
        }


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. Everything here is a count, so that a run has a known end."""

    submit_seconds: float = 5.0
    submit_rate: int = 200
    starts: int = 60
    jobs: int = 60
    """Of 16 Trials each."""
    stored_jobs: int = 100_000
    submissions_beside_reads: int = 1_000
    reads: int = 300
    log_mib: int = 256
    artifact_mib: int = 256
    content_mib: int = 1024
    content_files: int = 2_000
    sparse_mib: int = 20 * 1024
    dataset_mib: int = 5 * 1024
    unchanged_files: int = 10_000
    command_runs: int = 15
    sleepers: int = 48
    nodes: int = 1_000
    pending: int = 50_000
    peer_tasks: int = 1_000
    slow_peer_tasks: int = 8


QUICK = Scale(
    submit_seconds=1.5,
    starts=12,
    jobs=8,
    stored_jobs=10_000,
    submissions_beside_reads=200,
    reads=60,
    log_mib=32,
    artifact_mib=32,
    content_mib=64,
    content_files=200,
    sparse_mib=256,
    dataset_mib=256,
    command_runs=5,
    sleepers=16,
    nodes=200,
    pending=5_000,
    peer_tasks=200,
    slow_peer_tasks=2,
)


@dataclass(frozen=True, slots=True)
class Bench:
    """What every scenario gets."""

    scale: Scale
    place: Path
    """An empty folder of the scenario's own."""


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile; ``share`` from 0 to 1."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def number(value: float) -> str:
    """Three significant digits, whole from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
