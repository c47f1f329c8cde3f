"""A task judged by a catalogue: what is refused (T1), what is filled in, what is warned of."""

from __future__ import annotations

from typing import Any

import pytest

from support.training import catalog_document, pytorch_document, ray_document
from trainshed.model.errors import Refusal
from trainshed.model.resources import Amounts, Gpu, Node
from trainshed.model.training.automatic import automatic
from trainshed.model.training.catalog_reading import read_catalog
from trainshed.model.training.fitting import FleetNode
from trainshed.model.training.resolve import Effective, Who, judge, resolve
from trainshed.model.training.spec import InstanceType, SpecChoice

WHO = Who("ada", "team-a")


def node(name: str, gpus: int, cpus: int, memory_gib: int, **labels: str) -> FleetNode:
    cards = tuple(Gpu(place, "NVIDIA H200", f"GPU-{place}", 140_000) for place in range(gpus))
    return FleetNode(Node(name, cards, Amounts(gpus, cpus, memory_gib * 1024, 1000, 1000)), labels)


def judged(document: dict[str, Any], fleet: Any = None, *, smoke: bool = False, **changes: Any) -> Effective:
    return judge(document, read_catalog(catalog_document(**changes)), WHO, fleet, smoke=smoke)


def refusal(document: dict[str, Any], fleet: Any = None, **changes: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        judged(document, fleet, **changes)
    assert all(fault.message for fault in caught.value.faults)
    return caught.value


def refused(document: dict[str, Any], fleet: Any = None, **changes: Any) -> list[tuple[str, str]]:
    return [(fault.path, fault.code) for fault in refusal(document, fleet, **changes).faults]


def volume(ref: str) -> list[dict[str, Any]]:
    return [{"type": "volume", "ref": ref, "mount_path": "/volume/out"}]


def ray_on_ray(**changes: Any) -> dict[str, Any]:
    """A ray task that a shared Ray cluster can carry."""
    plain = {
        "region": "sh-1",
        "cluster": "ray-1",
        "pool": "ray-pool",
        "image": "host",
        "resource_type": "reserved",
        "mounts": [],
        "image_pull_retries": None,
        "head": None,
        "shared_storage": None,
        "debug": None,
        "autoscaling": None,
    }
    return ray_document(**(plain | changes))


CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("C1", {"region": "mars"}, "region", "UNKNOWN_REGION"),
    ("C1", {"cluster": "none"}, "cluster", "UNKNOWN_CLUSTER"),
    ("C1", {"cluster": None, "region": "sh-1", "pool": None}, "cluster", "FIELD_REQUIRED"),
    ("C1", {"region": "sh-1"}, "cluster", "CLUSTER_NOT_IN_REGION"),
    ("C1", {"pool": "here-pool"}, "pool", "NOT_IN_CLUSTER"),
    ("C1", {"pool": "none"}, "pool", "UNKNOWN_POOL"),
    ("C1", {"pool": None}, "pool", "FIELD_REQUIRED"),
    ("C1", {"image": "base"}, "image", "NOT_IN_CLUSTER"),
    ("C1", {"mounts": volume("vol-far")}, "mounts[0].ref", "NOT_IN_CLUSTER"),
    ("C2", {"project": "team-b"}, "project", "PROJECT_ACCESS_DENIED"),
    ("C7", {"image": "host"}, "image", "IMAGE_REQUIRED"),
    ("C11", {"mounts": volume("vol-other")}, "mounts[0].ref", "MOUNT_DENIED"),
    ("C11", {"mounts": volume("none")}, "mounts[0].ref", "MOUNT_DENIED"),
    (
        "C11",
        {"mounts": [{"type": "model", "ref": "alpaca@v3", "mount_path": "/mnt/a"}]},
        "mounts[0].ref",
        "MOUNT_DENIED",
    ),
    (
        "C17",
        {"pool": "calm-pool", "resource_type": "spot", "guarantee": False},
        "resource_type",
        "RESOURCE_TYPE_NOT_OFFERED",
    ),
    ("C20", {"instance": {"specs": ["none"]}}, "instance.specs[0]", "SPEC_UNKNOWN"),
    ("C20", {"instance": {"specs": ["h200x8", "c16m64"]}}, "instance.specs[1]", "SPEC_TYPE_MISMATCH"),
    ("C20", {"instance": {"type": "cpu", "specs": ["h200x8"]}}, "instance.specs[0]", "SPEC_TYPE_MISMATCH"),
    (
        "C20",
        {"pool": "calm-pool", "instance": {"specs": ["h200x1"]}},
        "instance.specs[0]",
        "SPEC_NOT_IN_POOL",
    ),
    ("C23", {"workers": 8}, "workers", "QUOTA_EXCEEDED"),
    ("C23", {"instance": {"specs": ["h200x1"]}}, "workers", "QUOTA_EXCEEDED"),
    ("C29", {"priority": "urgent"}, "priority", "PRIORITY_NOT_ALLOWED"),
    ("C29", {"priority": 1001}, "priority", "PRIORITY_NOT_ALLOWED"),
    ("C31", {"instance": {"specs": ["c16m64"]}}, "precheck.enabled", "PRECHECK_NEEDS_GPU"),
    (
        "C40",
        {"alarms": [{"events": ["failed"], "channels": ["none"]}]},
        "alarms[0].channels",
        "ALARM_CHANNEL_UNKNOWN",
    ),
]


@pytest.mark.parametrize(
    ("statement", "changes", "path", "code"),
    CASES,
    ids=[f"{case[0]}-{case[3]}-{n}" for n, case in enumerate(CASES)],
)
def test_T1_a_task_is_refused_by_the_catalogue_with_path_and_code(statement, changes, path, code):
    assert (f"spec.{path}", code) in refused(pytorch_document(**changes))


def test_T1_faults_of_the_document_and_of_the_catalogue_are_answered_together_each_in_its_place():
    document = pytorch_document(
        name_prefix="Bad",
        pool="none",
        priority="urgent",
        mounts=[*volume(""), *volume("vol-other")],
        instance={"specs": ["!", "none"]},
    )
    assert set(refused(document)) == {
        ("spec.name_prefix", "NAME_PREFIX_INVALID"),
        ("spec.pool", "UNKNOWN_POOL"),
        ("spec.priority", "PRIORITY_NOT_ALLOWED"),
        ("spec.mounts[0].ref", "MOUNT_REF_REQUIRED"),
        ("spec.mounts[1].ref", "MOUNT_DENIED"),
        ("spec.instance.specs[0]", "FIELD_INVALID"),
        ("spec.instance.specs[1]", "SPEC_UNKNOWN"),
    }


@pytest.mark.parametrize("key", ["kind", "resource_type", "instance", "workers", "image", "cluster", "pool"])
def test_T1_a_field_that_cannot_be_read_brings_no_second_fault(key):
    found = refused(pytorch_document(**{key: ["?"]}))
    assert {path.split(".")[1] for path, _ in found} == {key}


def test_C2_a_project_of_others_is_403():
    assert refusal(pytorch_document(project="team-b")).status == 403


def test_C1_the_refusal_names_the_clusters_that_have_it():
    assert "it is in ray-1" in refusal(pytorch_document(mounts=volume("vol-far"))).message


def test_C6_labels_are_chosen_from_the_maintained_ones():
    rules = {
        "validation": True,
        "rules": [{"key": "team", "values": ["x"], "required": True}, {"key": "stage", "values": ["dev"]}],
    }
    assert refused(pytorch_document(labels={"a": "b", "stage": "prod"}), labels=rules) == [
        ("spec.labels.a", "LABEL_NOT_ALLOWED"),
        ("spec.labels.stage", "LABEL_NOT_ALLOWED"),
        ("spec.labels.team", "LABEL_REQUIRED"),
    ]
    judged(pytorch_document(labels={"team": "x"}), labels=rules)
    judged(pytorch_document(labels={"a": "b"}), labels=rules | {"validation": False})


def test_C10_the_tasks_variables_win_over_those_of_the_project_and_these_over_everybodys():
    task_env = [
        {"name": "A", "value": "all"},
        {"name": "B", "value": "all"},
        {"name": "C", "value": "all"},
        {"project": "team-a", "name": "B", "value": "project"},
        {"project": "team-a", "name": "C", "value": "project"},
        {"project": "team-a", "name": "T", "secret": "env:TOKEN"},
        {"project": "team-b", "name": "A", "value": "other"},
    ]
    document = pytorch_document(env=[{"name": "C", "value": "task"}])
    found = {each.name: each for each in judged(document, task_env=task_env).environment}
    assert {name: each.value for name, each in found.items()} == {
        "A": "all",
        "B": "project",
        "C": "task",
        "T": None,
    }
    assert (found["T"].secret, found["T"].hidden, found["C"].source) == ("env:TOKEN", True, "task")


def test_C11_an_alias_and_a_volume_are_resolved_to_what_they_are():
    effective = judged(pytorch_document())
    assert [each.path or each.content for each in effective.mounts] == [
        "/srv/out",
        "envloop://datasets/team-a/alpaca@v3",
        "envloop://models/team-a/llama@v8",
    ]


def test_C14_a_task_that_can_write_nowhere_is_warned():
    assert codes(judged(pytorch_document(mounts=[]))) == ["NO_WRITABLE_VOLUME"]
    read_only = [{**volume("vol-out")[0], "read_only": True}]
    assert codes(judged(pytorch_document(mounts=read_only))) == ["NO_WRITABLE_VOLUME"]
    assert codes(judged(pytorch_document())) == []


def codes(effective: Effective) -> list[str]:
    return [each.code for each in effective.warnings]


def test_C16_a_smoke_copy_is_small_and_bounded():
    document = ray_document() | {"smoke": {"minutes": 5}}
    effective = judged(document, smoke=True)
    assert (effective.spec.workers, effective.spec.max_run_seconds) == (0, 300)
    assert effective.spec.autoscaling is None
    assert refused(document) == [("smoke", "SMOKE_INVALID")]


@pytest.mark.parametrize(
    ("count", "workers", "wanted"),
    [
        (2, 0, [("spec.instance.count_per_node", "NEVER_FITS")]),
        (1, 2, [("spec.workers", "NEVER_FITS")]),
        (1, 1, []),
    ],
    ids=["replica-too-large", "gang-too-large", "fits"],
)
def test_C20_what_no_node_or_not_all_nodes_together_can_hold_is_refused(count, workers, wanted):
    fleet = {"k8s-h200": [node("n1", 8, 128, 2048), node("n2", 8, 130, 2050), node("n3", 4, 64, 512)]}
    document = pytorch_document(workers=workers, instance={"specs": ["h200x8"], "count_per_node": count})
    if wanted:
        assert refused(document, fleet) == wanted
    else:
        assert judged(document, fleet).choices == (SpecChoice("h200x8", "h200x8"),)


def test_C20_nodes_of_other_pools_do_not_count():
    pools = catalog_document()["pools"]
    pools[0]["nodes"] = {"labels": {"zone": "a"}}
    fleet = {"k8s-h200": [node("n1", 8, 128, 2048, zone="b"), node("n2", 4, 64, 512, zone="a")]}
    document = pytorch_document(workers=0)
    assert refused(document, fleet, pools=pools) == [("spec.instance.count_per_node", "NEVER_FITS")]


def test_C24_a_pool_whose_nodes_all_belong_to_an_earlier_pool_is_refused_rather_than_waited_for():
    pools = catalog_document()["pools"]
    first = {**pools[0], "id": "first", "nodes": {"names": ["n1"]}}
    fleet = {"k8s-h200": [node("n1", 8, 128, 2048)]}
    found = refusal(pytorch_document(workers=0), fleet, pools=[first, *pools]).faults
    assert [(fault.path, fault.code) for fault in found] == [("spec.pool", "NEVER_FITS")]
    assert found[0].message == "pool h200-pool has no nodes: all belong to earlier pools (first)"
    judged(pytorch_document(workers=0), fleet, pools=[*pools, first])
    more = {"k8s-h200": [*fleet["k8s-h200"], node("n2", 8, 128, 2048)]}
    judged(pytorch_document(workers=0), more, pools=[first, *pools])
    assert refused(pytorch_document(workers=1), more, pools=[first, *pools]) == [
        ("spec.workers", "NEVER_FITS")
    ]


def test_C20_a_pool_whose_nodes_are_not_known_is_not_judged():
    for fleet in ({"k8s-h200": []}, {}):
        assert judged(pytorch_document(), fleet).spec.cluster == "k8s-h200"


def test_C22_a_spec_that_can_never_do_is_passed_over_with_the_reason():
    document = pytorch_document(instance={"specs": ["h200x1", "h200x8"]})
    effective = judged(document)
    assert [each.spec for each in effective.choices] == ["h200x8"]
    assert codes(effective) == ["SPEC_PASSED_OVER"]
    assert "h200x1" in effective.warnings[0].message


def test_C23_the_refusal_has_the_numbers():
    found = refusal(pytorch_document(workers=8))
    assert found.body()["quota"] == [
        {"resource_type": "reserved", "pool": "h200-pool", "spec": "h200x8", "requested": 9, "limit": 8}
    ]
    assert found.body()["code"] == "INVALID_SPEC"
    assert "asks for 9 units of h200x8" in found.message
    alone = refusal(pytorch_document(workers=None, instance={"specs": ["h200x1"]}))
    assert "asks for 1 unit of h200x1" in alone.message
    assert [fault.path for fault in alone.faults] == ["spec.instance.specs"]


def test_C23_the_answer_of_an_accepted_task_has_them_too():
    assert [each.as_dict() for each in judged(pytorch_document()).quota] == [
        {"resource_type": "reserved", "pool": "h200-pool", "spec": "h200x8", "requested": 4, "limit": 8}
    ]


def test_C26_the_default_of_guarantee_depends_on_the_resource_type():
    for kind, wanted in (("reserved", True), ("ondemand", False), ("spot", False), ("idle", False)):
        document = pytorch_document(resource_type=kind, guarantee=None)
        assert judged(document).spec.guarantee is wanted
    assert judged(pytorch_document(guarantee=None, idle_supplement=True)).spec.guarantee is False


def test_C29_a_priority_is_a_number_in_the_end():
    assert judged(pytorch_document(priority=None)).priority_value == 500
    assert judged(pytorch_document(priority="high")).priority_value == 900
    assert judged(pytorch_document(priority=7)).priority_value == 7
    assert judged(pytorch_document(priority=None)).spec.priority == "normal"


def test_C48_shared_storage_must_allow_several_writers():
    document = ray_document(shared_storage={"ref": "vol-out"})
    assert refused(document) == [("spec.shared_storage.ref", "SHARED_STORAGE_NOT_RWX")]
    shared = judged(ray_document()).shared_storage
    assert shared is not None
    assert (shared.path, shared.mount.mount_path) == ("/srv/rwx", "/tmp/ray")


def test_C51_the_largest_size_must_be_within_the_quota():
    document = ray_document(autoscaling={"enabled": True, "min": 1, "max": 17})
    assert refused(document) == [("spec.autoscaling.max", "QUOTA_EXCEEDED")]
    assert {each.spec: each.requested for each in judged(ray_document()).quota} == {"c16m64": 1, "h200x1": 8}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"head": {"instance": {"specs": ["c16m64"]}}}, "head"),
        ({"shared_storage": {"ref": "vol-rwx"}}, "shared_storage"),
        ({"debug": {"enabled": True}}, "debug"),
        ({"autoscaling": {"enabled": True, "min": 0, "max": 5}}, "autoscaling"),
        ({"image": "example/ray:2"}, "image"),
        ({"ssh": True}, "ssh"),
        ({"image_pull_retries": 0}, "image_pull_retries"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_c9_a_shared_ray_cluster_says_what_it_cannot_do(changes, field):
    judged(ray_on_ray(), allow_host_image=True)
    found = refused(ray_on_ray(**changes), allow_host_image=True)
    assert found == [(f"spec.{field}", "NOT_SUPPORTED_BY_ENGINE")]


def test_c9_an_image_of_the_runtime_environment_is_one_that_ray_can_run():
    effective = judged(ray_on_ray(image="example/ray:2", runtime_env_yaml="image_uri: example/ray:2"))
    assert effective.spec.image == "example/ray:2"


def test_c9_one_machine_cannot_replace_its_node_and_says_so():
    document = pytorch_document(
        region=None, cluster="here", pool=None, image="host", instance={"specs": ["h200x1"]}
    )
    assert codes(judged(document, allow_host_image=["here"])) == ["NODE_REPLACEMENT_LIMITED"]


def test_C47_a_variable_with_two_values_is_warned_of_without_either():
    document = ray_document(runtime_env_yaml="env_vars: {SEED: canary}")
    warning = judged(document).warnings[0]
    assert (warning.code, warning.path) == (
        "RUNTIME_ENV_OVERRIDES",
        "spec.runtime_env_yaml.env_vars.SEED",
    )
    assert "canary" not in warning.message


def test_settings_of_an_option_that_is_off_are_warned_of():
    document = ray_document(autoscaling={"min": 1, "max": 8})
    assert codes(judged(document)) == ["OPTION_NOT_ENABLED"]


def test_the_effective_spec_has_every_default_and_no_hidden_value():
    effective = judged(pytorch_document())
    document = effective.document()
    assert document["env"][1] == {"name": "HF_TOKEN", "value": None, "hidden": True}
    assert (document["spec_patience_seconds"], document["region"]) == (0, "bj-1")
    assert "hf_0123456789" not in str(effective.as_dict()) + repr(effective)
    assert effective.as_dict()["totals"]["price_per_hour"] == [{"amount": "128.00", "currency": "EUR"}]


def test_where_there_is_one_of_everything_nothing_need_be_said():
    machine = Node("here", (), Amounts(0, 4, 16 * 1024, 1000, 1000))
    document = {
        "spec": {
            "kind": "pytorch",
            "name_prefix": "a",
            "image": "host",
            "cmd": "true",
            "resource_type": "reserved",
            "instance": {"specs": ["c1m2"]},
            "workers": 1,
        }
    }
    effective = judge(document, automatic([machine]), Who("ada", "default"), {"local": [FleetNode(machine)]})
    spec = effective.spec
    assert (spec.region, spec.cluster, spec.pool, spec.project) == ("local", "local", "default", "default")
    assert (spec.guarantee, spec.instance.type) == (True, InstanceType.CPU)
    assert effective.quota[0].limit == 4


def test_a_task_that_was_read_before_is_judged_again():
    effective = judged(pytorch_document())
    again = resolve(effective.spec, read_catalog(catalog_document()), WHO)
    assert again.effective is not None
    assert again.effective.spec == effective.spec
