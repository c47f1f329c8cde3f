"""Whether docker runs images here, and why not; the rules of images are proved with each runtime."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.docker import running_docker
from trainshed.engines.local import ImageSettings, LocalEngine


def reason(path: Path) -> str | None:
    """Why an engine of its own runs no image with docker."""
    engine = LocalEngine(path, images=ImageSettings(runtime="docker"))
    try:
        return engine.images()
    finally:
        engine.close()
        engine._layout.remove_parents()


def kept(host: str) -> str:
    """Containers and images that a daemon has."""
    commands = (["ps", "--all", "--quiet"], ["images", "--all", "--quiet"])
    return "".join(
        subprocess.run(["docker", f"--host={host}", *each], capture_output=True, text=True, check=True).stdout
        for each in commands
    )


def test_a_daemon_whose_storage_keeps_no_layer_to_measure_runs_no_image(
    docker_host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del docker_host  # so that one can be started here
    with running_docker(storage="vfs") as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        said = reason(tmp_path / "engine")
        assert said is not None
        assert said.startswith("docker is installed but runs no container: ")
        assert said.endswith("what a program changes in the image's files could not be measured")
        assert kept(host) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root asks docker at all")
def test_a_daemon_that_does_not_answer_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "docker").write_text(
        "#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\n"
        "echo \"See 'docker info --help'.\" >&2\nexit 1\n"
    )
    (programs / "docker").chmod(0o755)
    monkeypatch.setattr("trainshed.engines.local.runtimes.search_path", lambda: str(programs))
    assert reason(tmp_path / "engine") == "docker does not answer: Cannot connect to the Docker daemon"
