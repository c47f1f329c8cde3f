"""What ``runner.toml`` may say, and what every mistake in it is answered with."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.checkpoints import Best, CheckpointRules, Mode
from trainshed.model.runner import (
    ENTRYPOINTS,
    DefinitionError,
    definition_file,
    definition_from_document,
    param_variable,
    parse_definition,
)
from trainshed.model.runner_tree import (
    MAX_FILES,
    RunnerFile,
    case_collisions,
    path_fault,
    snapshot_sha256,
    tree_faults,
    tree_manifest,
)

FULL = """
schema_version = "envhub.runner/v1"
image = "registry.example:5000/team/train:1.2"
abi = ["envloop.train-recipe/1", "envloop.job-profile/v1"]
[recipe]
entrypoint = "pev.train:main"
[runner]
name = "envloop/bash"
[execution]
entrypoint = "main.py"
outputs = ["outputs/**", "model.bin"]
timeout_seconds = 3600
[resources]
gpu_type = "H100"
gpus = 2
cpus = 8
memory_mb = 65536
storage_mb = 102400
shm_mb = 16384
[params.Run_Command]
default = "echo 'hello'"
[params.seed]
[env]
OMP_NUM_THREADS = "1"
"""


def faults_of(text: str) -> dict[str, str]:
    with pytest.raises(DefinitionError) as caught:
        parse_definition(text.encode())
    assert {fault.code for fault in caught.value.faults} == {"INVALID_RUNNER"}
    return {fault.path: fault.message for fault in caught.value.faults}


def test_only_the_entrypoint_is_required():
    definition = parse_definition(b'[execution]\nentrypoint = "main.sh"\n')
    assert definition.entrypoint == "main.sh"
    assert definition.outputs == ()
    assert definition.timeout_seconds is None
    assert definition.resources == {}
    assert definition.params == {}
    assert definition.image is definition.recipe_entrypoint is definition.name is None
    assert not definition.takes_command


def test_every_key_of_a_full_definition_is_read():
    definition = parse_definition(FULL.encode())
    assert definition.entrypoint == "main.py"
    assert definition.outputs == ("outputs/**", "model.bin")
    assert definition.timeout_seconds == 3600
    assert definition.resources == {
        "gpu_type": "H100",
        "gpus": 2,
        "cpus": 8,
        "memory_mb": 65536,
        "storage_mb": 102400,
        "shm_mb": 16384,
    }
    assert definition.params == {"Run_Command": "echo 'hello'", "seed": None}
    assert definition.env == {"OMP_NUM_THREADS": "1"}
    assert definition.image == "registry.example:5000/team/train:1.2"
    assert definition.abis == ("envloop.train-recipe/1", "envloop.job-profile/v1")
    assert definition.recipe_entrypoint == "pev.train:main"
    assert definition.name == "envloop/bash"
    assert definition.schema_version == "envhub.runner/v1"
    assert definition.patterns.match("outputs/a/b")


def test_E91_one_abi_may_be_written_without_a_list():
    definition = parse_definition(b'abi = "envloop.job-profile/v1"\n[execution]\nentrypoint = "main.sh"\n')
    assert definition.abis == ("envloop.job-profile/v1",)


@pytest.mark.parametrize(
    ("lines", "path", "word"),
    [
        ("abi = 1", "abi", "text in quotes"),
        ('abi = ["a", "a"]', "abi[1]", "twice"),
        ('abi = ["a", 1]', "abi[1]", "text in quotes"),
        (f"abi = {[str(n) for n in range(9)]}", "abi", "at most 8"),
        ('recipe = {entrypoint = "main.py"}', "recipe.entrypoint", "module:function"),
        ('recipe = {entry = "a:b"}', "recipe.entry", "did you mean `entrypoint`?"),
        ("recipe = 1", "recipe", "table"),
    ],
)
def test_E100_mistakes_in_what_a_runner_can_run_are_named(lines, path, word):
    faults = faults_of(f'{lines}\n[execution]\nentrypoint = "main.sh"\n')
    assert list(faults) == [path]
    assert word in faults[path]


def test_a_key_of_too_many_parts_is_refused_before_it_costs_time():
    assert "64 parts" in faults_of("execution" + ".a" * 30_000 + " = 1")[""]


def test_a_definition_survives_its_way_through_json():
    definition = parse_definition(FULL.encode())
    stored = json.loads(json.dumps(dict(definition.raw)))
    assert definition_from_document(stored) == definition


def test_E47_parameter_names_compare_without_case_and_values_replace_defaults():
    definition = parse_definition(FULL.encode())
    assert definition.takes_command
    assert definition.declared_param("RUN_COMMAND") == "Run_Command"
    assert definition.variables({"run_command": "true"}) == {
        "OMP_NUM_THREADS": "1",
        "TRAINSHED_PARAM_RUN_COMMAND": "true",
    }
    with pytest.raises(KeyError, match="epochs"):
        definition.variables({"epochs": "1"})


def test_E54_a_parameter_without_value_and_default_sets_no_variable():
    definition = parse_definition(b'[execution]\nentrypoint = "main.sh"\n[params.run_command]\n')
    assert definition.variables() == {}


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_E50_a_command_reaches_its_variable_unchanged(command):
    definition = parse_definition(b'[execution]\nentrypoint = "main.sh"\n[params.run_command]\n')
    assert definition.variables({"run_command": command})[param_variable("run_command")] == command


def test_all_faults_are_answered_at_once():
    faults = faults_of(
        """
        imgae = "a"
        outputs = ["x"]
        [execution]
        entrypoint = "start.sh"
        outputs = ["ok/**", "../up", 3]
        timeout_seconds = 0
        image = "a"
        [resources]
        gpu = 1
        gpus = true
        cpus = 1.5
        memory_mb = "64Gi"
        gpu_type = 7
        [params]
        flat = "x"
        [params.run-command]
        [params.Lr]
        [params.LR]
        default = 3
        [env]
        TRAINSHED_JOB_ID = "x"
        CUDA_VISIBLE_DEVICES = "0"
        "A B" = "1"
        """
    )
    assert "did you mean `image`" in faults["imgae"]
    assert "execution.outputs" in faults["outputs"]
    assert '"main.sh" or "main.py"' in faults["execution.entrypoint"]
    assert "`..`" in faults["execution.outputs[1]"]
    assert "text in quotes" in faults["execution.outputs[2]"]
    assert "from 1" in faults["execution.timeout_seconds"]
    assert "above the first [table]" in faults["execution.image"]
    assert "did you mean `gpus`" in faults["resources.gpu"]
    assert {"resources.gpus", "resources.cpus", "resources.memory_mb", "resources.gpu_type"} <= faults.keys()
    assert "[params.flat]" in faults["params.flat"]
    assert "params.run-command" in faults
    assert "without case" in faults["params.LR"]
    assert "params.LR.default" in faults
    assert {"env.TRAINSHED_JOB_ID", "env.CUDA_VISIBLE_DEVICES", "env.A B"} <= faults.keys()


@pytest.mark.parametrize(
    ("text", "path", "word"),
    [
        ("", "execution.entrypoint", "missing"),
        ("execution = 3", "execution", "table"),
        ('[execution]\nentrypoint = "sub/main.sh"', "execution.entrypoint", "main.sh"),
        ('[execution]\nentrypoint = "main.sh"\noutputs = "x"', "execution.outputs", "list"),
        ('image = "UPPER"\n[execution]\nentrypoint = "main.sh"', "image", "lower-case"),
        ('[runner]\nname = "bash"\n[execution]\nentrypoint = "main.sh"', "runner.name", "namespace/name"),
        ('[execution]\nentrypoint = "main.sh"\n[env]\nA = "\\u0000"', "env.A", "NUL"),
        ('[execution]\nentrypoint = "main.sh"\n[resources]\ngpus = 0', "resources.gpus", "from 1"),
        ('[execution]\nentrypoint = "main.sh"\n[resources]\ngpus = 2024-01-01', "resources.gpus", "a date"),
        ("[execution", "", "not TOML"),
        ("a = " + "[" * 5000, "", "not TOML"),
        ("#" * 70_000, "", "at most 65536"),
    ],
)
def test_a_mistake_is_named_with_its_place(text, path, word):
    assert word in faults_of(text)[path]


def test_a_definition_that_is_not_utf8_is_refused():
    with pytest.raises(DefinitionError, match="UTF-8"):
        parse_definition(b'[execution]\nentrypoint = "main.sh\xff"')


def test_a_param_default_of_65536_bytes_is_accepted_and_one_more_refused():
    text = '[execution]\nentrypoint = "main.sh"\n[params.p]\ndefault = "{}"'
    with pytest.raises(DefinitionError, match="at most 65536"):
        definition_from_document(
            {
                "execution": {"entrypoint": "main.sh"},
                "params": {"p": {"default": "é" * 32769}},
            }
        )
    assert parse_definition(text.format("x" * 60000).encode()).params["p"] == "x" * 60000


@given(st.binary(max_size=300))
def test_any_bytes_give_a_definition_or_a_definition_error(content):
    entrypoint, faults = None, ()
    try:
        entrypoint = parse_definition(content).entrypoint
    except DefinitionError as error:
        faults = error.faults
    assert (entrypoint in ENTRYPOINTS) != bool(faults)


def test_the_older_name_is_accepted_but_never_both():
    assert definition_file(["task.toml", "main.sh"]) == "task.toml"
    assert definition_file(["runner.toml", "main.sh"]) == "runner.toml"
    with pytest.raises(DefinitionError, match="both"):
        definition_file(["task.toml", "runner.toml"])
    with pytest.raises(DefinitionError, match=r"`bash/runner\.toml`"):
        definition_file(["bash/runner.toml", "README"])


def file(path: str, mode: str = "100644", size: int = 1) -> RunnerFile:
    return RunnerFile(path, mode, size, "0" * 64)


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("../a", "leaves"),
        ("a/../b", "leaves"),
        ("/a", "absolute"),
        ("a//b", "empty"),
        ("", "empty"),
        ("./a", "empty or `.`"),
        ("a\\b", "backslash"),
        ("a\tb", "control"),
        ("a\x7f", "control"),
        ("a/.GIT/config", "`.git`"),
        ("\udcff", "UTF-8"),
        ("x" * 256, "255"),
        ("x/" * 600 + "y", "1024"),
    ],
)
def test_a_path_that_escapes_or_cannot_be_written_is_refused(path, word):
    assert word in path_fault(path)


def test_ordinary_paths_are_fine():
    assert [path_fault(p) for p in ("main.sh", "a b/ü.txt", ".gitignore", "a/..b")] == [None] * 4


def test_links_submodules_and_oversized_trees_are_refused():
    faults = tree_faults(
        [file("l", "120000"), file("s", "160000"), file("t", "100664"), file("big", size=65 << 20)]
    )
    text = " ".join(fault.message for fault in faults)
    assert "symbolic link" in text
    assert "submodule" in text
    assert "100664" in text
    assert "67108864" in text
    many = [file(f"f{n}") for n in range(MAX_FILES + 1)]
    assert "10001 files" in tree_faults(many)[0].message
    assert not tree_faults(many[1:])


def test_a_file_that_is_also_a_directory_is_refused():
    assert "both a file and a directory" in tree_faults([file("a"), file("a/b")])[0].message
    assert "twice" in tree_faults([file("a"), file("a")])[0].message


def test_names_that_differ_only_in_case_are_allowed_and_named():
    files = [file("Data/a"), file("data/b"), file("README"), file("readme")]
    assert not tree_faults(files)
    assert case_collisions(f.path for f in files) == [("Data", "data"), ("README", "readme")]


def test_E8_the_manifest_does_not_depend_on_the_order_of_the_files():
    files = [file("b"), file("a/ü"), file("a.b")]
    assert tree_manifest(files) == tree_manifest(reversed(files))
    assert snapshot_sha256(files) != snapshot_sha256(files[1:])
    assert json.loads(tree_manifest(files))["schema"] == "trainshed.runner-tree/1"


# [checkpoints]

ENTRY = '[execution]\nentrypoint = "main.sh"\n'


def test_checkpoints_are_kept_and_not_resumed_from_unless_the_runner_says_so():
    rules = parse_definition(ENTRY.encode()).checkpoints
    assert rules == CheckpointRules(resume=False, keep_last=None, best=None)


def test_the_rules_for_checkpoints_are_read_and_survive_the_stored_document():
    text = ENTRY + (
        "[checkpoints]\nresume = true\nkeep_last = 3\n"
        'best = {metric = "eval/loss@1", mode = "max", keep = 2}\n'
    )
    definition = parse_definition(text.encode())
    expected = CheckpointRules(resume=True, keep_last=3, best=Best("eval/loss@1", Mode.MAX, 2))
    assert definition.checkpoints == expected
    again = definition_from_document(json.loads(json.dumps(dict(definition.raw))))
    assert again.checkpoints == expected


@pytest.mark.parametrize(
    ("lines", "path", "said"),
    [
        ('resume = "yes"', "checkpoints.resume", "true or false, not `yes`"),
        ("keep_last = 0", "checkpoints.keep_last", "from 1 to"),
        ("keep_last = true", "checkpoints.keep_last", "positive integer"),
        ("keep_first = 1", "checkpoints.keep_first", "keep_last"),
        ('best = "eval_loss"', "checkpoints.best", "must be a table"),
        ('best = {mode = "min"}', "checkpoints.best.metric", "is missing"),
        ('best = {metric = "loss"}', "checkpoints.best.mode", "is missing"),
        ('best = {metric = "", mode = "min"}', "checkpoints.best.metric", "1 to 128"),
        ('best = {metric = "loss", mode = "lowest"}', "checkpoints.best.mode", '"min" or "max"'),
        ('best = {metric = "loss", mode = "min", keep = 0}', "checkpoints.best.keep", "from 1 to"),
        ('best = {metric = "loss", mode = "min", last = 1}', "checkpoints.best.last", "known here"),
    ],
)
def test_every_mistake_in_the_rules_for_checkpoints_is_named(lines, path, said):
    found = faults_of(f"{ENTRY}[checkpoints]\n{lines}\n")
    assert said in found[path]
