"""Rows of script Jobs, approvals and providers as they leave the store (see `trainshed.store.records`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Script:
    """What a Trial of kind ``script`` is beyond a Trial (contract G)."""

    trial_id: str
    job_id: str
    project_id: str
    owner: str
    """Who submitted it, as `Principal.person`; their secrets it may use."""
    source: str
    """``agent`` or ``user``."""
    spec: str
    """`ScriptSpec` as canonical JSON (`trainshed.model.scripts.document`)."""
    spec_hash: str
    outputs_dir: str
    host: str
    phase: str
    word: str
    """The state as G says it: the one that was recorded last."""
    provider: str | None
    gpu: str | None
    route: str | None
    route_reason: str | None
    not_before: float | None
    waiting_since: float | None
    excluded: str
    """JSON object: provider -> why it is not tried again for this Job."""
    placements: int
    accepted_attempts: int
    free_attempts: int
    ran_seconds: float
    overrun_approved: bool
    progress: str | None
    """JSON: ``step``, ``total``, ``source``."""
    metrics: str | None
    failure_kind: str | None
    message: str | None
    outputs_fetched: bool
    outputs_count: int | None
    cancel_requested_at: float | None
    fetch_requested_at: float | None
    """Somebody asked for its outputs to be brought (again); the controller clears it."""
    version: int
    """Grows with each event; not with progress and metrics."""

    @property
    def document(self) -> dict[str, Any]:
        """The spec, decoded."""
        return dict(json.loads(self.spec))

    @property
    def excluded_providers(self) -> dict[str, str]:
        return dict(json.loads(self.excluded))


@dataclass(frozen=True, slots=True)
class ScriptEvent:
    """One transition or note of a script Job (section b); kept for good."""

    id: int
    trial_id: str
    at: float
    kind: str
    before: str | None
    after: str | None
    reason: str
    message: str
    actor: str
    attempt: int | None


@dataclass(frozen=True, slots=True)
class ScriptAttempt:
    """What an Attempt of a script Job is beyond an Attempt: one run at one provider."""

    attempt_id: str
    trial_id: str
    number: int
    key: str
    provider: str
    state: str
    remote_ref: str | None
    url: str | None
    gpu_promised: str | None
    gpu_real: str | None
    resumed_from: int | None
    submitted_at: float | None
    started_at: float | None
    ended_at: float | None
    exit_code: int | None
    cursor: str | None
    lines: int
    seen_at: float | None
    unreachable_seconds: float
    message: str | None


@dataclass(frozen=True, slots=True)
class ScriptCheckpoint:
    """A checkpoint that was brought here: its bytes are those of a manifest."""

    trial_id: str
    number: int
    attempt: int
    step: int | None
    manifest_sha256: str
    files: int
    bytes: int
    saved_at: float
    gone_at: float | None


@dataclass(frozen=True, slots=True)
class Approval:
    """One question to a person, and their answer."""

    id: int
    job_id: str
    project_id: str
    spec_hash: str
    rules: str
    """JSON list: names of the rules that asked."""
    provider: str | None
    reason: str
    asked_at: float
    expires_at: float
    answer: str | None
    """``approved``, ``denied``, ``expired`` or ``withdrawn`` (its Job ended otherwise); ``None``: open."""
    answered_at: float | None
    answered_by: str | None
    note: str | None

    @property
    def rule_names(self) -> tuple[str, ...]:
        return tuple(json.loads(self.rules))


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A one-time code that an answer needs; only its digest is kept (c.7)."""

    approval_id: int
    digest: str
    made_at: float
    expires_at: float
    tries: int
    used_at: float | None


@dataclass(frozen=True, slots=True)
class ProviderState:
    """What is known of a provider between two looks."""

    provider: str
    enabled: bool
    health: str
    message: str | None
    checked_at: float | None
    cooldown_until: float | None
    failures: int
    exhausted_until: float | None
    offers: str | None


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """One reading of a provider's quota (g.6)."""

    id: int
    provider: str
    used: float | None
    quota_limit: float | None
    unit: str
    resets_at: float | None
    live: bool
    detail: str
    observed_at: float


@dataclass(frozen=True, slots=True)
class StagedRow:
    """A dataset that lies at a provider already (e.11)."""

    provider: str
    manifest_sha256: str
    ref: str
    bytes: int
    staged_at: float
    used_at: float


@dataclass(frozen=True, slots=True)
class UserSecret:
    """A value that Jobs list by name, sealed (h.1)."""

    project_id: str
    owner: str
    name: str
    sealed: str
    updated_at: float


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """The approval rules of a project where they differ from the defaults (c.1)."""

    project_id: str
    document: str
    updated_at: float
    updated_by: str
