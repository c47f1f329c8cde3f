"""``python -m bench``: run the scenarios, print the table, write ``bench/results.json``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.figures import QUICK, Bench, Figure, Scale, number, percentile
from bench.scenarios import SCENARIOS, Scenario

RESULTS = Path(__file__).with_name("results.json")
_PROBES = 200


def main(arguments: Sequence[str] | None = None) -> int:
    """Answers 0 also where a budget is missed: the table says so; 1 if a scenario could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure against the speed budget.")
    parser.add_argument("--quick", action="store_true", help="a short run of everything (under a minute)")
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--output", type=Path, default=RESULTS, help="where to write the results as JSON")
    options = parser.parse_args(arguments)
    scale = QUICK if options.quick else Scale()
    machine = _machine()
    figures, failed = run({name: SCENARIOS[name] for name in options.only or SCENARIOS}, scale)
    document = {
        "quick": options.quick,
        "machine": {**machine, "load_after": os.getloadavg()[0]},
        "figures": [figure.document() for figure in figures],
        "failed": failed,
    }
    options.output.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print("\n".join(table(figures)))
    load = f"load {machine['load_before']:.1f} before and {os.getloadavg()[0]:.1f} after"
    flush = f"fdatasync of 4 KiB p50 {machine['fdatasync_ms']:.2f} ms"
    print(f"\n{machine['cpus']} CPUs, {load}; {flush}. Figures: {options.output}")
    for name, reason in failed.items():
        print(f"{name} could not be measured: {reason}", file=sys.stderr)
    return int(bool(failed))


def run(scenarios: dict[str, Scenario], scale: Scale) -> tuple[list[Figure], dict[str, str]]:
    """Every scenario in a folder of its own; the figures, and why some could not be measured."""
    figures: list[Figure] = []
    failed: dict[str, str] = {}
    for name, measure in scenarios.items():
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as place:
            try:
                figures += measure(Bench(scale, Path(place) / name))
            except Exception as error:  # noqa: BLE001 - the others can still be measured
                failed[name] = f"{type(error).__name__}: {error}"
        took = time.monotonic() - began
        print(f"{name}: {took:.1f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    return figures, failed


def table(figures: Sequence[Figure]) -> list[str]:
    """The table for people, notes below it."""
    rows = [("figure", "measured", "budget", "peers", "verdict")]
    rows += [
        (
            figure.name,
            f"{number(figure.value)} {figure.unit}",
            str(figure.budget or ""),
            ", ".join(map(str, figure.peers)),
            figure.verdict,
        )
        for figure in figures
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    notes = [f"- {figure.name}: {figure.note}" for figure in figures if figure.note]
    return [lines[0], "-" * len(lines[0]), *lines[1:], *(["", *notes] if notes else [])]


def _machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "fdatasync_ms": _fdatasync_ms(),
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _fdatasync_ms() -> float:
    """What a flush costs on this disk now: every durable answer pays for at least one."""
    took = []
    with tempfile.TemporaryFile(prefix="bench-sync-") as file:
        for _ in range(_PROBES):
            file.write(b"x" * 4096)
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    return percentile(took, 0.5)


if __name__ == "__main__":
    sys.exit(main())
