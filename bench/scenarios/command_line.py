"""How long a person waits for the command line."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.figures import Bench, Budget, Figure, Peer, percentile
from bench.site import publish, serve


def measure(bench: Bench) -> list[Figure]:
    """Whole processes, wall time, medians of alternating runs."""
    with serve(bench.place) as site:
        runner = publish(site, bench.place, "bench/noop")["bench/noop"]
        job = site.submit(runner, "one")
        site.released(job, 30.0)
        program = str(Path(sys.executable).with_name("el"))
        commands = {
            "bare": [sys.executable, "-c", "pass"],
            "help": [program, "--help"],
            "get": [program, "job", "get", job],
            "json": [program, "job", "get", job, "--json"],
        }
        took = _alternating(commands, site.environment(), bench.scale.command_runs)
    bare = [Peer("python -c pass", percentile(took["bare"], 0.5))]
    return [
        Figure("el --help", percentile(took["help"], 0.5), "ms", Budget(100), bare),
        Figure("el job get", percentile(took["get"], 0.5), "ms"),
        Figure("el job get --json", percentile(took["json"], 0.5), "ms"),
    ]


def _alternating(
    commands: Mapping[str, Sequence[str]], environment: Mapping[str, str], runs: int
) -> dict[str, list[float]]:
    """Milliseconds of each run; one unmeasured run of each comes first."""
    took: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(runs + 1):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, env=dict(environment), check=True, stdout=subprocess.DEVNULL, timeout=30)
            if number:
                took[name].append((time.perf_counter() - began) * 1000)
    return took
