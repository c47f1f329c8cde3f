"""Whether a Job may run without a person's yes, and when one that runs has to stop (section c).

Pure: what is asked is decided here for the dry run, at the routing of a Job and when it goes on elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import isinf
from typing import Any

from trainshed.model.errors import FaultList

LIFE_SECONDS = 24 * 3600.0
"""How long a question stands; then it is answered no."""
_HOUR = 3600.0
_LEAST_LEFT = 0.05
_NAMED_SECRETS = 4


class Rule(StrEnum):
    """What may ask for a person."""

    REQUIRES_APPROVAL = "requires_approval"
    SECRETS = "ask_secrets"
    QUOTA_SHARE = "max_quota_share"
    PROVIDER = "ask_providers"
    UNKNOWN_HOURS = "unknown_hours"
    HOURS = "auto_max_hours"
    OVERRUN = "enforce_hours"
    GPU_HOURS = "max_gpu_hours"
    COST = "max_cost"
    AGENT = "ask_agents"


@dataclass(frozen=True, slots=True)
class Rules:
    """One audience's rules (c.1)."""

    auto_max_hours: float | None = None
    """More declared hours than this ask; ``None``: never."""
    unknown_hours: str = "auto"
    """``ask`` or ``auto``."""
    ask_secrets: bool = False
    max_quota_share: float | None = 0.5
    """A greater part of the quota that is left asks."""
    enforce_hours: bool = False
    """Whether a Job that runs longer than it said is stopped."""
    ask_providers: frozenset[str] = frozenset()
    exempt_providers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Policy:
    """A project's rules."""

    agent: Rules = field(
        default_factory=lambda: Rules(
            auto_max_hours=1.0, unknown_hours="ask", ask_secrets=True, enforce_hours=True
        )
    )
    user: Rules = field(default_factory=lambda: Rules(exempt_providers=frozenset({"local"})))
    overrun_factor: float = 1.5
    overrun_grace_hours: float = 0.25
    max_gpu_hours: float | None = None
    """Of Jobs of every kind: more GPU-hours than this ask (each Job's worst case)."""
    max_cost: float | None = None
    """The same in money, where instance specs have a price."""
    ask_agents: bool = False
    """Whether every Job of an agent asks, of kinds other than `script`."""

    def of(self, source: str) -> Rules:
        """The rules for ``agent`` or ``user``."""
        return self.agent if source == "agent" else self.user


@dataclass(frozen=True, slots=True)
class Question:
    """What the rules are asked about: a Job that is about to start at a provider."""

    source: str
    """``agent`` or ``user``."""
    provider: str
    gpu: str | None = None
    hours: float | None = None
    """As declared (`ScriptSpec.declared_hours`); a guess never stands here."""
    quota_left: float | None = None
    """Hours left at the provider; ``None``: unknown."""
    secrets: Sequence[str] = ()
    requires_approval: bool = False
    approved: bool = False
    """A person said yes to this Job before."""
    approved_share_at: Collection[str] = ()
    """Providers whose share of quota a person said yes to."""
    done_fraction: float = 0.0
    """Of one that goes on from a checkpoint: step over total."""

    @property
    def hours_left(self) -> float | None:
        """What it still needs, at least 5 % of what it declared (c.4)."""
        return None if self.hours is None else self.hours * max(_LEAST_LEFT, 1.0 - self.done_fraction)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a person is asked, which rules ask, and why in words of ours."""

    ask: bool
    rules: tuple[Rule, ...] = ()
    reason: str = ""


RUN = Verdict(ask=False)


def judge(question: Question, policy: Policy) -> Verdict:
    """Whether this Job may start there now (c.2)."""
    found = _asking(question, policy)
    return _ask(question, *found) if found else RUN


def judge_waiting(question: Question, providers: Sequence[str], policy: Policy) -> Verdict:
    """Whether a person is asked at whichever of these providers has room first (c.2).

    What is left of a quota does not count: it may be more by then. Asked at once, the person answers while
    the Job waits anyway.
    """
    everywhere = [_asking(replace(question, provider=each, quota_left=None), policy) for each in providers]
    if not everywhere or not all(everywhere):
        return RUN
    found = dict(pair for asking in everywhere for pair in asking)
    return _ask(replace(question, provider=" or ".join(providers)), *found.items())


def _asking(question: Question, policy: Policy) -> list[tuple[Rule, str]]:
    """The rules that ask, and what each says."""
    rules = policy.of(question.source)
    if question.requires_approval and not question.approved:
        return [(Rule.REQUIRES_APPROVAL, "gpu.yaml says requires_approval")]
    secret = _secrets(question, rules)
    if question.provider in rules.exempt_providers:
        return [secret] if secret else []
    found = [_share(question, rules)]
    if not question.approved:
        # A yes covers the whole Job, so the question names everything that asks for it.
        found += [_asked_for(question, rules), secret, *_hours(question, rules)]
    return [each for each in found if each is not None]


def _secrets(question: Question, rules: Rules) -> tuple[Rule, str] | None:
    if not (rules.ask_secrets and question.secrets) or question.approved:
        return None
    named = ", ".join(question.secrets[:_NAMED_SECRETS])
    more = len(question.secrets) - _NAMED_SECRETS
    return Rule.SECRETS, f"it is given secrets: {named}" + (f" +{more} more" if more > 0 else "")


def _share(question: Question, rules: Rules) -> tuple[Rule, str] | None:
    hours, left = question.hours_left, question.quota_left
    if rules.max_quota_share is None or hours is None or left is None:
        return None
    if question.provider in question.approved_share_at or hours <= rules.max_quota_share * max(left, 0.0):
        return None
    said = f"over {rules.max_quota_share:.0%} of the quota that is left ({max(left, 0.0):g}h)"
    return Rule.QUOTA_SHARE, said


def _asked_for(question: Question, rules: Rules) -> tuple[Rule, str] | None:
    if question.provider not in rules.ask_providers:
        return None
    return Rule.PROVIDER, f"every Job on {question.provider} asks"


def _hours(question: Question, rules: Rules) -> list[tuple[Rule, str]]:
    hours = question.hours_left
    if hours is None:
        return [(Rule.UNKNOWN_HOURS, "no hours given")] if rules.unknown_hours == "ask" else []
    if rules.auto_max_hours is None or hours <= rules.auto_max_hours:
        return []
    return [(Rule.HOURS, f"over the {rules.auto_max_hours:g}h auto limit")]


def _ask(question: Question, *found: tuple[Rule, str]) -> Verdict:
    said = " and ".join(sentence for _, sentence in found)
    return Verdict(ask=True, rules=tuple(rule for rule, _ in found), reason=f"{said} · {where(question)}")


def where(question: Question) -> str:
    """Provider, GPU and the time involved, as every reason ends (c.3)."""
    place = " ".join(part for part in (question.provider, question.gpu) if part)
    hours = question.hours_left
    return f"{place} · {'runtime unknown' if hours is None else f'~{hours:g}h'}"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a Job of another kind may come to at worst."""

    source: str
    gpu_hours: float | None = None
    """``None``: it has no end of its own."""
    money: float | None = None
    """``None``: nobody set a price; infinite: it has a price and no end."""


def judge_cost(cost: Cost, policy: Policy) -> Verdict:
    """Whether a Runner Job or a training task needs a person's yes (the team's rules)."""
    found: list[tuple[Rule, str]] = []
    if policy.max_gpu_hours is not None:
        if cost.gpu_hours is None:
            said = "it has no time limit, so it may use any number of GPU-hours"
            found.append((Rule.GPU_HOURS, said))
        elif cost.gpu_hours > policy.max_gpu_hours:
            found.append(
                (
                    Rule.GPU_HOURS,
                    f"up to {cost.gpu_hours:g} GPU-hours, over the limit of {policy.max_gpu_hours:g}",
                )
            )
    if policy.max_cost is not None and cost.money is not None and cost.money > policy.max_cost:
        amount = "up to any amount" if isinf(cost.money) else f"up to {cost.money:.2f}"
        found.append((Rule.COST, f"{amount} in money, over the limit of {policy.max_cost:.2f}"))
    if policy.ask_agents and cost.source == "agent":
        found.append((Rule.AGENT, "an agent submitted it"))
    if not found:
        return RUN
    return Verdict(
        ask=True, rules=tuple(rule for rule, _ in found), reason=" and ".join(said for _, said in found)
    )


def overrun_after(
    policy: Policy, source: str, provider: str, hours: float | None, *, interactive: bool
) -> float | None:
    """Seconds of running time after which a Job is stopped and a person asked; ``None``: never (c.4)."""
    rules = policy.of(source)
    if not rules.enforce_hours or hours is None or interactive or provider in rules.exempt_providers:
        return None
    return allowed_seconds(policy, hours)


def allowed_seconds(policy: Policy, hours: float) -> float:
    """How long a Job that declares ``hours`` may run before that is an overrun (c.4)."""
    return max(policy.overrun_factor * hours, hours + policy.overrun_grace_hours) * _HOUR


_NUMBERS: Mapping[str, tuple[float, float]] = {
    "auto_max_hours": (0.0, 336.0),
    "max_quota_share": (0.0, 1.0),
    "overrun_factor": (1.0, 10.0),
    "overrun_grace_hours": (0.0, 24.0),
    "max_gpu_hours": (0.0, 1e9),
    "max_cost": (0.0, 1e12),
}
"""Key -> least and greatest value."""
_MAY_BE_OFF = frozenset({"auto_max_hours", "max_quota_share", "max_gpu_hours", "max_cost"})


def as_document(policy: Policy) -> dict[str, Any]:
    """The policy as `gpu policy show` and the API write it; `read` takes it back."""
    return {
        "version": 1,
        **{audience: _rules_document(policy.of(audience)) for audience in ("agent", "user")},
        "overrun_factor": policy.overrun_factor,
        "overrun_grace_hours": policy.overrun_grace_hours,
        "max_gpu_hours": policy.max_gpu_hours,
        "max_cost": policy.max_cost,
        "ask_agents": policy.ask_agents,
    }


def _rules_document(rules: Rules) -> dict[str, Any]:
    return {
        "auto_max_hours": rules.auto_max_hours,
        "unknown_hours": rules.unknown_hours,
        "ask_secrets": rules.ask_secrets,
        "max_quota_share": rules.max_quota_share,
        "enforce_hours": rules.enforce_hours,
        "ask_providers": sorted(rules.ask_providers),
        "exempt_providers": sorted(rules.exempt_providers),
    }


def read(document: Any, faults: FaultList, path: str = "") -> Policy:
    """The policy that a document means; keys that are missing keep their defaults. Faults are added."""
    base = Policy()
    if not isinstance(document, dict):
        faults.add(path, "INVALID_SPEC", "the policy must be an object")
        return base
    version = document.get("version", 1)
    if version != 1 or isinstance(version, bool):
        faults.add(_at(path, "version"), "INVALID_SPEC", "must be 1; a newer one needs a newer Trainshed")
    values: dict[str, Any] = {}
    for key, value in document.items():
        at = _at(path, key)
        if key in {"agent", "user"}:
            values[key] = _read_rules(value, base.of(key), faults, at)
        elif key in _NUMBERS and key not in {"auto_max_hours", "max_quota_share"}:
            values[key] = _number(key, value, faults, at)
        elif key == "ask_agents":
            values[key] = _flag(value, faults, at)
        elif key != "version":
            _unknown(key, as_document(base), faults, at)
    return replace(base, **{key: value for key, value in values.items() if value is not _BAD})


_BAD: Any = object()


def _read_rules(value: Any, base: Rules, faults: FaultList, path: str) -> Any:
    if not isinstance(value, dict):
        faults.add(path, "INVALID_SPEC", "must be an object of rules")
        return _BAD
    values: dict[str, Any] = {}
    for key, each in value.items():
        at = _at(path, key)
        if key in {"auto_max_hours", "max_quota_share"}:
            values[key] = _number(key, each, faults, at)
        elif key in {"ask_secrets", "enforce_hours"}:
            values[key] = _flag(each, faults, at)
        elif key == "unknown_hours":
            values[key] = each if isinstance(each, str) and each in {"ask", "auto"} else _BAD
            if values[key] is _BAD:
                faults.add(at, "INVALID_SPEC", "must be `ask` or `auto`")
        elif key in {"ask_providers", "exempt_providers"}:
            values[key] = _names(each, faults, at)
        else:
            _unknown(key, _rules_document(base), faults, at)
    return replace(base, **{key: each for key, each in values.items() if each is not _BAD})


def _number(key: str, value: Any, faults: FaultList, path: str) -> Any:
    if value is None and key in _MAY_BE_OFF:
        return None
    least, most = _NUMBERS[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        off = ", or null for no limit" if key in _MAY_BE_OFF else ""
        faults.add(path, "INVALID_SPEC", f"must be a number from {least:g} to {most:g}{off}")
        return _BAD
    return float(value)


def _flag(value: Any, faults: FaultList, path: str) -> Any:
    if isinstance(value, bool):
        return value
    faults.add(path, "INVALID_SPEC", "must be true or false")
    return _BAD


def _names(value: Any, faults: FaultList, path: str) -> Any:
    if isinstance(value, list) and all(
        isinstance(each, str) and each.isprintable() and each for each in value
    ):
        return frozenset(each.lower() for each in value)
    faults.add(path, "INVALID_SPEC", "must be a list of names of providers")
    return _BAD


def _unknown(key: object, known: Mapping[str, Any], faults: FaultList, path: str) -> None:
    faults.add(path, "INVALID_SPEC", f"there is no rule {key!s:.64}; there are {', '.join(known)}")


def _at(path: str, key: object) -> str:
    return f"{path}.{key!s:.64}" if path else f"{key!s:.64}"
