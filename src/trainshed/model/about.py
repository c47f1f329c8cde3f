"""What a publisher says of a content: the ``*.toml`` beside its files, and ``about`` in its manifest.

::

    [dataset]                          # dataset.toml; [model] in model.toml, [plugin] in plugin.toml
    description = "Questions and answers"
    license = "cc-by-4.0"
    authors = ["Ada"]
    tags = ["text"]
    type = "data"                      # Datasets: data, environment or trajectory
    base_model = "org/model"           # Models only

    [configs.english.splits]           # Datasets only; without it `model.splits` infers them
    train = ["en/train/*.parquet"]
    test = ["en/test/*.parquet"]

A Recipe's is ``recipe.toml`` (`model.recipe`). Both sides of a publication apply these rules.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainshed.model.content import ContentKind
from trainshed.model.errors import Fault, FaultList, Refusal
from trainshed.model.globs import MAX_PATTERNS, OutputPatterns, pattern_fault
from trainshed.model.parameters import CUT
from trainshed.model.recipe import MAX_RECIPE_BYTES, RECIPE_FILE, Recipe, judge_recipe, read_recipe
from trainshed.model.splits import infer_configs
from trainshed.model.strict_toml import decode_toml

MAX_CONFIGS = 1_000
MAX_SPLITS = 2_000
"""Of all configs together."""
MAX_ABOUT_FILE_BYTES = MAX_RECIPE_BYTES
MAX_DESCRIPTION_CHARS = 10_000
MAX_TEXT_CHARS = 200
MAX_LISTED = 64
DATASET_TYPES = ("data", "environment", "trajectory")
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""A config or a split."""
_CODE = "INVALID_CONTENT"
_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class _Form:
    """Which file describes a kind, and what may be said in it."""

    file: str
    table: str
    texts: tuple[str, ...] = ("description", "license")
    lists: tuple[str, ...] = ("authors", "tags")
    configs: bool = False


_FORMS: Mapping[ContentKind, _Form] = {
    ContentKind.DATASETS: _Form("dataset.toml", "dataset", ("type", "description", "license"), configs=True),
    ContentKind.MODELS: _Form("model.toml", "model", ("base_model", "description", "license")),
    ContentKind.PLUGINS: _Form("plugin.toml", "plugin"),
}


def about_file(kind: ContentKind) -> str:
    """The file at the top of the folder that describes a content of this kind."""
    return RECIPE_FILE if kind is ContentKind.RECIPES else _FORMS[kind].file


def read_about(
    kind: ContentKind, paths: Sequence[str], read: Callable[[str], bytes | None]
) -> dict[str, Any]:
    """``about`` of a folder with these files. ``read(path)`` answers a file's bytes, ``None`` without it.

    Raises `Refusal` ``INVALID_CONTENT`` with every fault at once.
    """
    name = about_file(kind)
    content = read(name)
    if kind is ContentKind.RECIPES:
        if content is None:
            raise Refusal.of(_CODE, f"a Recipe needs a `{name}` at the top of its folder", path=name)
        recipe, faults = read_recipe(content)
        _refuse([*faults, *recipe.tree_faults(paths)])
        return recipe.about()
    form = _FORMS[kind]
    about, faults = ({}, []) if content is None else _parse(form, content)
    if form.configs:
        about.setdefault("type", DATASET_TYPES[0])
        if "configs" not in about:
            about["configs"] = infer_configs(paths)
    check = AboutCheck(kind, about)
    for path in paths:
        check.see(path)
    told = {fault.path for fault in faults}
    faults += [fault for fault in check.finish() if fault.path not in told]
    named = "" if content is None else f"{name}: "
    _refuse([replace(fault, message=f"{named}{fault.message}") for fault in faults])
    return about


def check_about(kind: ContentKind, about: Mapping[str, Any]) -> list[Fault]:
    """What is wrong with ``about`` by itself; empty if nothing is."""
    if kind is ContentKind.RECIPES:
        return judge_recipe(about)[1]
    form = _FORMS[kind]
    known = (*form.texts, *form.lists, *(("configs",) if form.configs else ()))
    check = _Checker(FaultList())
    check.known_keys("", about, known)
    for key in form.texts:
        check.text(key, about.get(key))
    for key in form.lists:
        check.texts(key, about.get(key))
    if form.configs:
        if about.get("type") not in DATASET_TYPES:
            said = f"not {str(about['type'])[:80]!r}" if "type" in about else "and it is missing"
            check.add("type", f"must be one of {', '.join(DATASET_TYPES)}, {said}")
        check.configs(about.get("configs"))
    return check.faults.faults


class AboutCheck:
    """Whether ``about`` fits the files it comes with: `see` every path, then `finish`."""

    def __init__(self, kind: ContentKind, about: Mapping[str, Any]) -> None:
        self._recipe: Recipe | None = None
        if kind is ContentKind.RECIPES:
            self._recipe, self._faults = judge_recipe(about)
        else:
            self._faults = check_about(kind, about)
        self._modules: set[str] = set()
        # By the folder that a pattern spells out, so that a path meets only the patterns of its own folders.
        self._open: dict[str, list[tuple[OutputPatterns, tuple[str, str]]]] = {}
        self._unmatched: dict[tuple[str, str], None] = {}
        if kind is ContentKind.DATASETS:
            for config, split, patterns in _usable_splits(about.get("configs"), self._faults):
                self._unmatched[config, split] = None
                for pattern in patterns:
                    below = self._open.setdefault(_fixed_folder(pattern), [])
                    below.append((OutputPatterns([pattern]), (config, split)))

    def see(self, path: str) -> None:
        if self._recipe is not None and path in self._recipe.module_files():
            self._modules.add(path)
        if not self._unmatched:
            return
        folder = path
        while folder:
            folder = folder.rpartition("/")[0]
            if waiting := self._open.get(folder):
                for patterns, split in waiting:
                    if split in self._unmatched and patterns.match(path):
                        del self._unmatched[split]
                self._open[folder] = [each for each in waiting if each[1] in self._unmatched]

    def finish(self) -> list[Fault]:
        """Every fault; call it after the last path."""
        faults = list(self._faults)
        if self._recipe is not None:
            faults += self._recipe.tree_faults(self._modules)
        for config, split in self._unmatched:
            where = f"configs.{config}.{split}"
            faults.append(Fault(where, _CODE, f"no file is in split `{split}` of config `{config}`"))
        return faults


def _usable_splits(configs: Any, faults: Iterable[Fault]) -> Iterator[tuple[str, str, list[str]]]:
    """Config, split and patterns of every split that has no fault of its own, nor one around it."""
    told = {fault.path for fault in faults}
    if not isinstance(configs, Mapping) or "configs" in told:
        return
    for config, splits in configs.items():
        if not isinstance(splits, Mapping):
            continue
        for split, patterns in splits.items():
            where = f"configs.{_cut(config)}.{_cut(split)}"
            count = len(patterns) if isinstance(patterns, list) else 0
            if told.isdisjoint([where, *(f"{where}[{place}]" for place in range(count))]):
                yield config, split, patterns


def _parse(form: _Form, content: bytes) -> tuple[dict[str, Any], list[Fault]]:
    try:
        document = decode_toml(content, MAX_ABOUT_FILE_BYTES)
    except ValueError as error:
        raise Refusal.of(_CODE, f"{form.file} {error}", path=form.file) from None
    check = _Checker(FaultList())
    check.known_keys("", document, (form.table, *(("configs",) if form.configs else ())))
    said = document.get(form.table, {})
    if not isinstance(said, dict):
        check.add(form.table, f"must be a table: [{form.table}]")
        said = {}
    if "configs" in said:
        check.add(f"{form.table}.configs", "belongs to the top: [configs.NAME.splits]")
    about = dict(said)
    if form.configs and "configs" in document:
        about["configs"] = check.config_tables(document["configs"])
    return about, check.faults.faults


def _fixed_folder(pattern: str) -> str:
    """The folders that a pattern spells out."""
    folders = pattern.split("/")[:-1]
    fixed = next((place for place, part in enumerate(folders) if _MAGIC.search(part)), len(folders))
    return "/".join(folders[:fixed])


def _refuse(faults: list[Fault]) -> None:
    if faults:
        raise Refusal(faults)


@dataclass(slots=True)
class _Checker:
    faults: FaultList

    def add(self, path: str, message: str) -> None:
        self.faults.add(path, _CODE, f"`{path}` {message}")

    def known_keys(self, path: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
        for key in table:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(known)}"
                self.add(_cut(f"{path}.{key}".lstrip(".")), f"is not a key that counts: {hint}")

    def text(self, key: str, value: Any) -> None:
        most = MAX_DESCRIPTION_CHARS if key == "description" else MAX_TEXT_CHARS
        if value is not None and not _is_text(value, most):
            self.add(key, f"must be text of 1 to {most} characters without control characters")

    def texts(self, key: str, value: Any) -> None:
        if value is None:
            return
        if not isinstance(value, list) or len(value) > MAX_LISTED:
            self.add(key, f"must be a list of at most {MAX_LISTED} texts")
        elif not all(_is_text(each, MAX_TEXT_CHARS) for each in value):
            self.add(key, f"must hold texts of 1 to {MAX_TEXT_CHARS} characters")

    def config_tables(self, value: Any) -> dict[str, Any]:
        """``[configs.NAME.splits]`` as it stands in TOML, in the form of ``about``."""
        if not isinstance(value, dict) or not all(isinstance(each, dict) for each in value.values()):
            self.add("configs", "must hold tables: [configs.NAME.splits]")
            return {}
        for name, table in value.items():
            self.known_keys(f"configs.{name}", table, ("splits",))
            if "splits" not in table:
                self.add(f"configs.{name}", f"has no splits: write [configs.{name}.splits]")
        return {name: table.get("splits") for name, table in value.items()}

    def configs(self, value: Any) -> None:
        if not isinstance(value, dict) or not 1 <= len(value) <= MAX_CONFIGS:
            self.add("configs", f"must hold 1 to {MAX_CONFIGS} configs, each with its splits")
            return
        splits = 0
        for config, table in value.items():
            where = f"configs.{_cut(config)}"
            if not LABEL.fullmatch(config):
                self.add(where, f"is no name of a config: {_LABEL_RULE}")
            if not isinstance(table, dict) or not table:
                self.add(where, "must hold its splits: NAME = [patterns]")
                continue
            splits += len(table)
            for split, patterns in table.items():
                self.split(f"{where}.{_cut(split)}", split, patterns)
        if splits > MAX_SPLITS:
            self.add("configs", f"hold {splits} splits; at most {MAX_SPLITS}")

    def split(self, where: str, split: str, patterns: Any) -> None:
        if not LABEL.fullmatch(split):
            self.add(where, f"is no name of a split: {_LABEL_RULE}")
        if not isinstance(patterns, list) or not 1 <= len(patterns) <= MAX_PATTERNS:
            self.add(where, f"must be a list of 1 to {MAX_PATTERNS} patterns")
            return
        for place, pattern in enumerate(patterns):
            if not isinstance(pattern, str):
                self.add(f"{where}[{place}]", "must be a pattern such as `train/**`")
            elif fault := pattern_fault(pattern):
                self.add(f"{where}[{place}]", fault.replace("the Trial's directory", "the Dataset's folder"))


_LABEL_RULE = "it starts with a letter or digit, then letters, digits, `.`, `_`, `-`; at most 128"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]}{CUT}"


def _is_text(value: Any, most: int) -> bool:
    if not isinstance(value, str) or not value.strip() or len(value) > most:
        return False
    return all(character.isprintable() or character in "\n\t" for character in value)
