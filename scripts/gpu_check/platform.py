"""A private Trainshed server of the check, and its command line."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CLI = "import sys; from trainshed.cli.main import main; sys.exit(main())"
START_SECONDS = 30.0
STEP_SECONDS = 60
TERMINAL = {"succeeded", "failed", "cancelled"}
PROGRAM = Path(__file__).with_name("cuda_program.py")


class CheckError(Exception):
    """A check did not see what it must see."""


class Platform:
    """The running server, used as a person would: through ``trainshed``."""

    def __init__(self, code: Path, url: str, key: str, home: Path) -> None:
        self._env = _environment(code) | {"TRAINSHED_URL": url, "TRAINSHED_API_KEY": key, "HOME": str(home)}
        self._url, self._key = url, key
        self.runner = self.cli("runner", "list")["items"][0]["selector"]

    def cli(self, *arguments: str, accept: tuple[int, ...] = (0,)) -> Any:
        """Run ``trainshed ARGUMENTS --json``; its document."""
        command = [sys.executable, "-c", CLI, *arguments, "--json"]
        done = subprocess.run(
            command, env=self._env, capture_output=True, text=True, timeout=STEP_SECONDS * 2, check=False
        )
        if done.returncode not in accept:
            raise CheckError(
                f"`trainshed {' '.join(arguments[:3])} …` exited {done.returncode}: {done.stderr[-500:]}"
            )
        return json.loads(done.stdout)

    def python(self, code: str) -> Any:
        """What a piece of Python inside Trainshed's environment prints as JSON."""
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return json.loads(done.stdout)

    def inventory(self) -> list[dict[str, Any]]:
        """The GPUs as the engine sees them through NVML."""
        return self.python(_NVML.format(call="inventory"))

    def gpu_metrics(self) -> list[dict[str, Any]]:
        """What the GPUs do now, through NVML."""
        return self.python(_NVML.format(call="metrics"))

    def submit(self, model: str, *program: str, trials: int = 1) -> str:
        """Submit Trials of the CUDA program, one GPU each; the Job's id."""
        text = PROGRAM.read_text(encoding="utf-8")
        command = (
            f"cat > program.py <<'PROGRAM'\n{text}\nPROGRAM\nexec python3 program.py {' '.join(program)}"
        )
        size = (
            "--cpu",
            "1",
            "--memory",
            "8Gi",
            "--disk",
            "2Gi",
            "--shm-size",
            "1Gi",
            "--timeout-seconds",
            "120",
        )
        gpus = ("--runner", self.runner, "--trials", str(trials), "--gpu-type", model, "--gpu", "1")
        return str(self.cli("job", "submit", *gpus, *size, "--command", command)["job_id"])

    def trials(self, job_id: str) -> list[dict[str, Any]]:
        """The Job's Trials now."""
        return list(self.cli("job", "get", job_id)["training"]["trials"])

    def ended(self, job_id: str) -> list[dict[str, Any]]:
        """The Trials once all have ended and everything they held is proved to be released."""

        def over() -> list[dict[str, Any]] | None:
            trials = self.trials(job_id)
            done = all(trial["state"] in TERMINAL and trial["cleanup_confirmed"] for trial in trials)
            return trials if done else None

        return wait(over, "the Trials' end and the proof of their release")

    def said(self, job_id: str) -> list[dict[str, Any]]:
        """The JSON lines that the Job's programs wrote, with the Trial's name."""
        return [
            json.loads(item["content"]) | {"trial": item["trial_name"]}
            for item in self.cli("job", "log", job_id)["items"]
            if item["source"] == "runtime" and item["content"].startswith("{")
        ]

    def metrics_page(self) -> str:
        """The server's Prometheus page."""
        request = urllib.request.Request(
            self._url + "/metrics", headers={"Authorization": f"Bearer {self._key}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.read().decode())


_NVML = (
    "import dataclasses, json; from trainshed.engines.local import {call};"
    "print(json.dumps([dataclasses.asdict(gpu) for gpu in {call}()]))"
)


def wait(condition: Callable[[], Any], what: str, seconds: float = STEP_SECONDS) -> Any:
    """The first truthy answer, or a `CheckError` that says what was awaited."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() >= deadline:
            raise CheckError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.2)
    return answer


def _environment(code: Path) -> dict[str, str]:
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRAINSHED_", "ENVLOOP_"))
    }
    return own | {"PYTHONPATH": str(code)}


@contextlib.contextmanager
def running(code: Path, folder: Path, simulate: str | None) -> Iterator[Platform]:
    """A server on a free loopback port with its data in ``folder``; ended whatever happens."""
    data, log = folder / "data", folder / "server.log"
    options = ["--port", "0", "--data-dir", str(data)] + (["--simulate-gpus", simulate] if simulate else [])
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-c", CLI, "serve", *options],
            env=_environment(code),
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        )
    try:
        line = server.stdout.readline() if server.stdout else ""
        if "http://" not in line:
            raise CheckError(f"the server did not start: {log.read_text(encoding='utf-8')[-2000:]}")
        key = wait(lambda: _text(data / "owner.key"), "the owner key", START_SECONDS)
        yield Platform(code, line.split()[-1], key, folder)
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(20)
        server.kill()
        server.wait()
        if server.stdout:
            server.stdout.close()


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8").strip() if path.exists() else None
