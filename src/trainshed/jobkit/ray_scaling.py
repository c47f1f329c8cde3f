"""A Ray cluster that follows its load (C51): how many workers that wants, and which of them may go.

More workers are the server's to give: what is said here is a request. Fewer are the head's to decide: Ray
itself refuses to let a node go that has something to do, so nothing is interrupted, also while no server
is there. A cluster with fewer workers than its task allows is lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

from trainshed.jobkit import ray_demand, ray_wire, reporting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainshed.jobkit.ray_wire import Json

WANTED = "WORKERS_WANTED"
_LEAST_STAY_SECONDS = 5.0
"""A worker that just joined may not have been given anything yet."""
_OFTEN, _MANY = 1.0, 1000
_SELDOM = 30.0
"""Seconds between two requests that say something new: what one Attempt may report is bounded."""
_TRIES = 5
_AGAIN_SECONDS = 5.0
_NO_DRAIN_SECONDS = 30.0
"""After a node was not let go, so long none is asked to go."""


class Scaler:
    """Follows one cluster. ``present`` answers rank -> address of its workers, ``dismiss`` ends one."""

    def __init__(
        self, config: Json, gcs: str, present: Callable[[], dict[int, str]], dismiss: Callable[[int], None]
    ) -> None:
        self._place = config["place"]
        self._settings: Json = config["scaling"]
        self._gcs = gcs
        self._present = present
        self._dismiss = dismiss
        self._process: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._since: dict[int, float] = {}
        """Since when each worker is there, by the monotonic clock."""
        self._before = 0
        """Workers that the last look missed."""
        self._said: tuple[int, list[int]] | None = None
        self._said_at = 0.0
        self._count = 0
        self._not_workers = {config["head"]}
        """Addresses of the head and of workers that were let go."""
        self._going: tuple[int, str] | None = None
        """The worker that was asked to take nothing more, and its node."""
        self._drain_at = 0.0

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """Say and do nothing more."""
        self._over.set()
        if self._process is not None:
            self._process.kill()

    def _run(self) -> None:
        for _ in range(_TRIES):
            self._follow()
            if self._over.wait(_AGAIN_SECONDS):
                return
        message = "The load of the cluster cannot be read: its size stays; the head's log says more"
        reporting.report("AUTOSCALING_LIMITED", message, "warning")

    def _follow(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own script
            [sys.executable, "-u", os.path.join(self._place, "load.py"), self._gcs],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None  # noqa: S101 - it was started with a pipe
        for line in self._process.stdout:
            if self._over.is_set():
                break
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if "drained" in message:
                self._drained(message)
            else:
                self.look(message, time.monotonic())
        self._process.kill()
        self._process.wait()
        self._going = None

    def look(self, state: Json, now: float) -> None:
        """Say what this state of the cluster calls for, and begin to let an idle worker go."""
        present = self._present()
        self._since = {rank: self._since.get(rank, now) for rank in present}
        shape, most = self._settings["shape"], self._settings["most"]
        more = ray_demand.missing(state, shape, max(0, most - len(present)))
        # A node is Ray's before its worker says that it joined.
        there = {node["address"] for node in state["nodes"] if node["status"] in ray_demand.LIVE}
        coming = there - self._not_workers - set(present.values())
        # What waits for a moment only is no load.
        wanted = min(most, len(present) + len(coming) + min(more, self._before))
        self._before = more
        self.say(wanted, present, now)
        if more == 0 and len(present) > self._settings["least"] and self._going is None:
            self._let_go(state, present, now)

    def say(self, wanted: int, present: dict[int, str], now: float, *, at_once: bool = False) -> None:
        """Make a request of it, if it is new."""
        said = (wanted, sorted(present))
        pause = _OFTEN if self._count < _MANY else _SELDOM
        if said == self._said or (not at_once and now - self._said_at < pause):
            return
        self._said, self._said_at, self._count = said, now, self._count + 1
        message = f"The load wants {wanted} workers; {len(present)} are in the cluster"
        reporting.report(WANTED, message, data={"wanted": wanted, "joined": said[1]})

    def _let_go(self, state: Json, present: dict[int, str], now: float) -> None:
        if now < self._drain_at:
            return
        nodes = {node["address"]: node for node in state["nodes"]}
        idle_seconds = self._settings["idle_seconds"]
        for rank in sorted(present, reverse=True):
            node = nodes.get(present[rank])
            if node is None or node["status"] != "IDLE" or node["idle_seconds"] < idle_seconds:
                continue
            stayed = now - self._since[rank] >= max(idle_seconds, _LEAST_STAY_SECONDS)
            if stayed and ray_demand.spares(state, node["id"], self._settings["shape"]):
                self._going = (rank, node["id"])
                self._ask({"drain": node["id"]})
                return

    def _ask(self, message: Json) -> None:
        assert self._process is not None  # noqa: S101 - who answers asks
        assert self._process.stdin is not None  # noqa: S101 - it was started with a pipe
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            self._going = None  # it is gone, and is started anew

    def _drained(self, answer: Json) -> None:
        going, self._going = self._going, None
        if going is None or going[1] != answer.get("drained"):
            return
        if not answer.get("accepted"):
            ray_wire.tell(f"worker {going[0]} stays: {answer.get('why')}")
            self._drain_at = time.monotonic() + _NO_DRAIN_SECONDS
            return
        present = self._present()
        self._not_workers.add(present.pop(going[0], ""))
        # Before it ends: what ended without being said counts as lost with its task.
        self.say(len(present), present, time.monotonic(), at_once=True)
        self._dismiss(going[0])
