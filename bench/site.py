"""A real server process for the benchmarks, the HTTP calls they make, and the Runners they use."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")
TERMINAL = frozenset({"completed", "failed", "cancelled"})
_START_SECONDS = 30.0
_STOP_SECONDS = 20.0
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_BASH = "#!/bin/bash\n"
RUNNERS: Mapping[str, tuple[str, str]] = {
    # Says when its first line ran; nothing to collect.
    "bench/stamp": ("", _BASH + "echo $EPOCHREALTIME\n"),
    # One line of log, outputs declared and none written.
    "bench/noop": ('outputs = ["out/**"]\n', _BASH + "echo done\n"),
    # As above, with one small file to collect.
    "bench/output": (
        'outputs = ["out/**"]\n',
        _BASH + "echo done; mkdir out; echo $TRAINSHED_TRIAL_ID > out/id\n",
    ),
    # Says when its first line ran, and which inode its input has, 0 without one.
    "bench/inputs": (
        "",
        _BASH + 'echo $EPOCHREALTIME\nstat -L -c %i "$TRAINSHED_INPUTS/data/large" 2> /dev/null || echo 0\n',
    ),
    # Runs what the Job says.
    "bench/run": (
        'outputs = ["out/**"]\n[params.run_command]\n',
        _BASH + 'eval "$TRAINSHED_PARAM_RUN_COMMAND"\n',
    ),
}
"""Name -> further lines of ``[execution]`` in its definition, and its program."""
_READS = {"bench/inputs": 'abi = "envloop.job-profile/v1"\n'}


class TooSlow(Exception):
    """Something did not happen within its time; the figure cannot be told."""


def wait_for(condition: Callable[[], T | None], seconds: float, what: str, pause: float = 0.01) -> T:
    """The first truthy answer of ``condition``. Raises `TooSlow`."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TooSlow(f"waited {seconds:g} s in vain for {what}")
        time.sleep(pause)
    return answer


@dataclass(slots=True)
class Site:
    """A running server."""

    url: str
    key: str
    process: subprocess.Popen[bytes]
    data: Path
    _connection: http.client.HTTPConnection | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One request over the kept connection; the decoded answer. Raises `RuntimeError` on a refusal."""
        raw = self.fetch(method, path, None if body is None else json.dumps(body).encode())
        return json.loads(raw)

    def fetch(self, method: str, path: str, body: bytes | None = None) -> bytes:
        if self._connection is None:
            parts = urlsplit(self.url)
            self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        self._connection.request(method, path, body, self.headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status >= http.client.BAD_REQUEST:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:500]!r}")
        return content

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def submit(self, runner: str, request_id: str, trials: int = 1, **spec: Any) -> str:
        """Submit a Job of equal Trials; its id."""
        return str(self.call("POST", "/v1/jobs", submission(runner, request_id, trials, **spec))["job_id"])

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.call("GET", f"/v1/jobs/{job_id}"))

    def released(self, job_id: str, seconds: float, pause: float = 0.05) -> dict[str, Any]:
        """The Job once it ended and its whole release is confirmed."""

        def there() -> dict[str, Any] | None:
            job = self.job(job_id)
            trials = job["training"]["trials"]
            ended = job["status"] in TERMINAL and all(trial["cleanup_confirmed"] for trial in trials)
            return job if ended else None

        return wait_for(there, seconds, f"the end of {job_id}", pause)

    def last_released(self) -> None:
        """Wait until the Job that was submitted last, and so all before it, has ended and is released."""
        newest = self.call("GET", "/v1/jobs?limit=1")["items"][0]["job_id"]
        self.released(newest, 120.0, pause=0.2)

    def stop_job(self, job_id: str) -> None:
        self.call("POST", f"/v1/jobs/{job_id}/stop", {})
        self.released(job_id, 30.0)

    def environment(self) -> dict[str, str]:
        """What a command line client needs to use this server and no other."""
        own = {k: v for k, v in os.environ.items() if not k.startswith(("TRAINSHED_", "ENVLOOP_"))}
        return {
            **own,
            "TRAINSHED_URL": self.url,
            "TRAINSHED_API_KEY": self.key,
            "TRAINSHED_HOME": str(self.data.parent / "home"),
            "TRAINSHED_NO_AUTOSTART": "1",
        }

    def helpers(self) -> list[int]:
        """Process ids of the fork servers and the shims of this server's Trials."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                ours = (process / "comm").read_text().startswith("trainshed-")
                # Shims inherit the fork server's log, which lies in the server's data folder.
                if ours and (process / "fd" / "2").readlink().is_relative_to(self.data):
                    found.append(int(process.name))
        return found

    def cpu_seconds(self) -> float:
        """CPU time of the server process until now."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


@contextlib.contextmanager
def serve(place: Path, *, gpus: int = 16) -> Iterator[Site]:
    """A server with its own data folder and simulated GPUs; ended, by force if need be, on leaving."""
    data = place / "data"
    data.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "trainshed", "serve", "--port", "0", "--data-dir", str(data)]
    with (place / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--simulate-gpus", f"H100:{gpus}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={k: v for k, v in os.environ.items() if not k.startswith("TRAINSHED_")},
        )
    try:
        url = wait_for(lambda: _announced(data, process), _START_SECONDS, "the server")
        site = Site(url, (data / "owner.key").read_text().strip(), process, data)
        yield site
        site.close()
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def publish(site: Site, place: Path, *names: str) -> dict[str, str]:
    """Publish Runners of `RUNNERS`; their selectors by name."""
    return {name: _publish(site, place / "runners" / name, name) for name in names}


def submission(runner: str, request_id: str, trials: int = 1, **spec: Any) -> dict[str, Any]:
    """The document of a Job whose Trials are all the same."""
    resources = {"gpu_type": "H100", "gpus": 1, **spec.pop("resources", {})}
    one = {"spec": {"runner": runner, "resources": resources, **spec}}
    return {"type": "train", "request_id": request_id, "trials": [one] * trials}


def seconds_of(text: str) -> float:
    """An ISO 8601 time of the API as Unix seconds."""
    return datetime.fromisoformat(text).timestamp()


def _announced(data: Path, process: subprocess.Popen[bytes]) -> str:
    if process.poll() is not None:
        log = data.with_name("server.log").read_text(errors="replace")
        raise RuntimeError(f"the server ended with {process.returncode}: {log[-2000:]}")
    try:
        return str(json.loads((data / "server.json").read_text())["url"])
    except (FileNotFoundError, ValueError):
        return ""


def _publish(site: Site, folder: Path, name: str) -> str:
    execution, program = RUNNERS[name]
    folder.mkdir(parents=True)
    definition = f'{_READS.get(name, "")}[execution]\nentrypoint = "main.sh"\n{execution}'
    (folder / "runner.toml").write_text(definition)
    (folder / "main.sh").write_text(program)
    identity = {
        f"GIT_{who}_{what}": "bench@example.invalid"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    for command in (
        ["init", "--quiet", "--initial-branch=main"],
        ["add", "--all"],
        ["commit", "--quiet", "-m", "Bench"],
    ):
        subprocess.run(["git", *command], cwd=folder, env=environment, check=True, timeout=30)
    done = subprocess.run(
        [sys.executable, "-m", "trainshed", "runner", "publish", str(folder), "--name", name, "--json"],
        env=site.environment(),
        check=True,
        capture_output=True,
        timeout=60,
    )
    return str(json.loads(done.stdout)["selector"])
