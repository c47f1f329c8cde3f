"""Job manifests: what the digest covers, what a rerun asks for, and where two of them differ."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainshed.model.errors import Refusal
from trainshed.model.provenance import (
    JOB_MANIFEST_SCHEMA,
    ManifestFault,
    check_manifest,
    compare,
    job_manifest,
    manifest_digest,
    rerun_request,
)
from trainshed.model.submission import parse_submission

digests = st.integers(0, 2**16).map(lambda number: hashlib.sha256(b"%d" % number).hexdigest())
commits = digests.map(lambda digest: digest[:40])
words = st.sampled_from(["a", "b", "data", "left-pad", "x1", "base", "seed", "rate"])
counts = st.integers(1, 1000)
texts = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=8).filter(str.strip)

# Documents are large and drawing them is slow; what could be wrong with them is found by few.
settings.register_profile("documents", settings.default, max_examples=settings.default.max_examples // 4)
few = settings(settings.get_profile("documents"))


@st.composite
def references(draw: st.DrawFn, kind: str) -> dict[str, str]:
    digest = draw(digests)
    return {"uri": f"envloop://{kind}/{draw(words)}/{draw(words)}@{digest}", "manifest_sha256": digest}


@st.composite
def profiles(draw: st.DrawFn) -> dict[str, Any]:
    """What a Runner is handed; everything in it was made of a Profile."""
    inputs = draw(st.dictionaries(words, references("datasets"), max_size=2))
    plugins = draw(
        st.lists(references("plugins"), max_size=2, unique_by=lambda each: each["uri"].partition("@")[0])
    )
    document: dict[str, Any] = {
        "schema": "envloop.job-profile/v1",
        "recipe": draw(st.dictionaries(words, st.integers(0, 9) | words, max_size=2)),
        "inputs": {name: {**each, "files": {"train": ["*"]}} for name, each in inputs.items()},
        "plugins": [{**each, "name": "a/b"} for each in plugins],
    }
    if draw(st.booleans()):
        document |= {
            "schema": "envloop.job-profile/v2",
            "recipe": {**draw(references("recipes")), "entrypoint": "main"},
            "parameters_given": draw(st.dictionaries(words, st.integers(0, 9), max_size=2)),
            "parameters": {"all": 1},
            "dependencies": {},
        }
    return document


@st.composite
def trials(draw: st.DrawFn, name: str) -> dict[str, Any]:
    profile = draw(st.none() | profiles())
    digest = draw(digests)
    return {
        "trial_id": draw(words),
        "name": name,
        "runner": {
            "name": f"{draw(words)}/{draw(words)}",
            "revision": draw(commits),
            "tree_id": draw(st.none() | commits),
            "selector": "team/run@main",
            "source_ref": draw(st.none() | words),
            "snapshot_sha256": draw(digests),
        },
        "entrypoint": draw(st.sampled_from(["main.py", "main.sh"])),
        "command": draw(st.none() | texts),
        "params": draw(st.dictionaries(words, texts, max_size=2)),
        "outputs": draw(st.lists(words, max_size=2)),
        "tags": draw(st.dictionaries(words, words, max_size=2)),
        "image": draw(
            st.none()
            | st.just(
                {
                    "requested": "a/b:c",
                    "resolved": f"docker.io/a/b@sha256:{digest}",
                    "digest": f"sha256:{digest}",
                }
            )
        ),
        "profile": None if profile is None else {"sha256": draw(digests), "document": profile},
        "contents": [
            {
                "role": f"input:{role}",
                "kind": "datasets",
                "name": "a/b",
                "version": "1",
                "manifest_sha256": sha256,
            }
            for role, sha256 in draw(st.dictionaries(words, digests, max_size=2)).items()
        ],
        "resources": {
            "gpu_type": draw(st.sampled_from(["H100", "A100"])),
            **{key: draw(counts) for key in ("gpus", "cpus", "memory_mb", "storage_mb", "shm_mb")},
        },
        "timeout_seconds": draw(counts),
        "resume_from": draw(
            st.none()
            | st.just(
                {
                    "checkpoint_id": "ckpt_01KB7Q3V9E8Z6R5T4W3X2Y1M0N",
                    "files": [{"name": "f", "size": 1, "sha256": digest}],
                    "lineage": [],
                }
            )
        ),
    }


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Any]:
    """A Job's manifest as the server writes it, through JSON."""
    made = [draw(trials(f"trial-{number}")) for number in range(draw(st.integers(1, 3)))]
    frozen = {
        "job": {
            "job_id": draw(words),
            "type": "train",
            "request_id": draw(words),
            "created_at": "2026-01-01T00:00:00+00:00",
            "platform_version": draw(st.none() | words),
        },
        "request": {},
        "runner_files": {
            each["runner"]["snapshot_sha256"]: [
                {"path": path, "mode": "100644", "size": 1, "sha256": draw(digests)}
                for path in draw(st.lists(words, min_size=1, max_size=2, unique=True))
            ]
            for each in made
        },
        "trials": made,
    }
    return json.loads(json.dumps(job_manifest(frozen, {"status": "completed"})))


@few
@given(manifests(), st.randoms())
def test_the_digest_is_that_of_the_frozen_part_in_any_order_of_keys(document, order):
    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            items = list(value.items())
            order.shuffle(items)
            return {key: shuffled(each) for key, each in items}
        return [shuffled(each) for each in value] if isinstance(value, list) else value

    assert check_manifest(shuffled(document)) == document["frozen"]
    text = json.dumps(document["frozen"], sort_keys=True, separators=(",", ":"))
    assert document["digest"] == hashlib.sha256(text.encode()).hexdigest()
    assert check_manifest({**document, "outcome": {"status": "running"}})


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value that is no table and no list."""
    if isinstance(value, dict):
        return [place for key, each in value.items() for place in places(each, (*path, key))]
    if isinstance(value, list):
        return [place for number, each in enumerate(value) for place in places(each, (*path, number))]
    return [path]


def changed(document: Any, place: tuple[Any, ...]) -> Any:
    """The document with another value there."""
    made = copy.deepcopy(document)
    inside = made
    for key in place[:-1]:
        inside = inside[key]
    old = inside[place[-1]]
    inside[place[-1]] = "another" if old != "another" else "still another"
    return made


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda each: st.lists(each, max_size=2) | st.dictionaries(st.text(max_size=3) | words, each, max_size=2),
    max_leaves=4,
)
"""Any JSON."""


def slots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every table and list inside, with each of its keys and indexes."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield value, key
        yield from slots(each)


@few
@given(manifests(), st.data())
def test_one_changed_value_of_the_frozen_part_is_found(document, data):
    place = data.draw(st.sampled_from(places(document["frozen"])))
    forged = changed(document, ("frozen", *place))
    with pytest.raises(ManifestFault, match=r"was changed after|no schema"):
        check_manifest(forged)


@few
@given(manifests())
def test_what_a_rerun_asks_for_is_a_submission_and_pins_everything(document):
    frozen = check_manifest(document)
    submission = parse_submission(rerun_request(frozen, "again"))
    assert submission.request_id == "again"
    for trial, request in zip(frozen["trials"], submission.trials, strict=True):
        assert request.selector.revision == trial["runner"]["revision"]
        assert request.selector.pinned
        assert (request.image is None) == (trial["image"] is None)
        assert request.image is None or request.image.endswith(trial["image"]["digest"])
        assert request.timeout_seconds == trial["timeout_seconds"]
        assert {"gpu_type": request.gpu_type, **request.counts} == trial["resources"]
        assert request.command == trial["command"]
        assert request.tags == trial["tags"]
        if trial["profile"] is not None:
            snapshot = trial["profile"]["document"]
            assert request.profile is not None
            assert request.profile.schema == snapshot["schema"]
            assert request.profile.inputs.keys() == snapshot["inputs"].keys()
            assert request.profile.parameters == snapshot.get("parameters_given", snapshot["recipe"])
        if trial["resume_from"] is not None:
            assert request.resume_from is not None
            assert request.resume_from.checkpoint_id == "ckpt_01KB7Q3V9E8Z6R5T4W3X2Y1M0N"


@few
@given(manifests(), manifests())
def test_differences_are_the_same_from_both_sides_and_none_from_itself(one, other):
    old, new = check_manifest(one), check_manifest(other)
    assert compare(old, old) == []
    there, back = compare(old, new), compare(new, old)
    assert {(d.path, json.dumps(d.before), json.dumps(d.after), d.runs) for d in there} == {
        (d.path, json.dumps(d.after), json.dumps(d.before), d.runs) for d in back
    }
    assert [d.runs for d in there] == sorted((d.runs for d in there), reverse=True)


RUNS = {"name", "entrypoint", "command", "params", "outputs", "tags", "resources", "timeout_seconds"}


@few
@given(manifests(), st.data())
def test_whatever_changes_what_runs_is_a_difference_that_says_so(document, data):
    frozen = document["frozen"]
    place = data.draw(
        st.sampled_from(
            [
                place
                for place in places(frozen["trials"])
                if place[1] in RUNS
                or place[1:] in {("runner", "revision"), ("image", "digest")}
                or (place[1] == "profile" and len(place) > 2)
                or (place[1] == "contents" and place[-1] == "manifest_sha256")
                or (place[1] == "resume_from" and place[-1] == "sha256")
            ]
        )
    )
    found = compare(frozen, changed(frozen, ("trials", *place)))
    assert found
    assert found[0].runs
    assert all(each.path.startswith(f"trials[{place[0]}].") for each in found)


@few
@given(manifests())
def test_names_and_times_of_a_job_are_no_difference_and_labels_do_not_run(document):
    frozen = document["frozen"]
    other = copy.deepcopy(frozen)
    other["job"] |= {"job_id": "another", "request_id": "another", "created_at": "another"}
    for trial in other["trials"]:
        trial["trial_id"] = "another"
        trial["runner"]["tree_id"] = "f" * 40
    assert compare(frozen, other) == []
    other["job"]["platform_version"] = "another version"
    other["trials"][0]["runner"]["selector"] = "team/run@another"
    assert [(d.path, d.runs) for d in compare(frozen, other)] == [
        ("trials[0].runner.selector", False),
        ("job.platform_version", False),
    ]


@few
@given(manifests())
def test_a_trial_more_or_less_is_a_difference(document):
    frozen = document["frozen"]
    other = {**frozen, "trials": frozen["trials"][:-1]}
    found = compare(frozen, other)
    count = len(frozen["trials"])
    assert [(d.before, d.after) for d in found if d.path == "trials"] == [(count, count - 1)]


def test_equal_numbers_of_other_types_differ():
    trial = {
        "name": "t",
        "runner": {
            "name": "a/b",
            "revision": "a" * 40,
            "snapshot_sha256": "s",
            "selector": "x",
            "source_ref": None,
        },
        "entrypoint": "main.sh",
        "command": None,
        "outputs": [],
        "timeout_seconds": 1,
        "params": {},
        "tags": {},
        "resources": {"gpus": 1},
        "image": None,
        "profile": None,
        "contents": [],
        "resume_from": None,
    }
    frozen = {"job": {"platform_version": None}, "runner_files": {"s": []}, "trials": [trial]}
    other = {**frozen, "trials": [{**trial, "resources": {"gpus": True}}]}
    assert [d.path for d in compare(frozen, other)] == ["trials[0].resources.gpus"]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (None, "is an object with schema, digest, frozen, outcome"),
        ([], "is an object"),
        ({"schema": JOB_MANIFEST_SCHEMA}, "is an object"),
        (
            {"schema": "x", "digest": "0", "frozen": {"schema": "y"}, "outcome": {}},
            "another program wrote it",
        ),
        ({"schema": "x", "digest": "0", "frozen": [], "outcome": {}}, "another program wrote it"),
        (job_manifest({"trials": [{}]}, {}), "is not complete"),
        (job_manifest({}, {}), "is not complete"),
        (job_manifest({"trials": 5}, {}), "is not complete"),
    ],
)
def test_what_is_no_manifest_is_refused_with_why(document, said):
    with pytest.raises(ManifestFault, match=said):
        check_manifest(document)


@few
@given(manifests(), st.data())
def test_a_manifest_with_any_value_replaced_is_refused_or_can_be_rerun_and_compared(document, data):
    frozen = copy.deepcopy(document["frozen"])
    inside, key = data.draw(st.sampled_from(list(slots(frozen))))
    if data.draw(st.booleans()):
        inside[key] = data.draw(anything)
    else:
        del inside[key]
    forged = {**document, "digest": manifest_digest(frozen), "frozen": frozen}
    try:
        checked = check_manifest(forged)
    except ManifestFault:
        return
    with contextlib.suppress(Refusal):
        parse_submission(rerun_request(checked, "again"))
    compare(checked, document["frozen"])
    compare(document["frozen"], checked)


def test_all_that_a_manifest_lacks_is_said_at_once():
    trial = {"name": 5, "runner": {"name": "a/b"}, "image": "x", "contents": [{"role": 1}]}
    with pytest.raises(ManifestFault) as refused:
        check_manifest(job_manifest({"job": {}, "runner_files": [], "trials": [trial]}, {}))
    for said in (
        "`job.job_id` is missing",
        "`job.type` is missing",
        "`job.platform_version` is missing",
        "`runner_files` must be an object, not []",
        "`trials[0].name` must be a string, not 5",
        "`trials[0].runner.revision` is missing",
        '`trials[0].image` must be an object, not "x"',
        "`trials[0].contents[0].role` must be a string, not 1",
        "`trials[0].resources` is missing",
    ):
        assert said in str(refused.value)


@few
@given(manifests())
def test_a_trial_without_the_files_of_its_runner_is_refused(document):
    frozen = {**document["frozen"], "runner_files": {}}
    del frozen["schema"]
    with pytest.raises(ManifestFault, match=r"`runner_files` has no .*, the snapshot of `trials\[0\]`"):
        check_manifest(job_manifest(frozen, {}))
