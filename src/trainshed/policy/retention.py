"""Which of a Trial's Checkpoints its Runner's rules keep. Pure.

The rules are judged once, among the Checkpoints of one Trial: a rule never costs another run its results.
What no rule keeps is superseded. Whether it may be deleted is another question: nothing that is pinned, or
that a Trial resumes from, ever is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainshed.model.checkpoints import Best, CheckpointRules, Mode


@dataclass(frozen=True, slots=True)
class Candidate:
    """One Checkpoint of a Trial, by its folder."""

    folder: str
    step: int | None = None
    value: float | None = None
    """Of the metric that the rules name; finite."""


def newest_first(candidates: Sequence[Candidate]) -> list[Candidate]:
    """By step. What has none was saved by the program at its end, and counts as the newest.

    Of equal steps the folder that lies higher is the newer: it is the copy that was made for good.
    """

    def age(each: Candidate) -> tuple[bool, int, int, str]:
        return each.step is None, each.step or 0, -each.folder.count("/"), each.folder

    return sorted(candidates, key=age, reverse=True)


def superseded(candidates: Sequence[Candidate], rules: CheckpointRules) -> Mapping[str, str]:
    """The folders that no rule keeps, each with the reason in a sentence.

    Without rules everything is kept. A metric that was never written must not cost a result: where ``best``
    is the only rule, a Checkpoint without a value is kept, and where none has a value, all are, whatever else
    is said. The name of the metric may be wrong then, and which are the best is not known.
    """
    if rules.keep_last is None and rules.best is None:
        return {}
    if rules.best is not None and all(each.value is None for each in candidates):
        return {}
    kept: set[str] = set()
    if rules.keep_last is not None:
        kept |= {each.folder for each in newest_first(candidates)[: rules.keep_last]}
    if rules.best is not None:
        kept |= _best(candidates, rules.best)
        if rules.keep_last is None:
            kept |= {each.folder for each in candidates if each.value is None}
    return {each.folder: _reason(each, rules) for each in candidates if each.folder not in kept}


def _best(candidates: Sequence[Candidate], rule: Best) -> set[str]:
    """The folders with the best values; of equal ones the newer."""
    sign = 1.0 if rule.mode is Mode.MIN else -1.0
    valued = [(sign * each.value, each.folder) for each in newest_first(candidates) if each.value is not None]
    return {folder for _, folder in sorted(valued, key=lambda pair: pair[0])[: rule.keep]}


def _reason(candidate: Candidate, rules: CheckpointRules) -> str:
    """Why no rule keeps it, with the numbers."""
    said = []
    if rules.keep_last is not None:
        said.append(f"it is not among the last {rules.keep_last}")
    if (best := rules.best) is not None:
        value = "has no value" if candidate.value is None else f"is {candidate.value:g}"
        order = "lowest" if best.mode is Mode.MIN else "highest"
        said.append(f"its {best.metric} {value}, not among the {best.keep} {order}")
    return f"The Runner's [checkpoints] rules do not keep it: {' and '.join(said)}."
