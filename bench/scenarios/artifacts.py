"""Artifact throughput: storing a large output and downloading it, against `sha256sum` and `cp`."""

from __future__ import annotations

import hashlib
import http.client
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

from bench.figures import Bench, Budget, Figure, Peer
from bench.site import Site, publish, seconds_of, serve

_MIB = 1 << 20


def measure(bench: Bench) -> list[Figure]:
    """Storing is hashing, copying, syncing and reading back; downloading is checked against the SHA-256."""
    mib = bench.scale.artifact_mib
    source = bench.place / "source"
    bench.place.mkdir(parents=True, exist_ok=True)
    with source.open("wb") as file:
        subprocess.run(["head", "-c", f"{mib}M", "/dev/urandom"], stdout=file, check=True)
    with serve(bench.place) as site:
        runner = publish(site, bench.place, "bench/run")["bench/run"]
        room = {"storage_mb": 4 * mib + 64}
        job = site.submit(runner, "store", command=f"mkdir out; cp {source} out/file", resources=room)
        trial = site.released(job, 120.0)["training"]["trials"][0]
        stored = mib / (seconds_of(trial["updated_at"]) - seconds_of(trial["attempts"][0]["ended_at"]))
        downloaded = mib / _download(site, trial["trial_id"])
    hashed = Peer("sha256sum + cp", mib / _hash_and_copy(source, bench.place / "copy", sync=False))
    synced = Peer("sha256sum + cp + sync", mib / _hash_and_copy(source, bench.place / "copy", sync=True))
    bound = Budget(round((hashed.value or 0.0) / 2), at_least=True)
    return [
        Figure(
            "artifact collected",
            stored,
            "MiB/s",
            bound,
            [hashed, synced],
            note="From exit to terminal state.",
        ),
        Figure("artifact downloaded and verified", downloaded, "MiB/s", bound, [hashed]),
    ]


def _download(site: Site, trial: str) -> float:
    (artifact,) = site.call("GET", f"/v1/trials/{trial}/artifacts")["items"]
    parts = urlsplit(site.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    began = time.perf_counter()
    path = f"/v1/trials/{trial}/artifacts/{artifact['artifact_id']}/content"
    connection.request("GET", path, headers=site.headers)
    answer, seen = connection.getresponse(), hashlib.sha256()
    while piece := answer.read(_MIB):
        seen.update(piece)
    connection.close()
    if seen.hexdigest() != artifact["sha256"]:
        raise RuntimeError("the download is not the artifact")
    return time.perf_counter() - began


def _hash_and_copy(source: Path, copy: Path, *, sync: bool) -> float:
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run(["sha256sum", source], check=True, stdout=subprocess.DEVNULL, timeout=60)
        subprocess.run(["cp", source, copy], check=True, timeout=60)
        if sync:
            subprocess.run(["sync", copy], check=True, timeout=60)
        best = min(best, time.perf_counter() - began)
        copy.unlink()
    return best
