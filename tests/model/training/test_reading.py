"""T1 of the contract "Create Training": what is refused without a catalogue, with path and code."""

from __future__ import annotations

from typing import Any

import pytest

from support.training import pytorch_document, ray_document
from trainshed.model.errors import Refusal
from trainshed.model.training.codes import SPEC_CODES
from trainshed.model.training.reading import is_training, read_task
from trainshed.model.training.spec import (
    ExitNotice,
    FaultTolerance,
    Instance,
    InstanceType,
    Kind,
    Mount,
    MountType,
    ResourceType,
)

LONG = "x" * 65_537


def refused(document: Any) -> list[tuple[str, str]]:
    with pytest.raises(Refusal) as caught:
        read_task(document)
    refusal = caught.value
    assert refusal.status == 422
    assert all(fault.message and fault.hint for fault in refusal.faults if fault.code in SPEC_CODES)
    return [(fault.path, fault.code) for fault in refusal.faults]


def env(*entries: Any) -> list[Any]:
    return [{"name": entry[0], "value": entry[1]} if isinstance(entry, tuple) else entry for entry in entries]


def volume(path: Any, ref: Any = "vol", **more: Any) -> dict[str, Any]:
    return {"type": "volume", "ref": ref, "mount_path": path, **more}


PYTORCH_CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("C1", {"region": 7}, "region", "FIELD_INVALID"),
    ("C1", {"cluster": "no spaces"}, "cluster", "FIELD_INVALID"),
    ("C3", {"name_prefix": None}, "name_prefix", "NAME_PREFIX_INVALID"),
    ("C3", {"name_prefix": "My Run"}, "name_prefix", "NAME_PREFIX_INVALID"),
    ("C3", {"name_prefix": "-a"}, "name_prefix", "NAME_PREFIX_INVALID"),
    ("C3", {"name_prefix": "a" * 33}, "name_prefix", "NAME_PREFIX_INVALID"),
    ("C3", {"name_prefix": "a\n"}, "name_prefix", "NAME_PREFIX_INVALID"),
    ("C4", {"kind": None}, "kind", "KIND_UNKNOWN"),
    ("C4", {"kind": "PyTorchJob"}, "kind", "KIND_UNKNOWN"),
    ("C4", {"kind": None, "task_type": "TFJob"}, "task_type", "KIND_UNKNOWN"),
    ("C4", {"task_type": "RayJob"}, "task_type", "KIND_CONFLICT"),
    ("C5", {"public": "yes"}, "public", "FIELD_INVALID"),
    ("C6", {"labels": ["a"]}, "labels", "LABEL_INVALID"),
    ("C6", {"labels": {f"k{place}": "v" for place in range(17)}}, "labels", "LABEL_INVALID"),
    ("C6", {"labels": {"-k": "v"}}, "labels.-k", "LABEL_INVALID"),
    ("C6", {"labels": {"k": "v" * 257}}, "labels.k", "LABEL_INVALID"),
    ("C6", {"labels": {"k": "a\nb"}}, "labels.k", "LABEL_INVALID"),
    ("C6", {"labels": {"k": 1}}, "labels.k", "LABEL_INVALID"),
    ("C7", {"image": None}, "image", "IMAGE_REQUIRED"),
    ("C7", {"image": " "}, "image", "IMAGE_REQUIRED"),
    ("C7", {"image": "Upper/Case"}, "image", "IMAGE_INVALID"),
    ("C8", {"env": {"A": "1"}}, "env", "ENV_INVALID"),
    ("C8", {"env": ["A=1"]}, "env[0]", "ENV_INVALID"),
    ("C8", {"env": env({"value": "1"})}, "env[0].name", "ENV_NAME_INVALID"),
    ("C8", {"env": env(("", "1"))}, "env[0].name", "ENV_NAME_INVALID"),
    ("C8", {"env": env(("1A", "1"))}, "env[0].name", "ENV_NAME_INVALID"),
    ("C8", {"env": env(("A=B", "1"))}, "env[0].name", "ENV_NAME_INVALID"),
    ("C8", {"env": env(("A B", "1"))}, "env[0].name", "ENV_NAME_INVALID"),
    ("C8", {"env": env(("A\n", "1"))}, "env[0].name", "ENV_NAME_INVALID"),
    ("C8", {"env": env(("变量", "1"))}, "env[0].name", "ENV_NAME_INVALID"),
    ("C8", {"env": env(("\uff21", "1"))}, "env[0].name", "ENV_NAME_INVALID"),
    ("C8", {"env": env(("A\u200bB", "1"))}, "env[0].name", "ENV_NAME_INVALID"),
    ("C8", {"env": env(("A", "1"), ("A", "2"))}, "env[1].name", "ENV_DUPLICATE"),
    ("C8", {"env": env(("A", 1))}, "env[0].value", "ENV_VALUE_NOT_STRING"),
    ("C8", {"env": env(("A", True))}, "env[0].value", "ENV_VALUE_NOT_STRING"),
    ("C8", {"env": env({"name": "A"})}, "env[0].value", "ENV_VALUE_NOT_STRING"),
    ("C8", {"env": env(("A", ""))}, "env[0].value", "ENV_VALUE_EMPTY"),
    ("C8", {"env": env(("A", "a\0b"))}, "env[0].value", "ENV_VALUE_NUL"),
    ("C8", {"env": env(("A", "x" * (128 << 10)))}, "env[0].value", "ENV_TOO_LARGE"),
    ("C8", {"env": env(*((f"A{place}", "x" * 130_000) for place in range(9)))}, "env", "ENV_TOO_LARGE"),
    ("C8", {"env": env({"name": "A", "value": "1", "hiden": True})}, "env[0].hiden", "UNKNOWN_FIELD"),
    ("C10", {"env": env(("WORLD_SIZE", "1"))}, "env[0].name", "ENV_NAME_RESERVED"),
    ("C10", {"env": env(("PET_NNODES", "1"))}, "env[0].name", "ENV_NAME_RESERVED"),
    ("C10", {"env": env(("TASK_UUID", "1"))}, "env[0].name", "ENV_NAME_RESERVED"),
    ("C11", {"mounts": [volume("/mnt/a", ref=None)]}, "mounts[0].ref", "MOUNT_REF_REQUIRED"),
    ("C11", {"mounts": [volume("/mnt/a", ref="a b")]}, "mounts[0].ref", "MOUNT_REF_INVALID"),
    ("C11", {"mounts": [volume("/mnt/a", type="disk")]}, "mounts[0].type", "MOUNT_INVALID"),
    ("C11", {"mounts": [volume("")]}, "mounts[0].mount_path", "MOUNT_PATH_REQUIRED"),
    (
        "C11",
        {"mounts": [volume("/mnt/a"), volume("/mnt/a")]},
        "mounts[1].mount_path",
        "MOUNT_DUPLICATE",
    ),
    (
        "C11",
        {"mounts": [volume("/mnt/a"), volume("/mnt/a", ref="other")]},
        "mounts[1].mount_path",
        "MOUNT_CONFLICT",
    ),
    ("C11", {"mounts": [volume("/mnt/a/b"), volume("/mnt/a")]}, "mounts[0]", "MOUNT_NESTED"),
    ("C12", {"mounts": [volume("/opt/x")]}, "mounts[0].mount_path", "MOUNT_PATH_NOT_ALLOWED"),
    ("C12", {"mounts": [volume("/mntx/a")]}, "mounts[0].mount_path", "MOUNT_PATH_NOT_ALLOWED"),
    ("C12", {"mounts": [volume("mnt/a")]}, "mounts[0].mount_path", "MOUNT_PATH_NOT_ALLOWED"),
    ("C12", {"mounts": [volume("/mnt/../usr")]}, "mounts[0].mount_path", "MOUNT_PATH_NOT_ALLOWED"),
    ("C12", {"mounts": [volume("/mnt//a")]}, "mounts[0].mount_path", "MOUNT_PATH_NOT_ALLOWED"),
    ("C12", {"mounts": [volume("/mnt/a/")]}, "mounts[0].mount_path", "MOUNT_PATH_NOT_ALLOWED"),
    ("C12", {"mounts": [volume("/mnt/a\0")]}, "mounts[0].mount_path", "MOUNT_PATH_NOT_ALLOWED"),
    ("C12", {"mounts": [volume("/mnt/a", sub_path="/x")]}, "mounts[0].sub_path", "MOUNT_PATH_NOT_ALLOWED"),
    ("C12", {"mounts": [volume("/mnt/a", sub_path="../x")]}, "mounts[0].sub_path", "MOUNT_PATH_NOT_ALLOWED"),
    (
        "C13",
        {"mounts": [{"type": "dataset", "ref": "a/b@1", "mount_path": "/mnt/a", "read_only": False}]},
        "mounts[0].read_only",
        "MOUNT_READ_ONLY",
    ),
    (
        "C11",
        {"mounts": [{"type": "dataset", "ref": "envloop://models/a/b@1", "mount_path": "/mnt/a"}]},
        "mounts[0].ref",
        "MOUNT_REF_INVALID",
    ),
    ("C15", {"cmd": None}, "cmd", "CMD_REQUIRED"),
    ("C15", {"cmd": " \n\t"}, "cmd", "CMD_REQUIRED"),
    ("C15", {"cmd": "a\0b"}, "cmd", "CMD_INVALID"),
    ("C15", {"cmd": LONG}, "cmd", "CMD_INVALID"),
    ("C15", {"cmd": ["python"]}, "cmd", "CMD_INVALID"),
    ("C15", {"cmd": "\ud800"}, "cmd", "CMD_INVALID"),
    ("C17", {"resource_type": None}, "resource_type", "RESOURCE_TYPE_UNKNOWN"),
    ("C17", {"resource_type": "Reserved"}, "resource_type", "RESOURCE_TYPE_UNKNOWN"),
    ("C18", {"workers": -1}, "workers", "WORKERS_INVALID"),
    ("C18", {"workers": 10_000}, "workers", "WORKERS_INVALID"),
    ("C18", {"workers": "3"}, "workers", "WORKERS_INVALID"),
    ("C18", {"workers": True}, "workers", "WORKERS_INVALID"),
    ("C18", {"workers": 1.0}, "workers", "WORKERS_INVALID"),
    ("C20", {"instance": None}, "instance.specs", "FIELD_REQUIRED"),
    ("C20", {"instance": {"specs": []}}, "instance.specs", "FIELD_REQUIRED"),
    ("C20", {"instance": {"specs": ["a"], "count_per_node": 0}}, "instance.count_per_node", "COUNT_INVALID"),
    (
        "C20",
        {"instance": {"specs": ["a"], "count_per_node": "2"}},
        "instance.count_per_node",
        "COUNT_INVALID",
    ),
    ("C22", {"instance": {"specs": ["a", "b", "a"]}}, "instance.specs[2]", "SPEC_DUPLICATE"),
    ("C26", {"resource_type": "spot"}, "guarantee", "GUARANTEE_NOT_OFFERED"),
    ("C26", {"resource_type": "idle"}, "guarantee", "GUARANTEE_NOT_OFFERED"),
    ("c3", {"idle_supplement": True}, "idle_supplement", "IDLE_SUPPLEMENT_NOT_OFFERED"),
    ("C29", {"priority": 1.5}, "priority", "PRIORITY_NOT_ALLOWED"),
    (
        "C31",
        {"instance": {"type": "cpu", "specs": ["c16m64"]}},
        "precheck.enabled",
        "PRECHECK_NEEDS_GPU",
    ),
    ("C32", {"precheck": {"env": env(("A", 1))}}, "precheck.env[0].value", "ENV_VALUE_NOT_STRING"),
    (
        "C33",
        {"fault_tolerance": {"max_resubmissions": 101}},
        "fault_tolerance.max_resubmissions",
        "RESUBMISSIONS_INVALID",
    ),
    (
        "C33",
        {"fault_tolerance": {"max_resubmissions": -1}},
        "fault_tolerance.max_resubmissions",
        "RESUBMISSIONS_INVALID",
    ),
    ("C36", {"exit_notice": {"timeout_seconds": 601}}, "exit_notice.timeout_seconds", "EXIT_NOTICE_TOO_LONG"),
    ("C36", {"exit_notice": {"timeout_seconds": 0}}, "exit_notice.timeout_seconds", "EXIT_NOTICE_INVALID"),
    ("C36", {"exit_notice": {"signal": "SIGHUP"}}, "exit_notice.signal", "EXIT_NOTICE_INVALID"),
    ("C37", {"metrics": {"enabled": True}}, "metrics.endpoints", "METRICS_EMPTY"),
    ("C37", {"metrics": {"endpoints": [{"port": 0}]}}, "metrics.endpoints[0].port", "METRICS_PORT_INVALID"),
    ("C37", {"metrics": {"endpoints": [{}]}}, "metrics.endpoints[0].port", "METRICS_PORT_INVALID"),
    (
        "C37",
        {"metrics": {"endpoints": [{"port": 1, "path": "/m?x=1"}]}},
        "metrics.endpoints[0].path",
        "METRICS_PATH_INVALID",
    ),
    (
        "C37",
        {"metrics": {"endpoints": [{"port": 1, "path": "/m"}, {"port": 1, "path": "/m"}]}},
        "metrics.endpoints[1].port",
        "METRICS_DUPLICATE",
    ),
    ("C38", {"image_pull_retries": -2}, "image_pull_retries", "IMAGE_PULL_RETRIES_INVALID"),
    (
        "C40",
        {"alarms": [{"events": ["exploded"], "channels": ["a"]}]},
        "alarms[0].events[0]",
        "ALARM_INVALID",
    ),
    ("C40", {"alarms": [{"events": ["failed"]}]}, "alarms[0].channels", "ALARM_INVALID"),
    (
        "C40",
        {"alarms": [{"events": ["queued_over"], "channels": ["a"]}]},
        "alarms[0].threshold",
        "ALARM_INVALID",
    ),
    (
        "C40",
        {"alarms": [{"events": ["metric_over"], "threshold": 1, "channels": ["a"]}]},
        "alarms[0].metric",
        "ALARM_INVALID",
    ),
    ("C46", {"head": {}}, "head", "FIELD_NOT_FOR_KIND"),
    ("C47", {"runtime_env_yaml": ""}, "runtime_env_yaml", "FIELD_NOT_FOR_KIND"),
    ("C48", {"shared_storage": {"ref": "v"}}, "shared_storage", "FIELD_NOT_FOR_KIND"),
    ("C50", {"debug": {}}, "debug", "FIELD_NOT_FOR_KIND"),
    ("C51", {"autoscaling": {"min": 0, "max": 9}}, "autoscaling", "FIELD_NOT_FOR_KIND"),
    ("(b)", {"worker": 3}, "worker", "UNKNOWN_FIELD"),
    ("c5", {"max_run_seconds": 0}, "max_run_seconds", "FIELD_INVALID"),
]

RAY_CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("C10", {"env": env(("X_REGION", "1"))}, "env[0].name", "ENV_NAME_RESERVED"),
    ("C31", {"precheck": {"enabled": False}}, "precheck", "PRECHECK_PYTORCH_ONLY"),
    (
        "C34",
        {"fault_tolerance": {"replace_node": False}},
        "fault_tolerance.replace_node",
        "FIELD_NOT_FOR_KIND",
    ),
    ("C36", {"exit_notice": {"enabled": True}}, "exit_notice", "EXIT_NOTICE_PYTORCH_ONLY"),
    ("C46", {"head": {"instance": {"specs": ["a", "a"]}}}, "head.instance.specs[1]", "SPEC_DUPLICATE"),
    ("C47", {"runtime_env_yaml": "a: [1"}, "runtime_env_yaml", "RUNTIME_ENV_YAML"),
    ("C47", {"runtime_env_yaml": "pip: &a [x]\nuv: *a"}, "runtime_env_yaml", "RUNTIME_ENV_YAML"),
    ("C47", {"runtime_env_yaml": "- pip"}, "runtime_env_yaml", "RUNTIME_ENV_NOT_A_MAP"),
    ("C47", {"runtime_env_yaml": "pips: [x]"}, "runtime_env_yaml.pips", "RUNTIME_ENV_KEY"),
    ("C47", {"runtime_env_yaml": "pip: [x]\nconda: e"}, "runtime_env_yaml", "RUNTIME_ENV_CONFLICT"),
    ("C47", {"runtime_env_yaml": "working_dir: ."}, "runtime_env_yaml.working_dir", "RUNTIME_ENV_LOCAL_PATH"),
    (
        "C47",
        {"runtime_env_yaml": "py_modules: [s3://b/x.zip, ./m]"},
        "runtime_env_yaml.py_modules[1]",
        "RUNTIME_ENV_LOCAL_PATH",
    ),
    ("C47", {"runtime_env_yaml": "pip: requirements.txt"}, "runtime_env_yaml.pip", "RUNTIME_ENV_LOCAL_PATH"),
    ("C47", {"runtime_env_yaml": "env_vars: {A: 1}"}, "runtime_env_yaml.env_vars.A", "RUNTIME_ENV_VALUE"),
    ("C47", {"runtime_env_yaml": "env_vars: {A: yes}"}, "runtime_env_yaml.env_vars.A", "RUNTIME_ENV_VALUE"),
    ("C47", {"runtime_env_yaml": {"pip": []}}, "runtime_env_yaml", "RUNTIME_ENV_YAML"),
    ("C48", {"shared_storage": {}}, "shared_storage.ref", "MOUNT_REF_REQUIRED"),
    ("C50", {"debug": {"retention_seconds": 0}}, "debug.retention_seconds", "RETENTION_INVALID"),
    ("C50", {"debug": {"retention_seconds": 86_401}}, "debug.retention_seconds", "RETENTION_INVALID"),
    ("C51", {"autoscaling": {"min": 5, "max": 8}}, "autoscaling.min", "AUTOSCALING_RANGE"),
    ("C51", {"autoscaling": {"min": 0, "max": 3}}, "autoscaling.max", "AUTOSCALING_RANGE"),
    ("C51", {"autoscaling": {"min": -1, "max": 8}}, "autoscaling.min", "AUTOSCALING_RANGE"),
    (
        "C51",
        {"autoscaling": {"min": 1, "max": 8, "idle_timeout_seconds": -1}},
        "autoscaling.idle_timeout_seconds",
        "AUTOSCALING_INVALID",
    ),
    ("C51", {"autoscaling": {"mode": "default"}}, "autoscaling.mode", "AUTOSCALING_INVALID"),
]


def ids(cases: list[tuple[str, dict[str, Any], str, str]]) -> list[str]:
    return [f"{case[0]}-{case[3]}-{place}" for place, case in enumerate(cases)]


@pytest.mark.parametrize(("statement", "changes", "path", "code"), PYTORCH_CASES, ids=ids(PYTORCH_CASES))
def test_T1_a_pytorch_task_is_refused_with_path_and_code(statement, changes, path, code):
    assert (f"spec.{path}", code) in refused(pytorch_document(**changes))


@pytest.mark.parametrize(("statement", "changes", "path", "code"), RAY_CASES, ids=ids(RAY_CASES))
def test_T1_a_ray_task_is_refused_with_path_and_code(statement, changes, path, code):
    assert (f"spec.{path}", code) in refused(ray_document(**changes))


def test_T1_several_faults_are_answered_at_once_each_in_its_place():
    document = pytorch_document(
        name_prefix="Bad Name",
        env=env(("A", 1), ("B C", "x")),
        mounts=[volume("/opt/a"), volume("/mnt/b", ref="")],
        workers=-1,
        metrics={"enabled": True, "endpoints": []},
        debug={},
    )
    assert set(refused(document)) == {
        ("spec.name_prefix", "NAME_PREFIX_INVALID"),
        ("spec.env[0].value", "ENV_VALUE_NOT_STRING"),
        ("spec.env[1].name", "ENV_NAME_INVALID"),
        ("spec.mounts[0].mount_path", "MOUNT_PATH_NOT_ALLOWED"),
        ("spec.mounts[1].ref", "MOUNT_REF_REQUIRED"),
        ("spec.workers", "WORKERS_INVALID"),
        ("spec.metrics.endpoints", "METRICS_EMPTY"),
        ("spec.debug", "FIELD_NOT_FOR_KIND"),
    }


TOO_LONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "alarms": ({"alarms": [{}] * 33}, "alarms", "ALARM_INVALID"),
    "channels": (
        {"alarms": [{"events": ["failed"], "channels": ["c"] * 33}]},
        "alarms[0].channels",
        "ALARM_INVALID",
    ),
    "env": ({"env": [{}] * 4097}, "env", "ENV_INVALID"),
    "mounts": ({"mounts": [{}] * 129}, "mounts", "MOUNT_INVALID"),
    "endpoints": (
        {"metrics": {"enabled": True, "endpoints": [{}] * 33}},
        "metrics.endpoints",
        "FIELD_INVALID",
    ),
    "specs": ({"instance": {"specs": [f"s{n}" for n in range(17)]}}, "instance.specs", "FIELD_INVALID"),
    "labels": ({"labels": {f"k{n}": "v" for n in range(17)}}, "labels", "LABEL_INVALID"),
}


@pytest.mark.parametrize(("changes", "path", "code"), TOO_LONG.values(), ids=TOO_LONG)
def test_a_list_beyond_its_limit_is_one_fault_and_its_entries_are_not_looked_at(changes, path, code):
    assert refused(pytorch_document(**changes)) == [(f"spec.{path}", code)]


def test_lists_may_be_as_long_as_their_limits():
    changes = {
        "alarms": [{"events": ["failed"], "channels": [f"c{n}" for n in range(32)]}] * 32,
        "env": [{"name": f"A{n}", "value": "x"} for n in range(4096)],
        "mounts": [volume(f"/mnt/v{n}") for n in range(128)],
        "metrics": {"enabled": True, "endpoints": [{"port": n} for n in range(1, 33)]},
        "instance": {"specs": [f"s{n}" for n in range(16)]},
    }
    spec = read_task(pytorch_document(**changes)).spec
    assert (len(spec.alarms), len(spec.env), len(spec.mounts)) == (32, 4096, 128)
    assert (len(spec.metrics.endpoints), len(spec.instance.specs)) == (32, 16)


def test_two_hundred_faults_are_kept_and_the_rest_is_counted():
    with pytest.raises(Refusal) as caught:
        read_task(pytorch_document(env=[{"name": "1", "value": "x"}] * 1000))
    refusal = caught.value
    body = refusal.body()
    assert len(refusal.faults) == 200
    assert len(body["errors"]) + body["errors_not_shown"] == 1000


def test_C12_paths_that_no_kernel_takes_are_refused():
    longest = "/mnt" + f"/{'x' * 255}" * 15
    assert read_task(pytorch_document(mounts=[volume(longest)])).spec.mounts[0].mount_path == longest
    at, code = "spec.mounts[0].", "MOUNT_PATH_NOT_ALLOWED"
    for path in (f"/mnt/{'x' * 256}", "/mnt/" + "\u00e9" * 128, longest + f"/{'x' * 253}"):
        assert refused(pytorch_document(mounts=[volume(path)])) == [(f"{at}mount_path", code)]
        short = [volume("/mnt/a", sub_path=path.removeprefix("/mnt/") + "/y" * 3)]
        assert refused(pytorch_document(mounts=short)) == [(f"{at}sub_path", code)]


def test_T1_the_answers_own_code_is_INVALID_SPEC():
    with pytest.raises(Refusal) as caught:
        read_task(pytorch_document(workers=-1))
    assert caught.value.body()["code"] == "INVALID_SPEC"
    assert caught.value.body()["errors"][0]["code"] == "WORKERS_INVALID"


def test_both_examples_of_the_contract_are_read_as_written():
    task = read_task(pytorch_document()).spec
    assert (task.kind, task.workers, task.replicas) == (Kind.PYTORCH, 3, 4)
    assert task.instance == Instance(InstanceType.GPU, ("h200x8",), 1)
    assert task.mounts[1] == Mount(MountType.DATASET, "alpaca@v3", "/mnt/data", None, read_only=True)
    assert task.fault_tolerance == FaultTolerance(enabled=True, max_resubmissions=3, replace_node=True)
    assert task.cmd.endswith("train.py\n")
    other = read_task(ray_document()).spec
    assert (other.kind, other.resource_type) == (Kind.RAY, ResourceType.SPOT)
    assert other.head_instance.specs == ("c16m64",)


def test_what_is_left_out_has_the_default_of_the_contract():
    spec = {
        "kind": "pytorch",
        "name_prefix": "a",
        "image": "host",
        "cmd": "true",
        "resource_type": "idle",
        "instance": {"specs": ["c1m1"]},
    }
    task = read_task({"spec": spec}).spec
    assert task.exit_notice == ExitNotice(enabled=False, timeout_seconds=600)
    assert task.fault_tolerance.budget == 0
    assert (task.workers, task.image_pull_retries, task.ssh, task.public) == (0, 3, False, False)
    assert task.instance == Instance(None, ("c1m1",), 1)


def test_C3_the_refusal_proposes_a_name_that_is_allowed():
    with pytest.raises(Refusal) as caught:
        read_task(pytorch_document(name_prefix="Größe_Test  No.1!"))
    assert "`groe-test-no-1`" in caught.value.message


def test_C4_the_words_of_the_page_are_another_way_to_write_the_kind():
    assert read_task(pytorch_document(kind=None, task_type="PyTorchJob")).spec.kind is Kind.PYTORCH
    assert read_task(ray_document(task_type="RayJob")).spec.kind is Kind.RAY


@pytest.mark.parametrize(
    ("name", "said"),
    [("\uff21", "U+FF21"), ("A\u200b", "U+200B"), ("变", "U+53D8"), ("A=1", "U+003D"), ("9", "U+0039")],
    ids=["full-width", "zero-width", "chinese", "equals", "digit"],
)
def test_C8_the_message_shows_the_code_point(name, said):
    with pytest.raises(Refusal) as caught:
        read_task(pytorch_document(env=env((name, "1"))))
    assert said in caught.value.message


def test_C8_names_differ_by_case_and_values_may_have_line_breaks():
    task = read_task(pytorch_document(env=env(("a", "0"), ("A", "x\ny")))).spec
    assert [(each.name, each.value) for each in task.env] == [("a", "0"), ("A", "x\ny")]


def test_C9_no_message_and_no_repr_shows_a_value():
    document = pytorch_document(env=[{"name": "A", "value": "canary\0x", "hidden": True}], workers=-1)
    with pytest.raises(Refusal) as caught:
        read_task(document)
    assert "canary" not in str(caught.value.body())
    task = read_task(pytorch_document(env=[{"name": "A", "value": "canary", "hidden": True}]))
    assert "canary" not in repr(task)


def test_C10_kind_ray_may_set_what_only_pytorch_reserves():
    assert read_task(ray_document(env=env(("MASTER_ADDR", "x")))).spec.env[0].name == "MASTER_ADDR"


def test_C11_one_volume_at_two_paths_is_legal_and_roots_may_be_others():
    task = read_task(pytorch_document(mounts=[volume("/mnt/a"), volume("/mnt/b")])).spec
    assert [each.mount_path for each in task.mounts] == ["/mnt/a", "/mnt/b"]
    moved = read_task(pytorch_document(mounts=[volume("/data/a")]), mount_roots=("/data",)).spec
    assert moved.mounts[0].mount_path == "/data/a"


def test_C12_a_root_itself_is_a_mount_path():
    assert read_task(pytorch_document(mounts=[volume("/mnt")])).spec.mounts[0].mount_path == "/mnt"


def test_C47_the_line_and_column_of_a_fault_are_named():
    with pytest.raises(Refusal) as caught:
        read_task(ray_document(runtime_env_yaml="pip: [a]\nenv_vars: {A: '1'\n"))
    assert "line 3, column 1" in caught.value.message


def test_C47_blank_is_no_runtime_environment():
    assert read_task(ray_document(runtime_env_yaml=" \n")).spec.runtime_env_yaml == " \n"


def test_unknown_fields_get_the_nearest_name():
    with pytest.raises(Refusal) as caught:
        read_task(pytorch_document(name_prefx="a"))
    assert "did you mean `name_prefix`?" in caught.value.message


def test_C56_what_stands_beside_the_spec():
    document = pytorch_document() | {"allow_duplicate": True, "smoke": {"minutes": 5}}
    request = read_task(document)
    assert (request.request_id, request.allow_duplicate) == ("llama-sft-0042", True)
    assert request.smoke is not None
    assert (request.smoke.minutes, request.smoke.workers) == (5, 0)
    assert refused(document | {"smoke": {"workers": 0}}) == [("smoke.minutes", "SMOKE_INVALID")]
    assert refused(document | {"trials": []}) == [("trials", "UNKNOWN_FIELD")]
    assert refused(document | {"type": "serve"}) == [("type", "INVALID_JOB_TYPE")]


def test_a_request_without_a_spec_says_so():
    assert refused({"type": "train"}) == [("spec", "FIELD_REQUIRED")]
    with pytest.raises(Refusal) as caught:
        read_task([])
    assert caught.value.code == "INVALID_REQUEST"


@pytest.mark.parametrize(
    ("spec", "training"),
    [
        ({"kind": "pytorch"}, True),
        ({"kind": "ray"}, True),
        ({"kind": "RayJob"}, True),
        ({"task_type": "x"}, True),
        ({"name_prefix": "a"}, True),
        ({"kind": "runner", "runner": "a/b@c"}, False),
        ({"runner": "a/b@c"}, False),
        ({}, False),
        (None, False),
    ],
    ids=str,
)
def test_the_kind_decides_which_door_a_submission_takes(spec, training):
    assert is_training({"type": "train", "spec": spec}) is training
