"""What a submission may say (contract E b2, E12-E60, E83-E87, readings A3-A8), rule by rule."""

from __future__ import annotations

import json

import pytest

from trainshed.model.conflicts import differences
from trainshed.model.errors import CODES, Refusal
from trainshed.model.submission import (
    MAX_COUNT,
    RESOURCE_COUNTS,
    parse_submission,
)

RUNNER = "envloop/bash@main"


def document(spec=None, /, **root):
    return {"type": "train", "request_id": "r", "spec": {"runner": RUNNER, **(spec or {})}, **root}


def several(*trials, **root):
    return {"type": "train", "request_id": "r", "trials": list(trials), **root}


def trial(name=None, **spec):
    entry = {"spec": {"runner": RUNNER, **spec}}
    return entry if name is None else {"name": name, **entry}


def v1_profile(**recipe):
    return {"schema": "envloop.job-profile/v1", "inputs": {}, "recipe": recipe, "plugins": []}


def faults(given) -> dict[str, str]:
    """Path to code of every fault of a submission that must be refused."""
    with pytest.raises(Refusal) as caught:
        parse_submission(given)
    assert all(fault.code in CODES and fault.message for fault in caught.value.faults)
    json.dumps(caught.value.body()).encode()
    return {fault.path: fault.code for fault in caught.value.faults}


def only(submission):
    [request] = submission.trials
    return request


# Shape


def test_E16_a_spec_alone_is_a_job_with_one_trial():
    request = only(parse_submission(document()))
    assert (request.name, str(request.selector), request.path) == ("trial-1", RUNNER, "spec")
    assert (request.image, request.command, request.gpu_type, request.timeout_seconds) == (None,) * 4
    assert dict(request.counts) == dict(request.tags) == {}


def test_E15_trials_keep_their_order_and_their_names():
    submission = parse_submission(several(trial("b"), trial(), trial("a")))
    assert [t.name for t in submission.trials] == ["b", "trial-2", "a"]
    assert [t.path for t in submission.trials] == [f"trials[{n}].spec" for n in range(3)]


@pytest.mark.parametrize(
    "given",
    [
        {"type": "train", "request_id": "r"},
        {**document(), "trials": [trial()]},
        several(),
        several(*[trial(f"t{n}") for n in range(17)]),
        {"type": "train", "request_id": "r", "trials": {"0": trial()}},
        {"type": "train", "request_id": "r", "trials": None},
    ],
    ids=["neither", "both", "none", "E39 seventeen", "object", "null"],
)
def test_one_to_sixteen_trials_are_given_in_one_way(given):
    assert faults(given) == {"trials": "INVALID_TRIALS"}


def test_E39_sixteen_trials_are_accepted():
    assert len(parse_submission(several(*[trial() for _ in range(16)])).trials) == 16


@pytest.mark.parametrize("entry", [None, 1, "spec", [], True])
def test_a_trial_is_an_object(entry):
    assert faults(several(trial(), entry)) == {"trials[1]": "INVALID_TRIALS"}


@pytest.mark.parametrize("spec", [None, 1, "x", [], False])
def test_a_spec_is_an_object(spec):
    assert faults({**document(), "spec": spec}) == {"spec": "INVALID_TRAIN_JOB_SPEC"}


def test_a_trial_has_a_spec():
    assert faults(several({"name": "a"})) == {"trials[0].spec": "INVALID_TRIALS"}


@pytest.mark.parametrize("given", [None, [], "x", 7, True])
def test_a_body_that_is_no_object_is_refused_as_a_whole(given):
    assert faults(given) == {"": "INVALID_REQUEST"}


@pytest.mark.parametrize("kind", [None, "agent", "TRAIN", 1, ["train"], {"a": {}}])
def test_the_type_is_train(kind):
    assert faults({**document(), "type": kind}) == {"type": "INVALID_JOB_TYPE"}


def test_the_type_must_be_given():
    given = document()
    del given["type"]
    assert faults(given) == {"type": "INVALID_JOB_TYPE"}


# The request id (A4)


@pytest.mark.parametrize(
    "value", ["", " ", "\t\n", "x" * 129, 1, None, True, ["r"], "a\x00b", "a\ud800", "a\tb", "a\x1b[0m"]
)
def test_A4_a_bad_request_id_is_refused(value):
    assert faults({**document(), "request_id": value}) == {"request_id": "INVALID_REQUEST_ID"}


def test_A4_a_request_id_must_be_given():
    given = document()
    del given["request_id"]
    assert faults(given) == {"request_id": "INVALID_REQUEST_ID"}


@pytest.mark.parametrize("value", ["x" * 128, "\u00e9" * 128, "a b", "  r", "\U0001f600"])
def test_a_request_id_of_up_to_128_characters_is_kept_as_it_is(value):
    assert parse_submission({**document(), "request_id": value}).request_id == value


# Names (A5)


@pytest.mark.parametrize("name", ["", " ", "x" * 129, 1, None, True, ["a"], "a\nb", "a\x00", "\ud800"])
def test_A5_a_bad_name_is_refused(name):
    assert faults(several({**trial(), "name": name})) == {"trials[0].name": "INVALID_TRIALS"}


def test_A5_names_are_unique_in_a_job_the_given_and_the_made_ones():
    assert faults(several(trial("a"), trial("b"), trial("a"))) == {"trials[2].name": "INVALID_TRIALS"}
    assert faults(several(trial("trial-2"), trial())) == {"trials[1].name": "INVALID_TRIALS"}
    assert faults(several(trial(), trial("trial-1"))) == {"trials[1].name": "INVALID_TRIALS"}


def test_a_name_of_128_characters_is_accepted():
    assert parse_submission(several(trial("\u00e9" * 128))).trials[0].name == "\u00e9" * 128


# Unknown keys (b2, E10, E19-E22, E55, E60)


@pytest.mark.parametrize(
    ("place", "path"),
    [
        (lambda d: d, ""),
        (lambda d: d["trials"][0], "trials[0]."),
        (lambda d: d["trials"][0]["spec"], "trials[0].spec."),
        (lambda d: d["trials"][0]["spec"]["resources"], "trials[0].spec.resources."),
    ],
    ids=["root", "trial", "spec", "resources"],
)
@pytest.mark.parametrize("key", ["surprise", "Runner", "", "a.b", "\u00e9", "x" * 500])
def test_an_unknown_key_is_refused_at_every_level(place, path, key):
    given = several(trial("a", resources={"gpus": 1}))
    place(given)[key] = 1
    shown = key if len(key) <= 80 else f"{key[:80]}…"
    assert faults(given) == {f"{path}{shown}": "INVALID_TRAIN_JOB_SPEC"}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("recipe", "a Recipe is named inside"),
        ("dataset", "no Dataset or Task"),
        ("tasks", "no Dataset or Task"),
        ("inputs", "no Dataset or Task"),
        ("files", "no uploaded files"),
        ("source", "no uploaded files"),
        ("script", "no uploaded files"),
        ("snapshot", "resolved by the server"),
        ("snapshot_sha256", "resolved by the server"),
        ("resolved", "resolved by the server"),
        ("revision", "resolved by the server"),
        ("env", "no parameter map"),
        ("params", "no parameter map"),
        ("entrypoint", "always runs"),
        ("ENTRYPOINT", "always runs"),
    ],
)
def test_E10_E19_E20_E21_E22_E55_what_runner_mode_never_takes_is_refused_with_its_reason(key, said):
    given = document({key: {}})
    assert faults(given) == {f"spec.{key}": "INVALID_TRAIN_JOB_SPEC"}
    with pytest.raises(Refusal, match=said):
        parse_submission(given)


@pytest.mark.parametrize("key", ["executor", "provider", "backend", "Provider", "engine", "cluster"])
@pytest.mark.parametrize("level", ["root", "spec", "resources"])
def test_E60_naming_where_to_run_is_refused(key, level):
    places = {
        "root": ({**document(), key: "x"}, key),
        "spec": (document({key: "x"}), f"spec.{key}"),
        "resources": (document({"resources": {"gpus": 1, key: "x"}}), f"spec.resources.{key}"),
    }
    given, path = places[level]
    assert faults(given) == {path: "UNSUPPORTED_TRAINING_BACKEND_SELECTION"}


def test_an_unknown_key_is_answered_with_the_nearest_known_one():
    with pytest.raises(Refusal, match="did you mean `command`"):
        parse_submission(document({"comand": "x"}))


def test_E87_tags_belong_into_a_spec_and_nowhere_else():
    assert faults({**document(), "tags": {}}) == {"tags": "INVALID_TRAIN_JOB_SPEC"}


def test_E19_a_recipe_in_one_trial_refuses_the_whole_job():
    assert faults(several(trial("a"), trial("b", recipe={}))) == {
        "trials[1].spec.recipe": "INVALID_TRAIN_JOB_SPEC"
    }


# Selector and image


@pytest.mark.parametrize("value", [None, 1, "", "envloop/bash", "envloop/bash@HEAD", ["x"], True])
def test_a_bad_selector_is_refused(value):
    assert faults(document({"runner": value})) == {"spec.runner": "INVALID_RUNNER"}


def test_a_spec_names_a_runner():
    assert faults({**document(), "spec": {}}) == {"spec.runner": "INVALID_RUNNER"}


@pytest.mark.parametrize("value", [None, 1, "", "Upper/case", True, ["ubuntu"], "x" * 513])
def test_a_bad_image_is_refused(value):
    assert faults(document({"image": value})) == {"spec.image": "INVALID_EXECUTION_CONFIG"}


def test_E41_an_image_is_kept_as_written():
    assert only(parse_submission(document({"image": "a/b:c"}))).image == "a/b:c"


# The command (E47-E53)


@pytest.mark.parametrize(
    "command",
    [
        "x" * 65536,
        "\u00e9" * 32768,
        "\U0001f600" * 16384,
        "a\r\nb\tc 'quoted' \"twice\" $HOME `x` \\ \x01\x7f",
        "  leading and trailing  \n",
        "\ufeff\u2028",
        "x",
    ],
)
def test_E50_E53_a_command_is_kept_byte_for_byte(command):
    assert only(parse_submission(document({"command": command}))).command == command


@pytest.mark.parametrize(
    "command",
    [
        "x" * 65537,
        "\u00e9" * 32768 + "x",
        "\U0001f600" * 16385,
        "",
        " \t\n\r\u00a0\u2003",
        "a\x00b",
        "\x00",
        "a\ud800b",
        "\udfff",
        1,
        None,
        True,
        ["ls"],
        {"a": 1},
    ],
    ids=lambda value: f"{type(value).__name__} {str(value)[:4]!a}",
)
def test_E51_E52_E53_a_bad_command_is_refused(command):
    assert faults(document({"command": command})) == {"spec.command": "INVALID_COMMAND"}


# Resources and timeout (E40, E56, A19)

NOT_COUNTS = [0, -1, 1.0, 1.5, True, False, "1", "", None, [1], {}, MAX_COUNT + 1, 10**300, 1e3]


@pytest.mark.parametrize("key", RESOURCE_COUNTS)
@pytest.mark.parametrize("value", NOT_COUNTS, ids=lambda v: repr(v)[:12])
def test_E40_what_is_no_positive_integer_is_no_count(key, value):
    given = document({"resources": {key: value}})
    assert faults(given) == {f"spec.resources.{key}": "INVALID_EXECUTION_CONFIG"}


@pytest.mark.parametrize("key", ["timeout_seconds", "timeout_sec"])
@pytest.mark.parametrize("value", NOT_COUNTS, ids=lambda v: repr(v)[:12])
def test_a_timeout_is_a_positive_integer_in_both_spellings(key, value):
    assert faults(document({key: value})) == {f"spec.{key}": "INVALID_EXECUTION_CONFIG"}


@pytest.mark.parametrize("key", RESOURCE_COUNTS)
@pytest.mark.parametrize("value", [1, MAX_COUNT])
def test_counts_are_kept(key, value):
    assert dict(only(parse_submission(document({"resources": {key: value}}))).counts) == {key: value}


@pytest.mark.parametrize("value", [None, [], "H100", 3])
def test_resources_are_an_object(value):
    assert faults(document({"resources": value})) == {"spec.resources": "INVALID_EXECUTION_CONFIG"}


@pytest.mark.parametrize(
    "value", [None, 1, "", " H100", "-x", "a" * 65, True, "H100\n", "\u0397100", ["H100"]]
)
def test_a_bad_gpu_type_is_refused(value):
    given = document({"resources": {"gpu_type": value}})
    assert faults(given) == {"spec.resources.gpu_type": "INVALID_EXECUTION_CONFIG"}


@pytest.mark.parametrize(
    "resources", [{"gpus": 2}, {"gpu_type": "H100"}, {"gpu_type": "NVIDIA H100 80GB HBM3"}]
)
def test_A19_gpu_type_and_count_may_be_given_alone(resources):
    request = only(parse_submission(document({"resources": resources})))
    assert {"gpu_type": request.gpu_type, **request.counts} == {"gpu_type": None, **resources}


def test_both_timeout_spellings_are_one_value():
    assert only(parse_submission(document({"timeout_sec": 60}))).timeout_seconds == 60
    both = document({"timeout_sec": 60, "timeout_seconds": 60})
    assert only(parse_submission(both)).timeout_seconds == 60
    different = document({"timeout_sec": 60, "timeout_seconds": 61})
    assert faults(different) == {"spec.timeout_sec": "INVALID_EXECUTION_CONFIG"}


# Tags (E83-E86, A8)


@pytest.mark.parametrize(
    "tags",
    [
        {},
        {"_": ""},
        {"a" * 64: "v" * 256},
        {"0.a-b_c": "\u00e9\U0001f600 \u4e2d"},
        {f"k{n}": str(n) for n in range(16)},
    ],
    ids=["none", "A8 empty value", "at both limits", "characters", "sixteen"],
)
def test_E83_good_tags_are_kept(tags):
    assert dict(only(parse_submission(document({"tags": tags}))).tags) == tags


@pytest.mark.parametrize(
    ("tags", "path"),
    [
        ({f"k{n}": "" for n in range(17)}, "spec.tags"),
        ({"a" * 65: "v"}, "spec.tags." + "a" * 65),
        ({"": "v"}, "spec.tags."),
        ({".a": "v"}, "spec.tags..a"),
        ({"-a": "v"}, "spec.tags.-a"),
        ({"a b": "v"}, "spec.tags.a b"),
        ({"\u00e9": "v"}, "spec.tags.\u00e9"),
        ({"a\n": "v"}, "spec.tags.a\\n"),
        ({"a": "v" * 257}, "spec.tags.a"),
        ({"a": "line\nbreak"}, "spec.tags.a"),
        ({"a": "\x00"}, "spec.tags.a"),
        ({"a": "\u200b"}, "spec.tags.a"),
        ({"a": "\ud800"}, "spec.tags.a"),
        ({"a": 1}, "spec.tags.a"),
        ({"a": None}, "spec.tags.a"),
        ({"a": True}, "spec.tags.a"),
        ({"a": ["x"]}, "spec.tags.a"),
        (["a"], "spec.tags"),
        (None, "spec.tags"),
        ("a", "spec.tags"),
    ],
)
def test_E84_E85_E86_bad_tags_are_refused(tags, path):
    assert faults(document({"tags": tags})) == {path: "INVALID_TAG"}


# Profiles (E55, A1)


def test_E55_a_named_profile_is_refused_and_a_profile_document_is_handed_on():
    assert faults(document({"profile": "fast"})) == {"spec.profile": "INVALID_TRAIN_JOB_SPEC"}
    assert faults(document({"profile": [1]})) == {"spec.profile": "INVALID_PROFILE"}
    found = only(parse_submission(document({"profile": v1_profile(steps=1)}))).profile
    assert found is not None
    assert found.parameters == {"steps": 1}


# All faults at once


def test_every_fault_of_a_request_is_answered_at_once():
    given = several(
        {"name": "a", "spec": {"runner": "x", "command": "", "resources": {"gpus": True}}},
        {"name": "a", "spec": {"runner": RUNNER, "tags": {"": "v"}, "provider": "x", "timeout_sec": 0}},
        7,
        type="other",
        request_id="",
        extra=1,
    )
    assert faults(given) == {
        "type": "INVALID_JOB_TYPE",
        "request_id": "INVALID_REQUEST_ID",
        "extra": "INVALID_TRAIN_JOB_SPEC",
        "trials[0].spec.runner": "INVALID_RUNNER",
        "trials[0].spec.command": "INVALID_COMMAND",
        "trials[0].spec.resources.gpus": "INVALID_EXECUTION_CONFIG",
        "trials[1].name": "INVALID_TRIALS",
        "trials[1].spec.tags.": "INVALID_TAG",
        "trials[1].spec.provider": "UNSUPPORTED_TRAINING_BACKEND_SELECTION",
        "trials[1].spec.timeout_sec": "INVALID_EXECUTION_CONFIG",
        "trials[2]": "INVALID_TRIALS",
    }
    with pytest.raises(Refusal) as caught:
        parse_submission(given)
    assert caught.value.code == "INVALID_JOB_TYPE"


# Conflicts (E26-E28)


@pytest.mark.parametrize(
    ("change", "paths"),
    [
        ({"command": "b"}, {"trials[0].spec.command"}),
        ({"runner": "envloop/bash@v2"}, {"trials[0].spec.runner"}),
        ({"resources": {"gpus": 2}}, {"trials[0].spec.resources.gpus"}),
        ({"resources": {"gpus": 1, "cpus": 4}}, {"trials[0].spec.resources.cpus"}),
        ({"tags": {"k": "w"}}, {"trials[0].spec.tags.k"}),
        ({"timeout_seconds": 61}, {"trials[0].spec.timeout_seconds"}),
        ({"timeout_sec": 60}, set()),
        ({"image": "a"}, {"trials[0].spec.image"}),
        ({"profile": v1_profile(a=[1, {"b": 2}])}, {"trials[0].spec.profile"}),
    ],
)
def test_E27_E28_a_conflict_names_exactly_the_fields_that_differ(change, paths):
    spec = {"command": "a", "resources": {"gpus": 1}, "tags": {"k": "v"}, "timeout_seconds": 60}
    changed = {**spec, **change}
    if "timeout_sec" in change:
        del changed["timeout_seconds"]
    stored, sent = parse_submission(document(spec)), parse_submission(document(changed))
    found = differences(stored.canonical, sent.canonical)
    assert {fault.path for fault in found} == paths
    assert {fault.code for fault in found} <= {"JOB_REQUEST_CONFLICT"}
    assert (stored.canonical == sent.canonical) == (not paths)


def test_E28_a_changed_parameter_of_a_profile_is_named():
    stored, sent = (parse_submission(document({"profile": v1_profile(a=[1, {"b": n}])})) for n in (2, 3))
    assert [fault.path for fault in differences(stored.canonical, sent.canonical)] == [
        "trials[0].spec.profile.recipe.a[1].b"
    ]


def test_E26_another_trial_count_is_a_conflict_that_says_both():
    stored = parse_submission(several(trial(), trial()))
    sent = parse_submission(several(trial(), trial(), trial()))
    [fault] = differences(stored.canonical, sent.canonical)
    assert fault.path == "trials"
    assert "2 Trials" in fault.message
    assert "3" in fault.message


def test_E28_writing_out_a_default_name_is_other_input():
    stored, sent = parse_submission(several(trial())), parse_submission(several(trial("trial-1")))
    assert {fault.path for fault in differences(stored.canonical, sent.canonical)} == {"trials[0].name"}
