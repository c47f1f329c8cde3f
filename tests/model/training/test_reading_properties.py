"""Properties: whatever is sent ends in a task or in faults, and what is accepted keeps every rule."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.training import pytorch_document, ray_document
from trainshed.model.errors import MAX_BODY_BYTES, Refusal
from trainshed.model.training.codes import SPEC_CODES, SpecFaults
from trainshed.model.training.fields import SPEC_FIELDS
from trainshed.model.training.reading import proposed_prefix, read_document, read_task
from trainshed.model.training.runtime_env import read_runtime_env
from trainshed.model.training.variables import env_name_fault

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["gpu", "reserved", "pytorch", "ray", "/mnt/a", "volume", "failed", "h200x1", "\ud800"])
)
KEYS = st.sampled_from(sorted({each.name for each in SPEC_FIELDS})) | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)
OWN_CODES = {"INVALID_REQUEST_ID", "INVALID_JOB_TYPE"}


def check(document):
    try:
        reading = read_document(document)
    except Refusal as refusal:
        faults = refusal.faults
    else:
        faults = reading.faults
        if faults:
            assert len(str(Refusal(faults).body())) <= 2 * MAX_BODY_BYTES
    for fault in faults:
        assert fault.code in SPEC_CODES.keys() | OWN_CODES
        assert fault.message
        assert fault.path.isprintable()


@given(st.dictionaries(KEYS, VALUES, max_size=8), st.sampled_from(["pytorch", "ray", None]))
def test_any_spec_ends_in_a_task_or_in_faults(spec, kind):
    check({"spec": spec | ({"kind": kind} if kind else {})})


@given(
    st.sampled_from(sorted({each.path.split(".")[0] for each in SPEC_FIELDS})),
    VALUES,
    st.sampled_from([pytorch_document, ray_document]),
)
def test_any_value_of_any_field_ends_in_a_task_or_in_faults(key, value, make):
    document = make()
    document["spec"][key.removesuffix("[]")] = value
    check(document)


@given(st.text(max_size=20) | st.from_regex(r"[A-Za-z_0-9]{1,20}", fullmatch=True))
def test_C8_a_name_is_taken_exactly_if_a_shell_would_take_it(name):
    assert (env_name_fault(name) is None) == (re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None)


@given(st.lists(st.sampled_from(["a", "b", "..", ".", "", "mnt", "volume", "x y", "\0"]), max_size=5))
def test_C12_a_mount_path_that_is_taken_stays_below_its_root(parts):
    path = "/".join(parts)
    for text in (path, f"/{path}", f"/mnt/{path}"):
        mount = {"type": "volume", "ref": "v", "mount_path": text}
        try:
            task = read_task(pytorch_document(mounts=[mount])).spec
        except Refusal:
            continue
        where = task.mounts[0].mount_path
        assert where in {"/mnt", "/volume"} or where.startswith(("/mnt/", "/volume/"))
        assert not {"", ".", ".."} & set(where.split("/")[1:])


PATHS = st.lists(
    st.lists(st.sampled_from("ab"), max_size=3).map(lambda parts: "/".join(["/mnt", *parts])), max_size=4
)


@given(PATHS)
def test_C11_mounts_are_taken_exactly_if_no_path_is_or_holds_another(paths):
    mounts = [{"type": "volume", "ref": f"v{n}", "mount_path": path} for n, path in enumerate(paths)]
    apart = len(set(paths)) == len(paths) and not any(
        one != other and other.startswith(f"{one}/") for one in paths for other in paths
    )
    faults = read_document(pytorch_document(mounts=mounts)).faults
    assert (not faults) == apart
    assert {each.code for each in faults} <= {"MOUNT_CONFLICT", "MOUNT_NESTED"}


@given(st.text(max_size=60))
def test_C3_what_is_proposed_is_taken(text):
    assert re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?", proposed_prefix(text))


@given(st.text(max_size=120) | st.text("pipuvenv_vars: {}[]'\"\n-./~123yes", max_size=80))
def test_C47_any_text_is_a_runtime_environment_or_a_fault(text):
    faults = SpecFaults()
    read_runtime_env(text, "spec.runtime_env_yaml", faults)
    assert all(each.code in SPEC_CODES for each in faults.faults)


@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=200))
def test_C15_a_command_is_kept_character_by_character(command):
    if command.strip():
        assert read_task(pytorch_document(cmd=command)).spec.cmd == command


HOSTILE = {
    "keys": {f"k{n}{'x' * 50}": n for n in range(50_000)},
    "key": {"k" * 1_000_000: 1},
    "env": {"env": [{"name": f"A{n}", "value": "x"} for n in range(50_000)]},
    "mounts": {
        "mounts": [
            {"type": "volume", "ref": "v", "mount_path": "/mnt/" + "/".join("a" * 400) + f"/{n}"}
            for n in range(1_000)
        ]
    },
    "specs": {"instance": {"specs": [f"s{n}" for n in range(1_000)]}},
    "yaml": {"runtime_env_yaml": "pip: [" + "a," * 32_000 + "]"},
    "number": {"workers": 10**4000},
    "labels": {"labels": {f"k{n}": "v" for n in range(50_000)}},
}


@pytest.mark.parametrize("case", sorted(HOSTILE))
def test_hostile_documents_are_answered_and_their_size_is_in_no_answer(case):
    check((ray_document if case == "yaml" else pytorch_document)(**HOSTILE[case]))
