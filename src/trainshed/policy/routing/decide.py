"""Choosing a provider: filters, scores, and a sentence for each (g.1 to g.4)."""

from __future__ import annotations

from collections.abc import Sequence

from trainshed.model.scripts.spec import LOCAL
from trainshed.policy.routing.filters import RECHECK_SECONDS, first_refusal, fitting
from trainshed.policy.routing.snapshot import (
    Candidate,
    Decision,
    Need,
    Offer,
    Outcome,
    ProviderView,
    Rejection,
    Weights,
)

_WEEK_HOURS = 168.0
_HALF = 0.5
_NOT_MINE = ("pinned_elsewhere", "local_not_asked")


def decide(
    need: Need, providers: Sequence[ProviderView], now: float, weights: Weights | None = None
) -> Decision:
    """Where the Job runs; whether it waits and until when; or why it fits nowhere."""
    weights = weights or Weights()
    rejected: list[Rejection] = []
    open_views: list[ProviderView] = []
    for view in providers:
        refusal = first_refusal(need, view, now)
        if refusal is None:
            open_views.append(view)
        else:
            rejected.append(refusal)
    if not need.smoke and need.provider is None:
        open_views, held_back = _without_this_machine(open_views, rejected)
        rejected += held_back
    candidates = sorted(
        (_candidate(need, view, now, weights) for view in open_views),
        key=lambda each: (-each.score, -_priority(each, providers), each.provider),
    )
    if candidates:
        return _decision(need, Outcome.PLACE, candidates, rejected, _why_chosen(need, candidates, rejected))
    waiting = [each for each in rejected if not each.lasting]
    if waiting:
        at = min(each.retry_at for each in waiting if each.retry_at is not None)
        reason = "; ".join(f"{each.provider}: {each.sentence}" for each in waiting)
        return _decision(need, Outcome.WAIT, [], rejected, f"waits: {reason}", max(at, now + 1.0))
    return _decision(need, Outcome.NO_FIT, [], rejected, _why_nowhere(need, providers, rejected))


def _without_this_machine(
    views: list[ProviderView], rejected: Sequence[Rejection]
) -> tuple[list[ProviderView], list[Rejection]]:
    """This machine is for quick tests, for who asks for it, or where there is nothing else (g.3)."""
    others = [view for view in views if not view.is_local]
    coming = [each.provider for each in rejected if not each.lasting and each.provider != LOCAL]
    if len(others) == len(views) or not (others or coming):
        return views, []
    named = ", ".join([*(view.name for view in others), *coming])
    said = f"it is for quick tests and for Jobs that ask for it; {named} can take this one"
    return others, [Rejection(LOCAL, "local_not_asked", said)]


def _candidate(need: Need, view: ProviderView, now: float, weights: Weights) -> Candidate:
    offer = fitting(need, view.offers)
    points = _points(need, view, now, weights)
    share = _share(need, view)
    said = [f"{sentence} ({value:+g})" for value, sentence in points]
    label = _label(offer)
    return Candidate(
        view.name,
        offer,
        sum(value for value, _ in points),
        f"{label}: {'; '.join(said)}" if said else label,
        share,
    )


def _label(offer: Offer | None) -> str:
    if offer is None:
        return "no GPU"
    many = f"{offer.count} x " if offer.count > 1 else ""
    return f"{many}{offer.label} with {offer.vram_gb:g} GB"


def _share(need: Need, view: ProviderView) -> float | None:
    """What part of the quota that is left the Job would take; nothing left counts as more than all."""
    if view.quota is None or not need.hours_given:
        return None
    return need.hours / view.quota.left_hours if view.quota.left_hours > 0 else float("inf")


def _points(need: Need, view: ProviderView, now: float, weights: Weights) -> list[tuple[float, str]]:
    points: list[tuple[float, str]] = []
    long = need.hours > weights.long_hours
    if need.smoke and view.is_local:
        points.append((weights.smoke_local, "a quick test runs here at once"))
    if view.name == "kaggle":
        said = "long sessions suit a long Job" if long else "it takes minutes to begin"
        points.append((weights.kaggle_long if long else weights.kaggle_short, said))
    if view.name == "colab":
        said = "it may end a long Job early" if long else "it begins at once"
        points.append((weights.colab_long if long else weights.colab_short, said))
    quota = view.quota
    if quota is not None and quota.resets_at is not None and quota.resets_at > now:
        hours = (quota.resets_at - now) / 3600
        soon = weights.sooner_reset * max(0.0, 1 - hours / _WEEK_HOURS)
        points.append((round(soon, 1), f"its quota is renewed in {hours:.0f} h"))
        much = quota.limit_hours is not None and quota.left_hours > weights.lose_it_share * quota.limit_hours
        if much and hours <= weights.lose_it_hours:
            points.append((weights.use_it_or_lose_it, f"{quota.left_hours:.1f} h would be lost then"))
    share = _share(need, view)
    if share is not None and share > _HALF:
        points.append((weights.big_share, "it would take more than half of what is left"))
    return points


def _priority(candidate: Candidate, providers: Sequence[ProviderView]) -> int:
    return next(view.priority for view in providers if view.name == candidate.provider)


def _decision(
    need: Need,
    outcome: Outcome,
    candidates: Sequence[Candidate],
    rejected: Sequence[Rejection],
    reason: str,
    retry_at: float | None = None,
) -> Decision:
    return Decision(
        outcome=outcome,
        chosen=candidates[0] if candidates else None,
        candidates=tuple(candidates),
        rejected=tuple(rejected),
        reason=reason,
        hours=need.hours,
        hours_source="spec" if need.hours_given else "heuristic",
        smoke=need.smoke,
        retry_at=retry_at,
    )


def _why_chosen(need: Need, candidates: Sequence[Candidate], rejected: Sequence[Rejection]) -> str:
    best = candidates[0]
    if need.provider is not None:
        return f"{best.provider}, as the Job asks · {best.sentence}"
    said = f"{best.provider} · {best.sentence}"
    if need.smoke and best.provider != LOCAL:
        here = next((each for each in rejected if each.provider == LOCAL), None)
        why = here.sentence if here else "it is no provider of this server"
        said += f" · a quick test would run on this machine, but {why}"
    elif len(candidates) > 1:
        said += f" · better than {', '.join(each.provider for each in candidates[1:])}"
    elif best.provider == LOCAL and not need.smoke:
        said += " · nothing else can be used"
    return said


def _why_nowhere(need: Need, providers: Sequence[ProviderView], rejected: Sequence[Rejection]) -> str:
    if need.provider is not None:
        mine = next((each for each in rejected if each.provider == need.provider), None)
        if mine is None:
            return f"no provider fits: there is no provider {need.provider}"
        return f"no provider fits: the Job asks for {need.provider}, and {mine.sentence}"
    if not providers:
        return "no provider fits: this server has none"
    if need.gpu is not None and all(each.code == "gpu_not_offered" for each in rejected):
        types = sorted({offer.type for view in providers for offer in view.offers})
        offered = ", ".join(types) or "no GPU at all"
        return f"no provider fits: none offers {need.gpu}; they offer {offered}"
    relevant = [each for each in rejected if each.code not in _NOT_MINE]
    return "no provider fits: " + "; ".join(f"{each.provider}: {each.sentence}" for each in relevant)


def look_again_at(decision: Decision, now: float) -> float:
    """When a Job that waits is routed again, also if nobody says anything meanwhile."""
    return decision.retry_at if decision.retry_at is not None else now + RECHECK_SECONDS
