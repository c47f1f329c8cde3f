"""The nodes as the controller last saw them, shared with the doors through the database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from trainshed.model.resources import Amounts, Gpu, Node
from trainshed.policy.effective import Fleet
from trainshed.store import settings
from trainshed.store.database import Connection


def encode_nodes(nodes: Sequence[Node]) -> str:
    return json.dumps([asdict(node) for node in nodes], sort_keys=True)


def decode_nodes(text: str | None) -> tuple[Node, ...]:
    """The nodes of `encode_nodes`; none before the first controller ran."""
    return tuple(
        Node(
            name=item["name"],
            gpus=tuple(Gpu(**gpu) for gpu in item["gpus"]),
            amounts=Amounts(**item["amounts"]),
        )
        for item in json.loads(text or "[]")
    )


class SharedFleet:
    """Reads the nodes and keeps what was derived from them until they change. Thread-safe."""

    def __init__(self) -> None:
        self._seen: tuple[str | None, tuple[Node, ...], Fleet] = (None, (), Fleet(()))

    def read(self, connection: Connection) -> Fleet:
        return self._refresh(connection)[2]

    def nodes(self, connection: Connection) -> tuple[Node, ...]:
        return self._refresh(connection)[1]

    def _refresh(self, connection: Connection) -> tuple[str | None, tuple[Node, ...], Fleet]:
        text = settings.get(connection, settings.NODES)
        seen = self._seen
        if seen[0] != text:
            nodes = decode_nodes(text)
            seen = self._seen = (text, nodes, Fleet(nodes))
        return seen
