"""Reads a catalogue: its document is what `trainshed catalog apply -f` sends. All faults at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any, TypeVar

from trainshed.model.errors import Refusal
from trainshed.model.selectors import image_fault
from trainshed.model.training.catalog import (
    ANY,
    DEFAULT_MOUNT_ROOTS,
    DEFAULT_PRIORITY_CLASSES,
    AlarmChannel,
    Catalog,
    ChannelType,
    Cluster,
    ContentAlias,
    Engine,
    InstanceSpec,
    LabelRule,
    NodeRule,
    Pool,
    PrecheckThresholds,
    PresetImage,
    PriorityClass,
    PriorityRange,
    Quota,
    Region,
    TaskEnvVar,
    Volume,
)
from trainshed.model.training.catalog_fields import CATALOG_FIELDS
from trainshed.model.training.catalog_rules import reference_faults
from trainshed.model.training.codes import SpecFaults
from trainshed.model.training.field_table import ENV_NAME, ID, LABEL_KEY, MAX_COUNT
from trainshed.model.training.fields import children
from trainshed.model.training.reading_environment import content_reference
from trainshed.model.training.sections import Notes, Section, kind_of, shown_short
from trainshed.model.training.spec import HOST_IMAGE, InstanceType, MountType, ResourceType
from trainshed.model.training.variables import env_name_fault

MASK = "***"
_FIELDS = children(CATALOG_FIELDS)
_NAME = re.compile(rf"\*|{ID}")
_LABEL_KEY = re.compile(LABEL_KEY)
_SECRET = re.compile(rf"env:{ENV_NAME}|file:/[^\x00]+")
_CHANNEL_URL = {
    ChannelType.APPRISE: re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+"),
    ChannelType.WEBHOOK: re.compile(r"https?://\S+"),
    ChannelType.MAILTO: re.compile(r"mailtos?:(?://)?\S+@?\S*"),
}
_MAX_PRICE = Decimal(10**9)
_PRICE = re.compile(r"[0-9]{1,10}(?:\.[0-9]{1,9})?")
Row = TypeVar("Row")


def read_catalog(document: Any) -> Catalog:
    """The catalogue that ``document`` (decoded YAML or JSON) is; raises `Refusal` with all faults."""
    catalog, faults = read_catalog_document(document)
    faults.raise_if_any()
    return catalog


def read_catalog_document(document: Any) -> tuple[Catalog, SpecFaults]:
    """`read_catalog`, but what could be read beside the faults; an empty document is an empty catalogue."""
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise Refusal.of("INVALID_REQUEST", f"a catalogue must be a map, not {kind_of(document)}")
    notes = Notes()
    root = Section(document, "", "", _FIELDS, notes)
    labels = root.section("labels")
    places: dict[str, list[str]] = {}

    def rows(
        key: str, read: Callable[[Section], Row | None], owner: Section | None = root
    ) -> tuple[Row, ...]:
        found = []
        for entry in owner.sections(key, "FIELD_INVALID") if owner is not None else ():
            row = read(entry)
            if row is not None:
                found.append(row)
                places.setdefault(key, []).append(entry.path)
        return tuple(found)

    catalog = Catalog(
        regions=rows("regions", lambda entry: Region(_name(entry, "id"))),
        clusters=rows("clusters", _cluster),
        pools=rows("pools", _pool),
        instance_specs=rows("instance_specs", _instance_spec),
        quotas=rows("quotas", _quota),
        priority_classes=rows("priority_classes", _priority_class) or DEFAULT_PRIORITY_CLASSES,
        priority_ranges=rows("priority_ranges", _priority_range) or (PriorityRange(ANY),),
        volumes=rows("volumes", _volume),
        aliases=rows("aliases", _alias),
        task_env=rows("task_env", _task_env),
        label_validation=labels.flag("validation") if labels is not None else False,
        label_rules=rows("rules", _label_rule, labels),
        alarm_channels=rows("alarm_channels", _channel),
        images=rows("images", _image),
        mount_roots=_mount_roots(root),
        allow_host_image=_host_image(root),
        organization=root.text("organization") or "default",
        tenant=root.text("tenant") or "default",
    )
    for path, code, message in reference_faults(catalog, places):
        notes.faults.add(path, code, message)
    return catalog, notes.faults


def _name(entry: Section, key: str, default: str | None = None) -> str:
    if key not in entry:
        if default is None:
            entry.refuse(key, "FIELD_REQUIRED", f"`{key}` is missing")
        return default or ""
    text = entry.text(key)
    if text is not None and not _NAME.fullmatch(text):
        entry.refuse(key, "FIELD_INVALID", f"`{key}` is {shown_short(text)}; a name matches {ID}")
    return text or ""


def _names(entry: Section, key: str, default: tuple[str, ...] = (ANY,)) -> tuple[str, ...]:
    if key not in entry:
        return default
    found: dict[str, None] = {}
    for place, name in enumerate(entry.entries(key, "FIELD_INVALID")):
        if isinstance(name, str) and _NAME.fullmatch(name):
            found[name] = None
        else:
            entry.refuse(f"{key}[{place}]", "FIELD_INVALID", f"a name matches {ID}")
    return tuple(found)


def _required(entry: Section, *keys: str) -> None:
    for key in keys:
        if key not in entry:
            entry.refuse(key, "FIELD_REQUIRED", f"`{key}` is missing")


def _number(entry: Section, key: str, default: int | None, least: int = 0) -> int:
    if key not in entry:
        if default is None:
            entry.refuse(key, "FIELD_REQUIRED", f"`{key}` is missing")
        return default or least
    return entry.whole(key, default or least, "FIELD_INVALID", least=least, most=MAX_COUNT)


def _limit(entry: Section, key: str) -> int | None:
    return _number(entry, key, 0) if key in entry else None


def _texts(entry: Section, key: str) -> Mapping[str, str]:
    value = entry.values.get(key, {})
    if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
        return MappingProxyType({str(name): text for name, text in value.items()})
    entry.refuse(key, "FIELD_INVALID", f"`{key}` must be a map of strings")
    return MappingProxyType({})


def _cluster(entry: Section) -> Cluster:
    _required(entry, "engine")
    address = entry.text("address") if entry.values.get("address") else ""
    return Cluster(
        _name(entry, "id"),
        _name(entry, "region"),
        entry.word("engine", Engine, "FIELD_INVALID") or Engine.LOCAL,
        address or "",
        _texts(entry, "node_selector"),
    )


def _pool(entry: Section) -> Pool:
    _required(entry, "specs")
    types: dict[ResourceType, None] = {}
    for place, word in enumerate(entry.entries("resource_types", "FIELD_INVALID")):
        if isinstance(word, str) and word in set(ResourceType):
            types[ResourceType(word)] = None
        else:
            said = f"{shown_short(word)} is no resource type; use {', '.join(ResourceType)}"
            entry.refuse(f"resource_types[{place}]", "FIELD_INVALID", said)
    precheck = entry.section("precheck")
    return Pool(
        _name(entry, "id"),
        _name(entry, "cluster"),
        _names(entry, "specs", ()),
        tuple(types) if "resource_types" in entry else tuple(ResourceType),
        _nodes(entry),
        PrecheckThresholds() if precheck is None else _thresholds(precheck),
    )


def _nodes(entry: Section) -> NodeRule:
    if entry.values.get("nodes", "all") == "all":
        return NodeRule()
    part = entry.section("nodes")
    if part is None:
        return NodeRule()
    names: list[str] = []
    for place, name in enumerate(part.entries("names", "FIELD_INVALID")):
        if isinstance(name, str) and name.strip():
            names.append(name)
        else:
            part.refuse(f"names[{place}]", "FIELD_INVALID", "a node's name must be text")
    return NodeRule(tuple(names), _texts(part, "labels"))


def _thresholds(part: Section) -> PrecheckThresholds:
    found = []
    for key in ("gemm_tflops", "allreduce_gb_per_second"):
        value = part.values.get(key, 0.0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_COUNT:
            part.refuse(key, "FIELD_INVALID", f"`{key}` must be a number from 0, not {shown_short(value)}")
            value = 0.0
        found.append(float(value))
    return PrecheckThresholds(found[0], found[1], _number(part, "timeout_seconds", 600, 1))


def _instance_spec(entry: Section) -> InstanceSpec:
    _required(entry, "type")
    kind = entry.word("type", InstanceType, "FIELD_INVALID")
    gpus = _number(entry, "gpus", 0)
    model = entry.text("gpu_model")
    if kind is InstanceType.GPU and gpus == 0:
        entry.refuse("gpus", "FIELD_INVALID", "a GPU spec has at least one GPU")
    if kind is InstanceType.GPU and model is None and "gpu_model" not in entry:
        entry.refuse("gpu_model", "FIELD_REQUIRED", "a GPU spec names the model of its GPUs")
    if kind is InstanceType.CPU and (gpus or model):
        entry.refuse("gpus" if gpus else "gpu_model", "FIELD_INVALID", "a CPU spec has no GPUs")
    price, currency = _price(entry), entry.text("currency")
    if (price is None) != (currency is None):
        entry.refuse("price_per_hour", "FIELD_INVALID", "give `price_per_hour` and `currency` together")
    return InstanceSpec(
        _name(entry, "name"),
        kind or InstanceType.CPU,
        _number(entry, "cpus", None, 1),
        _number(entry, "memory_gib", None, 1),
        gpus,
        model,
        price,
        currency,
    )


def _price(entry: Section) -> Decimal | None:
    value = entry.values.get("price_per_hour")
    if "price_per_hour" not in entry:
        return None
    try:
        given = isinstance(value, (int, float, str)) and not isinstance(value, bool)
        text = (
            format(Decimal(str(value)), "f")
            if given and len(str(value)) <= len("1234567890.123456789")
            else ""
        )
    except (InvalidOperation, ValueError):
        text = ""
    price = Decimal(text) if _PRICE.fullmatch(text) else None
    if price is None or price > _MAX_PRICE:
        said = "must be an amount such as 2.50, with at most nine decimals"
        entry.refuse("price_per_hour", "FIELD_INVALID", f"`price_per_hour` {said}, not {shown_short(value)}")
        return None
    return price


def _quota(entry: Section) -> Quota:
    _required(entry, "resource_type")
    kind = entry.word("resource_type", ResourceType, "FIELD_INVALID")
    if kind is ResourceType.IDLE:
        entry.refuse("resource_type", "FIELD_INVALID", "resource type idle has no quota")
    cohort = _name(entry, "cohort") if "cohort" in entry else None
    limits = [key for key in ("borrowing_limit", "lending_limit") if key in entry]
    if limits and cohort is None:
        entry.refuse(limits[0], "FIELD_INVALID", f"`{limits[0]}` needs a `cohort` to borrow from")
    if kind in {ResourceType.ONDEMAND, ResourceType.SPOT} and "cohort" in entry:
        entry.refuse(
            "cohort", "FIELD_INVALID", f"resource type {kind} has a cap; only reserved units are lent"
        )
    return Quota(
        _name(entry, "project", ANY),
        kind or ResourceType.RESERVED,
        _name(entry, "pool"),
        _name(entry, "spec", ANY),
        _number(entry, "units", None),
        cohort,
        _limit(entry, "borrowing_limit"),
        _limit(entry, "lending_limit"),
    )


def _priority_class(entry: Section) -> PriorityClass:
    _required(entry, "value")
    value = entry.whole("value", 0, "FIELD_INVALID", least=-MAX_COUNT, most=MAX_COUNT)
    return PriorityClass(_name(entry, "name"), value)


def _priority_range(entry: Section) -> PriorityRange:
    least = entry.whole("min", 0, "FIELD_INVALID", least=-MAX_COUNT, most=MAX_COUNT)
    most = entry.whole("max", 1000, "FIELD_INVALID", least=-MAX_COUNT, most=MAX_COUNT)
    if least > most:
        entry.refuse("min", "FIELD_INVALID", f"`min` {least} is above `max` {most}")
    return PriorityRange(_name(entry, "project", ANY), least, most)


def _path(entry: Section, key: str) -> str:
    _required(entry, key)
    text = entry.text(key)
    return text if text is not None and _absolute(entry, key, text) else ""


def _absolute(entry: Section, key: str, text: str) -> bool:
    parts = text.split("/")
    if text.startswith("/") and not {"", ".", ".."} & set(parts[1:]) and text.isprintable():
        return True
    said = "must be an absolute path without `.`, `..`, `//` and a `/` at its end"
    entry.refuse(key, "FIELD_INVALID", f"`{key}` {said}, not {shown_short(text)}")
    return False


def _volume(entry: Section) -> Volume:
    return Volume(
        _name(entry, "id"),
        _names(entry, "clusters"),
        _path(entry, "path"),
        entry.flag("multi_writer"),
        _names(entry, "projects"),
    )


def _alias(entry: Section) -> ContentAlias:
    _required(entry, "type", "ref")
    kind = entry.word("type", MountType, "FIELD_INVALID")
    ref = entry.text("ref")
    if kind is MountType.VOLUME:
        entry.refuse("type", "FIELD_INVALID", "a volume is declared in `volumes`")
    elif kind is not None and ref is not None:
        try:
            if content_reference(kind, ref) is None:
                raise ValueError("write ns/name@version or an envloop:// URI")  # noqa: TRY301 - one answer for both
        except ValueError as error:
            entry.refuse("ref", "FIELD_INVALID", f"`ref` is {shown_short(ref)}: {error}")
    return ContentAlias(
        _name(entry, "id"),
        kind or MountType.DATASET,
        ref or "",
        _names(entry, "clusters"),
        _names(entry, "projects"),
    )


def _task_env(entry: Section) -> TaskEnvVar | None:
    _required(entry, "name")
    name = entry.text("name")
    if name is not None and (fault := env_name_fault(name)):
        entry.refuse("name", "ENV_NAME_INVALID", f"{shown_short(name)}: {fault}")
    value = entry.text("value") if "value" in entry else None
    secret = entry.text("secret") if "secret" in entry else None
    hidden = entry.flag("hidden")
    if ("value" in entry) == ("secret" in entry):
        entry.refuse("value", "FIELD_REQUIRED", "give either `value` or `secret`")
    elif hidden and "value" in entry:
        entry.refuse("value", "FIELD_INVALID", "a hidden value does not stand here: name it by `secret`")
    if secret is not None and not _SECRET.fullmatch(secret):
        entry.refuse("secret", "FIELD_INVALID", "write env:NAME or file:/absolute/path")
    project = _name(entry, "project", ANY)
    return TaskEnvVar(project, name, value, hidden or secret is not None, secret) if name else None


def _label_rule(entry: Section) -> LabelRule:
    _required(entry, "key")
    key = entry.text("key")
    if key is not None and not _LABEL_KEY.fullmatch(key):
        entry.refuse("key", "LABEL_INVALID", f"a label's key matches {LABEL_KEY}")
    values: dict[str, None] = {}
    for place, text in enumerate(entry.entries("values", "FIELD_INVALID")):
        if isinstance(text, str) and text.isprintable():
            values[text] = None
        else:
            entry.refuse(f"values[{place}]", "LABEL_INVALID", "a label's value is printable text")
    return LabelRule(key or "", tuple(values), entry.flag("required"))


def _channel(entry: Section) -> AlarmChannel:
    """No message shows a URL: passwords are parts of it."""
    _required(entry, "type", "url")
    kind = entry.word("type", ChannelType, "FIELD_INVALID")
    url = entry.text("url")
    if url is not None and MASK in url:
        entry.refuse("url", "FIELD_INVALID", "`url` is masked, as it is shown; write the real one")
    elif url is not None and kind is not None and not _CHANNEL_URL[kind].fullmatch(url):
        entry.refuse("url", "FIELD_INVALID", f"`url` is none of type {kind}")
    return AlarmChannel(_name(entry, "id"), kind or ChannelType.APPRISE, url or "", _names(entry, "projects"))


def _image(entry: Section) -> PresetImage:
    _required(entry, "address")
    name, address = _name(entry, "id"), entry.text("address")
    if name == HOST_IMAGE or (name and image_fault(name)):
        entry.refuse("id", "FIELD_INVALID", "an image's id is written like an image, and is not `host`")
    if address is not None and (fault := image_fault(address)):
        entry.refuse("address", "FIELD_INVALID", f"`address` is {shown_short(address)}: {fault}")
    return PresetImage(name, address or "", _names(entry, "clusters"))


def _mount_roots(root: Section) -> tuple[str, ...]:
    if "mount_roots" not in root:
        return DEFAULT_MOUNT_ROOTS
    found: list[str] = []
    for place, path in enumerate(root.entries("mount_roots", "FIELD_INVALID")):
        if not isinstance(path, str):
            root.refuse(f"mount_roots[{place}]", "FIELD_INVALID", "a folder's path is text")
        elif _absolute(root, f"mount_roots[{place}]", path):
            found.append(path)
    return tuple(found)


def _host_image(root: Section) -> tuple[str, ...]:
    value = root.values.get("allow_host_image", False)
    if isinstance(value, bool):
        return (ANY,) if value else ()
    return _names(root, "allow_host_image")
