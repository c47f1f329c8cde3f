"""What an Attempt keeps to itself: keys for passwordless login (C39) and a token, the same after a restart.

They lie in a folder of the Attempt that only this server's user may read, and go with its release.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from trainshed.engines.contract import Ssh

_FILE = "keys.json"
_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Keys:
    """See the module's description."""

    token: str
    ssh: Ssh | None


class AttemptFolders:
    """One folder an Attempt below ``root``. Thread-safe for different Attempts."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def of(self, attempt_id: str) -> Path:
        return self._root / attempt_id

    def keys(self, attempt_id: str, members: int, *, ssh: bool) -> Keys:
        """The keys of an Attempt, made at the first call and durable before they are answered."""
        folder = self.of(attempt_id)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = folder / _FILE
        if place.exists():
            return _read(place.read_text(encoding="ascii"))
        made = Keys(secrets.token_urlsafe(_TOKEN_BYTES), _make_ssh(members) if ssh else None)
        _write(place, json.dumps({"token": made.token, "ssh": asdict(made.ssh) if made.ssh else None}))
        return made

    def remove(self, attempt_id: str) -> None:
        """Delete everything of an Attempt; repeatable."""
        shutil.rmtree(self.of(attempt_id), ignore_errors=True)


def _read(text: str) -> Keys:
    said = json.loads(text)
    known = said["ssh"]
    if known is None:
        return Keys(said["token"], None)
    lists = {key: tuple(known[key]) for key in ("host_private_keys", "host_public_keys")}
    return Keys(said["token"], Ssh(**{**known, **lists}))


def _write(place: Path, text: str) -> None:
    fresh = place.with_name(f".{place.name}.new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(place)
    above = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(above)
    finally:
        os.close(above)


def _make_ssh(members: int) -> Ssh:
    private, public = _pair()
    hosts = [_pair() for _ in range(members)]
    return Ssh(private, public, tuple(each[0] for each in hosts), tuple(each[1] for each in hosts))


def _pair() -> tuple[str, str]:
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - 7 MB; most tasks log in nowhere
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - as above
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private.decode(), public.decode()
