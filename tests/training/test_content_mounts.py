"""Datasets and Models that replicas of a real task read where it mounts them, and cannot change (C11-C13)."""

from __future__ import annotations

from typing import Any

import pytest

from support.contents import published_on
from training.live import MOUNT, VOLUME, Live
from trainshed.jobkit import linux
from trainshed.model.content import ContentKind

pytestmark = pytest.mark.skipif(not linux.may_mount(), reason="needs the right to mount")

WORDS = {
    "README.md": b"read\n",
    "train/a.txt": b"one\n",
    "train/deep/ü b.txt": b"two\n",
    "test/c.txt": b"no\n",
}
BASE = {"config.json": b"{}\n", "weights/model.bin": b"w" * 100_000}
OUT = {"type": "volume", "ref": VOLUME, "mount_path": MOUNT}
LOOKS = f"""
exec > {MOUNT}/$CASE-$RANK 2>&1
for place in /mnt/words /mnt/train /mnt/config.json /volume/model; do
  find $place -type f -print | LC_ALL=C sort
done
cat /mnt/words/README.md "/mnt/train/deep/ü b.txt" /mnt/config.json
sha256sum < /volume/model/model.bin
for write in "echo x >> /mnt/train/a.txt" "touch /mnt/words/new" "rm /mnt/words/README.md" \\
    "chmod 777 /mnt/config.json" "mv /volume/model/model.bin /volume/model/x" "echo x > /mnt/config.json"; do
  bash -c "$write" 2> /dev/null && echo "did: $write"
done
echo end
"""
SEEN = """/mnt/words/README.md
/mnt/words/test/c.txt
/mnt/words/train/a.txt
/mnt/words/train/deep/ü b.txt
/mnt/train/a.txt
/mnt/train/deep/ü b.txt
/mnt/config.json
/volume/model/model.bin
read
two
{}
0af6d7a00b4c067cea9f902fe29603150d22434d95c503525e2db5bb625e81d2  -
end
"""


def mount(kind: str, ref: str, at: str, sub_path: str | None = None, **more: Any) -> dict[str, Any]:
    part = {} if sub_path is None else {"sub_path": sub_path}
    return {"type": kind, "ref": ref, "mount_path": at, **part, **more}


def test_C11_C12_C13_replicas_read_a_dataset_and_a_model_whole_and_in_part_and_change_neither(
    live: Live,
) -> None:
    words = published_on(live.server, ContentKind.DATASETS, "team/words", WORDS)["manifest_sha256"]
    base = published_on(live.server, ContentKind.MODELS, "team/base", BASE)["manifest_sha256"]
    mounts = [
        OUT,
        mount("dataset", f"team/words@{words}", "/mnt/words"),
        mount("dataset", f"envloop://datasets/team/words@sha256:{words}", "/mnt/train", "train"),
        mount("model", f"team/base@sha256:{base}", "/mnt/config.json", "config.json"),
        mount("model", f"envloop://models/team/base@{base}", "/volume/model", "weights", read_only=True),
    ]
    env = [{"name": "CASE", "value": "first"}, {"name": "LC_ALL", "value": "C.UTF-8"}]
    job = live.create(LOOKS, mounts=mounts, workers=1, env=env)
    task = live.succeeded(job)
    for rank in (0, 1):
        assert (live.volume / f"first-{rank}").read_text() == SEEN
    assert [each.get("read_only") for each in task["spec"]["mounts"]] == [False, True, True, True, True]
    again = live.create(LOOKS, mounts=mounts, env=[{"name": "CASE", "value": "again"}, env[1]])
    live.succeeded(again)
    assert (live.volume / "again-0").read_text() == SEEN, "what the first left is what was published"


def test_C13_a_content_that_is_to_be_written_to_is_refused_before_anything_runs(live: Live) -> None:
    words = published_on(live.server, ContentKind.DATASETS, "team/words", WORDS)["manifest_sha256"]
    answer = live.ask(
        "true", mounts=[OUT, mount("dataset", f"team/words@{words}", "/mnt/words", "nope", read_only=False)]
    )
    assert answer.status == 422
    assert {each["code"] for each in answer.json["errors"]} == {"MOUNT_READ_ONLY", "MOUNT_SUB_PATH_UNKNOWN"}
