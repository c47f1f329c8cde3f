"""Finding LoRA adapters among a Trial's stored outputs (contract E106-E108, reading A13).

An adapter is a folder with both ``adapter_config.json`` and ``adapter_model.safetensors``: the configuration
names ``LORA``, a base model and a rank, and the weights are a valid safetensors file with low-rank pairs.
Only the configuration and the header of the weights are read, from the store: what counts is what was stored
and verified, not what lies in the Trial's directory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainshed.content.blobs import BlobStore
from trainshed.content.outputs import CollectedFile, CollectionCancelled
from trainshed.content.safetensors import NotSafetensors, Tensor, read_header
from trainshed.model.checkpoints import METRIC_NAME
from trainshed.model.errors import Refusal
from trainshed.model.strict_json import decode_json

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
METRICS = "metrics.json"
TRAINER_STATE = "trainer_state.json"
MAX_CONFIG_BYTES = 1 << 20
MAX_METRICS_BYTES = 1 << 20
MAX_STATE_BYTES = 16 << 20
MAX_ADAPTERS = 256
"""Folders of one Trial that are looked at."""
MAX_FILES = 2048
"""Files of one adapter."""
MAX_BASE_MODEL_CHARS = 1024
MAX_RANK = 2**31 - 1
MAX_STEP = 2**31 - 1
_STEP_FOLDER = re.compile(r"checkpoint-(\d{1,10})", re.ASCII)
_HALF = re.compile(r"(?:^|\.)lora_(?:embedding_)?([AB])(?:\.|$)")


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """A folder that is a usable adapter."""

    folder: str
    """Among the Trial's outputs; empty for the top."""
    base_model: str
    rank: int
    files: tuple[CollectedFile, ...]
    """All files of the folder that belong to no adapter below it, named from the folder on."""
    step: int | None
    value: float | None
    """Of the metric that was asked for, where the program declared a finite one."""
    metric_fault: str | None = None
    """What is wrong with ``metrics.json`` where that was to say it; a sentence."""
    metrics: tuple[str, ...] = ()
    """Names that the program declared finite numbers under, sorted; looked up where there is no ``value``."""


@dataclass(frozen=True, slots=True)
class NotAnAdapter:
    """A folder that looks like an adapter and is none."""

    folder: str
    reason: str
    """A sentence."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """Everything among a Trial's outputs that is, or looks like, an adapter."""

    found: tuple[LoraAdapter, ...] = ()
    rejected: tuple[NotAnAdapter, ...] = ()
    not_looked_at: int = 0
    """Folders beyond `MAX_ADAPTERS`."""

    def __bool__(self) -> bool:
        return bool(self.found or self.rejected)


class _Unusable(Exception):
    """Why a folder is no adapter; a sentence."""


def adapter_folders(files: Sequence[CollectedFile]) -> list[str]:
    """The folders that hold one of an adapter's two files, sorted; cheap where there is none."""
    names = (file.name.rpartition("/") for file in files if file.name.endswith((CONFIG, WEIGHTS)))
    return sorted({folder for folder, _, name in names if name in {CONFIG, WEIGHTS}})


def find_adapters(
    files: Sequence[CollectedFile],
    blobs: BlobStore,
    *,
    metric: str | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Adapters:
    """The adapters among these stored files, with the value of ``metric`` where a program declared one.

    Raises `CollectionCancelled` once ``cancelled`` says so, and `BlobError` where the store fails: then
    nothing is known, and it is to be tried again.
    """
    folders = adapter_folders(files)
    if not folders:
        return Adapters()
    below = _files_by_folder(files, folders)
    found: list[LoraAdapter] = []
    rejected: list[NotAnAdapter] = []
    for folder in folders[:MAX_ADAPTERS]:
        if cancelled():
            raise CollectionCancelled
        try:
            found.append(_Folder(folder, below[folder], blobs).adapter(metric))
        except _Unusable as reason:
            rejected.append(NotAnAdapter(folder, str(reason)))
    return Adapters(tuple(found), tuple(rejected), max(0, len(folders) - MAX_ADAPTERS))


def _files_by_folder(
    files: Sequence[CollectedFile], folders: Sequence[str]
) -> dict[str, list[CollectedFile]]:
    """Each file under the nearest of ``folders`` above it, named from there on."""
    known = set(folders)
    found: dict[str, list[CollectedFile]] = {folder: [] for folder in folders}
    for file in files:
        folder = file.name.rpartition("/")[0]
        while folder and folder not in known:
            folder = folder.rpartition("/")[0]
        if folder in known:
            name = file.name.removeprefix(f"{folder}/") if folder else file.name
            found[folder].append(CollectedFile(name, file.size, file.sha256))
    return found


@dataclass(frozen=True, slots=True)
class _Folder:
    folder: str
    files: Sequence[CollectedFile]
    blobs: BlobStore

    def adapter(self, metric: str | None) -> LoraAdapter:
        """The adapter in this folder; raises `_Unusable`."""
        for name, other in ((CONFIG, WEIGHTS), (WEIGHTS, CONFIG)):
            if self._file(name) is None:
                raise _Unusable(f"there is {other} without {name} beside it among the collected outputs")
        if len(self.files) > MAX_FILES:
            raise _Unusable(f"it has {len(self.files)} files; at most {MAX_FILES}")
        base_model, rank = self._config()
        self._check_weights()
        state = self._trainer_state()
        value, fault = (None, None) if metric is None else self._value(metric, state)
        return LoraAdapter(
            folder=self.folder,
            base_model=base_model,
            rank=rank,
            files=tuple(sorted(self.files, key=lambda file: file.name)),
            step=self._step(state),
            value=value,
            metric_fault=fault,
            metrics=() if metric is None or value is not None else self._metrics(state),
        )

    def _file(self, name: str) -> CollectedFile | None:
        return next((file for file in self.files if file.name == name), None)

    def _read(self, file: CollectedFile, start: int, length: int) -> bytes:
        with self.blobs.open(file.sha256, start, length) as reader:
            return b"".join(reader.chunks())

    def _config(self) -> tuple[str, int]:
        """The base model and the rank that the configuration names."""
        config = self._object(CONFIG, MAX_CONFIG_BYTES)
        kind, base, rank = (config.get(key) for key in ("peft_type", "base_model_name_or_path", "r"))
        if kind != "LORA":
            said = f"has `peft_type` {ascii(kind)[:60]}" if "peft_type" in config else "has no `peft_type`"
            raise _Unusable(f'{CONFIG} {said}; only "LORA" can be registered')
        if not isinstance(base, str) or not base.strip() or not base.isprintable():
            said = _said(config, "base_model_name_or_path")
            raise _Unusable(f"{CONFIG} names no base model: {said}")
        if len(base) > MAX_BASE_MODEL_CHARS:
            raise _Unusable(f"{CONFIG} names a base model with {len(base)} characters")
        if type(rank) is not int or not 1 <= rank <= MAX_RANK:
            raise _Unusable(f"{CONFIG} names no rank: {_said(config, 'r')}")
        return base, rank

    def _check_weights(self) -> None:
        file = self._file(WEIGHTS)
        assert file is not None  # noqa: S101 - `adapter` looked
        try:
            tensors = read_header(lambda start, length: self._read(file, start, length), file.size)
        except NotSafetensors as error:
            raise _Unusable(f"{WEIGHTS} is no valid safetensors file: {error}") from None
        if not _has_pair(tensors):
            raise _Unusable(
                f"{WEIGHTS} holds {len(tensors)} tensors and no pair `lora_A`, `lora_B` with weights: "
                "it is empty, or of another layout than PEFT's"
            )

    def _object(self, name: str, most: int) -> dict[str, Any]:
        """A small JSON object; raises `_Unusable`."""
        file = self._file(name)
        if file is None:
            raise _Unusable(f"{name} is not there")
        if file.size > most:
            raise _Unusable(f"{name} has {file.size} bytes; at most {most} are read")
        try:
            value = decode_json(self._read(file, 0, file.size), name)
        except Refusal as refusal:
            raise _Unusable(refusal.message) from None
        if not isinstance(value, dict):
            raise _Unusable(f"{name} is no JSON object")
        return value

    def _optional(self, name: str, most: int) -> Mapping[str, Any]:
        """As `_object`, empty where there is none: it only says more about the adapter."""
        try:
            return self._object(name, most)
        except _Unusable:
            return {}

    def _trainer_state(self) -> Mapping[str, Any]:
        return self._optional(TRAINER_STATE, MAX_STATE_BYTES)

    def _step(self, state: Mapping[str, Any]) -> int | None:
        match = _STEP_FOLDER.fullmatch(self.folder.rpartition("/")[2])
        step = int(match[1]) if match else state.get("global_step")
        return step if type(step) is int and 0 <= step <= MAX_STEP else None

    def _value(self, metric: str, state: Mapping[str, Any]) -> tuple[float | None, str | None]:
        """What ``metrics.json`` says, else the newest entry of the trainer's own history that has it.

        With it, what is wrong with ``metrics.json``.
        """
        value, fault = self._declared(metric)
        if value is not None:
            return value, None
        history = state.get("log_history")
        entries = history if isinstance(history, list) else []
        values = (_finite(entry.get(metric)) for entry in reversed(entries) if isinstance(entry, dict))
        return next((value for value in values if value is not None), None), fault

    def _metrics(self, state: Mapping[str, Any]) -> tuple[str, ...]:
        declared = self._optional(METRICS, MAX_METRICS_BYTES)
        history = state.get("log_history")
        entries = [declared, *(history if isinstance(history, list) else [])]
        found = {
            name
            for entry in entries
            if isinstance(entry, dict)
            for name, value in entry.items()
            if METRIC_NAME.fullmatch(name) and _finite(value) is not None
        }
        return tuple(sorted(found))

    def _declared(self, metric: str) -> tuple[float | None, str | None]:
        if self._file(METRICS) is None:
            return None, None
        try:
            declared = self._object(METRICS, MAX_METRICS_BYTES)
        except _Unusable as fault:
            return None, str(fault)
        value = _finite(declared.get(metric))
        if value is None and metric in declared:
            said = f"{METRICS} says {ascii(declared[metric])[:60]} for `{metric}`"
            return None, f"{said}; a metric is a finite number, written as a number"
        return value, None


def _has_pair(tensors: Mapping[str, Tensor]) -> bool:
    """Whether some layer has both of its low-rank halves, with elements."""
    halves: dict[str, set[str]] = {"A": set(), "B": set()}
    for name, tensor in tensors.items():
        if (match := _HALF.search(name)) and tensor.elements:
            halves[match[1]].add(name[: match.start(1)] + name[match.end(1) :])
    return bool(halves["A"] & halves["B"])


def _said(config: Mapping[str, Any], key: str) -> str:
    return f"`{key}` is {ascii(config[key])[:60]}" if key in config else f"`{key}` is missing"


def _finite(value: Any) -> float | None:
    if type(value) not in {int, float}:
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
