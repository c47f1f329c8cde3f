"""Codes of what can be wrong with a training task, and what to do about each.

They stand in the list `errors` of an answer whose own code is `INVALID_SPEC` (422). Codes that answer for
themselves, `PROJECT_ACCESS_DENIED` or `DUPLICATE_SUSPECTED` say, are in `model.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trainshed.model.errors import FaultList, Refusal

MAX_FAULTS = 200
_QUOTE = "Put the value into quotes."
_SEE_FIELDS = "`trainshed train explain` lists the fields; `trainshed train explain FIELD` explains one."

SPEC_CODES: Mapping[str, str] = MappingProxyType(
    {
        "FIELD_INVALID": _SEE_FIELDS,
        "FIELD_REQUIRED": _SEE_FIELDS,
        "UNKNOWN_FIELD": _SEE_FIELDS,
        "FIELD_NOT_FOR_KIND": "Remove it, or choose the other kind.",
        "YAML_INVALID": "Correct the line named.",
        "UNKNOWN_REGION": "`trainshed catalog show` lists the regions.",
        "UNKNOWN_CLUSTER": "`trainshed catalog show` lists the clusters.",
        "CLUSTER_NOT_IN_REGION": "Leave the region out, or name the cluster's own.",
        "NOT_IN_CLUSTER": "Choose a cluster that has it; the message names them.",
        "UNKNOWN_POOL": "`trainshed pool list` lists the pools.",
        "NAME_PREFIX_INVALID": "Use the name proposed, or another of lower-case letters, digits and hyphens.",
        "KIND_UNKNOWN": "Write `kind: pytorch` or `kind: ray`.",
        "KIND_CONFLICT": "Give `kind` or `task_type`, not both.",
        "LABEL_INVALID": "See the rule in the message.",
        "LABEL_NOT_ALLOWED": "Use a maintained label, or ask an administrator to add this one.",
        "LABEL_REQUIRED": "Add the label named.",
        "IMAGE_REQUIRED": "Name an image; `host` is the machine's own environment where that is allowed.",
        "IMAGE_INVALID": "Name a preset image, or write [host/]repository[:tag][@sha256:...].",
        "ENV_INVALID": "Write a list of {name, value}.",
        "ENV_NAME_INVALID": "Use English letters, digits and underscores, not starting with a digit.",
        "ENV_NAME_RESERVED": "Remove it; every replica gets this variable with the right value.",
        "ENV_DUPLICATE": "Keep one of the two.",
        "ENV_VALUE_NOT_STRING": _QUOTE,
        "ENV_VALUE_EMPTY": "Give it a value, or leave the variable out.",
        "ENV_VALUE_NUL": "Remove the NUL character; no variable can hold one.",
        "ENV_TOO_LARGE": "Put large values into a file on a volume.",
        "MOUNT_INVALID": "Write a list of {type, ref, mount_path}.",
        "MOUNT_REF_REQUIRED": "Say what is mounted: a volume id, ns/name@version or a name of the catalogue.",
        "MOUNT_REF_INVALID": "Write ns/name@version, an envloop:// URI or a name of the catalogue.",
        "MOUNT_PATH_REQUIRED": "Say where it appears, below /volume or /mnt say.",
        "MOUNT_PATH_NOT_ALLOWED": "Use a folder of its own below the folders named.",
        "MOUNT_SUB_PATH_UNKNOWN": "Name a folder or file of the content, or leave `sub_path` out.",
        "MOUNT_DUPLICATE": "Keep one of the two.",
        "MOUNT_CONFLICT": "Give each mount a path of its own.",
        "MOUNT_NESTED": "Put the two side by side.",
        "MOUNT_DENIED": "Ask an administrator to give the project access to it.",
        "MOUNT_READ_ONLY": "Leave `read_only` out; write results to a volume.",
        "CMD_REQUIRED": "Say what runs: `cmd: python train.py`.",
        "CMD_INVALID": "See the rule in the message.",
        "RESOURCE_TYPE_UNKNOWN": "Use reserved, ondemand, spot or idle.",
        "RESOURCE_TYPE_NOT_OFFERED": "Choose a resource type that the pool offers; the message names them.",
        "WORKERS_INVALID": "Give a whole number; 0 is a task with one replica.",
        "COUNT_INVALID": "Give a whole number of at least 1.",
        "SPEC_UNKNOWN": "`trainshed pool list` shows the instance specs of each pool.",
        "SPEC_TYPE_MISMATCH": "Choose specs of the type given, or leave the type out.",
        "SPEC_NOT_IN_POOL": "`trainshed pool list` shows the instance specs of each pool.",
        "SPEC_DUPLICATE": "Name each spec once, the preferred one first.",
        "NEVER_FITS": "Ask for less on one node, or choose another spec or pool.",
        "QUOTA_EXCEEDED": "Ask for fewer units, or ask an administrator for more quota.",
        "GUARANTEE_NOT_OFFERED": "Leave `guarantee` out, or use resource type reserved or ondemand.",
        "IDLE_SUPPLEMENT_NOT_OFFERED": "Leave `idle_supplement` out, or use reserved without guarantee.",
        "PRIORITY_NOT_ALLOWED": "Use a priority in the project's range; the message names it.",
        "PRECHECK_PYTORCH_ONLY": "Remove `precheck`; kind ray has none.",
        "PRECHECK_NEEDS_GPU": "Turn the precheck off, or choose GPU specs.",
        "RESUBMISSIONS_INVALID": "Give a whole number from 0 to 100.",
        "EXIT_NOTICE_INVALID": "See the rule in the message.",
        "EXIT_NOTICE_TOO_LONG": "At most 600 seconds.",
        "EXIT_NOTICE_PYTORCH_ONLY": "Remove `exit_notice`; kind ray has none.",
        "METRICS_PORT_INVALID": "Give a port from 1 to 65535.",
        "METRICS_PATH_INVALID": "Write a path such as /metrics, without a query.",
        "METRICS_DUPLICATE": "Keep one of the two.",
        "METRICS_EMPTY": "Name an endpoint {port, path}, or turn metrics off.",
        "IMAGE_PULL_RETRIES_INVALID": "Give -1 (no limit), 0 or a positive whole number.",
        "ALARM_INVALID": "See the rule in the message.",
        "ALARM_CHANNEL_UNKNOWN": "`trainshed catalog show` lists the alarm channels of the project.",
        "RUNTIME_ENV_YAML": "Correct the line named.",
        "RUNTIME_ENV_NOT_A_MAP": "Write `key: value` lines, or leave it blank.",
        "RUNTIME_ENV_KEY": "See Ray's page on runtime environments for the keys.",
        "RUNTIME_ENV_VALUE": _QUOTE,
        "RUNTIME_ENV_CONFLICT": "Keep one of pip, uv and conda.",
        "RUNTIME_ENV_LOCAL_PATH": "Use a remote URI, or mount the files.",
        "SHARED_STORAGE_NOT_RWX": "Choose a volume that several pods may write to.",
        "RETENTION_INVALID": "Give seconds from 1 to 86400.",
        "AUTOSCALING_RANGE": "Keep 0 <= min <= workers <= max.",
        "AUTOSCALING_INVALID": "See the rule in the message.",
        "SMOKE_INVALID": "Write smoke: {minutes, workers: 0}.",
        "CATALOG_DUPLICATE": "Keep one of the two.",
        "CATALOG_REFERENCE": "Declare what is named, or name what is declared.",
        "NOT_SUPPORTED_BY_ENGINE": "Remove the field, or choose a cluster whose engine can do it.",
    }
)


@dataclass(slots=True)
class SpecFaults(FaultList):
    """Collects faults of a task or a catalogue; each gets the hint of its code.

    So many are kept that an answer is full of them, the rest is counted: what is wrong with a document must
    not cost more than what is right with it.
    """

    left_out: int = 0
    """Faults that were counted only."""

    @property
    def full(self) -> bool:
        """Whether further faults are counted only."""
        return len(self.faults) >= MAX_FAULTS

    @property
    def count(self) -> int:
        """All that was found."""
        return len(self.faults) + self.left_out

    def raise_if_any(self) -> None:
        if self.faults:
            raise Refusal(self.faults, left_out=self.left_out)

    def add(self, path: str, code: str, message: str, hint: str = "") -> None:
        if self.full:
            self.left_out += 1
            return
        FaultList.add(self, path, code, message, hint or SPEC_CODES.get(code, ""))
