"""What a training program says and asks of where it runs: ``import gpu``.

In a Job every function knows the Job's folders, and what is logged reaches the Job's page. Anywhere else the
same calls work with folders below the current one and say nothing, so that one script serves both. Nothing
here raises, except what goes wrong inside `atomic_checkpoint`. Python 3.8 and the standard library suffice.

    import gpu

    gpu.total_steps(1000)
    resume = gpu.latest_checkpoint()
    for step in range(start, 1000):
        loss = train(step)
        gpu.log(step, loss=loss)
        if step % 100 == 0 or gpu.checkpoint_requested():
            with gpu.checkpoint(step) as folder:
                torch.save(model.state_dict(), folder / "model.pt")
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import sys
import time
import uuid
from pathlib import Path

__all__ = [
    "atomic_checkpoint",
    "checkpoint",
    "checkpoint_dir",
    "checkpoint_requested",
    "data_dir",
    "enabled",
    "is_resumed",
    "latest_checkpoint",
    "log",
    "output_dir",
    "resume_dir",
    "summary",
    "total_steps",
]

_TMP = ".gpu-tmp"
_NAME = re.compile(r"[A-Za-z0-9_.:/@%+-]{1,64}")
_STEP = re.compile(r"step-\d+")
_MOST_VALUES = 32
_UNFINISHED = (".tmp", ".part", ".partial", ".incomplete")
_LARGEST_STEP = 1 << 53

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class _State:
    """What this process said and did."""

    step = None  # type: int | None
    saved_at = 0.0


def enabled() -> bool:
    """Whether this runs in a Job."""
    return os.environ.get("TRAINSHED_PROTOCOL") == "1" and bool(os.environ.get("TRAINSHED_JOB_ID"))


def output_dir() -> Path:
    """The folder whose content is brought home; ``./outputs`` outside a Job."""
    return _folder("GPU_OUTPUT_DIR", "outputs")


def data_dir() -> Path:
    """The folder with one entry for each dataset; ``./data`` outside a Job."""
    return _folder("GPU_DATA_DIR", "data", make=False)


def checkpoint_dir() -> Path:
    """The folder whose content outlives a lost session; ``./checkpoints`` outside a Job."""
    return _folder("GPU_CHECKPOINT_DIR", "checkpoints")


def resume_dir() -> Path | None:
    """The restored checkpoint folder; ``None`` on a fresh start."""
    given = os.environ.get("GPU_RESUME_DIR")
    return Path(given) if given and os.path.isdir(given) else None


def is_resumed() -> bool:
    """Whether there is something to go on from."""
    return resume_dir() is not None


def latest_checkpoint() -> Path | None:
    """The newest finished thing in the checkpoint folder, else in the restored one, else ``None``."""
    for folder in (checkpoint_dir(), resume_dir()):
        found = _entries(folder) if folder else []
        if found:
            return max(found)[-1]
    return None


@contextlib.contextmanager
def atomic_checkpoint(name: str) -> Iterator[Path]:
    """Give a path to save to; what was saved gets its name only once it is whole.

    ``name`` is relative to `checkpoint_dir`. Save a file there, or make a folder. If the body raises, nothing
    of it stays and the error goes on. Raises ``ValueError`` for a name that leads elsewhere,
    ``FileNotFoundError`` if nothing was saved, and ``OSError``.
    """
    name = os.fspath(name)
    _target(name)
    with _announced(name, _State.step), _temporary(name) as path:
        yield path
        _put(path, _target(name))


@contextlib.contextmanager
def checkpoint(step: int, *, keep: int = 3) -> Iterator[Path]:
    """Give a new folder to save a step to; once whole, it becomes ``checkpoint_dir()/step-<step>``.

    Older folders of this kind are removed, but for the newest ``keep``. What the body raises goes on; if the
    folder cannot be put in its place, that is said on standard error and in the log, and training goes on.
    """
    number = _count(step)
    name = f"step-{number or 0:08d}"
    trouble = None  # type: OSError | None
    with _announced(name, number) as outcome:
        with _temporary(name, forgiving=True) as path:
            with contextlib.suppress(OSError):
                path.mkdir(parents=True, exist_ok=True)
            yield path
            try:
                _put(path, _target(name))
                _thin_out(keep)
            except OSError as problem:
                trouble = problem
        outcome.append(trouble is None)
    if trouble is not None:
        _complain(f"checkpoint of step {number} could not be put in its place: {trouble}")
    elif number is not None:
        _State.step = number


def checkpoint_requested() -> bool:
    """Whether a checkpoint is wanted now. Costs one look at a file; false again once this process saved."""
    asked = os.environ.get("TRAINSHED_CHECKPOINT_REQUEST")
    if not asked:
        return False
    try:
        return os.stat(asked).st_mtime > _State.saved_at
    except OSError:
        return False


def total_steps(n: int) -> None:
    """Say how many steps there will be."""
    total = _count(n)
    if total:
        _say({"t": "total", "n": total})


def log(step: int | None = None, **metrics: object) -> None:
    """Say how far training is, and what it measures.

    Values are numbers, or have an ``item()`` that is one. What is not finite or no number is left out; so are
    names that are not of ``[A-Za-z0-9_.:/@%+-]{1,64}``, and those after the 32nd.
    """
    values: dict[str, int | float] = {}
    for name, value in metrics.items():
        number = _number(value)
        if number is not None and _NAME.fullmatch(name) and len(values) < _MOST_VALUES:
            values[name] = number
    at = _count(step)
    if at is not None:
        _State.step = at
    if values or at is not None:
        _say({"t": "metric", "step": at, "values": values})


def summary(values: Mapping[str, object]) -> None:
    """Write the result of the run to ``summary.json`` in the output folder, in place of an earlier one."""
    try:
        text = json.dumps(_plain(dict(values)), indent=2, sort_keys=True, allow_nan=False)
        path = output_dir() / "summary.json"
        part = path.with_name(f".summary-{uuid.uuid4().hex}")
        try:
            part.write_text(text + "\n", encoding="utf-8")
            os.replace(str(part), str(path))
        finally:
            if part.exists():
                part.unlink()
    except Exception as problem:  # noqa: BLE001 - a summary must not end a training
        _complain(f"the summary could not be written: {problem}")


def _folder(variable: str, name: str, *, make: bool = True) -> Path:
    path = Path(os.environ.get(variable) or name)
    with contextlib.suppress(OSError):
        path = Path(os.path.abspath(str(path)))
        if make:
            path.mkdir(parents=True, exist_ok=True)
    return path


def _entries(folder: Path) -> list[tuple[int, str, Path]]:
    """What is finished in a folder, each with the time it was last written (ns) and its name."""
    found = []
    try:
        names = os.listdir(str(folder))
    except OSError:
        return []
    for name in names:
        if name.startswith(".") or name.endswith(_UNFINISHED):
            continue
        path = folder / name
        try:
            times = [os.stat(file) for file in _files(path)]
        except OSError:
            continue
        if any(status.st_size for status in times):
            found.append((max(status.st_mtime_ns for status in times), name, path))
    return found


def _files(path: Path) -> list[str]:
    if not path.is_dir():
        return [str(path)]
    return [os.path.join(folder, name) for folder, _, names in os.walk(str(path)) for name in names]


def _target(name: str) -> Path:
    parts = name.split("/")
    if not name or "\0" in name or name.startswith("/") or any(p in ("", ".", "..", _TMP) for p in parts):
        raise ValueError(f"a checkpoint cannot be named {name!r}: it must be a path inside checkpoint_dir()")
    return checkpoint_dir() / name


@contextlib.contextmanager
def _temporary(name: str, *, forgiving: bool = False) -> Iterator[Path]:
    """A path of the same name in a folder of its own, which is gone afterwards."""
    target = _target(name)
    own = checkpoint_dir() / _TMP / uuid.uuid4().hex
    try:
        own.mkdir(parents=True)
    except OSError:
        if not forgiving:
            raise
    try:
        yield own / target.name
    finally:
        shutil.rmtree(str(own), ignore_errors=True)
        with contextlib.suppress(OSError):
            own.parent.rmdir()


def _put(path: Path, target: Path) -> None:
    """Have what was saved at ``path`` be ``target``, written to the disk."""
    if not os.path.lexists(str(path)):
        raise FileNotFoundError(f"nothing was saved at the path given for checkpoint {target.name}")
    for file in _files(path):
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir() and not target.is_symlink():
        os.rename(str(target), str(path.parent / "replaced"))
    elif path.is_dir() and os.path.lexists(str(target)):
        target.unlink()
    os.replace(str(path), str(target))


def _thin_out(keep: int) -> None:
    old = sorted(name for name in os.listdir(str(checkpoint_dir())) if _STEP.fullmatch(name))
    for name in sorted(old, key=lambda name: int(name[5:]))[: -max(keep, 1)]:
        shutil.rmtree(str(checkpoint_dir() / name), ignore_errors=True)


@contextlib.contextmanager
def _announced(name: str, step: int | None) -> Iterator[list[bool]]:
    """Say that a checkpoint begins, and how it ended."""
    outcome = []  # type: list[bool]
    began = time.time()
    _say({"t": "ckpt_begin", "where": "script", "name": name, "step": step})
    try:
        yield outcome
        outcome.append(True)
        if outcome[0]:
            _State.saved_at = began
    finally:
        done = bool(outcome) and outcome[0]
        _say({"t": "ckpt_end", "where": "script", "name": name, "step": step, "ok": done})


def _count(value: object) -> int | None:
    number = _number(value)
    if number is None or number < 0 or number >= _LARGEST_STEP:
        return None
    return int(number)


def _number(value: object) -> int | float | None:
    """A finite number, or ``None``."""
    try:
        value = value.item() if hasattr(value, "item") else value
        if isinstance(value, int):
            float(value)  # what no float can hold is no measurement
            return int(value)
        if isinstance(value, float) and math.isfinite(value):
            return float(value)
    except Exception:  # noqa: BLE001 - of whatever type it is
        return None
    return None


def _plain(value: object) -> object:
    """A value as JSON can say it."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in value]
    number = _number(value)
    if number is not None:
        return number
    return None if isinstance(value, float) else str(value)


def _say(message: dict[str, object]) -> None:
    """One line for whoever watches the Job; of several processes that train together the first one speaks."""
    if not enabled() or os.environ.get("RANK", "0") not in ("", "0"):
        return
    try:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        line = b"::gpu:: " + json.dumps(message, allow_nan=False).encode() + b"\n"
        while line:
            line = line[os.write(1, line) :]
    except Exception:  # noqa: BLE001 - a log that cannot be written must not end a training
        return


def _complain(text: str) -> None:
    with contextlib.suppress(Exception):
        sys.stderr.write(f"gpu: {text}\n")
