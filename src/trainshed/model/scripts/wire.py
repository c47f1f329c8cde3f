"""What a script Job's log says to the server: lines of the helper and the runner, guesses from the rest (f).

A line of the wire is ``::gpu:: {json}``. Everything in it but what only the runner may say comes from the
program, which may print whatever it likes: nothing here raises, and what makes no sense is ignored. The
fields are described where they are written, in ``trainshed.jobkit.gpu_runner``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

PREFIX = "::gpu:: "
MOST_METRICS = 32
"""Names of one line, and of all that are remembered."""
_METRIC_NAME = re.compile(r"[A-Za-z0-9_.:/@%+-]{1,64}")
_LARGEST_COUNT = 1 << 53
"""What JSON can say exactly everywhere."""
_LONGEST_TEXT, _LONGEST_GUESS = 300, 2000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_LONGEST_WIRE = 1 << 16
_STATUSES, _SIGNALS = 256, 128

Number = int | float


@dataclass(frozen=True, slots=True)
class Hello:
    """The runner has begun."""

    job: str
    attempt: int
    python: str


@dataclass(frozen=True, slots=True)
class Device:
    """The accelerator that is really there."""

    kind: str
    """``cuda``, ``mps`` or ``cpu``."""
    name: str | None
    vram_gb: float | None
    """Of the smallest one, in 10^9 bytes, where known."""
    count: int


@dataclass(frozen=True, slots=True)
class Total:
    """How many steps there will be."""

    n: int


@dataclass(frozen=True, slots=True)
class Metric:
    """How far training is, and what it measured."""

    step: int | None
    values: Mapping[str, Number]


@dataclass(frozen=True, slots=True)
class CheckpointBegin:
    """A checkpoint is being saved by the program, or ``stored`` by the runner."""

    stored: bool
    name: str | None
    step: int | None


@dataclass(frozen=True, slots=True)
class CheckpointEnd:
    """The saving or storing is over."""

    stored: bool
    ok: bool
    name: str | None
    step: int | None
    n: int | None
    """The number of the stored checkpoint."""
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Exit:
    """The exit record of the runner, as far as its last line repeats it."""

    code: int
    signal: int | None
    stage: str
    stopped: bool
    message: str
    script_seconds: float | None
    checkpoint: int | None


Message = Hello | Device | Total | Metric | CheckpointBegin | CheckpointEnd | Exit


def hidden(line: str) -> bool:
    """Whether a line of the log is of the wire and not for people."""
    return line.startswith(PREFIX + "{")


def parse(line: str) -> Message | None:
    """What a line of the log says to the server; ``None`` if it says nothing, or nothing known."""
    if not hidden(line) or len(line) > _LONGEST_WIRE:
        return None
    try:
        document = json.loads(line[len(PREFIX) :])
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    kind = document.get("t")
    read = _KINDS.get(kind) if isinstance(kind, str) else None
    return read(document) if read else None


def _hello(said: dict[str, Any]) -> Hello:
    return Hello(
        _text(said.get("job")) or "", _count(said.get("attempt")) or 1, _text(said.get("python")) or ""
    )


def _device(said: dict[str, Any]) -> Device | None:
    kind, vram = _text(said.get("kind")), _number(said.get("vram_gb"))
    if kind is None or kind not in {"cuda", "mps", "cpu"}:
        return None
    gb = float(vram) if vram is not None and vram > 0 else None
    return Device(kind, _text(said.get("name")), gb, _count(said.get("count")) or 0)


def _total(said: dict[str, Any]) -> Total | None:
    n = _count(said.get("n"))
    return Total(n) if n else None


def _metric(said: dict[str, Any]) -> Metric | None:
    step = _count(said.get("step"))
    values: dict[str, Number] = {}
    given = said.get("values")
    for name, value in given.items() if isinstance(given, dict) else ():
        number = _number(value)
        if number is not None and _METRIC_NAME.fullmatch(name) and len(values) < MOST_METRICS:
            values[name] = number
    return Metric(step, values) if values or step is not None else None


def _begin(said: dict[str, Any]) -> CheckpointBegin:
    return CheckpointBegin(said.get("where") == "store", _text(said.get("name")), _count(said.get("step")))


def _end(said: dict[str, Any]) -> CheckpointEnd:
    return CheckpointEnd(
        stored=said.get("where") == "store",
        ok=said.get("ok") is True,
        name=_text(said.get("name")),
        step=_count(said.get("step")),
        n=_count(said.get("n")) or None,
        bytes=_count(said.get("bytes")),
    )


def _exit(said: dict[str, Any]) -> Exit | None:
    code, signal, seconds = _count(said.get("code")), _count(said.get("signal")), said.get("script_seconds")
    if code is None or code >= _STATUSES:
        return None
    lasted = _number(seconds)
    return Exit(
        code=code,
        signal=signal if signal is not None and 0 < signal < _SIGNALS else None,
        stage=_text(said.get("stage")) or "",
        stopped=said.get("stopped") is True,
        message=_text(said.get("message")) or "",
        script_seconds=float(lasted) if lasted is not None and lasted >= 0 else None,
        checkpoint=_count(said.get("checkpoint")) or None,
    )


_KINDS: Mapping[str, Callable[[dict[str, Any]], Message | None]] = {
    "hello": _hello,
    "device": _device,
    "total": _total,
    "metric": _metric,
    "ckpt_begin": _begin,
    "ckpt_end": _end,
    "exit": _exit,
}


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < _LARGEST_COUNT else None


def _number(value: object) -> Number | None:
    """A finite number that is no truth value, and that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None


def _text(value: object) -> str | None:
    """A text that can be stored and shown in one line."""
    if not isinstance(value, str):
        return None
    return _CONTROL.sub(" ", value[:_LONGEST_TEXT]).encode("utf-8", "replace").decode()


_FIGURE = r"[-+]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][-+]?\d{1,3})?(?![\w.])"
_LOSS = re.compile(
    rf"(?<![\w.])([A-Za-z_]{{0,24}}loss)[\"']?\s{{0,3}}[=:]\s{{0,3}}({_FIGURE})", re.IGNORECASE
)
_OF = r"(\d{1,15})\s{0,3}(?:/|of)\s{0,3}(\d{1,15})(?!\d)"
_GUESSES = (
    (
        3,
        re.compile(rf"(?<!\w)(?:global[ _])?step\s{{0,3}}[:=#]?\s{{0,3}}[\[(]?\s{{0,3}}{_OF}", re.IGNORECASE),
    ),
    (2, re.compile(rf"(?<!\w)epoch\s{{0,3}}[:=#]?\s{{0,3}}[\[(]?\s{{0,3}}{_OF}", re.IGNORECASE)),
    (1, re.compile(r"\d{1,3}%\|[^|]{0,300}\|\s{0,3}(\d{1,15})/(\d{1,15}) \[")),
)
"""How much each is worth, and what it looks like: steps, epochs, the bar of tqdm. Bars begin again and again
within an epoch, so that the better sign is followed once it was seen.
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of a run by its log so far. `follow` makes the next one; `document` can be stored."""

    step: int | None = None
    total: int | None = None
    source: str | None = None
    """``helper`` or ``guess``."""
    metrics: Mapping[str, Number] = field(default_factory=dict)
    """The newest value of each."""
    declared: bool = False
    """The program itself said how many steps there will be."""
    worth: int = 0
    """Of the best sign seen yet that a step was guessed by."""

    def document(self) -> dict[str, Any]:
        """This as JSON."""
        return asdict(self)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Progress:
        """What `document` made."""
        return cls(**document)


def follow(progress: Progress, line: str) -> Progress:
    """What is known after one more line of the log."""
    message = parse(line)
    if isinstance(message, Total):
        source = progress.source or "helper"
        return replace(progress, total=message.n, declared=True, source=source)
    if isinstance(message, Metric):
        if progress.worth != _NO_GUESS:
            total = progress.total if progress.declared else None
            progress = Progress(total=total, declared=progress.declared)
        step = progress.step if message.step is None else message.step
        metrics = _newest(progress.metrics, message.values)
        return replace(progress, step=step, metrics=metrics, source="helper", worth=_NO_GUESS)
    if hidden(line) or progress.worth == _NO_GUESS:
        return progress
    return _guess(progress, line[:_LONGEST_GUESS])


_NO_GUESS = 9
"""Worth more than any guess: the helper said a step or a metric."""


def _newest(known: Mapping[str, Number], said: Mapping[str, Number]) -> Mapping[str, Number]:
    merged = {**known, **said}
    return dict(list(merged.items())[:MOST_METRICS])


def _guess(progress: Progress, line: str) -> Progress:
    values: dict[str, Number] = {}
    for name, figure in _LOSS.findall(line):
        number = _number(float(figure))
        if number is not None:
            values[name.lower()] = number
    if values:
        progress = replace(progress, metrics=_newest(progress.metrics, values), source="guess")
    for worth, sign in _GUESSES:
        found = sign.search(line)
        if found is None or worth < progress.worth:
            continue
        step, total = int(found.group(1)), int(found.group(2))
        if total and step <= total:
            total = progress.total if progress.declared and progress.total else total
            return replace(progress, step=step, total=total, source="guess", worth=worth)
    return progress
