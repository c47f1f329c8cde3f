"""Checkpoints of script Jobs: what is stored, and what an Attempt begins from (contract G, f and g.9)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from support.waiting import wait_until
from support.work_folders import WorkFolder, finish
from trainshed.jobkit.gpu_runner import store, sync
from trainshed.jobkit.gpu_runner.program import Ended

GO_ON = (
    "import gpu, os, sys, time\n"
    "def wait(name):\n"
    "    while not os.path.exists(name): time.sleep(0.02)\n"
    "def tell(name): open(name, 'w').close()\n"
)
SAVE_AND_END = (
    GO_ON + "with gpu.checkpoint(int(sys.argv[1])) as folder: (folder / 'model').write_text(sys.argv[1])\n"
)
SHOW = (
    "import gpu, os\n"
    "found = gpu.latest_checkpoint()\n"
    "print(found and found.name, gpu.is_resumed(), found and (found / 'model').read_text())\n"
)


@pytest.fixture
def work(tmp_path: Path) -> WorkFolder:
    return WorkFolder(tmp_path / "work")


def at(work: WorkFolder, name: str) -> Path:
    return work.path / "code" / name


def content(work: WorkFolder, n: int) -> dict[str, str]:
    """A stored checkpoint's files, each of which is what the manifest says."""
    folder = work.path / "checkpoint_store" / str(n)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["n"] == n
    found = {}
    for row in manifest["files"]:
        data = (folder / "files" / row["path"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == row["sha256"]
        assert len(data) == row["bytes"]
        found[row["path"]] = data.decode()
    return found


def manifest(work: WorkFolder, n: int) -> dict[str, object]:
    document: dict[str, object] = json.loads(
        (work.path / "checkpoint_store" / str(n) / "manifest.json").read_text()
    )
    return document


def saved(work: WorkFolder, *steps: int) -> WorkFolder:
    """A work folder in whose store these steps were saved by one Attempt after another."""
    for step in steps:
        source = work.path.parent / f"saved-{step}"
        folder = source / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "model").write_text(str(step))
        kept = store.Store(str(work.path / "checkpoint_store"), "a1b2c3d4e5f6", work.attempt)
        kept.claim()
        kept.save(str(source), store.scan(str(source), ".gpu-tmp")[folder.name], "exit", step)
        work.attempt += 1
    return work


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_is_stored_at_the_end_pointer_last(work):
    done = work.script(SAVE_AND_END, "12").run()
    assert content(work, 1) == {"step-00000012/model": "12"}
    text = (work.path / "checkpoint_store" / "1" / "manifest.json").read_bytes()
    assert work.latest() == {"n": 1, "sha256": hashlib.sha256(text).hexdigest()}
    about = manifest(work, 1)
    assert (about["step"], about["reason"], about["attempt"], about["job"]) == (12, "exit", 1, "a1b2c3d4e5f6")
    assert work.record["checkpoint"] == 1
    ends = [said for said in done.wire("ckpt_end") if said["where"] == "store"]
    assert [(said["ok"], said["n"], said["step"], said["bytes"]) for said in ends] == [(True, 1, 12, 2)]


def test_the_interval_stores_while_the_program_runs_and_three_are_kept(work):
    work.script(
        GO_ON + "for step in range(1, 6):\n"
        "    with gpu.checkpoint(step) as folder: (folder / 'model').write_text(str(step))\n"
        "    wait(f'../checkpoint_store/{step}')\n"
    )
    assert work.run(TRAINSHED_CHECKPOINT_INTERVAL_S="0.01").code == 0
    assert work.stored == [3, 4, 5]
    assert [manifest(work, n)["reason"] for n in work.stored] == ["interval"] * 3
    assert set(content(work, 5)) == {"step-00000003/model", "step-00000004/model", "step-00000005/model"}


def test_an_interval_of_zero_stores_only_at_the_end_and_the_first_save(work):
    work.script(
        GO_ON + "(gpu.checkpoint_dir() / 'plain').write_text('x')\nwait('go')\n", checkpoint_interval_min=0
    )
    process = work.start()
    wait_until((work.path / "checkpoints" / "plain").exists)
    assert work.stored == []
    at(work, "go").touch()
    assert finish(process).code == 0
    assert content(work, 1) == {"plain": "x"}


def test_a_checkpoint_is_stored_when_one_is_asked_for(work):
    work.script(
        GO_ON + "tell('lives')\n"
        "while not gpu.checkpoint_requested(): time.sleep(0.02)\n"
        "with gpu.checkpoint(5) as folder: (folder / 'model').write_text('5')\n"
        "print('still wanted:', gpu.checkpoint_requested())\n"
        "wait('go')\n"
    )
    process = work.start()
    wait_until(lambda: at(work, "lives").exists())
    asked = work.path / ".gpu" / "checkpoint_requested"
    asked.touch()
    wait_until(lambda: not asked.exists(), what="the request to be answered")
    assert content(work, 1) == {"step-00000005/model": "5"}
    assert manifest(work, 1)["reason"] == "requested"
    at(work, "go").touch()
    done = finish(process)
    assert "still wanted: False" in done.lines
    assert work.stored == [1]


def test_only_what_was_left_alone_for_two_seconds_is_taken_without_the_helper(tmp_path, monkeypatch):
    assert sync.STEADY_SECONDS == 2
    monkeypatch.setattr(sync, "STEADY_SECONDS", 0.5)
    monkeypatch.setattr(sync, "_WAIT_SECONDS", 1.5)
    source = tmp_path / "checkpoints"
    source.mkdir()
    (source / "whole").write_text("whole")
    os.utime(source / "whole", (1, 2**33))  # a clock that is ahead does not make it wait for ever
    kept = store.Store(str(tmp_path / "store"), "job", 1)
    watch = sync.Sync(kept, str(source), str(tmp_path / "asked"), 0.01)
    watch.start()

    def stored() -> bool:
        with (source / "growing").open("a") as file:
            file.write("x")
        return watch.stored is not None

    wait_until(stored)
    watch.end(Ended(-9, time.time(), killed=False), stopped=False)
    assert names(tmp_path / "store" / "1" / "files") == ["whole"]


def test_a_save_that_sigterm_cut_short_is_not_stored(work):
    work.script(
        GO_ON + "model = gpu.checkpoint_dir() / 'model'\n"
        "with gpu.atomic_checkpoint('model') as path: path.write_text('whole')\n"
        "wait('../checkpoint_store/latest')\n"
        "file = open(model, 'w')\n"
        "file.write('torn')\n"
        "file.flush()\n"
        "tell('lives')\n"
        "while True:\n"
        "    file.write('torn')\n"
        "    file.flush()\n"
        "    time.sleep(0.02)\n"
    )
    process = work.start()
    wait_until(lambda: at(work, "lives").exists())
    process.terminate()
    done = finish(process)
    assert done.code == 143
    assert work.stored == [1]
    assert content(work, 1) == {"model": "whole"}
    assert "cut short" in done.text


def test_an_atomic_save_that_sigterm_cut_short_leaves_the_one_before(work):
    work.script(
        GO_ON + "with gpu.atomic_checkpoint('model') as path: path.write_text('whole')\n"
        "with gpu.atomic_checkpoint('model') as path:\n"
        "    path.write_text('torn')\n"
        "    tell('lives')\n"
        "    time.sleep(300)\n"
    )
    process = work.start()
    wait_until(lambda: at(work, "lives").exists())
    process.terminate()
    assert finish(process).code == 143
    assert content(work, work.latest()["n"]) == {"model": "whole"}


def test_what_a_program_saves_because_of_sigterm_is_stored(work):
    work.script(
        GO_ON + "import signal\n"
        "def end(*_):\n"
        "    (gpu.checkpoint_dir() / 'model').write_text('last')\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "tell('lives')\n"
        "while True: time.sleep(0.05)\n"
    )
    process = work.start()
    wait_until(lambda: at(work, "lives").exists())
    process.terminate()
    assert finish(process).code == 143
    assert content(work, 1) == {"model": "last"}
    assert manifest(work, 1)["reason"] == "stop"


def test_a_failed_save_is_announced_and_nothing_of_it_stays(work):
    work.script(
        GO_ON + "try:\n"
        "    with gpu.atomic_checkpoint('model') as path:\n"
        "        path.write_text('half')\n"
        "        raise ValueError('full')\n"
        "except ValueError as problem: print('went on:', problem)\n"
    )
    done = work.run()
    assert "went on: full" in done.lines
    assert [said["ok"] for said in done.wire("ckpt_end")] == [False]
    assert list((work.path / "checkpoints").iterdir()) == []
    assert work.stored == []


def test_an_attempt_goes_on_from_what_the_pointer_names(work):
    done = saved(work, 1, 2).script(SHOW).run()
    assert done.lines[-1] == "step-00000002 True 2"
    assert "gpu: resuming from checkpoint 2, step 2" in done.lines


def test_the_engines_choice_comes_first(work, tmp_path):
    saved(work, 1, 2)
    chosen = tmp_path / "chosen"
    shutil.copytree(work.path / "checkpoint_store" / "1", chosen)
    done = work.script(SHOW).run(GPU_RESUME_DIR=str(chosen))
    assert done.lines[-1] == "step-00000001 True 1"


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "manifest"])
def test_a_damaged_newest_is_passed_over_for_an_older_one_that_is_intact(work, damage):
    saved(work, 1, 2)
    newest = work.path / "checkpoint_store" / "2"
    model = newest / "files" / "step-00000002" / "model"
    if damage == "gone":
        model.unlink()
    elif damage == "manifest":
        (newest / "manifest.json").write_text(
            (newest / "manifest.json").read_text().replace('"2"', '"3"') + " "
        )
    else:
        model.write_text("3" if damage == "flip" else "")
    done = work.script(SHOW).run()
    assert done.lines[-1] == "step-00000001 True 1"
    assert any("checkpoint 2 is damaged" in line for line in done.lines)


def test_with_nothing_intact_the_program_starts_fresh_and_the_log_says_so(work):
    saved(work, 1)
    (work.path / "checkpoint_store" / "1" / "files" / "step-00000001" / "model").write_text("9")
    done = work.script(SHOW).run(GPU_RESUME_DIR="nowhere")
    assert done.lines[-1] == "None False None"
    assert "gpu: no checkpoint is intact: the program starts fresh" in done.lines
    assert any("the chosen checkpoint is damaged" in line for line in done.lines)


def test_a_second_attempt_without_a_checkpoint_says_that_it_starts_fresh(work):
    work.attempt = 2
    assert any("there is no checkpoint yet" in line for line in work.script("\n").run().lines)


def test_a_pointer_that_is_garbled_does_not_hide_what_is_stored(work):
    saved(work, 1, 2)
    (work.path / "checkpoint_store" / "latest").write_text("{")
    assert work.script(SHOW).run().lines[-1] == "step-00000002 True 2"


def test_a_manifest_that_leads_elsewhere_is_damaged(work, tmp_path):
    saved(work, 1)
    stored = work.path / "checkpoint_store" / "1"
    document = json.loads((stored / "manifest.json").read_text())
    document["files"][0]["path"] = "../../../../secret"
    (stored / "manifest.json").write_text(json.dumps(document))
    (work.path / "checkpoint_store" / "latest").unlink()
    (tmp_path / "secret").write_text("1")
    assert work.script(SHOW).run().lines[-1] == "None False None"


@pytest.mark.parametrize(
    "odd",
    [
        {"path": 7},
        {"path": None},
        {"path": "\ud800"},
        {"path": ""},
        {"mtime_ns": 10**40},
        {"mtime_ns": "x"},
        {"bytes": 10**40},
        {"sha256": None},
    ],
)
def test_a_manifest_that_somebody_made_up_is_damaged(work, tmp_path, odd):
    saved(work, 1)
    stored = work.path / "checkpoint_store" / "1"
    document = json.loads((stored / "manifest.json").read_text())
    for files in ([{**document["files"][0], **odd}], [odd], [7], None):
        (stored / "manifest.json").write_text(json.dumps({**document, "files": files}))
        with pytest.raises(store.Damaged):
            store.restore(str(stored), str(tmp_path / "into"))
    assert not (tmp_path / "into").exists()
    (stored / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(store.Damaged):
        store.restore(str(stored), str(tmp_path / "into"))
    (work.path / "checkpoint_store" / "latest").write_text('{"n": true}')
    found = [folder for folder, _ in store.candidates(str(stored.parent), document["job"])]
    assert found == [str(stored)]


def test_a_superseded_runner_stores_nothing_more(work, tmp_path):
    shared = str(tmp_path / "shared")
    work.script(
        GO_ON + "tell('lives')\nwait('go')\n"
        "with gpu.checkpoint(1) as folder: (folder / 'model').write_text('old')\n"
    )
    old = work.start(GPU_CHECKPOINT_STORE=shared)
    wait_until(lambda: at(work, "lives").exists() and Path(shared, store.OWNER).exists())
    later = WorkFolder(tmp_path / "later", attempt=2).script(SAVE_AND_END, "7")
    assert later.run(GPU_CHECKPOINT_STORE=shared).code == 0
    at(work, "go").touch()
    done = finish(old)
    assert done.code == 0
    assert "another runner has the checkpoint store" in done.text
    assert [said["ok"] for said in done.wire("ckpt_end") if said["where"] == "store"] == [False]
    assert (Path(shared) / "1" / "files" / "step-00000007" / "model").read_text() == "7"
    assert not (Path(shared) / "2").exists()


def test_an_earlier_attempt_that_begins_late_does_not_take_the_store_back(work, tmp_path):
    shared = str(tmp_path / "shared")
    later = WorkFolder(tmp_path / "later", attempt=2).script(SAVE_AND_END, "7")
    later.run(GPU_CHECKPOINT_STORE=shared)
    done = work.script(SAVE_AND_END, "1").run(GPU_CHECKPOINT_STORE=shared)
    assert "Attempt 2 has the checkpoint store" in done.text
    assert not (Path(shared) / "2").exists()


def test_a_file_that_changes_while_it_is_copied_is_not_stored(tmp_path, monkeypatch):
    source = tmp_path / "checkpoints"
    source.mkdir()
    (source / "model").write_text("whole")
    kept = store.Store(str(tmp_path / "store"), "job", 1)
    kept.claim()
    files = store.scan(str(source), ".gpu-tmp")["model"]
    real = store._copy

    def written_meanwhile(original: str, into: str) -> str:
        digest = real(original, into)
        Path(original).write_text("other")
        return digest

    monkeypatch.setattr(store, "_copy", written_meanwhile)
    with pytest.raises(store.Changed):
        kept.save(str(source), files, "interval", None)
    assert names(tmp_path / "store") == [store.OWNER]


def test_a_store_without_room_is_said_once_and_the_program_goes_on(work):
    (work.path / "checkpoint_store").write_text("no folder")
    done = work.script(SAVE_AND_END, "1").run()
    assert done.code == 0
    assert any("checkpoints are not stored any more" in line for line in done.lines)
    assert work.record["checkpoint"] is None


def test_files_that_did_not_change_are_not_copied_again(tmp_path):
    source = tmp_path / "checkpoints"
    (source / "step-1").mkdir(parents=True)
    (source / "step-1" / "model").write_text("1")
    (source / "last").symlink_to("step-1/model")
    (source / "outside").symlink_to("/etc/passwd")
    kept = store.Store(str(tmp_path / "store"), "job", 1)
    kept.claim()

    def files() -> dict[str, store.Print]:
        found = store.scan(str(source), ".gpu-tmp")
        return {path: print_ for entry in found.values() for path, print_ in entry.items()}

    kept.save(str(source), files(), "interval", 1)
    assert not kept.differs(files())
    (source / "step-2").mkdir()
    (source / "step-2" / "model").write_text("2")
    assert kept.differs(files())
    kept.save(str(source), files(), "interval", 2)
    first, second = (tmp_path / "store" / n / "files" / "step-1" / "model" for n in ("1", "2"))
    assert first.samefile(second)
    assert not first.samefile(source / "step-1" / "model")
    assert names(tmp_path / "store" / "2" / "files") == ["last", "step-1", "step-2"]
