"""A large Dataset in a Trial: how long its start takes with and without it, and that no byte is copied."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.figures import Bench, Budget, Figure, Peer, percentile
from bench.site import Site, publish, seconds_of, serve

_MIB = 1 << 20
_WARM = 3
_RUNS = 15


def measure(bench: Bench) -> list[Figure]:
    """The program says when its first line ran, and which inode its input has."""
    mib = bench.scale.dataset_mib
    source = bench.place / "dataset"
    source.mkdir(parents=True)
    with (source / "large").open("wb") as file:
        file.truncate(mib * _MIB)  # holes are read as fast as bytes, and stored as bytes
    with serve(bench.place) as site:
        runner = publish(site, bench.place, "bench/inputs")["bench/inputs"]
        profile = {
            "schema": "envloop.job-profile/v1",
            "inputs": {"data": _dataset(site, source)},
            "recipe": {},
            "plugins": [],
        }
        first = _start(site, runner, "first", profile=profile)[0]
        without = [_start(site, runner, f"without-{n}")[0] for n in range(_WARM + _RUNS)][_WARM:]
        runs = [_start(site, runner, f"with-{n}", profile=profile) for n in range(_WARM + _RUNS)][_WARM:]
        [(blob, inode)] = [
            (place, place.stat().st_ino)
            for place in (site.data / "content" / "sha256").glob("*/*")
            if place.stat().st_size == mib * _MIB
        ]
        began = time.perf_counter()
        subprocess.run(["cp", "--reflink=never", blob, bench.place / "copy"], check=True, timeout=600)
        copied = (time.perf_counter() - began) * 1000
        (bench.place / "copy").unlink()
    size = f"{mib / 1024:g} GiB"
    plain = percentile(without, 0.5)
    shared = sum(found == inode for _, found in runs)
    return [
        Figure(
            f"accepted to first line with a Dataset of {size}, p50",
            percentile([took for took, _ in runs], 0.5),
            "ms",
            peers=[Peer("the same without", plain), Peer("cp of it", copied)],
        ),
        Figure(
            f"the first Trial with a Dataset of {size}",
            first,
            "ms",
            note="Every byte is hashed once before it is shown.",
        ),
        Figure("Trials that share its one copy", shared, "", Budget(_RUNS, at_least=True)),
    ]


def _dataset(site: Site, source: Path) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "trainshed", "dataset", "publish", source, "--name", "bench/large", "--json"],
        env=site.environment(),
        check=True,
        capture_output=True,
        timeout=600,
    )
    digest = json.loads(done.stdout)["manifest_sha256"]
    return {"uri": f"envloop://datasets/bench/large@{digest}", "manifest_sha256": digest}


def _start(site: Site, runner: str, request_id: str, **spec: Any) -> tuple[float, int]:
    """Milliseconds from acceptance to the first line, and the inode of the input."""
    job = site.released(site.submit(runner, request_id, **spec), 600.0, pause=0.02)
    trial = job["training"]["trials"][0]["trial_id"]
    started, inode = site.fetch("GET", f"/v1/trials/{trial}/logs/raw").split()
    return (float(started) - seconds_of(job["created_at"])) * 1000, int(inode)
