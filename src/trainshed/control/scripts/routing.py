"""Where a packed project would run and whether a person is asked: one answer for a dry run and for a Job.

Everything is read from the database, so any process can ask (a.7).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from trainshed.control.scripts.ground import Look
from trainshed.control.training.placing import ReadCatalog
from trainshed.engines.providers.contract import Capabilities, GpuOffer
from trainshed.engines.providers.facts import all_facts
from trainshed.model.errors import FaultList
from trainshed.model.gpus import matching_models
from trainshed.model.scripts.spec import ScriptSpec
from trainshed.model.training.claims import claim_of, cluster_of, models_of
from trainshed.policy import approval
from trainshed.policy.approval import Question, Rule, Verdict
from trainshed.policy.routing import Decision, Offer, Outcome, ProviderView, Quota, Weights, decide
from trainshed.policy.routing.ledger import Ledger, Reading, Usage, reckon
from trainshed.policy.routing.snapshot import Health, need_of
from trainshed.store import policies, providers, script_work, settings
from trainshed.store.database import Connection
from trainshed.store.script_records import ProviderState

CAPABILITIES = "script_providers"
"""Row of ``meta``: what the controller's providers can do, as JSON by name, in their order."""
_HOUR, _DAY = 3600.0, 86_400.0
GRANTS: Mapping[str, tuple[float, float]] = {
    name: (facts.quota_hours, facts.quota_period_hours * _HOUR) for name, facts in all_facts().items()
}
"""Provider -> GPU-hours that are commonly granted, in so many seconds; where it does not say itself (g.5)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What would happen to a Job now."""

    decision: Decision
    verdict: Verdict | None
    """Whether a person is asked; ``None`` where it is placed nowhere, unless it waits and asks anywhere."""
    question: Question | None
    stopped_after_hours: float | None
    """Of running time, where overrun is enforced (c.4)."""

    def approval_document(self) -> dict[str, object] | None:
        """As `gpu_route` shows it (a.7)."""
        if self.verdict is None or self.question is None:
            return None
        asks = self.verdict.ask
        declared = self.question.hours is not None
        return {
            "would_ask": asks,
            "reason": self.verdict.reason if asks else None,
            "hours": round(
                self.question.hours if declared and self.question.hours else self.decision.hours, 3
            ),
            "hours_source": "spec" if declared else "heuristic",
            "stopped_for_approval_after_h": self.stopped_after_hours,
        }


class RoutePlanner:
    """Plans by what is known of the providers. Thread-safe; remembers nothing."""

    def __init__(
        self,
        weights: Weights | None = None,
        grants: Mapping[str, tuple[float, float]] | None = None,
        read_catalog: ReadCatalog | None = None,
    ) -> None:
        """``read_catalog`` tells what each project may use of the catalogue's clusters."""
        self._read_catalog = read_catalog
        self._weights = weights or Weights()
        self._grants = GRANTS if grants is None else grants

    def plan(
        self,
        connection: Connection,
        spec: ScriptSpec,
        source: str,
        now: float,
        *,
        project_id: str = "",
        look: Look | None = None,
    ) -> Plan:
        """Where it would run now. ``look``: of a Job that is there, which has a history."""
        left = 1.0 if look is None else left_to_do(look)
        excluded = {} if look is None else look.script.excluded_providers
        need = need_of(spec, excluded=excluded, left_fraction=left)
        project = project_id if look is None else look.trial.project_id
        views = self.views(connection, now, project, but=None if look is None else look.trial.id)
        decision = decide(need, views, now, self._weights)
        rules = look.policy if look else approval.read(policies.document(connection, project_id), FaultList())
        question = Question(
            source=source,
            provider="",
            gpu=need.gpu,
            hours=spec.declared_hours,
            secrets=spec.secrets,
            requires_approval=spec.requires_approval,
            approved=look is not None and look.approved,
            approved_share_at=shares_approved(look),
            done_fraction=0.0 if look is None else look.done_fraction,
        )
        if decision.outcome is not Outcome.PLACE or decision.chosen is None:
            waits = approval.judge_waiting(question, decision.waits_for, rules)
            return Plan(decision, waits, question, None) if waits.ask else Plan(decision, None, None, None)
        name = decision.chosen.provider
        view = next(each for each in views if each.name == name)
        question = replace(
            question,
            provider=name,
            gpu=decision.chosen.offer.label if decision.chosen.offer else None,
            quota_left=view.quota.left_hours if view.quota else None,
        )
        after = approval.overrun_after(rules, source, name, spec.declared_hours, interactive=spec.interactive)
        return Plan(
            decision,
            approval.judge(question, rules),
            question,
            None if after is None else round(after / _HOUR, 3),
        )

    def views(
        self, connection: Connection, now: float, project: str, *, but: str | None = None
    ) -> list[ProviderView]:
        """Every provider as it stands now for a project; ``but``: whose own Attempt does not count."""
        able = known_capabilities(connection)
        states = providers.states(connection)
        running = script_work.busy(connection, but=but)
        found = [
            self._view(connection, name, able[name], states.get(name), running[name], now, priority=-place)
            for place, name in enumerate(able)
        ]
        return [self._claimable(connection, view, able[view.name].cluster, project) for view in found]

    def _claimable(
        self, connection: Connection, view: ProviderView, named: str | None, project: str
    ) -> ProviderView:
        """Of a cluster, only what the project has a unit of its own for."""
        if named is None or self._read_catalog is None:
            return view
        _, catalog = self._read_catalog(connection)
        cluster = cluster_of(catalog, named or None)
        if cluster is None:
            said = (
                f"the catalogue has no Ray cluster {named}"
                if named
                else "the catalogue has not one Ray cluster"
            )
            return replace(view, closed=said)
        offers = tuple(o for o in view.offers if claim_of(catalog, cluster, project, o.type) is not None)
        seen = [offer.type for offer in offers]
        away = tuple(m for m in models_of(catalog, cluster, project) if not matching_models(m, seen))
        if not offers and not away and claim_of(catalog, cluster, project, None) is None:
            return replace(view, closed=f"this project has no quota of its own on cluster {cluster}")
        closed = ""
        if not offers and away and view.health in {Health.OK, Health.UNKNOWN}:
            closed = f"no node of cluster {cluster} shows a GPU that this project may use"
        return replace(view, offers=offers, away=away, closed=closed)

    def _view(
        self,
        connection: Connection,
        name: str,
        able: Capabilities,
        state: ProviderState | None,
        running: int,
        now: float,
        *,
        priority: int,
    ) -> ProviderView:
        health = state.health if state else Health.UNKNOWN
        known = health in set(Health)
        return ProviderView(
            name=name,
            enabled=(state is None or state.enabled) and health != "disabled",
            health=Health(health) if known else Health.UNKNOWN,
            message=(state.message or "") if state else "",
            offers=tuple(offers_of(state)),
            cooldown_until=state.cooldown_until if state else None,
            exhausted_until=state.exhausted_until if state else None,
            quota=self.quota(connection, name, now),
            running=running,
            max_concurrency=able.max_concurrency,
            max_session_hours=able.max_session_hours,
            max_bundle_mb=able.max_bundle_mb,
            interactive=able.interactive,
            resume=able.resume,
            data=able.data,
            priority=priority,
        )

    def quota(self, connection: Connection, name: str, now: float) -> Quota | None:
        """What is left of a provider's GPU-hours, where that is known."""
        found = self.ledger(connection, name, now)
        return None if found is None else found.quota()

    def ledger(self, connection: Connection, name: str, now: float) -> Ledger | None:
        """What was used and is granted of a provider's GPU-hours, where either is known."""
        limit, period = self._grants.get(name, (None, None))
        newest = providers.newest_quota(connection, name, live=True)
        readings: list[Reading] = []
        if newest is not None and newest.unit == "gpu_hours":
            readings = [Reading(newest.used, newest.quota_limit, newest.resets_at, newest.observed_at)]
        if limit is None and not readings:
            return None
        since = now - (period or 30 * _DAY)
        used = [
            Usage(span.started_at, span.ended_at)
            for span in script_work.spans_at(connection, name, since=since)
        ]
        return reckon(readings, used, now, limit=limit, period_seconds=period)


def left_to_do(look: Look) -> float:
    """What part of a Job is still to be done, at least a twentieth."""
    return max(0.05, 1.0 - look.done_fraction)


def shares_approved(look: Look | None) -> Sequence[str]:
    """Providers whose share of quota somebody said yes to."""
    if look is None:
        return ()
    return [each.provider for each in look.approved_by(Rule.QUOTA_SHARE) if each.provider is not None]


def offers_of(state: ProviderState | None) -> list[Offer]:
    """What a provider offered when it was asked last."""
    listed = json.loads((state.offers if state else None) or "[]")
    return [
        Offer(each["type"], each["vram_gb"], each.get("count", 1), each.get("simulated", False))
        for each in listed
    ]


def offers_document(offers: Sequence[GpuOffer]) -> str:
    """How the offers of a provider are kept."""
    return json.dumps([asdict(offer) for offer in offers], sort_keys=True)


def publish_capabilities(connection: Connection, able: Mapping[str, Capabilities]) -> None:
    """Tell every process which providers the controller has."""
    text = json.dumps({name: asdict(each) for name, each in able.items()})
    if settings.get(connection, CAPABILITIES) != text:
        settings.put(connection, CAPABILITIES, text)


def known_capabilities(connection: Connection) -> dict[str, Capabilities]:
    """What the controller's providers can do, in their order."""
    found = json.loads(settings.get(connection, CAPABILITIES) or "{}")
    return {name: Capabilities(**each) for name, each in found.items()}
