"""Attempts come and go in any order, content is harmed, processes restart: what is shown is always right."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from support.examples import examples
from support.local_content import Clock, Remote, content_of, publish
from trainshed.content.blobs import FolderBlobStore
from trainshed.content.local import LocalContent

LIMIT = 12_000


class Life(RuleBasedStateMachine):
    """Attempts come and go, content is harmed and the process restarted: what is shown is always right."""

    @initialize()
    def open(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="trainshed-test-")
        root = Path(self._folder.name)
        self.store = FolderBlobStore(root / "store")
        self.remote = Remote(self.store)
        self.clock = Clock()
        self.contents = [{"f": bytes([n]) * 1000, f"g{n}": b"shared"} for n in range(4)]
        self.names = [
            publish(self.store, files, ["f"] if n == 2 else []) for n, files in enumerate(self.contents)
        ]
        self.held: dict[str, set[int]] = {}
        self.root = root / "cache"
        self.local = LocalContent(self.root, self.remote, LIMIT, self.clock)

    def teardown(self) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()

    @rule(number=st.integers(0, 3), holder=st.integers(0, 3))
    def take(self, number: int, holder: int) -> None:
        tree = self.local.tree(self.names[number], f"att_{holder}")
        self.held.setdefault(f"att_{holder}", set()).add(number)
        assert content_of(tree) == self.contents[number]

    @rule(holder=st.integers(0, 3))
    def let_go(self, holder: int) -> None:
        self.local.release(f"att_{holder}")
        self.held.pop(f"att_{holder}", None)

    @rule(number=st.integers(0, 3))
    def harm(self, number: int) -> None:
        place = self.root / "trees" / self.names[number] / "files" / "f"
        if place.exists():
            place.chmod(0o644)
            place.write_bytes(b"harm")
        for each in self.held.values():
            each.discard(number)
        self.clock.now += 61

    @rule()
    def restart(self) -> None:
        self.local = LocalContent(self.root, self.remote, LIMIT, self.clock)

    @rule()
    def age(self) -> None:
        self.clock.now += 100
        self.local.trim()

    @invariant()
    def what_is_held_is_there(self) -> None:
        for numbers in getattr(self, "held", {}).values():
            for number in numbers:
                tree = self.root / "trees" / self.names[number] / "files"
                assert content_of(tree) == self.contents[number]

    @invariant()
    def what_is_not_held_fits(self) -> None:
        if hasattr(self, "local") and not self.held:
            self.local.trim()
            assert self.local.usage().bytes <= LIMIT


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=examples(15), stateful_step_count=25, deadline=None)
