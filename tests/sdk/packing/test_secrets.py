"""Credentials never ship, and no secret appears in anything that packing makes (G9, e.4)."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.projects import commit, git, packed, refusal, shipped, warned, write
from trainshed.model.scripts.credentials import COPIES, DIRECTORIES, NAMES, PAIRS, credential_rule

CANARY = "canary-5f3d9b1c7e"
TOKEN = "hf_cAn4Ry1x2Y3z4W5v6U7t8"
NAMED = {
    pattern: pattern.replace("*", "x") if pattern.startswith("*") else pattern.replace("*", "-x1")
    for pattern in NAMES
} | {".env.*": ".env.production", "client_secret*.json": "client_secret_1.apps.json"}
PLACES = {
    **{pattern: f"conf/{name}" for pattern, name in NAMED.items()},
    **{f"{name}/": f"deep/{name}/config" for name in DIRECTORIES},
    **{f"{pair}/": f"deep/{pair}/hosts.yml" for pair in PAIRS},
}


def everything(place, found, tmp_path):
    """All bytes that packing made: what would be sent, what is kept, what is said."""
    tree = shipped(found)
    kept = b"".join(path.read_bytes() for path in (tmp_path / "trainshed-home").rglob("*") if path.is_file())
    said = json.dumps([found.spec, found.summary]).encode()
    return b"\n".join([*tree.values(), *map(str.encode, tree), kept, said])


@pytest.mark.parametrize("upper", [False, True], ids=["lower", "upper"])
@pytest.mark.parametrize("way", ["tracked", "untracked", "included", "in an included folder", "link"])
def test_G9_no_file_of_any_kind_of_credentials_ships(make, tmp_path, way, upper):
    names = [path.upper() if upper else path for path in PLACES.values()]
    files = dict.fromkeys(names, CANARY)
    include: list[str] = []
    if way == "tracked":
        place = make({})
        write(place, files)
        git(place, "add", "--all", "--force")
        git(place, "commit", "--quiet", "--message", "all")
    elif way == "link":
        place = make({".gitignore": "target\n"})
        write(place, {f"target/{name}": CANARY for name in files})
        for number, name in enumerate(files):
            (place / f"link{number}.txt").symlink_to(f"target/{name}")
        commit(place)
    else:
        place = make({".gitignore": "" if way == "untracked" else "conf\ndeep\nCONF\nDEEP\n"})
        write(place, files)
        include = {"included": names, "in an included folder": ["conf", "deep", "CONF", "DEEP"]}.get(way, [])
    for start in range(0, max(1, len(include)), 64):
        found = packed(place, include=include[start : start + 64] or None)
        assert CANARY.encode() not in everything(place, found, tmp_path)
        assert sorted(shipped(found)) == sorted({"train.py", ".gitignore"} & shipped(found).keys())
        assert "credential-looking file" in warned(found, "credential-looking")


@pytest.mark.parametrize("rule", PLACES)
def test_each_kind_of_credentials_is_found_by_its_own_rule(rule):
    assert credential_rule(PLACES[rule]) is not None
    assert credential_rule(f"/abs/{PLACES[rule]}".upper()) is not None


def as_copies(name: str) -> list[str]:
    """What editors and people call a copy of a file."""
    endings = [*COPIES, ".bak2", ".save.1", ".~12~", "~~", ".old~"]
    return [*(name + ending for ending in endings), f"#{name}#", f".#{name}", f".{name}.swp", f".{name}.swo"]


@pytest.mark.parametrize("rule", PLACES)
def test_every_copy_of_credentials_is_credentials(rule):
    folder, _, name = PLACES[rule].rpartition("/")
    if rule.endswith("/"):
        folder, name = f"deep/{rule[:-1]}".rsplit("/", 1)
    rest = "/x" if rule.endswith("/") else ""
    for copy in as_copies(name):
        assert credential_rule(f"{folder}/{copy}{rest}") is not None, copy
        assert credential_rule(f"/abs/{folder}/{copy}{rest}".upper()) is not None, copy


wild = st.text("abcXYZ019-_ .é", max_size=6)


@given(st.sampled_from(NAMES), wild, st.lists(st.integers(0, len(as_copies("")) - 1), max_size=4))
def test_every_name_that_a_rule_matches_is_credentials_and_every_copy_of_a_copy_of_it(pattern, some, ways):
    name = pattern.replace("*", some)
    for way in [None, *ways]:
        name = name if way is None else as_copies(name)[way]
        assert credential_rule(f"conf/{name}") is not None, name


@pytest.mark.parametrize(
    "path",
    [
        *(
            ".env.example",
            ".env.sample",
            ".env.template",
            ".env.dist",
            "conf/x.pem.example",
            "secrets.toml.template",
        ),
        *(
            "environment.py",
            "env.py",
            "keys.py",
            "key",
            "tokens.json",
            "monkey.keys",
            "src/aws/x.py",
            "docker/x",
        ),
        *(
            "credentials.py",
            "credentials.py.bak",
            "#train.py#",
            ".train.py.swp",
            "notes.old",
            "conf/x.pem.example~",
            "secrets.toml.template.bak",
            "~",
            "#",
            "##",
            ".bak",
            "a.json.orig",
            "config/gh/x",
            ".github/workflows/x.yml",
            ".envoy/x",
            "id_card.png",
            "kaggle.jsonl",
        ),
    ],
)
def test_what_only_looks_alike_ships(path):
    assert credential_rule(path) is None


def test_G9_a_link_out_to_a_store_of_the_home_does_not_ship(make, home, tmp_path):
    write(
        home, {".ssh/id_rsa": CANARY, ".config/hub": CANARY, ".claude/settings": CANARY, "notes.txt": CANARY}
    )
    place = make({})
    for number, target in enumerate((".ssh/id_rsa", ".config/hub", ".claude/settings", "notes.txt")):
        (place / f"l{number}").symlink_to(home / target)
    (place / "folder").symlink_to(home / ".ssh")
    commit(place)
    found = packed(place, include=["folder", "l*", "folder/*"])
    assert sorted(shipped(found)) == ["train.py"]
    assert CANARY.encode() not in everything(place, found, tmp_path)


def test_G9_a_tracked_file_that_is_reached_through_a_link_now_does_not_ship(make, home, tmp_path):
    write(home, {"other/x.txt": CANARY})
    place = make({"lib/x.txt": "mine"})
    (place / "lib/x.txt").unlink()
    (place / "lib").rmdir()
    (place / "lib").symlink_to(home / "other")
    found = packed(place)
    assert sorted(shipped(found)) == ["train.py"]
    assert CANARY.encode() not in everything(place, found, tmp_path)


def test_a_link_into_the_repositorys_own_files_does_not_ship(make, tmp_path):
    place = make({})
    git(place, "config", "http.extraHeader", f"Authorization: {CANARY}")
    (place / "config.txt").symlink_to(".git/config")
    found = packed(place)
    assert sorted(shipped(found)) == ["train.py"]
    assert CANARY.encode() not in everything(place, found, tmp_path)


def test_a_token_in_a_file_that_ships_is_told_with_its_line_and_not_shown(make, tmp_path):
    place = make({"conf.py": f"a = 1\nTOKEN = '{TOKEN}'\n", "fine.py": "b = 2\n"})
    for _ in range(2):
        found = packed(place)
        told = warned(found, "looks like a token")
        assert told.startswith("conf.py:2 ")
        assert TOKEN.encode() not in json.dumps([found.spec, found.summary]).encode()
    kept = b"".join(path.read_bytes() for path in (tmp_path / "trainshed-home").rglob("*") if path.is_file())
    assert TOKEN.encode() not in kept


@pytest.mark.parametrize(
    "arguments",
    [
        {"env": {"HARMLESS": TOKEN}},
        {"env": {"API_KEY": CANARY}},
        {"env": {"HARMLESS": TOKEN}, "hours": -1, "include": ["~"]},
    ],
)
def test_G49_a_refusal_never_holds_the_value(make, arguments):
    error = refusal(make({}), script="train.py", **arguments)
    assert error.code == "invalid_request"
    told = json.dumps([error.message, error.hint, dict(error.detail)])
    assert TOKEN not in told
    assert CANARY not in told


@pytest.mark.parametrize("args", [["--token", TOKEN], [f"--token={TOKEN}"]])
def test_a_token_among_the_arguments_is_told_without_it(make, args):
    found = packed(make({}), args=args)
    assert TOKEN not in warned(found, "`gpu secrets set NAME`")


def test_a_gpu_yaml_that_is_a_link_out_is_not_read(make, home):
    write(home, {".aws/credentials": f"secret: {CANARY}\n", "x.yaml": f"{CANARY}: 1\n"})
    for target in (".aws/credentials", "x.yaml"):
        place = make({})
        (place / "gpu.yaml").unlink(missing_ok=True)
        (place / "gpu.yaml").symlink_to(home / target)
        error = refusal(place, script="train.py")
        assert "link out of the project" in error.message
        assert CANARY not in str(error)


@pytest.mark.parametrize(
    "target", [".", "..", ".ssh", ".ssh/keys", ".config", ".cache/huggingface/x", ".config/git"]
)
@pytest.mark.parametrize("by", ["argument", "gpu.yaml", "link"])
def test_the_home_directory_and_its_stores_are_never_data(make, home, target, by):
    write(home, {
        ".ssh/keys/a": CANARY, ".config/gh/hosts.yml": CANARY, ".cache/huggingface/x/token": CANARY,
        ".config/git/credentials": CANARY,
    })  # fmt: skip
    path = os.path.normpath(home / target)
    place = make(
        {"gpu.yaml": f"data: [{{mount: x, path: {json.dumps(path)}}}]\n"} if by == "gpu.yaml" else {}
    )
    if by == "link":
        (place / "d").symlink_to(path)
    given = {"argument": [f"x={path}"], "link": ["x=d"]}.get(by)
    error = refusal(place, script="train.py", data=given)
    assert error.code == "invalid_request"
    assert CANARY not in str(error)


@pytest.mark.parametrize("target", ["", "..", ".ssh", ".aws/sub"])
def test_the_home_directory_and_its_stores_are_no_projects(home, target):
    write(home, {".ssh/a": "x", ".aws/sub/train.py": "x", "train.py": "x"})
    error = refusal(os.path.normpath(home / target), script="train.py")
    assert error.code == "invalid_request"
    assert "is not packed" in error.message


def test_a_home_that_is_a_repository_is_not_packed_for_a_folder_in_it(home):
    write(home, {"proj/train.py": "x"})
    git(home, "init", "--quiet")
    error = refusal(home / "proj", script="train.py")
    assert error.code == "invalid_request"
    assert "git init" in error.hint


def test_data_with_a_link_into_a_store_is_refused(make, home, tmp_path):
    write(home, {".ssh/a": CANARY})
    place = make({})
    write(tmp_path / "set", {"deep/a.txt": "1"})
    (tmp_path / "set/deep/l").symlink_to(home / ".ssh")
    error = refusal(place, script="train.py", data=[f"x={tmp_path}/set"])
    assert (error.code, "store of credentials" in error.message) == ("invalid_request", True)


def test_credentials_and_stores_inside_data_are_passed_over_and_counted(make, tmp_path):
    write(tmp_path / "set", {"a.csv": "1", ".env": CANARY, "x/.aws/credentials": CANARY, "k.pem": CANARY})
    place = make({})
    found = packed(place, data=[f"{tmp_path}/set"])
    assert (found.spec["data"][0]["files"], found.spec["data"][0]["mount"]) == (1, "set")
    assert warned(found, "data set: 3 credential-looking files never ship")
    assert CANARY.encode() not in everything(place, found, tmp_path)


def test_a_single_file_with_credentials_is_no_data(make):
    place = make({".gitignore": "*.pem\n"})
    write(place, {"k.pem": CANARY})
    assert refusal(place, script="train.py", data=["k.pem"]).code == "invalid_request"


def test_an_address_with_a_token_in_pyproject_is_refused_without_it(make):
    text = f'[project]\nname="a"\ndependencies=["x @ git+https://u:{TOKEN}@example.org/x"]\n'
    error = refusal(make({"pyproject.toml": text}), script="train.py")
    assert "token" in error.message
    assert TOKEN not in str(error)


def test_the_folder_of_this_program_never_ships_where_it_lies_in_the_project(make, tmp_path, monkeypatch):
    place = make({})
    write(place, {".trainshed/login": CANARY, "set/.trainshed/login": CANARY, "set/a": "1"})
    monkeypatch.setenv("TRAINSHED_HOME", str(place / ".trainshed"))
    (place / ".trainshed").chmod(0o700)
    found = packed(place, include=[".trainshed"])
    assert not [path for path in shipped(found) if path.startswith(".trainshed")]
    monkeypatch.setenv("TRAINSHED_HOME", str(place / "set/.trainshed"))
    assert packed(place, data=["set"]).spec["data"][0]["files"] == 1
    assert refusal(place, script="train.py", data=["set/.trainshed"]).code == "invalid_request"
