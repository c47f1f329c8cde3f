"""Which packages a Job installs (e.13; G10, G11 as far as the folder says)."""

from __future__ import annotations

import pytest

from support.projects import packed, refusal, warned, write

PROJECT = '[project]\nname = "a"\nrequires-python = ">=3.9"\ndependencies = ["numpy>=1", "torch"]\n'


def deps(place, **arguments):
    return packed(place, **arguments).spec["deps"]


def test_G10_requirements_are_found_first(make):
    assert deps(make({"requirements.txt": "numpy\n", "pyproject.toml": PROJECT})) == {
        "kind": "requirements",
        "file": "requirements.txt",
        "packages": [],
        "python_requires": None,
    }


def test_G11_else_the_dependencies_of_pyproject(make):
    text = PROJECT + '[dependency-groups]\ndev = ["pytest"]\n[project.optional-dependencies]\nx = ["y"]\n'
    assert deps(make({"pyproject.toml": text})) == {
        "kind": "pyproject",
        "file": "pyproject.toml",
        "packages": ["numpy>=1", "torch"],
        "python_requires": ">=3.9",
    }


@pytest.mark.parametrize("files", [{}, {"pyproject.toml": "[tool.ruff]\n"}])
def test_else_there_are_none(make, files):
    assert deps(make(files))["kind"] == "none"


def test_requirements_that_do_not_ship_do_not_count(make):
    place = make({".gitignore": "requirements.txt\n", "pyproject.toml": PROJECT})
    write(place, {"requirements.txt": "x\n"})
    assert deps(place)["kind"] == "pyproject"


def test_they_are_looked_up_in_the_folder_then_in_the_root(make):
    root = make({"requirements.txt": "a\n", "app/x.py": "1", "lib/requirements.txt": "b\n", "lib/x.py": "1"})
    assert deps(root / "app", script="x.py")["file"] == "requirements.txt"
    assert deps(root / "lib", script="x.py")["file"] == "lib/requirements.txt"


@pytest.mark.parametrize(
    ("wish", "kind", "file"),
    [
        ("none", "none", None),
        ("reqs/gpu.in", "requirements", "reqs/gpu.in"),
        ("sub/pyproject.toml", "pyproject", "sub/pyproject.toml"),
        ("{kind: requirements, file: odd}", "requirements", "odd"),
        ("{kind: pyproject}", "pyproject", "pyproject.toml"),
    ],
)
def test_gpu_yaml_names_another_file(make, wish, kind, file):
    place = make({
        "requirements.txt": "x\n", "reqs/gpu.in": "y\n", "sub/pyproject.toml": PROJECT, "odd": "z\n",
        "pyproject.toml": PROJECT, "gpu.yaml": f"deps: {wish}\n",
    })  # fmt: skip
    found = deps(place)
    assert (found["kind"], found["file"]) == (kind, file)


@pytest.mark.parametrize("wish", ["gone.txt", "ignored.txt", "{kind: requirements}", "broken.toml"])
def test_a_named_file_that_is_missing_ignored_or_broken_is_an_invalid_spec(make, wish):
    place = make({".gitignore": "ignored.txt\n", "gpu.yaml": f"deps: {wish}\n", "broken.toml": "a = = 1\n"})
    write(place, {"ignored.txt": "x\n"})
    assert refusal(place, script="train.py").code == "invalid_spec"


def test_sources_of_uv_become_direct_references(make):
    text = """
[project]
name = "a"
dependencies = ["one[extra]>=1 ; python_version > '3'", "two", "Three_x", "four", "five"]
[tool.uv.sources]
one = { git = "https://example.org/one", rev = "v1", subdirectory = "py" }
two = { url = "https://example.org/two.whl" }
three-x = { path = "../libs/three", editable = true }
four = { index = "torch" }
"""
    place = make({"app/pyproject.toml": text, "app/train.py": "1", "libs/three/setup.py": "1"})
    found = packed(place / "app")
    assert found.spec["deps"]["packages"] == [
        "one[extra] @ git+https://example.org/one@v1#subdirectory=py ; python_version > '3'",
        "two @ https://example.org/two.whl",
        "./libs/three",
        "four",
        "five",
    ]
    assert warned(found, "`four` is installed from the usual index")


@pytest.mark.parametrize(
    "source", ['{ path = "../../out" }', "{ workspace = true }", '[{ git = "a" }, { git = "b" }]']
)
def test_sources_that_a_job_cannot_have_are_refused(make, source):
    text = f'[project]\nname = "a"\ndependencies = ["one"]\n[tool.uv.sources]\none = {source}\n'
    error = refusal(make({"pyproject.toml": text}), script="train.py")
    assert error.code == "invalid_spec"
    assert "`one`" in error.message


def test_a_requirements_file_that_leads_to_one_that_does_not_ship_is_told(make):
    place = make(
        {".gitignore": "local.txt\n", "requirements.txt": "-r base.txt\n-r local.txt\n", "base.txt": "x\n"}
    )
    write(place, {"local.txt": "y\n"})
    assert "`local.txt`" in warned(packed(place), "the installation will fail")
