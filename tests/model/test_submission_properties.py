"""Properties of submissions: identity of input (A3), order of keys, and values nobody expects."""

from __future__ import annotations

import copy
import json

from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.conflicts import differences
from trainshed.model.errors import MAX_BODY_BYTES, Refusal
from trainshed.model.strict_json import decode_json
from trainshed.model.submission import parse_submission

COUNTS = st.integers(1, 2**31 - 1)
TAGS = st.dictionaries(
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", fullmatch=True),
    st.text(max_size=20).filter(str.isprintable),
    max_size=16,
)
COMMANDS = (
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), min_size=1, max_size=80)
).filter(str.strip)
SPECS = st.fixed_dictionaries(
    {"runner": st.sampled_from(["envloop/bash@main", "team/net@v1", "team/net@" + "a" * 40])},
    optional={
        "image": st.sampled_from(["a/b:c", "host:5000/x@sha256:" + "0" * 64]),
        "command": COMMANDS,
        "resources": st.fixed_dictionaries(
            {},
            optional={
                "gpu_type": st.sampled_from(["H100", "A100 80GB"]),
                "gpus": COUNTS,
                "cpus": COUNTS,
                "memory_mb": COUNTS,
                "storage_mb": COUNTS,
                "shm_mb": COUNTS,
            },
        ),
        "timeout_seconds": COUNTS,
        "tags": TAGS,
        "profile": st.fixed_dictionaries(
            {
                "schema": st.just("envloop.job-profile/v1"),
                "recipe": st.dictionaries(
                    st.text("abc", max_size=5), st.integers(-9, 9) | st.text("abc", max_size=5), max_size=3
                ),
                "inputs": st.just({}),
                "plugins": st.just([]),
            }
        ),
    },
)
NAMES = st.lists(
    st.text(min_size=1, max_size=20).filter(lambda n: n.isprintable() and n.strip() and "trial" not in n),
    min_size=16,
    max_size=16,
    unique=True,
)


@st.composite
def submissions(draw):
    specs = draw(st.lists(SPECS, min_size=1, max_size=5))
    names = draw(NAMES)
    trials = [
        {"name": name, "spec": spec} if draw(st.booleans()) else {"spec": spec}
        for name, spec in zip(names, specs, strict=False)
    ]
    return {"type": "train", "request_id": draw(st.just("r")), "trials": trials}


def shuffled(value, random):
    if isinstance(value, dict):
        items = [(key, shuffled(item, random)) for key, item in value.items()]
        random.shuffle(items)
        return dict(items)
    return [shuffled(item, random) for item in value] if isinstance(value, list) else value


@given(submissions(), st.randoms(use_true_random=False))
def test_A3_identical_input_has_one_canonical_form_however_it_is_spelled(document, random):
    other = shuffled(copy.deepcopy(document), random)
    for entry in other["trials"]:
        spec = entry["spec"]
        if "timeout_seconds" in spec and random.random() < 0.5:
            spec["timeout_sec"] = spec.pop("timeout_seconds")
        if random.random() < 0.3:
            spec["kind"] = "runner"
    [first, *rest] = other["trials"]
    if not rest and "name" not in first and random.random() < 0.5:
        del other["trials"]
        other["spec"] = first["spec"]
    one, two = parse_submission(document), parse_submission(other)
    assert one.canonical == two.canonical
    assert one.digest == two.digest
    assert differences(one.canonical, two.canonical) == []
    assert [t.name for t in one.trials] == [t.name for t in two.trials]


@given(submissions(), submissions())
def test_A3_different_input_has_different_canonical_forms_and_the_differences_are_named(one, other):
    first, second = parse_submission(one), parse_submission(other)
    same = one["trials"] == other["trials"]
    assert (first.canonical == second.canonical) == same
    assert (differences(first.canonical, second.canonical) == []) == same


@given(submissions())
def test_the_request_id_and_the_spelling_over_the_wire_are_no_part_of_the_input(document):
    spelled = json.dumps({**document, "request_id": "other"}, ensure_ascii=False, indent=1).encode()
    again = parse_submission(decode_json(spelled))
    assert again.canonical == parse_submission(document).canonical
    assert again.request_id == "other"


@given(submissions())
def test_what_was_parsed_is_what_was_written(document):
    for entry, request in zip(document["trials"], parse_submission(document).trials, strict=True):
        spec = entry["spec"]
        resources = dict(spec.get("resources", {}))
        assert str(request.selector) == spec["runner"]
        assert request.command == spec.get("command")
        assert request.image == spec.get("image")
        assert request.gpu_type == resources.pop("gpu_type", None)
        assert dict(request.counts) == resources
        assert request.timeout_seconds == spec.get("timeout_seconds")
        assert dict(request.tags) == spec.get("tags", {})
        assert (request.profile is None) == ("profile" not in spec)
        if request.profile is not None:
            assert request.profile.parameters == spec["profile"]["recipe"]


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["train", "\ud800", "\x00", "x" * 300, "\U0001f600" * 200]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["type", "request_id", "trials", "spec", "name", "runner", "resources", "gpus", "tags"]
            )
            | st.sampled_from(["timeout_sec", "timeout_seconds", "command", "image", "kind", "profile"])
            | st.text(max_size=5),
            inner,
            max_size=5,
        )
    ),
    max_leaves=30,
)


@given(ANYTHING)
def test_nothing_that_json_can_say_breaks_the_parser_or_makes_an_answer_too_long(value):
    try:
        parse_submission(value)
    except Refusal as refusal:
        body = json.dumps(refusal.body(), separators=(",", ":")).encode()
        assert len(body) <= MAX_BODY_BYTES


@given(submissions(), ANYTHING, st.data())
def test_one_hostile_value_anywhere_in_a_good_submission_is_refused_or_kept(document, value, data):
    hostile = copy.deepcopy(document)
    target = hostile
    while True:
        key = data.draw(st.sampled_from(sorted(target) if isinstance(target, dict) else range(len(target))))
        child = target[key]
        if isinstance(child, dict | list) and child and data.draw(st.booleans()):
            target = child
            continue
        target[key] = value
        break
    try:
        parse_submission(hostile)
    except Refusal as refusal:
        assert refusal.status in {400, 422}  # noqa: PT017 - either outcome is right, a crash is not
