"""gpu.yaml and arguments as one wish (section d, "Merge"; G20, G72)."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.scripts.gpu_yaml import Wishes
from trainshed.model.scripts.merge import Entry, Merged, Origin, merge
from trainshed.model.scripts.validate import DataWish, DepsWish

CASES = {
    "script": ("a.py", "b.py", "entry", Entry(Origin.ARGUMENT, "b.py")),
    "args": (("1",), ("2", "3"), "args", ("2", "3")),
    "name": ("file", "argument", "name", "argument"),
    "hours": (2.0, 0.5, "hours", 0.5),
    "vram_gb": (8.0, 16.0, "vram_gb", 16.0),
    "gpu": ("T4", "P100", "gpu", "P100"),
    "provider": ("kaggle", "local", "provider", "local"),
    "smoke": (True, False, "smoke", False),
    "env": ({"A": "1", "B": "2"}, {"B": "3", "C": "4"}, "env", {"A": "1", "B": "3", "C": "4"}),
    "data": (
        (DataWish("x", "f"), DataWish("y", "g")),
        (DataWish("y", "h"), DataWish("z", "i")),
        "data",
        (
            (Origin.FILE, DataWish("x", "f")),
            (Origin.ARGUMENT, DataWish("y", "h")),
            (Origin.ARGUMENT, DataWish("z", "i")),
        ),
    ),
    "include": (("a",), ("b",), "include", ((Origin.FILE, "a"), (Origin.ARGUMENT, "b"))),
}


@pytest.mark.parametrize("key", CASES)
def test_G20_an_argument_overrides_its_value_of_the_file(key):
    of_file, given, name, expected = CASES[key]
    found = merge(Wishes(**{key: of_file}), Wishes(**{key: given}))
    assert getattr(found, name) == expected


@pytest.mark.parametrize("key", CASES)
def test_G20_an_argument_that_is_not_given_leaves_the_value_of_the_file(key):
    of_file, _, name, _ = CASES[key]
    alone = merge(Wishes(**{key: of_file}), Wishes())
    assert getattr(alone, name) == getattr(merge(Wishes(**{key: of_file}), Wishes(gpu=None)), name)
    assert getattr(alone, name) != getattr(Merged(), name)


def test_G20_the_table_has_every_argument():
    only_in_files = {
        *("command", "secrets", "deps", "checkpoint_interval_min", "interactive", "requires_approval"),
        *("max_attempts", "labels", "provider_options"),
    }
    assert set(CASES) | only_in_files == {field.name for field in fields(Wishes)}


def test_a_script_that_is_given_replaces_the_command_of_the_file_and_its_name():
    file = Wishes(command=("bash", "x.sh"), name="from the file", args=("1",))
    found = merge(file, Wishes(script="train.py"))
    assert found.entry == Entry(Origin.ARGUMENT, "train.py")
    assert (found.name, found.args) == (None, ("1",))


def test_the_name_of_the_file_stays_where_the_same_is_started():
    file = Wishes(script="./train.py", name="mine")
    assert merge(file, Wishes(script="train.py")).name == "mine"
    assert merge(file, Wishes(script="train.py", name="other")).name == "other"
    assert merge(file, Wishes(script="eval.py")).name is None


def test_no_argument_takes_an_approval_away():
    assert merge(Wishes(requires_approval=True), Wishes(requires_approval=False)).requires_approval


def datasets(names):
    return tuple(DataWish(name, name) for name in names)


wishes = st.builds(
    Wishes,
    script=st.none() | st.sampled_from(["a.py", "./a.py", "b.py", "run x"]),
    name=st.none() | st.text(min_size=1, max_size=3),
    args=st.none() | st.lists(st.text(max_size=3), max_size=3).map(tuple),
    hours=st.none() | st.floats(0.1, 300),
    env=st.none() | st.dictionaries(st.sampled_from("ABC"), st.text(max_size=2)),
    data=st.none() | st.lists(st.sampled_from("xyz"), unique=True).map(datasets),
    include=st.none() | st.lists(st.sampled_from("abc"), unique=True).map(tuple),
    smoke=st.none() | st.booleans(),
    deps=st.none() | st.sampled_from([DepsWish("none"), DepsWish()]),
)


@given(wishes, wishes)
def test_merging_keeps_what_only_one_says_and_lets_arguments_win(file, given):
    found = merge(file, given)
    for key in ("args", "hours", "smoke"):
        wanted = getattr(given, key) if getattr(given, key) is not None else getattr(file, key)
        assert getattr(found, key) == (getattr(Merged(), key) if wanted is None else wanted)
    assert found.env == {**(file.env or {}), **(given.env or {})}
    assert {pattern for _, pattern in found.include} == {*(file.include or ()), *(given.include or ())}
    mounts = [wish.mount for _, wish in found.data]
    assert len(mounts) == len(set(mounts))
    assert set(mounts) == {wish.mount for each in (file, given) for wish in each.data or ()}
    assert all((Origin.ARGUMENT, wish) in found.data for wish in given.data or ())


@given(wishes)
def test_merging_with_nothing_changes_nothing_but_the_origin(wish):
    from_file, given = merge(wish, Wishes()), merge(Wishes(), wish)
    assert [pattern for _, pattern in from_file.include] == [pattern for _, pattern in given.include]
    assert (from_file.args, from_file.hours, from_file.name) == (given.args, given.hours, given.name)
