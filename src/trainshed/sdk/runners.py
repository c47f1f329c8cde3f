"""Runners: read, publish, and decide who may read them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainshed.sdk.answers import LARGEST_PAGE, split_name
from trainshed.sdk.blobs import BlobUploads, Upload
from trainshed.sdk.errors import ConfigurationError, FieldFault, InvalidAnswer, NotFreezable
from trainshed.sdk.objects import Page, Runner, mapping, page, runner
from trainshed.sdk.transport import Transport, route

if TYPE_CHECKING:
    from trainshed.sdk.runner_tree import FrozenRunner


@dataclass(frozen=True, slots=True)
class Published:
    """A published Revision, and what its author should know about it."""

    runner: Runner
    warnings: tuple[str, ...]
    """The work tree was dirty, say: what was published is the commit."""
    uploaded: int
    """Files whose bytes the server did not have yet."""
    published_before: bool = False
    """The same commit was there already, so nothing new was made."""


class Runners:
    """``client.runners``: the Runners that this key may read."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, cursor: str | None = None, limit: int = 25) -> Page[Runner]:
        """One page of readable Revisions, newest first (E7)."""
        query = {"cursor": cursor, "limit": limit}
        return page(self._transport.call("GET", route("runners"), query=query), runner)

    def iter_all(self) -> Iterator[Runner]:
        """Every readable Revision, page by page as they are needed."""
        cursor = None
        while True:
            found = self.list(cursor=cursor, limit=LARGEST_PAGE)
            yield from found
            if found.next_cursor is None:
                return
            if found.next_cursor == cursor:
                raise InvalidAnswer("the list of Runners does not end: its cursor repeats")
            cursor = found.next_cursor

    def get(self, name: str) -> Runner:
        """``namespace/name``: its newest readable Revision; ``raw`` has ``definition`` and ``refs``.

        ``namespace/name@revision``: that Revision; ``raw`` has ``definition`` and ``files``. A branch or tag
        is accepted as a revision.
        """
        full, revision = split_name(name)
        if not revision:
            return runner(self._transport.call("GET", route("runners", *full)))
        commit = self._commit(full, revision)
        return runner(self._transport.call("GET", route("runners", *full, commit)))

    def read_file(self, selector: str, path: str) -> bytes:
        """One file of a Revision, byte for byte."""
        full, revision = split_name(selector)
        commit = self._commit(full, revision) if revision else self.get(selector).revision
        where = route("runners", *full, commit, "files", *path.split("/"))
        return b"".join(self._transport.read(where))

    def publish(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        ref: str | None = None,
        visibility: str | None = None,
    ) -> Published:
        """Freeze the Runner in directory ``path`` of a git repository and publish it.

        What is published is the tree of a commit (``ref``, else the one checked out), never the work tree.
        ``name`` defaults to ``[runner] name`` of its ``runner.toml``. Publishing the same commit again
        changes nothing. Raises `NotFreezable` before anything is sent.
        """
        from trainshed.sdk.runner_tree import FreezeError, freeze  # noqa: PLC0415 - only publishing needs git

        try:
            frozen = freeze(Path(path), ref)
        except FreezeError as error:
            faults = [FieldFault(fault.path, fault.code, fault.message) for fault in error.faults]
            raise NotFreezable(error.code, error.message, tuple(faults), hint=error.hint) from error
        return self.publish_frozen(frozen, name=name, visibility=visibility)

    def publish_frozen(
        self, frozen: FrozenRunner, *, name: str | None = None, visibility: str | None = None
    ) -> Published:
        """Publish what ``freeze`` made: upload the bytes that the server lacks, then the Revision."""
        full = name or frozen.name
        if not full:
            raise ConfigurationError(
                "the Runner has no name",
                hint='Give --name namespace/name, or write name = "namespace/name" under [runner].',
            )
        parts, revision = split_name(full)
        if revision:
            raise ConfigurationError(f"`{full}`: a name to publish under has no `@revision`")
        uploaded = BlobUploads(self._transport).send(
            Upload(file.sha256, len(file.content), partial(io.BytesIO, file.content), file.path)
            for file in frozen.files
        )
        body = {
            **frozen.publication().as_document(),
            "source_ref": frozen.source_ref,
            "dirty": frozen.dirty,
        }
        if visibility is not None:
            body["visibility"] = visibility
        where = route("runners", *parts, "revisions")
        answer = self._transport.ask("POST", where, body=body, repeatable=True)
        # After a lost answer nobody can tell whether it was this call that published it.
        known = answer.status == HTTPStatus.OK and answer.tries == 1
        return Published(runner(answer.document), _warnings(frozen), uploaded, published_before=known)

    def set_visibility(self, name: str, visibility: str, projects: Sequence[str] = ()) -> Mapping[str, Any]:
        """Who may read it: ``public``, ``project`` (its owner), or ``projects`` (also those named)."""
        full, revision = split_name(name)
        if revision:
            raise ConfigurationError("visibility belongs to a Runner, not to a Revision: leave out the `@…`")
        body: dict[str, Any] = {"visibility": visibility}
        if projects:
            body["projects"] = list(projects)
        answer = self._transport.call("PUT", route("runners", *full, "visibility"), body=body)
        return mapping(answer, "a visibility")

    def withdraw(self, selector: str) -> Mapping[str, Any]:
        """Make a Revision unfindable for new submissions. Jobs that started go on."""
        full, revision = split_name(selector)
        if not revision:
            raise ConfigurationError(f"`{selector}`: name the Revision to withdraw after an `@`")
        answer = self._transport.call("DELETE", route("runners", *full, self._commit(full, revision)))
        return mapping(answer, "a withdrawal")

    def _commit(self, full: tuple[str, str], revision: str) -> str:
        """The commit that a branch or tag names now; a commit is passed on as it is."""
        newest = self._transport.call("GET", route("runners", *full))
        refs = mapping(newest, "a Runner").get("refs")
        commit = refs.get(revision) if isinstance(refs, dict) else None
        return commit if isinstance(commit, str) else revision


def _warnings(frozen: FrozenRunner) -> tuple[str, ...]:
    found = []
    if frozen.dirty:
        found.append("the work tree has uncommitted changes; they are not published")
    if frozen.untracked:
        files = "1 file here is" if frozen.untracked == 1 else f"{frozen.untracked} files here are"
        found.append(f"{files} not in git and not published")
    return tuple(found)
