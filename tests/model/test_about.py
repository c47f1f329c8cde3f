"""What a publisher says of a content, and which files are which split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.about import AboutCheck, about_file, check_about, read_about
from trainshed.model.content import ContentKind
from trainshed.model.errors import Refusal
from trainshed.model.globs import OutputPatterns
from trainshed.model.manifests import tree_faults
from trainshed.model.splits import beside_the_data, infer_configs

DATASETS, MODELS, RECIPES, PLUGINS = ContentKind


def about(kind, paths, text: str | bytes | None = None):
    content = text.encode() if isinstance(text, str) else text
    return read_about(kind, paths, {about_file(kind): content}.get)


def faults(kind, paths, text) -> list[tuple[str, str]]:
    with pytest.raises(Refusal) as caught:
        about(kind, paths, text)
    assert caught.value.code == "INVALID_CONTENT"
    return [(fault.path, fault.message) for fault in caught.value.faults]


def members(paths: list[str], splits: dict[str, list[str]]) -> dict[str, list[str]]:
    return {split: [p for p in paths if OutputPatterns(globs).match(p)] for split, globs in splits.items()}


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["train.csv", "test.csv"], {"train": ["train.csv"], "test": ["test.csv"]}),
        (["train/a.csv", "dev/b.csv"], {"train": ["train/a.csv"], "validation": ["dev/b.csv"]}),
        (
            [
                "data/train-00000-of-00002.parquet",
                "data/train-00001-of-00002.parquet",
                "data/validation-0.parquet",
            ],
            {
                "train": ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"],
                "validation": ["data/validation-0.parquet"],
            },
        ),
        (["my-train-file.json", "my_eval.json"], {"train": ["my-train-file.json"], "test": ["my_eval.json"]}),
        # A folder's name goes before the names of files.
        (["train/test.csv", "other.csv"], {"train": ["train/test.csv"]}),
        # Words only where they are set off, and in lower case.
        (["trained.csv", "latest.csv", "TEST.csv"], {"train": ["trained.csv", "latest.csv", "TEST.csv"]}),
        (["a.txt", "b/c.txt", "README.md"], {"train": ["a.txt", "b/c.txt"]}),
        (["README.md"], {"train": ["README.md"]}),
        (["x[1]*.txt", "LICENSE"], {"train": ["x[1]*.txt"]}),
    ],
)
def test_splits_are_those_that_names_of_folders_and_files_tell(paths, expected):
    (config, splits), *others = infer_configs(paths).items()
    assert (config, others) == ("default", [])
    assert members(paths, splits) == expected


def test_a_hundred_files_beside_a_readme_are_one_split_by_their_endings():
    paths = ["README.md", *(f"{number}.jsonl" for number in range(100)), *(f"d{n}/x" for n in range(80))]
    splits = infer_configs(paths)["default"]
    assert splits == {"train": ["*.jsonl", "*/**"]}


names = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\"), min_size=1, max_size=8
)
trees = st.lists(
    st.lists(names | st.sampled_from(["train", "test-1", "dev", "README.md"]), min_size=1, max_size=3).map(
        "/".join
    ),
    min_size=1,
    max_size=10,
    unique=True,
)


@given(trees)
def test_every_inferred_split_has_files_and_the_server_agrees(paths):
    if tree_faults(paths):
        return
    said = about(DATASETS, paths)
    assert check_about(DATASETS, said) == []
    assert all(members(paths, said["configs"]["default"]).values())


def test_a_dataset_without_a_file_of_its_own_is_data_with_inferred_splits():
    assert about(DATASETS, ["train.csv"]) == {
        "type": "data",
        "configs": {"default": {"train": ["**/train[-._ 0-9]*"]}},
    }


def test_dataset_toml_says_what_the_dataset_is():
    text = """
        [dataset]
        description = "Words\\nand more"
        authors = ["Ada", "Bob"]
        license = "mit"
        type = "trajectory"
        [configs.english.splits]
        train = ["en/*.txt", "more/en/**"]
        [configs.german.splits]
        test = ["de/**"]
    """
    said = about(DATASETS, ["dataset.toml", "en/a.txt", "de/b.txt"], text)
    assert said == {
        "description": "Words\nand more",
        "authors": ["Ada", "Bob"],
        "license": "mit",
        "type": "trajectory",
        "configs": {"english": {"train": ["en/*.txt", "more/en/**"]}, "german": {"test": ["de/**"]}},
    }


def test_every_fault_of_dataset_toml_is_told_at_once():
    text = """
        [dataset]
        autors = ["Ada"]
        type = "images"
        license = 3
        [configs."no name".splits]
        train = ["/abs"]
        [configs.b.splits]
        train = []
        test = [1]
        [configs.c]
    """
    found = faults(DATASETS, ["a"], text)
    told = "\n".join(message for _, message in found)
    assert "configs.c" in told
    text = text.replace("[configs.c]", "")
    told = "\n".join(message for _, message in faults(DATASETS, ["a"], text))
    for said in (
        "did you mean `authors`?",
        "trajectory, not 'images'",
        "`license`",
        "no name of a config",
        "relative",
    ):
        assert said in told
    assert "configs.b.train" in told
    assert "configs.b.test[0]" in told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[configs.a.splits]\ntrain = ['train/*']\ntest = ['*.csv']",
            "no file is in split `train` of config `a`",
        ),
        ("[datset]", "did you mean `dataset`?"),
        ("dataset = 1", "must be a table"),
        ("[dataset.configs.a.splits]\ntrain=['**']", "belongs to the top"),
        ("[configs]", "1 to 1000 configs"),
        ("configs = 1", "must hold tables"),
        ("[", "not TOML"),
        (b"\xff", "not UTF-8"),
        (b"#" * 70_000, "at most 65536"),
        ("[dataset]\ndescription = ' '", "must be text"),
    ],
)
def test_a_dataset_toml_that_cannot_be_is_refused(text, said):
    assert any(said in message for _, message in faults(DATASETS, ["x.csv"], text))


def test_models_and_plugins_may_be_described():
    text = '[model]\nbase_model = "org/base"\nlicense = "mit"'
    assert about(MODELS, ["w.safetensors"], text) == {"base_model": "org/base", "license": "mit"}
    assert about(MODELS, ["w.safetensors"]) == {}
    assert about(PLUGINS, ["p.py"], '[plugin]\ndescription = "Filters"') == {"description": "Filters"}
    assert "known here" in faults(PLUGINS, ["p.py"], '[plugin]\nzzz = "x"')[0][1]
    assert check_about(MODELS, {"configs": {}})
    assert check_about(MODELS, {"base_model": "x\0"})


def test_E100_a_recipe_needs_its_definition_and_its_entrypoint():
    text = 'abi = "envloop.train-recipe/1"\nentrypoint = "pev.train:main"\n'
    said = about(RECIPES, ["recipe.toml", "pev/train.py"], text)
    assert said["entrypoint"] == "pev.train:main"
    assert "needs a `recipe.toml`" in faults(RECIPES, ["pev/train.py"], None)[0][1]
    assert "pev/train.py" in faults(RECIPES, ["recipe.toml"], text)[0][1]
    check = AboutCheck(RECIPES, said)
    check.see("recipe.toml")
    assert [fault.path for fault in check.finish()] == ["entrypoint"]
    check = AboutCheck(RECIPES, said)
    check.see("pev/train/__init__.py")
    assert check.finish() == []
    assert check_about(RECIPES, {"abi": "other"})


def test_a_split_may_meet_its_file_in_any_folder():
    said = {"type": "data", "configs": {"a": {"x": ["deep/er/**/f?.txt"], "y": ["*/er/[g]1"], "z": ["f"]}}}
    check = AboutCheck(DATASETS, said)
    for path in ("deep/er/f1.txt", "deep/eg/g1", "other"):
        check.see(path)
    assert [fault.path for fault in check.finish()] == ["configs.a.y", "configs.a.z"]
    check = AboutCheck(DATASETS, said)
    for path in ("deep/er/a/b/f1.txt", "any/er/g1", "f"):
        check.see(path)
    assert check.finish() == []


def test_only_files_at_the_top_are_beside_the_data():
    assert all(map(beside_the_data, ["README", "readme.md", "LICENSE.txt", ".gitattributes", "dataset.toml"]))
    assert not any(map(beside_the_data, ["sub/README.md", "readmes.csv", "data.toml"]))


def test_every_fault_of_a_recipe_is_told_at_once_and_names_its_file():
    text = """
abi = "envloop.train-recipe/1"
entrypoint = "pev.train:main"
[inputs.data]
kind = "datset"
[parameters]
type = "object"
[parameters.properties]
lr = {type = "number", default = 0.5}
steps = {type = "integer", minimum = 1, default = 0}
"""
    found = dict(faults(RECIPES, ["recipe.toml"], text))
    assert found.keys() == {
        "inputs.data.kind",
        "parameters.properties.lr.type",
        "parameters.properties.lr.default",
        "parameters.properties.steps.default",
        "entrypoint",
    }
    assert "recipe.toml" in found["inputs.data.kind"]
    with pytest.raises(Refusal):
        about(RECIPES, ["recipe.toml", "pev/train.py"], text)
    # The server, which reads the manifest, finds the missing file beside other faults, too.
    check = AboutCheck(RECIPES, {"abi": "x", "entrypoint": "pev.train:main"})
    check.see("recipe.toml")
    assert {fault.path for fault in check.finish()} == {"abi", "entrypoint"}


def test_a_pattern_that_matches_nothing_is_told_beside_other_mistakes():
    text = '[dataset]\ntype = "dta"\nlicens = "x"\n[configs.a.splits]\ntrain = ["none/*"]\ntest = ["b/**"]\n'
    found = dict(faults(DATASETS, ["dataset.toml", "b/c"], text))
    assert {"type", "configs.a.train"} <= found.keys()
    assert "configs.a.test" not in found
    assert any("licens" in path for path in found)
    assert all(message.startswith("dataset.toml: ") for message in found.values())
