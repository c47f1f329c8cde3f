"""gpu.yaml, version 1: every key, every fault with its line (section d; G19, G20)."""

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.scripts.faults import SpecError
from trainshed.model.scripts.gpu_yaml import MAX_BYTES, Wishes, read_arguments, read_gpu_yaml
from trainshed.model.scripts.schema import gpu_yaml_schema
from trainshed.model.scripts.validate import FIELDS, DataWish, DepsWish

FULL = """\
version: 1
name: my run
script: src/train.py
args: --lr 1e-3 --name 'a b'
vram: 15.5
hours: 2
provider: Kaggle
gpu: T4
env: {LR: 1e-4, RELEASE: 1.10, FAST: true, EMPTY: ""}
secrets: [WANDB_API_KEY]
deps: {kind: requirements, file: reqs/gpu.txt}
data:
  - mount: images
    path: data/Images
  - {mount: text, uri: "hf://datasets/org/repo@main/train"}
include: [data/crops/*.png, "experiments/**/out"]
checkpoint_interval_min: 0
interactive: false
requires_approval: true
smoke: true
max_attempts: 3
labels: {team: vision, run: 7}
provider_options: {Kaggle: {internet: true}}
"""


def faults(text):
    with pytest.raises(SpecError) as caught:
        read_gpu_yaml(text.encode() if isinstance(text, str) else text)
    return [str(fault) for fault in caught.value.faults]


def test_G19_every_key_is_read():
    assert read_gpu_yaml(FULL.encode()) == Wishes(
        name="my run",
        script="src/train.py",
        args=("--lr", "1e-3", "--name", "a b"),
        vram_gb=15.5,
        hours=2.0,
        provider="kaggle",
        gpu="T4",
        env={"LR": "1e-4", "RELEASE": "1.10", "FAST": "true", "EMPTY": ""},
        secrets=("WANDB_API_KEY",),
        deps=DepsWish("requirements", "reqs/gpu.txt"),
        data=(DataWish("images", "data/Images"), DataWish("text", None, "hf://datasets/org/repo@main/train")),
        include=("data/crops/*.png", "experiments/**/out"),
        checkpoint_interval_min=0,
        interactive=False,
        requires_approval=True,
        smoke=True,
        max_attempts=3,
        labels={"team": "vision", "run": "7"},
        provider_options={"kaggle": {"internet": True}},
    )


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_endings_and_a_byte_order_mark_of_windows_change_nothing(ending, mark):
    text = FULL.replace("\n", ending).encode()
    assert read_gpu_yaml(mark + text) == read_gpu_yaml(FULL.encode())


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n"])
def test_an_empty_file_asks_for_nothing(text):
    assert read_gpu_yaml(text.encode()) == Wishes()


NUMBER = "must be a number above 0, at most 336"
RELATIVE = "write a path relative to the project"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("hours: 1\nvarm: 4\n", "gpu.yaml:2: `varm` is no key of gpu.yaml"),
        ("\n\nhours: fast\n", f"gpu.yaml:3: `hours` {NUMBER}, not text"),
        ("hours: 0\n", "gpu.yaml:1: `hours` must be above 0 and at most 336, not 0"),
        ("hours: true\n", f"gpu.yaml:1: `hours` {NUMBER}, not a boolean"),
        ("hours: .nan\n", f"gpu.yaml:1: `hours` {NUMBER}, not text"),
        ("vram_gb: 641\n", "gpu.yaml:1: `vram_gb` must be above 0 and at most 640, not 641"),
        ("version: 2\n", "gpu.yaml:1: `version` is 2, and this program reads version 1; upgrade it"),
        ("vram: 1\nvram_gb: 1\n", "gpu.yaml:2: `vram_gb` says the same as `vram`"),
        ("command: x\nscript: a.py\n", "gpu.yaml:2: `script` is given beside `command`"),
        ("hours: 1\nhours: 2\n", "gpu.yaml:2: the key `hours` is given twice in one map"),
        ("hours:\n", "gpu.yaml:1: `hours` has no value; give it one, or leave the key out"),
        ("- a\n", "gpu.yaml:1: the file must hold a map of keys and values"),
        ("smoke: yes\n", "gpu.yaml:1: `smoke` must be true or false, not text"),
        ("max_attempts: 51\n", "gpu.yaml:1: `max_attempts` must be a whole number from 1 to 50, not 51"),
        ('args: "\'a"\n', "gpu.yaml:1: `args` has a quote or a backslash without its end"),
        ("env:\n  A: 1\n  B:\n", 'gpu.yaml:3: `env` B has no value; write "" for an empty text'),
        (
            "data:\n- {mount: a, path: x}\n- {mount: b}\n",
            "gpu.yaml:3: `data` [1] must have a mount and exactly one of path and uri",
        ),
        ("data:\n- {mount: A B, path: x}\n", "gpu.yaml:2: `data` [0] has the mount `A B`;"),
        ("script: ../x.py\n", "gpu.yaml:1: `script` must not hold `..`; write a path below the project"),
        ("script: ~/x.py\n", f"gpu.yaml:1: `script` must not begin with `~`; {RELATIVE}"),
        ("deps: ../r.txt\n", f"gpu.yaml:1: `deps` has `../r.txt`; {RELATIVE}, without `..`"),
        ("include: ~/.ssh\n", "gpu.yaml:1: `include` has `~/.ssh`, which begins with `~`;"),
        ("include: '**'\n", "gpu.yaml:1: `include` has `**`, which names everything; name what is missing"),
        (
            "provider_options: {ray: {pyhton: python3}}\n",
            "gpu.yaml:1: `provider_options` has `pyhton` for `ray`, which takes `python` alone",
        ),
        (
            "provider_options: {local: {python: .venv/bin/python}}\n",
            "gpu.yaml:1: `provider_options` names `.venv/bin/python` for `local`: an interpreter is",
        ),
        ("a: &x 1\nb: *x\n", "gpu.yaml:1: the anchor `&x` is not taken; write each value out"),
    ],
)
def test_a_fault_is_told_with_its_line_and_its_key(text, told):
    (said,) = faults(text)
    assert said.startswith(told)


def test_all_faults_are_told_at_once():
    assert len(faults("hours: 0\nvarm: 1\nsmoke: 3\nenv: []\n")) == 4


def test_a_key_that_is_given_twice_hides_no_other_fault():
    text = """\
hours: fast
vram: 4
hours: 0
varm: 1
env: {A: 1, A: 2, B: }
hours: 3
varm: 2
data:
- {mount: a, path: x, path: y}
- {mount: A B, path: x}
"""
    told = [line.split(",")[0] for line in faults(text)]
    assert told == [
        "gpu.yaml:1: `hours` must be a number above 0",
        "gpu.yaml:3: the key `hours` is given twice in one map",
        "gpu.yaml:3: `hours` must be above 0 and at most 336",
        "gpu.yaml:4: `varm` is no key of gpu.yaml",
        "gpu.yaml:5: the key `A` is given twice in one map",
        'gpu.yaml:5: `env` B has no value; write "" for an empty text',
        "gpu.yaml:6: the key `hours` is given twice in one map",
        "gpu.yaml:7: the key `varm` is given twice in one map",
        "gpu.yaml:9: the key `path` is given twice in one map",
        "gpu.yaml:10: `data` [1] has the mount `A B`; lower-case letters",
    ]


def test_keys_that_were_given_twice_are_told_where_the_rest_is_no_yaml():
    told = faults("hours: 1\nhours: 2\nenv: {A: [\n")
    assert told[0].startswith("gpu.yaml:2: the key `hours` is given twice")
    assert len(told) == 2


def test_the_nearest_key_is_proposed():
    with pytest.raises(SpecError) as caught:
        read_gpu_yaml(b"Checkpoint-interval-min: 3\n")
    assert caught.value.faults[0].hint == "Did you mean `checkpoint_interval_min`?"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a: \x00", b"x" * (MAX_BYTES + 1), b"a: [", b"\t- a"])
def test_what_is_no_yaml_is_one_fault_with_a_line(content):
    assert len(faults(content)) == 1


def test_G48_to_G50_a_secret_in_env_is_refused_at_its_line_without_its_value():
    value = "hf_a1B2c3D4e5F6g7H8i9J0"
    (told,) = faults(f"hours: 1\nenv:\n  FINE: 1\n  HARMLESS: {value}\n")
    assert told.startswith("gpu.yaml:4: `env` is refused: `HARMLESS`")
    assert value not in told
    assert "gpu secrets set HARMLESS" in told


def test_a_reserved_secret_is_a_bad_request():
    with pytest.raises(SpecError) as caught:
        read_gpu_yaml(b"secrets: [HF_TOKEN]\n")
    assert caught.value.faults[0].code == "invalid_request"


def test_arguments_that_are_not_given_say_nothing_and_unknown_ones_are_refused():
    assert read_arguments({"hours": None, "script": None}) == Wishes()
    with pytest.raises(SpecError) as caught:
        read_arguments({"hour": 1, "project": "x", "hours": -1})
    assert [fault.code for fault in caught.value.faults] == ["invalid_request"] * 3
    assert caught.value.faults[0].hint == "Did you mean `hours`?"


def test_a_list_written_as_json_in_a_text_is_that_list():
    found = read_arguments({"args": '["--lr", "a b"]', "data": '["x=y"]', "include": '["a", "b"]'})
    assert found.args == ("--lr", "a b")
    assert found.data == (DataWish("x", "y"),)
    assert found.include == ("a", "b")


def test_G53_arguments_are_taken_as_they_are():
    words = ("", " ", "--x=1", "-", "'\"", "ü", "a\nb", "$HOME")
    assert read_arguments({"args": list(words)}).args == words
    with pytest.raises(SpecError, match="must be a list of texts"):
        read_arguments({"args": "--lr 1"})


@pytest.mark.parametrize("hours", [0, -1, 336.5, float("nan"), float("inf"), "2", True, [1]])
def test_G60_hours_out_of_range_are_refused(hours):
    with pytest.raises(SpecError, match="`hours` must be"):
        read_arguments({"hours": hours})


def test_G59_a_name_loses_control_characters_and_is_at_most_80_long():
    assert read_arguments({"name": "a\x1b[31m\nb"}).name == "a[31mb"
    assert read_arguments({"name": "x" * 80}).name == "x" * 80
    with pytest.raises(SpecError, match="has 81 characters"):
        read_arguments({"name": "x" * 81})


@pytest.mark.parametrize(
    ("entry", "wish"),
    [
        ("data/My Set.v2", DataWish("my-set.v2", "data/My Set.v2")),
        ("/abs/x=y/d", DataWish("d", "/abs/x=y/d")),
        ("train=data/a=b", DataWish("train", "data/a=b")),
        ("hf://datasets/org/Repo-1", DataWish("repo-1", None, "hf://datasets/org/Repo-1")),
        ("c=hf://datasets/org/r@v1/a/b", DataWish("c", None, "hf://datasets/org/r@v1/a/b")),
        ("hf://datasets/org/r@v1/a/b/", DataWish("b", None, "hf://datasets/org/r@v1/a/b/")),
    ],
)  # fmt: skip
def test_G54_to_G57_a_dataset_is_named_as_given_or_after_its_source(entry, wish):
    assert read_arguments({"data": [entry]}).data == (wish,)


@pytest.mark.parametrize("entry", ["", "A B=x", "x=", "=x", "hf://models/a/b", "s3://b/k", "hf://datasets/a"])
def test_what_is_no_dataset_is_refused(entry):
    with pytest.raises(SpecError) as caught:
        read_arguments({"data": [entry]})
    assert caught.value.faults[0].key == "data"


def test_two_datasets_of_one_name_are_refused():
    with pytest.raises(SpecError, match="names `x` twice") as caught:
        read_arguments({"data": ["a/x", "b/x"]})
    assert caught.value.faults[0].code == "invalid_spec"


VALID = [yaml.safe_load(FULL), {}, {"command": ["python", "-m", "x"]}, {"deps": "auto"}, {"include": "a/b"}]
INVALID = [
    {"hours": 0},
    {"hours": "1"},
    {"hour": 1},
    {"vram": 1, "vram_gb": 1},
    {"script": "a.py", "command": "b"},
    {"data": [{"mount": "X", "path": "a"}]},
    {"data": [{"mount": "x"}]},
    {"deps": "x.yaml"},
    {"secrets": ["A-B"]},
    {"smoke": "yes"},
    {"version": 2},
    {"env": {"A-B": "x"}},
    {"max_attempts": 0},
]


@pytest.mark.parametrize("document", VALID)
def test_the_schema_for_editors_takes_what_is_taken(document):
    jsonschema.validate(document, gpu_yaml_schema())
    assert read_gpu_yaml(yaml.safe_dump(document).encode()) is not None


@pytest.mark.parametrize("document", INVALID, ids=str)
def test_the_schema_for_editors_refuses_what_is_refused(document):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, gpu_yaml_schema())
    with pytest.raises(SpecError):
        read_gpu_yaml(yaml.safe_dump(document).encode())


def test_the_schema_knows_every_key():
    assert set(gpu_yaml_schema()["properties"]) == set(FIELDS)


def fault_places(read, given):
    """Where the faults lie; none if it could be read."""
    try:
        assert isinstance(read(given), Wishes)
    except SpecError as error:
        return {fault.place.partition(":")[0] for fault in error.faults}
    return set()


@given(st.binary(max_size=100) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "replace")))
def test_whatever_the_file_holds_it_is_read_or_refused(content):
    assert fault_places(read_gpu_yaml, content) <= {"gpu.yaml"}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*FIELDS, "x"]), values, max_size=5))
def test_whatever_the_arguments_are_they_are_read_or_refused(arguments):
    assert fault_places(read_arguments, arguments) <= {"argument"}
