"""Identifiers: ULIDs with a prefix that says what they name.

``job_`` + 26 Crockford base-32 characters is the form that older published clients demand (contract E
b3). Ids made by one `IdFactory` sort in the order of creation, so that newest-first lists page by id.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
JOB_ID = re.compile(r"job_[0-7][0-9A-HJKMNP-TV-Z]{25}")
_RANDOM_BITS = 80
_TEXT_LENGTH = 26


def encode_ulid(milliseconds: int, randomness: int) -> str:
    """The 26-character text of a ULID: 48 bits of time, 80 bits of randomness."""
    number = (milliseconds << _RANDOM_BITS) | randomness
    digits = []
    for _ in range(_TEXT_LENGTH):
        digits.append(ALPHABET[number & 31])
        number >>= 5
    return "".join(reversed(digits))


class IdFactory:
    """Makes ids; clock (Unix seconds) and randomness (n bits) are injected for tests. Thread-safe."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self._clock = clock
        self._random_bits = random_bits
        self._lock = threading.Lock()
        self._last = (0, 0)

    def ulid(self) -> str:
        """A ULID greater than every one this factory made before, also within a millisecond."""
        with self._lock:
            now = int(self._clock() * 1000)
            milliseconds, randomness = self._last
            if now > milliseconds:
                self._last = (now, self._random_bits(_RANDOM_BITS - 1))
            else:
                self._last = (milliseconds, randomness + 1)
            return encode_ulid(*self._last)

    def job(self) -> str:
        return f"job_{self.ulid()}"

    def trial(self) -> str:
        return f"trial_{self.ulid()}"

    def attempt(self) -> str:
        return f"att_{self.ulid()}"

    def allocation(self) -> str:
        return f"alloc_{self.ulid()}"

    def artifact(self) -> str:
        return f"art_{self.ulid()}"

    def checkpoint(self) -> str:
        return f"ckpt_{self.ulid()}"

    def operation(self) -> str:
        return f"op_{self.ulid()}"

    def key(self) -> str:
        return f"key_{self.ulid()}"
