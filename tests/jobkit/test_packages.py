"""Packages of a script Job are installed before it runs, for it alone (contract G, section e.13)."""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
import venv
import zipfile
from pathlib import Path

import pip
import pytest

from support.installers import UV, path_with
from support.waiting import wait_until
from support.wheels import wheel
from support.work_folders import WorkFolder, finish

USE = "import os, tiny_thing\nprint(tiny_thing.VERSION, os.path.dirname(tiny_thing.__file__))\n"


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything there is to install."""
    folder = tmp_path_factory.mktemp("links")
    wheel(folder, "tiny_thing", requires=("tiny_need",), script="tiny")
    wheel(folder, "tiny_thing", "2.0", requires=("tiny_need",))
    wheel(folder, "tiny_need")
    return folder


@pytest.fixture(params=["pip", "uv"])
def installer(request: pytest.FixtureRequest, tmp_path: Path, links: Path) -> dict[str, str]:
    """Variables with which the runner has this installer, and no index."""
    return {
        "PATH": path_with(request.param, tmp_path),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(links),
        "UV_FIND_LINKS": str(links),
        "UV_OFFLINE": "1",
        "UV_CACHE_DIR": str(tmp_path / "uv-cache"),
        "INSTALLER": request.param,
    }


@pytest.fixture
def offline(links: Path, tmp_path: Path) -> dict[str, str]:
    """Variables with which the runner has the faster installer, and no index."""
    found = {"UV_OFFLINE": "1", "UV_FIND_LINKS": str(links), "UV_CACHE_DIR": str(tmp_path / "uv-cache")}
    return {**found, "PATH": f"{UV.parent}:{os.environ['PATH']}"}


@pytest.fixture
def slow_installer(tmp_path: Path) -> tuple[str, Path]:
    """A PATH with an installer that does not end, and the file that it makes when it begins."""
    programs, begun = tmp_path / "programs", tmp_path / "begun"
    programs.mkdir()
    (programs / "uv").write_text(f"#!/bin/sh\ntouch {begun}\nexec sleep 300\n")
    (programs / "uv").chmod(0o755)
    return f"{programs}:{os.environ['PATH']}", begun


def job(path: Path, needs: str = "tiny_thing<2\n", script: str = USE) -> WorkFolder:
    work = WorkFolder(path).code({"train.py": script, "requirements.txt": needs})
    return work.manifest({"script": "train.py"}, {"kind": "requirements", "file": "requirements.txt"})


def own_packages() -> set[str]:
    return {name for name in os.listdir(sysconfig.get_path("purelib")) if name.startswith("tiny")}  # noqa: PTH208


def test_G10_packages_of_a_requirements_file_are_importable_and_the_log_shows_it(tmp_path, installer):
    work = job(tmp_path / "work")
    done = work.run(**installer)
    version, place = done.lines[-1].split()
    assert (done.code, version) == (0, "1.0")
    assert place.startswith(str(work.path / ".gpu" / "env"))
    assert f"gpu: installing requirements.txt with {installer['INSTALLER']}" in done.lines
    assert any("tiny" in line and ("Successfully installed" in line or "+ " in line) for line in done.lines)


def test_G11_packages_of_a_pyproject_are_importable(tmp_path, installer):
    work = WorkFolder(tmp_path / "work").code({"train.py": USE})
    work.manifest(
        {"script": "train.py"}, {"kind": "pyproject", "file": "pyproject.toml", "packages": ["tiny-thing"]}
    )
    done = work.run(**installer)
    assert done.lines[-1].split()[0] == "2.0"


def test_G12_nothing_is_installed_into_the_callers_environment(tmp_path, installer):
    before = sorted(os.listdir(sysconfig.get_path("scripts")))  # noqa: PTH208
    target = tmp_path / "target"
    astray = {"PIP_TARGET": str(target), "PIP_USER": "1", "UV_SYSTEM_PYTHON": "1", "PYTHONPATH": str(target)}
    done = job(tmp_path / "work").run(**installer, **astray)
    assert done.lines[-1].startswith("1.0 ")
    assert own_packages() == set()
    assert sorted(os.listdir(sysconfig.get_path("scripts"))) == before  # noqa: PTH208
    assert not target.exists()
    assert not (tmp_path / "work" / ".local").exists()


def test_the_second_job_with_the_same_packages_starts_at_once(tmp_path, installer):
    cache = tmp_path / "cache"
    first = job(tmp_path / "first").run(TRAINSHED_ENV_CACHE=str(cache), **installer)
    second = job(tmp_path / "second").run(TRAINSHED_ENV_CACHE=str(cache), **installer)
    assert first.lines[-1] == second.lines[-1]
    assert str(cache) in second.lines[-1]
    assert any("is installed already" in line for line in second.lines)
    assert not any("installing" in line for line in second.lines)


def test_other_packages_are_another_environment(tmp_path, offline):
    cache = str(tmp_path / "cache")
    one = job(tmp_path / "one").run(TRAINSHED_ENV_CACHE=cache, **offline)
    two = job(tmp_path / "two", "tiny_thing\n").run(TRAINSHED_ENV_CACHE=cache, **offline)
    nested = job(tmp_path / "three", "-r more.txt\n").code({"more.txt": "tiny_thing<2"})
    three = nested.run(TRAINSHED_ENV_CACHE=cache, **offline)
    nested.code({"more.txt": "tiny_thing"})
    four = nested.run(TRAINSHED_ENV_CACHE=cache, **offline)
    assert [done.lines[-1].split()[0] for done in (one, two, three, four)] == ["1.0", "2.0", "1.0", "2.0"]
    assert len({done.lines[-1].split()[1] for done in (one, two, three, four)}) == 4


def test_two_jobs_at_once_make_one_environment(tmp_path, offline):
    cache = str(tmp_path / "cache")
    both = [job(tmp_path / name).start(TRAINSHED_ENV_CACHE=cache, **offline) for name in ("one", "two")]
    done = [finish(process) for process in both]
    assert [one.code for one in done] == [0, 0]
    assert done[0].lines[-1] == done[1].lines[-1]
    assert sorted("installing" in one.text for one in done) == [False, True] or any(
        "waiting for it" in one.text for one in done
    )
    assert len(list(Path(cache).glob("*/complete"))) == 1


def test_an_environment_that_was_cut_short_is_made_anew(tmp_path, offline):
    cache = tmp_path / "cache"
    job(tmp_path / "one").run(TRAINSHED_ENV_CACHE=str(cache), **offline)
    complete = next(cache.glob("*/complete"))
    complete.unlink()
    (complete.parent / "bin" / "python").unlink()
    done = job(tmp_path / "two").run(TRAINSHED_ENV_CACHE=str(cache), **offline)
    assert done.lines[-1].startswith("1.0 ")
    assert complete.exists()


def test_a_runner_killed_while_it_installs_leaves_nothing_that_is_taken_for_whole(
    tmp_path, offline, slow_installer
):
    cache, (path, begun) = str(tmp_path / "cache"), slow_installer
    process = job(tmp_path / "one").start(TRAINSHED_ENV_CACHE=cache, **{**offline, "PATH": path})
    wait_until(begun.exists)
    process.kill()
    process.communicate()
    done = job(tmp_path / "two").run(TRAINSHED_ENV_CACHE=cache, **offline)
    assert done.lines[-1].startswith("1.0 ")


def test_sigterm_while_packages_are_installed_ends_the_installer(tmp_path, slow_installer):
    path, begun = slow_installer
    work = job(tmp_path / "one")
    process = work.start(PATH=path)
    wait_until(begun.exists)
    process.terminate()
    assert finish(process).code == 143
    assert (work.record["stage"], work.record["stopped"]) == ("install", True)


@pytest.mark.parametrize("needs", ["no_such_thing\n", "tiny_thing==9\n"])
def test_packages_that_cannot_be_had_are_exit_90_and_the_program_does_not_run(tmp_path, installer, needs):
    work = job(tmp_path / "work", needs, "print('ran')\n")
    done = work.run(**installer)
    assert (done.code, work.record["stage"]) == (90, "install")
    why = r"requirements\.txt could not be installed( anywhere)?: .* ended with exit status"
    assert re.search(why, work.record["message"])
    assert "ran" not in done.lines
    assert not (work.path / ".gpu" / "env").exists()


def test_a_requirements_file_that_did_not_ship_is_exit_90(tmp_path):
    work = job(tmp_path / "work")
    (work.path / "code" / "requirements.txt").unlink()
    done = work.run()
    assert (done.code, "requirements.txt cannot be read" in done.text) == (90, True)


def test_a_requirements_file_that_asks_for_nothing_installs_nothing(tmp_path):
    done = job(tmp_path / "work", "# nothing\n\n", "print('ran')\n").run()
    assert done.lines == ["ran"]


def test_files_of_the_job_itself_are_installed_for_it_alone(tmp_path, offline, links):
    cache = tmp_path / "cache"
    work = job(tmp_path / "work", "./own/tiny_thing-1.0-py3-none-any.whl\n")
    (work.path / "code" / "own").mkdir()
    shutil.copy(links / "tiny_thing-1.0-py3-none-any.whl", work.path / "code" / "own")
    done = work.run(TRAINSHED_ENV_CACHE=str(cache), **offline)
    assert done.lines[-1].startswith(f"1.0 {work.path / '.gpu' / 'env'}")
    assert not cache.exists()


@pytest.mark.parametrize("kind", ["none", "requirements"])
def test_G12_what_a_program_installs_itself_is_for_it_alone(tmp_path, offline, links, kind):
    """Neither the caller's environment nor the one that Jobs share has it afterwards."""
    shown = "python -c 'import tiny_need as t; print(t.__file__)'"
    installs = f"pip install -q --disable-pip-version-check tiny_need && {shown}"
    work = job(tmp_path / "work", "other_thing\n").manifest(
        {"command": ["bash", "-c", installs]}, {"kind": kind, "file": "requirements.txt"}
    )
    wheel(links, "other_thing")
    cache = tmp_path / "cache"
    done = work.run(**offline, TRAINSHED_ENV_CACHE=str(cache), PIP_NO_INDEX="1", PIP_FIND_LINKS=str(links))
    assert done.code == 0, done.text
    assert done.lines[-1].startswith(str(work.path / ".gpu" / "env"))
    assert own_packages() == set()
    assert list(cache.rglob("tiny_need*")) == []


def test_a_cache_that_cannot_be_used_is_done_without(tmp_path, offline):
    (tmp_path / "cache").write_text("no folder")
    done = job(tmp_path / "work").run(TRAINSHED_ENV_CACHE=str(tmp_path / "cache"), **offline)
    assert done.lines[-1].startswith("1.0 ")
    assert any("environments cannot be kept" in line for line in done.lines)


def test_programs_of_the_packages_are_on_the_path(tmp_path, offline):
    work = job(tmp_path / "work").manifest(
        {"command": ["bash", "-c", "tiny && python -c 'import tiny_need; print(tiny_need.VERSION)'"]},
        {"kind": "requirements", "file": "requirements.txt"},
    )
    assert work.run(**offline).lines[-2:] == ["tiny_thing 1.0", "1.0"]


@pytest.fixture(scope="module")
def framework(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter in a virtual environment that has a framework, and pip."""
    path = tmp_path_factory.mktemp("has-torch") / "env"
    venv.create(path, symlinks=True)
    packages = next(path.glob("lib/*/site-packages"))
    (packages / "pip.pth").write_text(f"{Path(pip.__file__).parents[1]}\n")
    with zipfile.ZipFile(wheel(path.parent, "torch", "2.9")) as archive:
        archive.extractall(packages)
    return path / "bin" / "python"


def test_a_framework_that_is_here_is_used_and_not_fetched(tmp_path, framework, links):
    """uv would fetch it again, for it does not see it: pip is taken although uv is there."""
    work = job(
        tmp_path / "work", "torch>=2\ntiny_thing<2\n", "import torch, tiny_thing\nprint(torch.VERSION)\n"
    )
    work.python = str(framework)
    path = f"{UV.parent}:{os.environ['PATH']}"
    done = work.run(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(links), PATH=path)
    assert (done.code, done.lines[-1]) == (0, "2.9")
    assert any("Requirement already satisfied: torch" in line for line in done.lines)
    assert "gpu: installing requirements.txt with pip" in done.lines


def test_another_python_than_the_project_asks_for_is_said(tmp_path):
    work = WorkFolder(tmp_path / "work").code({"train.py": "print('ran')"})
    work.manifest({"script": "train.py"}, {"kind": "pyproject", "python_requires": ">=3.7,<3.8"})
    done = work.run()
    assert done.lines[-1] == "ran"
    assert any("asks for Python >=3.7,<3.8" in line for line in done.lines)
