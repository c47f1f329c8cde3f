"""Task files: read with places, changed by ``--set``, written so that they are read as the same."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import hypothesis
import pytest
from hypothesis import strategies as st

from support.training import pytorch_document
from trainshed.cli.train_files import as_yaml, located, read_document, with_values
from trainshed.cli.train_submit import task_file
from trainshed.model.training.reading import read_document as read_task
from trainshed.model.training.yaml_documents import read_yaml
from trainshed.sdk.errors import FieldFault, RequestRefused

EXAMPLES = Path(__file__).parents[2] / "examples" / "training"
TEXT = """\
type: train
spec:
  kind: pytorch
  env:
  - {name: A, value: "1"}
  - name: B
    value: 2
  workers: 1
"""


@pytest.fixture
def given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def given(text: str, *settings: str, name: str = "task.yaml"):
        (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
        return with_values(read_document(name, "a task file"), settings)

    return given


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("spec.kind", "task.yaml:3:3"),
        ("spec.env[0].value", "task.yaml:5:15"),
        ("spec.env[1].value", "task.yaml:7:5"),
        ("spec.resource_type", "task.yaml:2:1"),
        ("request_id", "task.yaml:1:1"),
    ],
)
def test_a_fault_is_told_with_the_line_and_column_of_its_key_or_of_what_is_around_it(given, path, place):
    assert given(TEXT).place(path) == place


def test_a_fault_in_json_has_a_place_too(given):
    text = json.dumps(read_yaml(TEXT).value, indent=2)
    found = given(text, name="task.json")
    line = 1 + text.splitlines().index('        "name": "B",')
    assert found.locate("spec.env[1].name") == (line, 9)
    assert found.value == read_yaml(TEXT).value


def test_a_fault_of_what_an_option_gave_names_the_option(given):
    found = given(TEXT, "workers=-1", "env[1].value=3")
    assert found.place("spec.workers") == "--set workers=-1"
    assert found.place("spec.env[1].value") == "--set env[1].value=3"
    assert found.place("spec.env[1].name") == "task.yaml:6:5"
    assert found.locate("spec.workers") is None


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("workers=3", ("spec", "workers"), 3),
        ("spec.workers=3", ("spec", "workers"), 3),
        ("request_id=x", ("request_id",), "x"),
        ("labels.team=a=b", ("spec", "labels"), {"team": "a=b"}),
        ("instance.specs=[a, b]", ("spec", "instance"), {"specs": ["a", "b"]}),
        ('env[0].value="5"', ("spec", "env", 0, "value"), "5"),
        ("env[2]={name: C, value: x}", ("spec", "env", 2), {"name": "C", "value": "x"}),
        ("cmd=", ("spec", "cmd"), None),
    ],
)
def test_a_setting_replaces_a_field_and_its_value_is_yaml(given, setting, path, value):
    before = given(TEXT).value
    found = given(TEXT, setting).value
    for step in path:
        found = found[step]
    assert found == value
    assert given(TEXT).value == before


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("workers", "is not KEY=VALUE"),
        ("=3", "is not KEY=VALUE"),
        ("a..b=3", "is not KEY=VALUE"),
        ("workers.more=3", "not a map"),
        ("kind[0]=3", "not a list"),
        ("env[5].name=x", "there is no entry [5]; the list has 2"),
        ("workers=[1", "expected"),
    ],
)
def test_a_setting_that_has_no_place_is_refused_before_anything_is_sent(given, setting, said):
    with pytest.raises(click.BadParameter, match=re.escape(said)):
        given(TEXT, setting)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1\nb: 2\n", "task.yaml:2:2: "),
        ("a: 1\na: 2\n", "task.yaml:2:1: the key `a` is given twice"),
        ("a: &x 1\n", "task.yaml:1:4: the anchor"),
        ("a: 1\n---\nb: 2\n", "task.yaml:2:1: a second document begins"),
        ("- 1\n", "task.yaml:1:1: a task file is a map of fields"),
        ("", "task.yaml:1:1: a task file is a map of fields"),
        (b"a: 1\nb: \xff\n", "task.yaml:2:1: byte 8 is not UTF-8"),
        (b"a: \x00", "task.yaml:1:4: "),
    ],
    ids=["open", "twice", "anchor", "two", "list", "empty", "utf8", "nul"],
)
def test_what_is_no_document_is_refused_with_its_place(tmp_path, monkeypatch, text, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(click.UsageError) as refused:
        read_document("task.yaml", "a task file")
    assert refused.value.message.startswith(said)


def test_a_file_that_is_missing_or_too_large_is_refused(tmp_path):
    with pytest.raises(click.UsageError, match="cannot read"):
        read_document(str(tmp_path / "none.yaml"), "a task file")
    (tmp_path / "large.yaml").write_bytes(b"#" * (4 << 20) + b"\n")
    with pytest.raises(click.UsageError, match="larger than 4 MiB"):
        read_document(str(tmp_path / "large.yaml"), "a task file")


def test_programs_get_places_beside_paths_and_people_get_them_in_front(given):
    faults = (FieldFault("spec.kind", "X", "no"), FieldFault("spec.workers", "Y", "no"))
    error = RequestRefused(422, "INVALID_SPEC", "no", faults=faults, body={"code": "INVALID_SPEC"})
    found = given(TEXT, "workers=9")
    told = located(error, found, for_people=True)
    assert [each.path for each in told.faults] == [
        "task.yaml:3:3: spec.kind",
        "--set workers=9: spec.workers",
    ]
    read = located(error, found, for_people=False)
    assert read.faults == faults
    assert read.body["places"] == [{"path": "spec.kind", "file": "task.yaml", "line": 3, "column": 3}]
    assert isinstance(read, RequestRefused)
    unknown = RequestRefused(404, "NOT_FOUND", "no", faults=faults)
    assert located(unknown, found, for_people=True) is unknown


_TEXTS = st.text(
    st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]) | st.just("\n"), max_size=20
)
_WORDS = st.sampled_from(
    ["yes", "0o17", "1e3", "1_000", "~", "", "null", "1:30", ".5", "- a", "#", " x", "x "]
)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXTS
    | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS | _WORDS, inner, max_size=3),
    max_leaves=8,
)


@hypothesis.given(st.dictionaries(st.text(st.characters(codec="ascii", categories=["L"]), min_size=1), _JSON))
def test_what_is_written_is_read_as_the_same(document):
    assert read_yaml(as_yaml(document)).value == document


def test_c7_the_file_of_a_task_is_its_spec_without_hidden_values_and_what_the_project_gives():
    spec = pytorch_document()["spec"]
    spec["env"] = [
        {"name": "A", "value": "0o17", "hidden": False, "source": "task"},
        {"name": "B", "value": None, "hidden": True, "source": "task"},
        {"name": "C", "value": "x", "hidden": False, "source": "project"},
    ]
    before = json.dumps(spec)
    text = task_file("llama-sft-7k2m9q", spec)
    assert json.dumps(spec) == before
    assert text.startswith("# Made of llama-sft-7k2m9q.")
    assert "# value: hidden; write it here\n" in text
    document = read_yaml(text).value
    assert document["spec"]["env"] == [{"name": "A", "value": "0o17"}, {"name": "B", "hidden": True}]
    assert list(document["spec"])[:4] == ["kind", "region", "cluster", "project"]
    assert document["spec"]["cmd"] == spec["cmd"]
    assert {fault.path for fault in read_task(document).faults} == {"spec.env[1].value"}
    filled = read_yaml(text.replace("# value: hidden; write it here", "value: s3cret")).value
    assert not read_task(filled).faults


@pytest.mark.parametrize("name", ["pytorch.yaml", "ray.yaml"])
def test_the_examples_are_tasks_that_are_taken(name):
    given = read_document(str(EXAMPLES / name), "a task file")
    assert not read_task(given.value).faults
