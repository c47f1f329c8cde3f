"""A placement pass over a queue and a fleet of the size in the design."""

from __future__ import annotations

from bench.figures import Bench, Budget, Figure
from trainshed.policy.measure import time_passes


def measure(bench: Bench) -> list[Figure]:
    """The pure functions the controller runs, on made-up rows."""
    scale = bench.scale
    times = time_passes(nodes=scale.nodes, pending=scale.pending)
    size = f"{scale.pending:,} x {scale.nodes:,}"
    return [
        Figure(
            f"placement pass, {size}", times.full * 1000, "ms", Budget(1000), note=f"{times.placed:,} placed."
        ),
        Figure(f"placement pass after one end, {size}", times.incremental * 1000, "ms", Budget(10)),
        Figure(f"reasons and estimates, {size}", times.forecast * 1000, "ms"),
    ]
