"""Draw the states of a Trial, from the table in ``trainshed.model.states``, into docs/concepts.md.

.venv/bin/python scripts/draw_states.py          # rewrites the picture
.venv/bin/python scripts/draw_states.py --check  # exits 1 if it is not the table's (a test does this)
"""

from __future__ import annotations

import sys
from pathlib import Path

from trainshed.model.states import E_TRIAL_WORDS, MOVES, REOPENINGS, TERMINAL, State

PAGE = Path(__file__).parents[1] / "docs" / "concepts.md"
BEGIN, END = "<!-- states: drawn by scripts/draw_states.py -->\n", "<!-- end of states -->\n"


def drawing() -> str:
    """The Mermaid picture and the table of words, as they belong on the page."""
    picture = ["```mermaid", "stateDiagram-v2", f"    [*] --> {State.QUEUED}"]
    for before in State:
        picture += [f"    {before} --> {after}" for after in State if after in MOVES[before]]
        for after in REOPENINGS.get(before, ()):
            picture.append(f"    {before} --> {after}: a training task, resubmitted")
        if before in TERMINAL:
            picture.append(f"    {before} --> [*]")
    picture.append("```")
    words = ["| state | shown by contract E as |", "| --- | --- |"]
    words += [f"| `{state}` | `{E_TRIAL_WORDS[state]}` |" for state in State]
    return "\n".join([*picture, "", *words, ""])


def page_with(text: str, drawn: str) -> str:
    """The page with the drawing between its two marks."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{drawn}{END}{after}"


def main() -> int:
    """Rewrite the page, or only look whether it is right."""
    text = PAGE.read_text(encoding="utf-8")
    wanted = page_with(text, drawing())
    if "--check" in sys.argv[1:]:
        return 0 if text == wanted else 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
