"""A worker of a Ray task: waits for its turn, joins the cluster, stays until the head says it is over."""

from __future__ import annotations

import signal
import threading
import time

from trainshed.jobkit import ray_wire, reporting
from trainshed.jobkit.ray_node import Failed, node_of, pause_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.jobkit.ray_wire import Json


_DISMISSAL_SECONDS = 10.0


def run(config: Json) -> int:
    """The exit code of this member."""
    stopped = threading.Event()
    # A stop ends the driver first; the head says when that is done, or is gone.
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        line = ray_wire.meet_head(config)
        turn = line.receive()
        if turn["say"] == "end":
            return 0  # the task ended before its turn came
        gcs = turn["gcs"]
        node = node_of(config)
        node.join(gcs)
        line.send("joined")
    except (ray_wire.Gone, Failed, KeyError) as error:
        ray_wire.tell(f"this worker did not join the cluster: {error}")
        reporting.fail(f"RAY_WORKER_FAILED: {error}")
        return 0 if stopped.is_set() else 1
    if config["shared"] and not node.follows_own_place():
        message = "This Ray ignores the folder given to a worker; the head's log monitor alone reads its logs"
        reporting.report("RAY_TEMP_DIR_IGNORED", message, "warning")
    over = threading.Event()
    outcome: list[Json] = []
    threading.Thread(target=_listen, args=(line, over, outcome), daemon=True).start()
    while not pause_until(time.monotonic() + 3600, over, node.ended):
        pass
    if stopped.is_set() and not over.is_set():
        pause_until(time.monotonic() + config["grace_seconds"], over)
    elif config.get("scaling") and not over.is_set():
        # Ray ends a node that was let go; the head says so next.
        pause_until(time.monotonic() + _DISMISSAL_SECONDS, over)
    node.hand_in_logs(outcome[0].get("job") if outcome else None)
    node.end()
    if outcome or stopped.is_set():
        return 0
    message = "the head is gone" if over.is_set() else "the node's Ray processes ended"
    ray_wire.tell(message)
    reporting.fail(f"RAY_NODE_LOST: {message}")
    return 1


def _listen(line: ray_wire.Line, over: threading.Event, outcome: list[Json]) -> None:
    try:
        outcome.append(line.expect("end"))
    except ray_wire.Gone:
        pass
    over.set()
