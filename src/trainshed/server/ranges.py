"""Conditional and ranged downloads of immutable bytes (RFC 9110, sections 13 and 14)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus

from starlette.responses import Response, StreamingResponse

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """The one range asked for as ``(start, end)``, ``end`` not included; ``None`` for the whole content.

    Raises `ValueError` for a range outside the content. Several ranges, other units and malformed headers are
    ignored, as the RFC allows.
    """
    match = _RANGE.fullmatch(header.replace(" ", "")) if header else None
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if first == "":
        length = int(last)
        if length == 0 or size == 0:
            raise ValueError("nothing of the content is asked for")
        return max(0, size - length), size
    start = int(first)
    end = min(size, int(last) + 1) if last else size
    if last and int(last) < start:
        return None
    if start >= size:
        raise ValueError(f"the content has {size} bytes")
    return start, end


def download(
    headers: Mapping[str, str],
    *,
    sha256: str,
    size: int,
    head: bool,
    chunks: Callable[[int, int], Iterator[bytes]],
    media_type: str = "application/octet-stream",
    extra: Mapping[str, str] | None = None,
) -> Response:
    """Answer immutable bytes: 200, 206, 304 or 416. ``chunks(start, length)`` reads them."""
    etag = f'"{sha256}"'
    answer = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "X-Content-Type-Options": "nosniff",
        **(extra or {}),
    }
    if matches(headers.get("if-none-match"), etag):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=answer)
    wanted = None
    condition = headers.get("if-range")
    if condition is None or condition == etag:
        try:
            wanted = byte_range(headers.get("range"), size)
        except ValueError:
            answer["Content-Range"] = f"bytes */{size}"
            return Response(status_code=HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers=answer)
    start, end = wanted or (0, size)
    answer["Content-Length"] = str(end - start)
    status = HTTPStatus.OK
    if wanted is not None:
        status = HTTPStatus.PARTIAL_CONTENT
        answer["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    body = iter(()) if head else chunks(start, end - start)
    return StreamingResponse(body, status, answer, media_type)


def matches(header: str | None, etag: str) -> bool:
    """Whether an ``If-None-Match`` header holds for ``etag`` (weak comparison)."""
    if header is None:
        return False
    known = [part.strip().removeprefix("W/") for part in header.split(",")]
    return "*" in known or etag in known
