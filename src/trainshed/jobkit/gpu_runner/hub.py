"""Datasets of the hub (``hf://datasets/OWNER/REPO[@REV][/SUB]``), fetched where the Job runs (e.12).

`huggingface_hub` is used where it can be imported, for it knows every way of fetching; plain HTTPS does
without. ``HF_ENDPOINT`` is the address of the hub for both. A Job may set that itself: the storage's token is
shown to the hub's own address alone, or to the one that whoever gave the token named beside it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, NamedTuple

from trainshed.jobkit.gpu_runner import say
from trainshed.jobkit.gpu_runner.jobs import Broken

_URI = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@([^/]+))?(?:/(.*))?")
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')
_CHUNK = 1 << 20
_TRIES, _PAUSE_SECONDS = 4, 1.0
_TIMEOUT = 60.0
_AT_ONCE = 8
_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
_MOST_PAGES = 10_000
DEFAULT = "https://huggingface.co"
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACEHUB_API_TOKEN")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from http.client import HTTPMessage, HTTPResponse
    from typing import IO


class Address(NamedTuple):
    """A dataset of the hub."""

    repo: str
    revision: str
    sub: str
    """A folder or file in it; empty for all of it."""


def parse(uri: str) -> Address:
    """Raises `Broken`. A revision may hold an escaped slash (``refs%2Fpr%2F1``)."""
    match = _URI.fullmatch(uri)
    sub = (match.group(3) or "").strip("/") if match else ""
    if match is None or any(part in (".", "..") for part in sub.split("/")):
        raise Broken(f"{uri!r} is no dataset of the hub: hf://datasets/OWNER/REPO[@REV][/SUB]")
    return Address(match.group(1), urllib.parse.unquote(match.group(2) or "main"), sub)


def fetch(
    uri: str,
    into: str,
    token: str | None,
    stopped: Callable[[], bool] = lambda: False,
    *,
    token_for: str | None = None,
) -> None:
    """Have the dataset at ``into``: a folder, or a file where ``SUB`` is one. Raises `Broken`.

    What is there already is left: a dataset appears as a whole, by one rename. ``token`` is the storage's,
    for a Job without one of its own; only the hub at ``token_for`` is shown it, else the hub itself.
    """
    if os.path.lexists(into):
        return
    address = parse(uri)
    own = next((os.environ[name] for name in _TOKENS if os.environ.get(name)), None)
    if token and not own and _base() != (token_for or DEFAULT).rstrip("/"):
        say.note(f"the token of the storage is not for {_base()}; asking without it")
        token = None
    part = into + ".part"
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    say.note(f"fetching {uri}")
    try:
        if not _by_library(address, part, own or token):
            _Hub(own or token, stopped).fetch(address, part)
        found = os.path.join(part, address.sub) if address.sub else part
        shutil.rmtree(os.path.join(part, ".cache"), ignore_errors=True)
        os.rename(found, into)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise Broken(f"{uri} could not be fetched: {_reason(problem)}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _base() -> str:
    """Where the hub is, by what this Job was given."""
    return (os.environ.get("HF_ENDPOINT") or DEFAULT).rstrip("/")


def _reason(problem: Exception) -> str:
    if isinstance(problem, urllib.error.HTTPError):
        return {
            401: "the hub asks for a token (HTTP 401)",
            403: "the token may not read it (HTTP 403)",
            404: "there is no such dataset, revision or file, or it is private (HTTP 404)",
        }.get(problem.code, f"HTTP {problem.code}")
    if isinstance(problem, FileNotFoundError):
        return "there is nothing of that name in it"
    return f"{type(problem).__name__}: {problem}"


def _by_library(address: Address, part: str, token: str | None) -> bool:
    """Fetch with the hub's own library; false where that is not here, or could not."""
    try:
        library = importlib.import_module("huggingface_hub")
    except Exception:  # noqa: BLE001 - whatever ails an installed library, we do without it
        return False
    patterns = [address.sub, address.sub + "/*"] if address.sub else None
    try:
        library.snapshot_download(
            address.repo,
            repo_type="dataset",
            revision=address.revision,
            allow_patterns=patterns,
            local_dir=part,
            token=token or False,
        )
    except Exception as problem:  # noqa: BLE001 - the library's errors are of many kinds
        say.note(f"huggingface_hub could not fetch it ({problem}); trying plain HTTPS")
        shutil.rmtree(part, ignore_errors=True)
        os.makedirs(part)
        return False
    return True


class _Hub:
    """The hub over plain HTTPS."""

    def __init__(self, token: str | None, stopped: Callable[[], bool]) -> None:
        self._base = _base()
        if not self._base.startswith(("https://", "http://")):
            raise Broken("HF_ENDPOINT must be an http or https address")
        self._token = token
        self._stopped = stopped
        self._over = False
        """One file could not be fetched: the others are not needed."""
        self._opener = urllib.request.build_opener(_KeepToken)

    def fetch(self, address: Address, part: str) -> None:
        commit = self._commit(address)
        files = self._files(address, commit)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            waiting = [pool.submit(self._file, address.repo, commit, entry, part) for entry in files]
            try:
                for one in waiting:
                    one.result()
            except BaseException:
                self._over = True
                raise

    def _commit(self, address: Address) -> str:
        """One revision for all the files, even if the branch goes on meanwhile."""
        quoted = urllib.parse.quote(address.revision, safe="")
        document = self._json(f"{self._base}/api/datasets/{address.repo}/revision/{quoted}")[0]
        return str(document["sha"])

    def _files(self, address: Address, commit: str) -> list[dict[str, Any]]:
        base = f"{self._base}/api/datasets/{address.repo}"
        tree = f"{base}/tree/{commit}"
        if not address.sub:
            return self._pages(f"{tree}?recursive=true")
        try:
            found = self._pages(f"{tree}/{urllib.parse.quote(address.sub)}?recursive=true")
        except urllib.error.HTTPError as problem:
            if problem.code != HTTPStatus.NOT_FOUND:
                raise
            found = []
        if found:
            return found
        above = address.sub.rpartition("/")[0]
        rows = self._pages(f"{tree}/{urllib.parse.quote(above)}" if above else tree)
        files = [row for row in rows if row.get("path") == address.sub and row.get("type") == "file"]
        if not files:
            raise FileNotFoundError(address.sub)
        return files

    def _pages(self, url: str | None) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for _ in range(_MOST_PAGES):
            if url is None:
                break
            document, link = self._json(url)
            rows += [row for row in document if row.get("type") in ("file", "directory")]
            after = _NEXT.search(link)
            url = urllib.parse.urljoin(url, after.group(1)) if after else None
        return [row for row in rows if row["type"] == "file" or row["path"]]

    def _json(self, url: str) -> tuple[Any, str]:
        def read(answer: HTTPResponse) -> tuple[Any, str]:
            return json.loads(answer.read().decode()), answer.headers.get("Link") or ""

        found: tuple[Any, str] = self._patiently(url, read)
        return found

    def _file(self, repo: str, commit: str, entry: dict[str, Any], part: str) -> None:
        if entry["type"] != "file":
            return
        path = str(entry["path"])
        if "\0" in path or any(name in ("", ".", "..") for name in path.split("/")):
            raise ValueError(f"the hub names a file {path!r}")
        into = os.path.join(part, path)
        os.makedirs(os.path.dirname(into), exist_ok=True)
        url = f"{self._base}/datasets/{repo}/resolve/{commit}/{urllib.parse.quote(path)}"
        lfs = entry.get("lfs") or {}

        def read(answer: HTTPResponse) -> None:
            size = int(entry["size"])
            digest = hashlib.sha256() if lfs else hashlib.sha1(b"blob %d\0" % size)  # noqa: S324 - as git names it
            count = 0
            with open(into, "wb") as file:
                for data in iter(lambda: answer.read(_CHUNK), b""):
                    digest.update(data)
                    count += len(data)
                    file.write(data)
                    self._check()
            expected = lfs.get("oid") or entry.get("oid")
            if count != size or (expected and digest.hexdigest() != expected):
                raise _Garbled(f"{path} arrived changed or cut short")

        self._patiently(url, read)

    def _patiently(self, url: str, read: Callable[[HTTPResponse], Any]) -> Any:
        """Ask until there is an answer; what the hub refuses is not asked again."""
        for left in reversed(range(_TRIES)):
            self._check()
            request = urllib.request.Request(url)  # noqa: S310 - the scheme was checked
            if self._token and self._ours(url):
                request.add_unredirected_header("Authorization", f"Bearer {self._token}")
            try:
                with self._opener.open(request, timeout=_TIMEOUT) as answer:
                    return read(answer)
            except urllib.error.HTTPError as problem:
                if problem.code < HTTPStatus.INTERNAL_SERVER_ERROR and problem.code not in _PASSING:
                    raise
                if not left:
                    raise
            except (OSError, _Garbled, ValueError) as problem:
                if not left:
                    raise OSError(str(problem)) from None
            time.sleep(_PAUSE_SECONDS * (_TRIES - left))
        raise AssertionError

    def _ours(self, url: str) -> bool:
        return urllib.parse.urlsplit(url).netloc == urllib.parse.urlsplit(self._base).netloc

    def _check(self) -> None:
        if self._over or self._stopped():
            raise OSError("told to stop")


class _Garbled(Exception):
    """What arrived is not what the hub said it has."""


class _KeepToken(urllib.request.HTTPRedirectHandler):
    """Redirections to the hub itself keep the token; those to a store of files do not see it."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """The request that follows; urllib would send no unredirected header with it."""
        again = super().redirect_request(req, fp, code, msg, headers, newurl)
        token = req.unredirected_hdrs.get("Authorization")
        same = urllib.parse.urlsplit(newurl)[:2] == urllib.parse.urlsplit(req.full_url)[:2]
        if again is not None and token and same:
            again.add_unredirected_header("Authorization", token)
        return again
