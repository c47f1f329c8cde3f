"""The head of a Ray task: starts the cluster, lets workers in one by one, tells the submitter, ends all.

Every other member has one connection to it. Nobody is told that a driver may run before all nodes are
alive (C27), and the cluster's logs are written before anybody hears that it is over (C52).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

from trainshed.jobkit import ray_wire, reporting
from trainshed.jobkit.ray_node import Failed, Node, has_job_server, lacks_ray, node_of, pause_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.jobkit.ray_scaling import Scaler
    from trainshed.jobkit.ray_wire import Json, Line

_DASHBOARD_SECONDS = 60.0
_WORKERS_LEAVE_SECONDS = 30.0
_HELLO_SECONDS = 10.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Nobody's proxy lies between members of one task."""


class Head:
    """The part of the head."""

    def __init__(self, config: Json) -> None:
        self._config = config
        self._changed = threading.Condition()
        self._workers: dict[int, Line] = {}
        self._waiting: dict[str, list[int]] = {}
        self._starting: dict[str, int] = {}
        self._joined: set[int] = set()
        self._left: set[int] = set()
        self._addresses: dict[int, str] = {}
        self._dismissed: set[int] = set()
        self._scaling: Json | None = config.get("scaling")
        self._short = threading.Event()
        """Fewer workers are left than the task allows."""
        self._submitter: Line | None = None
        self._ended: int | None = None
        self._over = threading.Event()
        """The submitter said that the driver ended, or is gone."""
        self._let_go = threading.Event()
        """It wants nothing of the cluster any more."""
        self._stopped = threading.Event()
        self._gcs = ""
        self._job: str | None = None

    def run(self) -> int:
        """The exit code of this member."""
        signal.signal(signal.SIGTERM, lambda *_: self._stopped.set())
        if not self._config["cluster"] and (reason := lacks_ray()):
            reporting.fail(f"IMAGE_LACKS_RAY: {reason}")
            ray_wire.tell(f"IMAGE_LACKS_RAY: {reason}")
            return ray_wire.LACKS_RAY
        config = self._config
        try:
            listening = ray_wire.listen(config["head"], config["port"])
            threading.Thread(target=self._accept, args=(listening,), daemon=True).start()
            node = node_of(config)
            served = bool(config["cluster"]) or has_job_server()
            self._gcs, dashboard = node.start_head()
        except (Failed, OSError) as error:
            reporting.fail(f"RAY_HEAD_FAILED: {error}")
            ray_wire.tell(f"the cluster did not start: {error}")
            return 1
        complete = self._let_workers_in(node)
        if complete:
            self._tell_submitter(dashboard if served and dashboard and _answers(dashboard) else "")
            scaler = self._follow_load()
            while not pause_until(
                time.monotonic() + 3600, self._over, node.ended, self._stopped, self._short
            ):
                pass
            if scaler is not None:
                scaler.stop()
            if self._stopped.is_set() and not self._over.is_set():
                pause_until(time.monotonic() + config["grace_seconds"], self._over)
        if self._ended is not None and config["retain_seconds"] and not self._stopped.is_set():
            self._retain(node, dashboard)
        return self._end(node, complete=complete)

    # Members

    def _accept(self, listening: socket.socket) -> None:
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(_HELLO_SECONDS)
        line = ray_wire.Line(connection)
        try:
            hello = line.expect("hello")
            if not ray_wire.knows(self._config["token"], hello.get("token")):
                line.close()
                return
            connection.settimeout(None)
            if hello["role"] == "worker":
                rank, machine = int(hello["rank"]), str(hello["machine"])
                self._addresses[rank] = str(hello.get("address"))
                self._serve_worker(line, rank, machine)
            else:
                self._serve_submitter(line)
        except (ray_wire.Gone, KeyError, ValueError, TypeError):
            line.close()

    def _serve_worker(self, line: Line, rank: int, machine: str) -> None:
        with self._changed:
            self._workers[rank] = line
            self._waiting.setdefault(machine, []).append(rank)
            self._changed.notify_all()
        try:
            line.expect("joined")
            with self._changed:
                self._joined.add(rank)
                self._starting.pop(machine, None)
                self._changed.notify_all()
            line.receive()  # it has nothing more to say: this ends when it is gone
        except ray_wire.Gone:
            pass
        with self._changed:
            self._left.add(rank)
            if self._starting.get(machine) == rank:
                del self._starting[machine]
            self._changed.notify_all()

    def _serve_submitter(self, line: Line) -> None:
        with self._changed:
            self._submitter = line
            self._changed.notify_all()
        try:
            message = line.receive()
            if message["say"] == "run":
                self._run_beside(message["listen"])
                message = line.receive()
            if message["say"] == "ended":
                self._ended = int(message["code"])
                self._job = message.get("job")
                said = f"The driver ended with code {self._ended}"
                reporting.report("DRIVER_ENDED", said, data={"exit_code": self._ended})
                self._over.set()
                line.receive()  # it waits, too: this is when it was stopped, or is gone
        except ray_wire.Gone:
            pass
        finally:
            self._over.set()
            self._let_go.set()

    def _let_workers_in(self, node: Node) -> bool:
        """Give each worker its turn; whether all are alive in time."""
        deadline = time.monotonic() + self._config["start_seconds"]
        wanted = self._config["workers"]
        with self._changed:
            while len(self._joined) < wanted or self._submitter is None:
                self._give_turns()
                self._changed.wait(0.5)
                why = ""
                if self._left - self._joined:
                    why = f"worker {min(self._left - self._joined)} left before it joined"
                elif node.ended.is_set():
                    why = "the head's own Ray processes ended"
                elif time.monotonic() >= deadline:
                    there = len(self._joined)
                    why = f"{there} of {wanted} workers joined in {self._config['start_seconds']:g} s"
                if why and not self._stopped.is_set():
                    reporting.fail(f"RAY_CLUSTER_INCOMPLETE: {why}")
                    ray_wire.tell(f"the cluster is not complete: {why}")
                if why or self._stopped.is_set():
                    return False
        reporting.report("RAY_CLUSTER_READY", f"The head and {wanted} workers are alive")
        return True

    def _give_turns(self) -> None:
        """One start at a time on each machine: two at once race for the names of their sockets."""
        for machine, ranks in self._waiting.items():
            if ranks and machine not in self._starting:
                rank = ranks.pop(0)
                self._starting[machine] = rank
                try:
                    self._workers[rank].send("start", gcs=self._gcs)
                except ray_wire.Gone:
                    continue

    # Workers that come and go (C51)

    def _follow_load(self) -> Scaler | None:
        if self._scaling is None or self._over.is_set():
            return None
        from trainshed.jobkit.ray_scaling import Scaler  # noqa: PLC0415 - only here is it needed

        threading.Thread(target=self._tend, daemon=True).start()
        scaler = Scaler(self._config, self._gcs, self._present, self._dismiss)
        scaler.start()
        return scaler

    def _present(self) -> dict[int, str]:
        """The workers of the cluster, with their addresses."""
        with self._changed:
            there = self._joined - self._left - self._dismissed
            return {rank: self._addresses[rank] for rank in there}

    def _dismiss(self, rank: int) -> None:
        """Have a worker leave."""
        with self._changed:
            self._dismissed.add(rank)
            try:
                self._workers[rank].send("end", job=None)
            except ray_wire.Gone:
                pass

    def _too_few(self) -> str:
        assert self._scaling is not None  # noqa: S101 - as above
        return f"{len(self._present())} workers are left, fewer than the {self._scaling['least']} of the task"

    def _tend(self) -> None:
        """Let in those that come while the driver runs, and see when too few are left."""
        assert self._scaling is not None  # noqa: S101 - nobody calls it otherwise
        while not (self._over.is_set() or self._stopped.is_set()):
            with self._changed:
                self._give_turns()
                self._changed.wait(0.5)
            if len(self._present()) < self._scaling["least"] and not self._over.is_set():
                self._short.set()
                return

    # The driver

    def _tell_submitter(self, dashboard: str) -> None:
        if dashboard:
            reporting.report("DASHBOARD_READY", f"Ray's dashboard is at {dashboard}", data={"url": dashboard})
        else:
            message = (
                "The image lacks Ray's dashboard extras (pip install 'ray[default]'): no dashboard, no Job"
            )
            reporting.report("DASHBOARD_LIMITED", message, "warning")
        assert self._submitter is not None  # noqa: S101 - it was waited for
        words = [
            sys.executable,
            "-u",
            os.path.join(self._config["place"], "driver.py"),
            self._config["place"],
        ]
        try:
            self._submitter.send("ready", dashboard=dashboard, driver=words)
        except ray_wire.Gone:
            self._over.set()

    def _run_beside(self, listening: list[object]) -> None:
        """Run the driver against the cluster without a Ray Job, as Ray's own job server would."""
        config = self._config
        job = {"runtime_env": config["runtime_env"] or {}, "metadata": config["metadata"]}
        environment = {**os.environ, "RAY_ADDRESS": self._gcs, "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job)}
        script = os.path.join(config["place"], "driver.py")
        subprocess.Popen(  # noqa: S603 - our own script, which runs the user's command
            [sys.executable, "-u", script, config["place"], *map(str, listening)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    # The end

    def _retain(self, node: Node, dashboard: str) -> None:
        """Keep the cluster for those who want to look (C50)."""
        seconds = self._config["retain_seconds"]
        until = time.time() + seconds
        data = {"until": until, "exit_code": self._ended, "url": dashboard}
        reporting.report("RETAINING", f"The cluster is kept for {seconds:g} s", data=data)
        pause_until(time.monotonic() + seconds, self._stopped, self._let_go, node.ended)

    def _end(self, node: Node, *, complete: bool) -> int:
        with self._changed:
            for rank, line in self._workers.items():
                if rank not in self._left:
                    try:
                        line.send("end", job=self._job)
                    except ray_wire.Gone:
                        continue
            deadline = time.monotonic() + _WORKERS_LEAVE_SECONDS
            while len(self._left) < len(self._workers) and time.monotonic() < deadline:
                self._changed.wait(0.2)
        broke = node.ended.is_set() and not self._stopped.is_set()
        node.hand_in_logs(self._job)
        node.end()
        if self._submitter is not None:
            try:
                self._submitter.send("bye")
            except ray_wire.Gone:
                pass
        if self._ended is not None or self._stopped.is_set():
            return 0
        self._say_why(broke=broke, complete=complete)
        return 1

    def _say_why(self, *, broke: bool, complete: bool) -> None:
        """Why the cluster ended before its driver did."""
        if self._short.is_set():
            reporting.fail(f"RAY_WORKERS_LOST: {self._too_few()}")
        elif broke:
            reporting.fail("RAY_NODE_LOST: the head's own Ray processes ended")
        elif complete:
            reporting.fail("RAY_SUBMITTER_LOST: the submitter is gone")


def _answers(dashboard: str) -> bool:
    """Wait until the job server answers."""
    deadline = time.monotonic() + _DASHBOARD_SECONDS
    while time.monotonic() < deadline:
        try:
            with _DIRECT.open(f"{dashboard}/api/version", timeout=5) as answer:
                if answer.status == 200:  # noqa: PLR2004 - OK
                    return True
        except OSError:
            time.sleep(0.2)
    return False
