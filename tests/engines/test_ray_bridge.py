"""How a member of a gang sees those on other nodes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.waiting import wait_until
from trainshed.engines.ray.bridge import Bridge
from trainshed.jobkit import folder, gang


def test_C27_one_that_ended_at_once_counts_as_ready_until_the_start_was_seen(tmp_path: Path) -> None:
    # All that a slow member hears of a fast one comes in one message.
    fast: dict[str, Any] = {"ready": True, "started": True, "start.json": {"start": True}}
    fast["exit"] = {"code": 0, "signal": None, "ended_by": "exit"}
    rounds = threading.Semaphore(0)

    def exchange(rank: int, state: Mapping[str, Any]) -> Mapping[str, Any]:
        rounds.release()
        return {"0": fast, str(rank): state}

    (tmp_path / "attempts" / "g.1").mkdir(parents=True)
    bridge = Bridge(tmp_path, "g", 1, 2, exchange)
    try:
        stand_in = tmp_path / "attempts" / "g.0"
        together = tmp_path / folder.GANGS / "g"
        for _ in range(3):  # with the third one begun, the second one was followed
            assert rounds.acquire(timeout=30)
        assert folder.exists(together, f"{gang.READY}.0")
        assert folder.is_held(stand_in)
        assert not folder.exists(stand_in, folder.EXIT)
        folder.write_durably(together, gang.START, {"start": True})
        wait_until(lambda: not folder.is_held(stand_in), 30, "the end of the other one")
        assert folder.read(stand_in, folder.EXIT) == fast["exit"]
    finally:
        bridge.close()
