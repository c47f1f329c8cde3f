"""The submitter of a Ray task: has the driver run as a Ray Job, and prints its output (C52).

It ends with the driver's code, after the head has ended the cluster: what members logged is then complete.
"""

from __future__ import annotations

import json
import select
import shlex
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request

from trainshed.jobkit import ray_wire, reporting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainshed.jobkit.ray_wire import Json, Line

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_OVER = {"SUCCEEDED", "FAILED", "STOPPED"}
_LOOK_SECONDS = 1.0
_HTTP_SECONDS = 30.0
_LAST_WORDS_SECONDS = 20.0
_CLUSTER_ENDS_SECONDS = 90.0
_UNKNOWN_SECONDS = 300.0
"""An answer that is missing for so long is given up on (c8)."""


class Submitter:
    """The part of the submitter."""

    def __init__(self, config: Json) -> None:
        self._config = config
        self._stopped = threading.Event()
        self._dashboard = ""
        self._driver: socket.socket | None = None

    def run(self) -> int:
        """The exit code of this member: the driver's."""
        signal.signal(signal.SIGTERM, lambda *_: self._stop())
        config = self._config
        try:
            head = ray_wire.meet_head(config)
            ready = head.expect("ready")
            if self._stopped.is_set():
                return 128 + signal.SIGTERM
            listening = ray_wire.listen(config["address"], 0)
            self._dashboard = ready["dashboard"]
            where = [*listening.getsockname()[:2]]
            if self._dashboard:
                self._submit([*ready["driver"], *map(str, where)])
            else:
                head.send("run", listen=where)
        except (ray_wire.Gone, OSError, ValueError) as error:
            reporting.fail(f"RAY_SUBMIT_FAILED: {error}")
            ray_wire.tell(f"the driver was not started: {error}")
            return 1
        code = self._follow(listening)
        self._leave(head, code)
        return code

    # Starting

    def _submit(self, words: list[str]) -> None:
        """Submit the Job. A used submission id is refused by Ray: it starts at most once (X8)."""
        config = self._config
        cluster = config["cluster"]
        runtime_env = dict(config["runtime_env"] or {})
        where = {}
        if cluster:
            # Its nodes know nothing of the task; the driver gets hidden values from the head's file.
            runtime_env["env_vars"] = {**cluster["env"], **(runtime_env.get("env_vars") or {})}
            where = {"entrypoint_resources": {f"node:{cluster['node']}": 0.001}}
        job = {
            "entrypoint": "exec " + shlex.join(words),
            "submission_id": config["submission_id"],
            "runtime_env": runtime_env,
            "metadata": config["metadata"],
        }
        self._call("POST", "/api/jobs/", job | where)

    def _call(self, method: str, path: str, body: Json | None = None) -> Any:
        """Raises `OSError` with Ray's own words, `ValueError` for an answer that is no JSON."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(  # noqa: S310 - the head's dashboard, over HTTP
            f"{self._dashboard}{path}", data, headers, method=method
        )
        try:
            with _DIRECT.open(request, timeout=_HTTP_SECONDS) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            words = error.read().decode(errors="replace").strip()
            raise OSError(f"Ray answers {error.code}: {words[-2000:]}") from error

    # While the driver runs

    def _follow(self, listening: socket.socket) -> int:
        """Print what the driver prints until it ends; its code."""
        try:
            self._driver = driver = self._await_driver(listening)
        except ray_wire.Gone as error:
            return self._without_driver(str(error))
        try:
            while True:
                kind, size = ray_wire.PIECE.unpack(ray_wire.exactly(driver, ray_wire.PIECE.size))
                piece = ray_wire.exactly(driver, size)
                if kind == ray_wire.EXIT_CODE:
                    return int(piece)
                out = sys.stdout.buffer if kind == ray_wire.STDOUT else sys.stderr.buffer
                out.write(piece)
                out.flush()
        except ray_wire.Gone:
            return self._without_driver("the driver's process vanished", _LAST_WORDS_SECONDS)

    def _await_driver(self, listening: socket.socket) -> socket.socket:
        """The connection of the driver, which may take long: its environment is made first. Raises `Gone`."""
        unknown_since: float | None = None
        while True:
            if select.select([listening], [], [], _LOOK_SECONDS)[0]:
                connection, _ = listening.accept()
                given = ray_wire.exactly(connection, 128).decode(errors="replace").rstrip()
                if ray_wire.knows(self._config["token"], given):
                    return connection
                connection.close()
            if self._stopped.is_set() and not self._dashboard:
                raise ray_wire.Gone("it was stopped before the driver ran")
            if not self._dashboard:
                continue
            job = self._job()
            if job is None:
                unknown_since = unknown_since or time.monotonic()
                if time.monotonic() - unknown_since > _UNKNOWN_SECONDS:
                    raise ray_wire.Gone("Ray's job server does not answer")
            elif job.get("status") in _OVER:
                raise ray_wire.Gone("the Job ended before the driver ran")
            else:
                unknown_since = None

    def _job(self) -> Json | None:
        try:
            job: Json = self._call("GET", f"/api/jobs/{self._config['submission_id']}")
        except (OSError, ValueError):
            return None
        return job

    def _without_driver(self, why: str, seconds: float = 0.0) -> int:
        """The code of a driver that did not say how it ended, by what Ray knows of the Job."""
        deadline = time.monotonic() + seconds
        job = self._job() if self._dashboard else None
        while self._dashboard and (job or {}).get("status") not in _OVER and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            job = self._job()
        words = str((job or {}).get("message") or "").strip()
        reporting.fail(f"RAY_DRIVER_LOST: {why}{': ' + words if words else ''}")
        ray_wire.tell(f"{why}{': ' + words if words else ''}")
        if self._stopped.is_set():
            return 128 + signal.SIGTERM
        code = (job or {}).get("driver_exit_code")
        if isinstance(code, int) and code:
            return 128 - code if code < 0 else min(code, 255)
        return 1

    def _stop(self) -> None:
        """Ask the driver to end; Ray kills it after the grace."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        threading.Thread(target=self._stop_job, daemon=True).start()

    def _stop_job(self) -> None:
        if self._dashboard:
            try:
                self._call("POST", f"/api/jobs/{self._config['submission_id']}/stop", {})
            except (OSError, ValueError) as error:
                ray_wire.tell(f"the Job cannot be stopped through Ray: {error}")
        if self._driver is not None:
            try:
                self._driver.sendall(b"!")
            except OSError:
                pass  # it ended

    # The end

    def _leave(self, head: Line, code: int) -> None:
        """Have the head end the cluster; with debug retention that is when it is over (C50)."""
        try:
            head.send("ended", code=code, job=(self._job() or {}).get("job_id") if self._dashboard else None)
        except ray_wire.Gone:
            return
        over = threading.Event()
        threading.Thread(target=_await_bye, args=(head, over), daemon=True).start()
        patience = self._config["retain_seconds"] + _CLUSTER_ENDS_SECONDS
        told = False
        deadline = time.monotonic() + patience
        while not over.wait(0.2):
            if time.monotonic() >= deadline:
                ray_wire.tell("the head does not end the cluster")
                return
            if self._stopped.is_set() and not told:
                told, deadline = True, time.monotonic() + _CLUSTER_ENDS_SECONDS
                try:
                    head.send("end")
                except ray_wire.Gone:
                    return


def _await_bye(head: Line, over: threading.Event) -> None:
    try:
        head.expect("bye")
        head.receive()  # nothing comes any more: this is when its process has ended
    except ray_wire.Gone:
        pass
    over.set()
