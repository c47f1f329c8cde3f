"""Whose each word of `gpu run` is (contract G, j)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.cli import gpu_run
from trainshed.cli.gpu_words import (
    FLAGS,
    LATE_FLAGS,
    LATE_VALUES,
    TAKES_VALUE,
    Ambiguous,
    split,
)

VALUES = {"-p": "kaggle", "--gpu": "T4", "--hours": "0.5", "--vram": "16"}
any_word = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
theirs = any_word.filter(lambda word: not word.startswith("-")) | st.sampled_from(
    ["--epochs", "--lr=1e-3", "-x", "-wd", "-epochs", "---", "-", "--jsonl", "--gpus", "--no-wait", ""]
)
early = st.lists(
    st.sampled_from(sorted(TAKES_VALUE)).flatmap(lambda name: st.tuples(st.just(name), any_word))
    | st.sampled_from(sorted(FLAGS)).map(lambda name: (name,)),
    max_size=4,
)
late = st.lists(
    st.sampled_from(sorted(LATE_FLAGS)).map(lambda name: (name,))
    | st.sampled_from(sorted(LATE_VALUES)).map(lambda name: (name, VALUES[name])),
    max_size=3,
    unique_by=lambda words: words[0],
)


@given(early, any_word.filter(lambda word: not word.startswith("-") or word == "-"), st.lists(any_word))
def test_behind_two_dashes_every_word_is_the_scripts(options, script, words):
    ours = [word for option in options for word in option]
    found = split([*ours, script, "--", *words])
    assert (found.ours, found.script, found.theirs) == (ours, script, words)
    found = split([*ours, "--", script, *words])
    assert (found.ours, found.script, found.theirs) == (ours, script, words)


@given(late, st.lists(theirs, max_size=5), st.randoms())
def test_behind_the_script_only_what_is_named_there_is_ours(options, words, random):
    mixed = [[word] for word in words] + [list(option) for option in options]
    random.shuffle(mixed)
    found = split(["train.py", *(word for part in mixed for word in part)])
    taken = [word for part in mixed if len(part) == 2 or part[0] in LATE_FLAGS for word in part]
    kept = [part[0] for part in mixed if len(part) == 1 and part[0] not in LATE_FLAGS]
    assert (found.ours, found.theirs) == (taken, kept)


@given(st.lists(any_word.filter(lambda word: "=" not in word), max_size=8))
def test_no_word_is_lost_or_made_up(words):
    try:
        found = split(words)
    except Ambiguous:
        return
    told = Counter([*found.ours, *([] if found.script is None else [found.script]), *found.theirs])
    assert not told - Counter(words)
    assert Counter(words) - told <= Counter(["--"])


@pytest.mark.parametrize(
    "words",
    [
        ["--gpu", "0"],
        ["--gpu=0,1"],
        ["--gpu", "-1"],
        ["--gpu"],
        ["--hours", "soon"],
        ["--hours", "nan"],
        ["--vram", "--json"],
        ["-p", "8080"],
        ["-p8080"],
        ["-eA=1"],
        ["-C/tmp"],
        ["--name", "x"],
        ["--env", "A=1"],
        ["-e", "A=1"],
        ["--data", "d"],
        ["--data=d"],
        ["--include", "d"],
        ["--provider", "kaggle"],
        ["--smoke"],
        ["--project", "d"],
        ["-w"],
        ["-d"],
        ["-h"],
        ["--json=1"],
        ["--wait=1"],
    ],
)
def test_what_could_be_either_is_refused_with_both_ways_out(gpu, new_project, words):
    ran = gpu("run", "train.py", *words, folder=new_project())
    assert (ran.status, ran.out) == (2, "")
    assert words[0] in ran.err
    assert "before the script" in ran.err
    assert "behind `--`" in ran.err


def test_the_same_option_on_both_sides_is_refused():
    with pytest.raises(Ambiguous, match="before the script too"):
        split(["--hours", "1", "train.py", "--hours", "2"])
    with pytest.raises(Ambiguous, match="before the script too"):
        split(["--provider=local", "train.py", "-p", "kaggle"])


def test_every_option_of_run_is_known_to_whoever_tells_words_apart():
    named = {name for each in gpu_run.run.params for name in each.opts if name.startswith("-")}
    assert named == (TAKES_VALUE.keys() | FLAGS.keys()) - {"--help", "-h"}
    takes = {
        name for each in gpu_run.run.params if getattr(each, "is_flag", True) is False for name in each.opts
    }
    assert takes == TAKES_VALUE.keys()
