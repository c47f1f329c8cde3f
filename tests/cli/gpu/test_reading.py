"""`gpu` commands that look: lists, logs, outputs, live views (contract G, i, j)."""

from __future__ import annotations

import json
import re

import pytest

from support.gpu_line import Seat
from support.projects import project
from support.waiting import wait_until

SCRIPT = """
import gpu
gpu.total_steps(4)
for step in range(1200):
    print("line", step)
gpu.log(2, loss=0.5)
(gpu.output_dir() / "a b").mkdir()
(gpu.output_dir() / "a b" / "out.txt").write_text("hello")
"""


@pytest.fixture(scope="module")
def done(gpu, tmp_path_factory):
    """A Job that has ended, and the folder of its project."""
    folder = project(tmp_path_factory.mktemp("reading") / "proj", {"show.py": SCRIPT})
    ran = gpu("run", "--smoke", "--name", "shown", "show.py", folder=folder)
    assert ran.status == 0, ran.err
    return gpu.json("jobs", "--all", "--here", folder=folder)["items"][0]["short_id"], folder


def test_logs_are_whole_and_each_line_has_its_place(gpu, done):
    short, _ = done
    ran = gpu("logs", short)
    assert ran.out.splitlines() == [f"line {number}" for number in range(1200)]
    ran = gpu("logs", short, "--json")
    *lines, last = map(json.loads, ran.out.splitlines())
    assert last == {"eof": True, "state": "done"}
    assert [line["line"] for line in lines] == [f"line {number}" for number in range(1200)]
    offsets = [line["offset"] for line in lines]
    assert offsets == sorted(set(offsets))
    assert {line["attempt"] for line in lines} == {1}
    assert gpu("logs", short, "--attempt", "1").out == gpu("logs", short, "-f").out
    assert gpu("logs", short, "-n", "2").out == "line 1198\nline 1199\n"
    assert gpu("logs", short, "--attempt", "2").status == 2
    assert gpu("logs", short, "-f", "--attempt", "1").status == 2


def test_outputs_go_where_they_are_wanted(gpu, done, tmp_path):
    short, folder = done
    target = tmp_path / "elsewhere"
    found = gpu.json("fetch", short, "--dest", str(target))
    assert (target / "a b" / "out.txt").read_text() == "hello"
    assert found["outputs"]["listing"] == [{"path": "a b/out.txt", "bytes": 5}]
    mine = folder / "runs" / short
    (mine / "note").write_text("mine")
    (mine / "a b" / "out.txt").unlink()
    ran = gpu("fetch", short, "--refetch")
    assert ran.status == 0, ran.err
    assert ran.out.startswith(f"1 file, 5 B, in {mine}")
    assert (mine / "a b" / "out.txt").read_text() == "hello"
    assert (mine / "note").read_text() == "mine", "nothing is deleted"


def test_a_job_is_found_by_what_begins_its_id_and_by_its_other_ids(gpu, done):
    short, _ = done
    job = gpu.json("status", short)["job"]
    for ref in (job["id"], job["id"].upper(), job["job_id"]):
        assert gpu.json("status", ref)["job"]["id"] == job["id"]
    for ref in ("xyz", "", "0123456789abc"):
        assert gpu("status", ref).status == 2
    none = gpu("status", "ffffffffffff")
    assert none.status == 4
    assert [line.partition(":")[0] for line in none.err.splitlines()] == ["error", "hint"]


def test_lists_of_what_ended_and_what_is_older(gpu, done):
    short, folder = done
    found = gpu.json("history", "--here", folder=folder)
    assert [job["short_id"] for job in found["items"]] == [short]
    assert gpu.json("jobs", "--here", folder=folder)["items"] == []
    made = found["items"][0]["created_at"]
    assert gpu.json("history", "--here", "--before", made, folder=folder)["items"] == []
    assert gpu.json("history", "--here", "--before", "2999-01-01", folder=folder)["items"]
    assert gpu("history", "--before", "soon").status == 2
    text = gpu("history", "--here", folder=folder).out
    assert re.search(rf"{short} +shown +done +local .*0 ", text)


def test_one_job_is_told_with_its_progress(gpu, done):
    short, _ = done
    text = gpu("status", short).out
    for told in (
        "50% (2/4)",
        "loss 0.5",
        "runs       show.py",
        "exit code  0",
        "outputs",
        "why        local · ",
    ):
        assert told in text, told
    assert gpu("status", short, "--all").out.count("\n") >= text.count("\n")


def test_watch_tells_each_event_once_and_ends_with_the_job(gpu, done):
    short, _ = done
    ran = gpu("watch", short)
    assert ran.status == 0
    assert [line for line in ran.out.splitlines() if "→ done" in line] == [
        f"{short}  running → done: The script ended well."
    ]
    (document,) = map(json.loads, gpu("watch", short, "--json").out.splitlines())
    assert document["job"]["state"] == "done"


def test_watch_draws_over_itself_at_a_terminal(gpu, done, tmp_path):
    short, _ = done
    with Seat(tmp_path / "seat", ["watch", short], gpu.environment) as seat:
        assert seat.status() == 0, seat.shown()
        assert "100%" in seat.shown() or "50%" in seat.shown()
        assert "line 1199" in seat.shown()


def test_cancel_of_what_ended_changes_nothing(gpu, done):
    short, _ = done
    found = gpu.json("cancel", short)
    assert (found["changed"], found["job"]["state"]) == (False, "done")


def test_logs_follow_to_the_end_of_the_job(gpu, new_project):
    folder = new_project({"two.py": "import time\nprint(1, flush=True)\ntime.sleep(1)\nprint(2)\n"})
    short = gpu.json("run", "--smoke", "two.py", folder=folder)["job"]["short_id"]
    ran = gpu("logs", short, "-f", "--json")
    *lines, last = map(json.loads, ran.out.splitlines())
    assert [line["line"] for line in lines] == ["1", "2"]
    assert last == {"eof": True, "state": "done"}


SAVES = """
import gpu
for step in (3, 7):
    with gpu.checkpoint(step, keep=1) as folder:
        (folder / "state.pt").write_text(f"state {step}")
        (folder / "a b#%41.txt").write_text("")
raise SystemExit(1)
"""


def test_a_checkpoint_that_is_kept_is_brought_beside_the_outputs_or_elsewhere(gpu, new_project, tmp_path):
    folder = new_project({"saves.py": SAVES})
    ran = gpu("run", "--smoke", "saves.py", folder=folder)
    assert ran.status == 10, ran.err
    job = gpu.json("jobs", "--all", "--here", folder=folder)["items"][0]
    short = job["short_id"]
    kept = gpu.json("status", short)["checkpoints"]
    newest = max(each["number"] for each in kept)
    found = gpu.json("fetch", short, "--checkpoint")
    place = folder / "runs" / short / "checkpoints" / str(newest)
    assert (found["checkpoint"]["number"], found["outputs_dir"]) == (newest, str(place))
    assert (place / "step-00000007" / "state.pt").read_text() == "state 7"
    listed = {each["path"] for each in found["checkpoint"]["listing"]}
    assert listed == {str(each.relative_to(place)) for each in place.rglob("*") if each.is_file()}
    assert "step-00000007/a b#%41.txt" in listed
    ran = gpu("fetch", short, "--checkpoint", str(newest), "--dest", str(tmp_path / "there"))
    assert ran.status == 0, ran.err
    assert "state.pt" in ran.out
    assert (tmp_path / "there" / "step-00000007" / "state.pt").read_text() == "state 7"
    assert "--checkpoint" in gpu.json("status", short)["guidance"]["next"]


def test_a_checkpoint_that_is_not_kept_is_said_and_nothing_is_written(gpu, done, tmp_path):
    short, _ = done
    target = tmp_path / "none"
    for words, said in ((["--checkpoint"], "no checkpoint of"), (["--checkpoint", "9"], "no checkpoint `9`")):
        ran = gpu("fetch", short, *words, "--dest", str(target))
        assert ran.status != 0
        assert said in ran.err
    assert gpu("fetch", short, "--checkpoint", "--refetch").status == 2
    assert not target.exists()


def test_fetch_waits_for_the_end_as_long_as_it_may(gpu, new_project):
    folder = new_project()
    gate = folder / "go"
    (folder / "slow.py").write_text(
        f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.05)\n"
    )
    short = gpu.json("run", "--smoke", "slow.py", folder=folder)["job"]["short_id"]
    ran = gpu("fetch", short, "--timeout", "0.1")
    assert ran.status == 1
    assert f"{short} goes on" in ran.err
    gate.touch()
    found = gpu.json("fetch", short)
    assert (found["job"]["state"], found["files"]) == ("done", 0)
    assert wait_until((folder / "runs" / short).is_dir, 30, "the folder of no outputs")
