"""How Jobs, Trials and their parts look to people. Each view draws from the server's own document."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from trainshed.cli.output import (
    Column,
    Fields,
    Pick,
    Sentence,
    Table,
    count,
    duration,
    local_time,
    pick,
    sentence,
    short_time,
    size,
)

Document = Mapping[str, Any]
_MIB = 1 << 20
_JOB_DIGITS = 10
_ENDING_LETTERS = 4
_COMMIT = re.compile(r"@([0-9a-f]{12})[0-9a-f]{28}$")
_MADE_FOR_A_SCRIPT = re.compile(r"script-(?:auto-[0-9a-f]+-[0-9a-f]+-\d+|[0-9a-f]{64})")
"""What the server makes of the folder and the arguments of a Job of `gpu`: a row of digests."""
_UUID = re.compile(r"([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


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
            return sentence(": ".join(parts[:2]) + "".join(f"; {part}" for part in parts[2:]))
    return None


def shared_reason(job: Document) -> str | None:
    """Why the Job failed, where its Trials do not tell it better: one is the reason of them all."""
    reasons = {reason_text(trial) for trial in pick(job, "training.trials") or ()}
    own = reason_text(job)
    return own if own not in reasons or len(reasons) == 1 else None


def trials_of_job(job: Document) -> list[Document]:
    """The Trials of a Job, without the reason that stands at the Job."""
    told = shared_reason(job)
    trials = pick(job, "training.trials") or []
    return [{**each, "error": None} if told and reason_text(each) == told else each for each in trials]


def estimate_text(row: Document) -> str | None:
    """When a waiting Trial starts, and what that time assumes."""
    start = pick(row, "waiting.estimated_start_at")
    return f"{local_time(start)}, or earlier: if what is before it takes its whole timeout" if start else None


def artifact_size(row: Document) -> str:
    """The size of an artifact for people."""
    return size(int(row.get("size") or 0))


def metric_text(row: Document) -> str | None:
    """The metric that a Checkpoint is judged by, with its value."""
    value = row.get("metric_value")
    return f"{row.get('metric')} {value:g}" if isinstance(value, int | float) else None


def value_text(row: Document) -> str | None:
    """As `metric_text` for a column that may be cut: the value first."""
    value = row.get("metric_value")
    return f"{value:g} {row.get('metric')}" if isinstance(value, int | float) else None


def whole_origin(row: Document) -> str:
    """Whose a Checkpoint is: the ids of its Job and its Trial."""
    return f"{row.get('job_id')}/{row.get('trial_id')}"


def origin_text(row: Document) -> str:
    """As `whole_origin`, for a terminal: digits that `job get` takes, and how the id of the Trial ends."""
    digits = str(row.get("job_id") or "").partition("_")[2][:_JOB_DIGITS]
    return f"{digits}/{_ending(row, 'trial_id')}"


def created_text(row: Document) -> str:
    """When it was made, for a narrow column."""
    return short_time(str(row.get("created_at") or ""))


def _ending(row: Document, key: str) -> str:
    """How an id ends: its beginning is a time, which ids made together share."""
    return f"…{str(row.get(key) or '')[-_ENDING_LETTERS:]}"


def kept_text(row: Document) -> str:
    """Whether a Checkpoint stays: for good, until somebody deletes it, or not much longer."""
    return "pinned" if row.get("pinned") else "superseded" if row.get("superseded") else "yes"


def resources_text(row: Document) -> str | None:
    """The effective resources of a Trial."""
    given = row.get("resources")
    if not isinstance(given, Mapping):
        return None
    parts = [f"{given.get('gpus')} x {given.get('gpu_type')}", count(given.get("cpus") or 0, "CPU core")]
    names = {"memory_mb": "memory", "storage_mb": "disk", "shm_mb": "shared memory"}
    parts += [f"{name} {size(given[key] * _MIB)}" for key, name in names.items() if given.get(key)]
    return ", ".join(parts)


def image_text(row: Document) -> str | None:
    """The image that runs; where it was asked for by another name, that too."""
    given = row.get("image")
    if not isinstance(given, Mapping):
        return None
    resolved, requested = str(given.get("resolved")), str(given.get("requested"))
    return resolved if requested == resolved else f"{resolved}\nasked for as {requested}"


def recipe_text(row: Document) -> str | None:
    """The Recipe of a Profile of v2; what v1 calls so are its parameters."""
    profile = row.get("profile") or {}
    return str(profile["recipe"]["uri"]) if "parameters" in profile else None


def references(row: Document, key: str) -> str | None:
    """What a Profile names under ``key``, by URI."""
    named = (row.get("profile") or {}).get(key) or ()
    entries = named.items() if isinstance(named, Mapping) else enumerate(named)
    found = []
    for name, each in entries:
        part = ", ".join(str(each[word]) for word in ("config", "split") if each.get(word))
        said = f"{each['uri']}{f' ({part})' if part else ''}"
        found.append(f"{name}={said}" if isinstance(name, str) else said)
    return ", ".join(found) or None


def parameters_text(row: Document) -> str | None:
    """The parameters of a Profile, a line each; v1 has them within its recipe."""
    profile = row.get("profile") or {}
    given = profile.get("parameters", profile.get("recipe"))
    if not isinstance(given, Mapping):
        return None
    return (
        "\n".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given.items()) or None
    )


def attempts_text(row: Document) -> str | None:
    """One line for each Attempt: engine, times, how it ended."""
    lines = []
    for each in row.get("attempts") or ():
        start, end = each.get("started_at"), each.get("ended_at")
        ran = f"{local_time(start)} to {local_time(end) if end else 'now'}" if start else "never started"
        ended_by = f", ended by {each['ended_by']}" if each.get("ended_by") else ""
        lines.append(f"{each.get('number')} on {each.get('engine')}: {ran}{ended_by}")
    return "\n".join(lines) or None


def usage_text(row: Document) -> str | None:
    """What the last Attempt used."""
    used = _last_attempt(row).get("usage") or {}
    parts = []
    if (memory := used.get("max_memory_mb")) is not None:
        parts.append(f"peak memory {size(int(memory * _MIB))}")
    if (seconds := used.get("cpu_seconds")) is not None:
        parts.append(f"{seconds:.2f} CPU seconds")
    if (written := used.get("log_bytes")) is not None:
        parts.append(f"log {size(int(written))}")
    return ", ".join(parts) or None


def enforcement_text(row: Document) -> str | None:
    """How each limit of the last Attempt was enforced."""
    found = _last_attempt(row).get("enforcement") or {}
    return ", ".join(f"{name}: {how}" for name, how in found.items()) or None


def _last_attempt(row: Document) -> Document:
    attempts = row.get("attempts") or [{}]
    last: Document = attempts[-1]
    return last


def _trials(job: Document) -> Sequence[Document]:
    found: Sequence[Document] = pick(job, "training.trials") or ()
    return found


def trial_counts(job: Document) -> str | None:
    """How many Trials a Job has; where they differ, how many of each status."""
    found = Counter(str(trial.get("status")) for trial in _trials(job))
    if len(found) > 1:
        return ", ".join(f"{number} {status}" for status, number in found.items())
    return str(sum(found.values())) if found else None


def job_runner(job: Document) -> str | None:
    """The Runner of a Job's Trials, for a terminal; of several, the first and how many more."""
    named = (_short_selector(trial) for trial in _trials(job))
    found = [each for each in dict.fromkeys(named) if each is not None]
    return f"{found[0]} and {len(found) - 1} more" if len(found) > 1 else found[0] if found else None


def whole_runners(job: Document) -> str | None:
    """The Runners of a Job's Trials."""
    named = (pick(trial, "runner.selector") for trial in _trials(job))
    return ", ".join(str(each) for each in dict.fromkeys(named) if each is not None) or None


def job_gpus(job: Document) -> str | None:
    """The GPUs of all Trials of a Job together; of what asks for no number, those that it got."""
    wanted: Counter[str] = Counter()
    for trial in _trials(job):
        given, got = trial.get("resources") or {}, trial.get("gpu") or {}
        label = " simulated" if got.get("simulated") else ""
        kind = given.get("gpu_type") or got.get("model") or "GPU"
        if number := given.get("gpus") or len(got.get("indices") or ()):
            wanted[f"{kind}{label}"] += number
    return ", ".join(f"{number}x{kind}" for kind, number in wanted.items()) or None


def job_took(job: Document) -> str | None:
    """From the first start of a program to the end of the Job, or until now."""
    starts = [trial["started_at"] for trial in _trials(job) if trial.get("started_at")]
    if not starts:
        return None
    end = job.get("finished_at")
    until = datetime.fromisoformat(end) if end else datetime.now(UTC)
    took = (until - min(map(datetime.fromisoformat, starts))).total_seconds()
    return duration(max(0.0, took))


def whole_request(job: Document) -> str | None:
    """The request id; of a Job of `gpu` whose request id was made up, its name instead."""
    given: str | None = job.get("request_id")
    if isinstance(given, str) and _MADE_FOR_A_SCRIPT.fullmatch(given):
        return job.get("name")
    return given


def short_request(job: Document) -> str | None:
    """As `whole_request`, for a terminal: of an id that was made up, its beginning."""
    given = whole_request(job)
    match = _UUID.fullmatch(given) if isinstance(given, str) else None
    return f"{match[1]}…" if match else given


def _short_selector(trial: Document) -> str | None:
    selector = pick(trial, "runner.selector")
    return None if selector is None else _COMMIT.sub(r"@\1", str(selector))


JOBS = Table(
    (
        Column("JOB", "job_id"),
        Column("STATUS", "status"),
        Column("TRIALS", trial_counts, rank=1),
        Column("RUNNER", job_runner, rank=3, whole=whole_runners),
        Column("GPUS", job_gpus, rank=4),
        Column("CREATED", "created_at"),
        Column("TOOK", job_took),
        Column("REQUEST", short_request, rank=5, whole=whole_request),
    ),
    empty="No Jobs yet. `job submit` makes one.",
)
_TRIAL_COLUMNS = (
    Column("NAME", "name", shortest=12),
    Column("STATE", lambda row: row.get("state") or row.get("status")),
    Column("EXIT", "exit_code"),
    Column("GPU", gpu_text, rank=1),
    Column("OUTPUT", "output_status", rank=2),
    Column("RELEASED", "cleanup_confirmed"),
    Column("TRIAL", "trial_id", rank=3),
)
TRIALS = Table(_TRIAL_COLUMNS, empty="No Trials.", below=reason_text)
TRIALS_OF_JOB = Table(_TRIAL_COLUMNS, empty="No Trials.", rows=trials_of_job, below=reason_text)
JOB = Fields(
    (
        ("job", "job_id"),
        ("status", "status"),
        ("request id", "request_id"),
        ("tags", lambda row: row.get("tags") or None),
        ("created", "created_at"),
        ("finished", "finished_at"),
        ("error", shared_reason),
    ),
)
TRIAL = Fields(
    (
        ("trial", "trial_id"),
        ("job", "job_id"),
        ("name", "name"),
        ("status", "status"),
        ("state", lambda row: None if row.get("state") == row.get("status") else row.get("state")),
        ("why", reason_text),
        ("estimated start", estimate_text),
        ("exit code", "exit_code"),
        ("exit signal", "exit_signal"),
        ("runner", "runner.selector"),
        ("revision", "runner.revision"),
        ("source ref", "runner.source_ref"),
        ("snapshot", "runner.snapshot_sha256"),
        ("image", image_text),
        ("entrypoint", "entrypoint"),
        ("command", "command"),
        ("resumes from", "resume_from"),
        ("profile", "profile.schema"),
        ("profile sha256", "profile_sha256"),
        ("recipe", recipe_text),
        ("parameters", parameters_text),
        ("inputs", lambda row: references(row, "inputs")),
        ("plugins", lambda row: references(row, "plugins")),
        ("resources", resources_text),
        ("timeout", lambda row: f"{row['timeout_seconds']} s" if row.get("timeout_seconds") else None),
        ("gpu", gpu_text),
        ("node", "gpu.node"),
        ("output", "output_status"),
        ("released", "cleanup_confirmed"),
        ("used", usage_text),
        ("limits", enforcement_text),
        ("attempts", attempts_text),
        ("tags", lambda row: row.get("tags") or None),
        ("created", "created_at"),
        ("started", "started_at"),
        ("finished", "finished_at"),
    ),
)
PROBLEMS = Table(
    (Column("OUTPUT", "name"), Column("PROBLEM", "code")),
    empty="Every declared output was collected.",
    rows="problems",
    below="message",
)
CHECKPOINTS = Table(
    (
        Column("CHECKPOINT", "checkpoint_id"),
        Column("STEP", "step"),
        Column("METRIC", value_text, shortest=10),
        Column("KEPT", kept_text),
        Column("FOLDER", "folder", shortest=12),
        Column("TRIAL", lambda row: _ending(row, "trial_id"), rank=1, whole="trial_id"),
    ),
    empty="No Checkpoints.",
    rows="checkpoints",
)
CHECKPOINT_LIST = Table(
    (
        Column("CHECKPOINT", "checkpoint_id"),
        Column("JOB/TRIAL", origin_text, rank=2, whole=whole_origin),
        Column("STEP", "step"),
        Column("METRIC", value_text, shortest=10),
        Column("SIZE", lambda row: size(int(row.get("size_bytes") or 0))),
        Column("KEPT", kept_text),
        Column("CREATED", created_text, rank=1, whole="created_at"),
    ),
    empty="No Checkpoints: a Trial leaves one where it saves a LoRA adapter among its declared outputs.",
)
CHECKPOINT = Fields(
    (
        ("checkpoint", "checkpoint_id"),
        ("uri", "uri"),
        ("type", "checkpoint_type"),
        ("base model", "base_model"),
        ("rank", "lora_rank"),
        ("step", "step"),
        ("metric", metric_text),
        ("no metric", "metric_fault"),
        ("job", "job_id"),
        ("trial", "trial_id"),
        ("attempt", "attempt_id"),
        ("folder", "folder"),
        ("parent", "parent"),
        ("kept", kept_text),
        ("why", "superseded"),
        ("size", lambda row: size(int(row.get("size_bytes") or 0))),
        ("created", "created_at"),
    ),
)
CHECKPOINT_FILES = Table(
    (
        Column("FILE", "name"),
        Column("SIZE", lambda row: size(int(row.get("size_bytes") or 0))),
        Column("SHA256", "sha256", rank=1),
    ),
    empty="No files.",
    rows="files",
)
CHECKPOINT_URLS = Table(
    (Column("FILE", "name"), Column("URL", "url")),
    empty="No files.",
    rows=lambda row: [{"name": name, "url": url} for name, url in row["urls"].items()],
)
GOOD_UNTIL = Sentence(
    lambda row: f"Good until {local_time(str(row.get('expires_at')))}, for whoever has them."
)
EVENTS = Table(
    (
        Column("AT", "at", moments=True),
        Column("CODE", "code"),
        Column("STATUS", "status"),
        Column("BY", "actor", rank=1),
        Column("RESOURCE", "resource_id", rank=2),
    ),
    empty="No events.",
    below=lambda row: sentence(str(row.get("message") or "")),
)
ARTIFACTS = Table(
    (
        Column("NAME", "name"),
        Column("SIZE", artifact_size),
        Column("STATE", "upload_state"),
        Column("ARTIFACT", "artifact_id", rank=1),
        Column("SHA256", "sha256", rank=2),
    ),
    empty="No artifacts: the Runner declares no outputs, or nothing matched.",
    below="deletion",
)


def ids(key: str, rows: Pick = "items") -> Sentence:
    """The ids alone, one a line: for scripts."""
    return Sentence(lambda document: "\n".join(str(row[key]) for row in pick(document, rows)))


def more(page: Document) -> list[Sentence]:
    """How to get the next page, where there is one."""
    cursor = page.get("next_cursor")
    return [Sentence(lambda _: f"There are more: add `--cursor {cursor}`.")] if cursor else []


def going(states: Mapping[str, int]) -> str:
    """How many Trials a server has that have not ended, in words; empty for none."""
    waiting = sum(number for state, number in states.items() if state in {"queued", "awaiting_approval"})
    active = sum(states.values()) - waiting
    parts = [f"{count(active, 'Trial')} going"] if active else []
    parts += [f"{count(waiting, 'Trial')} waiting"] if waiting else []
    return ", ".join(parts)
