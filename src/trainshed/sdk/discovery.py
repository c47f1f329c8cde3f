"""Which server to talk to, with which key.

In this order, the first that gives an address wins:

1. arguments of ``Client``;
2. ``TRAINSHED_URL`` with ``TRAINSHED_API_KEY``;
3. ``ENVLOOP_BASE_URL`` with ``ENVLOOP_API_KEY``;
4. the login saved by ``trainshed login``;
5. this user's embedded server, started on first use unless ``TRAINSHED_NO_AUTOSTART=1``.

A key is sent only to the address it came with: the one of ``ENVLOOP_API_KEY`` never travels to
``TRAINSHED_URL``. ``TRAINSHED_API_KEY`` alone also replaces the key of a saved login and of the embedded
server.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from trainshed.sdk.errors import ConfigurationError
from trainshed.sdk.home import Home, find_home, read_private, write_private

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_KEY = re.compile(r"[A-Za-z0-9._~-]{1,512}")
_PATHS = {"": "", "/v1": "", "/api": "/api", "/api/v1": "/api"}


@dataclass(frozen=True, slots=True)
class Connection:
    """An address, the key for it, and where both came from."""

    url: str
    api_key: str | None = field(repr=False)
    project: str | None
    source: str
    """``argument``, ``TRAINSHED_URL``, ``ENVLOOP_BASE_URL``, ``login`` or ``embedded``."""

    def __post_init__(self) -> None:
        if self.api_key is not None and not _KEY.fullmatch(self.api_key):
            # Its text is never shown, not even in part.
            raise ConfigurationError(
                f"the key for {self.url} cannot be one: it holds more than letters, digits and . _ ~ -, "
                "or over 512 of them",
                hint="Look at TRAINSHED_API_KEY, or where else the key comes from: a line end in it, say.",
            )

    @property
    def loopback(self) -> bool:
        return urlsplit(self.url).hostname in LOOPBACK_HOSTS


def find_connection(
    url: str | None = None,
    api_key: str | None = None,
    project: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    start: bool = True,
    on_start: Callable[[], None] | None = None,
) -> Connection:
    """Apply the order above. ``start=False`` never starts an embedded server; ``on_start`` hears of a start.

    Raises `ConfigurationError` if nothing gives an address or one is malformed, and
    `ServerStartFailed` if the embedded server does not come up.
    """
    environ = os.environ if environ is None else environ
    home = find_home(environ)
    project = project or environ.get("TRAINSHED_PROJECT") or None
    own_key = api_key or environ.get("TRAINSHED_API_KEY") or None
    if url:
        key = api_key or _key_for(url, environ, home)
        return Connection(normalise_url(url), key, project, "argument")
    if named := environ.get("TRAINSHED_URL"):
        key = own_key or _saved_key(named, home)
        return Connection(normalise_url(named), key, project, "TRAINSHED_URL")
    if named := environ.get("ENVLOOP_BASE_URL"):
        key = api_key or environ.get("ENVLOOP_API_KEY") or None
        project = project or environ.get("ENVLOOP_PROJECT_ID") or None
        return Connection(normalise_url(named), key, project, "ENVLOOP_BASE_URL")
    if login := load_login(home):
        return Connection(login.url, own_key or login.api_key, project or login.project, "login")
    may_start = environ.get("TRAINSHED_NO_AUTOSTART") != "1"
    return _embedded(home, own_key, project, start=start, may_start=may_start, on_start=on_start)


def normalise_url(text: str) -> str:
    """Check an address and drop a trailing ``/v1``: https anywhere, http only on this machine."""
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError:
        raise ConfigurationError(f"`{text}` is not an address", hint="Write https://host[:port].") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError(f"`{text}` is not an address", hint="Write https://host[:port].")
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigurationError("an address holds no user name, query or fragment")
    path = parts.path.rstrip("/")
    if path not in _PATHS:
        raise ConfigurationError(f"the path of an address is empty, /v1, /api or /api/v1, not `{parts.path}`")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK_HOSTS:
        raise ConfigurationError(
            f"`{text}` would send your key unencrypted",
            hint="Use https; http is for localhost, 127.0.0.1 and ::1 only.",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{_PATHS[path]}"


def load_login(home: Home) -> Connection | None:
    """The saved login, or ``None``. Raises `ConfigurationError` if its file is not private."""
    document = read_private(home.login)
    if document is None:
        return None
    url, key, project = (document.get(name) for name in ("url", "api_key", "project"))
    if not isinstance(url, str) or not isinstance(key, str) or not isinstance(project, str | None):
        raise ConfigurationError(f"{home.login} is not a login", hint="Run `trainshed login` again.")
    return Connection(normalise_url(url), key, project, "login")


def save_login(home: Home, url: str, api_key: str, project: str | None = None) -> None:
    """Keep a login for later commands of this user (file mode 0600)."""
    document = {"version": 1, "url": normalise_url(url), "api_key": api_key, "project": project}
    write_private(home.login, document)


def remove_login(home: Home) -> bool:
    """Forget the saved login; whether there was one."""
    try:
        home.login.unlink()
    except FileNotFoundError:
        return False
    return True


def running_embedded(home: Home) -> Connection | None:
    """This user's embedded server as it runs now, or ``None``. Starts nothing."""
    from trainshed.sdk import embedded  # noqa: PLC0415 - not where an address is given

    server = embedded.find(home)
    return None if server is None else Connection(server.url, embedded.owner_key(home), None, "embedded")


def _embedded(
    home: Home,
    key: str | None,
    project: str | None,
    *,
    start: bool,
    may_start: bool,
    on_start: Callable[[], None] | None,
) -> Connection:
    from trainshed.sdk import embedded  # noqa: PLC0415 - not where an address is given

    server = embedded.ensure(home, on_start) if start and may_start else embedded.find(home)
    if server is None:
        raise ConfigurationError(
            "no server is named, no login is saved and no embedded server runs",
            hint="`gpu daemon start` starts one of your own, and so does any command that needs it."
            if may_start
            else "Set TRAINSHED_URL, run `trainshed login URL`, or unset TRAINSHED_NO_AUTOSTART.",
        )
    return Connection(server.url, key or embedded.owner_key(home), project, "embedded")


def _key_for(url: str, environ: Mapping[str, str], home: Home) -> str | None:
    pairs = (("TRAINSHED_URL", "TRAINSHED_API_KEY"), ("ENVLOOP_BASE_URL", "ENVLOOP_API_KEY"))
    for address, key in pairs:
        if environ.get(address) and normalise_url(environ[address]) == normalise_url(url):
            return environ.get(key) or None
    if not environ.get("TRAINSHED_URL") and environ.get("TRAINSHED_API_KEY"):
        return environ["TRAINSHED_API_KEY"]
    return _saved_key(url, home)


def _saved_key(url: str, home: Home) -> str | None:
    login = load_login(home)
    return login.api_key if login and login.url == normalise_url(url) else None
