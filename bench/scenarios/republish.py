"""Publishing a tree of many files again that nobody touched: one look at each file, one request.

Beside it what others take to find that nothing changed in the same tree: ``git status`` with a fresh index,
and ``rsync`` that would copy nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.figures import Bench, Budget, Figure, Peer, percentile
from bench.site import serve

_A_FOLDER = 100
_BUDGET_MS = 300
_SETTLED_SECONDS = 0.5
"""Files are older than a tick of the clock then, so that their digests are trusted."""


def measure(bench: Bench) -> list[Figure]:
    """Whole processes, wall time, medians of alternating runs."""
    files, place = bench.scale.unchanged_files, bench.place
    tree, copy = place / "unchanged", place / "unchanged-copy"
    for number in range(files):
        folder = tree / f"{number // _A_FOLDER:04}"
        folder.mkdir(parents=True, exist_ok=True)
        # One content for all: what is measured is looking, and the first publication shall be short.
        (folder / f"{number:06}.txt").write_text("unchanged\n")
    time.sleep(_SETTLED_SECONDS)
    with serve(place) as site:
        program = [sys.executable, "-m", "trainshed"]
        publish = [*program, "dataset", "publish", str(tree), "--name", "bench/unchanged", "--version", "1"]
        environment = site.environment()
        subprocess.run(publish, env=environment, check=True, capture_output=True, timeout=600)
        commands = {"publish": publish, "bare": [sys.executable, "-c", "pass"]}
        peers = [("git status", "git"), ("rsync -an", "rsync")]
        absent = [
            Peer(name, None, f"{tool} is not installed") for name, tool in peers if not shutil.which(tool)
        ]
        shutil.copytree(tree, copy, copy_function=shutil.copy2)
        if shutil.which("git"):
            _commit(copy)
            commands["git status"] = ["git", "-C", str(copy), "status", "--short"]
        if shutil.which("rsync"):
            commands["rsync -an"] = ["rsync", "-an", f"{tree}/", str(copy)]
        took = _alternating(commands, environment, bench.scale.command_runs)
    middle = {name: percentile(times, 0.5) for name, times in took.items()}
    shown = [Peer(name, middle[name]) for name, _ in peers if name in middle]
    return [
        Figure(
            f"tree of {files} unchanged files published again",
            middle["publish"],
            "ms",
            Budget(_BUDGET_MS),
            [*shown, *absent, Peer("python -c pass", middle["bare"])],
            note=f"The best of {bench.scale.command_runs} took {min(took['publish']):.0f} ms.",
        )
    ]


def _commit(copy: Path) -> None:
    """Make a repository of it, all files committed and its index written after they were."""
    git = ["git", "-C", str(copy), "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"], ["status"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True, timeout=600)


def _alternating(
    commands: Mapping[str, Sequence[str]], environment: Mapping[str, str], runs: int
) -> dict[str, list[float]]:
    """Milliseconds of each run; one unmeasured run of each comes first."""
    took: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(runs + 1):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, env=dict(environment), check=True, capture_output=True, timeout=60)
            if number:
                took[name].append((time.perf_counter() - began) * 1000)
    return took
