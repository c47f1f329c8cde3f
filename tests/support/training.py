"""Documents of training tasks and of a catalogue that accepts them, as starting points of tests."""

from __future__ import annotations

import copy
from typing import Any

_PYTORCH = {
    "request_id": "llama-sft-0042",
    "type": "train",
    "spec": {
        "kind": "pytorch",
        "region": "bj-1",
        "cluster": "k8s-h200",
        "project": "team-a",
        "name_prefix": "llama-sft",
        "public": False,
        "labels": {"experiment": "baseline"},
        "image": "example/train:1.2",
        "env": [
            {"name": "EPOCHS", "value": "3"},
            {"name": "HF_TOKEN", "value": "hf_0123456789", "hidden": True},
        ],
        "mounts": [
            {"type": "volume", "ref": "vol-out", "mount_path": "/volume/out"},
            {"type": "dataset", "ref": "alpaca@v3", "mount_path": "/mnt/data"},
            {"type": "model", "ref": "team-a/llama@v8", "mount_path": "/mnt/model"},
        ],
        "cmd": 'torchrun --master_addr "$MASTER_ADDR" train.py\n',
        "resource_type": "reserved",
        "pool": "h200-pool",
        "workers": 3,
        "instance": {"type": "gpu", "specs": ["h200x8"], "count_per_node": 1},
        "guarantee": True,
        "idle_supplement": False,
        "priority": "high",
        "max_run_seconds": 172800,
        "precheck": {"enabled": True, "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]},
        "fault_tolerance": {"enabled": True, "max_resubmissions": 3, "replace_node": True},
        "exit_notice": {"enabled": True, "timeout_seconds": 600, "signal": "SIGUSR1"},
        "metrics": {"enabled": True, "endpoints": [{"port": 9400, "path": "/metrics"}]},
        "image_pull_retries": 3,
        "ssh": True,
        "alarms": [{"events": ["failed", "queued_over"], "threshold": 3600, "channels": ["ops-webhook"]}],
    },
}

_RAY = {
    "request_id": "ray-rl-0007",
    "type": "train",
    "spec": {
        "kind": "ray",
        "region": "bj-1",
        "cluster": "k8s-h200",
        "project": "team-a",
        "name_prefix": "rl",
        "image": "example/ray:2.60",
        "env": [{"name": "SEED", "value": "0"}],
        "mounts": [{"type": "volume", "ref": "vol-out", "mount_path": "/volume/out"}],
        "cmd": "python main.py",
        "resource_type": "spot",
        "pool": "h200-pool",
        "workers": 4,
        "instance": {"type": "gpu", "specs": ["h200x1"], "count_per_node": 1},
        "head": {"instance": {"type": "cpu", "specs": ["c16m64"], "count_per_node": 1}},
        "guarantee": False,
        "priority": "normal",
        "runtime_env_yaml": 'pip: [einops]\nenv_vars: {A: "1"}\n',
        "shared_storage": {"ref": "vol-rwx", "cleanup": True},
        "debug": {"enabled": True, "retention_seconds": 600},
        "autoscaling": {"enabled": True, "min": 1, "max": 8, "idle_timeout_seconds": 60, "mode": "Default"},
        "fault_tolerance": {"enabled": True, "max_resubmissions": 2},
        "metrics": {"enabled": False, "endpoints": []},
        "image_pull_retries": -1,
        "ssh": False,
        "alarms": [],
    },
}

_CATALOG: dict[str, Any] = {
    "regions": [{"id": "bj-1"}, {"id": "sh-1"}],
    "clusters": [
        {"id": "k8s-h200", "region": "bj-1", "engine": "kubernetes", "address": "prod"},
        {"id": "ray-1", "region": "sh-1", "engine": "ray", "address": "ray://10.0.0.1:10001"},
        {"id": "here", "region": "sh-1", "engine": "local"},
    ],
    "instance_specs": [
        {
            "name": "h200x8",
            "type": "gpu",
            "gpu_model": "H200",
            "gpus": 8,
            "cpus": 128,
            "memory_gib": 2048,
            "price_per_hour": "32.00",
            "currency": "EUR",
        },
        {
            "name": "h200x1",
            "type": "gpu",
            "gpu_model": "H200",
            "gpus": 1,
            "cpus": 16,
            "memory_gib": 256,
            "price_per_hour": "4.10",
            "currency": "EUR",
        },
        {"name": "c16m64", "type": "cpu", "cpus": 16, "memory_gib": 64},
        {"name": "c1m1", "type": "cpu", "cpus": 1, "memory_gib": 1},
    ],
    "pools": [
        {"id": "h200-pool", "cluster": "k8s-h200", "specs": ["h200x8", "h200x1", "c16m64"]},
        {
            "id": "calm-pool",
            "cluster": "k8s-h200",
            "specs": ["h200x8"],
            "resource_types": ["reserved", "ondemand"],
        },
        {"id": "ray-pool", "cluster": "ray-1", "specs": ["h200x1", "c16m64"]},
        {"id": "here-pool", "cluster": "here", "specs": ["h200x1", "c16m64", "c1m1"]},
    ],
    "quotas": [
        {"project": "team-a", "resource_type": "reserved", "pool": "h200-pool", "spec": "h200x8", "units": 8},
        {"project": "team-a", "resource_type": "spot", "pool": "h200-pool", "spec": "h200x1", "units": 16},
        {"resource_type": "ondemand", "pool": "h200-pool", "units": 16},
        {"resource_type": "spot", "pool": "h200-pool", "units": 16},
        {"resource_type": "reserved", "pool": "here-pool", "units": 8},
        {"resource_type": "reserved", "pool": "ray-pool", "units": 8},
    ],
    "volumes": [
        {"id": "vol-out", "path": "/srv/out", "projects": ["team-a"]},
        {"id": "vol-rwx", "path": "/srv/rwx", "multi_writer": True},
        {"id": "vol-far", "path": "/srv/far", "clusters": ["ray-1"]},
        {"id": "vol-other", "path": "/srv/other", "projects": ["team-b"]},
    ],
    "aliases": [{"id": "alpaca@v3", "type": "dataset", "ref": "team-a/alpaca@v3"}],
    "alarm_channels": [
        {
            "id": "ops-webhook",
            "type": "webhook",
            "url": "https://hooks.example/T0K3N",
            "projects": ["team-a"],
        },
    ],
    "images": [{"id": "base", "address": "example/base:1", "clusters": ["here"]}],
}


def pytorch_document(**changes: Any) -> dict[str, Any]:
    """The example of kind pytorch; keywords replace fields of its spec, `None` removes one."""
    return _changed(_PYTORCH, changes)


def ray_document(**changes: Any) -> dict[str, Any]:
    """The example of kind ray, as `pytorch_document`."""
    return _changed(_RAY, changes)


def catalog_document(**changes: Any) -> dict[str, Any]:
    """A catalogue with three clusters; keywords replace its lists."""
    return {**copy.deepcopy(_CATALOG), **changes}


def _changed(document: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    found = copy.deepcopy(document)
    found["spec"].update(changes)
    found["spec"] = {key: value for key, value in found["spec"].items() if value is not None}
    return found
