"""A submission as the caller wrote it: parsing, every rule that needs no lookup, canonical form.

Serves contract E b2, E12-E29, E33-E60, E83-E87 and the readings A3-A8, A19. Pure: what a Runner declares and
what the server has is judged later, in ``policy``.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from trainshed.model.checkpoints import CheckpointRef, parse_checkpoint_ref
from trainshed.model.conflicts import shown
from trainshed.model.errors import Fault, FaultList, Refusal
from trainshed.model.parameters import name_text
from trainshed.model.profile import JobProfile, read_profile
from trainshed.model.selectors import Selector, image_fault, parse_selector
from trainshed.model.strict_json import canonical_json

MAX_TRIALS = 16
MAX_REQUEST_ID_CHARS = 128
MAX_NAME_CHARS = 128
MAX_COMMAND_BYTES = 65536
MAX_TAGS = 16
MAX_TAG_VALUE_CHARS = 256
MAX_COMPARED = 64
MAX_COUNT = 2**31 - 1
"""No count or size may be larger; the database and every engine can hold it."""
TAG_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
GPU_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")
RESOURCE_COUNTS = ("gpus", "cpus", "memory_mb", "storage_mb", "shm_mb")
RESOURCE_KEYS = ("gpu_type", *RESOURCE_COUNTS)
ROOT_KEYS = ("type", "request_id", "trials", "spec")
TRIAL_KEYS = ("name", "spec")
SPEC_KEYS = (
    "kind",
    "runner",
    "image",
    "command",
    "resources",
    "timeout_seconds",
    "timeout_sec",
    "tags",
    "profile",
    "resume_from",
)

_BACKEND_KEYS = frozenset({"executor", "provider", "backend", "engine", "cluster", "node", "placement"})
_SPEC_CODE = "INVALID_TRAIN_JOB_SPEC"
UNREAD = Selector("", "", "")
"""Stands for the Runner of a Trial at fault that names none that can be read."""
_KEY_REASONS: Mapping[str, str] = {
    **dict.fromkeys(
        ("recipe", "recipe_params", "recipes"),
        "a Recipe is named inside `profile`, never beside a Runner",
    ),
    **dict.fromkeys(
        ("dataset", "datasets", "task", "tasks", "inputs", "data"),
        "Runner mode takes no Dataset or Task inputs",
    ),
    **dict.fromkeys(
        ("files", "file", "source", "sources", "script", "code", "inline", "upload", "uploads"),
        "Runner mode takes no uploaded files or inline sources; publish them as a Runner",
    ),
    **dict.fromkeys(
        (
            "resolved",
            "snapshot",
            "snapshot_sha256",
            "revision",
            "digest",
            "runner_snapshot",
            "resolved_runner",
        ),
        "references are resolved by the server, never by the client",
    ),
    **dict.fromkeys(
        ("env", "environment", "params", "parameters", "args"),
        "Runner mode takes no parameter map and no environment overrides; only `command` can be given",
    ),
    **dict.fromkeys(
        ("entrypoint", "entry", "main"),
        "the Revision's own main.sh or main.py always runs",
    ),
}


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """One Trial as asked for. ``None`` and missing keys mean "not given", never a default."""

    name: str
    selector: Selector
    image: str | None = None
    command: str | None = None
    gpu_type: str | None = None
    counts: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """The given ones of `RESOURCE_COUNTS`."""
    timeout_seconds: int | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    profile: JobProfile | None = None
    resume_from: CheckpointRef | None = None
    path: str = "spec"
    """Where its spec stands in the request (``trials[0].spec``), for faults found later."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A well-formed submission: its Trials in order and the canonical form of its explicit input."""

    request_id: str
    trials: tuple[TrialRequest, ...]
    canonical: str
    """Canonical JSON of what was asked for (A3): equal for identical input, and only then."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.canonical.encode()).hexdigest()


def parse_submission(document: Any) -> Submission:
    """Check ``document`` by every rule that needs no lookup; raises `Refusal` with all faults at once."""
    submission, malformed = read_submission(document)
    if malformed:
        raise Refusal(malformed)
    return submission


def read_submission(document: Any) -> tuple[Submission, list[Fault]]:
    """`parse_submission`, but faults are part of the answer.

    With any, the submission holds what could be read, so that what it refers to can be looked up and told,
    too; it is of no other use. Raises `Refusal` for what is no object.
    """
    if not isinstance(document, dict):
        raise Refusal.of("INVALID_REQUEST", f"the body must be a JSON object, not {_kind(document)}")
    faults = FaultList()
    _unknown_keys(document, ROOT_KEYS, "", faults)
    kind = document.get("type")
    if kind != "train":
        said = f'must be "train", not {shown(kind)}' if "type" in document else 'is missing; write "train"'
        faults.add("type", "INVALID_JOB_TYPE", f"`type` {said}")
    request_id = read_request_id(document, faults)
    entries = _trial_entries(document, faults)
    trials: list[TrialRequest | None] = []
    canonical: list[dict[str, Any]] = []
    for path, entry in entries:
        trial, form = _trial(entry, path, len(trials) + 1, faults)
        trials.append(trial)
        canonical.append(form)
    _unique_names(trials, entries, faults)
    submission = Submission(
        request_id=request_id,
        trials=tuple(trial for trial in trials if trial is not None),
        canonical="" if faults else canonical_json({"type": "train", "trials": canonical}),
    )
    return submission, faults.faults


def read_request_id(document: Mapping[str, Any], faults: FaultList) -> str:
    """The request id of any kind of submission; faults are `INVALID_REQUEST_ID` (E24)."""
    value = document.get("request_id")
    code = "INVALID_REQUEST_ID"
    if not isinstance(value, str):
        said = "is missing" if value is None else f"must be a string, not {_kind(value)}"
        faults.add("request_id", code, f"`request_id` {said}")
        return ""
    if not value.strip():
        faults.add("request_id", code, "`request_id` is blank")
    elif len(value) > MAX_REQUEST_ID_CHARS:
        faults.add(
            "request_id", code, f"`request_id` has {len(value)} characters; at most {MAX_REQUEST_ID_CHARS}"
        )
    elif fault := _text_fault(value):
        faults.add("request_id", code, f"`request_id` {fault}")
    elif not value.isprintable():
        place = next(place for place, letter in enumerate(value) if not letter.isprintable())
        said = f"{shown(value[place])} at character {place} is none"
        faults.add("request_id", code, f"`request_id` may hold printable characters only; {said}")
    return value


def _trial_entries(document: Mapping[str, Any], faults: FaultList) -> list[tuple[str, Any]]:
    has_spec, has_trials = "spec" in document, "trials" in document
    if has_spec == has_trials:
        said = "both `spec` and `trials` are given" if has_spec else "neither `spec` nor `trials` is given"
        faults.add("trials", "INVALID_TRIALS", f"{said}; give exactly one of them")
        return []
    if has_spec:
        return [("", {"spec": document["spec"]})]
    trials = document["trials"]
    if not isinstance(trials, list):
        faults.add("trials", "INVALID_TRIALS", f"`trials` must be a list, not {_kind(trials)}")
        return []
    if not 1 <= len(trials) <= MAX_TRIALS:
        faults.add("trials", "INVALID_TRIALS", f"a Job has 1 to {MAX_TRIALS} Trials, this one {len(trials)}")
        return []
    return [(f"trials[{place}]", entry) for place, entry in enumerate(trials)]


def _trial(
    entry: Any, path: str, number: int, faults: FaultList
) -> tuple[TrialRequest | None, dict[str, Any]]:
    if not isinstance(entry, dict):
        faults.add(path, "INVALID_TRIALS", f"a Trial must be an object, not {_kind(entry)}")
        return None, {}
    _unknown_keys(entry, TRIAL_KEYS, path, faults)
    form: dict[str, Any] = {}
    name = f"trial-{number}"
    if "name" in entry:
        name = form["name"] = _trial_name(entry["name"], _join(path, "name"), faults)
    spec_path = _join(path, "spec")
    if "spec" not in entry:
        faults.add(spec_path, "INVALID_TRIALS", "the Trial has no `spec`")
        return None, form
    spec = entry["spec"]
    if not isinstance(spec, dict):
        faults.add(spec_path, _SPEC_CODE, f"`spec` must be an object, not {_kind(spec)}")
        return None, form
    request = _spec(spec, spec_path, name, faults)
    form["spec"] = _canonical_spec(spec)
    return request, form


def _trial_name(value: Any, path: str, faults: FaultList) -> str:
    code = "INVALID_TRIALS"
    if not isinstance(value, str):
        faults.add(path, code, f"a Trial's name must be a string, not {_kind(value)}")
        return ""
    if not value.strip() or len(value) > MAX_NAME_CHARS:
        faults.add(path, code, f"a Trial's name has 1 to {MAX_NAME_CHARS} characters and is not blank")
    elif not value.isprintable():
        faults.add(path, code, "a Trial's name may hold printable characters only")
    return value


def _unique_names(
    trials: Iterable[TrialRequest | None],
    entries: list[tuple[str, Any]],
    faults: FaultList,
) -> None:
    seen: dict[str, str] = {}
    for number, (trial, (path, entry)) in enumerate(zip(trials, entries, strict=True), start=1):
        given = entry.get("name") if isinstance(entry, dict) else None
        name = trial.name if trial else given if isinstance(given, str) else f"trial-{number}"
        if name in seen:
            faults.add(
                _join(path, "name"),
                "INVALID_TRIALS",
                f"the name {shown(name)} is also that of {seen[name]}; each Trial has its own",
            )
        seen.setdefault(name, path)


def _spec(spec: Mapping[str, Any], path: str, name: str, faults: FaultList) -> TrialRequest:
    _unknown_keys(spec, SPEC_KEYS, path, faults)
    if "kind" in spec and spec["kind"] != "runner":
        faults.add(_join(path, "kind"), _SPEC_CODE, f'`kind` must be "runner", not {shown(spec["kind"])}')
    selector = _selector(spec, path, faults)
    image = _image(spec, path, faults)
    command = _command(spec, path, faults)
    gpu_type, counts = _resources(spec, path, faults)
    timeout = _timeout(spec, path, faults)
    tags = _tags(spec, path, faults)
    profile = _profile(spec, path, faults)
    resume_from = _resume_from(spec, path, faults)
    return TrialRequest(
        name, selector, image, command, gpu_type, counts, timeout, tags, profile, resume_from, path
    )


def _selector(spec: Mapping[str, Any], path: str, faults: FaultList) -> Selector:
    where = _join(path, "runner")
    value = spec.get("runner")
    if not isinstance(value, str):
        said = "is missing" if "runner" not in spec else f"must be a string, not {_kind(value)}"
        faults.add(where, "INVALID_RUNNER", f"`runner` {said}; write namespace/name@revision")
        return UNREAD
    try:
        return parse_selector(value)
    except ValueError as error:
        faults.add(where, "INVALID_RUNNER", f"`runner` is malformed: {error}")
        return UNREAD


def _image(spec: Mapping[str, Any], path: str, faults: FaultList) -> str | None:
    if "image" not in spec:
        return None
    value = spec["image"]
    fault = f"must be a string, not {_kind(value)}" if not isinstance(value, str) else image_fault(value)
    if fault:
        faults.add(_join(path, "image"), "INVALID_EXECUTION_CONFIG", f"`image`: {fault}")
        return None
    return str(value)


def _command(spec: Mapping[str, Any], path: str, faults: FaultList) -> str | None:
    if "command" not in spec:
        return None
    value, fault = spec["command"], None
    if not isinstance(value, str):
        fault = f"must be a string, not {_kind(value)}"
    elif not value.strip():
        fault = "must contain text; leave it out for the Revision's default behaviour"
    elif "\x00" in value:
        fault = f"must not contain NUL (at character {value.index(chr(0))})"
    elif surrogate := _text_fault(value):
        fault = surrogate
    elif (size := len(value.encode())) > MAX_COMMAND_BYTES:
        fault = f"has {size} UTF-8 bytes; at most {MAX_COMMAND_BYTES}"
    if fault:
        faults.add(_join(path, "command"), "INVALID_COMMAND", f"`command` {fault}")
        return None
    return str(value)


def _resources(spec: Mapping[str, Any], path: str, faults: FaultList) -> tuple[str | None, Mapping[str, int]]:
    where = _join(path, "resources")
    value = spec.get("resources", {})
    if not isinstance(value, dict):
        faults.add(where, "INVALID_EXECUTION_CONFIG", f"`resources` must be an object, not {_kind(value)}")
        return None, {}
    _unknown_keys(value, RESOURCE_KEYS, where, faults)
    gpu_type = None
    if "gpu_type" in value:
        gpu_type = value["gpu_type"]
        if not isinstance(gpu_type, str) or not GPU_TYPE.fullmatch(gpu_type):
            faults.add(
                _join(where, "gpu_type"),
                "INVALID_EXECUTION_CONFIG",
                f"`gpu_type` must be a GPU model such as H100, not {shown(gpu_type)}",
            )
            gpu_type = None
    counts = {}
    for key in RESOURCE_COUNTS:
        if key in value:
            if fault := count_fault(value[key]):
                faults.add(_join(where, key), "INVALID_EXECUTION_CONFIG", f"`{key}` {fault}")
            else:
                counts[key] = value[key]
    return gpu_type, MappingProxyType(counts)


def count_fault(value: Any) -> str | None:
    """Why ``value`` is not a positive integer (E40), or ``None``."""
    if isinstance(value, bool) or not isinstance(value, int):
        return f"must be a positive integer, not {shown(value)}"
    if not 1 <= value <= MAX_COUNT:
        return f"must be from 1 to {MAX_COUNT}, not {shown(value)}"
    return None


def _timeout(spec: Mapping[str, Any], path: str, faults: FaultList) -> int | None:
    given = [(key, spec[key]) for key in ("timeout_seconds", "timeout_sec") if key in spec]
    clean = True
    for key, value in given:
        if fault := count_fault(value):
            clean = False
            faults.add(_join(path, key), "INVALID_EXECUTION_CONFIG", f"`{key}` {fault}")
    if not given or not clean:
        return None
    if len({value for _, value in given}) > 1:
        faults.add(
            _join(path, "timeout_sec"),
            "INVALID_EXECUTION_CONFIG",
            "`timeout_seconds` and `timeout_sec` are one value and differ; give one of them",
        )
    return int(given[0][1])


def _tags(spec: Mapping[str, Any], path: str, faults: FaultList) -> Mapping[str, str]:
    where = _join(path, "tags")
    value = spec.get("tags", {})
    if not isinstance(value, dict):
        faults.add(where, "INVALID_TAG", f"`tags` must be an object of strings, not {_kind(value)}")
        return {}
    if len(value) > MAX_TAGS:
        faults.add(where, "INVALID_TAG", f"at most {MAX_TAGS} tags, this Trial has {len(value)}")
    for key, text in value.items():
        here = _join(where, key)
        if not TAG_KEY.fullmatch(key):
            faults.add(here, "INVALID_TAG", f"the tag key {shown(key)} must match {TAG_KEY.pattern}")
        if not isinstance(text, str):
            faults.add(
                here, "INVALID_TAG", f"the value of tag {shown(key)} must be a string, not {_kind(text)}"
            )
        elif len(text) > MAX_TAG_VALUE_CHARS:
            faults.add(
                here,
                "INVALID_TAG",
                f"the value of tag {shown(key)} has {len(text)} characters; at most {MAX_TAG_VALUE_CHARS}",
            )
        elif not text.isprintable():
            faults.add(
                here, "INVALID_TAG", f"the value of tag {shown(key)} may hold printable characters only"
            )
    return MappingProxyType(dict(value))


def _profile(spec: Mapping[str, Any], path: str, faults: FaultList) -> JobProfile | None:
    if "profile" not in spec:
        return None
    value = spec["profile"]
    where = _join(path, "profile")
    if isinstance(value, str):
        faults.add(where, _SPEC_CODE, "Runner mode takes no named Profile; give a profile document")
    elif not isinstance(value, dict):
        faults.add(where, "INVALID_PROFILE", f"`profile` must be an object, not {_kind(value)}")
    else:
        return read_profile(value, where, faults)
    return None


def _resume_from(spec: Mapping[str, Any], path: str, faults: FaultList) -> CheckpointRef | None:
    if "resume_from" not in spec:
        return None
    value = spec["resume_from"]
    fault = None
    if isinstance(value, str):
        try:
            return parse_checkpoint_ref(value)
        except ValueError as error:
            fault = f"is {shown(value)}; {error}"
    faults.add(
        _join(path, "resume_from"),
        _SPEC_CODE,
        f"`resume_from` {fault or f'must be a string, not {_kind(value)}'}",
        "Copy the id from `trainshed checkpoint list`.",
    )
    return None


def _canonical_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    form = {key: value for key, value in spec.items() if key not in {"timeout_sec", "kind"}}
    if "timeout_sec" in spec:
        form.setdefault("timeout_seconds", spec["timeout_sec"])
    return form


def _unknown_keys(value: Mapping[str, Any], known: tuple[str, ...], path: str, faults: FaultList) -> None:
    for count, key in enumerate(key for key in value if key not in known):
        where = _join(path, key)
        if key.lower() in _BACKEND_KEYS:
            faults.add(
                where,
                "UNSUPPORTED_TRAINING_BACKEND_SELECTION",
                f"`{_clean(key)}`: the server chooses where a Trial runs",
            )
            continue
        reason = _KEY_REASONS.get(key.lower())
        if reason is None:
            # The comparison is slow, and no reader needs it for the thousandth unknown key.
            near = difflib.get_close_matches(key, known, n=1) if count < MAX_COMPARED else []
            reason = f"did you mean `{near[0]}`?" if near else f"known keys here: {', '.join(known)}"
        faults.add(where, _SPEC_CODE, f"unknown key `{_clean(key)}`: {reason}")


def _text_fault(value: str) -> str | None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"contains a lone surrogate at character {error.start}, which no UTF-8 text can"
    return "contains NUL" if "\x00" in value else None


def _join(path: str, key: str) -> str:
    return f"{path}.{_clean(key)}" if path else _clean(key)


def _clean(text: str) -> str:
    return name_text(text)


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value), "a list" if isinstance(value, list) else "an object")
