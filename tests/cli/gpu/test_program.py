"""`gpu` as a whole: help, exit statuses, one output for people and programs, what the documentation says."""

from __future__ import annotations

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

from support.fake_server import FakeServer, Reply
from support.gpu_line import GPU, Seat
from support.projects import project
from trainshed.cli import gpu as front
from trainshed.cli import gpu_help
from trainshed.cli.gpu_exits import MEANINGS, GpuExit, exit_for, exit_of
from trainshed.cli.main import COLUMNS
from trainshed.cli.reference import commands
from trainshed.cli.session import Session
from trainshed.sdk import errors

DOCS = Path(__file__).parents[3] / "docs"
HEAVY = {"httpx2", "pydantic", "rich", "fastapi", "sqlalchemy", "yaml", "mcp", "jsonschema", "subprocess"}


@pytest.mark.parametrize("name", front.COMMANDS)
def test_the_short_help_of_the_table_is_that_of_the_command(name):
    module, _, attribute = front.COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert command.help.split("\n\n")[0].replace("\n", " ") == front.COMMANDS[name][1]


@pytest.mark.parametrize("columns", [60, COLUMNS])
def test_the_help_that_is_kept_as_text_is_the_one_of_the_program(columns):
    environment = {**os.environ, "COLUMNS": str(columns)}
    code = "import sys; sys.argv[0] = 'gpu'; from trainshed.cli.gpu import run_gpu; run_gpu(['--help'])"
    real = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert subprocess.check_output([GPU, "--help"], env=environment, text=True) == real
    assert (gpu_help.HELP.replace("{program}", "gpu") == real) == (columns == COLUMNS)


def test_help_imports_nothing_heavy():
    words = [[name, "--help"] for name in front.COMMANDS]
    code = f"import sys; from trainshed.cli.main import gpu_main; [gpu_main(each) for each in {words!r}]"
    code = f"{code}; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stderr.split()) & HEAVY
    code = "import sys; from trainshed.cli.main import gpu_main; gpu_main(['--help'])"
    code = f"{code}; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "click" not in done.stderr.split()


def test_trainshed_gpu_is_the_same_program(gpu):
    told = subprocess.check_output([GPU.with_name("trainshed"), "gpu", "--help"], text=True)
    assert told.split()[1:3] == ["trainshed", "gpu"]
    assert all(f"  {name} " in told for name in front.COMMANDS)
    environment = {**os.environ, **gpu.environment}
    ran = subprocess.run(
        [GPU.with_name("el"), "gpu", "status", "ffffffffffff", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, json.loads(ran.stderr)["code"]) == (4, "job_not_found")


def test_the_exit_statuses_of_the_documentation_are_those_of_the_code():
    text = (DOCS / "gpu.md").read_text()
    found = dict(re.findall(r"^\| (\d+) \| (.+) \|$", text, re.MULTILINE))
    assert found == {str(int(code)): meaning for code, meaning in MEANINGS.items()}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidSpec("invalid_spec", "x"), 2),
        (errors.api_error(422, {"code": "INVALID_SPEC"}), 2),
        (errors.ConnectionFailed("x"), 3),
        (errors.api_error(503, {"code": "NOT_READY"}), 3),
        (errors.api_error(404, {"code": "JOB_NOT_FOUND"}), 4),
        (errors.api_error(409, {"code": "AMBIGUOUS_JOB_REF"}), 4),
        (errors.api_error(404, {"code": "PROVIDER_NOT_FOUND"}), 4),
        (errors.api_error(409, {"code": "INVALID_TRANSITION"}), 5),
        (errors.api_error(409, {"code": "JOB_REQUEST_CONFLICT"}), 5),
        (errors.api_error(403, {"code": "FORBIDDEN"}), 1),
        (errors.api_error(500, {"code": "INTERNAL"}), 1),
        (errors.LocalFileError("x"), 1),
        (errors.WaitTimeout("x"), 1),
    ],
)
def test_an_error_has_the_exit_status_of_the_contract(error, code):
    assert exit_for(error) == code


@pytest.mark.parametrize(
    ("state", "kind", "code"),
    [
        ("done", None, GpuExit.OK),
        ("running", None, GpuExit.OK),
        ("failed", "user_error", GpuExit.FAILED),
        ("failed", "no_provider", GpuExit.NO_FIT),
        ("cancelled", None, GpuExit.CANCELLED),
        ("denied", None, GpuExit.CANCELLED),
    ],
)
def test_a_job_that_was_waited_for_has_the_exit_status_of_its_end(state, kind, code):
    assert exit_of({"state": state, "failure_kind": kind}) == code


def documented():
    """Every command line of `gpu` in code blocks of the documentation."""
    for path in (DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))):
        text = path.read_text().replace("\\\n", " ")
        for line in re.findall(r"^(?: {4})?(gpu [a-z].+)$", text, re.MULTILINE):
            yield pytest.param(line, id=f"{path.name}: {line[:50]}")


@pytest.mark.parametrize("line", list(documented()))
def test_every_documented_command_line_is_understood(line):
    _, *words = shlex.split(re.split(r" [<>|] ", line)[0], comments=True)
    command, context = front.gpu, click.Context(front.gpu, obj=Session())
    while isinstance(command, click.Group):
        name, *words = words
        command = command.get_command(context, name)
        assert command is not None, f"no command `{name}`"
    command.make_context(name, words, parent=context)


def test_every_command_is_in_the_documentation():
    text = (DOCS / "gpu.md").read_text()
    for name, _ in commands(front.gpu):
        assert f"gpu {name}" in text, name


def test_the_others_answer_with_one_document_each(gpu, tmp_path):
    assert gpu.json("quota")["summary"]
    assert gpu.json("quota", "--refresh")["quota"][0]["provider"] == "local"
    here = gpu.json("providers", "--check")["items"][0]
    assert (here["health"], here["gpus"][0]["type"], here["gpus"][0]["simulated"]) == ("ok", "H100", True)
    assert "H100 (simulated)" in gpu("providers").out
    assert gpu.json("login", "local")["ok"] is True
    ran = gpu("login", "kaggle")
    assert ran.status == 1
    for told in ("API token", "not enabled", "providers.use"):
        assert told in ran.out
    ran = gpu("login", "nowhere", "--json")
    assert (ran.status, ran.error["code"]) == (4, "provider_not_found")
    assert gpu.json("setup")["register"] == "claude mcp add gpu -- gpu mcp"
    assert gpu.json("setup", "--skill", str(tmp_path))["skill"] == str(tmp_path / "gpu" / "SKILL.md")
    assert (tmp_path / "gpu" / "SKILL.md").read_text().startswith("---\nname: gpu")
    (tmp_path / "gpu" / "SKILL.md").write_text("mine")
    assert gpu("setup", "--skill", str(tmp_path)).status == 1
    assert (tmp_path / "gpu" / "SKILL.md").read_text() == "mine"
    assert gpu("statusline", env={"TRAINSHED_URL": "http://127.0.0.1:9"}).out == ""


def test_G82_doctor_names_what_is_missing_and_which_secret_store_is_used(gpu):
    found = gpu.json("doctor")
    by_name = {each["name"]: each for each in found["checks"]}
    assert by_name["provider local"]["state"] == "ok"
    for name in ("provider kaggle", "provider colab"):
        assert by_name[name]["state"] == "missing"
        assert by_name[name]["remedy"]
    assert "sealed" in by_name["secrets"]["found"]
    assert set(found["missing"]) >= {"provider kaggle", "provider colab"}
    ran = gpu("doctor", env={"TRAINSHED_URL": "", "CLAUDECODE": "1"})
    assert ran.status == 0
    assert "gpu daemon start" in ran.out or "NO_AUTOSTART" in ran.out
    assert "an agent (CLAUDECODE)" in ran.out


def test_rules_are_shown_changed_and_reset_by_people_only(gpu, tmp_path):
    def at_terminal(name, *words, status=0):
        with Seat(tmp_path / name, ["policy", *words], gpu.environment) as seat:
            assert seat.status() == status, seat.shown()

    def rules():
        return gpu.json("policy", "show")["policy"]["agent"]

    assert rules()["auto_max_hours"] == 1.0
    at_terminal("one", "set", "agent.auto_max_hours=2", "max_cost=off", "agent.ask_providers=kaggle, colab")
    assert (rules()["auto_max_hours"], rules()["ask_providers"]) == (2.0, ["colab", "kaggle"])
    at_terminal("two", "set", "agent.unknown_hours=auto")
    assert (rules()["auto_max_hours"], rules()["unknown_hours"]) == (2.0, "auto")
    at_terminal("three", "set", "agent.auto_max=1", status=2)
    ran = gpu("policy", "set", "agent.auto_max_hours=9", "--json", env={"CODEX_SANDBOX": "1"})
    assert (ran.status, ran.error["code"]) == (1, "forbidden")
    assert gpu("policy", "set", "hours").status == 2
    at_terminal("four", "reset")
    assert (rules()["auto_max_hours"], rules()["unknown_hours"]) == (1.0, "ask")


def test_secrets_are_kept_listed_by_name_and_forgotten(gpu):
    assert gpu.json("secrets", "set", "MY_KEY", "--stdin", stdin="s3cret-value\n")["name"] == "MY_KEY"
    ran = gpu("secrets", "list")
    assert "MY_KEY" in ran.out
    assert "s3cret" not in ran.out + ran.err
    assert gpu("secrets", "set", "OTHER").status == 2, "no terminal to ask at"
    ran = gpu("secrets", "set", "OTHER", "--stdin", "--json", stdin="x", env={"TRAINSHED_AGENT": "1"})
    assert (ran.status, ran.error["code"]) == (1, "forbidden")
    assert gpu("secrets", "set", "KAGGLE_KEY", "--stdin", stdin="x").status == 2
    assert gpu.json("secrets", "rm", "MY_KEY")["removed"] is True
    assert gpu.json("secrets", "list")["items"] == []


def test_a_secret_is_typed_without_echo(gpu, tmp_path):
    with Seat(tmp_path / "seat", ["secrets", "set", "TYPED"], gpu.environment) as seat:
        seat.until("Value of TYPED:")
        seat.type("s3cret-value\n")
        assert seat.status() == 0, seat.shown()
        assert "s3cret" not in seat.shown()
    assert gpu.json("secrets", "rm", "TYPED")["removed"] is True


def test_the_daemon_is_the_users_own_server(gpu, tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    own = {"TRAINSHED_URL": "", "TRAINSHED_API_KEY": "", "TRAINSHED_HOME": str(home)}
    ran = gpu("daemon", "status", "--json", env=own)
    assert (ran.status, ran.json["running"]) == (3, False)
    assert gpu("jobs", env=own).status == 3, "TRAINSHED_NO_AUTOSTART=1"
    assert gpu.json("daemon", "stop", env=own)["stopped"] is False
    assert "daemon run\n" in gpu.json("daemon", "service", env=own)["unit"]
    started = gpu.json("daemon", "start", env=own)
    try:
        assert gpu.json("daemon", "start", env=own)["pid"] == started["pid"]
        assert gpu.json("jobs", env=own)["items"] == []
        process = subprocess.run(
            [GPU, "daemon", "run"], env={**os.environ, **own}, capture_output=True, timeout=120, check=False
        )
        assert process.returncode == 5, "one runs already"
    finally:
        assert gpu.json("daemon", "stop", env=own)["stopped"] is True


def test_notify_tells_a_webhook_of_this_machine(gpu, tmp_path):
    told = []

    def hear(request):
        told.append(json.loads(request.body))
        return Reply(200, {})

    folder = project(tmp_path / "proj", {"train.py": "print(1)\n"})
    short = gpu.json("run", "--smoke", "train.py", folder=folder)["job"]["short_id"]
    with FakeServer({"POST /hook": hear}) as server:
        found = gpu.json("notify", short, "--webhook", f"{server.url}/hook")
    assert found["told"] == f"GPU job {short} is done."
    assert (found["webhook"], told[0]["text"], told[0]["job"]["state"]) == (True, found["told"], "done")
    assert gpu("notify", short, "--webhook", "http://example.org/").status == 2
