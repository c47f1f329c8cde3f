"""Making answers small: what agents read costs them, so null fields and long lists go (a.0.9, a.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainshed.model.scripts.guidance import UNTRUSTED, guidance
from trainshed.model.scripts.states import TERMINAL_WORDS, Word

BRIEF_SPEC = ("script", "command", "args", "hours", "provider", "gpu", "vram_gb")
FIRST_METRICS = ("loss", "train_loss", "val_loss", "acc", "accuracy")
LINE = (
    "short_id",
    "name",
    "state",
    "provider",
    "gpu",
    "progress",
    "exit_code",
    "failure_kind",
    "message",
    "outputs_dir",
    "created_at",
    "finished_at",
)
"""What an overview shows of a Job."""
MOST_METRICS, MOST_ACTIVE, MOST_RECENT, MOST_LISTED = 12, 20, 10, 100
_KILO = 1000.0


def with_guidance(job: Mapping[str, Any], *, verbose: bool, **more: Any) -> dict[str, Any]:
    """The answer about one Job: its document, what to do next, and what else is known."""
    return {
        "job": job_document(job, verbose=verbose),
        "guidance": guidance(job),
        **more,
        "untrusted": UNTRUSTED,
    }


def job_document(job: Mapping[str, Any], *, verbose: bool) -> dict[str, Any]:
    """A Job's document, brief unless ``verbose``."""
    if verbose:
        return dict(job)
    found = without_nulls({**job, "simulated": job.get("simulated") or None})
    found["spec"] = {key: job["spec"][key] for key in BRIEF_SPEC if job["spec"].get(key) not in (None, [])}
    for key in ("spec_hash", "bundle_sha256", "bundle"):
        found.pop(key, None)
    if metrics := job.get("last_metrics"):
        found["last_metrics"], hidden = few_metrics(metrics)
        if hidden:
            found["metrics_not_shown"] = hidden
    return found


def few_metrics(metrics: Mapping[str, float]) -> tuple[dict[str, float], int]:
    """The metrics that people look at first, and how many others there are."""
    ordered = sorted(metrics, key=lambda name: (_rank(name), name))
    return {name: metrics[name] for name in ordered[:MOST_METRICS]}, max(0, len(ordered) - MOST_METRICS)


def _rank(name: str) -> int:
    return FIRST_METRICS.index(name) if name in FIRST_METRICS else len(FIRST_METRICS)


def without_nulls(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say something."""
    return {key: value for key, value in document.items() if value is not None}


def bundle_document(bundle: Mapping[str, Any]) -> dict[str, Any]:
    """What was packed, as `gpu_submit` tells it (a.1): empty parts are left out."""
    found: dict[str, Any] = {
        "files": bundle["files"],
        "bytes": bundle["bytes"],
        "size": size_text(bundle["bytes"]),
    }
    for key in ("included", "left_out", "left_out_not_shown", "hint", "warnings"):
        if bundle.get(key):
            found[key] = bundle[key]
    return found


def size_text(count: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < _KILO:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _KILO
    return f"{count:.1f} TB"


def overview(
    counts: Mapping[str, int],
    active: Sequence[Mapping[str, Any]],
    recent: Sequence[Mapping[str, Any]],
    providers: Sequence[Mapping[str, Any]],
    *,
    verbose: bool,
) -> dict[str, Any]:
    """What `gpu_status` answers without a ref; what waits for a person comes first."""
    ordered = sorted(active, key=lambda job: job["state"] != Word.AWAITING_APPROVAL)
    asking = [job for job in ordered if job["state"] == Word.AWAITING_APPROVAL]
    found: dict[str, Any] = {
        "counts": {word: count for word, count in counts.items() if count},
        "active": [_line(job, verbose=verbose) for job in ordered[:MOST_ACTIVE]],
        "recent": [_line(job, verbose=verbose) for job in recent[:MOST_RECENT]],
        "providers": [dict(each) if verbose else _provider(each) for each in providers],
        "guidance": _overview_guidance(asking, len(ordered)),
        "untrusted": UNTRUSTED,
    }
    if len(ordered) > MOST_ACTIVE:
        found["active_not_shown"] = len(ordered) - MOST_ACTIVE
    if len(recent) > MOST_RECENT:
        found["recent_not_shown"] = len(recent) - MOST_RECENT
    return found


def _overview_guidance(asking: Sequence[Mapping[str, Any]], active: int) -> dict[str, Any]:
    if asking:
        first = guidance(asking[0])
        said = " ".join(guidance(job)["tell_user"] for job in asking)
        return first | {"tell_user": said, "jobs_that_ask": [job["short_id"] for job in asking]}
    return {
        "needs_approval": False,
        "next": "Look at one with gpu_status ref=<short_id>." if active else "Nothing runs.",
    }


def _line(job: Mapping[str, Any], *, verbose: bool) -> dict[str, Any]:
    if verbose:
        return dict(job)
    keys = (
        "short_id",
        "name",
        "state",
        "provider",
        "gpu",
        "progress",
        "exit_code",
        "failure_kind",
        "message",
    )
    found = without_nulls({key: job.get(key) for key in (*keys, "outputs_dir", "created_at", "finished_at")})
    if job.get("simulated"):
        found["simulated"] = True
    if job["state"] == Word.AWAITING_APPROVAL:
        found |= {"needs_approval": True, "tell_user": guidance(job)["tell_user"]}
    if job["state"] not in TERMINAL_WORDS:
        found.pop("finished_at", None)
    return found


def _provider(provider: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("name", "enabled", "health", "message", "running", "cooldown_until", "exhausted_until")
    found = without_nulls({key: provider.get(key) for key in keys})
    found["gpus"] = sorted(
        {
            f"{gpu.get('type')}{' (simulated)' if gpu.get('simulated') else ''}"
            for gpu in provider.get("gpus", ())
        }
    )
    return found
