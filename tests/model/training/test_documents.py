"""Tasks as documents again, the schema and the help made of one table, names, words."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from support.training import pytorch_document, ray_document
from trainshed.model.states import State
from trainshed.model.training.capabilities import CAPABILITIES
from trainshed.model.training.catalog import Engine
from trainshed.model.training.catalog_fields import CATALOG_FIELDS
from trainshed.model.training.codes import SPEC_CODES
from trainshed.model.training.document import digest, restore, secrets_of, to_document
from trainshed.model.training.explain import catalog_field_names, explain, explain_catalog, field_names
from trainshed.model.training.fields import ROOT_FIELDS, SPEC_FIELDS
from trainshed.model.training.naming import TASK_NAME, engine_name, final_name
from trainshed.model.training.reading import read_task
from trainshed.model.training.schema import task_schema
from trainshed.model.training.words import (
    COUNTED_CAUSES,
    SHOWN,
    SHOWN_WITH,
    Cause,
    Detail,
    Shown,
    WaitingReason,
    first_reason,
    shown_state,
    states_shown_as,
)

TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=10)
ENV = st.lists(
    st.fixed_dictionaries(
        {"name": st.from_regex(r"E[A-Z_0-9]{0,8}", fullmatch=True), "value": TEXTS},
        optional={"hidden": st.booleans()},
    ),
    max_size=4,
    unique_by=lambda each: each["name"],
)
COMMON = {
    "env": ENV,
    "workers": st.integers(4, 8),
    "public": st.booleans(),
    "labels": st.dictionaries(
        st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.text("ab c", max_size=5), max_size=3
    ),
    "priority": st.sampled_from(["low", 7, -3]),
    "max_run_seconds": st.integers(1, 10**6),
    "alarms": st.sampled_from(
        [[], [{"events": ["metric_over"], "threshold": 0.5, "metric": "loss", "channels": ["a"]}]]
    ),
    "image_pull_retries": st.integers(-1, 9),
    "fault_tolerance": st.fixed_dictionaries({}, optional={"enabled": st.booleans()}),
}
PYTORCH = st.fixed_dictionaries(
    {},
    optional=COMMON
    | {"precheck": st.fixed_dictionaries({"env": ENV}), "exit_notice": st.just({"signal": "SIGTERM"})},
)
RAY = st.fixed_dictionaries(
    {},
    optional=COMMON
    | {
        "head": st.sampled_from([{}, {"instance": {"specs": ["c1m1"]}}]),
        "debug": st.sampled_from([{}, {"enabled": True, "retention_seconds": 5}]),
        "autoscaling": st.sampled_from([{}, {"enabled": True, "min": 0, "max": 9}]),
        "runtime_env_yaml": st.sampled_from(["", "pip: [x]\n"]),
    },
)
DOCUMENTS = PYTORCH.map(lambda each: pytorch_document(**each)) | RAY.map(lambda each: ray_document(**each))


@given(DOCUMENTS)
def test_a_task_is_the_same_after_it_was_stored(document):
    task = read_task(document).spec
    stored = json.loads(json.dumps(to_document(task)))
    assert restore(stored, secrets_of(task)) == task
    assert to_document(restore(stored, secrets_of(task))) == stored


@given(DOCUMENTS)
def test_C9_hidden_values_are_apart_and_null_in_the_document(document):
    task = read_task(document).spec
    stored = to_document(task)
    hidden = [each for each in (*stored["env"], *stored.get("precheck", {}).get("env", [])) if each["hidden"]]
    assert all(each["value"] is None for each in hidden)
    assert len(hidden) == len(secrets_of(task))


@given(DOCUMENTS)
def test_what_is_accepted_is_valid_by_the_published_schema(document):
    read_task(document)
    assert list(VALIDATOR.iter_errors(document)) == []


VALIDATOR = Draft202012Validator(task_schema())


def test_C56_equal_specs_have_equal_digests_hidden_values_included():
    one = read_task(pytorch_document()).spec
    same = read_task(pytorch_document(idle_supplement=None)).spec
    other = read_task(
        pytorch_document(
            env=[{"name": "EPOCHS", "value": "3"}, {"name": "HF_TOKEN", "value": "x", "hidden": True}]
        )
    ).spec
    assert digest(one) == digest(same)
    assert digest(one) != digest(other)
    assert digest(one, b"key") != digest(one)
    assert re.fullmatch("[0-9a-f]{64}", digest(one))


def test_the_document_of_one_kind_has_no_field_of_the_other():
    assert not {"head", "debug", "runtime_env_yaml"} & to_document(read_task(pytorch_document()).spec).keys()
    ray = to_document(read_task(ray_document()).spec)
    assert not {"precheck", "exit_notice"} & ray.keys()
    assert "replace_node" not in ray["fault_tolerance"]


def test_the_schema_is_one_and_refuses_what_belongs_to_the_other_kind():
    Draft202012Validator.check_schema(task_schema())
    for document in (
        pytorch_document(debug={}),
        ray_document(precheck={}),
        ray_document(fault_tolerance={"replace_node": True}),
        pytorch_document(workers=-1),
        pytorch_document(nope=1),
        pytorch_document(kind=None),
    ):
        assert list(VALIDATOR.iter_errors(document)), document
    assert not list(VALIDATOR.iter_errors(pytorch_document(kind=None, task_type="PyTorchJob")))


@pytest.mark.parametrize("each", [*ROOT_FIELDS, *SPEC_FIELDS], ids=lambda each: each.path)
def test_every_field_is_explained(each):
    found = explain(each.path)
    assert found.field.meaning.endswith(".")
    assert each.default_text in found.text()
    assert set(each.codes) <= SPEC_CODES.keys() | {
        "INVALID_REQUEST_ID",
        "INVALID_JOB_TYPE",
        "PROJECT_ACCESS_DENIED",
    }
    json.dumps(found.as_dict())


def test_a_field_is_found_by_any_way_to_write_it():
    assert explain("spec.env[0].name").field is explain("env.name").field
    assert [each.path for each in explain("exit_notice").below] == [
        "exit_notice.enabled",
        "exit_notice.timeout_seconds",
        "exit_notice.signal",
    ]
    assert [each.path for each in explain("env").below] == ["env[].name", "env[].value", "env[].hidden"]
    assert len(explain("spec").below) == len(field_names())
    assert "only for kind pytorch" in explain("precheck").text()


@pytest.mark.parametrize(
    ("name", "near"), [("retention_seconds", "debug.retention_seconds"), ("guarante", "guarantee")]
)
def test_an_unknown_field_gets_proposals(name, near):
    with pytest.raises(ValueError, match=re.escape(near)):
        explain(name)


def test_the_fields_of_a_catalogue_are_explained_too():
    for each in CATALOG_FIELDS:
        assert explain_catalog(each.path).text()
    assert "pools" in catalog_field_names()


@given(
    st.from_regex(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True), st.integers(1, 9_999), st.data()
)
def test_C3_names_are_those_of_every_engine(prefix, attempt, data):
    name = final_name(prefix, lambda most: data.draw(st.integers(0, most - 1)))
    assert TASK_NAME.fullmatch(name)
    assert name.startswith(f"{prefix}-")
    assert re.fullmatch(r"[a-z](?:[a-z0-9-]{0,45}[a-z0-9])?", engine_name(name, attempt))


def test_C3_the_engines_name_tells_the_attempt():
    assert [engine_name("a-123456"), engine_name("1a-123456", 2)] == ["a-123456", "t-1a-123456-a2"]
    with pytest.raises(ValueError, match="attempts"):
        engine_name("a-123456", 0)


def test_c1_every_state_has_a_word_and_every_word_a_state():
    assert SHOWN.keys() == set(State)
    assert {*SHOWN.values(), *SHOWN_WITH.values()} == set(Shown)
    assert {detail for _, detail in SHOWN_WITH} == set(Detail)
    assert all(state in states_shown_as(shown_state(state, detail)) for state in State for detail in Detail)


@pytest.mark.parametrize(
    ("state", "detail", "word"),
    [
        (State.PREPARING, None, "Starting"),
        (State.PREPARING, Detail.PULLING, "PullingImage"),
        (State.PREPARING, Detail.PRECHECK, "Prechecking"),
        (State.RUNNING, Detail.PRECHECK, "Running"),
        (State.RUNNING, Detail.RUNTIME_ENV, "Starting"),
        (State.STOPPING, Detail.NOTICE, "SavingCheckpoint"),
        (State.COLLECTING, Detail.RETENTION, "Retaining"),
        (State.AWAITING_APPROVAL, None, "Queuing"),
        (State.DENIED, None, "Stopped"),
        (State.CANCELLED, Detail.NOTICE, "Stopped"),
    ],
)
def test_c1_the_words_of_the_page(state, detail, word):
    assert shown_state(state, detail) == word


def test_c2_the_first_reason_that_applies_is_told():
    assert next(iter(WaitingReason)) == "Misconfigured"
    assert first_reason([WaitingReason.BEHIND, WaitingReason.WAITING_FOR_QUOTA]) == "WaitingForQuota"
    assert first_reason([]) == "PendingEvaluation"


def test_C33_failures_alone_are_counted():
    assert {Cause.AUTO_FAILURE} == COUNTED_CAUSES


def test_c9_every_engine_answers_for_every_field():
    assert CAPABILITIES.keys() == set(Engine)
    fields = {frozenset(table) for table in CAPABILITIES.values()}
    assert len(fields) == 1
    known = {each.path for each in SPEC_FIELDS}
    assert set(CAPABILITIES[Engine.LOCAL]) <= known
    assert all(each.note for table in CAPABILITIES.values() for each in table.values() if not each.kinds)
