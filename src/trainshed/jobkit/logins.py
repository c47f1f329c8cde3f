"""The server of logins beside a member of a gang (C39): OpenSSH, at the member's own address."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time

from trainshed.jobkit import linux
from trainshed.jobkit.neighbours import HOME, unavailable

LOG = "sshd.log"
"""File of the attempt folder: what the server said."""
_PRIVILEGES = "/run/sshd"
"""What sshd asks for; packages make it when they start their service."""
_SSHD_SECONDS = 10.0
_LOG_BYTES = 4096

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.jobkit.folder import Json


def start_sshd(path: str, logins: Json, env: dict[str, str]) -> int:
    """Serve logins beside this process; returns the server's process id once it listens.

    It ends with the shim, which is its parent. Raises `OSError` with what is missing.
    """
    program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/sbin")
    if program is None:
        raise unavailable("there is no sshd on this machine (package openssh-server)")
    if shutil.which("ssh") is None:
        raise unavailable("there is no ssh on this machine (package openssh-client)")
    os.makedirs(_PRIVILEGES, mode=0o755, exist_ok=True)
    address = (logins["address"], int(logins["port"]))
    _reserve(address)
    shim = os.getppid()
    pid = linux.fork_sibling()
    if pid == 0:
        _become_sshd(program, path, env, shim)
    handle = os.pidfd_open(pid)
    try:
        deadline = time.monotonic() + _SSHD_SECONDS
        while not _answers(address):
            if not _lives(pid) or time.monotonic() > deadline:
                raise unavailable(f"sshd does not serve {address[0]}:{address[1]}: {_last_words(path)}")
            time.sleep(0.01)
    except OSError:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        raise
    finally:
        os.close(handle)
    return pid


def _become_sshd(program: str, path: str, env: dict[str, str], shim: int) -> None:
    try:
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() == shim:
            os.setsid()
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            log = os.open(os.path.join(path, LOG), flags, 0o600)
            null = os.open(os.devnull, os.O_RDWR)
            for source, target in ((null, 0), (log, 1), (log, 2)):
                os.dup2(source, target)
            argv = [program, "-D", "-e", "-f", f"{HOME}/.ssh/sshd_config", *_session_variables(env)]
            os.execve(program, argv, env)  # noqa: S606 - found on the machine's own path
    finally:
        os._exit(127)


def _session_variables(env: dict[str, str]) -> list[str]:
    """What a login finds of the program's own variables: enough to run its tools, and our marks."""
    names = ("PATH", "LD_LIBRARY_PATH", "TRAINSHED_ATTEMPT_ID", "TRAINSHED_INSTANCE", "CUDA_VISIBLE_DEVICES")
    plain = [f'"{name}={env[name]}"' for name in names if env.get(name) and '"' not in env[name]]
    return ["-o", f"SetEnv {' '.join(plain)}"] if plain else []


def _reserve(address: tuple[str, int]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(address)
        except OSError as error:
            raise unavailable(f"port {address[1]} of {address[0]} cannot be had: {error.strerror}") from error


def _answers(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=1.0):
            return True
    except OSError:
        return False


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    except OSError:
        return False


def _last_words(path: str) -> str:
    try:
        with open(os.path.join(path, LOG), "rb") as file:
            lines = file.read(_LOG_BYTES).decode(errors="replace").splitlines()
    except OSError:
        lines = []
    return lines[-1].strip() if lines else "it said nothing"
