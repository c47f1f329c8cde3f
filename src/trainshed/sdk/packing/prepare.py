"""The one way from a folder to a Job, for people and for agents: pack, then upload what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainshed.sdk.packing.bundle import Packed, pack

if TYPE_CHECKING:
    from trainshed.sdk.client import Client
    from trainshed.sdk.packing.contents import Progress

SOURCES = ("agent", "api", "cli", "shell", "user")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A Job that can be submitted."""

    spec: Mapping[str, Any]
    """The document for ``client.scripts.submit`` or ``route``."""
    bundle: Mapping[str, Any]
    """Its summary, as answers show it."""
    source: str
    uploaded: int | None
    """How many blobs the server lacked; ``None``: nothing was sent."""
    packed: Packed


def prepare(
    client: Client | None,
    project_dir: str | Path,
    arguments: Mapping[str, Any] | None = None,
    source: str = "user",
    *,
    progress: Progress | None = None,
) -> Prepared:
    """Pack the project and bring to the server what that lacks; without a client nothing is sent.

    ``arguments`` are the inputs of `gpu_submit` that say what is run (a.1); those that are ``None`` count as
    not given. ``source`` says who asks (`SOURCES`). Raises `InvalidSpec` before anything is sent,
    then what uploads raise.
    """
    if source not in SOURCES:
        raise ValueError(f"source is one of {', '.join(SOURCES)}, not {source!r}")
    packed = pack(project_dir, arguments)
    uploaded = None if client is None else packed.upload(client, progress)
    return Prepared(packed.spec, packed.summary, source, uploaded, packed)
