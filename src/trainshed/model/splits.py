"""Which files of a Dataset are its train, validation and test split where its publisher does not say.

The rules are those that users of Hugging Face ``datasets`` know: a folder named after a split holds it; else
a file's name that has the split's word in it, set off by ``-``, ``.``, ``_``, a space or a digit, belongs to
it; else everything is ``train``. Words count in lower case only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from trainshed.model.globs import MAX_PATTERNS, pattern_fault

DEFAULT_CONFIG = "default"
SPLIT_WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "train": ("train", "training"),
        "validation": ("validation", "valid", "val", "dev"),
        "test": ("test", "testing", "eval", "evaluation"),
    }
)
_APART = "[-._ 0-9]"
_BESIDE = re.compile(
    r"(?:\..*|dataset\.toml|(?:readme|license|licence|citation|notice)(?:[._-].*)?)", re.IGNORECASE
)
_MAGIC = re.compile(r"[*?\[]")


def beside_the_data(path: str) -> bool:
    """Whether a file is about the data: dot files, ``README``, ``LICENSE``, ``dataset.toml`` at the top."""
    return "/" not in path and _BESIDE.fullmatch(path) is not None


def infer_configs(paths: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """``{"default": {split: [patterns]}}`` for a Dataset of these files; every split has one at least."""
    data = [path for path in paths if not beside_the_data(path)] or list(paths)
    folders = {path.rpartition("/")[0] for path in data}
    found = _by_words({part for folder in folders for part in folder.split("/")}, "/**")
    if not found:
        found = _by_words({path.rpartition("/")[2] for path in data}, "")
    if not found:
        found = {"train": ["**"] if len(data) == len(paths) else _all_of(data)}
    return {DEFAULT_CONFIG: found}


def _by_words(names: Iterable[str], ending: str) -> dict[str, list[str]]:
    """Per split, a pattern for each way in which one of its words stands in one of these names."""
    names = sorted(names)
    found = {}
    for split, words in SPLIT_WORDS.items():
        patterns = []
        for word in words:
            form = re.compile(rf"(?s:(.*{_APART})?{word}({_APART}.*)?)")
            ways = {
                (match[1] is not None, match[2] is not None) for match in map(form.fullmatch, names) if match
            }
            for before, after in sorted(ways):
                stem = f"{f'*{_APART}' if before else ''}{word}{f'{_APART}*' if after else ''}"
                patterns.append(f"**/{stem}{ending}")
        if patterns:
            found[split] = patterns
    return found


def _all_of(paths: Iterable[str]) -> list[str]:
    """Patterns for all of these files, and for others at the top no more than there must be."""
    tops = dict.fromkeys((path.partition("/")[0], "/" in path) for path in paths)
    whole = dict.fromkeys(_literal(name) + ("/**" if below else "") for name, below in tops)
    if len(whole) > MAX_PATTERNS:
        endings = (f"*{_literal(_ending(name))}" for name, below in tops if not below)
        folders = ("*/**",) if any(below for _, below in tops) else ()
        whole = dict.fromkeys((*endings, *folders))
    if len(whole) > MAX_PATTERNS or any(map(pattern_fault, whole)):
        return ["**"]
    return list(whole)


def _ending(name: str) -> str:
    return name[name.rindex(".") :] if "." in name else ""


def _literal(name: str) -> str:
    """A pattern for exactly this name."""
    return _MAGIC.sub(r"[\g<0>]", name)
