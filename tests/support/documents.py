"""Documents in the contract's shape, for tests that need no server behind them."""

from __future__ import annotations

import hashlib
from typing import Any

JOB_ID = "job_01KB7Q3V9E8Z6R5T4W3X2Y1M0N"
TRIAL_ID = "trial_01KB7Q3V9E8Z6R5T4W3X2Y1M0N"
NOW = "2026-01-02T03:04:05.678901+00:00"


def trial(**changes: Any) -> dict[str, Any]:
    """A Trial that succeeded on one simulated GPU."""
    return {
        "trial_id": TRIAL_ID,
        "job_id": JOB_ID,
        "type": "train",
        "name": "trial-1",
        "status": "succeeded",
        "state": "succeeded",
        "tags": {},
        "runner": {"name": "a/b", "revision": "0" * 40, "selector": "a/b@main", "source_ref": "main"},
        "image": None,
        "resources": {"gpu_type": "H100", "gpus": 1, "cpus": 8, "memory_mb": 65536},
        "timeout_seconds": 600,
        "entrypoint": "main.sh",
        "command": None,
        "exit_code": 0,
        "exit_signal": None,
        "output_status": "complete",
        "outputs": ["out/**"],
        "problems": [],
        "cleanup_confirmed": True,
        "user_code_started": True,
        "gpu": {"model": "H100", "indices": [3], "simulated": True, "node": "here"},
        "waiting": None,
        "attempts": [],
        "created_at": NOW,
        "started_at": NOW,
        "finished_at": NOW,
        "error": None,
        **changes,
    }


def job(
    status: str = "completed", trials: list[dict[str, Any]] | None = None, **changes: Any
) -> dict[str, Any]:
    """A Job with one Trial."""
    return {
        "job_id": JOB_ID,
        "type": "train",
        "request_id": "r-1",
        "name": None,
        "status": status,
        "tags": {},
        "error": None,
        "created_at": NOW,
        "updated_at": NOW,
        "finished_at": NOW if status in {"completed", "failed", "cancelled"} else None,
        "training": {"trials": [trial()] if trials is None else trials, "counts": {}, "spec": {}},
        **changes,
    }


def record(number: int, content: str = "", **changes: Any) -> dict[str, Any]:
    """A line that a program wrote to stdout."""
    return {
        "id": f"r{number}",
        "content": content or f"line {number}",
        "at": NOW,
        "source": "runtime",
        "stream": "stdout",
        "trial_id": TRIAL_ID,
        "trial_name": "trial-1",
        **changes,
    }


def log_page(items: list[dict[str, Any]], cursor: str | None, **changes: Any) -> dict[str, Any]:
    """A log page; the last one if there is no cursor."""
    return {
        "items": items,
        "next_cursor": cursor,
        "has_more": False,
        "eof": cursor is None,
        "collection_status": "complete" if cursor is None else "collecting",
        "truncated": False,
        "dropped_bytes": 0,
        "missing_reason": None,
        "sources": [],
        **changes,
    }


def page(*items: dict[str, Any], cursor: str | None = None) -> dict[str, Any]:
    return {"items": list(items), "next_cursor": cursor}


def artifact(name: str, content: bytes, **changes: Any) -> dict[str, Any]:
    """An uploaded artifact with this content."""
    return {
        "artifact_id": f"art_{hashlib.sha256(name.encode()).hexdigest()[:12]}",
        "trial_id": TRIAL_ID,
        "name": name,
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "upload_state": "uploaded",
        "state": "uploaded",
        **changes,
    }
