"""Names that come nearest to one that is not there: looked up only once the server has said so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainshed.cli.session import MAX_SUGGESTIONS, Session

if TYPE_CHECKING:
    from trainshed.sdk import Client
    from trainshed.sdk.contents import Contents


@contextlib.contextmanager
def near_runners(session: Session, client: Client, wanted: str) -> Iterator[None]:
    """When a Runner is not found, look up the names that come nearest."""
    from trainshed.sdk.errors import NotFound, TrainshedError  # noqa: PLC0415 - click only at import time

    try:
        yield
    except NotFound as error:
        if error.code == "RUNNER_NOT_FOUND":
            with contextlib.suppress(TrainshedError):
                name, at, _ = wanted.partition("@")
                found = client.runners.list(limit=100)
                session.nearest(name, dict.fromkeys(each.name for each in found))
                if at:
                    session.suggestions = [
                        f"{each.name}@{each.source_ref or each.revision}"
                        for near in session.suggestions
                        for each in found
                        if each.name == near
                    ][:MAX_SUGGESTIONS]
        raise


@contextlib.contextmanager
def near_contents(session: Session, contents: Contents, wanted: str) -> Iterator[None]:
    """When a content is not found, look up the names, or the versions, that come nearest."""
    from trainshed.sdk.contents import plain_name  # noqa: PLC0415 - click only at import time
    from trainshed.sdk.errors import NotFound, TrainshedError  # noqa: PLC0415 - as above

    try:
        yield
    except NotFound as error:
        if error.code == "CONTENT_NOT_FOUND":
            name, at, ref = plain_name(contents.kind, wanted).partition("@")
            with contextlib.suppress(TrainshedError):
                session.nearest(name, [each.name for each in contents.list(limit=100)])
                if at and name in session.suggestions:
                    session.nearest(ref, [each.version for each in contents.versions(name, limit=100)])
                    session.suggestions = [f"{name}@{version}" for version in session.suggestions]
        raise
