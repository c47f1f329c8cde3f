"""Reads the load of a Ray cluster for its head, with Ray's own client; a process of its own, as Ray is large.

Each second a line of JSON on stdout, from what Ray keeps for autoscalers in its GCS: ``nodes``, ``pending``
(tasks and actors that wait), ``groups`` (placement groups), ``constraints`` (`request_resources`). A line
``{"drain": NODE}`` on stdin asks a node to take nothing more, which Ray refuses unless it is idle; the answer
has ``drained`` and ``accepted``. It ends when stdin does.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

_LOOK_SECONDS = 1.0
_TIMEOUT_SECONDS = 10.0
_IDLE_TERMINATION = 1
"""Ray's `DRAIN_NODE_REASON_IDLE_TERMINATION`."""


def main(gcs: str) -> None:
    """Follow the cluster at ``gcs`` until nobody listens."""
    from ray._raylet import GcsClient  # noqa: PLC0415 - only here is Ray needed
    from ray.core.generated import autoscaler_pb2  # noqa: PLC0415 - as above

    client = GcsClient(address=gcs)
    left, look_at = b"", 0.0
    while True:
        if time.monotonic() >= look_at:
            reply = autoscaler_pb2.GetClusterResourceStateReply()
            reply.ParseFromString(client.get_cluster_resource_state(timeout_s=_TIMEOUT_SECONDS))
            _say(_state(reply.cluster_resource_state, autoscaler_pb2))
            look_at = time.monotonic() + _LOOK_SECONDS
        if select.select([0], [], [], max(0.0, look_at - time.monotonic()))[0]:
            data = os.read(0, 1 << 16)
            if not data:
                return
            *lines, left = (left + data).split(b"\n")
            for line in lines:
                node = json.loads(line)["drain"]
                words = "it had nothing to do"
                accepted, why = client.drain_node(node, _IDLE_TERMINATION, words, 0, timeout=_TIMEOUT_SECONDS)
                _say({"drained": node, "accepted": bool(accepted), "why": str(why)})


def _say(message: Json) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _state(state: Any, pb2: Any) -> Json:
    return {
        "nodes": [
            {
                "id": node.node_id.hex(),
                "address": node.node_ip_address,
                "status": pb2.NodeStatus.Name(node.status),
                "idle_seconds": node.idle_duration_ms / 1000,
                "total": dict(node.total_resources),
                "available": dict(node.available_resources),
            }
            for node in state.node_states
        ],
        "pending": [_counted(each) for each in state.pending_resource_requests if _is_free(each.request)],
        "groups": [
            [_strategy(each.details), [dict(one.resources_bundle) for one in each.requests]]
            for each in state.pending_gang_resource_requests
            if all(map(_is_free, each.requests))
        ],
        "constraints": [
            _counted(each) for asked in state.cluster_resource_constraints for each in asked.resource_requests
        ],
    }


def _counted(each: Any) -> list[object]:
    return [dict(each.request.resources_bundle), each.count]


def _is_free(request: Any) -> bool:
    """Whether any worker would do: no label is asked for, which a new one need not have."""
    # There is always one, mostly without constraints; older Ray has none.
    return not any(each.label_constraints for each in getattr(request, "label_selectors", ()))


def _strategy(details: str) -> str:
    """Of Ray's ``ID:STRATEGY|STATE``."""
    return details.rpartition(":")[2].partition("|")[0]
