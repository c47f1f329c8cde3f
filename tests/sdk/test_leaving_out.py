"""What a publication leaves out: what is excluded, what git ignores, and credentials in code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.contents import RECIPE
from support.projects import commit, git, project, set_home, write
from trainshed import Client
from trainshed.sdk import ConfigurationError, NotFreezable, stat_cache
from trainshed.sdk.leaving_out import CREDENTIALS, EXCLUDED, IGNORED, rule_for
from trainshed.sdk.packing.places import find_project
from trainshed.sdk.packing.selection import select
from trainshed.sdk.scan import NEVER, Tree, look

CODE = {"recipe.toml": RECIPE, "train.py": "def main(): ...\n"}


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path) -> Path:
    return set_home(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def client(module_server):
    with Client(module_server.url, module_server.key) as opened:
        yield opened


def published(place: Path, *exclude: str, code: bool = False) -> Tree:
    return look(place, rule_for(exclude, code=code))


def paths(tree: Tree) -> list[str]:
    return [file.path for file in tree.files]


FILES = ("a.log", "build/b.log", "build/keep.log/x", "build/out.o", "data/a/raw/1", "data/b")


@pytest.mark.parametrize(
    ("exclude", "skipped"),
    [
        (["*.log"], {"a.log", "build/b.log", "build/keep.log"}),
        (["*.log/"], {"build/keep.log"}),
        (["/a.log"], {"a.log"}),
        (["build/"], {"build"}),
        (["data/**/raw", "*.o"], {"data/a/raw", "build/out.o"}),
        (["/*", "!/data"], {"a.log", "build"}),
        (["build/*", "!build/*.log"], {"build/out.o"}),
        (["nothing"], set()),
    ],
)
def test_what_is_excluded_is_told_once_and_a_folder_without_what_is_in_it(tmp_path, exclude, skipped):
    write(tmp_path / "tree", dict.fromkeys(FILES, "x"))
    tree = published(tmp_path / "tree", *exclude)
    assert tree.skipped == dict.fromkeys(skipped, EXCLUDED)
    assert paths(tree) == [
        path for path in FILES if not any(f"{path}/".startswith(f"{each}/") for each in skipped)
    ]


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """What git keeps of a folder by some lines of its own file, and what we publish of it."""
    names = ("a", "b.o", "a.o", "é.txt")
    files = [*names, *(f"{one}/{two}" for one in ("c", "d") for two in (*names, "a/b", "c/a.o", "c/d/b.o"))]
    files = [path for path in files if f"{path}/b" not in files]
    place = project(tmp_path_factory.mktemp("judge"), dict.fromkeys(files, "x"), tracked=False)

    def judged(lines):
        (place / ".git/info/exclude").write_text("\n".join(lines))
        listed = git(place, "-c", "core.quotePath=false", "ls-files", "--others", "--exclude-standard")
        return sorted(listed.splitlines(), key=str.encode), paths(published(place, *lines))

    return judged


@given(
    st.lists(
        st.builds(
            "".join,
            st.tuples(
                st.sampled_from(["", "", "!"]),
                st.sampled_from(["", "/", "**/", "c/", "*/", "c/**/", "/**/c/"]),
                st.sampled_from(
                    ["a", "*.o", "*", "?", "[ab]", "[!a]*", "c", "d", "c/d", "**", "a.o", "*.txt"]
                ),
                st.sampled_from(["", "", "/", "/*", "/**"]),
            ),
        ).filter(lambda line: not line.endswith("**/")),  # pathspec takes `c/**/` for `c/`
        min_size=1,
        max_size=4,
    )
)
@example(["*", "!/c", "!/c/a"])
@example(["/c/*", "!/c/a", "c/d/"])
@example(["c/**", "!c/a"])
def test_what_is_excluded_is_judged_as_git_judges_it(judge, lines):
    of_git, ours = judge(lines)
    assert ours == of_git


@pytest.mark.parametrize(
    ("line", "name"),
    [("sp\\ ace", "sp ace"), ("\\#odd", "#odd"), ("\\!x", "!x"), ("end\\ ", "end "), ("x ", "x")],
)
def test_patterns_are_quoted_as_in_a_gitignore(tmp_path, line, name):
    write(tmp_path, {name: "x", "other": "x"})
    assert paths(published(tmp_path, line)) == ["other"]


@pytest.mark.parametrize("pattern", ["", " ", "#", "!", "\\", "["])
def test_a_pattern_that_can_name_nothing_is_refused(tmp_path, pattern):
    with pytest.raises(ConfigurationError, match="names nothing"):
        rule_for(["*.log", pattern], code=False)


def test_what_is_left_out_may_be_anything(tmp_path):
    """A link or a FIFO is no fault where it is not published, nor a folder that nobody may read."""
    write(tmp_path, {"a": "x"})
    (tmp_path / "link").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    published(tmp_path, "/link", "pipe").check()
    with pytest.raises(NotFreezable, match="is a FIFO"):
        published(tmp_path, "link").check()


def test_data_is_published_whole_whatever_git_and_its_names_say(tmp_path):
    place = project(tmp_path / "p", {".gitignore": "raw/", "raw/1": "x", "token.json": "{}"})
    assert paths(published(place)) == [".gitignore", "raw/1", "token.json"]


def test_of_code_what_git_ignores_stays_and_is_told(tmp_path):
    place = project(
        tmp_path / "repo",
        {
            ".gitignore": "build/\n*.bin\n.env\n",
            "recipe/.gitignore": "local*\n!local.md\n",
            "recipe/train.py": "x",
            "recipe/local.md": "x",
            "recipe/local.yaml": "x",
            "recipe/build/out": "x",
            "recipe/only/w.bin": "x",
            "recipe/.env": "KEY=1",
            "recipe/é.bin": "x",
            "recipe/kept.bin": "x",
        },
        tracked=False,
    )
    git(place, "add", "--force", "recipe/kept.bin")
    (place / ".git/info/exclude").write_text("mine\n")
    write(place, {"recipe/mine": "x", "recipe/new.py": "x"})
    tree = published(place / "recipe", code=True)
    assert paths(tree) == [".gitignore", "kept.bin", "local.md", "new.py", "train.py"]
    ignored = {".env", "build", "local.yaml", "mine", "only", "é.bin"}
    assert tree.skipped == dict.fromkeys(ignored, IGNORED)
    packed = select(find_project(str(place)), [])
    assert packed.shipped == {f"recipe/{path}" for path in paths(tree)} | {".gitignore"}


def test_repositories_inside_code_say_themselves_what_they_ignore(tmp_path):
    module = project(tmp_path / "module", {".gitignore": "*.o\n", "m.py": "x"})
    place = project(tmp_path / "repo", {"train.py": "x", ".gitignore": "*.log\n"})
    git(place, "submodule", "--quiet", "add", str(module), "lib/module")
    commit(place)
    write(place, {"lib/module/a.o": "x", "lib/module/b.log": "x", "c.o": "x"})
    project(place / "vendored", {".gitignore": "out/\n", "v.py": "x", "out/1": "x", "in.log": "x"})
    assert paths(published(place, code=True)) == [
        *(".gitignore", ".gitmodules", "c.o", "lib/module/.gitignore", "lib/module/b.log", "lib/module/m.py"),
        *("train.py", "vendored/.gitignore", "vendored/in.log", "vendored/v.py"),
    ]


@pytest.mark.parametrize("rules", ["build/\n", "*\n", "/build/recipe\n"])
def test_code_that_is_named_although_git_ignores_it_is_published(tmp_path, rules):
    place = project(tmp_path / "repo", {".gitignore": rules, "a": "x"}, tracked=False)
    write(place, {"build/recipe/train.py": "x", "build/recipe/sub/x.o": "x", "build/recipe/.env": "A=1"})
    tree = published(place / "build/recipe", code=True)
    assert paths(tree) == ["sub/x.o", "train.py"]
    assert tree.skipped == {".env": f"{CREDENTIALS} (.env)"}


def test_a_folder_whose_every_file_is_ignored_is_not_taken_for_one_that_is_ignored_itself(tmp_path):
    place = project(tmp_path / "repo", {".gitignore": "*.o\n", "a": "x"})
    write(place, {"out/1.o": "x", "out/deep/2.o": "x"})
    tree = published(place / "out", code=True)
    assert tree.skipped == {"1.o": IGNORED, "deep": IGNORED}
    with pytest.raises(NotFreezable, match="holds no files but what is left out"):
        tree.check()


@pytest.mark.parametrize("in_git", [True, False])
def test_P9_of_code_what_looks_like_credentials_is_never_published(tmp_path, in_git):
    """By the very rule of what is packed for a Job: the same files stay."""
    files = dict.fromkeys(
        [".env", ".env.example", "id_rsa.bak", "keys/server.pem", ".ssh/config", "token.json", "train.py"],
        "x",
    )
    place = tmp_path / "p"
    if in_git:
        project(place, files)
    else:
        write(place, files)
    tree = published(place, code=True)
    assert paths(tree) == [".env.example", "train.py"]
    tree.skipped.pop(".git", None)
    assert {why.partition(" (")[0] for why in tree.skipped.values()} == {CREDENTIALS}
    assert tree.skipped.keys() == {".env", "id_rsa.bak", "keys/server.pem", ".ssh", "token.json"}
    packed = select(find_project(str(place)), [])
    assert packed.shipped == set(paths(tree))


def test_P9_a_file_with_credentials_is_not_published_by_itself_either(tmp_path):
    write(tmp_path, {"server.key": "x"})
    tree = published(tmp_path / "server.key", code=True)
    assert tree.skipped == {"server.key": f"{CREDENTIALS} (*.key)"}
    with pytest.raises(NotFreezable, match="but what is left out"):
        tree.check()


def test_P9_the_folder_of_this_program_is_not_published_with_the_code_around_it(tmp_path, monkeypatch):
    write(tmp_path / "p", {"train.py": "x", "mine/data": "x"})
    monkeypatch.setenv("TRAINSHED_HOME", str(tmp_path / "p/mine"))
    assert paths(published(tmp_path / "p", code=True)) == ["train.py"]


def test_a_repository_that_git_cannot_read_is_refused_and_not_published_whole(tmp_path):
    place = project(tmp_path / "p", {"train.py": "x"})
    (place / ".git/HEAD").write_text("nonsense")
    with pytest.raises(NotFreezable, match="git cannot list the repository") as caught:
        published(place, code=True)
    assert "Repair the repository" in caught.value.hint


def test_recipes_and_plugins_are_published_without_what_git_ignores(client, tmp_path, monkeypatch):
    place = project(
        tmp_path / "r", {**CODE, ".gitignore": "runs/\n", "runs/1": "x", ".env": "A=1", "n.log": ""}
    )
    monkeypatch.setattr(stat_cache, "_FINE_GRAIN_NS", -(10**12))
    for door in (client.recipes, client.plugins):
        name = f"out/{door.kind}"
        done = door.publish(place, name=name, version="1", exclude=["*.log"])
        assert [row["path"] for row in door.files(name)] == [".gitignore", "recipe.toml", "train.py"]
        why = {".env": "looks like credentials (.env)", ".git": NEVER, "n.log": EXCLUDED, "runs": IGNORED}
        assert done.reasons == why
        assert sorted(done.skipped) == sorted(why)
        again = door.publish(place, name=name, version="1", exclude=["*.log"])
        assert (again.hashed, again.published_before, again.reasons) == (0, True, why)
    whole = client.datasets.publish(place, name="out/data", exclude=["runs"])
    assert (whole.version.files, whole.reasons) == (5, {".git": NEVER, "runs": EXCLUDED})


def test_one_pattern_is_not_taken_for_many_of_one_letter(client, tmp_path):
    with pytest.raises(ConfigurationError, match=r"exclude is a list of patterns: \['\*.log'\]"):
        client.datasets.publish(tmp_path, name="out/x", exclude="*.log")
