"""The program as a whole: help, names, completion, one output for people and programs."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from trainshed.cli import main as front
from trainshed.cli.completion import SHELLS
from trainshed.cli.program import COMMANDS, root
from trainshed.cli.reference import commands, with_reference
from trainshed.model import submission
from trainshed.model.resources import simulated_share
from trainshed.policy.effective import ServerPolicy

DOCS = Path(__file__).parents[2] / "docs"
PRINTS_NO_DATA = {"serve", "completion", "train shell", "gpu mcp", "gpu daemon run"}
HEAVY = {
    "httpx2",
    "pydantic",
    "rich",
    "fastapi",
    "sqlalchemy",
    "psutil",
    "trainshed.server",
    "trainshed.store",
    "yaml",
    "http.server",
}


def loaded_by(*arguments):
    run = f"from trainshed.cli.main import main; main({list(arguments)!r})"
    code = f"import sys; {run}; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["job", "--help"],
        ["job", "submit", "--help"],
        ["train", "create", "--help"],
        ["--version"],
    ],
)
def test_help_imports_nothing_heavy(arguments):
    assert not loaded_by(*arguments) & HEAVY


@pytest.mark.parametrize("asked", ["--help", "-h"])
def test_the_help_of_the_program_is_written_without_loading_it(asked):
    assert not {name for name in loaded_by(asked) if name.startswith(("click", "trainshed.cli.program"))}


@pytest.mark.parametrize("program", ["el", "trainshed"])
@pytest.mark.parametrize("columns", [60, 80])
def test_the_help_that_is_kept_as_text_is_the_one_of_the_program(program, columns):
    shown = {}
    for module, name in (("main", "main"), ("program", "run")):
        code = f"import sys; sys.argv[0] = {program!r}; from trainshed.cli.{module} import {name} as run"
        done = subprocess.run(
            [sys.executable, "-c", f"{code}; sys.exit(run(['--help']))"],
            env={**os.environ, "COLUMNS": str(columns)},
            capture_output=True,
            text=True,
            check=True,
        )
        shown[module] = done.stdout
    assert shown["main"] == shown["program"]
    assert (front.HELP.replace("{program}", program) == shown["main"]) == (columns == front.COLUMNS)


def test_importing_the_package_imports_nothing_and_offers_the_client():
    check = "assert not any(name.startswith('trainshed.') for name in sys.modules)"
    code = f"import sys, trainshed; {check}; trainshed.Client"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_short_help_of_the_table_is_that_of_the_command(name):
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert command.help.split("\n\n")[0].replace("\n", " ") == COMMANDS[name][1]


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=[name for name, _ in commands()])
def test_every_command_that_prints_data_takes_json_and_every_option_has_help(name, command):
    options = {option for parameter in command.params for option in parameter.opts}
    assert ("--json" in options) != (name in PRINTS_NO_DATA)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.name}"


def test_the_reference_in_the_documentation_is_that_of_the_program():
    text = (DOCS / "cli.md").read_text()
    assert text == with_reference(text), "run `python -m trainshed.cli.reference docs/cli.md`"


def test_what_the_documentation_names_exists():
    text = (DOCS / "cli.md").read_text()
    known = {" ".join(name.split(" ")[:2]) for name, _ in commands()}
    groups = {name.split(" ")[0] for name in known if " " in name}
    for first, second in re.findall(r"`([a-z]+) ([a-z]+)[ `]", text):
        if first in groups:
            assert f"{first} {second}" in known, f"{first} {second}"


@pytest.mark.parametrize("program", ["el", "trainshed"])
def test_el_and_trainshed_are_one_program_that_knows_its_name(program):
    path = Path(sys.executable).with_name(program)
    assert f"Usage: {program} " in subprocess.check_output([path, "--help"], text=True)
    assert subprocess.check_output([path, "--version"], text=True).startswith(f"{program} ")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("program", ["el", "trainshed"])
def test_completion_scripts_complete_the_name_they_were_made_with(run, shell, program):
    ran = run("completion", shell, program=program)
    assert f"_{program.upper()}_COMPLETE" in ran.out
    assert program in ran.err


def test_completion_answers_with_commands_and_options():
    path = Path(sys.executable).with_name("el")
    environment = {
        **os.environ,
        "_EL_COMPLETE": "bash_complete",
        "COMP_WORDS": "el job sub",
        "COMP_CWORD": "2",
    }
    assert "submit" in subprocess.check_output([path], text=True, env=environment)


def test_the_modules_of_commands_import_no_server_room_at_their_top():
    """Only serve, demo and doctor may use server rooms, and only when they run."""
    folder = Path(importlib.import_module("trainshed.cli").__file__).parent
    rooms = ("server", "store", "control", "engines", "content", "policy")
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text())
        found = {
            (node.module or "")
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith(tuple(f"trainshed.{r}" for r in rooms))
        }
        assert not found or path.stem in {"serve", "demo", "doctor"}, path.name
        top = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
        assert not found & top, path.name


def request_fields():
    """Field -> option column of the table of request fields."""
    table = (DOCS / "requests.md").read_text().split("<!-- begin request fields -->")[1].split("<!-- end")[0]
    rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.strip().splitlines()[2:]
    ]
    return {row[0].strip("`"): row for row in rows}


def test_the_table_of_request_fields_lists_every_key_that_a_request_may_hold():
    expected = {
        *submission.ROOT_KEYS,
        *(f"trials[].{key}" for key in submission.TRIAL_KEYS),
        *(f"spec.{key}" for key in (*submission.SPEC_KEYS, "resources")),
        *(f"spec.resources.{key}" for key in submission.RESOURCE_KEYS),
    }
    assert set(request_fields()) == expected


def test_the_table_of_request_fields_names_every_option_and_the_limits_of_the_code():
    options = {
        option for each in root.get_command(None, "job").commands["submit"].params for option in each.opts
    }
    named = {option for row in request_fields().values() for option in re.findall(r"`(--[a-z-]+)`", row[-1])}
    not_of_the_request = {"--spec", "--wait", "--follow", "--wait-timeout", "--quiet", "-q", "--json"}
    assert named == options - not_of_the_request
    rows = {field: " ".join(row) for field, row in request_fields().items()}
    policy = ServerPolicy()
    for field, figure in (
        ("trials", submission.MAX_TRIALS),
        ("request_id", submission.MAX_REQUEST_ID_CHARS),
        ("trials[].name", submission.MAX_NAME_CHARS),
        ("spec.command", submission.MAX_COMMAND_BYTES),
        ("spec.tags", submission.MAX_TAGS),
        ("spec.tags", submission.MAX_TAG_VALUE_CHARS),
        ("spec.tags", submission.TAG_KEY.pattern),
        ("spec.timeout_seconds", policy.timeout_seconds),
        ("spec.timeout_seconds", f"{policy.max_timeout_seconds // 86400} days"),
        *(
            (f"spec.resources.{key}", getattr(policy, key))
            for key in ("cpus", "memory_mb", "storage_mb", "shm_mb")
        ),
    ):
        assert str(figure) in rows[field], field


def test_the_example_of_a_request_is_one():
    example = (DOCS / "requests.md").read_text().split("```json\n")[1].split("```")[0]
    assert submission.parse_submission(json.loads(example)).trials[0].name == "small"


def test_what_simulated_gpus_bring_along_is_told_as_it_is():
    share = simulated_share(1)
    told = (
        f"{share.cpus} CPU cores",
        f"{share.memory_mb // 1024} GiB of memory",
        f"{share.storage_mb // 1024} GiB of disk",
        f"{share.shm_mb // 1024} GiB of shared memory",
    )
    for place in (DOCS / "getting-started.md", DOCS / "scheduling.md", DOCS / "cli.md"):
        text = " ".join(place.read_text().split())
        assert all(words in text for words in told), place.name


def documented_commands():
    """Every command line of our program in code blocks of the README and the documentation."""
    for path in (DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))):
        text = path.read_text().replace("\\\n", " ")
        for line in re.findall(r"^(?: {4})?((?:trainshed|el) .+)$", text, re.MULTILINE):
            yield pytest.param(line, id=f"{path.name}: {line[:50]}")


@pytest.mark.parametrize("line", list(documented_commands()))
def test_every_documented_command_line_is_understood(line):
    _, *words = shlex.split(re.split(r" [<>|] ", line)[0], comments=True)
    command, context = root, click.Context(root, info_name="trainshed")
    while isinstance(command, click.Group):
        values, words, _ = command.make_parser(context).parse_args(words)
        assert words, f"no command in `{line}`"
        del values
        name, *words = words
        command = command.get_command(context, name)
        assert command is not None, f"no command `{name}`"
        context = click.Context(command, parent=context, info_name=name)
    command.make_parser(context).parse_args(words)


def test_every_link_in_the_readme_and_the_documentation_leads_somewhere():
    for path in (DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
