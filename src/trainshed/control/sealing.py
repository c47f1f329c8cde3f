"""Hidden values at rest: encrypted with a key that is not in the database (promise P9)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

_KEY_BYTES = 32


class SealBroken(Exception):
    """What was sealed cannot be opened: another key sealed it, or its bytes changed."""


class Seal:
    """Encrypts and authenticates small mappings of names to hidden values (Fernet).

    The first key seals; the others only open, so that a key can be replaced.
    """

    def __init__(self, *keys: str) -> None:
        if not keys:
            raise ValueError("a seal needs a key")
        for key in keys:
            _check(key)
        self._keys = keys
        self.fingerprint = hashlib.sha256(b"trainshed seal " + keys[0].encode()).hexdigest()[:16]
        """Says which key seals, and nothing about it."""
        self.digest_key = hashlib.sha256(b"trainshed digests " + keys[-1].encode()).digest()
        """For keyed digests of hidden values. Of the oldest key: a new one must not change digests."""

    @cached_property
    def _fernet(self) -> MultiFernet:
        from cryptography.fernet import Fernet, MultiFernet  # noqa: PLC0415 - 7 MB that many servers never need

        return MultiFernet([Fernet(key) for key in self._keys])

    def seal(self, values: Mapping[str, str]) -> str | None:
        """The sealed text; ``None`` where there is nothing to hide."""
        if not values:
            return None
        return self._fernet.encrypt(json.dumps(dict(values), sort_keys=True).encode()).decode()

    def open(self, sealed: str | None) -> dict[str, str]:
        """What `seal` was given. Raises `SealBroken`."""
        if sealed is None:
            return {}
        from cryptography.fernet import InvalidToken  # noqa: PLC0415 - as above

        try:
            return dict(json.loads(self._fernet.decrypt(sealed.encode())))
        except InvalidToken:
            raise SealBroken("a hidden value was sealed with another key than this server's") from None


def read_or_create_keys(path: Path) -> tuple[str, ...]:
    """The keys in ``path``, one a line, the newest first; a file with one is made (0600) where there is none.

    Raises `ValueError` for a file that holds something else, `OSError` where it cannot be read or made.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        keys = tuple(path.read_text(encoding="ascii").split())
        if keys:
            for key in keys:
                _check(key)
            return keys
        # A crash came between creating the file and writing it; nothing was sealed yet.
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW)
    key = base64.urlsafe_b64encode(secrets.token_bytes(_KEY_BYTES)).decode()
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(key + "\n")
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return (key,)


def _check(key: str) -> None:
    """Raises `ValueError` for what is no Fernet key."""
    try:
        right = len(base64.urlsafe_b64decode(key)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        right = False
    if not right:
        raise ValueError(f"a key is {_KEY_BYTES} bytes in base64 (with - and _), one on a line")
