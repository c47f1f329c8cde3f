"""Reads the options of a task: labels, instances, checks, notices, metrics, alarms, what Ray has (a1-a6)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trainshed.model.training.field_table import (
    ID,
    LABEL_KEY,
    MAX_COUNT_PER_NODE,
    MAX_LABEL_VALUE_CHARS,
    MAX_LABELS,
    MAX_PATH_CHARS,
    MAX_PORT,
    MAX_RETENTION_SECONDS,
)
from trainshed.model.training.reading_environment import read_env
from trainshed.model.training.sections import Section, clean, kind_of, shown_short
from trainshed.model.training.spec import (
    DEFAULT_IDLE_TIMEOUT_SECONDS,
    DEFAULT_RESUBMISSIONS,
    DEFAULT_RETENTION_SECONDS,
    MAX_NOTICE_SECONDS,
    MAX_RESUBMISSIONS,
    MAX_WORKERS,
    THRESHOLD_EVENTS,
    Alarm,
    AlarmEvent,
    Autoscaling,
    AutoscalingMode,
    Debug,
    Endpoint,
    ExitNotice,
    FaultTolerance,
    Head,
    Instance,
    InstanceType,
    Kind,
    Metrics,
    NoticeSignal,
    Precheck,
    SharedStorage,
    Smoke,
)

_NAME = re.compile(ID)
_LABEL_KEY = re.compile(LABEL_KEY)
_METRIC_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:.\-/]{0,255}")
_METRICS_PATH = re.compile(r"/[!-\"$->@-~]*")
"""Printable ASCII without `?` and `#`."""
MAX_SMOKE_MINUTES = 1440


def read_id(spec: Section, key: str, code: str = "FIELD_INVALID") -> str | None:
    """A name of the catalogue or of a project."""
    text = spec.text(key, code)
    if text is not None and not _NAME.fullmatch(text):
        spec.refuse(key, code, f"`{key}` is {shown_short(text)}; a name matches {ID}")
        return None
    return text


def read_labels(spec: Section) -> Mapping[str, str]:
    """C6."""
    value = spec.values.get("labels", {})
    if not isinstance(value, dict):
        spec.refuse("labels", "LABEL_INVALID", f"`labels` must be a map of strings, not {kind_of(value)}")
        return MappingProxyType({})
    if len(value) > MAX_LABELS:
        spec.refuse("labels", "LABEL_INVALID", f"at most {MAX_LABELS} labels, this task has {len(value)}")
        return MappingProxyType({})
    found = {}
    for key, text in value.items():
        where = f"labels.{clean(str(key))}"
        if fault := label_fault(str(key), text):
            spec.faults.add(spec.at(where), "LABEL_INVALID", fault)
        else:
            found[str(key)] = text
    return MappingProxyType(found)


def label_fault(key: str, text: Any) -> str | None:
    """Why this cannot be a label, or ``None``."""
    if not _LABEL_KEY.fullmatch(key):
        return f"the label key {shown_short(key)} must match {LABEL_KEY}"
    if not isinstance(text, str):
        return f"the value of label {key} must be a string, not {kind_of(text)}"
    if len(text) > MAX_LABEL_VALUE_CHARS:
        return f"the value of label {key} has {len(text)} characters; at most {MAX_LABEL_VALUE_CHARS}"
    if not text.isprintable():
        return f"the value of label {key} may hold printable characters only"
    return None


def read_instance(owner: Section, key: str = "instance", *, required: bool = True) -> Instance | None:
    """C20, C22. ``None`` where it is missing; without specs where they are faulty."""
    if key not in owner:
        if required:
            owner.refuse(f"{key}.specs", "FIELD_REQUIRED", f"`{key}.specs` is missing; name instance specs")
        return None
    part = owner.section(key)
    if part is None:
        return Instance(None, ()) if required else None
    specs: list[str] = []
    for place, name in enumerate(part.entries("specs", "FIELD_INVALID")):
        where = f"specs[{place}]"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            part.refuse(where, "FIELD_INVALID", f"an instance spec's name matches {ID}")
        elif name in specs:
            part.refuse(where, "SPEC_DUPLICATE", f"{name} is named twice")
        else:
            specs.append(name)
            part.keep("specs", place)
    if "specs" not in part or part.values["specs"] == []:
        part.refuse("specs", "FIELD_REQUIRED", "`specs` is missing; name at least one instance spec")
    return Instance(
        part.word("type", InstanceType, "FIELD_INVALID"),
        tuple(specs),
        part.whole("count_per_node", 1, "COUNT_INVALID", least=1, most=MAX_COUNT_PER_NODE),
    )


def read_precheck(spec: Section, instance: Instance) -> Precheck:
    """C31, C32."""
    part = spec.section("precheck")
    if part is None:
        return Precheck()
    enabled = part.flag("enabled")
    if enabled and instance.type is InstanceType.CPU:
        part.refuse("enabled", "PRECHECK_NEEDS_GPU", "a precheck tests GPUs; the instance is of type cpu")
    return Precheck(enabled, read_env(part, Kind.PYTORCH))


def read_fault_tolerance(spec: Section) -> FaultTolerance:
    """C33, C34."""
    part = spec.section("fault_tolerance")
    if part is None:
        return FaultTolerance()
    most = part.whole(
        "max_resubmissions", DEFAULT_RESUBMISSIONS, "RESUBMISSIONS_INVALID", least=0, most=MAX_RESUBMISSIONS
    )
    return FaultTolerance(part.flag("enabled"), most, part.flag("replace_node"))


def read_exit_notice(spec: Section) -> ExitNotice:
    """C36."""
    part = spec.section("exit_notice")
    if part is None:
        return ExitNotice()
    seconds = MAX_NOTICE_SECONDS
    given = part.values.get("timeout_seconds")
    if isinstance(given, int) and not isinstance(given, bool) and given > MAX_NOTICE_SECONDS:
        said = f"`timeout_seconds` is {shown_short(given)}; at most {MAX_NOTICE_SECONDS}"
        part.refuse("timeout_seconds", "EXIT_NOTICE_TOO_LONG", said)
    else:
        seconds = part.whole("timeout_seconds", seconds, "EXIT_NOTICE_INVALID", least=1)
    signal = part.word("signal", NoticeSignal, "EXIT_NOTICE_INVALID")
    return ExitNotice(part.flag("enabled"), seconds, signal or NoticeSignal.SIGUSR1)


def read_metrics(spec: Section) -> Metrics:
    """C37."""
    part = spec.section("metrics")
    if part is None:
        return Metrics()
    found: list[Endpoint] = []
    for entry in part.sections("endpoints", "FIELD_INVALID"):
        if "port" not in entry:
            entry.refuse("port", "METRICS_PORT_INVALID", "`port` is missing")
        before = entry.faults.count
        port = entry.whole("port", 0, "METRICS_PORT_INVALID", least=1, most=MAX_PORT)
        path = _metrics_path(entry)
        if path is None or not port or entry.faults.count > before:
            continue
        if Endpoint(port, path) in found:
            said = f"port {port} with path {path} is given twice"
            entry.refuse("port", "METRICS_DUPLICATE", said)
        else:
            found.append(Endpoint(port, path))
    enabled = part.flag("enabled")
    if enabled and part.values.get("endpoints", []) == []:
        part.refuse("endpoints", "METRICS_EMPTY", "metrics are enabled without an endpoint to read")
    return Metrics(enabled, tuple(found))


def _metrics_path(entry: Section) -> str | None:
    path = entry.values.get("path", "/metrics")
    if isinstance(path, str) and len(path) <= MAX_PATH_CHARS and _METRICS_PATH.fullmatch(path):
        return path
    said = "starts with /, has no query and printable ASCII only"
    entry.refuse("path", "METRICS_PATH_INVALID", f"`path` is {shown_short(path)}; a path {said}")
    return None


def read_alarms(spec: Section) -> tuple[Alarm, ...]:
    """C40."""
    found = []
    for entry in spec.sections("alarms", "ALARM_INVALID"):
        events = _alarm_events(entry)
        channels = _alarm_channels(entry)
        needs = [event for event in events if event in THRESHOLD_EVENTS]
        threshold = _threshold(entry, needs)
        metric = entry.text("metric", "ALARM_INVALID")
        about_metric = AlarmEvent.METRIC_OVER in events
        if metric is not None and not _METRIC_NAME.fullmatch(metric):
            entry.refuse("metric", "ALARM_INVALID", f"{shown_short(metric)} is no name of a metric")
        elif about_metric and "metric" not in entry:
            entry.refuse("metric", "ALARM_INVALID", "`metric_over` needs the name of a metric in `metric`")
        elif events and not about_metric and metric is not None:
            entry.refuse("metric", "ALARM_INVALID", "`metric` belongs to the event `metric_over`")
        found.append(Alarm(tuple(events), tuple(channels), threshold, metric))
    return tuple(found)


def _alarm_events(entry: Section) -> list[AlarmEvent]:
    events: list[AlarmEvent] = []
    for place, word in enumerate(entry.entries("events", "ALARM_INVALID")):
        if not isinstance(word, str) or word not in set(AlarmEvent):
            said = f"{shown_short(word)} is no event; use {', '.join(AlarmEvent)}"
            entry.refuse(f"events[{place}]", "ALARM_INVALID", said)
        elif AlarmEvent(word) not in events:
            events.append(AlarmEvent(word))
    if "events" not in entry or entry.values["events"] == []:
        entry.refuse("events", "ALARM_INVALID", f"`events` is missing; use {', '.join(AlarmEvent)}")
    return events


def _alarm_channels(entry: Section) -> list[str]:
    channels: list[str] = []
    for place, name in enumerate(entry.entries("channels", "ALARM_INVALID")):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            said = f"{shown_short(name)} is no channel's id"
            entry.refuse(f"channels[{place}]", "ALARM_CHANNEL_UNKNOWN", said)
        elif name not in channels:
            channels.append(name)
    if "channels" not in entry or entry.values["channels"] == []:
        entry.refuse("channels", "ALARM_INVALID", "`channels` is missing; name alarm channels")
    return channels


def _threshold(entry: Section, needs: list[AlarmEvent]) -> float | None:
    value = entry.values.get("threshold")
    if "threshold" not in entry:
        if needs:
            entry.refuse("threshold", "ALARM_INVALID", f"`{needs[0]}` needs a `threshold`")
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 1e18:  # noqa: PLR2004 - beyond any measure; NaN too
        entry.refuse("threshold", "ALARM_INVALID", f"`threshold` must be a number, not {shown_short(value)}")
        return None
    seconds = [event for event in needs if event is not AlarmEvent.METRIC_OVER]
    if seconds and value < 0:
        entry.refuse("threshold", "ALARM_INVALID", f"`threshold` is {value}; seconds are not negative")
    elif not needs and "events" in entry:
        entry.refuse("threshold", "ALARM_INVALID", "`threshold` belongs to events that end in `_over`")
    return float(value)


def read_head(spec: Section) -> Head:
    """C46."""
    part = spec.section("head")
    return Head() if part is None else Head(read_instance(part, required=False))


def read_shared_storage(spec: Section) -> SharedStorage | None:
    """C48, C49."""
    part = spec.section("shared_storage")
    if part is None:
        return None
    ref = part.values.get("ref")
    cleanup = part.flag("cleanup")
    if ref is None or ref == "":
        part.refuse("ref", "MOUNT_REF_REQUIRED", "`ref` is missing; name a volume")
        return None
    name = read_id(part, "ref", "MOUNT_REF_INVALID")
    return None if name is None else SharedStorage(name, cleanup)


def read_debug(spec: Section) -> Debug:
    """C50."""
    part = spec.section("debug")
    if part is None:
        return Debug()
    seconds = part.whole(
        "retention_seconds",
        DEFAULT_RETENTION_SECONDS,
        "RETENTION_INVALID",
        least=1,
        most=MAX_RETENTION_SECONDS,
    )
    return Debug(part.flag("enabled"), seconds)


def read_autoscaling(spec: Section, workers: int | None) -> Autoscaling | None:
    """C51; ``workers`` is ``None`` where that is faulty."""
    part = spec.section("autoscaling")
    if part is None:
        return None
    before = part.faults.count
    least = part.whole("min", workers or 0, "AUTOSCALING_RANGE", least=0, most=MAX_WORKERS)
    most = part.whole("max", workers or 0, "AUTOSCALING_RANGE", least=0, most=MAX_WORKERS)
    if workers is not None and before == part.faults.count and not least <= workers <= most:
        said = f"min {least}, workers {workers}, max {most}: min <= workers <= max does not hold"
        part.refuse("min" if least > workers else "max", "AUTOSCALING_RANGE", said)
    idle = part.whole("idle_timeout_seconds", DEFAULT_IDLE_TIMEOUT_SECONDS, "AUTOSCALING_INVALID", least=0)
    mode = part.word("mode", AutoscalingMode, "AUTOSCALING_INVALID")
    return Autoscaling(part.flag("enabled"), least, most, idle, mode or AutoscalingMode.DEFAULT)


def read_smoke(root: Section) -> Smoke | None:
    """C16."""
    part = root.section("smoke", "SMOKE_INVALID")
    if part is None:
        return None
    if "minutes" not in part:
        part.refuse("minutes", "SMOKE_INVALID", "`minutes` is missing")
    minutes = part.whole("minutes", 1, "SMOKE_INVALID", least=1, most=MAX_SMOKE_MINUTES)
    return Smoke(minutes, part.whole("workers", 0, "SMOKE_INVALID", least=0, most=MAX_WORKERS))
