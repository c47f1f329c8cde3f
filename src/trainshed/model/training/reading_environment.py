"""Reads what a task finds around it: image, variables, mounts, command (C7-C15)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from trainshed.model.content import ContentKind, ContentUri, parse_content_uri
from trainshed.model.selectors import image_fault
from trainshed.model.training.field_table import (
    ID,
    MAX_COMMAND_BYTES,
    MAX_MOUNT_PATH_BYTES,
    MAX_PATH_PART_BYTES,
    MAX_REFERENCE_CHARS,
)
from trainshed.model.training.sections import Section, kind_of, shown_short, text_fault
from trainshed.model.training.spec import HOST_IMAGE, EnvVar, Kind, Mount, MountType
from trainshed.model.training.variables import (
    MAX_ENVIRONMENT_BYTES,
    MAX_VARIABLE_BYTES,
    RESERVED,
    env_name_fault,
    variable_bytes,
)

NAME = re.compile(ID)
CONTENT_KINDS = {MountType.DATASET: ContentKind.DATASETS, MountType.MODEL: ContentKind.MODELS}


def read_image(spec: Section) -> str:
    """An image's id or address; empty where it is missing or faulty (C7)."""
    if "image" not in spec:
        spec.refuse("image", "IMAGE_REQUIRED", "`image` is missing")
        return ""
    value = spec.values["image"]
    if isinstance(value, str) and not value.strip():
        spec.refuse("image", "IMAGE_REQUIRED", "`image` is blank")
        return ""
    text = spec.text("image", "IMAGE_INVALID")
    if text is None or text == HOST_IMAGE:
        return text or ""
    if fault := image_fault(text):
        spec.refuse("image", "IMAGE_INVALID", f"`image` is {shown_short(text)}: {fault}")
        return ""
    return text


def read_command(spec: Section) -> str:
    """The command, byte for byte (C15)."""
    if "cmd" not in spec:
        spec.refuse("cmd", "CMD_REQUIRED", "`cmd` is missing")
        return ""
    value = spec.values["cmd"]
    if not isinstance(value, str):
        spec.refuse("cmd", "CMD_INVALID", f"`cmd` must be a string, not {kind_of(value)}")
    elif not value.strip():
        spec.refuse("cmd", "CMD_REQUIRED", "`cmd` is blank")
    elif fault := text_fault(value):
        spec.refuse("cmd", "CMD_INVALID", f"`cmd` {fault}")
    elif (size := len(value.encode())) > MAX_COMMAND_BYTES:
        spec.refuse("cmd", "CMD_INVALID", f"`cmd` has {size} UTF-8 bytes; at most {MAX_COMMAND_BYTES}")
    else:
        return value
    return ""


def read_env(owner: Section, kind: Kind | None, key: str = "env") -> tuple[EnvVar, ...]:
    """The variables of a task or of its prechecks (C8-C10, C32)."""
    found: dict[str, EnvVar] = {}
    places: dict[str, int] = {}
    total = 0
    for place, entry in enumerate(owner.sections(key, "ENV_INVALID")):
        name = _env_name(entry, kind)
        value = _env_value(entry)
        hidden = entry.flag("hidden")
        if name is None:
            continue
        if name in places:
            said = f"{name} is given twice, first at {owner.at(key)}[{places[name]}]"
            entry.refuse("name", "ENV_DUPLICATE", said)
            continue
        places[name] = place
        if value is None:
            continue
        size = variable_bytes(name, value)
        total += size
        if size > MAX_VARIABLE_BYTES:
            said = f"{name} has {size} bytes with its name; at most {MAX_VARIABLE_BYTES}"
            entry.refuse("value", "ENV_TOO_LARGE", said)
        found[name] = EnvVar(name, value, hidden)
    if total > MAX_ENVIRONMENT_BYTES:
        said = f"the variables have {total} bytes; at most {MAX_ENVIRONMENT_BYTES}"
        owner.refuse(key, "ENV_TOO_LARGE", said)
    return tuple(found.values())


def _env_name(entry: Section, kind: Kind | None) -> str | None:
    name = entry.values.get("name")
    if not isinstance(name, str):
        said = "is missing" if "name" not in entry else f"must be a string, not {kind_of(name)}"
        entry.refuse("name", "ENV_NAME_INVALID", f"`name` {said}")
        return None
    if fault := env_name_fault(name):
        entry.refuse("name", "ENV_NAME_INVALID", f"{shown_short(name)}: {fault}")
        return None
    if kind is not None and name in RESERVED[kind]:
        said = f"{name} is given to every replica by the platform and cannot be set"
        entry.refuse("name", "ENV_NAME_RESERVED", said)
        return None
    return name


def _env_value(entry: Section) -> str | None:
    """Values may be secrets: no message shows one."""
    value = entry.values.get("value")
    if not isinstance(value, str):
        said = "is missing" if "value" not in entry else f"is {kind_of(value)}; put it into quotes"
        entry.refuse("value", "ENV_VALUE_NOT_STRING", f"`value` {said}")
    elif not value:
        entry.refuse("value", "ENV_VALUE_EMPTY", "`value` is empty")
    elif "\x00" in value:
        entry.refuse("value", "ENV_VALUE_NUL", f"`value` contains NUL at character {value.index(chr(0))}")
    elif fault := text_fault(value):
        entry.refuse("value", "ENV_INVALID", f"`value` {fault}")
    else:
        return value
    return None


def read_mounts(spec: Section, roots: Iterable[str]) -> tuple[Mount, ...]:
    """The mounts (C11-C13); ``roots`` are the folders that may hold them."""
    allowed = tuple(roots)
    found: list[Mount] = []
    taken: dict[str, tuple[int, Mount]] = {}
    for place, entry in enumerate(spec.sections("mounts", "MOUNT_INVALID")):
        mount = _mount(entry, allowed)
        if mount is None:
            continue
        if mount.mount_path in taken:
            _same_path(entry, mount, *taken[mount.mount_path])
            continue
        taken[mount.mount_path] = (place, mount)
        found.append(mount)
        spec.keep("mounts", place)
    _nested(spec, {path: place for path, (place, _) in taken.items()})
    return tuple(found)


def _nested(spec: Section, places: Mapping[str, int]) -> None:
    around: list[str] = []
    for path in sorted(places, key=lambda each: f"{each}/"):
        while around and not path.startswith(f"{around[-1]}/"):
            around.pop()
        if around:
            said = f"{path} lies inside {around[-1]}, the path of mounts[{places[around[-1]]}]"
            spec.refuse(f"mounts[{places[path]}]", "MOUNT_NESTED", said)
        around.append(path)


def _same_path(entry: Section, mount: Mount, place: int, first: Mount) -> None:
    if (mount.type, mount.ref) == (first.type, first.ref):
        said = f"{mount.type} {mount.ref} is mounted at {mount.mount_path} twice, first by mounts[{place}]"
        entry.refuse("mount_path", "MOUNT_DUPLICATE", said)
    else:
        said = f"{mount.mount_path} is also the path of mounts[{place}]"
        entry.refuse("mount_path", "MOUNT_CONFLICT", said)


def _mount(entry: Section, roots: tuple[str, ...]) -> Mount | None:
    kind = entry.word("type", MountType, "MOUNT_INVALID")
    if "type" not in entry:
        entry.refuse("type", "MOUNT_INVALID", f"`type` is missing; use {', '.join(MountType)}")
    ref = _reference(entry, kind)
    path = _mount_path(entry, roots)
    sub_path = _sub_path(entry)
    content = kind in CONTENT_KINDS
    read_only = entry.flag("read_only", default=content)
    if content and not read_only:
        said = f"a {kind} is immutable; only volumes can be written to"
        entry.refuse("read_only", "MOUNT_READ_ONLY", said)
    if kind is None or ref is None or path is None:
        return None
    return Mount(kind, ref, path, sub_path, read_only or content)


def _reference(entry: Section, kind: MountType | None) -> str | None:
    value = entry.values.get("ref")
    if value is None or (isinstance(value, str) and not value.strip()):
        entry.refuse("ref", "MOUNT_REF_REQUIRED", "`ref` is missing; say what is mounted")
        return None
    text = entry.text("ref", "MOUNT_REF_INVALID")
    if text is None or kind is None:
        return text
    if fault := reference_fault(kind, text):
        entry.refuse("ref", "MOUNT_REF_INVALID", f"`ref` is {shown_short(text)}: {fault}")
        return None
    return text


def reference_fault(kind: MountType, ref: str) -> str | None:
    """Why ``ref`` cannot be what a mount of ``kind`` refers to, or ``None`` (C11)."""
    if len(ref) > MAX_REFERENCE_CHARS:
        return f"it has {len(ref)} characters; at most {MAX_REFERENCE_CHARS}"
    if kind in CONTENT_KINDS:
        try:
            if content_reference(kind, ref) is not None:
                return None
        except ValueError as error:
            return str(error)
    return None if NAME.fullmatch(ref) else f"an id matches {ID}"


def content_reference(kind: MountType, ref: str) -> ContentUri | None:
    """What a dataset's or model's ``ref`` names, ``None`` for a name of the catalogue.

    Raises `ValueError` with a sentence for what is neither.
    """
    wanted = CONTENT_KINDS[kind]
    if "/" not in ref:
        return None
    uri = parse_content_uri(ref if "://" in ref else f"envloop://{wanted}/{ref}")
    if uri.kind is not wanted:
        raise ValueError(f"this is a {uri.kind.noun}, not a {wanted.noun}")
    return uri


def _mount_path(entry: Section, roots: tuple[str, ...]) -> str | None:
    value = entry.values.get("mount_path")
    if value is None or value == "":
        entry.refuse("mount_path", "MOUNT_PATH_REQUIRED", "`mount_path` is missing; say where it appears")
        return None
    code = "MOUNT_PATH_NOT_ALLOWED"
    if not isinstance(value, str):
        entry.refuse("mount_path", code, f"`mount_path` must be a string, not {kind_of(value)}")
        return None
    fault = _path_fault(value)
    if fault is None and not value.startswith("/"):
        fault = "it must be absolute"
    if fault is None and not any(value == root or value.startswith(f"{root}/") for root in roots):
        fault = f"it must be at or below {' or '.join(roots)}"
    if fault:
        entry.refuse("mount_path", code, f"`mount_path` is {shown_short(value)}: {fault}")
        return None
    return value


def _sub_path(entry: Section) -> str | None:
    if "sub_path" not in entry:
        return None
    value = entry.values["sub_path"]
    code = "MOUNT_PATH_NOT_ALLOWED"
    if not isinstance(value, str) or not value:
        entry.refuse("sub_path", code, f"`sub_path` must be a path inside of it, not {shown_short(value)}")
        return None
    fault = "it must be relative" if value.startswith("/") else _path_fault(value)
    if fault:
        entry.refuse("sub_path", code, f"`sub_path` is {shown_short(value)}: {fault}")
        return None
    return value


def _path_fault(path: str) -> str | None:
    if fault := text_fault(path):
        return f"it {fault}"
    if not path.isprintable():
        return "it may hold printable characters only"
    parts = path.removeprefix("/").split("/")
    if "" in parts:
        return "it may not contain `//` or end in `/`"
    if "." in parts or ".." in parts:
        return "it may not contain `.` or `..` as a folder"
    return _length_fault(path, parts)


def _length_fault(path: str, parts: Iterable[str]) -> str | None:
    """What no kernel could mount."""
    if (size := len(path.encode())) > MAX_MOUNT_PATH_BYTES:
        return f"it has {size} UTF-8 bytes; at most {MAX_MOUNT_PATH_BYTES}"
    if (longest := max(len(part.encode()) for part in parts)) > MAX_PATH_PART_BYTES:
        return f"a folder's name in it has {longest} UTF-8 bytes; at most {MAX_PATH_PART_BYTES}"
    return None
