"""The pages say what the program does: the picture of states is drawn, links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")])
DECISIONS = sorted(ROOT.glob("docs/decisions/0*.md"))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def test_the_picture_of_states_is_drawn_from_the_table_of_moves():
    done = subprocess.run([sys.executable, str(ROOT / "scripts/draw_states.py"), "--check"], check=False)
    assert done.returncode == 0, "run .venv/bin/python scripts/draw_states.py"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as they are made of their text."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_inside_the_repository_leads_somewhere(page):
    for target in LINK.findall(page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{target} is not there"
        assert not anchor or anchor in anchors(there), f"{target}: no such heading"


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_says_what_was_given_what_was_chosen_and_what_follows_on_one_page(page):
    lines = page.read_text().splitlines()
    number = int(page.stem[:4])
    assert lines[0].startswith(f"# {number}. ")
    assert [line for line in lines if line.startswith("## ")] == [
        "## Context",
        "## Choice",
        "## Consequences",
    ]
    assert len(lines) <= 60


def test_every_decision_stands_in_the_list_under_its_own_title():
    listed = dict(
        re.findall(r"\| \[(\d{4})\]\([^)]*\) \| (.+) \|", (DECISIONS[0].parent / "README.md").read_text())
    )
    titles = {page.stem[:4]: page.read_text().splitlines()[0].split(". ", 1)[1] for page in DECISIONS}
    assert listed == titles
    assert [int(number) for number in titles] == list(range(1, len(titles) + 1))


def test_every_target_of_make_that_a_page_names_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"^ {4}make ([a-z]+)", page.read_text(), re.MULTILINE))
        assert named <= targets, page
