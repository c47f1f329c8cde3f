"""Documents in the contract's shape, for tests that need no server behind them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

JOB_ID = "job_01KB7Q3V9E8Z6R5T4W3X2Y1M0N"
TRIAL_ID = "trial_01KB7Q3V9E8Z6R5T4W3X2Y1M0N"
CHECKPOINT_ID = "ckpt_01KB7Q3V9E8Z6R5T4W3X2Y1M0N"
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


def checkpoint(files: Mapping[str, bytes] | None = None, **changes: Any) -> dict[str, Any]:
    """A Checkpoint with these files."""
    uri = f"envloop://{JOB_ID}/{CHECKPOINT_ID}"
    listed = [
        {"name": name, "size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in (files or {}).items()
    ]
    return {
        "checkpoint_id": CHECKPOINT_ID,
        "job_id": JOB_ID,
        "train_job_id": JOB_ID,
        "trial_id": TRIAL_ID,
        "attempt_id": "att_01KB7Q3V9E8Z6R5T4W3X2Y1M0N",
        "checkpoint_type": "lora",
        "base_model": "team/base",
        "lora_rank": 8,
        "step": 500,
        "parent": None,
        "metric": "eval_loss",
        "metric_value": 0.25,
        "folder": "out/checkpoint-500",
        "uri": uri,
        "tinker_path": uri,
        "durable": True,
        "pinned": False,
        "superseded": None,
        "size_bytes": sum(file["size_bytes"] for file in listed),
        "files": listed,
        "created_at": NOW,
        **changes,
    }


def receipt(status: str = "SUCCEEDED", **changes: Any) -> dict[str, Any]:
    """The receipt of a deleted Checkpoint."""
    return {
        "operation_id": "op_01KB7Q3V9E8Z6R5T4W3X2Y1M0N",
        "project_id": "default",
        "kind": "checkpoint.delete",
        "resource_id": CHECKPOINT_ID,
        "status": status,
        "errors": [],
        "created_at": NOW,
        "updated_at": NOW,
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
