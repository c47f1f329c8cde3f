"""Where blobs lie, by its address: the settings of ``[content]``, judged and opened.

Credentials come from the environment and from nowhere else (promise P9): an address that holds any is refused
without being repeated. obstore reads the variables that the providers' own tools read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from trainshed.content.blobs import FolderBlobStore, StoreUnavailable

if TYPE_CHECKING:
    from trainshed.content.objects import ObjectBlobStore

SCHEMES = {
    "file": "a folder",
    "s3": "an S3-compatible store",
    "gs": "Google Cloud Storage",
    "az": "Azure Blob Storage",
}
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_SEGMENT = re.compile(r"[A-Za-z0-9._=+~-]+")
_DAY = timedelta(days=1)
_QUICK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where blobs lie and how patiently that place is asked. ``url`` is ``None`` for the data folder."""

    url: str | None = None
    endpoint: str | None = None
    region: str | None = None
    allow_http: bool = False
    timeout_seconds: float = 30.0
    """The longest silence of the store within one request."""
    retry_seconds: float = 60.0
    """How long a failed request is repeated."""

    @property
    def scheme(self) -> str:
        return "file" if self.url is None else urlsplit(self.url).scheme

    @property
    def remote(self) -> bool:
        return self.scheme != "file"

    @property
    def place(self) -> str:
        """The address for people; it holds no secrets."""
        said = self.url or "the data folder"
        return f"{said} at {self.endpoint}" if self.endpoint else said

    def faults(self) -> Iterator[tuple[str, str]]:
        """Everything wrong with it: the setting, and a sentence that repeats nothing secret."""
        if self.url is not None and (fault := _url_fault(self.url)):
            yield "url", fault
            return
        if self.endpoint is not None and (
            fault := _endpoint_fault(self.endpoint, allow_http=self.allow_http)
        ):
            yield "endpoint", fault
        if not self.remote:
            for name in ("endpoint", "region"):
                if getattr(self, name) is not None:
                    yield name, "counts for remote stores only; set content.url, or leave it out"
        elif self.region is not None and self.scheme != "s3":
            yield "region", "counts for s3:// only"


def open_store(address: StoreAddress, folder: Path) -> FolderBlobStore | ObjectBlobStore:
    """The store at a faultless address; ``folder`` is the server's own, for what has to lie on this machine.

    Makes a local store's folders; a remote one is not asked anything. Raises `StoreUnavailable`.
    """
    if not address.remote:
        return FolderBlobStore(folder if address.url is None else _folder_of(address.url))
    return _remote_store(address, folder)


def open_impatiently(address: StoreAddress, folder: Path) -> ObjectBlobStore:
    """A remote store that gives up within seconds: for asking whether it can be used now."""
    return _remote_store(address, folder, hurry=True)


def _remote_store(address: StoreAddress, folder: Path, *, hurry: bool = False) -> ObjectBlobStore:
    # A server whose blobs lie in a folder does not load the library for remote stores: it takes 4 MB.
    from trainshed.content.objects import ObjectBlobStore  # noqa: PLC0415 - see above

    return ObjectBlobStore(_open_remote(address, hurry=hurry), folder / "incoming", address.place)


def _open_remote(address: StoreAddress, *, hurry: bool = False) -> Any:
    from obstore.exceptions import BaseError  # noqa: PLC0415 - as below
    from obstore.store import AzureStore, GCSStore, S3Store  # noqa: PLC0415 - a folder needs none of them

    parts = urlsplit(address.url or "")
    silence = min(address.timeout_seconds, _QUICK_SECONDS) if hurry else address.timeout_seconds
    patience = min(address.retry_seconds, _QUICK_SECONDS) if hurry else address.retry_seconds
    shared: dict[str, Any] = {
        "prefix": parts.path.strip("/") or None,
        "client_options": {
            "allow_http": address.allow_http,
            "connect_timeout": timedelta(seconds=min(silence, _QUICK_SECONDS)),
            "read_timeout": timedelta(seconds=silence),
            # The default ends every transfer after 30 s, however well it goes.
            "timeout": _DAY,
            "user_agent": "trainshed",
        },
        "retry_config": {
            "max_retries": 2 if hurry else 10,
            "retry_timeout": timedelta(seconds=patience),
            "backoff": {
                "init_backoff": timedelta(seconds=0.1),
                "max_backoff": timedelta(seconds=5),
                "base": 2,
            },
        },
    }
    config: dict[str, Any] = {}
    if address.endpoint is not None:
        config["base_url" if address.scheme == "gs" else "endpoint"] = address.endpoint.rstrip("/")
    if address.region is not None:
        config["region"] = address.region
    kind: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[address.scheme]
    try:
        return kind(parts.netloc, config=config, **shared)
    except (BaseError, ValueError) as error:
        # Its words may hold what is wrong with a credential, which is the credential.
        said = f"{address.place}: the store cannot be opened ({type(error).__name__})"
        raise StoreUnavailable(f"{said}; look at the variables of its credentials") from None


def _folder_of(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


def _url_fault(url: str) -> str | None:
    parts = _split(url)
    if isinstance(parts, str):
        return parts
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}:// ({what})" for scheme, what in SCHEMES.items())
        return f"must begin with one of {known}"
    if parts.scheme == "file":
        fine = not parts.netloc and parts.path.startswith("/") and "\0" not in unquote(parts.path)
        return (
            None if fine else "must name a folder of this machine by its full path, as in file:///srv/blobs"
        )
    if not _BUCKET.fullmatch(parts.netloc):
        return f"must name a bucket or container, as in {parts.scheme}://bucket/prefix"
    prefix = parts.path.strip("/")
    if not all(_SEGMENT.fullmatch(each) and set(each) != {"."} for each in prefix.split("/") if prefix):
        return "must have a prefix of letters, digits and . _ = + ~ - between slashes"
    return None


def _endpoint_fault(endpoint: str, *, allow_http: bool) -> str | None:
    parts = _split(endpoint)
    if isinstance(parts, str):
        return parts
    if parts.scheme not in {"https", "http"} or not parts.hostname:
        return "must be a URL, as in https://s3.example.org"
    if parts.scheme == "http" and not allow_http:
        return "is not encrypted; say content.allow_http = true if that is meant"
    return None


def _split(url: str) -> SplitResult | str:
    """The parts of a URL, or what is wrong with it; nothing of it is repeated."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # judged when it is asked for
    except ValueError:
        return "is no URL"
    if "@" in url or "?" in url or "#" in url:
        return "must hold no user, password or query (it is not shown): credentials belong in the environment"
    return parts
