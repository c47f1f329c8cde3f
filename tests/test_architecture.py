"""The shape of the program (design section 4): rooms, their size, and what only some of them may do."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "trainshed"
ROOMS = {"cli", "content", "control", "engines", "jobkit", "mcp", "model", "policy", "sdk", "server", "store"}
SHIPPED = {"runners"}
"""Programs that are published at the first start; no code of ours runs them in its own process."""
MAX_LINES = {"src": 500, "bench": 500, "scripts": 500, "tests": 550}
OWN_CODE = tuple(MAX_LINES)
PROCESS_CALLS = re.compile(
    r"fork\w*|exec[lv]\w*|spawn\w*|posix_spawn\w*|system|popen|kill|killpg|pidfd_open|pidfd_send_signal"
)


def modules(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imported(path: Path) -> Iterator[str]:
    """Absolute names of what a module imports, wherever in it."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which room is meant"
            yield node.module or ""


def calls(path: Path) -> Iterator[tuple[str, str]]:
    """``(module, function)`` of every call written ``module.function(...)``."""
    for node in ast.walk(parsed(path)):
        function = node.func if isinstance(node, ast.Call) else None
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            yield function.value.id, function.attr


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_imports_go_one_way():
    """The contracts are written in pyproject.toml, section tool.importlinter."""
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(program), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rooms_are_those_of_the_design():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == ROOMS | SHIPPED
    loose = {path.name for path in PACKAGE.glob("*.py")}
    assert loose == {"__init__.py", "__main__.py"}


def test_every_room_says_at_its_door_what_it_is():
    for room in ROOMS:
        assert ast.get_docstring(parsed(PACKAGE / room / "__init__.py")), room


@pytest.mark.parametrize("folder", OWN_CODE)
def test_no_file_outgrows_one_sitting(folder):
    sizes = {name(path): len(path.read_text().splitlines()) for path in modules(ROOT / folder)}
    assert {path: size for path, size in sizes.items() if size > MAX_LINES[folder]} == {}


def test_no_module_is_a_drawer_for_leftovers():
    drawers = re.compile(r"utils?|helpers?|misc|stuff|commons?")
    assert [name(p) for p in modules(PACKAGE) if drawers.fullmatch(p.stem) and p.parent == PACKAGE] == []
    assert [name(p) for p in modules(*(ROOT / f for f in OWN_CODE)) if re.match(r"utils?$", p.stem)] == []


def test_jobkit_needs_nothing_but_the_standard_library():
    """It runs beside user code, under whatever Python and without our dependencies.

    What the program itself brings is asked for where its lack is an answer, never while a module loads.
    """
    of_the_program = {"precheck.py": {"torch"}, "ray_capture.py": {"ray"}, "ray_load.py": {"ray"}}
    for path in modules(PACKAGE / "jobkit"):
        for module in imported(path):
            top = module.split(".")[0]
            known = top in sys.stdlib_module_names or module.startswith("trainshed.jobkit")
            assert known or top in of_the_program.get(path.name, ()), f"{name(path)} imports {module}"
        at_load = {
            alias.name.split(".")[0]
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        assert not at_load & of_the_program.get(path.name, set())


def test_only_engines_and_jobkit_start_or_signal_processes():
    """The named crash points are the exception: they kill their own process in tests."""
    allowed = {"engines", "jobkit"}
    found = {
        name(path)
        for path in modules(PACKAGE)
        if path.relative_to(PACKAGE).parts[0] not in allowed | SHIPPED
        for module, function in calls(path)
        if module in {"os", "signal"} and PROCESS_CALLS.fullmatch(function)
    }
    assert found == {"src/trainshed/control/crashpoints.py"}


def test_only_the_store_writes_sql():
    sql = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE TABLE)\b[^\"']*\b(FROM|VALUES|SET|\()")
    for path in modules(PACKAGE):
        if path.relative_to(PACKAGE).parts[0] == "store":
            continue
        texts = (n.value for n in ast.walk(parsed(path)) if isinstance(n, ast.Constant))
        assert not any(isinstance(text, str) and sql.search(text) for text in texts), name(path)


def test_tests_wait_for_conditions_and_never_for_a_time():
    for path in modules(ROOT / "tests"):
        sleeps = [call for call in calls(path) if call in {("time", "sleep"), ("asyncio", "sleep")}]
        assert sleeps == [], name(path)


# The words below are what these two tests look for; nothing is left out here.
@pytest.mark.parametrize("mark", ["noqa", "type: ignore"])
def test_every_exception_from_a_check_names_its_rule_and_its_reason(mark):
    explained = {
        "noqa": re.compile(r"# noqa: [A-Z]+\d+(, [A-Z]+\d+)* - \S"),
        "type: ignore": re.compile(r"# type: ignore\[[a-z-]+(, ?[a-z-]+)*\]\s+# \S"),
    }[mark]
    for path in modules(PACKAGE):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if f"# {mark}" in line:
                assert explained.search(line), f"{name(path)}:{number}: {line.strip()}"


def test_nothing_is_left_for_later():
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError")
    for path in modules(ROOT / "src", ROOT / "bench"):
        assert not marks.search(path.read_text()), name(path)


def test_the_program_names_one_version_everywhere():
    project = (ROOT / "pyproject.toml").read_text()
    declared = re.search(r'^version = "([^"]+)"', project, re.MULTILINE)
    assert declared
    assert f'__version__ = "{declared[1]}"' in (PACKAGE / "__init__.py").read_text()
    assert f"## {declared[1]}" in (ROOT / "CHANGELOG.md").read_text()
