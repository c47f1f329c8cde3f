"""A private docker daemon: its own folder, socket and settings, no bridge, no rule of any firewall."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.processes import all_pids, command_of
from support.waiting import wait_until
from trainshed.jobkit import linux, mounts, procs

PROGRAMS = ("docker", "dockerd", "containerd", "runc")
_REFUSED = re.compile(
    r"operation not permitted|permission denied|driver not supported|read-only file system"
    r"|cgroups?.{0,40}(not |isn't )mounted",
    re.IGNORECASE,
)
"""What a daemon says where a right or a part of the kernel is missing, which no test can mend."""
_START_SECONDS, _END_SECONDS = 60.0, 30.0


class DockerRefused(Exception):
    """Why this machine lets no docker daemon run containers."""


def missing_docker() -> list[str]:
    """Which programs `scripts/install-containers` would have to install."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


@contextlib.contextmanager
def running_docker(storage: str = "overlay2", **settings: Any) -> Iterator[str]:
    """Start a daemon that has run a container; yields what ``DOCKER_HOST`` has to be.

    ``settings`` are those of its file, ``daemon.json``.

    What programs change in an image is measured in its layer, which only overlay keeps apart.
    Nothing of it is left afterwards, however it ended. Raises `DockerRefused` if the machine refuses what it
    needs, `AssertionError` if it fails by itself.
    """
    if os.geteuid() != 0:
        raise DockerRefused("only root can start a docker daemon")
    # A short path: sockets lie below it.
    folder = Path(tempfile.mkdtemp(prefix="trainshed-docker-"))
    (folder / "settings").write_text(json.dumps(settings))
    try:
        with (folder / "log").open("wb") as log:
            daemon = subprocess.Popen(
                _command(folder, storage), stdout=log, stderr=log, env=_environment(folder)
            )
        try:
            wait_until(lambda: _answers(folder) or daemon.poll() is not None, _START_SECONDS, "dockerd")
            if daemon.poll() is not None:
                _fail((folder / "log").read_text(errors="replace"))
            _try(folder)
            yield _host(folder)
        finally:
            _end(daemon, folder)
    finally:
        shutil.rmtree(folder)


def downloads_of(host: str) -> Path:
    """Where the daemon keeps what a pull has brought and it has not yet unpacked."""
    return Path(host.removeprefix("unix://")).parent / "data" / "tmp"


def _command(folder: Path, storage: str) -> list[str]:
    places = {"--data-root": "data", "--exec-root": "exec", "--pidfile": "pid", "--config-file": "settings"}
    prefix = ["setpriv", "--pdeathsig=TERM"] if shutil.which("setpriv") else []
    own = [f"{option}={folder / name}" for option, name in places.items()]
    # A machine's own containerd is used where there is one: under names of ours.
    space = re.sub("[^a-z0-9]", "0", folder.name)
    own += [f"--containerd-namespace={space}", f"--containerd-plugins-namespace={space}-plugins"]
    own += ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"]
    own += [f"--storage-driver={storage}", "--exec-opt=native.cgroupdriver=cgroupfs", "--log-level=warn"]
    return [*prefix, "dockerd", *own, f"--host={_host(folder)}", "--shutdown-timeout=5"]


def _environment(folder: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(folder)}


def _host(folder: Path) -> str:
    return f"unix://{folder / 'socket'}"


def _answers(folder: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asking, contextlib.suppress(OSError):
        asking.settimeout(10)
        asking.connect(str(folder / "socket"))
        asking.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
        return b" 200 " in asking.recv(256)
    return False


def _try(folder: Path) -> None:
    """Run a container of nothing but busybox, as what an engine cannot do is for its own tests to say."""
    program = shutil.which("busybox")
    assert program, "run scripts/install-containers"
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(program, "busybox")
    docker = ["docker", f"--host={_host(folder)}"]
    run = ["run", "--rm", "--network=none", "try", "/busybox", "true"]
    for arguments, given in ((["import", "-", "try"], archive.getvalue()), (run, b""), (["rmi", "try"], b"")):
        done = subprocess.run(
            [*docker, *arguments], input=given, capture_output=True, check=False, env=_environment(folder)
        )
        if done.returncode != 0:
            _fail(done.stderr.decode(errors="replace"))


def _fail(said: str) -> None:
    line = next(reversed(said.strip().splitlines()), "not a word")
    if _REFUSED.search(line):
        raise DockerRefused(f"docker runs no containers here: {line}")
    raise AssertionError(f"docker fails: {said}")


def _end(daemon: subprocess.Popen[bytes], folder: Path) -> None:
    daemon.terminate()
    try:
        daemon.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
    # A daemon that ended well has ended its containerd, and that every container with its monitor.
    left = _left(folder)
    for pid in left:
        for each in (*procs.descendants(pid), pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
    wait_until(lambda: not _left(folder), _END_SECONDS, "the end of what docker left")
    # It leaves its network namespace behind.
    for place in reversed(mounts.mounted_below(str(folder))):
        linux.unmount(place)


def _left(folder: Path) -> list[int]:
    """Processes that name the daemon's folder: itself, containerd, the monitors of containers."""
    return [pid for pid in all_pids() if str(folder) in command_of(pid)]
