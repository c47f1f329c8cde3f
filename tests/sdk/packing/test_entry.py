"""What is started, from where, and with which words (G19, G20, G62 to G66, G80; d, "Location")."""

from __future__ import annotations

import os

import pytest

from support.projects import packed, project, refusal, shipped, warned, write
from trainshed.sdk.packing import pack


def test_G19_gpu_yaml_is_honoured_with_nothing_but_the_folder(make):
    place = make(
        {"src/go.py": "1", "gpu.yaml": "script: src/go.py\nargs: [--n, 3]\nhours: 0.5\nname: mine\n"}
    )
    spec = pack(place).spec
    assert (spec["kind"], spec["script"], spec["args"]) == ("script", "src/go.py", ["--n", "3"])
    assert (spec["hours"], spec["name"], spec["project_dir"]) == (0.5, "mine", str(place))


def test_G20_arguments_override_the_file(make):
    place = make(
        {
            "other.py": "1",
            "gpu.yaml": "script: train.py\nname: mine\nhours: 9\nsmoke: true\nenv: {A: 1, B: 2}\n",
        }
    )
    spec = pack(place, {"script": "other.py", "hours": 1, "smoke": False, "env": {"B": "3"}}).spec
    assert (spec["script"], spec["hours"], spec["smoke"]) == ("other.py", 1.0, False)
    assert spec["env"] == {"A": "1", "B": "3"}
    assert spec["name"] == "other"


@pytest.mark.parametrize("words", [("train.py",), ("./train.py",)])
def test_G62_the_script_is_relative_to_the_folder_also_below_the_root(make, words):
    root = make({"apps/one/train.py": "1", "apps/one/gpu.yaml": "hours: 1\n"})
    spec = pack(root / "apps/one", {"script": words[0]}).spec
    assert (spec["workdir"], spec["script"]) == ("apps/one", "train.py")


def test_G63_with_neither_argument_nor_file_it_is_an_invalid_spec(make):
    error = refusal(make({"gpu.yaml": "hours: 1\n"}))
    assert error.code == "invalid_spec"
    assert "nothing to run" in error.message


def test_G64_what_is_no_python_file_runs_as_a_command_line(make):
    place = make({"jobs/run.sh": "echo\n"})
    spec = pack(place, {"script": 'bash jobs/run.sh --x "a b"', "args": ["c d"]}).spec
    assert spec["script"] is None
    assert spec["command"] == ["bash", "jobs/run.sh", "--x", "a b", "c d"]
    assert spec["name"] == "run"


def test_words_behind_a_script_precede_the_arguments(make):
    spec = pack(make({}), {"script": "train.py --a 'b c'", "args": ["--d"]}).spec
    assert (spec["script"], spec["args"]) == ("train.py", ["--a", "b c", "--d"])


def test_a_file_whose_name_has_a_space_stays_one_word(make):
    place = make({"my train.py": "1", "my run": "#!/bin/sh\n", "dir x/a b.py": "2"})
    (place / "my run").chmod(0o755)
    assert pack(place, {"script": "my train.py"}).spec["script"] == "my train.py"
    assert pack(place, {"script": "dir x/a b.py --c d"}).spec["args"] == ["--c", "d"]
    assert pack(place, {"script": "my run"}).spec["command"] == ["./my run"]


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("missing.py", "is not there"),
        ("trian.py", "is not there"),
        ("bash jobs/missing.sh", "is not there"),
        ("python3 missing.py --x", "is not there"),
        ("../train.py", "must not hold `..`"),
        ("a/../../train.py", "must not hold `..`"),
        ("/etc/passwd", "must not begin with `/`"),
        ("~/train.py", "must not begin with `~`"),
        ("-c print(1)", "must not begin with `-`"),
        ("train.py 'a", "a quote or a backslash without its end"),
        ("a\0.py", "holds a NUL"),
        ("x" * 4097, "at most 4096"),
        ("", "is empty"),
    ],
)
def test_G65_a_script_that_cannot_be_is_refused_before_anything_is_made(make, tmp_path, script, told):
    error = refusal(make({"src/a.py": "1"}), script=script)
    assert error.code == "invalid_spec"
    assert told in error.message
    assert not (tmp_path / "trainshed-home").exists()


def test_G65_the_nearest_script_is_proposed(make):
    assert refusal(make({}), script="trian.py").hint == "Did you mean `train.py`?"


@pytest.mark.parametrize("script", ["local.py", "bash local.sh", "python local.py", "./local.sh", "local.sh"])
def test_G66_a_script_that_does_not_ship_is_an_invalid_spec_that_says_what_to_do(make, script):
    place = make({".gitignore": "local.*\n"})
    write(place, {"local.py": "1", "local.sh": "2"})
    error = refusal(place, script=script)
    assert error.code == "invalid_spec"
    assert "git ignores it" in error.message
    assert "`include`" in error.hint
    assert pack(place, {"script": script, "include": ["local.*"]}).spec["bundle"]["files"] == 4


@pytest.mark.parametrize(
    "as_argument", [["--data", "data/x.csv"], ["--data=data/x.csv"], ["data"], ["./data/"]]
)
def test_G66_an_argument_that_does_not_ship_is_told_first(make, as_argument):
    place = make({".gitignore": "data\n"})
    write(place, {"data/x.csv": "1", ".env": "x"})
    first = packed(place, args=as_argument).summary["warnings"][0]
    assert first.startswith("argument `")
    assert "git ignores it" in first
    assert "`include`" in first
    assert "`data`" in first
    assert (
        not packed(place, args=as_argument, include=["data"])
        .spec["bundle"]["warnings"][0]
        .startswith("argument")
    )


def test_G66_absolute_paths_and_paths_outside_are_told(make, tmp_path):
    place = make({"conf/a.yaml": "1"})
    write(tmp_path / "work", {"sibling/x": "1"})
    assert "write `conf/a.yaml`" in warned(packed(place, args=[str(place / "conf/a.yaml")]), "absolute path")
    assert "pass it in `data`" in warned(packed(place, args=["../sibling/x"]), "outside the project")
    assert warned(packed(place, args=[str(tmp_path)]), "outside the project")
    fine = [
        "conf/a.yaml",
        "conf",
        "--lr",
        "1e-3",
        "missing/path",
        "http://x/y",
        "",
        ".",
        "/dev/null",
        "a" * 5000,
    ]
    assert "warnings" not in packed(place, args=fine).summary


def test_at_most_three_arguments_are_told_and_at_most_six_warnings(make):
    place = make({".gitignore": "d*\n"})
    write(place, {**{f"d{number}": "1" for number in range(9)}, ".env": "1", "new.py": "2"})
    (place / "out").symlink_to("/etc")
    found = packed(place, args=[f"d{number}" for number in range(9)], include=["x1", "x2", "x3"])
    warnings = found.summary["warnings"]
    assert [text.startswith("argument") for text in warnings] == [True, True, False, False, False, False]
    assert warnings[2] == "7 more arguments have such a fault"
    assert "more warnings" in warnings[-1]
    assert all(len(text) <= 300 for text in warnings)


def test_a_program_without_a_slash_is_started_from_the_folder(make):
    place = make({"run": "#!/bin/sh\n", "bin/go": "#!/bin/sh\n"})
    for name in ("run", "bin/go"):
        (place / name).chmod(0o755)
    assert pack(place, {"script": "run x"}).spec["command"] == ["./run", "x"]
    assert pack(place, {"script": "bin/go"}).spec["command"] == ["bin/go"]
    (place / "run").chmod(0o644)
    assert warned(pack(place, {"script": "run"}), "not executable: write `bash ./run`")


def test_the_nearer_gpu_yaml_counts_alone(make):
    root = make({"gpu.yaml": "hours: 9\nname: root\nscript: train.py\n", "app/go.py": "1"})
    assert pack(root / "app", {"script": "go.py"}).spec["hours"] == 9.0
    write(root, {"app/gpu.yaml": "script: go.py\n"})
    spec = pack(root / "app").spec
    assert (spec["hours"], spec["name"], spec["script"]) == (None, "go", "go.py")


def test_paths_in_the_gpu_yaml_of_the_root_are_relative_to_the_root(make):
    root = make({
        ".gitignore": "big\nsets\n", "src/go.py": "1", "reqs.txt": "numpy\n", "app/x.py": "2",
        "gpu.yaml": "script: src/go.py\ninclude: big\ndeps: reqs.txt\ndata: [{mount: d, path: sets/one}]\n",
    })  # fmt: skip
    write(root, {"big/a": "1", "app/big/b": "2", "sets/one/c": "3"})
    found = pack(root / "app")
    assert (found.spec["workdir"], found.spec["script"]) == ("app", "../src/go.py")
    assert {"big/a"} == {path for path in shipped(found) if "big/" in path}
    assert found.spec["deps"]["file"] == "reqs.txt"
    assert found.spec["data"][0]["files"] == 1
    assert "app/big/b" in shipped(pack(root / "app", {"include": ["big"]}))


def test_words_of_a_command_in_the_gpu_yaml_of_the_root_mean_the_same_below_it(make):
    root = make({"tools/run.sh": "1", "app/x.py": "2", "gpu.yaml": "command: bash tools/run.sh --flag v\n"})
    assert pack(root / "app").spec["command"] == ["bash", "../tools/run.sh", "--flag", "v"]
    assert pack(root).spec["command"] == ["bash", "tools/run.sh", "--flag", "v"]


def test_arguments_in_the_gpu_yaml_of_the_root_name_its_files_and_given_ones_those_of_the_folder(make):
    text = "script: train.py\nargs: [conf/a.yaml, --lr, '1', here.txt, gone.txt]\n"
    root = make({"conf/a.yaml": "1", "here.txt": "2", "app/here.txt": "3", "gpu.yaml": text})
    args = ["../conf/a.yaml", "--lr", "1", "here.txt", "gone.txt"]
    assert pack(root / "app").spec["args"] == args
    given = ["conf/a.yaml"]
    assert pack(root / "app", {"args": given}).spec["args"] == given


def test_faults_of_file_and_arguments_are_told_together(make):
    error = refusal(make({"gpu.yaml": "hours: 0\nfoo: 1\n"}), script="train.py", gpus=1, vram_gb=-1)
    places = [fault["place"] for fault in error.detail["errors"]]
    assert places == ["gpu.yaml:1", "gpu.yaml:2", "argument", "argument"]
    assert error.code == "invalid_request"


def test_the_place_of_a_fault_is_relative_to_the_folder(make):
    root = make({"gpu.yaml": "foo: 1\n", "a/b/x.py": "1"})
    assert refusal(root / "a/b", script="x.py").detail["errors"][0]["place"] == "../../gpu.yaml:1"


def test_gpu_yml_is_not_read_and_that_is_told(make):
    assert warned(packed(make({"gpu.yml": "hours: 3\n"})), "gpu.yml is not read")


@pytest.mark.parametrize("kind", ["fifo", "directory", "huge"])
def test_a_gpu_yaml_that_is_no_small_regular_file_is_refused_at_once(make, kind):
    place = make({})
    path = place / "gpu.yaml"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_bytes(b"#" * (1 << 20))
    assert refusal(place, script="train.py").code == "invalid_spec"


def test_G80_a_folder_that_is_none_is_a_bad_request(make, tmp_path, monkeypatch):
    place = make({})
    monkeypatch.chdir(place)
    (tmp_path / os.fsdecode(b"x\xff")).mkdir()
    (tmp_path / "link").symlink_to(os.fsdecode(b"x\xff"))
    wrong = (tmp_path / "nowhere", place / "train.py", place / ".git/hooks", tmp_path / "link")
    for given in (*wrong, ".", "", "relative/path", "a\0b", "~/nowhere"):
        assert refusal(given, script="train.py").code == "invalid_request"


def test_a_home_folder_is_expanded(home):
    project(home / "proj", {"train.py": "1"})
    assert pack("~/proj", {"script": "train.py"}).spec["project_dir"] == str(home / "proj")


def test_a_folder_that_is_named_through_a_link_keeps_its_name(make, tmp_path):
    place = make({"app/x.py": "1"})
    (tmp_path / "link").symlink_to(place / "app")
    spec = pack(tmp_path / "link", {"script": "x.py"}).spec
    assert (spec["project_dir"], spec["workdir"], spec["script"]) == (str(tmp_path / "link"), "app", "x.py")
