"""Every field of a catalogue's document, once: `catalog_reading` and `trainshed catalog explain` use it.

Paths are relative to the document; `[]` is any entry of a list.
"""

from __future__ import annotations

from trainshed.model.training.catalog import (
    ANY,
    DEFAULT_MOUNT_ROOTS,
    ChannelType,
    Engine,
)
from trainshed.model.training.field_table import (
    FLAG,
    MAP,
    MAX_LABEL_VALUE_CHARS,
    MAX_REFERENCE_CHARS,
    NAME,
    Field,
    entries,
    text,
    whole,
    words,
)
from trainshed.model.training.spec import InstanceType, MountType, ResourceType

_NAMES = entries(items=NAME)
_PROJECTS = "Projects that may use it; `*`: all."
_CLUSTERS = "Clusters that have it; `*`: all."
_LABELS = {"type": "object", "additionalProperties": {"type": "string"}}


_CLASSES = "Left out: low 100, normal 500, high 900. A list replaces these three and must have `normal`."


def _id(path: str, what: str, key: str = "id", limits: str = "") -> tuple[Field, Field]:
    return (
        Field(path, f"The {what}.", "catalogue", entries(), limits, default=[]),
        Field(f"{path}[].{key}", "Its name.", "catalogue", NAME, required=True),
    )


def _lists(path: str, *keys: str) -> tuple[Field, ...]:
    said = {"clusters": _CLUSTERS, "projects": _PROJECTS}
    return tuple(Field(f"{path}[].{key}", said[key], "catalogue", _NAMES, default=[ANY]) for key in keys)


_PLACES = (
    *_id("regions", "regions"),
    *_id("clusters", "clusters"),
    Field("clusters[].region", "The region it is in.", "C1", NAME, required=True),
    Field("clusters[].engine", "What runs the tasks.", "C1", words(Engine), required=True),
    Field(
        "clusters[].address",
        "How the engine is reached: Ray's head, a Kubernetes context, a Slurm login host.",
        "C1",
        text(MAX_REFERENCE_CHARS),
        default="",
    ),
    Field("clusters[].node_selector", "Labels that its nodes must have.", "C1", _LABELS, default={}),
    *_id("instance_specs", "instance specs, which tasks ask for", "name"),
    Field("instance_specs[].type", "GPU or CPU.", "C20", words(InstanceType), required=True),
    Field("instance_specs[].gpus", "GPUs of one unit; 0 for CPU specs.", "C20", whole(0), default=0),
    Field("instance_specs[].gpu_model", "Their model, `H200` say.", "C20", text(64)),
    Field("instance_specs[].cpus", "CPU cores of one unit.", "C20", whole(1), required=True),
    Field("instance_specs[].memory_gib", "Memory of one unit, in GiB.", "C20", whole(1), required=True),
    Field(
        "instance_specs[].price_per_hour",
        "What one unit costs an hour; a number or text with a decimal point.",
        "C20",
        {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]},
    ),
    Field("instance_specs[].currency", "Of the price, `EUR` say.", "C20", text(8)),
    *_id("pools", "pools of nodes"),
    Field("pools[].cluster", "The cluster whose nodes these are.", "C24", NAME, required=True),
    Field(
        "pools[].nodes",
        "Which nodes: `all`, or {names: [..]} or {labels: {..}}.",
        "C24",
        {"anyOf": [{"const": "all"}, MAP]},
        default="all",
    ),
    Field("pools[].nodes.names", "Nodes by name.", "C24", entries(items=text(253)), default=[]),
    Field("pools[].nodes.labels", "Labels that its nodes have.", "C24", _LABELS, default={}),
    Field("pools[].specs", "Instance specs offered.", "C20", _NAMES, required=True),
    Field(
        "pools[].resource_types",
        "Resource types offered.",
        "C17",
        entries(items=words(ResourceType)),
        derived="all",
    ),
    Field("pools[].precheck", "What a precheck demands.", "C31", MAP),
    *(
        Field(f"pools[].precheck.{key}", said, "C31", {"type": "number", "minimum": 0}, default=0)
        for key, said in (
            ("gemm_tflops", "TFLOP/s of each GPU."),
            ("allreduce_gb_per_second", "Bus bandwidth in GB/s."),
        )
    ),
    Field("pools[].precheck.timeout_seconds", "Its time limit.", "C31", whole(1), default=600),
)

_RIGHTS = (
    Field("quotas", "How much each project may hold at once.", "C23", entries(), default=[]),
    Field("quotas[].project", "The project; `*`: each that has no row of its own.", "C23", NAME, default=ANY),
    Field("quotas[].resource_type", "The resource type.", "C23", words(ResourceType), required=True),
    Field("quotas[].pool", "The pool.", "C23", NAME, required=True),
    Field("quotas[].spec", "The instance spec; `*`: each without a row.", "C23", NAME, default=ANY),
    Field("quotas[].units", "Units: owned, for ondemand and spot a cap.", "C23", whole(0), required=True),
    Field("quotas[].cohort", "Quotas of one cohort lend to each other.", "c3", NAME),
    Field("quotas[].borrowing_limit", "Most units borrowed.", "c3", whole(0), derived="all that are lent"),
    Field("quotas[].lending_limit", "Most units lent.", "c3", whole(0), derived="all"),
    *_id("priority_classes", "priority classes", "name", _CLASSES),
    Field(
        "priority_classes[].value",
        "The larger goes first.",
        "C29",
        {"type": "integer"},
        required=True,
    ),
    Field("priority_ranges", "Which priorities a project may use.", "C29", entries(), default=[]),
    Field("priority_ranges[].project", "The project; `*`: all others.", "C29", NAME, default=ANY),
    Field("priority_ranges[].min", "The lowest.", "C29", {"type": "integer"}, default=0),
    Field("priority_ranges[].max", "The highest.", "C29", {"type": "integer"}, default=1000),
    Field("labels", "Maintained labels.", "C6", MAP),
    Field("labels.validation", "Only these labels may be used.", "C6", FLAG, default=False),
    Field("labels.rules", "The labels.", "C6", entries(), default=[]),
    Field("labels.rules[].key", "The key.", "C6", text(64), required=True),
    Field(
        "labels.rules[].values",
        "Its values.",
        "C6",
        entries(items=text(MAX_LABEL_VALUE_CHARS)),
        derived="any",
    ),
    Field("labels.rules[].required", "Every task must have it.", "C6", FLAG, default=False),
)

_THINGS = (
    *_id("volumes", "volumes"),
    *_lists("volumes", "clusters", "projects"),
    Field("volumes[].path", "Where it is on a node.", "C11", text(1024, pattern="^/"), required=True),
    Field("volumes[].multi_writer", "Several pods may write at once.", "C48", FLAG, default=False),
    *_id("aliases", "short names of datasets and models"),
    Field("aliases[].type", "dataset or model.", "C11", words(MountType), required=True),
    Field("aliases[].ref", "ns/name@version or an envloop:// URI.", "C11", text(), required=True),
    *_lists("aliases", "clusters", "projects"),
    Field("task_env", "Variables that tasks get below their own.", "C10", entries(), default=[]),
    Field("task_env[].project", "The project; `*`: all.", "C10", NAME, default=ANY),
    Field("task_env[].name", "The variable's name.", "C10", text(1024), required=True),
    Field("task_env[].value", "Its value.", "C10", {"type": "string", "minLength": 1}),
    Field("task_env[].hidden", "Write-only, masked in logs. Needs `secret`.", "C10", FLAG, default=False),
    Field(
        "task_env[].secret",
        "Where the server reads the value: env:NAME or file:/absolute/path.",
        "C10",
        text(1024),
    ),
    *_id("alarm_channels", "channels that alarms go to"),
    Field(
        "alarm_channels[].type",
        "How: a POST of JSON, a mail, or what Apprise knows.",
        "C40",
        words(ChannelType),
        required=True,
    ),
    Field("alarm_channels[].url", "Where to: a secret, shown masked.", "C40", text(2048), required=True),
    *_lists("alarm_channels", "projects"),
    *_id("images", "preset images"),
    Field("images[].address", "The image.", "C7", text(), required=True),
    *_lists("images", "clusters"),
    Field(
        "mount_roots",
        "Folders below which mounts may be.",
        "C12",
        entries(items=text(1024, pattern="^/")),
        default=list(DEFAULT_MOUNT_ROOTS),
    ),
    Field(
        "allow_host_image",
        "Where `image: host` is allowed: true, false or a list of clusters.",
        "C7",
        {"anyOf": [FLAG, _NAMES]},
        default=False,
    ),
    Field("organization", "X_ORG_NAME of tasks.", "C45", text(256), default="default"),
    Field("tenant", "X_TENANT_ID of tasks.", "C45", text(256), default="default"),
)

CATALOG_FIELDS: tuple[Field, ...] = (*_PLACES, *_RIGHTS, *_THINGS)
"""In the order of the page; fields of lists and maps behind them."""
