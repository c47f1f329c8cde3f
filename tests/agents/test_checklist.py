"""Every statement of contract G's checklist has a test here, which goes through the protocol."""

from __future__ import annotations

import ast
import re
from pathlib import Path

STATEMENTS = {f"G{number}" for number in range(1, 83)}


def test_every_statement_of_the_checklist_has_a_test_that_goes_through_the_protocol():
    named: set[str] = set()
    for file in Path(__file__).parent.glob("test_*.py"):
        tests = (
            node.name
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        )
        named |= {found for name in tests for found in re.findall(r"(?<=_)G\d+(?=_|$)", name)}
    assert sorted(STATEMENTS - named) == []
    assert sorted(named - STATEMENTS) == [], "no such statements"
