"""Peers that run a no-op program, measured beside us: each in a process of its own with an end in time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

from bench.figures import Bench, Peer

NAMES = ("bare Popen", "HyperQueue", "submitit", "task-spooler")
_MODULES = dict(zip(NAMES, ("bare", "hyperqueue_peer", "submitit_peer", "task_spooler"), strict=True))
_SLOW = frozenset({"submitit"})
_SECONDS = 45.0
_ROOT = Path(__file__).resolve().parents[2]


class Missing(Exception):
    """The peer is not installed here."""


def rates(bench: Bench) -> list[Peer]:
    """No-op processes a second."""
    return [_peer(name, "rate", _measure(name, _tasks(bench, name))) for name in NAMES]


def start_latencies(bench: Bench) -> list[Peer]:
    """Milliseconds from asking to the first line of the program, median."""
    return [_peer(name, "start_ms", _measure(name, _tasks(bench, name))) for name in NAMES]


def _tasks(bench: Bench, name: str) -> int:
    return bench.scale.slow_peer_tasks if name in _SLOW else bench.scale.peer_tasks


def _peer(name: str, key: str, found: dict[str, float | str]) -> Peer:
    value = found.get(key)
    return Peer(name, float(value)) if value is not None else Peer(name, None, str(found.get("reason", "")))


@cache
def _measure(name: str, tasks: int) -> dict[str, float | str]:
    """What the peer's module prints; killed with all it started when its time is up."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"bench.peers.{_MODULES[name]}", str(tasks)],
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return {"reason": f"no answer within {_SECONDS:g} s"}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode != 0:
        return {"reason": (errors.decode(errors="replace").strip().splitlines() or ["failed"])[-1]}
    return dict(json.loads(out.splitlines()[-1]))  # HyperQueue prints a table of its own before
