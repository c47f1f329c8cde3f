"""The tools: names, descriptions, schemas of what they take and answer, annotations (a.0 to a.7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.model.scripts.spec import (
    MAX_HOURS,
    MAX_INCLUDE,
    MAX_INCLUDES,
    MAX_NAME,
    MAX_SCRIPT,
    MAX_VRAM_GB,
)
from trainshed.model.scripts.states import Word

Schema = dict[str, Any]
REF_PATTERN = r"^[0-9a-fA-F]{1,12}$"
REQUEST_ID_PATTERN = r"^[A-Za-z0-9._:-]{1,64}$"
SINCE_PATTERN = r"^(\d{1,9}:)?\d{1,19}$"
MOST_WAIT_S, MOST_FETCH_WAIT_S = 50, 300


@dataclass(frozen=True, slots=True)
class Access:
    """What a tool may do, as clients show it (a.0.4)."""

    reads_only: bool
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = False


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool."""

    name: str
    title: str
    description: str
    properties: Mapping[str, Schema]
    required: tuple[str, ...]
    output: Schema
    access: Access

    def input_schema(self) -> Schema:
        """What it takes; unknown names are refused with a nearest name (a.0.7)."""
        return {
            "type": "object",
            "properties": dict(self.properties),
            "required": list(self.required),
            "additionalProperties": False,
        }


def _of(kind: str, description: str, **rules: Any) -> Schema:
    return {"type": kind, "description": description, **rules}


def _maybe(kind: str, description: str, **rules: Any) -> Schema:
    return {"type": [kind, "null"], "description": description, "default": None, **rules}


def _strings(description: str, **rules: Any) -> Schema:
    """A list of strings; a JSON array written as a string is taken as well (a.0.7)."""
    items = {"type": "array", "items": {"type": "string"}, **rules}
    return {
        "anyOf": [items, {"type": "string"}, {"type": "null"}],
        "description": description,
        "default": None,
    }


_REF = _of("string", "Which job: its short id or a prefix of it (hexadecimal).", pattern=REF_PATTERN)
_VERBOSE = _of("boolean", "Whole documents: null fields, every event.", default=False)


def _wait(what: str, default: int, most: int = MOST_WAIT_S) -> Schema:
    said = f"Seconds to wait until {what}; reaching them is no error."
    return _of("number", said, minimum=0, maximum=most, default=default)


_PROJECT: Mapping[str, Schema] = {
    "project_dir": _of(
        "string",
        "Absolute path of the folder with the script and, if there is one, gpu.yaml. Inside a git repository "
        "the whole repository ships: tracked files and those not ignored.",
        minLength=1,
    ),
    "script": _maybe(
        "string",
        "Python script relative to project_dir, or a command line such as `bash jobs/run.sh`. Default: what "
        "gpu.yaml says.",
        maxLength=MAX_SCRIPT,
    ),
    "args": _strings("Arguments of the script. Paths are relative to project_dir and must ship."),
    "hours": _maybe(
        "number",
        "Honest estimate of the run time in hours. Decides the provider and whether your user is asked.",
        exclusiveMinimum=0,
        maximum=MAX_HOURS,
    ),
    "vram_gb": _maybe(
        "number", "GPU memory needed, in GB: a hard filter.", exclusiveMinimum=0, maximum=MAX_VRAM_GB
    ),
    "gpu": _maybe("string", "GPU type, e.g. T4. Leave it out unless only that type will do.", maxLength=64),
    "provider": _maybe(
        "string",
        "Pin one provider; `local` is this machine, one job at a time. Leave it out to have one chosen.",
        maxLength=64,
    ),
    "data": _strings(
        "Datasets as [NAME=]PATH or [NAME=]hf://datasets/OWNER/REPO, readable at gpu.data_dir()/NAME."
    ),
    "include": _strings(
        "Paths or globs that ship although git ignores them; added to those of gpu.yaml.",
        maxItems=MAX_INCLUDES,
    ),
    "smoke": _of("boolean", "A quick test: prefers this machine, counts as 15 minutes.", default=False),
    "verbose": _VERBOSE,
}
_OWN: Mapping[str, Schema] = {
    "name": _maybe("string", "A label for people. Default: the script's name.", maxLength=MAX_NAME),
    "env": {
        "anyOf": [
            {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
            {"type": "null"},
        ],
        "description": "Variables that are no secrets. Secrets: your user stores them with `gpu secrets set "
        "NAME` and lists them in gpu.yaml under secrets.",
        "default": None,
    },
    "request_id": {
        "type": ["string", "null"],
        "description": "Identity of this submission: the same id always answers the same job. A new one with "
        "the same arguments starts another copy.",
        "default": None,
        "pattern": REQUEST_ID_PATTERN,
    },
    "wait_s": _wait("it is placed or asks for approval", 10),
}
_GUIDANCE: Schema = {
    "type": "object",
    "description": "What to do next. If needs_approval, relay tell_user word for word and end your turn.",
    "properties": {
        "state": {"type": "string"},
        "meaning": {"type": "string"},
        "finished": {"type": "boolean"},
        "needs_approval": {"type": "boolean"},
        "tell_user": {"type": "string"},
        "follow": {"type": "string", "enum": ["wait", "report_and_stop", "end_turn"]},
        "poll_every_s": {"type": "number"},
        "next": {"type": "string"},
    },
}
_JOB: Schema = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "short_id": {"type": "string"},
        "name": {"type": "string"},
        "state": {"type": "string", "enum": [str(word) for word in Word]},
        "provider": {"type": ["string", "null"]},
        "gpu": {"type": ["string", "null"]},
        "simulated": {"type": "boolean"},
        "outputs_dir": {"type": ["string", "null"]},
        "exit_code": {"type": ["integer", "null"]},
    },
    "required": ["short_id", "state"],
}
_BUNDLE: Schema = {
    "type": "object",
    "properties": {
        "files": {"type": "integer"},
        "bytes": {"type": "integer"},
        "size": {"type": "string"},
        "included": {"type": "array", "items": {"type": "string"}},
        "left_out": {"type": "array", "items": {"type": "string"}},
        "left_out_not_shown": {"type": "integer"},
        "hint": {"type": "string"},
        "warnings": {"type": "array", "items": {"type": "string"}},
    },
}
_TEXT: Schema = {"type": "string"}
_OBJECTS: Schema = {"type": "array", "items": {"type": "object"}}


def _answer(required: tuple[str, ...], **properties: Schema) -> Schema:
    """The answer, or the error in its place (a.0.6)."""
    error = {"type": "object", "description": "Instead of everything else, where the call failed."}
    return {
        "type": "object",
        "properties": {**properties, "error": error},
        "anyOf": [{"required": list(required)}, {"required": ["error"]}],
    }


SUBMIT = ToolSpec(
    "gpu_submit",
    "Run a project on a GPU",
    "Run a script of a project folder on a GPU and return at once; the job goes on without you. Use it for "
    "training, fine-tuning, evaluations, anything that needs CUDA or runs long. Do not use it for quick CPU "
    "work (tests, linting, small data checks): run that yourself. The folder is packed as git sees it, a "
    "provider is chosen, outputs land in project_dir/runs/<id>/. Read bundle.left_out: what is ignored does "
    "not ship. Calling again with the same arguments while the job is active answers the same job. If "
    "guidance.needs_approval, relay guidance.tell_user word for word and end your turn.",
    {**_PROJECT, **_OWN},
    ("project_dir",),
    _answer(
        ("job", "guidance", "submitted"),
        job=_JOB,
        guidance=_GUIDANCE,
        submitted={"type": "boolean"},
        untrusted=_TEXT,
        bundle=_BUNDLE,
        duplicate_of=_TEXT,
        message=_TEXT,
    ),
    Access(reads_only=False, idempotent=False, open_world=True),
)
STATUS = ToolSpec(
    "gpu_status",
    "Look at GPU jobs",
    "How a job goes (give ref), or what runs, what finished lately and which providers can be used (no ref). "
    "Jobs that need your user's approval come first.",
    {
        "ref": _maybe("string", "Which job; leave it out for an overview.", pattern=REF_PATTERN),
        "wait_s": _wait("its state changes", 0),
        "events": _of("integer", "How many of its newest events.", minimum=0, maximum=50, default=5),
        "verbose": _VERBOSE,
    },
    (),
    _answer(
        ("guidance",),
        job=_JOB,
        attempts=_OBJECTS,
        checkpoints=_OBJECTS,
        events=_OBJECTS,
        counts={"type": "object"},
        active=_OBJECTS,
        recent=_OBJECTS,
        providers=_OBJECTS,
        guidance=_GUIDANCE,
        untrusted=_TEXT,
    ),
    Access(reads_only=True),
)
LOGS = ToolSpec(
    "gpu_logs",
    "Read a job's output",
    "Lines of a job's output. Without since: the last ones. With since=next_since of the answer before: each "
    "line exactly once, across attempts.",
    {
        "ref": _REF,
        "tail": _of("integer", "How many of the last lines.", minimum=1, maximum=1000, default=100),
        "since": _maybe(
            "string", "Go on from here: next_since of an answer.", maxLength=32, pattern=SINCE_PATTERN
        ),
        "attempt": _maybe("integer", "Only this attempt; default: the newest.", minimum=1),
    },
    ("ref",),
    _answer(
        ("job", "lines"),
        job=_JOB,
        attempt={"type": ["integer", "null"]},
        provider={"type": ["string", "null"]},
        latest_attempt={"type": ["integer", "null"]},
        lines={"type": "array", "items": {"type": "string"}},
        next_since={"type": ["string", "null"]},
        older_lines_not_shown={"type": "integer"},
        finished={"type": "boolean"},
        note=_TEXT,
        untrusted=_TEXT,
    ),
    Access(reads_only=True),
)
FETCH = ToolSpec(
    "gpu_fetch",
    "Bring a job's outputs",
    "Bring what a job wrote to gpu.output_dir() into job.outputs_dir and list it. Of one that has not "
    "finished it says where they will land.",
    {
        "ref": _REF,
        "wait_s": _wait("they are there", 45, MOST_FETCH_WAIT_S),
        "refetch": _of("boolean", "Download again what is there already; deletes nothing.", default=False),
        "verbose": _VERBOSE,
    },
    ("ref",),
    _answer(
        ("job", "fetched"),
        job=_JOB,
        fetched={"type": "boolean"},
        outputs_dir={"type": ["string", "null"]},
        files={"type": "integer"},
        message=_TEXT,
        outputs={"type": "object"},
        in_progress={"type": "boolean"},
        guidance=_GUIDANCE,
        untrusted=_TEXT,
    ),
    Access(reads_only=False, open_world=True),
)
CANCEL = ToolSpec(
    "gpu_cancel",
    "Cancel a job",
    "End a job. Outputs and checkpoints that were saved are kept. Of one that has ended it changes nothing.",
    {"ref": _REF, "verbose": _VERBOSE},
    ("ref",),
    _answer(("job", "guidance"), job=_JOB, guidance=_GUIDANCE, message=_TEXT, untrusted=_TEXT),
    Access(reads_only=False, destructive=True, open_world=True),
)
QUOTA = ToolSpec(
    "gpu_quota",
    "What is left at each provider",
    "GPU-hours or credits used and left at each provider: the provider's word, or an estimate.",
    {"refresh": _of("boolean", "Ask the providers now.", default=False)},
    (),
    _answer(
        ("quota", "summary"),
        quota=_OBJECTS,
        summary={"type": "array", "items": {"type": "string"}},
        guidance={"type": "object"},
    ),
    Access(reads_only=True),
)
ROUTE = ToolSpec(
    "gpu_route",
    "Where a project would run",
    "What gpu_submit would do with these arguments, without doing it: the provider and why, why not the "
    "others, whether your user would be asked, what would ship.",
    dict(_PROJECT),
    ("project_dir",),
    _answer(
        ("spec", "route"),
        spec={"type": "object"},
        route={"type": "object"},
        approval={"type": ["object", "null"]},
        bundle=_BUNDLE,
        guidance={"type": "object"},
        untrusted=_TEXT,
    ),
    Access(reads_only=True),
)

_ANY_JOB = _of(
    "string",
    "Which job: short id, full id (`job_…`), or the name of a training task.",
    minLength=1,
    maxLength=128,
)
JOBS = ToolSpec(
    "trainshed_jobs",
    "List jobs of every kind",
    "The newest jobs that this key may see, of every kind: scripts, Runner jobs, training tasks.",
    {
        "status": _maybe(
            "string",
            "Only these.",
            enum=["queued", "running", "stopping", "completed", "failed", "cancelled", None],
        ),
        "limit": _of("integer", "How many.", minimum=1, maximum=100, default=20),
    },
    (),
    _answer(("items",), items=_OBJECTS, untrusted=_TEXT),
    Access(reads_only=True),
)
WHY = ToolSpec(
    "trainshed_why",
    "Why a job waits",
    "Why a job waits: what blocks it, with numbers, who is ahead, what would unblock it, when it may start.",
    {"job": _ANY_JOB},
    ("job",),
    _answer(("why",), why={"type": "array", "items": {"type": "object"}}, untrusted=_TEXT),
    Access(reads_only=True),
)
EVENTS = ToolSpec(
    "trainshed_events",
    "What happened to a job",
    "The newest events of a job of any kind, oldest of them first.",
    {"job": _ANY_JOB, "limit": _of("integer", "How many.", minimum=1, maximum=200, default=50)},
    ("job",),
    _answer(("events",), events=_OBJECTS, untrusted=_TEXT),
    Access(reads_only=True),
)
SEARCH = ToolSpec(
    "trainshed_search_logs",
    "Search a job's output",
    "Lines of a job's output that hold a text, with the lines around them.",
    {
        "job": _ANY_JOB,
        "text": _of("string", "What to look for; letters of either case.", minLength=1, maxLength=200),
        "around": _of("integer", "Lines before and after each.", minimum=0, maximum=10, default=1),
        "limit": _of("integer", "How many matches.", minimum=1, maximum=100, default=20),
    },
    ("job", "text"),
    _answer(
        ("matches",),
        matches=_OBJECTS,
        searched_lines={"type": "integer"},
        more={"type": "boolean"},
        untrusted=_TEXT,
    ),
    Access(reads_only=True),
)
COMPARE = ToolSpec(
    "trainshed_compare",
    "Compare two jobs",
    "What differs between two jobs of the same kind: what was frozen (code, parameters, resources), how they "
    "ended, their last metrics.",
    {"a": _ANY_JOB, "b": _ANY_JOB},
    ("a", "b"),
    _answer(("differences", "same"), differences=_OBJECTS, same={"type": "integer"}, untrusted=_TEXT),
    Access(reads_only=True),
)

TOOLS: tuple[ToolSpec, ...] = (
    SUBMIT,
    STATUS,
    LOGS,
    FETCH,
    CANCEL,
    QUOTA,
    ROUTE,
    JOBS,
    WHY,
    EVENTS,
    SEARCH,
    COMPARE,
)
BY_NAME: Mapping[str, ToolSpec] = {tool.name: tool for tool in TOOLS}
MAX_INCLUDE_CHARACTERS = MAX_INCLUDE
