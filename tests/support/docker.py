"""A private docker daemon: its own folder and socket, no bridge, no rule of any firewall."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from support.waiting import wait_until
from trainshed.jobkit import linux, mounts


def why_no_docker() -> str | None:
    """Why no daemon can be started here, or ``None``."""
    missing = [name for name in ("dockerd", "containerd", "runc", "docker") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    return None if os.geteuid() == 0 else "only root can start a docker daemon"


@contextlib.contextmanager
def running_docker(folder: Path) -> Iterator[str]:
    """Start a daemon below ``folder``; yields what ``DOCKER_HOST`` has to be."""
    socket = folder / "docker.sock"
    places = {"--data-root": "data", "--exec-root": "exec", "--pidfile": "pid"}
    command = ["dockerd", "--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"]
    command += [f"{option}={folder / name}" for option, name in places.items()]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen([*command, f"--host=unix://{socket}"], stdout=log, stderr=log)
    try:
        wait_until(lambda: _answers(socket) or daemon.poll() is not None, 60, "the docker daemon")
        assert daemon.poll() is None, (folder / "log").read_text()
        yield f"unix://{socket}"
    finally:
        daemon.terminate()
        try:
            daemon.wait(timeout=30)
        finally:
            daemon.kill()
            daemon.wait()
            # It leaves its network namespace behind.
            for place in reversed(mounts.mounted_below(str(folder))):
                linux.unmount(place)


def _answers(socket: Path) -> bool:
    done = subprocess.run(
        ["docker", "--host", f"unix://{socket}", "info"], check=False, capture_output=True, timeout=30
    )
    return done.returncode == 0
