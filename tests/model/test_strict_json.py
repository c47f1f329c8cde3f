"""Bodies are read strictly: what one reader would take differently from another is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.errors import Refusal
from trainshed.model.strict_json import MAX_DIGITS, MAX_NESTING, canonical_json, decode_json

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def refused(body: bytes) -> str:
    with pytest.raises(Refusal) as caught:
        decode_json(body)
    assert caught.value.code == "INVALID_REQUEST"
    assert caught.value.status == 400
    return caught.value.message


@given(VALUES)
def test_every_json_value_is_read_as_it_was_written(value):
    assert decode_json(json.dumps(value).encode()) == value
    assert decode_json(json.dumps(value, ensure_ascii=False).encode()) == value


@given(VALUES)
def test_canonical_text_is_the_same_for_every_spelling_of_one_value(value):
    spellings = [
        json.dumps(value),
        json.dumps(value, ensure_ascii=False, indent=2),
        json.dumps(value, sort_keys=True, separators=(",", ":")),
    ]
    texts = {canonical_json(json.loads(spelling)) for spelling in spellings}
    assert len(texts) == 1
    assert json.loads(texts.pop()) == value


@given(VALUES, VALUES)
def test_canonical_texts_differ_for_values_that_differ(one, other):
    def typed(value):
        """Python takes 1, 1.0 and True for equal; JSON does not."""
        if isinstance(value, list):
            return [typed(item) for item in value]
        if isinstance(value, dict):
            return {key: typed(item) for key, item in value.items()}
        return (type(value).__name__, repr(value))

    assert (canonical_json(one) == canonical_json(other)) == (typed(one) == typed(other))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not JSON: it is empty"),
        (b"{", "not JSON: line 1, column 2: here has to be a key in double quotes"),
        (b"{} {}", "line 1, column 4: something follows the end"),
        (b"{'a': 1}", "here has to be a key in double quotes"),
        (b'{\n"a" 1}', "line 2, column 5: here has to be a `:`"),
        (b'{"a": yes}', "column 7: here has to be a value"),
        (b"[1 2]", "column 4: here has to be a `,`"),
        (b'{"a": "C:\\data"}', "`\\\\`"),
        (b'{"a": "x\ny"}', "`\\n`"),
        (b"\xff\xfe{}", "utf-8"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", f"a whole number of 5000 digits, {'9' * 40}…; at most {MAX_DIGITS}"),
        (b"-" + b"9" * 4301, "4301 digits"),
        (b'{"a": 1, "b": 2, "a": 1}', "twice"),
        (b'[{"x": {"\\u0061": 1, "a": 1}}]', "twice"),
    ],
)
def test_what_is_not_plain_json_is_refused_with_the_reason(body, said):
    assert said in refused(body)


@pytest.mark.parametrize("body", [b"9" * 5000, b"1e999"])
def test_a_number_that_is_not_taken_is_json_all_the_same(body):
    assert refused(body).startswith("the body holds ")
    assert "JSON" not in refused(body)
    assert "sys." not in refused(body)


def test_the_longest_whole_number_is_read():
    assert decode_json(b"-" + b"9" * MAX_DIGITS) == -(10**MAX_DIGITS - 1)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_is_accepted_to_its_limit_and_refused_beyond(opening, closing):
    def nested(levels: int) -> bytes:
        return opening * levels + b"1" + closing * levels

    decode_json(nested(MAX_NESTING))
    assert "nested" in refused(nested(MAX_NESTING + 1))
    assert "nested" in refused(nested(200_000))
    assert "nested" in refused(opening * 200_000)


def test_brackets_inside_strings_are_no_nesting():
    text = '[{"' * 500 + "\\" + '"' * 3
    assert decode_json(json.dumps({"a": text, text: ["]" * 300]}).encode()) == {text: ["]" * 300], "a": text}


def test_a_body_of_many_keys_with_one_repeated_is_refused_in_linear_time():
    keys = ",".join(f'"k{n}":0' for n in range(100_000))
    assert "twice" in refused(f'{{{keys},"k99999":1}}'.encode())
