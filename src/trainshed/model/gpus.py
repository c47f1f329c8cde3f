"""GPU names: which models of a fleet a written GPU type means.

People write ``H100``; the driver says ``NVIDIA H100 80GB HBM3``. The rules, told to users in
``docs/scheduling.md``:

1.  Letter case, punctuation and vendor words (NVIDIA, GeForce, Tesla ...) do not count.
2.  A type that names a model completely means that model alone: ``RTX 3080`` is not ``RTX 3080 Ti`` where
    the fleet has both.
3.  Otherwise it means every model that contains its words, whole and in order: ``A100 80GB`` is
    ``A100-SXM4-80GB``, ``H100`` is any H100 variant, and ``A10`` is never ``A100``.
4.  A MIG slice is meant only by a type that says ``MIG``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

_VENDOR_WORDS = frozenset({"nvidia", "geforce", "tesla", "quadro", "amd", "instinct", "radeon"})


def matching_models(gpu_type: str, models: Iterable[str]) -> tuple[str, ...]:
    """The models that ``gpu_type`` means, sorted; empty if it means none of them."""
    asked = _words(gpu_type)
    if not asked:
        return ()
    named = {model: _words(model) for model in models}
    whole = "".join(asked)
    exact = [model for model, words in named.items() if "".join(words) == whole]
    if exact:
        return tuple(sorted(exact))
    return tuple(
        sorted(
            model
            for model, words in named.items()
            if ("mig" not in words or "mig" in asked) and _contains(words, asked)
        )
    )


def nearest_models(gpu_type: str, models: Iterable[str], *, count: int = 3) -> tuple[str, ...]:
    """Models whose names resemble ``gpu_type`` most, for a refusal that helps."""
    known = sorted(set(models))
    asked = "".join(_words(gpu_type))

    def likeness(model: str) -> float:
        candidates = (*_words(model), "".join(_words(model)))
        return max(difflib.SequenceMatcher(None, asked, word).ratio() for word in candidates)

    return tuple(sorted(known, key=lambda model: (-likeness(model), model))[:count])


def _words(name: str) -> tuple[str, ...]:
    return tuple(word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _VENDOR_WORDS)


def _contains(words: Sequence[str], asked: Sequence[str]) -> bool:
    """Whether ``asked`` occurs in order; one asked word may be several joined ones (``RTX4090``)."""
    place = 0
    for word in asked:
        ends = [
            (start, end)
            for start in range(place, len(words))
            for end in range(start + 1, len(words) + 1)
            if "".join(words[start:end]) == word
        ]
        if not ends:
            return False
        place = ends[0][1]
    return True
