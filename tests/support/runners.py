"""Runners for the tests: small git repositories and how they are published."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.server import ServerProcess

_IDENTITY = {
    "GIT_AUTHOR_NAME": "Test",
    "GIT_AUTHOR_EMAIL": "test@example.invalid",
    "GIT_COMMITTER_NAME": "Test",
    "GIT_COMMITTER_EMAIL": "test@example.invalid",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def git(folder: Path, *arguments: str) -> str:
    """Run git in ``folder`` without this machine's configuration; its output."""
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **_IDENTITY},
    )
    return done.stdout.strip()


def repository(folder: Path, files: Mapping[str, str | bytes], *, branch: str = "main") -> str:
    """Write ``files`` into the git repository ``folder`` (made if needed), commit; the full commit."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / ".git").exists():
        git(folder, "init", "--quiet", f"--initial-branch={branch}")
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "A Revision")
    return git(folder, "rev-parse", "HEAD")


def definition(
    entrypoint: str = "main.sh",
    *,
    outputs: tuple[str, ...] = (),
    params: tuple[str, ...] = (),
    resources: Mapping[str, Any] | None = None,
    timeout_seconds: int | None = None,
    image: str | None = None,
    tables: str = "",
) -> str:
    """The text of a ``runner.toml``; ``tables`` ends it."""
    lines = [] if image is None else [f'image = "{image}"']
    lines += ["[execution]", f'entrypoint = "{entrypoint}"', f"outputs = {json.dumps(list(outputs))}"]
    if timeout_seconds is not None:
        lines.append(f"timeout_seconds = {timeout_seconds}")
    lines.append("[resources]")
    lines += [f"{key} = {json.dumps(value)}" for key, value in (resources or {"gpus": 1}).items()]
    for name in params:
        lines.append(f"[params.{name}]")
    return "\n".join([*lines, tables]) + "\n"


def trainshed(
    server: ServerProcess, *arguments: str, check: bool = True, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run our own command line against ``server``."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("TRAINSHED_", "ENVLOOP_"))}
    done = subprocess.run(
        [sys.executable, "-m", "trainshed", *arguments],
        input=text,
        capture_output=True,
        text=True,
        env={**own, **server.environment},
        check=False,
        timeout=120,
    )
    assert not check or done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def publish(server: ServerProcess, folder: Path, name: str, *options: str) -> dict[str, Any]:
    """Publish the checked-out commit of ``folder`` as the Runner ``name``; what the command answered."""
    return dict(
        json.loads(
            trainshed(server, "runner", "publish", str(folder), "--name", name, *options, "--json").stdout
        )
    )
