"""Packing a project of many files again that nobody touched: git's listing and one look at each file.

Beside it what others take to look at the same tree: ``git status`` with a fresh index, and ``tar`` that packs
all of it anew, as a client does that keeps nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench.figures import Bench, Budget, Figure, Peer, percentile

_A_FOLDER = 100
_BUDGET_MS = 300
_SETTLED_SECONDS = 0.5
"""Files are older than a tick of the clock then, so that their digests are trusted."""
_GPU = "import sys; from trainshed.cli.main import gpu_main; sys.exit(gpu_main(sys.argv[1:]))"
_INSIDE = """
import sys, time
from trainshed.sdk.packing import pack
for _ in range(int(sys.argv[2]) + 1):
    began = time.perf_counter()
    assert pack(sys.argv[1], {"script": "train.py"}).tree.read == 0
    print((time.perf_counter() - began) * 1000)
"""


def measure(bench: Bench) -> list[Figure]:
    """Whole processes and the call within one, wall time, medians."""
    files, place, runs = bench.scale.unchanged_files, bench.place, bench.scale.command_runs
    project = place / "project"
    _make(project, files)
    environment = {**os.environ, "TRAINSHED_HOME": str(place / "home"), "HOME": str(place / "user")}
    bundle = [sys.executable, "-c", _GPU, "bundle", str(project), "--script", "train.py", "--json"]
    first = subprocess.run(bundle, env=environment, check=True, capture_output=True, timeout=600)
    assert json.loads(first.stdout)["files"] == files + 1  # noqa: S101 - else something else is measured
    commands = {
        "bundle": bundle,
        "bare": [sys.executable, "-c", "pass"],
        "git status": ["git", "-C", str(project), "status", "--short"],
        "tar": ["tar", "-czf", str(place / "all.tar.gz"), "--exclude=.git", "-C", str(project), "."],
    }
    took: dict[str, list[float]] = {name: [] for name in commands if shutil.which(commands[name][0])}
    for number in range(runs + 1):
        for name, times in took.items():
            began = time.perf_counter()
            subprocess.run(commands[name], env=environment, check=True, capture_output=True, timeout=60)
            if number:
                times.append((time.perf_counter() - began) * 1000)
    inside = subprocess.run(
        [sys.executable, "-c", _INSIDE, str(project), str(runs)],
        env=environment,
        check=True,
        capture_output=True,
        timeout=600,
    )
    calls = [float(line) for line in inside.stdout.split()[1:]]
    peers = [Peer(name, percentile(took[name], 0.5)) for name in ("git status", "tar") if name in took]
    return [
        Figure(
            f"project of {files} unchanged files packed again",
            percentile(calls, 0.5),
            "ms",
            Budget(_BUDGET_MS),
            peers,
            note=f"The best of {runs} took {min(calls):.0f} ms.",
        ),
        Figure(
            "the same as a process, `gpu bundle`",
            percentile(took["bundle"], 0.5),
            "ms",
            peers=[Peer("python -c pass", percentile(took["bare"], 0.5))],
        ),
    ]


def _make(project: Path, files: int) -> None:
    """A repository of small files in many folders, with a fresh index."""
    for number in range(files):
        folder = project / f"{number // _A_FOLDER:04}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:06}.py").write_text(f"number = {number}\n")
    (project / "train.py").write_text("print('hello')\n")
    git = ["git", "-C", str(project), "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"], ["status"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True, timeout=600)
    time.sleep(_SETTLED_SECONDS)
