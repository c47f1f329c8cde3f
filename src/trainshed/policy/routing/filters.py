"""Hard filters: why a provider is out of the question, each in one sentence (g.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from trainshed.model.gpus import matching_models
from trainshed.policy.migration import quota_ends_first
from trainshed.policy.routing.snapshot import Health, Need, Offer, ProviderView, Quota, Rejection

RECHECK_SECONDS = 60.0
"""When a provider that was down, or busy, is looked at again."""
Filter = Callable[[Need, ProviderView, float], Rejection | None]


def fitting(need: Need, offers: Iterable[Offer]) -> Offer | None:
    """The smallest accelerator that is enough: of the type asked for, with the memory asked for."""
    fit = [each for each in offers if _is_type(need, each) and each.vram_gb >= (need.vram_gb or 0)]
    return min(fit, key=lambda each: (each.vram_gb, each.count, each.type), default=None)


def first_refusal(need: Need, view: ProviderView, now: float) -> Rejection | None:
    """The first filter that refuses this provider; ``None`` if it could take the Job now."""
    return next((found for refuse in FILTERS if (found := refuse(need, view, now))), None)


def when(moment: float) -> str:
    """A moment as reasons write it."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _is_type(need: Need, offer: Offer) -> bool:
    return need.gpu is None or _plain(need.gpu) == _plain(offer.type)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _pinned(need: Need, view: ProviderView, _now: float) -> Rejection | None:
    if need.provider is None or need.provider == view.name:
        return None
    return Rejection(view.name, "pinned_elsewhere", f"the Job asks for {need.provider}")


def _excluded(need: Need, view: ProviderView, _now: float) -> Rejection | None:
    why = need.excluded.get(view.name)
    return None if why is None else Rejection(view.name, "excluded", f"it refused this Job: {why}")


def _disabled(_need: Need, view: ProviderView, _now: float) -> Rejection | None:
    if view.enabled:
        return None
    return Rejection(view.name, "disabled", view.message or "it is switched off in the configuration")


def _closed(_need: Need, view: ProviderView, now: float) -> Rejection | None:
    return Rejection(view.name, "closed", view.closed, now + RECHECK_SECONDS) if view.closed else None


def _unusable(_need: Need, view: ProviderView, now: float) -> Rejection | None:
    if view.health in {Health.OK, Health.UNKNOWN}:
        return None
    said = {
        Health.AUTH_REQUIRED: "not logged in",
        Health.NOT_INSTALLED: "not installed",
        Health.UNAVAILABLE: "it does not answer",
    }[view.health]
    retry = now + RECHECK_SECONDS if view.health is Health.UNAVAILABLE else None
    return Rejection(view.name, str(view.health), f"{said}: {view.message}" if view.message else said, retry)


def _cooling(_need: Need, view: ProviderView, now: float) -> Rejection | None:
    until = view.cooldown_until
    if until is None or until <= now:
        return None
    return Rejection(view.name, "cooling_down", f"left alone after errors until {when(until)}", until)


def _used_up(need: Need, view: ProviderView, now: float) -> Rejection | None:
    until = view.exhausted_until
    if until is not None and until > now:
        return Rejection(view.name, "quota_exhausted", f"its quota is used up until {when(until)}", until)
    quota = view.quota
    if quota is None:
        return None
    if quota.left_hours > 0:
        return _nearly_used_up(need, view, quota, now)
    if quota.resets_at is not None and quota.resets_at > now:
        until = quota.resets_at
        return Rejection(view.name, "quota_exhausted", f"its quota is used up until {when(until)}", until)
    return Rejection(view.name, "quota_exhausted", "its quota is used up", now + RECHECK_SECONDS)


def _nearly_used_up(need: Need, view: ProviderView, quota: Quota, now: float) -> Rejection | None:
    """What would be handed over at once is not sent there."""
    hands_over = view.resume and need.checkpoints and not need.interactive
    left, resets = quota.left_hours, quota.resets_at
    if not hands_over or not quota_ends_first(left, need.hours, view.running + 1, now, resets):
        return None
    said = f"{left * 60:.0f} minutes of its quota are left, about {need.hours:g} h are needed"
    until = resets if resets is not None and resets > now else now + RECHECK_SECONDS
    return Rejection(view.name, "quota_exhausted", said, until)


def _no_such_gpu(need: Need, view: ProviderView, now: float) -> Rejection | None:
    if need.gpu is None or any(_is_type(need, each) for each in view.offers):
        return None
    if any(_plain(need.gpu) == _plain(each) or matching_models(each, [need.gpu]) for each in view.away):
        return _away(view, need.gpu, now)
    return Rejection(view.name, "gpu_not_offered", f"it offers no {need.gpu}, only {_listed(view.offers)}")


def _away(view: ProviderView, what: str, now: float) -> Rejection:
    said = view.closed or view.message
    why = "" if view.health is Health.OK or not said else f": {said}"
    return Rejection(view.name, "gpu_away", f"it shows no {what} now{why}", now + RECHECK_SECONDS)


def _too_little_memory(need: Need, view: ProviderView, now: float) -> Rejection | None:
    if need.vram_gb is None or fitting(need, view.offers) is not None:
        return None
    if view.away and need.gpu is None:
        return _away(view, f"GPU with {need.vram_gb:g} GB", now)
    most = max((each.vram_gb for each in view.offers if _is_type(need, each)), default=None)
    if most is None:
        return Rejection(view.name, "vram_too_small", f"it has no GPU, {need.vram_gb:g} GB are needed")
    said = f"its largest GPU has {most:g} GB, {need.vram_gb:g} GB are needed"
    return Rejection(view.name, "vram_too_small", said)


def _not_interactive(need: Need, view: ProviderView, _now: float) -> Rejection | None:
    if not need.interactive or view.interactive:
        return None
    return Rejection(view.name, "interactive_unsupported", "it runs nothing interactive")


def _session_too_short(need: Need, view: ProviderView, _now: float) -> Rejection | None:
    cap = view.max_session_hours
    hands_over = view.resume and need.checkpoints and not need.interactive
    if cap is None or need.hours <= cap or hands_over:
        return None
    said = f"a session ends after {cap:g} h, about {need.hours:g} h are needed, and it cannot go on elsewhere"
    return Rejection(view.name, "session_too_short", said)


def _takes_no_data(need: Need, view: ProviderView, _now: float) -> Rejection | None:
    if not need.data or view.data:
        return None
    return Rejection(view.name, "data_unsupported", "it cannot be given datasets")


def _too_big(need: Need, view: ProviderView, _now: float) -> Rejection | None:
    if view.max_bundle_mb is None or need.bundle_mb <= view.max_bundle_mb:
        return None
    said = f"it takes {view.max_bundle_mb:g} MB of files at most, these are {need.bundle_mb:.0f} MB"
    return Rejection(view.name, "bundle_too_big", said)


def _full(_need: Need, view: ProviderView, now: float) -> Rejection | None:
    if view.max_concurrency is None or view.running < view.max_concurrency:
        return None
    runs = "a Job of yours" if view.running == 1 else f"{view.running} Jobs of yours"
    return Rejection(
        view.name,
        "concurrency_full",
        f"it runs {runs} and takes no more at once",
        now + RECHECK_SECONDS,
        busy=True,
    )


def _listed(offers: Iterable[Offer]) -> str:
    return ", ".join(sorted({each.type for each in offers})) or "no GPU at all"


FILTERS: tuple[Filter, ...] = (
    _pinned,
    _excluded,
    _disabled,
    _no_such_gpu,
    _too_little_memory,
    _not_interactive,
    _session_too_short,
    _takes_no_data,
    _too_big,
    _closed,
    _unusable,
    _cooling,
    _used_up,
    _full,
)
"""What never changes comes first, so that the reason given is the one that matters."""
