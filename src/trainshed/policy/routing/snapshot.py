"""What routing looks at, and what it answers. Hours are wall-clock hours, times Unix seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from trainshed.model.scripts.spec import LOCAL, ScriptSpec

GUESSED_HOURS = 2.0
"""What a Job without hours, and without earlier runs to go by, is taken for when places are compared."""
IMPLIED_SMOKE_HOURS = 5 / 60
"""Up to here a Job that asks for no GPU in particular is a quick test (g.3)."""


class Health(StrEnum):
    """How a provider looked when it was asked last."""

    OK = "ok"
    UNKNOWN = "unknown"
    """Not asked yet; it is tried."""
    AUTH_REQUIRED = "auth_required"
    NOT_INSTALLED = "not_installed"
    UNAVAILABLE = "provider_unavailable"


@dataclass(frozen=True, slots=True)
class Offer:
    """One kind of accelerator that a provider has."""

    type: str
    vram_gb: float
    """Memory of one of them."""
    count: int = 1
    simulated: bool = False
    """It exists only in the accounting."""

    @property
    def label(self) -> str:
        """The type as people are told of it."""
        return f"{self.type} (simulated)" if self.simulated else self.type


@dataclass(frozen=True, slots=True)
class Quota:
    """What is left of a provider's allowance (see `ledger`)."""

    left_hours: float
    limit_hours: float | None = None
    resets_at: float | None = None
    live: bool = False
    """Said by the provider a short while ago; otherwise reckoned from our own history."""


@dataclass(frozen=True, slots=True)
class ProviderView:
    """A provider as it stands now."""

    name: str
    enabled: bool = True
    health: Health = Health.OK
    message: str = ""
    """Of its last check: why it cannot be used, or what to do about it."""
    offers: tuple[Offer, ...] = ()
    away: tuple[str, ...] = ()
    """GPUs that it is said to have and that it does not show now."""
    closed: str = ""
    """Why who asks cannot use it now, although it is well."""
    cooldown_until: float | None = None
    exhausted_until: float | None = None
    """Its quota is used up until then."""
    quota: Quota | None = None
    running: int = 0
    """Attempts of ours that it runs or starts."""
    max_concurrency: int | None = 1
    max_session_hours: float | None = None
    max_bundle_mb: float | None = None
    interactive: bool = False
    resume: bool = True
    """Whether another Attempt can go on from a checkpoint."""
    data: bool = True
    priority: int = 0
    """Decides among equals; greater is better."""

    @property
    def is_local(self) -> bool:
        """Whether it is this machine (g.3)."""
        return self.name == LOCAL


@dataclass(frozen=True, slots=True)
class Need:
    """What a Job needs of a provider."""

    hours: float
    """What places are compared by."""
    hours_given: bool
    smoke: bool
    implied_smoke: bool = False
    """A quick test although nobody said so."""
    vram_gb: float | None = None
    gpu: str | None = None
    provider: str | None = None
    interactive: bool = False
    checkpoints: bool = True
    """Whether it saves checkpoints now and then, so that it may go on elsewhere."""
    data: bool = False
    bundle_mb: float = 0.0
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Providers that refused this Job -> why."""


def need_of(
    spec: ScriptSpec,
    *,
    excluded: Mapping[str, str] | None = None,
    earlier_hours: float | None = None,
    left_fraction: float = 1.0,
) -> Need:
    """What a spec needs. ``earlier_hours`` is how long the same program took before, if it ever ran.

    ``left_fraction`` is what is left to do of a Job that goes on from a checkpoint.
    """
    declared = spec.declared_hours
    hours = declared if declared is not None else (earlier_hours or GUESSED_HOURS)
    plain = spec.gpu is None and spec.vram_gb is None
    implied = not spec.smoke and spec.hours is not None and spec.hours <= IMPLIED_SMOKE_HOURS and plain
    return Need(
        hours=hours * left_fraction,
        hours_given=declared is not None,
        smoke=spec.smoke or implied,
        implied_smoke=implied,
        vram_gb=spec.vram_gb,
        gpu=spec.gpu,
        provider=spec.provider,
        interactive=spec.interactive,
        checkpoints=spec.checkpoint_interval_min > 0,
        data=bool(spec.data),
        bundle_mb=spec.bundle.bytes / 10**6,
        excluded=dict(excluded or {}),
    )


@dataclass(frozen=True, slots=True)
class Weights:
    """How much speaks for or against a provider (g.2); an administrator may change them."""

    smoke_local: float = 100.0
    long_hours: float = 4.0
    kaggle_long: float = 30.0
    kaggle_short: float = -30.0
    colab_short: float = 20.0
    colab_long: float = -10.0
    use_it_or_lose_it: float = 10.0
    """Of a quota that is renewed soon while much of it is left."""
    lose_it_hours: float = 24.0
    lose_it_share: float = 0.5
    sooner_reset: float = 15.0
    """At most, of a quota that is renewed at once; nothing of one that is renewed in a week."""
    vram_miss: float = -40.0
    """Of less memory than earlier runs of the program used."""
    big_share: float = -10.0
    """Of a Job that takes more than half of what is left."""


class Outcome(StrEnum):
    """What routing came to."""

    PLACE = "place"
    WAIT = "wait"
    NO_FIT = "no_fit"


_PASSING = frozenset({"cooling_down", str(Health.UNAVAILABLE)})
"""Codes of refusals that end by themselves, soon."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A provider that is out of the question now, and why."""

    provider: str
    code: str
    sentence: str
    retry_at: float | None = None
    """When it may be different; ``None``: never, for this Job as it is."""
    busy: bool = False
    """It only has to end something first."""

    @property
    def lasting(self) -> bool:
        """Whether waiting cannot help."""
        return self.retry_at is None

    @property
    def passing(self) -> bool:
        """Whether it takes minutes rather than days: it has no room, or does not answer for a while."""
        return self.busy or self.code in _PASSING


@dataclass(frozen=True, slots=True)
class Candidate:
    """A provider that could run the Job now."""

    provider: str
    offer: Offer | None
    score: float
    sentence: str
    quota_share: float | None = None
    """Hours over what is left; ``None`` where either is unknown."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer of routing."""

    outcome: Outcome
    chosen: Candidate | None
    candidates: tuple[Candidate, ...]
    """Best first."""
    rejected: tuple[Rejection, ...]
    reason: str
    hours: float
    hours_source: str
    """``spec`` or ``heuristic``."""
    smoke: bool
    retry_at: float | None = None
    """When to look again, of one that waits."""

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Of one that waits: the providers any of which may take it later.

        None where all of them are used up: the renewal may be days away, and a question stands for one.
        """
        passing = any(each.passing and not each.lasting for each in self.rejected)
        if self.outcome is not Outcome.WAIT or not passing:
            return ()
        return tuple(each.provider for each in self.rejected if not each.lasting)

    def as_dict(self) -> dict[str, object]:
        """As `gpu route` and `gpu_route` show it (a.7)."""
        return {
            "outcome": str(self.outcome),
            "chosen": None if self.chosen is None else self.chosen.provider,
            "candidates": [
                {
                    "provider": each.provider,
                    "gpu": each.offer.type if each.offer else None,
                    "score": round(each.score, 1),
                    "why": each.sentence,
                }
                for each in self.candidates
            ],
            "rejected": [
                {"provider": each.provider, "code": each.code, "why": each.sentence} for each in self.rejected
            ],
            "reason": self.reason,
            "hours": round(self.hours, 3),
            "hours_source": self.hours_source,
            "smoke": self.smoke,
            "router": ROUTER,
        }


ROUTER = "rules-1"
"""Names these rules in answers, so that a stored route says what made it."""
