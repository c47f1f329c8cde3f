"""A pass over waiting gangs on a fleet of the size in the design, and after one change."""

from __future__ import annotations

from bench.figures import Bench, Budget, Figure
from trainshed.policy.gangs.measure import time_gang_passes


def measure(bench: Bench) -> list[Figure]:
    """The pure functions the controller runs, on made-up rows."""
    scale = bench.scale
    times = time_gang_passes(nodes=scale.nodes, pending=scale.pending)
    size = f"{scale.pending:,} x {scale.nodes:,} x 8"
    note = f"{times.classes} classes, {times.placed:,} gangs placed."
    after = f"an end or an arrival costs {times.processor * 1000:.1f} ms of a processor."
    return [
        Figure(f"pass over gangs, {size}", times.full * 1000, "ms", Budget(1000), note=note),
        Figure(f"pass over gangs after one end, {size}", times.release * 1000, "ms", Budget(10), note=after),
        Figure(f"pass over gangs after one arrival, {size}", times.arrival * 1000, "ms", Budget(10)),
        Figure(f"pass over gangs after one node changed, {size}", times.node * 1000, "ms", Budget(10)),
    ]
