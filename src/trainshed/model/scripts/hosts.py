"""Naming the machine that a project's folder is on, so that a server knows whether it is its own."""

from __future__ import annotations

import hashlib

MACHINE_IDS = ("/etc/machine-id", "/var/lib/dbus/machine-id")
"""Where a machine's id stands; the first one that holds something counts."""


def host_of(machine_id: bytes) -> str:
    """The name for a machine id: a hash of it, as the id itself is nobody else's business; empty for none."""
    found = machine_id.strip()
    return hashlib.sha256(b"trainshed host\0" + found).hexdigest()[:32] if found else ""
