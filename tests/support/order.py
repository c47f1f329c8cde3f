"""In which order the tests run: what takes long begins early, and heavy tests do not meet one another."""

from __future__ import annotations

from collections.abc import Sequence

import pytest


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Tests with Ray first, those that are marked ``starts_first`` at the beginning of the second half.

    pytest-xdist gives each worker an even share of the list, and who is done takes from the ends of others'
    shares. So one worker begins with the clusters, another with what else is slow, one after the other: no
    two clusters are started at once, and nobody waits for them at the end.
    """
    ray, slow, others = [], [], []
    for item in items:
        group = item.get_closest_marker("xdist_group")
        if group is not None and group.args == ("ray",):
            ray.append(item)
        else:
            (slow if item.get_closest_marker("starts_first") else others).append(item)
    half = max(0, len(items) // 2 - len(ray))
    return [*ray, *others[:half], *slow, *others[half:]]
