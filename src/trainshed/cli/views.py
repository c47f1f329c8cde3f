"""How Jobs, Trials and their parts look to people. Each view draws from the server's own document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainshed.cli.output import Fields, Pick, Sentence, Table, pick, size

Document = Mapping[str, Any]


def gpu_text(row: Document) -> str | None:
    """The GPUs of a Trial, e.g. ``2xH100 [0,1] simulated``; what it asked for while it waits."""
    gpu = row.get("gpu")
    if isinstance(gpu, Mapping):
        indices = gpu.get("indices") or []
        label = " simulated" if gpu.get("simulated") else ""
        return f"{len(indices)}x{gpu.get('model')} [{','.join(map(str, indices))}]{label}"
    resources = row.get("resources") or {}
    wanted = resources.get("gpus")
    return f"wants {wanted}x{resources.get('gpu_type')}" if wanted else None


def reason_text(row: Document) -> str | None:
    """Why it failed or what it waits for."""
    for key in ("error", "waiting"):
        found = row.get(key)
        if isinstance(found, Mapping):
            parts = [str(found[part]) for part in ("code", "message") if found.get(part)]
            if found.get("position"):
                parts.append(f"place {found['position']} in the queue")
            return ": ".join(parts[:2]) + "".join(f"; {part}" for part in parts[2:])
    return None


def artifact_size(row: Document) -> str:
    """The size of an artifact for people."""
    return size(int(row.get("size") or 0))


JOBS = Table(
    (
        ("JOB", "job_id"),
        ("STATUS", "status"),
        ("TRIALS", lambda row: len((row.get("training") or {}).get("trials") or ()) or None),
        ("REQUEST", "request_id"),
        ("CREATED", "created_at"),
        ("FINISHED", "finished_at"),
    ),
    empty="No Jobs yet. `job submit` makes one.",
)
TRIALS = Table(
    (
        ("TRIAL", "trial_id"),
        ("NAME", "name"),
        ("STATE", lambda row: row.get("state") or row.get("status")),
        ("EXIT", "exit_code"),
        ("GPU", gpu_text),
        ("OUTPUT", "output_status"),
        ("RELEASED", "cleanup_confirmed"),
        ("WHY", reason_text),
    ),
    empty="No Trials.",
)
TRIALS_OF_JOB = Table(TRIALS.columns, empty="No Trials.", rows="training.trials")
JOB = Fields(
    (
        ("job", "job_id"),
        ("status", "status"),
        ("request id", "request_id"),
        ("tags", lambda row: row.get("tags") or None),
        ("created", "created_at"),
        ("finished", "finished_at"),
        ("error", reason_text),
    ),
)
TRIAL = Fields(
    (
        ("trial", "trial_id"),
        ("job", "job_id"),
        ("name", "name"),
        ("status", "status"),
        ("state", "state"),
        ("why", reason_text),
        ("exit code", "exit_code"),
        ("exit signal", "exit_signal"),
        ("runner", "runner.selector"),
        ("source ref", "runner.source_ref"),
        ("snapshot", "runner.snapshot_sha256"),
        ("image", "image.resolved"),
        ("entrypoint", "entrypoint"),
        ("command", "command"),
        ("resources", "resources"),
        ("timeout (s)", "timeout_seconds"),
        ("gpu", gpu_text),
        ("output", "output_status"),
        ("released", "cleanup_confirmed"),
        ("tags", lambda row: row.get("tags") or None),
        ("created", "created_at"),
        ("started", "started_at"),
        ("finished", "finished_at"),
    ),
)
PROBLEMS = Table(
    (("OUTPUT", "name"), ("PROBLEM", "code"), ("DETAIL", "message")),
    empty="Every declared output was collected.",
    rows="problems",
)
CHECKPOINTS = Table(
    (("CHECKPOINT", "checkpoint_id"), ("TRIAL", "trial_id"), ("URI", "uri"), ("DURABLE", "durable")),
    empty="No Checkpoints.",
    rows="checkpoints",
)
EVENTS = Table(
    (
        ("AT", "at"),
        ("RESOURCE", "resource_id"),
        ("STATUS", "status"),
        ("CODE", "code"),
        ("WHAT", "message"),
        ("BY", "actor"),
    ),
    empty="No events.",
)
ARTIFACTS = Table(
    (
        ("ARTIFACT", "artifact_id"),
        ("NAME", "name"),
        ("SIZE", artifact_size),
        ("STATE", "upload_state"),
        ("SHA256", "sha256"),
    ),
    empty="No artifacts: the Runner declares no outputs, or nothing matched.",
)


def ids(key: str, rows: Pick = "items") -> Sentence:
    """The ids alone, one a line: for scripts."""
    return Sentence(lambda document: "\n".join(str(row[key]) for row in pick(document, rows)))


def more(page: Document) -> list[Sentence]:
    """How to get the next page, where there is one."""
    cursor = page.get("next_cursor")
    return [Sentence(lambda _: f"There are more: add `--cursor {cursor}`.")] if cursor else []
