"""What is told of a manifest with entries that cannot be read: no more than is known, and how much it is."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import pytest

from trainshed.content.trees import verify_manifest
from trainshed.model.content import ContentKind
from trainshed.model.errors import Refusal
from trainshed.model.strict_json import canonical_json

GOOD = {"path": "a", "sha256": "a" * 64, "size": 1}
SPLIT = {"type": "data", "configs": {"default": {"train": ["data/*.csv"]}}}
ENTRYPOINT = {"abi": "envloop.train-recipe/1", "entrypoint": "train:main"}


def refused(kind: ContentKind, about: dict[str, Any], files: list[Any]) -> Refusal:
    document = {"schema": "trainshed.manifest/1", "kind": kind, "files": files, "about": about}
    data = canonical_json(document).encode()
    with pytest.raises(Refusal) as caught:
        verify_manifest(io.BytesIO(data).read, kind, hashlib.sha256(data).hexdigest())
    return caught.value


@pytest.mark.parametrize(
    ("kind", "about"), [(ContentKind.DATASETS, SPLIT), (ContentKind.RECIPES, ENTRYPOINT)]
)
def test_nothing_is_told_to_be_missing_that_an_entry_at_fault_may_be(kind, about):
    unread = refused(kind, about | {"more": 1}, [{"name": "train.py", "size": 1}, GOOD])
    assert [fault.path for fault in unread.faults] == ["files[0]", "more"]
    missing = refused(kind, about, [{**GOOD, "size": "x"}])
    assert [fault.path for fault in missing.faults][:1] == ["files[0]"]
    assert len(missing.faults) == 2


@pytest.mark.parametrize("bad", [{"size": "x"}, {"more": 1}, {"path": 7}])
def test_the_faults_of_very_many_entries_are_counted_truly(bad):
    files = [GOOD | {"path": f"{number:05}"} | bad for number in range(10_000)]
    refusal = refused(ContentKind.MODELS, {}, files)
    body = refusal.body()
    assert len(body["errors"]) + body["errors_not_shown"] == 10_000
    ended = refused(ContentKind.MODELS, {}, [*files, GOOD | {"path": "x" * 600_000}]).body()
    assert len(ended["errors"]) + ended["errors_not_shown"] >= 10_001
