"""Every statement of the contracts E (envloop) and C (create training) has a test that names it.

A test names a statement in its own name (``test_E24_...``) or in a row of its table of cases
(``("C15", ...)``, ``Case("E39 17 Trials", ...)``). Contract G has a list of its own, in ``tests/agents``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
STATEMENTS = {"E": 109, "C": 60}
INSIDE = {"model", "policy", "store", "content", "control", "engines", "jobkit"}
"""Rooms' own tests; all others go through a public door: HTTP, command line, SDK or published client."""
WITHOUT = {
    "E81": "the pages of the web console, which does not exist yet",
    "C60": "the order of the web console's form, which does not exist yet",
}
"""Statements that no test can prove, and why. That the console shows tags (half of E88) waits for it too."""
_IN_NAME = re.compile(r"(?<=_)[EC]\d+(?=_|$)")
_IN_ROW = re.compile(r"([EC]\d+)(?: |$)")


def named(tree: ast.Module) -> Iterator[str]:
    """The statements that the tests of one module name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield from _IN_NAME.findall(node.name)
        first: list[ast.expr] = []
        if isinstance(node, ast.Tuple):
            first = node.elts[:1]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Case":
            first = node.args[:1]
        for one in first:
            if isinstance(one, ast.Constant) and isinstance(one.value, str):
                yield from _IN_ROW.findall(one.value)[:1]


@pytest.fixture(scope="module")
def rooms() -> dict[str, set[str]]:
    """In the tests of which rooms each statement is named."""
    found: dict[str, set[str]] = {}
    for file in TESTS.rglob("test_*.py"):
        for statement in named(ast.parse(file.read_text())):
            found.setdefault(statement, set()).add(file.relative_to(TESTS).parts[0])
    return found


def numbers(statements: set[str]) -> list[str]:
    return sorted(statements, key=lambda each: (each[0], int(each[1:])))


@pytest.mark.parametrize("contract", STATEMENTS)
def test_every_statement_has_a_test(rooms, contract):
    wanted = {f"{contract}{number}" for number in range(1, STATEMENTS[contract] + 1)}
    known = {each for each in rooms if each.startswith(contract)}
    assert numbers(wanted - known - WITHOUT.keys()) == []
    assert numbers(known - wanted) == [], "no such statements"
    assert numbers(known & WITHOUT.keys()) == [], "they have a test by now"


def test_every_statement_of_e_is_proved_through_a_public_door(rooms):
    inside = {each for each, found in rooms.items() if each.startswith("E") and found <= INSIDE}
    assert numbers(inside) == []
