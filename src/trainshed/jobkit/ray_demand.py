"""How many workers more what waits in a Ray cluster would need: first fit, on what is free. Pure.

A state is what `trainshed.jobkit.ray_load` reads of the cluster. What a new worker could not run either is
no reason for one. Standard library only.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]
    Amounts = dict[str, float]

LIVE = ("RUNNING", "IDLE")
"""States of nodes on which something may be placed."""
_TINY = 1e-9
_MANY = 1 << 30


def missing(state: Json, shape: Amounts, most: int) -> int:
    """So many workers of ``shape`` more, up to ``most``, would run what waits now and what was asked for."""
    live = [node for node in state["nodes"] if node["status"] in LIVE]
    waiting = _Bins([node["available"] for node in live], shape, most)
    for strategy, bundles in state["groups"]:
        waiting.add_group(strategy, bundles)
    for bundle, count in sorted(state["pending"], key=_size, reverse=True):
        waiting.add(bundle, count)
    # `request_resources` asks for a cluster of a size, whatever runs on it.
    asked = _Bins([node["total"] for node in live], shape, most)
    for bundle, count in sorted(state["constraints"], key=_size, reverse=True):
        asked.add(bundle, count)
    return max(waiting.fresh, asked.fresh)


def spares(state: Json, node_id: str, shape: Amounts) -> bool:
    """Whether the cluster would want no other node in the place of this one."""
    others = [node for node in state["nodes"] if node["id"] != node_id]
    return missing({**state, "nodes": others}, shape, 1) == 0


class _Bins:
    """What is free of nodes, and of workers that would have to come."""

    def __init__(self, free: list[Amounts], shape: Amounts, most: int) -> None:
        self._free = [dict(each) for each in free]
        self._shape = shape
        self._most = most
        self.fresh = 0
        """Workers that would have to come."""

    def add(self, bundle: Amounts, count: int) -> None:
        for free in self._free:
            count -= _take(free, bundle, count)
        if _fit(self._shape, bundle) == 0:
            return
        while count > 0 and self.fresh < self._most:
            count -= _take(self._come(), bundle, count)

    def add_group(self, strategy: str, bundles: list[Amounts]) -> None:
        """A placement group: all of its bundles or none."""
        if strategy == "STRICT_PACK":
            whole: Amounts = {}
            for bundle in bundles:
                for name, amount in bundle.items():
                    whole[name] = whole.get(name, 0.0) + amount
            bundles = [whole]
        before, fresh = [dict(each) for each in self._free], self.fresh
        used: set[int] = set()
        for bundle in bundles:
            number = self._find(bundle, used if strategy == "STRICT_SPREAD" else set())
            if number is None:
                self._free, self.fresh = before, fresh
                return
            used.add(number)

    def _find(self, bundle: Amounts, used: set[int]) -> int | None:
        for number, free in enumerate(self._free):
            if number not in used and _take(free, bundle, 1):
                return number
        if self.fresh >= self._most or _fit(self._shape, bundle) == 0:
            return None
        _take(self._come(), bundle, 1)
        return len(self._free) - 1

    def _come(self) -> Amounts:
        self.fresh += 1
        self._free.append(dict(self._shape))
        return self._free[-1]


def _fit(free: Amounts, bundle: Amounts) -> int:
    """How many of a bundle fit."""
    wanted = [(free.get(name, 0.0), amount) for name, amount in bundle.items() if amount > 0]
    return int(min((there / amount + _TINY for there, amount in wanted), default=_MANY))


def _take(free: Amounts, bundle: Amounts, count: int) -> int:
    """Take as many as fit, at most ``count``; how many that were."""
    fitting = min(count, _fit(free, bundle))
    if fitting > 0:
        for name, amount in bundle.items():
            if amount > 0:
                free[name] = free.get(name, 0.0) - fitting * amount
    return max(0, fitting)


def _size(entry: tuple[Amounts, int]) -> tuple[float, ...]:
    bundle = entry[0]
    return (bundle.get("GPU", 0.0), bundle.get("CPU", 0.0), bundle.get("memory", 0.0), sum(bundle.values()))
