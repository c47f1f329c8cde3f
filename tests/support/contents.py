"""Contents for tests: a folder's files as blobs and a manifest, published through a site's HTTP doors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from support.server import ServerProcess
from support.site import Site
from trainshed.control.garbage import Collector
from trainshed.model.about import read_about
from trainshed.model.content import ContentFile, ContentKind, Manifest, make_manifest

RECIPE = b'abi = "envloop.train-recipe/1"\nentrypoint = "train:main"\n'


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def manifest_of(
    kind: ContentKind, files: Mapping[str, bytes], about: Mapping[str, Any] | None = None
) -> Manifest:
    """The manifest of these files, with what their own ``*.toml`` says."""
    listed = [ContentFile(path, len(data), sha256(data)) for path, data in files.items()]
    said = read_about(kind, list(files), files.get) if about is None else about
    return make_manifest(kind, listed, said)


def upload(site: Site, *blobs: bytes, key: str | None = None) -> None:
    for data in dict.fromkeys(blobs):
        answer = site.request("PUT", f"/v1/content/blobs/{sha256(data)}", data, key=key)
        assert answer.status_code in {200, 201}, answer.text


def publish(
    site: Site,
    name: str = "team/words",
    files: Mapping[str, bytes] | None = None,
    *,
    kind: ContentKind = ContentKind.DATASETS,
    about: Mapping[str, Any] | None = None,
    key: str | None = None,
    store: bool = True,
    **body: Any,
) -> Any:
    """The answer to publishing these files as a version of ``name``."""
    files = {"train.txt": b"one\n"} if files is None else files
    manifest = manifest_of(kind, files, about)
    if store:
        upload(site, *files.values(), key=key)
    document = {"manifest_sha256": manifest.sha256, "manifest": json.loads(manifest.encode()), **body}
    sent = {name: value for name, value in document.items() if value is not None}
    return site.post(f"/v1/content/{kind}/{name}/versions", sent, key=key)


def published_on(
    server: ServerProcess, kind: ContentKind, name: str, files: dict[str, bytes], version: str | None = None
) -> dict[str, str]:
    """Publish a content over HTTP; how a Job Profile names it, by its digest."""
    manifest = manifest_of(kind, files)
    for data in files.values():
        path = f"/v1/content/blobs/{hashlib.sha256(data).hexdigest()}"
        assert server.http().request("PUT", path, raw=data).status in {200, 201}
    body: dict[str, Any] = {"manifest_sha256": manifest.sha256, "manifest": json.loads(manifest.encode())}
    if version is not None:
        body["version"] = version
    answer = server.http().post(f"/v1/content/{kind}/{name}/versions", body)
    assert answer.status in {200, 201}, answer.body
    return {"uri": f"envloop://{kind}/{name}@{manifest.sha256}", "manifest_sha256": manifest.sha256}


def collector(site: Site) -> Collector:
    """One that works on what the site stores."""
    services = site.services
    return Collector(services.database, services.blobs, site.clock, grace_seconds=services.gc_grace_seconds)


def events(
    site: Site, query: str = "", last: str = "", **options: Any
) -> list[tuple[str, str, dict[str, Any]]]:
    """Everything of one verification: type, id and document of each event."""
    headers = {"Last-Event-ID": last} if last else {}
    answer = site.get(f"/v1/admin/content/verify{query}", headers=headers, **options)
    assert answer.status_code == 200, answer.text
    found = []
    for block in answer.text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in lines:
            found.append((lines.get("event", "message"), lines.get("id", ""), json.loads(lines["data"])))
    return found


def damages(site: Site, query: str = "") -> list[dict[str, Any]]:
    """The damages that a verification finds."""
    found = events(site, query)
    assert found[-1][0] == "end"
    shown = [document for _, _, document in found if document.get("type") == "damage"]
    assert found[-1][2]["damaged"] == len(shown)
    return shown
