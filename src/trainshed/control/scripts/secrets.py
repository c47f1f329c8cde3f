"""Secrets that people keep for their Jobs: sealed, listed by name, opened for Jobs that may have them (h)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trainshed.control.scripts.callers import Caller
from trainshed.control.sealing import Seal
from trainshed.model.errors import Refusal
from trainshed.model.scripts.secret_names import SECRET_NAME, reserved
from trainshed.store import user_secrets
from trainshed.store.database import Connection, Database
from trainshed.store.script_records import Script, UserSecret

MAX_CHARS, MAX_SECRETS = 65_536, 200
_VALUE = "value"


class SecretKeeper:
    """Keeps the secrets of people. Thread-safe. No message and no row holds a value (P9)."""

    def __init__(self, database: Database, seal: Seal, clock: Callable[[], float]) -> None:
        self._database = database
        self._seal = seal
        self._clock = clock

    def put(self, caller: Caller, name: str, value: object) -> UserSecret:
        """Keep a value under a name. Raises `Refusal` ``INVALID_REQUEST``, ``FORBIDDEN``."""
        _refuse_agent(caller)
        _check(name, value)
        sealed = self._seal.seal({_VALUE: str(value)})
        assert sealed is not None  # noqa: S101 - something was sealed
        row = UserSecret(caller.project_id, caller.person, name, sealed, self._clock())

        def store(connection: Connection) -> None:
            there = user_secrets.names(connection, caller.project_id, caller.person)
            if len(there) >= MAX_SECRETS and name not in {each.name for each in there}:
                said = f"you keep {len(there)} secrets in this project; at most {MAX_SECRETS}"
                raise Refusal.of("INVALID_REQUEST", said, path="name", hint="Remove one that nobody needs.")
            user_secrets.put(connection, row)

        self._database.write(store)
        return row

    def remove(self, caller: Caller, name: str) -> None:
        """Forget a secret. Raises `Refusal` ``SECRET_NOT_FOUND``, ``FORBIDDEN``."""
        _refuse_agent(caller)
        gone = self._database.write(lambda c: user_secrets.remove(c, caller.project_id, caller.person, name))
        if not gone:
            raise Refusal.of("SECRET_NOT_FOUND", f"you keep no secret `{name[:80]}` here", path="name")

    def open(self, connection: Connection, script: Script, wanted: Sequence[str]) -> Mapping[str, str]:
        """The values of names that a Job lists, of its owner's secrets; what is not there is missing.

        Raises `SealBroken`.
        """
        found = user_secrets.sealed(connection, script.project_id, script.owner, wanted)
        return {name: self._seal.open(sealed)[_VALUE] for name, sealed in found.items()}


def _refuse_agent(caller: Caller) -> None:
    if caller.is_agent:
        raise Refusal.of(
            "FORBIDDEN",
            "an agent cannot change secrets",
            hint="Ask the user to run `gpu secrets set NAME` in a terminal.",
        )


def _check(name: str, value: object) -> None:
    if not SECRET_NAME.fullmatch(name) or len(name) > 128:  # noqa: PLR2004 - longer than any variable's name
        said = "a name has letters, digits and `_`, no digit first, 128 characters at most"
        raise Refusal.of("INVALID_REQUEST", said, path="name", hint="Choose another name, such as HF_TOKEN.")
    if (why := reserved(name)) is not None:
        raise Refusal.of("INVALID_REQUEST", why, path="name", hint="Choose another name.")
    if not isinstance(value, str) or not value or "\0" in value or len(value) > MAX_CHARS:
        said = f"`value` must be text of 1 to {MAX_CHARS} characters without NUL"
        raise Refusal.of("INVALID_REQUEST", said, path="value")
