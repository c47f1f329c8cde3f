"""Publishing a folder: look at it, read what was touched, upload what is missing, name the manifest.

An unchanged folder is named by the digest it had, in one request. What only other folders need is imported
when it is needed.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainshed.sdk.content_objects import PublishedContent, PublishProgress, content_version
from trainshed.sdk.errors import FieldFault, NotFound, ServerUnavailable, TrainshedError
from trainshed.sdk.home import find_home
from trainshed.sdk.scan import LocalFile, Rule, Tree, hash_files, look, open_stream, refuse
from trainshed.sdk.scan import Progress as BytesProgress
from trainshed.sdk.stat_cache import StatCache
from trainshed.sdk.transport import Transport, route

if TYPE_CHECKING:
    from trainshed.model.content import ContentUri, Manifest

INLINE_MANIFEST_BYTES = 4 << 20
"""A longer manifest is uploaded as a blob and then named by its digest."""
CODE = frozenset({"recipes", "plugins"})
"""Kinds of content that are written in a work tree rather than made: git is asked what belongs to them."""
_TRIES = 3
_MISSING_SECONDS = 10.0
"""How long a refusal may wait for the server to say what else is missing."""
_CODE = "INVALID_CONTENT"
_PARTS = ("namespace", "name")
_GONE = frozenset({"BLOB_NOT_FOUND", "BLOB_BEING_DELETED"})


class Publication:
    """One publication, from looking at the folder to the answer."""

    def __init__(
        self,
        transport: Transport,
        kind: str,
        full: tuple[str, str],
        said: Mapping[str, Any],
        exclude: Sequence[str],
        parallel: int,
        progress: Callable[[PublishProgress], None] | None,
    ) -> None:
        """``said`` goes along with the manifest: its version's label, and who may read the name."""
        self._transport = transport
        self._kind = kind
        self._full = full
        self._where = route("content", kind, *full, "versions")
        self._said = {key: value for key, value in said.items() if value is not None}
        self._parallel = parallel
        self._progress = progress
        self._rule_at: Callable[[Path, bool], Rule] | None = None
        if exclude or kind in CODE:
            from trainshed.sdk.leaving_out import rule_for  # noqa: PLC0415 - not for every folder

            self._rule_at = rule_for(exclude, code=kind in CODE)
        self._hashed = 0
        self._uploaded = 0

    def run(self, path: Path) -> PublishedContent:

        read_ns = time.time_ns()
        tree = look(path, self._rule_at)
        cache = StatCache(find_home(), tree.root, self._kind)
        asked = self._asked()
        known = None if tree.faults or asked else cache.unchanged(tree)
        if known is not None and not self._mislabelled(known.manifest_sha256):
            try:
                return self._name(known.manifest_sha256, tree)
            except (NotFound, ServerUnavailable) as error:
                if error.code not in _GONE:
                    raise
        about, said = self._about(tree)
        tree.check([*asked, *said], lambda: self._missing(tree))
        digests = self._digests(tree, cache)
        manifest = self._manifest(tree, digests, about)
        encoded = manifest.encode()
        digest = manifest.sha256
        cache.remember(tree, digests, digest, read_ns)
        if wrong := self._mislabelled(digest):
            refuse(tree.root, [*wrong, *self._missing(tree)])
        return self._send(tree, digests, encoded, digest)

    def _digests(self, tree: Tree, cache: StatCache) -> list[str]:

        kept = cache.digests(tree.files)
        fresh = [file for file, digest in zip(tree.files, kept, strict=True) if digest is None]
        read = iter(hash_files(fresh, self._stage("reading"), self._files("reading")))
        self._hashed = len(fresh)
        return [next(read) if digest is None else digest for digest in kept]

    def _manifest(self, tree: Tree, digests: Sequence[str], about: Mapping[str, Any]) -> Manifest:
        from trainshed.model.content import ContentFile, ContentKind, make_manifest  # noqa: PLC0415 - as above

        files = [
            ContentFile(file.path, file.size, digest, file.executable)
            for file, digest in zip(tree.files, digests, strict=True)
        ]
        return make_manifest(ContentKind(self._kind), files, about)

    def _asked(self) -> list[FieldFault]:
        """What is wrong with the name and the label, as far as it can be told before any file is read."""
        from trainshed.model.content import version_fault  # noqa: PLC0415 - publishing only
        from trainshed.model.selectors import name_part_fault  # noqa: PLC0415 - as above

        wrong = [("name", name_part_fault(*part)) for part in zip(_PARTS, self._full, strict=True)]
        if "version" in self._said:
            wrong.append(("version", version_fault(str(self._said["version"]))))
        return [FieldFault(key, _CODE, f"`{key}`: {fault}") for key, fault in wrong if fault]

    def _mislabelled(self, digest: str) -> list[FieldFault]:
        """What is wrong with a label that looks like a digest; ``digest`` is the manifest's."""
        from trainshed.model.content import SHA256  # noqa: PLC0415 - publishing only

        label = str(self._said.get("version", ""))
        if label == digest or not SHA256.fullmatch(label):
            return []
        return [FieldFault("version", _CODE, "`version`: looks like a manifest's digest and is another one")]

    def _about(self, tree: Tree) -> tuple[dict[str, Any], list[FieldFault]]:
        """What the file that describes the content says, or what is wrong with it."""
        from trainshed.model.about import read_about  # noqa: PLC0415 - not for an unchanged tree
        from trainshed.model.content import ContentKind  # noqa: PLC0415 - as above
        from trainshed.model.errors import Refusal  # noqa: PLC0415 - as above

        if not tree.folders and (not tree.faults or self._kind != ContentKind.RECIPES):
            return {}, []  # nothing is there that could be described
        by_path = {file.path: file for file in tree.files}
        try:
            about = read_about(ContentKind(self._kind), list(by_path), lambda path: _head(by_path.get(path)))
        except Refusal as refusal:
            told = {each.path for each in tree.faults}
            wrong = [each for each in refusal.faults if each.path not in told]
            return {}, [FieldFault(each.path, each.code, each.message) for each in wrong]
        return about, []

    def _missing(self, tree: Tree) -> list[FieldFault]:
        """What a Recipe needs and the server does not have, of a publication that is not sent.

        Of one that is, the server says it. Where it cannot be asked nothing is told.
        """
        from trainshed.model.content import ContentKind  # noqa: PLC0415 - not for an unchanged tree
        from trainshed.model.errors import Refusal  # noqa: PLC0415 - as above
        from trainshed.model.recipe import RECIPE_FILE, missing_source, read_recipe  # noqa: PLC0415 - as above

        file = next((file for file in tree.files if file.path == RECIPE_FILE), None)
        if self._kind != ContentKind.RECIPES or file is None:
            return []
        until = time.monotonic() + _MISSING_SECONDS
        found = []
        try:
            for name, needed in read_recipe(_head(file) or b"")[0].dependencies.items():
                fault = missing_source(name, needed, partial(self._digest_of, until))
                found += [FieldFault(fault.path, fault.code, fault.message)] if fault else []
        except (Refusal, TrainshedError):
            pass
        return found

    def _digest_of(self, until: float, uri: ContentUri) -> str | None:
        """The digest of the manifest that ``uri`` names, if the key may read it."""
        where = route("content", uri.kind, uri.namespace, uri.name, "versions", uri.ref)
        try:
            return content_version(self._transport.ask("GET", where, deadline=until).document).manifest_sha256
        except NotFound:
            return None

    def _send(self, tree: Tree, digests: Sequence[str], encoded: bytes, digest: str) -> PublishedContent:
        """Upload what is missing and name the manifest; what a collector took meanwhile is sent again."""
        for left in reversed(range(_TRIES)):
            try:
                return self._name(digest, tree)
            except (NotFound, ServerUnavailable) as error:
                if error.code not in _GONE:
                    raise
            self._upload(tree, digests, encoded, digest)
            try:
                return self._name(digest, tree, encoded if len(encoded) <= INLINE_MANIFEST_BYTES else None)
            except (NotFound, ServerUnavailable) as error:
                if error.code not in _GONE or not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _upload(self, tree: Tree, digests: Sequence[str], encoded: bytes, digest: str) -> None:
        from trainshed.sdk.blobs import BlobUploads, Upload  # noqa: PLC0415 - not for an unchanged tree

        once = dict(zip(digests, tree.files, strict=True))
        uploads = [
            Upload(name, file.size, partial(open_stream, file), file.path) for name, file in once.items()
        ]
        self._uploaded += BlobUploads(self._transport).send(
            uploads,
            parallel=self._parallel,
            progress=self._stage("uploading"),
            files_progress=self._files("uploading"),
        )
        if len(encoded) > INLINE_MANIFEST_BYTES:
            whole = Upload(digest, len(encoded), lambda: io.BytesIO(encoded), "the manifest")
            BlobUploads(self._transport).send([whole])

    def _name(self, digest: str, tree: Tree, encoded: bytes | None = None) -> PublishedContent:
        """Ask the server to publish the manifest, which it must have unless it is sent along."""
        body: dict[str, Any] = {**self._said, "manifest_sha256": digest, "bytes": tree.total_bytes}
        if encoded is not None:
            body["manifest"] = json.loads(encoded)
        answer = self._transport.ask("POST", self._where, body=body, repeatable=True)
        # After a lost answer nobody can tell whether it was this call that published it.
        known = answer.status == HTTPStatus.OK and answer.tries == 1
        return PublishedContent(
            content_version(answer.document),
            self._uploaded,
            self._hashed,
            tuple(tree.skipped),
            known,
            tree.skipped,
        )

    def _stage(self, stage: str) -> BytesProgress | None:
        tell = self._progress
        if tell is None:
            return None
        return lambda done, total: tell(PublishProgress(stage, done, total))

    def _files(self, stage: str) -> BytesProgress | None:
        tell = self._progress
        if tell is None:
            return None
        return lambda done, total: tell(PublishProgress(f"{stage} files", done, total))


def _head(file: LocalFile | None) -> bytes | None:
    """The bytes of a file that describes a content; more of a long one than it may have."""
    from trainshed.model.about import MAX_ABOUT_FILE_BYTES  # noqa: PLC0415 - not for an unchanged tree

    if file is None:
        return None
    with open_stream(file) as stream:
        found = b""
        while piece := stream.read(MAX_ABOUT_FILE_BYTES + 1 - len(found)):
            found += piece
        return found
