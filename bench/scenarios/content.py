"""Publishing a large file, a sparse one and a tree of small ones, and collecting the large one and the tree.

Everything a user waits for is in the time: starting the command, hashing, asking what is missing, sending,
and on the server hashing, syncing and reading back. Beside it `sha256sum` and `cp` do the same bytes on the
same disk, and once more with a `sync`, as what is published is on the disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from bench.figures import Bench, Budget, Figure, Peer
from bench.site import Site, publish, seconds_of, serve

_MIB = 1 << 20
_TREE_FILE_BYTES = 16 << 10
_A_FOLDER = 100
_LONGEST_SECONDS = 1800.0


def measure(bench: Bench) -> list[Figure]:
    """Peaks are of resident memory, from before each command to after it."""
    scale, place = bench.scale, bench.place
    large, tree, sparse = place / "large", place / "tree", place / "sparse"
    _fill(large / "file", scale.content_mib)
    _grow(tree, scale.content_files)
    sparse.mkdir(parents=True)
    with (sparse / "file").open("wb") as file:
        file.truncate(scale.sparse_mib * _MIB)
    # Else what is measured waits for its own input to be written out.
    os.sync()
    with serve(place) as site:
        runner = publish(site, place, "bench/run")["bench/run"]
        large_took, server_peak, client_peak = _publish(site, large, "bench/file")
        tree_took, _, _ = _publish(site, tree, "bench/tree")
        again_took, _, _ = _publish(site, tree, "bench/tree")
        sparse_took, sparse_peak, _ = _publish(site, sparse, "bench/sparse")
        file_took = _collect(site, runner, large, scale.content_mib)
        tree_collected = _collect(site, runner, tree, scale.content_files * _TREE_FILE_BYTES // _MIB)
    copies = [
        _hash_and_copy(source, place / "copy", sync=sync) for source in (large, tree) for sync in (0, 1)
    ]
    file_rates, tree_rates = ([scale.content_mib / took for took in copies[:2]], copies[2:])
    names = ("sha256sum + cp", "sha256sum + cp + sync")
    file_peers = [Peer(name, rate) for name, rate in zip(names, file_rates, strict=True)]
    tree_speeds = [scale.content_files / took for took in tree_rates]
    tree_peers = [Peer(name, rate) for name, rate in zip(names, tree_speeds, strict=True)]
    return [
        Figure(
            f"file of {scale.content_mib} MiB published",
            scale.content_mib / large_took,
            "MiB/s",
            Budget(round(file_rates[0] / 2), at_least=True),
            file_peers,
            note="The whole command.",
        ),
        Figure("server's memory grows by, meanwhile", server_peak, "MiB", Budget(128)),
        Figure("client's memory, meanwhile", client_peak, "MiB", Budget(256)),
        Figure(
            f"sparse file of {scale.sparse_mib / 1024:g} GiB published",
            scale.sparse_mib / sparse_took,
            "MiB/s",
            note=f"The server's memory grew by {sparse_peak:.0f} MiB meanwhile.",
        ),
        Figure(
            f"tree of {scale.content_files} files published",
            scale.content_files / tree_took,
            "/s",
            Budget(round(tree_speeds[0] / 2), at_least=True),
            tree_peers,
            note="Budget: half of what `sha256sum` and `cp` do without a sync; ours is synced.",
        ),
        Figure("the same tree published again", again_took * 1000, "ms"),
        Figure(
            f"file of {scale.content_mib} MiB collected",
            scale.content_mib / file_took,
            "MiB/s",
            Budget(round(file_rates[0] / 2), at_least=True),
            file_peers,
        ),
        Figure(
            f"tree of {scale.content_files} files collected",
            scale.content_files / tree_collected,
            "/s",
            Budget(round(tree_speeds[0] / 2), at_least=True),
            tree_peers,
        ),
    ]


def _fill(path: Path, mib: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        subprocess.run(["head", "-c", f"{mib}M", "/dev/urandom"], stdout=file, check=True)


def _grow(root: Path, files: int) -> None:
    for number in range(files):
        folder = root / f"{number // _A_FOLDER:04}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:06}").write_bytes(os.urandom(_TREE_FILE_BYTES))


def _publish(site: Site, source: Path, name: str) -> tuple[float, float, float]:
    """Seconds, by how many MiB the server's memory grew at most, and the client's peak in MiB."""
    before = _forget_peak(site.process.pid)
    command = [sys.executable, "-m", "trainshed", "dataset", "publish", source, "--name", name, "--json"]
    began = time.perf_counter()
    process = subprocess.Popen(command, env=site.environment(), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    took = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"publishing {name} ended with {process.returncode}")
    return took, (_memory(site.process.pid, "VmHWM") - before) / 1024, usage.ru_maxrss / 1024


def _forget_peak(pid: int) -> int:
    """Let the peak of a process begin at what it uses now; KiB."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _memory(pid, "VmRSS")


def _memory(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _collect(site: Site, runner: str, source: Path, mib: int) -> float:
    """Seconds from the program's exit to the Job's end; each of its files is new to the store.

    What the program wrote is on the disk by then: else what is measured waits for that.
    """
    command = f'cp -r {source} out; find out -type f | while read -r f; do echo x >> "$f"; done; sync -f out'
    resources = {"storage_mb": 4096 + 2 * mib}
    job = site.submit(runner, f"collect-{source.name}", command=command, resources=resources)
    trial = site.released(job, _LONGEST_SECONDS)["training"]["trials"][0]
    return seconds_of(trial["updated_at"]) - seconds_of(trial["attempts"][0]["ended_at"])


def _hash_and_copy(source: Path, copy: Path, *, sync: bool) -> float:
    files = [path for path in sorted(source.rglob("*")) if path.is_file()]
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run(["sha256sum", *files], check=True, stdout=subprocess.DEVNULL, timeout=_LONGEST_SECONDS)
        subprocess.run(["cp", "-r", source, copy], check=True, timeout=_LONGEST_SECONDS)
        if sync:
            copies = [copy / path.relative_to(source) for path in files]
            subprocess.run(["sync", *copies], check=True, timeout=_LONGEST_SECONDS)
        best = min(best, time.perf_counter() - began)
        subprocess.run(["rm", "-r", copy], check=True, timeout=_LONGEST_SECONDS)
    return best
