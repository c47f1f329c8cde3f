"""Whether docker runs images here, and why not; the rules of images are proved with each runtime."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.docker import running_docker
from trainshed.cli import doctor
from trainshed.engines.local import ImageSettings, LocalEngine

BROKEN = "podman is installed but runs no container (podman made no container: it is broken)"


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


def test_docker_runs_images_where_podman_is_broken_and_it_is_said_why(
    docker_host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del docker_host  # the environment names it
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "podman").write_text("#!/bin/sh\necho 'Error: it is broken' >&2\nexit 125\n")
    (programs / "podman").chmod(0o755)
    docker = shutil.which("docker")
    assert docker
    (programs / "docker").symlink_to(docker)
    monkeypatch.setattr("trainshed.engines.local.runtimes.search_path", lambda: str(programs))
    engine = LocalEngine(tmp_path / "engine")
    facts = engine.image_facts()
    engine.close()
    assert facts["images"] is None
    assert str(facts["image_runtime"]).startswith("docker ")
    assert facts["image_runtime_note"] == BROKEN
    shown = doctor._images(facts)
    assert (shown.state, shown.found) == (
        doctor.OK,
        f"run by {facts['image_runtime']}; {facts['image_runtime_note']}",
    )
    only = LocalEngine(tmp_path / "engine", images=ImageSettings(runtime="podman"))
    assert only.images() == BROKEN
    only.close()
    (programs / "docker").unlink()
    (programs / "docker").write_text("#!/bin/sh\necho 'no daemon' >&2\nexit 1\n")
    (programs / "docker").chmod(0o755)
    neither = LocalEngine(tmp_path / "engine")
    reason = str(neither.images())
    neither.close()
    neither._layout.remove_parents()
    assert reason.startswith("podman is installed but runs no container (")
    assert reason.endswith("; docker does not answer: no daemon")
