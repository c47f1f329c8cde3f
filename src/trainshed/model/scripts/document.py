"""The spec of a script Job as JSON: what is stored, what is hashed, and what two submissions have in common.

`trainshed.model.scripts.reading` judges a document that somebody sent; this module only translates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from trainshed.model.scripts.spec import Bundle, DataItem, Deps, DepsKind, ScriptSpec
from trainshed.model.strict_json import canonical_json

KIND = "script"
"""What ``spec.kind`` says."""
_TEXTS = ("included", "left_out", "warnings")


def to_document(spec: ScriptSpec) -> dict[str, Any]:
    """The spec as JSON values, every key present but what the server adds at acceptance."""
    document = asdict(spec)
    if spec.deps.sha256 is None:
        del document["deps"]["sha256"]
    return {"kind": KIND, **_plain(document)}


def from_document(document: Mapping[str, Any]) -> ScriptSpec:
    """The spec of a document that `to_document` made."""
    values = {key: value for key, value in document.items() if key != "kind"}
    bundle, deps = dict(values["bundle"]), dict(values["deps"])
    command = values["command"]
    return ScriptSpec(
        **{
            **values,
            "bundle": Bundle(**{**bundle, **{key: tuple(bundle[key]) for key in _TEXTS}}),
            "deps": Deps(
                **{**deps, "kind": DepsKind(deps["kind"]), "packages": tuple(deps["packages"])},
            ),
            "data": tuple(DataItem(**item) for item in values["data"]),
            "command": None if command is None else tuple(command),
            "args": tuple(values["args"]),
            "secrets": tuple(values["secrets"]),
        }
    )


def identity(spec: ScriptSpec) -> dict[str, Any]:
    """What makes two submissions the same: gpu.yaml and arguments, whatever the files hold (a.1).

    Digests and sizes of what was packed, and what was read out of it, are left out.
    """
    document = to_document(spec)
    del document["bundle"]
    document["deps"] = {"kind": document["deps"]["kind"], "file": document["deps"]["file"]}
    document["data"] = [{"mount": item.mount, "source": item.path or item.uri or ""} for item in spec.data]
    return document


def spec_hash(spec: ScriptSpec) -> str:
    """SHA-256 of `identity`, in hex."""
    return hashlib.sha256(canonical_json(identity(spec)).encode()).hexdigest()


def content_digests(spec: ScriptSpec) -> tuple[str, ...]:
    """What was packed: the manifests of the bundle and of each dataset, in order."""
    return (spec.bundle.manifest_sha256, *(item.manifest_sha256 or "" for item in spec.data))


def _plain(value: Any) -> Any:
    """Tuples and mappings as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, DepsKind) else value
