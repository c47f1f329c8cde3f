"""``gpu bundle`` and ``gpu init``."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import jsonschema
import pytest
import yaml

from support.projects import project, set_home, write
from trainshed.cli.gpu import COMMANDS
from trainshed.cli.main import gpu_main

HEAVY = {"httpx2", "pydantic", "rich", "fastapi", "sqlalchemy", "yaml", "trainshed.sdk.errors", "subprocess"}


@pytest.fixture
def gpu(quiet, capfdbinary, monkeypatch, tmp_path):
    """Run ``gpu`` with these arguments: status, output, errors."""
    set_home(monkeypatch, tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["gpu", *arguments])
        capfdbinary.readouterr()
        status = gpu_main(arguments)
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return int(status), out.decode(), err.decode()

    return run


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    """A project that no test changes."""
    return sample(tmp_path_factory.mktemp("work"))


@pytest.fixture
def place(tmp_path):
    return sample(tmp_path / "work")


def sample(folder):
    found = project(
        folder / "proj",
        {
            ".gitignore": "data/\n*.log\n",
            "train.py": 'if __name__ == "__main__":\n    pass\n',
            "tools/eval.py": "if __name__ == '__main__':\n    pass\n",
            "lib.py": "x = 1\n",
            "requirements.txt": "numpy\n",
        },
    )
    write(found, {"data/a.csv": "1", "x.log": "2", ".env": "3", "new.py": "4", "runs/1/out": "5"})
    (found / "link").symlink_to("lib.py")
    (found / "away").symlink_to("/etc")
    return found


def test_the_summary_is_one_document_that_equals_the_text(gpu, fixed):
    status, out, _ = gpu("bundle", str(fixed), "--script", "train.py", "--json")
    document = json.loads(out)
    assert status == 0
    assert (document["files"], document["runs"], document["deps"]) == (7, "train.py", "requirements.txt")
    assert document["left_out"] == ["data/ (1 B, ignored)", "x.log (1 B, ignored)"]
    status, out, _ = gpu("bundle", str(fixed), "--script", "train.py")
    assert status == 0
    for line in (*document["left_out"], *document["warnings"], document["hint"]):
        assert line in out


def test_nothing_has_to_be_run_to_look(gpu, fixed):
    status, out, _ = gpu("bundle", str(fixed), "--files", "--include", "data", "--json")
    listed = [each["path"] for each in json.loads(out)["listing"]]
    assert status == 0
    assert listed == sorted(listed)
    assert {"data/a.csv", "link", "new.py"} <= set(listed)


@pytest.mark.parametrize(
    ("path", "rule", "told"),
    [
        ("train.py", "tracked", "git tracks it"),
        ("new.py", "untracked", "git does not track it"),
        ("link", "link", "lib.py"),
        ("data/a.csv", "ignored", ".gitignore:1: data/"),
        ("data", "ignored", ".gitignore:1: data/"),
        ("x.log", "ignored", ".gitignore:2: *.log"),
        (".env", "credentials", ".env"),
        ("runs/1/out", "runs", "runs/"),
        ("away", "skipped", "out of the project"),
        ("tools", "folder", "1 file of it ships"),
        ("nowhere", "missing", "no such"),
        ("../elsewhere", "outside", "not in the project"),
    ],
)
def test_explain_names_the_rule_that_decides(gpu, fixed, path, rule, told):
    status, out, _ = gpu("bundle", str(fixed), "--explain", path, "--json")
    verdict = json.loads(out)
    assert status == 0
    assert (verdict["path"], verdict["rule"]) == (path, rule)
    assert told in verdict["why"]
    assert verdict["ships"] == (rule in {"tracked", "untracked", "link", "folder"})


COPIES = {
    ".env~": ".env",
    "server.key.bak": "*.key",
    ".kaggle.json.swp": "kaggle.json",
    "#token.json#": "token.json",
    ".ssh.old/config": ".ssh/",
}


def test_a_copy_of_credentials_does_not_ship_and_explain_names_what_it_copies(gpu, place):
    write(place, {**dict.fromkeys(COPIES, "3"), "notes.txt~": "4"})
    _, out, _ = gpu("bundle", str(place), "--include", "*", "--files", "--json")
    document = json.loads(out)
    shipped = {each["path"] for each in document["listing"]}
    assert not shipped & COPIES.keys()
    assert "notes.txt~" in shipped
    assert any(f"{len(COPIES) + 1} credential-looking files" in each for each in document["warnings"])
    for path, rule in COPIES.items():
        _, out, _ = gpu("bundle", str(place), "--explain", path)
        told = f"it looks like credentials (a copy of {rule}), which never ship"
        assert out == f"{path}: does not ship: {told}\n"


def test_explain_names_the_include_pattern(gpu, fixed):
    _, out, _ = gpu("bundle", str(fixed), "--include", "data/*.csv", "--explain", "data/a.csv")
    assert out == "data/a.csv: ships: `include` has `data/*.csv`\n"


def test_explain_says_what_travels_as_data(gpu, fixed, tmp_path):
    def verdict(path, *data):
        words = [word for each in data for word in ("--data", each)]
        return json.loads(gpu("bundle", str(fixed), *words, "--explain", path, "--json")[1])

    for path in ("data", "data/a.csv"):
        found = verdict(path, "corpus=data")
        assert (found["rule"], found["ships"]) == ("data", False)
        assert found["why"] == "does not ship: it travels as data `corpus`, apart from the project"
    write(tmp_path, {"far/b.csv": "1", "far/.env": "K=1"})
    assert verdict(str(tmp_path / "far/b.csv"), str(tmp_path / "far"))["rule"] == "data"
    assert verdict(str(tmp_path / "far/.env"), str(tmp_path / "far"))["rule"] == "outside"
    both = verdict("tools", "tools")
    assert (both["rule"], both["ships"]) == ("folder", True)
    assert both["why"].endswith("; it travels as data `tools`, too")
    assert verdict("x.log", "data")["rule"] == "ignored"


def test_every_fault_of_gpu_yaml_stands_on_a_line_of_its_own(gpu, place):
    wrong = [
        "hours: 0",
        "vram: x",
        "smoke: 3",
        "max_attempts: 99",
        "env: []",
        "deps: 3",
        "varm: 1",
        "hours: 1",
    ]
    write(place, {"gpu.yaml": "\n".join(wrong) + "\n"})
    _, _, err = gpu("bundle", str(place), "--include", "~/x")
    head, *told = err.splitlines()
    assert head == "error: invalid_spec: 9 faults"
    keys = ["hours", "vram", "smoke", "max_attempts", "env", "deps", "varm", "hours"]
    for number, (line, key) in enumerate(zip(told, keys, strict=False), 1):
        assert line.startswith(f"  - gpu.yaml:{number}: "), line
        assert f"`{key}` " in line
    assert "(Did you mean `vram`?)" in told[6]
    assert told[7] == "  - gpu.yaml:8: the key `hours` is given twice in one map"
    assert told[8].startswith("  - `include` has `~/x`")
    assert len(told) == 9


def test_a_spec_that_cannot_be_ends_with_2_and_every_fault(gpu, place):
    write(place, {"gpu.yaml": "hours: 0\nfoo: 1\n"})
    status, out, err = gpu("bundle", str(place))
    assert (status, out) == (2, "")
    assert "gpu.yaml:1: `hours`" in err
    assert "gpu.yaml:2: `foo`" in err
    status, _, err = gpu("bundle", str(place), "--json")
    document = json.loads(err)
    assert (document["code"], len(document["detail"]["errors"])) == ("invalid_spec", 2)


def test_init_writes_a_gpu_yaml_that_can_be_packed(gpu, place):
    status, out, _ = gpu("init", str(place))
    assert status == 0
    assert "it runs train.py" in out
    text = (place / "gpu.yaml").read_text()
    document = yaml.safe_load(text)
    assert document == {
        "version": 1,
        "script": "train.py",
        "deps": "auto",
        "data": [{"mount": "data", "path": "data"}],
    }
    assert "# or: tools/eval.py" in text
    status, out, _ = gpu("bundle", str(place), "--json")
    assert (status, json.loads(out)["runs"]) == (0, "train.py")
    assert "data/ (1 B, ignored; passed as data)" in json.loads(out)["left_out"]


def test_init_replaces_nothing_unless_it_is_told_to(gpu, place):
    write(place, {"gpu.yaml": "hours: 1\n"})
    status, _, err = gpu("init", str(place))
    assert status == 1
    assert "--force" in err
    assert (place / "gpu.yaml").read_text() == "hours: 1\n"
    assert gpu("init", str(place), "--force")[0] == 0
    assert "script: train.py" in (place / "gpu.yaml").read_text()


def test_init_prints_without_writing(gpu, place, tmp_path):
    status, out, _ = gpu("init", str(place), "--stdout")
    assert (status, (place / "gpu.yaml").exists()) == (0, False)
    schema = json.loads(gpu("init", "--schema")[1])
    jsonschema.validate(yaml.safe_load(out), schema)
    (tmp_path / "empty").mkdir()
    assert "# script: train.py" in gpu("init", str(tmp_path / "empty"), "--stdout")[1]


def test_names_that_yaml_would_read_otherwise_are_quoted(gpu, tmp_path):
    place = project(tmp_path / "work" / "odd", {"yes: no #.py": "if __name__ == '__main__': pass\n"})
    _, out, _ = gpu("init", str(place), "--stdout")
    assert yaml.safe_load(out)["script"] == "yes: no #.py"


@pytest.mark.parametrize("arguments", [["--help"], ["bundle", "--help"], ["init", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments):
    code = f"import sys; from trainshed.cli.main import gpu_main; gpu_main({arguments!r})"
    run = [sys.executable, "-c", f"{code}; print(*sys.modules, file=sys.stderr)"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert not set(done.stderr.split()) & HEAVY


@pytest.mark.parametrize("name", ["bundle", "init"])
def test_the_short_help_of_the_table_is_that_of_the_command(name):
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert command.help.split("\n\n")[0].replace("\n", " ") == COMMANDS[name][1]
