"""What a task comes to: replicas, units, hardware, demand on quotas and price; exact (C21, C23)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from trainshed.model.resources import Amounts
from trainshed.model.training.catalog import MB_PER_GIB, InstanceSpec
from trainshed.model.training.spec import (
    SUBMITTER_CPUS,
    SUBMITTER_MEMORY_MB,
    Role,
    RoleGroup,
    SpecChoice,
    TaskSpec,
)

OVERHEAD = Amounts(cpus=SUBMITTER_CPUS, memory_mb=SUBMITTER_MEMORY_MB)
"""Of a submitter; shown, charged to nobody (C19)."""


@dataclass(frozen=True, slots=True)
class RoleTotal:
    """A group of replicas and what all of it takes."""

    group: RoleGroup
    amounts: Amounts

    @property
    def units(self) -> int:
        return self.group.count * self.group.units

    def as_dict(self) -> dict[str, Any]:
        return {
            "role": str(self.group.role),
            "spec": self.group.spec or None,
            "replicas": self.group.count,
            "units_per_replica": self.group.units,
            "units": self.units,
            "charged": self.group.charged,
            **_hardware(self.amounts),
        }


@dataclass(frozen=True, slots=True)
class Totals:
    """A task under one choice of specs."""

    choice: SpecChoice
    roles: tuple[RoleTotal, ...]
    price_per_hour: Mapping[str, Decimal] | None
    """By currency; ``None`` where some spec has no price."""

    @property
    def replicas(self) -> int:
        """Those that are charged: the submitter is none of them."""
        return sum(each.group.count for each in self.roles if each.group.charged)

    @property
    def units(self) -> int:
        return sum(each.units for each in self.roles)

    @property
    def amounts(self) -> Amounts:
        """What is charged."""
        return sum((each.amounts for each in self.roles if each.group.charged), Amounts())

    @property
    def demand(self) -> dict[str, int]:
        """Units by spec: equal specs of head and workers together, different ones apart (C23)."""
        found: dict[str, int] = {}
        for each in self.roles:
            if each.group.charged:
                found[each.group.spec] = found.get(each.group.spec, 0) + each.units
        return found

    def as_dict(self) -> dict[str, Any]:
        prices = self.price_per_hour
        return {
            "spec": self.choice.spec,
            "head_spec": self.choice.head,
            "replicas": self.replicas,
            "units": self.units,
            **_hardware(self.amounts),
            "demand": self.demand,
            "price_per_hour": None
            if prices is None
            else [{"amount": format(prices[name], "f"), "currency": name} for name in sorted(prices)],
            "roles": [each.as_dict() for each in self.roles],
        }


def totals(task: TaskSpec, specs: Mapping[str, InstanceSpec], choice: SpecChoice | None = None) -> Totals:
    """What ``task`` comes to under ``choice`` (default: the first); ``specs`` must hold what it names."""
    chosen = choice or task.choices()[0]
    roles = tuple(
        RoleTotal(group, OVERHEAD if group.role is Role.SUBMITTER else _amounts(group, specs))
        for group in task.roles(chosen)
    )
    return Totals(chosen, roles, _price(roles, specs))


def _amounts(group: RoleGroup, specs: Mapping[str, InstanceSpec]) -> Amounts:
    return specs[group.spec].amounts(group.units) * group.count


def _price(roles: tuple[RoleTotal, ...], specs: Mapping[str, InstanceSpec]) -> Mapping[str, Decimal] | None:
    found: dict[str, Decimal] = {}
    for each in roles:
        if not each.group.charged:
            continue
        spec = specs[each.group.spec]
        if spec.price_per_hour is None or spec.currency is None:
            return None
        found[spec.currency] = found.get(spec.currency, Decimal(0)) + spec.price_per_hour * each.units
    return found


def _hardware(amounts: Amounts) -> dict[str, Any]:
    whole, rest = divmod(amounts.memory_mb, MB_PER_GIB)
    memory = amounts.memory_mb / MB_PER_GIB if rest else whole
    return {"gpus": amounts.gpus, "cpus": amounts.cpus, "memory_gib": memory}
