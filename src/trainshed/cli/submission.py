"""From command-line options and a request file to the body of a submission (E11-E14, E32-E41, A6)."""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

MAX_TRIALS = 16
MAX_FILE_BYTES = 16 << 20
_MIB = 1 << 20
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([KMGT]i)B?")


class SizeType(click.ParamType[int]):
    """A size such as ``64Gi``; the value is whole MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip()
        match = _SIZE.fullmatch(text)
        if match is None:
            number = re.match(r"\d+", text)
            example = f"{number[0]}Gi or {number[0]}Mi" if number else "64Gi"
            self.fail(
                f"{text!r} is not a size: write a number with Ki, Mi, Gi or Ti, as in {example}", param, ctx
            )
        bytes_ = Fraction(match[1]) * _UNITS[match[2]]
        mebibytes = bytes_ / _MIB
        if mebibytes.denominator != 1 or mebibytes < 1:
            self.fail(f"{text!r} is not a whole number of MiB", param, ctx)
        return int(mebibytes)


SIZE = SizeType()


@dataclass(frozen=True, slots=True)
class Options:
    """The shortcut options as given; ``None`` = not given."""

    type: str | None = None
    runner: str | None = None
    image: str | None = None
    command: str | None = None
    profile: Mapping[str, Any] | None = None
    resume_from: str | None = None
    timeout_seconds: int | None = None
    request_id: str | None = None
    gpu_type: str | None = None
    gpus: int | None = None
    cpus: int | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    shm_mb: int | None = None

    def spec_values(self) -> dict[str, Any]:
        """The given options that go into a Trial's spec."""
        named = ("runner", "image", "command", "profile", "resume_from", "timeout_seconds")
        return {key: getattr(self, key) for key in named if getattr(self, key) is not None}

    def resource_values(self) -> dict[str, Any]:
        """The given options that go into a spec's resources."""
        named = ("gpu_type", "gpus", "cpus", "memory_mb", "storage_mb", "shm_mb")
        return {key: getattr(self, key) for key in named if getattr(self, key) is not None}


def from_options(options: Options, trials: int) -> dict[str, Any]:
    """A request of ``trials`` equal Trials; a missing request id is made here (A4)."""
    spec: dict[str, Any] = options.spec_values()
    if resources := options.resource_values():
        spec["resources"] = resources
    return {
        "type": options.type or "train",
        "request_id": str(uuid.uuid4()) if options.request_id is None else options.request_id,
        "trials": [{"name": f"trial-{number}", "spec": spec} for number in range(1, trials + 1)],
    }


def from_file(document: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """The file's request with the given options in every Trial (E12); all else stays as it is (E13).

    What is not an object where one belongs is left alone: the server names every such fault.
    """
    request = dict(document)
    if options.type is not None:
        request["type"] = options.type
    if options.request_id is not None:
        request["request_id"] = options.request_id
    if isinstance(request.get("spec"), dict):
        request["spec"] = _overridden(request["spec"], options)
    if isinstance(request.get("trials"), list):
        request["trials"] = [
            {**entry, "spec": _overridden(entry["spec"], options)}
            if isinstance(entry, dict) and isinstance(entry.get("spec"), dict)
            else entry
            for entry in request["trials"]
        ]
    return request


def read_file(name: str, what: str = "a request file", *, most: int = MAX_FILE_BYTES) -> dict[str, Any]:
    """The JSON object in a file, or on stdin for ``-``; at most ``most`` bytes. Raises `click.UsageError`."""
    from trainshed.model.errors import Refusal  # noqa: PLC0415 - only a request file needs it
    from trainshed.model.strict_json import decode_json  # noqa: PLC0415 - as above

    try:
        data = sys.stdin.buffer.read(most + 1) if name == "-" else _read(Path(name), most)
        document = decode_json(data, what)
    except OSError as error:
        raise click.UsageError(f"cannot read {name}: {error.strerror}") from None
    except Refusal as error:
        raise click.UsageError(f"{name}: {error.message}") from None
    if not isinstance(document, dict):
        raise click.UsageError(f"{name}: {what} holds one JSON object")
    return document


def _read(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise click.UsageError(f"{path} is larger than {most >> 20} MiB")
    return data


def _overridden(spec: Mapping[str, Any], options: Options) -> dict[str, Any]:
    values, resources = options.spec_values(), options.resource_values()
    merged = {**spec, **values}
    if "timeout_seconds" in values:
        merged.pop("timeout_sec", None)
    if resources and isinstance(spec.get("resources", {}), dict):
        merged["resources"] = {**spec.get("resources", {}), **resources}
    return merged
