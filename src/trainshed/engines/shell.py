"""A shell beside a program, as an engine hands it out (rule 20 of the contract)."""

from __future__ import annotations

from typing import Protocol


class Shell(Protocol):
    """A shell beside a program at a terminal or at pipes, open in this process (rule 20)."""

    @property
    def terminal(self) -> int:
        """A descriptor that does not block: what is written is typed."""
        ...

    @property
    def output(self) -> int:
        """A descriptor that does not block: what is read is printed. At a terminal it is `terminal`.

        Reading may raise `OSError` once the shell is gone.
        """
        ...

    @property
    def ended(self) -> int:
        """A descriptor that is readable once the shell has ended; what it printed may still be unread."""
        ...

    def exit_code(self) -> int | None:
        """How it ended, as rule 11 has it; ``None`` where nobody can say: it ended with its attempt."""
        ...

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size; pipes have none."""
        ...

    def end_input(self) -> None:
        """Whoever reads what is typed finds its end: each call gives a terminal one, a pipe ends for good."""
        ...

    def close(self) -> None:
        """End the shell and everything of its session that still runs. Closing again does nothing."""
        ...
