"""The fields of both kinds: basic information, environment, compute (a1-a3)."""

from __future__ import annotations

from trainshed.model.training.field_table import (
    BOTH,
    ENV_NAME,
    FLAG,
    LABEL_KEY,
    MAP,
    MAX_COMMAND_BYTES,
    MAX_COUNT,
    MAX_COUNT_PER_NODE,
    MAX_LABEL_VALUE_CHARS,
    MAX_LABELS,
    MAX_MOUNT_PATH_BYTES,
    MAX_MOUNTS,
    MAX_PATH_PART_BYTES,
    MAX_PREFIX_CHARS,
    MAX_SPECS,
    MAX_VARIABLES,
    NAME,
    NAME_PREFIX,
    Field,
    entries,
    text,
    whole,
    words,
)
from trainshed.model.training.spec import (
    MAX_WORKERS,
    InstanceType,
    Kind,
    MountType,
    ResourceType,
)


def env_fields(path: str, kinds: frozenset[Kind], contract: str, meaning: str) -> tuple[Field, ...]:
    return (
        Field(
            path,
            meaning,
            contract,
            entries(maxItems=MAX_VARIABLES),
            f"At most {MAX_VARIABLES}; a name with its value is at most 128 KiB, all together 1 MiB; a name "
            "occurs once.",
            default=[],
            kinds=kinds,
            codes=("ENV_INVALID", "ENV_DUPLICATE", "ENV_TOO_LARGE"),
        ),
        Field(
            f"{path}[].name",
            "The variable's name.",
            "C8",
            text(MAX_COMMAND_BYTES, pattern=f"^{ENV_NAME}$"),
            "English letters, digits and underscores, not starting with a digit.",
            required=True,
            kinds=kinds,
            codes=("ENV_NAME_INVALID", "ENV_NAME_RESERVED"),
        ),
        Field(
            f"{path}[].value",
            'Its value: text, so a number is put into quotes ("0"). Line breaks are allowed.',
            "C8",
            {"type": "string", "minLength": 1},
            "Not empty, no NUL.",
            required=True,
            kinds=kinds,
            codes=("ENV_VALUE_NOT_STRING", "ENV_VALUE_EMPTY", "ENV_VALUE_NUL"),
        ),
        Field(
            f"{path}[].hidden",
            "Write-only: reads give null, and the value is masked in logs.",
            "C9",
            FLAG,
            default=False,
            kinds=kinds,
        ),
    )


def instance_fields(path: str, kinds: frozenset[Kind], contract: str, *, required: bool) -> tuple[Field, ...]:
    whose = "the head" if path.startswith("head") else "one replica"
    return (
        Field(path, f"What {whose} runs on.", contract, MAP, required=required, kinds=kinds),
        Field(
            f"{path}.type",
            "GPU or CPU specs.",
            "C20",
            words(InstanceType),
            derived="that of the specs",
            kinds=kinds,
            codes=("SPEC_TYPE_MISMATCH",),
        ),
        Field(
            f"{path}.specs",
            "Instance specs, the preferred one first. The whole gang gets one of them.",
            "C20, C22",
            entries(minItems=1, maxItems=MAX_SPECS, uniqueItems=True, items=NAME),
            f"1 to {MAX_SPECS} names, each once.",
            required=True,
            kinds=kinds,
            codes=("SPEC_UNKNOWN", "SPEC_NOT_IN_POOL", "SPEC_DUPLICATE", "NEVER_FITS"),
        ),
        Field(
            f"{path}.count_per_node",
            f"Units of the spec that {whose} gets, all on one node.",
            "C20",
            whole(1, MAX_COUNT_PER_NODE),
            f"1 to {MAX_COUNT_PER_NODE}.",
            default=1,
            kinds=kinds,
            codes=("COUNT_INVALID",),
        ),
    )


BASIC: tuple[Field, ...] = (
    Field(
        "kind",
        "pytorch runs the command on every replica; ray runs it as the driver of a Ray cluster.",
        "C4",
        words(Kind),
        required=True,
        codes=("KIND_UNKNOWN", "KIND_CONFLICT"),
    ),
    Field(
        "task_type",
        "Another way to write `kind`.",
        "C4",
        {"type": "string", "enum": ["PyTorchJob", "RayJob"]},
        codes=("KIND_CONFLICT",),
    ),
    Field(
        "region",
        "Where it runs.",
        "C1",
        NAME,
        derived="the only one, or the cluster's",
        codes=("UNKNOWN_REGION",),
    ),
    Field(
        "cluster",
        "The cluster it runs on.",
        "C1",
        NAME,
        derived="the only one",
        codes=("UNKNOWN_CLUSTER", "CLUSTER_NOT_IN_REGION"),
    ),
    Field(
        "project",
        "The project that owns it and whose quota it uses.",
        "C2",
        NAME,
        derived="the caller's",
        codes=("PROJECT_ACCESS_DENIED",),
    ),
    Field(
        "name_prefix",
        "The name begins so; a hyphen and six letters or digits are added.",
        "C3",
        text(MAX_PREFIX_CHARS, pattern=f"^{NAME_PREFIX}$"),
        "1 to 32 lower-case letters, digits and hyphens; the first and the last are no hyphen.",
        required=True,
        codes=("NAME_PREFIX_INVALID",),
    ),
    Field("public", "Everybody in the project may see it.", "C5", FLAG, default=False),
    Field(
        "labels",
        "Words to find and group tasks by.",
        "C6",
        {
            "type": "object",
            "maxProperties": MAX_LABELS,
            "propertyNames": {"pattern": f"^{LABEL_KEY}$"},
            "additionalProperties": {"type": "string", "maxLength": MAX_LABEL_VALUE_CHARS},
        },
        f"At most {MAX_LABELS}; a key matches {LABEL_KEY}, a value has at most {MAX_LABEL_VALUE_CHARS} "
        "printable characters.",
        default={},
        codes=("LABEL_INVALID", "LABEL_NOT_ALLOWED", "LABEL_REQUIRED"),
    ),
)

ENVIRONMENT: tuple[Field, ...] = (
    Field(
        "image",
        "A preset image or an address; `host` is the machine's own environment, where that is allowed.",
        "C7",
        text(),
        required=True,
        codes=("IMAGE_REQUIRED", "IMAGE_INVALID"),
    ),
    *env_fields("env", BOTH, "C8, C10", "Environment variables; they win over those of the project."),
    Field(
        "mounts",
        "Volumes, datasets and models to appear in every replica.",
        "C11",
        entries(maxItems=MAX_MOUNTS),
        f"At most {MAX_MOUNTS}; each has a path of its own, and none lies inside another.",
        default=[],
        codes=("MOUNT_INVALID", "MOUNT_DUPLICATE", "MOUNT_CONFLICT", "MOUNT_NESTED", "MOUNT_DENIED"),
    ),
    Field("mounts[].type", "What it is.", "C11", words(MountType), required=True, codes=("MOUNT_INVALID",)),
    Field(
        "mounts[].ref",
        "A volume's id; for a dataset or model ns/name@version, an envloop:// URI or a catalogue name.",
        "C11",
        text(),
        required=True,
        codes=("MOUNT_REF_REQUIRED", "MOUNT_REF_INVALID"),
    ),
    Field(
        "mounts[].mount_path",
        "Where it appears: an absolute path at or below /volume or /mnt.",
        "C12",
        text(MAX_MOUNT_PATH_BYTES, pattern="^/"),
        f"Normalised; at most {MAX_MOUNT_PATH_BYTES} bytes, each folder's name at most "
        f"{MAX_PATH_PART_BYTES}; administrators may allow other folders.",
        required=True,
        codes=("MOUNT_PATH_REQUIRED", "MOUNT_PATH_NOT_ALLOWED"),
    ),
    Field(
        "mounts[].sub_path",
        "A folder inside of it to mount instead of the whole; of a dataset or model also one file.",
        "C11",
        text(MAX_MOUNT_PATH_BYTES, pattern="^[^/]"),
        f"Relative and normalised; at most {MAX_MOUNT_PATH_BYTES} bytes, each folder's name at most "
        f"{MAX_PATH_PART_BYTES}.",
        derived="the whole",
        codes=("MOUNT_PATH_NOT_ALLOWED", "MOUNT_SUB_PATH_UNKNOWN"),
    ),
    Field(
        "mounts[].read_only",
        "Whether nothing can be written there. Datasets and models are always read-only.",
        "C13",
        FLAG,
        derived="true for datasets and models, false for volumes",
        codes=("MOUNT_READ_ONLY",),
    ),
    Field(
        "cmd",
        "What runs, with `bash -c`; of a ray task, the driver. Passed on byte for byte.",
        "C15",
        text(MAX_COMMAND_BYTES),
        f"Some text, no NUL, at most {MAX_COMMAND_BYTES} UTF-8 bytes.",
        required=True,
        codes=("CMD_REQUIRED", "CMD_INVALID"),
    ),
)

COMPUTE: tuple[Field, ...] = (
    Field(
        "resource_type",
        "reserved: own quota; ondemand: shared, under a cap; spot: cheap, may be interrupted; "
        "idle: what others leave unused, may end at any time.",
        "C17",
        words(ResourceType),
        required=True,
        codes=("RESOURCE_TYPE_UNKNOWN", "RESOURCE_TYPE_NOT_OFFERED"),
    ),
    Field(
        "pool", "The pool of nodes.", "C24", NAME, derived="the cluster's only one", codes=("UNKNOWN_POOL",)
    ),
    Field(
        "workers",
        "Replicas beside the master (pytorch) or the head (ray).",
        "C18, C19",
        whole(0, MAX_WORKERS),
        f"0 to {MAX_WORKERS}.",
        default=0,
        codes=("WORKERS_INVALID", "QUOTA_EXCEEDED"),
    ),
    *instance_fields("instance", BOTH, "C20", required=True),
    Field(
        "guarantee",
        "Run only on units that nobody may take back. It may wait longer for them.",
        "C26",
        FLAG,
        "Resource types reserved and ondemand only.",
        derived="true for reserved, else false",
        codes=("GUARANTEE_NOT_OFFERED",),
    ),
    Field(
        "idle_supplement",
        "What is above the own quota runs as resource type idle.",
        "C25, c3",
        FLAG,
        "Resource type reserved without guarantee only.",
        default=False,
        codes=("IDLE_SUPPLEMENT_NOT_OFFERED",),
    ),
    Field(
        "priority",
        "A priority class, or a number; the larger goes first.",
        "C29",
        {"anyOf": [text(128), {"type": "integer", "minimum": -MAX_COUNT, "maximum": MAX_COUNT}]},
        "In the range of the project.",
        default="normal",
        codes=("PRIORITY_NOT_ALLOWED",),
    ),
    Field(
        "max_run_seconds",
        "It is stopped after so long; a task that says so may fill a gap before a larger one.",
        "c5",
        whole(1),
        f"1 to {MAX_COUNT} seconds.",
        derived="no limit",
    ),
    Field(
        "spec_patience_seconds",
        "How long to hold out for each spec before the next one is taken.",
        "c5",
        whole(0),
        f"0 to {MAX_COUNT} seconds.",
        default=0,
    ),
)
