"""Log throughput: what a program may write and what a reader gets, against pipes of `cat`."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from bench.figures import Bench, Budget, Figure, Peer
from bench.site import Site, publish, serve

_LINE = (
    b"step 000001 loss 2.3025 accuracy 0.1234 learning rate 0.0010 tokens per second 123456 memory 20.1 GB\n"
)
_MIB = 1 << 20
_TIMED = 'b=$EPOCHREALTIME; {}; e=$EPOCHREALTIME; echo "$b $e" >&2'


def measure(bench: Bench) -> list[Figure]:
    """The budget is a factor of two, so each figure is a rate with half its peer's rate as bound."""
    source = bench.place / "source"
    bench.place.mkdir(parents=True, exist_ok=True)
    size = bench.scale.log_mib * _MIB
    source.write_bytes(_LINE * (size // len(_LINE)))
    mib = source.stat().st_size / _MIB
    with serve(bench.place) as site:
        runner = publish(site, bench.place, "bench/run")["bench/run"]
        job = site.submit(runner, "write", command=_TIMED.format(f"cat {source}"), timeout_seconds=120)
        trial = site.released(job, 120.0)["training"]["trials"][0]["trial_id"]
        written = mib / _spent(site.fetch("GET", f"/v1/trials/{trial}/logs/raw?stream=stderr"))
        read = mib / _read_raw(site, trial, bench.place / "raw")
        if (bench.place / "raw").read_bytes() != source.read_bytes():
            raise RuntimeError("the log is not what the program wrote")
        records, lines = _pages(site, job, seconds=5.0)
    to_file = Peer("cat | cat > file", mib / _cat(source, bench.place / "copy"))
    return [
        Figure("log written by a Trial", written, "MiB/s", _half(to_file), [to_file]),
        Figure(
            "log read back, raw",
            read,
            "MiB/s",
            _half(to_file),
            [to_file],
            note="Over HTTP, by curl into a file.",
        ),
        Figure("log read back, pages of 1,000", records, "records/s", note=f"{lines:,} records read."),
    ]


def _read_raw(site: Site, trial: str, target: Path) -> float:
    """Seconds; the best of three, by a client that costs little itself (`http.client` is half as fast)."""
    url = f"{site.url}/v1/trials/{trial}/logs/raw"
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        key = f"Authorization: Bearer {site.key}"
        subprocess.run(["curl", "-sS", "-f", "-H", key, "-o", target, url], check=True, timeout=60)
        best = min(best, time.perf_counter() - began)
    return best


def _half(peer: Peer) -> Budget:
    return Budget(round((peer.value or 0.0) / 2), at_least=True)


def _spent(text: bytes) -> float:
    began, ended = map(float, text.split())
    return ended - began


def _cat(source: Path, target: Path) -> float:
    command = _TIMED.format(f"cat {source} | cat > {target}")
    best = float("inf")
    for _ in range(3):
        done = subprocess.run(["bash", "-c", command], check=True, capture_output=True, timeout=60)
        best = min(best, _spent(done.stderr))
    return best


def _pages(site: Site, job: str, seconds: float) -> tuple[float, int]:
    """Records a second, and how many were read before the time was up or the log at its end."""
    count, cursor, began = 0, "", time.perf_counter()
    while time.perf_counter() < began + seconds:
        path = f"/v1/jobs/{job}/logs?source=runtime&limit=1000{cursor and '&cursor=' + cursor}"
        page = json.loads(site.fetch("GET", path))
        count += len(page["items"])
        cursor = page["next_cursor"]
        if page["eof"] and not page["has_more"]:
            break
    return count / (time.perf_counter() - began), count
