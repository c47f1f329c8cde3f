"""A real server process for the tests, with its own data folder and port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.http import Http
from support.waiting import wait_until
from support.warm import WarmProcess, can_be_warm
from support.warm import start as start_warm

TERMINAL_JOB = frozenset({"completed", "failed", "cancelled"})
_START_SECONDS = 60.0
_STOP_SECONDS = 30.0


class ServerProcess:
    """``trainshed serve`` on a free loopback port, with simulated GPUs.

    It is found by what it announces in its data folder, as every local client finds it. ``stop`` ends it
    with SIGTERM, ``kill`` with SIGKILL; after either, ``start`` starts it again on the same data. It is
    forked from what is loaded already (see `support.warm`), unless ``warm`` is false.
    """

    def __init__(
        self,
        data: Path,
        *,
        gpus: str = "H100:8",
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        warm: bool = True,
    ) -> None:
        self.data = data
        self.log = data.with_name(data.name + ".log")
        self._options = ["--simulate-gpus", gpus, *options] if gpus else list(options)
        self._environment = dict(environment or {})
        self._warm = warm
        self._process: subprocess.Popen[bytes] | WarmProcess | None = None
        self.url = ""

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def key(self) -> str:
        """The owner key that the server wrote at its first start."""
        return (self.data / "owner.key").read_text().strip()

    @property
    def environment(self) -> dict[str, str]:
        """What a client process needs to talk to this server and to nothing else of this machine."""
        return {
            "TRAINSHED_URL": self.url,
            "TRAINSHED_API_KEY": self.key,
            "TRAINSHED_HOME": str(self.data.with_name(self.data.name + "-home")),
            "TRAINSHED_NO_AUTOSTART": "1",
        }

    def http(self, key: str | None = None) -> Http:
        return Http(self.url, self.key if key is None else key)

    def start(self, extra: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> ServerProcess:
        """Start it and wait until it answers; fails with the end of its log."""
        assert not self.running, "the server runs already"
        self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.data / "server.json").unlink(missing_ok=True)
        own = {name: value for name, value in os.environ.items() if not name.startswith("TRAINSHED_")}
        own |= {"TRAINSHED_TEST_SERVER": str(self.data), **self._environment, **(environment or {})}
        command = self.command(*extra)
        if self._warm and can_be_warm(command, own):
            self._process = start_warm(command[3:], environment=own, cwd=self.data.parent, log=self.log)
        else:
            self._process = self._start_cold(command, own)
        self.url = wait_until(self._announced, _START_SECONDS, f"the server to answer; see {self.log}")
        return self

    def _start_cold(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data.parent,
                env=environment,
                start_new_session=True,
            )

    def command(self, *extra: str) -> list[str]:
        """How this server is started."""
        program = [sys.executable, "-m", "trainshed", "serve"]
        place = ["--host", "127.0.0.1", "--port", "0", "--data-dir", str(self.data)]
        return [*program, *place, *self._options, *extra]

    def stop(self) -> int:
        """End it in an orderly way and answer its exit status."""
        assert self._process is not None
        if self.running:
            self._process.send_signal(signal.SIGTERM)
        return self.wait(_STOP_SECONDS)

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self._process is not None
        self._process.kill()
        self.wait(_STOP_SECONDS)

    def wait(self, timeout: float) -> int:
        """Wait until it has ended by itself; kills it and fails after ``timeout`` seconds."""
        assert self._process is not None
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"the server did not end within {timeout:g} s:\n{self.tail()}") from None

    def tail(self, characters: int = 4000) -> str:
        """The end of its log, for failures."""
        return self.log.read_text(errors="replace")[-characters:] if self.log.exists() else ""

    def _announced(self) -> str:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the server ended with {self._process.returncode}:\n{self.tail()}")
        try:
            found = json.loads((self.data / "server.json").read_text())
        except (FileNotFoundError, ValueError):
            return ""
        return str(found["url"]) if found["pid"] == self._process.pid else ""

    # What nearly every test over HTTP does.

    def submit(self, document: Mapping[str, Any]) -> str:
        """Submit a Job that must be accepted; its id."""
        answer = self.http().post("/v1/jobs", {"type": "train", **document})
        assert answer.status in {200, 201}, answer.body
        return str(answer.json["job_id"])

    def job(self, job_id: str) -> dict[str, Any]:
        answer = self.http().get(f"/v1/jobs/{job_id}")
        assert answer.status == 200, answer.body
        return dict(answer.json)

    def wait_for_job(
        self, job_id: str, statuses: Iterable[str] = TERMINAL_JOB, timeout: float = 60.0
    ) -> dict[str, Any]:
        """The Job once its status is one of these."""
        wanted = frozenset(statuses)

        def there() -> dict[str, Any] | None:
            job = self.job(job_id)
            return job if job["status"] in wanted else None

        return wait_until(there, timeout, f"{job_id} to be {' or '.join(sorted(wanted))}")

    def wait_for_release(self, job_id: str, timeout: float = 60.0) -> list[dict[str, Any]]:
        """The Job's Trials once everything they held is confirmed as released (E68)."""

        def released() -> list[dict[str, Any]]:
            trials = self.job(job_id)["training"]["trials"]
            return trials if all(trial["cleanup_confirmed"] for trial in trials) else []

        return wait_until(released, timeout, f"{job_id} to be released")

    def log_records(
        self, job_id: str, source: str = "runtime", timeout: float = 60.0
    ) -> list[dict[str, Any]]:
        """Every record of a Job's log, read to its end (E71)."""
        records: list[dict[str, Any]] = []
        cursor, deadline = "", time.monotonic() + timeout
        while time.monotonic() < deadline:
            query = f"?source={source}&limit=1000" + (f"&cursor={cursor}" if cursor else "")
            answer = self.http().get(f"/v1/jobs/{job_id}/logs{query}")
            assert answer.status == 200, answer.body
            page = answer.json
            records += page["items"]
            if page["eof"] and not page["has_more"]:
                return records
            cursor = page["next_cursor"] or cursor
        raise AssertionError(f"no end of the log of {job_id} within {timeout:g} s")
