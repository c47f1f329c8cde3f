"""The work folder of a script Job's Attempt as a provider lays it out, and the real runner started in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainshed.jobkit import gpu_files

PREFIX = "::gpu:: "


@dataclass
class Done:
    """How a run of the runner ended, and what it printed."""

    code: int
    text: str

    @property
    def lines(self) -> list[str]:
        """What people see."""
        return [line for line in self.text.splitlines() if not line.startswith(PREFIX)]

    def wire(self, kind: str) -> list[dict[str, Any]]:
        """The lines of one kind that the server reads."""
        lines = [line[len(PREFIX) :] for line in self.text.splitlines() if line.startswith(PREFIX)]
        return [said for said in map(json.loads, lines) if said["t"] == kind]


@dataclass
class WorkFolder:
    """A work folder below ``path``."""

    path: Path
    attempt: int = 1
    python: str = sys.executable
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        for name, content in gpu_files.files().items():
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        (self.path / "code").mkdir(exist_ok=True)

    def code(self, files: dict[str, str]) -> WorkFolder:
        for name, text in files.items():
            target = self.path / "code" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        return self

    def manifest(
        self, entry: dict[str, Any], deps: dict[str, Any] | None = None, **more: object
    ) -> WorkFolder:
        document = {
            "manifest_version": 1,
            "entrypoint": {"script": None, "command": None, "args": [], "workdir": "", **entry},
            "deps": {"kind": "none", "file": None, "packages": [], "python_requires": None, **(deps or {})},
            "checkpoint_interval_min": 20,
            **more,
        }
        (self.path / "manifest.json").write_text(json.dumps(document))
        return self

    def script(self, text: str, *args: str, **more: object) -> WorkFolder:
        """A Job whose only file is ``train.py``."""
        return self.code({"train.py": text}).manifest({"script": "train.py", "args": list(args)}, **more)

    def start(self, **env: str) -> subprocess.Popen[bytes]:
        given = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.path),
            "TRAINSHED_JOB_ID": "a1b2c3d4e5f6",
            "TRAINSHED_ATTEMPT": str(self.attempt),
            "TRAINSHED_PROTOCOL": "1",
            "TRAINSHED_STOP_GRACE_S": "20",
            **self.env,
            **env,
        }
        argv = [self.python, *gpu_files.ENTRY]
        return subprocess.Popen(
            argv, cwd=self.path, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def run(self, **env: str) -> Done:
        return finish(self.start(**env))

    @property
    def record(self) -> dict[str, Any]:
        """The exit record."""
        document: dict[str, Any] = json.loads((self.path / ".gpu" / "exit.json").read_text())
        return document

    @property
    def stored(self) -> list[int]:
        """The numbers of the stored checkpoints."""
        store = self.path / "checkpoint_store"
        return (
            sorted(int(path.name) for path in store.iterdir() if path.name.isdigit())
            if store.exists()
            else []
        )

    def latest(self) -> dict[str, Any]:
        """What the pointer file says."""
        document: dict[str, Any] = json.loads((self.path / "checkpoint_store" / "latest").read_text())
        return document


def finish(process: subprocess.Popen[bytes], timeout: float = 120.0) -> Done:
    """Wait for the runner to end by itself."""
    try:
        text = process.communicate(timeout=timeout)[0]
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return Done(process.returncode, text.decode("utf-8", "replace"))
