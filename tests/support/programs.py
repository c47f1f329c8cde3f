"""Jobs that run a shell command through the shipped Runner ``envloop/bash``, on a real server."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from support.http import Http
from support.server import ServerProcess

BASH = "envloop/bash@main"


def bash(command: str | None, request_id: str, *, trials: int = 1, **spec: Any) -> dict[str, Any]:
    """A submission of equal Trials, each running ``command``; files below ``outputs/`` become artifacts."""
    one = {"runner": BASH, **({} if command is None else {"command": command}), **spec}
    return {
        "type": "train",
        "request_id": request_id,
        "trials": [{"name": f"t{number}", "spec": one} for number in range(trials)],
    }


def leaving_a_mark(place: Path, command: str = "true") -> str:
    """``command``, after a line in ``place`` that says which Trial started."""
    return f'echo "$TRAINSHED_TRIAL_ID" >> {shlex.quote(str(place))}; {command}'


def marks(place: Path) -> list[str]:
    """Which Trials started, once for each start."""
    return place.read_text().split() if place.exists() else []


def artifact_names(server: ServerProcess, trial_id: str) -> list[str]:
    answer = server.http().get(f"/v1/trials/{trial_id}/artifacts")
    assert answer.status == 200, answer.body
    return sorted(item["name"] for item in answer.json["items"] if item["upload_state"] == "uploaded")


def new_project(server: ServerProcess, project_id: str, **limits: Any) -> Http:
    """Make a project with these limits, and answer as its developer."""
    owner = server.http()
    made = owner.post("/v1/admin/projects", {"project_id": project_id, **limits})
    assert made.status == 201, made.body
    key = owner.post(f"/v1/admin/projects/{project_id}/keys", {"label": "developer", "role": "developer"})
    assert key.status == 201, key.body
    return server.http(key.json["key"])
