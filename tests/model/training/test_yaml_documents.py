"""YAML as it is taken here: places, bounds, and nothing that is larger than it looks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.training.yaml_documents import (
    MAX_YAML_BYTES,
    MAX_YAML_DEPTH,
    Position,
    YamlDocument,
    YamlFault,
    read_text,
    read_yaml,
    read_yaml_documents,
)

TEXT = """\
spec:
  kind: pytorch
  env:
    - name: A
      value: yes
    - {name: B, value: 1.5}
"""


def test_every_value_knows_its_line_and_column():
    document = read_yaml(TEXT)
    assert document.value == {
        "spec": {"kind": "pytorch", "env": [{"name": "A", "value": "yes"}, {"name": "B", "value": 1.5}]}
    }
    assert document.locate("spec.env[1].value") == Position(6, 17)
    assert document.locate("spec.env[0].name") == Position(4, 7)


def test_a_field_that_is_missing_is_where_its_map_is():
    document = read_yaml(TEXT)
    assert document.locate("spec.instance.specs") == Position(1, 1)
    assert document.locate("spec.env[1].hidden") == Position(6, 7)
    assert document.locate("request_id") == Position(1, 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("true", True),
        ("yes", "yes"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("007", 7),
        ("0o17", 15),
        ("0xff", 255),
        ("1e3", 1000.0),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("|\n  a\n  b\n", "a\nb\n"),
    ],
)
def test_words_mean_what_yaml_1_2_says(text, value):
    assert read_yaml(text).value == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\na: 2", "line 2, column 1: the key `a` is given twice"),
        ("a: &x 1\nb: *x", "the anchor `&x` is not taken"),
        ("a: *x", "alias"),
        ("a: !!python/object:os.system x", "the tag"),
        ("a: !!binary aGk=", "the tag"),
        ("? [a]\n: 1", "a key must be text"),
        ("a: [1", "flow sequence"),
        ("\ta: 1", "line 1"),
        ("a: \x01", "U+0001"),
        ("a: .nan", "not a number"),
        ("a: 1e999", "too large"),
        ("a: " + "9" * 500, "too large"),
        ("[" * (MAX_YAML_DEPTH + 1), "nested deeper"),
        ("a: 1\n---\nb: 2", "line 2, column 1: a second document"),
        ("- a\n" * 100_001, "more than"),
        ("---\n" * 20, "documents"),
        ("#" * (MAX_YAML_BYTES + 1), "at most"),
    ],
    ids=range(17),
)
def test_what_is_refused_names_the_place(text, said):
    with pytest.raises(YamlFault, match="line") as caught:
        read_yaml(text)
    assert said in str(caught.value)


def test_the_laughs_of_a_billion_are_not_told():
    laughs = "a: &a [x,x]\n" + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}]\n" for n in range(20))
    with pytest.raises(YamlFault):
        read_yaml(laughs)


def test_several_documents_are_several_tasks():
    found = read_yaml_documents("a: 1\n---\nb: 2\n")
    assert [each.value for each in found] == [{"a": 1}, {"b": 2}]
    assert found[1].locate("b") == Position(3, 1)


@given(st.text(max_size=300) | st.text("a:-[]{}&*!|>'\"#\n \t?,%@`0.~", max_size=200))
def test_any_text_is_a_document_or_a_fault(text):
    try:
        found = read_yaml_documents(text)
    except YamlFault as caught:
        fault = caught
    else:
        assert all(isinstance(each, YamlDocument) for each in found)
        return
    assert min(fault.line, fault.column) >= 1
    assert "\n" not in fault.message


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.text(st.characters(exclude_categories=("Cc", "Cs", "Cn"), exclude_characters="\ufeff"), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_json_is_read_as_json(value):
    assert read_yaml(json.dumps(value, ensure_ascii=False)).value == value


@given(st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=3))
def test_a_file_of_json_is_read_as_json_whatever_its_escapes(value):
    assert [each.value for each in read_text(json.dumps(value, indent="\t"))] == [value]


def test_a_file_that_begins_like_json_and_is_none_is_yaml():
    assert read_text("{a: 1}")[0].value == {"a": 1}
    with pytest.raises(YamlFault, match="line 2, column 1"):
        read_text('{"a": 1\n')
