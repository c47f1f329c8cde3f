"""What of a project is in its Job, as the script itself sees it there (contract G, checklist)."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from support.agent_jobs import SHOW, ended, notes, seen, submitted
from support.agents import Agent
from support.hub import COMMIT, Hub, serving
from support.projects import commit, git, project, write
from support.wheels import wheel
from trainshed.model.scripts.credentials import DIRECTORIES, NAMES, PAIRS

FAKE = {"poll_seconds": 0.2}
"""A second provider is there (see `conftest`); what is sent to it is counted."""
CANARY = "canary-2b7e9d41aa"
IMPORTS = "import tiny_thing, pathlib\nprint(tiny_thing.VERSION, pathlib.Path(tiny_thing.__file__).parent)\n"


def credentials() -> list[str]:
    """One file for each pattern of e.4."""
    by_name = [name.replace("*", "x1") for name in NAMES]
    return [*by_name, *(f"{folder}/config" for folder in (*DIRECTORIES, *PAIRS))]


@pytest.fixture
def shed(tmp_path: Path) -> Path:
    """A project in a repository's folder `app`, with everything that may and may not ship."""
    root = tmp_path / "shed"
    project(
        root,
        {
            "app/.gitignore": "*.ign\n/heavy\n/nested\n/data\n/exp\n/holds\n/one\n/set\n",
            "lib/__init__.py": "",
            "lib/sibling.py": "WORD = 'committed'\n",
            "app/show.py": "import os, sys\nsys.path.insert(0, os.path.abspath('..'))\n"
            "import lib.sibling\nassert lib.sibling.WORD == 'changed'\n" + SHOW,
            "app/gpu.yaml": "script: show.py\ninclude: by_file.ign\n",
        },
        tracked=False,
    )
    secret = credentials()
    write(root, {f"app/tracked/{name}": CANARY for name in secret})
    git(root, "add", "--all", "--force")
    commit(root)
    write(root, {
        "lib/sibling.py": "WORD = 'changed'\n", "app/new/untracked.txt": "new",
        "app/ignored.ign": "-", "app/by_file.ign": "1", "app/by_call.ign": "2",
        "app/heavy/a.bin": "3", "app/heavy/deep/b.bin": "4",
        "app/data/crops/a.png": "5", "app/data/crops/b.png": "6", "app/data/crops/no.txt": "-",
        "app/exp/1/out/x": "7", "app/exp/2/deep/out/y": "8", "app/exp/1/log": "-",
        "app/set/x": "9",
    })  # fmt: skip
    project(root / "app/nested", {"inside.py": "10"})
    write(root, {f"app/untracked/{name}": CANARY for name in secret})
    write(root, {f"app/holds/{name}": CANARY for name in secret} | {"app/holds/ok.txt": "11"})
    write(root, {f"app/one/{name}": CANARY for name in secret})
    for number, name in enumerate(secret):
        (root / f"app/link{number}").symlink_to(f"one/{name}")
    return root


INCLUDE = [
    *("by_call.ign", "heavy", "nested", "data/crops/*.png", "exp/**/out", "holds", "one/*", "one/**/config"),
    "nothing/here",
]
SHIPS = {
    "app/.gitignore", "lib/__init__.py", "lib/sibling.py", "app/show.py", "app/gpu.yaml",
    "app/new/untracked.txt", "app/by_file.ign", "app/by_call.ign", "app/heavy/a.bin",
    "app/heavy/deep/b.bin", "app/nested/inside.py",
    "app/data/crops/a.png", "app/data/crops/b.png", "app/exp/1/out/x", "app/exp/2/deep/out/y",
    "app/holds/ok.txt",
}  # fmt: skip


def test_G5_G6_G7_G8_G9_G18_G19_G62_G69_G70_G71_G72_G73_G81_what_ships_and_what_does_not(agent, shed):
    found, answer = seen(agent, shed / "app", include=INCLUDE)
    assert set(found["files"]) == SHIPS
    assert CANARY not in str(found)
    assert found["files"]["lib/sibling.py"] == "WORD = 'changed'\n"
    assert found["cwd"] == "app"
    bundle = answer["bundle"]
    assert bundle["files"] == len(SHIPS)
    assert bundle["bytes"] == sum(len(text.encode("latin-1")) for text in found["files"].values())
    assert "`nothing/here`, which matches nothing" in str(bundle["warnings"])
    assert "credential-looking file" in str(bundle["warnings"])
    assert CANARY not in str(answer)


def test_G17_a_folder_that_is_passed_as_data_is_readable_and_marked(agent, new_project):
    folder = new_project({".gitignore": "set/\n", "show.py": SHOW})
    write(folder, {"set/x": "1"})
    plain = agent.call("gpu_route", project_dir=str(folder), script="show.py", smoke=True)
    assert plain["bundle"]["left_out"] == ["set/ (1 B, ignored)"]
    found, answer = seen(agent, folder, script="show.py", data=["set"])
    assert found["data"] == {"set/x": "1"}
    assert answer["bundle"]["left_out"] == ["set/ (1 B, ignored; passed as data)"]


def test_G54_G55_G56_G57_data_is_where_it_was_named(server, new_project, tmp_path):
    folder = new_project({"app/show.py": SHOW, "app/rel/a": "1", "app/single.bin": "2"})
    elsewhere = tmp_path / "Elsewhere Set"
    write(elsewhere, {"deep/b": "3"})
    hub = Hub({"c.txt": b"4", "d.bin": b"5"})
    with serving(hub), Agent({**server.environment, "HF_ENDPOINT": hub.url}) as here:
        data = ["rel", str(elsewhere), f"named={elsewhere}", "single.bin", "hub=hf://datasets/owner/set"]
        found, _ = seen(here, folder / "app", script="show.py", data=data, env={"HF_ENDPOINT": hub.url})
    assert found["data"] == {
        "rel/a": "1",
        "elsewhere-set/deep/b": "3",
        "named/deep/b": "3",
        "single.bin": "2",
        "hub/c.txt": "4",
        "hub/d.bin": "5",
    }
    assert any(COMMIT in path for path, _ in hub.asked), "it is pinned to a commit"


def test_G58_data_is_sent_once_and_once_more_after_a_byte_changed(agent, new_project):
    folder = new_project({".gitignore": "set/\n"})
    call = {"script": "train.py", "hours": 0.5, "provider": "fake", "data": ["set"]}
    told = []
    for content in (b"same", b"same", b"Same"):
        write(folder, {"set/x": content})
        short, _ = submitted(agent, folder, **call)
        told.append([note for note in notes(ended(agent, short)) if note.startswith("data_")])
    assert told == [["data_uploaded"], ["data_reused"], ["data_uploaded"]]


@pytest.mark.parametrize("kind", ["requirements", "pyproject"])
def test_G10_G11_G12_packages_are_installed_where_the_job_runs(agent, new_project, tmp_path, kind):
    name = wheel(tmp_path / "wheels", "tiny_thing", "3.1").name
    needs = {
        "requirements": {"requirements.txt": f"./wheels/{name}\n"},
        "pyproject": {
            "pyproject.toml": '[project]\nname = "p"\nversion = "1"\ndependencies = ["tiny_thing"]\n'
            f'[tool.uv.sources]\ntiny_thing = {{ path = "wheels/{name}" }}\n'
        },
    }[kind]
    folder = new_project({"use.py": IMPORTS, **needs})
    write(folder, {f"wheels/{name}": (tmp_path / "wheels" / name).read_bytes()})
    short, _ = submitted(agent, folder, script="use.py", smoke=True)
    state = ended(agent, short)["job"]["state"]
    lines = agent.call("gpu_logs", ref=short)["lines"]
    assert state == "done", lines
    version, place = lines[-1].split(" ", 1)
    assert version == "3.1"
    assert not Path(place).is_relative_to(sysconfig.get_path("purelib"))
    assert not list(Path(sysconfig.get_path("purelib")).glob("tiny_thing*"))


def test_G63_without_a_script_that_of_gpu_yaml_counts_and_with_neither_it_is_refused(agent, new_project):
    answer = agent.call(
        "gpu_route", project_dir=str(new_project({"gpu.yaml": "script: train.py\nsmoke: true\n"}))
    )
    assert answer["spec"]["script"] == "train.py"
    error = agent.refused("gpu_submit", project_dir=str(new_project()))
    assert error["code"] == "invalid_spec"
    assert "script" in error["message"]


def test_G64_what_is_no_python_file_runs_as_a_command_line(agent, new_project):
    folder = new_project({"jobs/run.sh": 'for word in "$@"; do echo "<$word>"; done\n'})
    short, _ = submitted(agent, folder, script='bash jobs/run.sh --x "a b"', smoke=True)
    assert ended(agent, short)["job"]["state"] == "done"
    assert agent.call("gpu_logs", ref=short)["lines"][-2:] == ["<--x>", "<a b>"]


def test_G66_what_a_job_names_and_does_not_get_is_told_with_what_to_do(agent, new_project, tmp_path):
    folder = new_project({".gitignore": "conf/\n"})
    write(folder, {"conf/a.yaml": "x: 1"})
    write(tmp_path, {"outside.txt": "1"})
    args = ["--config=conf/a.yaml", str(tmp_path / "outside.txt")]
    answer = agent.call("gpu_route", project_dir=str(folder), script="train.py", args=args, smoke=True)
    first, second = answer["bundle"]["warnings"][:2]
    assert "conf/a.yaml" in first
    assert "include" in first
    assert str(tmp_path)[:40] in second, "a long path is cut"
    assert "outside the project" in second
    error = agent.refused("gpu_submit", project_dir=str(folder), script="conf/a.yaml", smoke=True)
    assert error["code"] == "invalid_spec"


OF_THE_FILE = """
name: from-file
script: train.py
args: [of, file]
hours: 0.5
vram_gb: 8
gpu: T4
provider: fake
env: {ONE: file, TWO: file}
data: [{mount: set, path: a}]
include: a/x
smoke: false
"""
OVERRIDES = [
    ("script", "other.py", "other.py"),
    ("args", ["of call"], ["of call"]),
    ("hours", 0.75, 0.75),
    ("vram_gb", 4, 4.0),
    ("gpu", "H100", "H100"),
    ("provider", "local", "local"),
    ("smoke", True, True),
]


@pytest.mark.parametrize(("key", "given", "kept"), OVERRIDES, ids=[key for key, _, _ in OVERRIDES])
def test_G20_an_argument_wins_over_gpu_yaml(agent, new_project, key, given, kept):
    folder = new_project({"gpu.yaml": OF_THE_FILE, "other.py": "", "a/x": "1", "b/x": "2"})
    of_file = agent.call("gpu_route", project_dir=str(folder))["spec"]
    spec = agent.call("gpu_route", project_dir=str(folder), **{key: given})["spec"]
    assert spec[key] == kept
    assert of_file[key] != kept
    same = set(of_file) - {key, "name"}
    assert {name: spec[name] for name in same} == {name: of_file[name] for name in same}


def test_G20_names_variables_and_data_of_a_call_win_one_by_one(agent, new_project):
    folder = new_project({"gpu.yaml": OF_THE_FILE, "a/x": "1", "b/x": "2"})
    call = {"name": "from-call", "env": {"TWO": "call"}, "data": ["set=b"], "wait_s": 30}
    short, _ = submitted(agent, folder, **call)
    spec = ended(agent, short)["job"]["spec"]
    assert spec["name"] == "from-call"
    assert spec["env"] == {"ONE": "file", "TWO": "call"}
    assert [(item["mount"], item["path"]) for item in spec["data"]] == [("set", "b")]
