"""A registry of one image that answers exactly what a test scripts: see `support.fake_server`."""

from __future__ import annotations

import hashlib
import json

from support.fake_server import FakeServer, Handler, Reply
from trainshed.content.registry import OCI_INDEX, OCI_MANIFEST, RegistryClient

REPOSITORY = "team/tool"
MANIFESTS = f"/v2/{REPOSITORY}/manifests"
BLOBS = f"/v2/{REPOSITORY}/blobs"
AMD64 = "amd64"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
Routes = dict[str, Reply | Handler]


def sha256(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def answer(body: bytes, kind: str = OCI_MANIFEST) -> Reply:
    """A manifest as a registry sends it."""
    return Reply(200, body, {"Content-Type": kind, "Docker-Content-Digest": sha256(body)})


def image(architecture: str = AMD64, system: str = "linux", note: str = "") -> tuple[bytes, bytes]:
    """A manifest and its config; ``note`` makes it another image."""
    config = json.dumps({"architecture": architecture, "os": system, "author": note}).encode()
    about = {"mediaType": CONFIG_TYPE, "digest": sha256(config), "size": len(config)}
    document = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": about, "layers": []}
    return json.dumps(document).encode(), config


MANIFEST, CONFIG = image()
DIGEST = sha256(MANIFEST)
OTHER = "sha256:" + "0" * 64


def lying(body: bytes = MANIFEST, kind: str = OCI_MANIFEST, digest: str = DIGEST) -> Reply:
    """A manifest that says another digest, or another type, of itself."""
    return Reply(200, body, {"Content-Type": kind, "Docker-Content-Digest": digest})


def serving(manifest: bytes = MANIFEST, config: bytes = CONFIG, **changes: Reply | Handler) -> Routes:
    """The routes of a registry with one image, tagged ``1``.

    ``changes`` answer otherwise: ``head`` and ``tag`` for the tag, ``get`` for the digest, ``blob`` for the
    config.
    """
    given = answer(manifest)
    return {
        f"HEAD {MANIFESTS}/1": changes.get("head", given),
        f"GET {MANIFESTS}/1": changes.get("tag", given),
        f"GET {MANIFESTS}/{sha256(manifest)}": changes.get("get", given),
        f"GET {BLOBS}/{sha256(config)}": changes.get("blob", Reply(200, config)),
    }


def index_of(*entries: tuple[str, str, str | None, str]) -> bytes:
    """An index of (system, architecture, variant, digest)."""
    listed = [
        {
            "mediaType": OCI_MANIFEST,
            "digest": digest,
            "platform": {"os": system, "architecture": kind, **({"variant": variant} if variant else {})},
        }
        for system, kind, variant, digest in entries
    ]
    return json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": listed}).encode()


def serving_index(body: bytes) -> Routes:
    """As `serving`, with an index under the tag."""
    given = answer(body, OCI_INDEX)
    names = {f"HEAD {MANIFESTS}/1": given, f"GET {MANIFESTS}/{sha256(body)}": given}
    return {**serving(), **names}


def host_of(server: FakeServer) -> str:
    return server.url.removeprefix("http://")


def name_at(server: FakeServer, tag: str = "1") -> str:
    return f"{host_of(server)}/{REPOSITORY}:{tag}"


def resolve(client: RegistryClient, server: FakeServer) -> str:
    """The digest that the client finds for the tag."""
    return client.resolve(name_at(server), AMD64).digest
