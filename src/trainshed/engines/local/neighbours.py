"""What a member of a gang is told of the others: host names, host files, and keys for logins (C39, C41)."""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainshed.engines.contract import Gang, Launch, Meeting, Ssh
from trainshed.jobkit import neighbours

_MACHINE_HOSTS = Path("/etc/hosts")


def files(gang: Gang) -> dict[str, str]:
    """The texts of files that lie in the attempt folder, by name."""
    hosts = gang.meeting.hosts if gang.host is None else (*gang.meeting.hosts, gang.host)
    named = [host for host in hosts if host.name != host.address]
    own = ""
    with suppress(OSError, UnicodeDecodeError):
        own = _MACHINE_HOSTS.read_text(encoding="utf-8").rstrip("\n") + "\n"
    return {
        neighbours.HOSTS: own + "".join(f"{host.address}\t{host.name}\n" for host in named),
        neighbours.HOSTFILE: "".join(f"{host.address} slots={host.slots}\n" for host in hosts),
        neighbours.HOSTFILE_NAMES: "".join(f"{host.name} slots={host.slots}\n" for host in hosts),
    }


def logins(launch: Launch) -> dict[str, Any] | None:
    """What logins need besides keys that are secret, in the form in which a launch hands it to the shim."""
    gang, ssh = launch.gang, launch.ssh
    if gang is None or ssh is None:
        return None
    me = gang.meeting.hosts[gang.rank]
    return {
        "address": me.address,
        "port": ssh.port,
        "files": {
            "config": _client_config(gang.meeting, ssh.port),
            "known_hosts": _known_hosts(gang.meeting, ssh),
            "authorized_keys": ssh.public_key.strip() + "\n",
            "id_ed25519.pub": ssh.public_key.strip() + "\n",
            "sshd_config": _server_config(me.address, ssh.port),
        },
    }


def keys(launch: Launch) -> dict[str, str]:
    """The files that nobody else may read."""
    if launch.gang is None or launch.ssh is None:
        return {}
    own = launch.ssh.host_private_keys[launch.gang.rank]
    return {"id_ed25519": launch.ssh.private_key.strip() + "\n", "host_key": own.strip() + "\n"}


def why_no_logins(*, apart: str, may_mount: bool) -> str:
    """What is missing for logins here; empty if nothing is. ``apart``: what keeps programs apart, if so."""
    if apart:
        return f"programs run apart from the machine ({apart}), without the rights of a server of logins"
    if os.geteuid() != 0:
        return "the server does not run as root"
    if not may_mount:
        return "the server may not mount (it lacks CAP_SYS_ADMIN), so keys would be seen by other tasks"
    if pwd.getpwuid(0).pw_dir != neighbours.HOME:
        return f"root's home is not {neighbours.HOME} on this machine"
    return ""


def _client_config(meeting: Meeting, port: int) -> str:
    blocks = []
    for host in meeting.hosts:
        names = dict.fromkeys((host.name, host.address))
        blocks.append(
            f"Host {' '.join(names)}\n"
            f"  HostName {host.address}\n"
            f"  HostKeyAlias {host.name}\n"
            f"  Port {port}\n"
            "  User root\n"
            f"  IdentityFile {neighbours.HOME}/.ssh/id_ed25519\n"
            "  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {neighbours.HOME}/.ssh/known_hosts\n"
        )
    return "\n".join(blocks)


def _known_hosts(meeting: Meeting, ssh: Ssh) -> str:
    lines = []
    for host, key in zip(meeting.hosts, ssh.host_public_keys, strict=True):
        names = dict.fromkeys((host.name, f"[{host.name}]:{ssh.port}", f"[{host.address}]:{ssh.port}"))
        kind, text = key.split()[:2]
        lines.append(f"{','.join(names)} {kind} {text}\n")
    return "".join(lines)


def _server_config(address: str, port: int) -> str:
    place = f"{neighbours.HOME}/.ssh"
    return (
        f"ListenAddress {address}:{port}\n"
        f"HostKey {place}/host_key\n"
        f"AuthorizedKeysFile {place}/authorized_keys\n"
        # The keys lie in memory of this task's own; whose folders lead there does not matter.
        "StrictModes no\n"
        "PidFile none\n"
        "AuthenticationMethods publickey\n"
        "PasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\n"
        "PermitRootLogin prohibit-password\n"
        "UsePAM no\n"
        "PrintMotd no\n"
        "LogLevel ERROR\n"
        "MaxStartups 100\n"
        "MaxSessions 1000\n"
        "Subsystem sftp internal-sftp\n"
    )
