"""``recipe profile``: a complete Job Profile from names, judged before it is sent (E92, E97-E104)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.test_rerun import command
from support.contents import published_on
from support.profiles import ABI, DATASET_FILES, V2, recipe_files, runner_toml
from support.runners import repository
from support.server import ServerProcess
from trainshed.cli.exits import Exit
from trainshed.model.content import ContentKind
from trainshed.model.profile_draft import draft_profile, parameter_value
from trainshed.model.recipe import recipe_from_about

Run = Callable[..., subprocess.CompletedProcess[str]]
INPUTS = """
[inputs.data]
kind = "dataset"
description = "Words, one a line"
[inputs.base]
kind = "model"
[inputs.more]
kind = "dataset"
required = false
"""
GIVEN = ("--input", "data=team/words,split=train", "--input", "base=team/base", "--param", "steps=2")


@pytest.fixture(scope="module")
def run(module_server: ServerProcess) -> Run:
    published_on(module_server, ContentKind.RECIPES, "team/recipe", recipe_files(INPUTS))
    published_on(module_server, ContentKind.DATASETS, "team/words", DATASET_FILES, version="1.0")
    published_on(module_server, ContentKind.MODELS, "team/base", {"weights.bin": b"w"}, version="b1")
    published_on(module_server, ContentKind.PLUGINS, "team/plugin", {"plugin.py": b""}, version="p1")
    return command(module_server)


def digest(run: Run, noun: str, name: str) -> str:
    return str(json.loads(run(noun, "show", name, "--json").stdout)["manifest_sha256"])


def test_E98_E99_E103_a_profile_has_digests_and_defaults_filled_in_and_can_be_submitted(
    run: Run, tmp_path: Path
):
    repository(tmp_path / "runner", {"runner.toml": runner_toml(ABI), "main.sh": "true\n"})
    run("runner", "publish", str(tmp_path / "runner"), "--name", "team/trainer")
    done = run("recipe", "profile", "team/recipe", *GIVEN, "--param", "lr=0.1")
    recipe, data, base = (
        digest(run, *each)
        for each in (("recipe", "team/recipe"), ("dataset", "team/words"), ("model", "team/base"))
    )
    assert json.loads(done.stdout) == {
        "schema": V2,
        "recipe": {"uri": f"envloop://recipes/team/recipe@{recipe}", "manifest_sha256": recipe},
        "parameters": {"steps": 2, "lr": "0.1", "optimizer": {"name": "adam"}},
        "inputs": {
            "data": {
                "uri": "envloop://datasets/team/words@1.0",
                "manifest_sha256": data,
                "split": "train",
            },
            "base": {"uri": "envloop://models/team/base@b1", "manifest_sha256": base},
        },
        "plugins": [],
    }
    assert done.stderr == ""
    place = tmp_path / "profile.json"
    place.write_text(done.stdout)
    submit = ("job", "submit", "--runner", "team/trainer@main", "--profile-file", str(place))
    assert json.loads(run(*submit, "--gpu-type", "H100", "--gpu", "1", "--json").stdout)["job_id"]


def test_all_that_has_to_be_given_is_named_in_one_refusal_or_left_as_placeholders(run: Run):
    done = run("recipe", "profile", "team/recipe", status=Exit.USAGE)
    assert [line for line in done.stderr.splitlines() if line.startswith("  - ")] == [
        "  - input `base`, a Model: --input base=NAMESPACE/NAME[@VERSION]",
        "  - input `data`, a Dataset: Words, one a line: --input data=NAMESPACE/NAME[@VERSION]",
        "  - parameter `steps`, integer, minimum 1: --param steps=VALUE",
    ]
    done = run("recipe", "profile", "team/recipe", "--template", "--input", "base=team/base@b1")
    document = json.loads(done.stdout)
    assert document["parameters"]["steps"] == "<integer, minimum 1>"
    assert document["inputs"]["data"] == {
        "uri": "envloop://datasets/NAMESPACE/NAME@VERSION",
        "manifest_sha256": "<manifest_sha256 of that Dataset>",
    }
    assert document["inputs"]["base"]["uri"] == "envloop://models/team/base@b1"
    assert "more" not in document["inputs"]
    assert "--input data=" in done.stderr
    assert "--param steps=" in done.stderr


def test_E97_E101_E104_all_that_is_wrong_is_named_before_anything_is_sent(run: Run):
    wrong = (
        "--input data=team/words,split=dev",
        "--input base=envloop://datasets/team/words@1.0",
        "--input other=team/words",
        "--param steps=0.5",
        "--param rate=1",
    )
    given = [word for each in wrong for word in each.split(" ", 1)]
    done = run("recipe", "profile", "team/recipe", *given, status=Exit.USAGE)
    for said in (
        "input `data` has no split `dev`; config `default` has test, train",
        "input `base` is a Dataset, and the Recipe takes a Model here",
        "input `other` is none of the Recipe's; its inputs: base, data, more",
        "parameters.steps",
        "'rate' unexpected",
    ):
        assert said in done.stderr
    twice = run("recipe", "profile", "team/recipe", *GIVEN, "--param", "steps=3", status=Exit.USAGE)
    assert "`steps` is given twice" in twice.stderr
    unknown = run("recipe", "profile", "team/recip", status=Exit.NOT_FOUND)
    assert "did you mean team/recipe?" in unknown.stderr
    local = run("recipe", "profile", "team/recipe", *GIVEN, "--param", "lr=/home/ada/x", status=Exit.USAGE)
    assert "parameters.lr" in local.stderr


def test_what_is_misspelt_or_not_there_hides_nothing_else_that_is_wrong(run: Run):
    wrong = (
        "--input data=team/wrds,splt=x",
        "--input base",
        "--plugin team/nope",
        "--param stps=2",
        "--param lr=/home/ada/x",
        "--param lr=1",
    )
    given = [word for each in wrong for word in each.split(" ", 1)]
    done = run("recipe", "profile", "team/recipe", *given, status=Exit.USAGE)
    told = [line for line in done.stderr.splitlines() if line.startswith("  - ")]
    for said in (
        "input `base`, a Model",
        "parameter `steps`",
        "--input base: write NAME=VALUE",
        "--param: `lr` is given twice",
        "--input data: `splt` is not known; did you mean `split`?",
        "--input data: there is no readable Dataset `team/wrds`; did you mean team/words?",
        "--plugin: there is no readable Plugin `team/nope`",
        "'stps' unexpected",
        "parameters.lr",
    ):
        [line] = [line for line in told if said in line]
        told.remove(line)
    assert told == []
    alone = run("recipe", "profile", "team/recipe", *GIVEN, "--plugin", "team/plugi", status=Exit.NOT_FOUND)
    assert "did you mean team/plugin?" in alone.stderr


def test_E94_a_plugin_is_named_by_its_digest_and_lacking_approval_is_told(run: Run):
    done = run("recipe", "profile", "team/recipe", *GIVEN, "--plugin", "team/plugin@p1")
    [plugin] = json.loads(done.stdout)["plugins"]
    assert plugin["uri"] == f"envloop://plugins/team/plugin@{plugin['manifest_sha256']}"
    assert f"plugin approve team/plugin@{plugin['manifest_sha256']}" in done.stderr


SCHEMA = {
    "type": "object",
    "$defs": {"count": {"type": "integer"}},
    "properties": {
        "text": {"type": "string"},
        "count": {"$ref": "#/$defs/count"},
        "many": {"type": "array"},
        "either": {"type": ["string", "integer"]},
        "yes": {"type": "boolean"},
    },
}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("text", "7", "7"),
        ("text", "0.1", "0.1"),
        ("count", "7", 7),
        ("count", "seven", "seven"),
        ("many", "[1, 2]", [1, 2]),
        ("either", "7", 7),
        ("either", '"7"', '"7"'),
        ("yes", "true", True),
        ("unknown", "0.5", "0.5"),
        ("unknown", "words", "words"),
    ],
)
def test_A17_a_parameter_given_as_text_is_what_its_schema_takes(name, text, value):
    assert parameter_value(SCHEMA, name, text) == value


def test_a_recipe_without_inputs_takes_whatever_is_named():
    recipe = recipe_from_about({"abi": ABI, "entrypoint": "a:b"})
    draft = draft_profile(
        {"uri": "envloop://recipes/a/b@" + "0" * 64, "manifest_sha256": "0" * 64}, recipe, {}, [], {}
    )
    assert (draft.missing, draft.faults) == ([], [])
