"""What `gpu` tells people: once, in the order in which it happened, and nothing that is not so."""

from __future__ import annotations

import json
import re

import pytest

from support.gpu_line import Seat, lines
from support.projects import project, write
from support.waiting import wait_until

SAVES = """
import gpu
for step in (100, 200, 300, 400):
    with gpu.checkpoint(step) as folder:
        (folder / "state.pt").write_text(f"state {step}")
"""
MANY = "for number in range(2500):\n    print('line', number)\n"
GOES_ON = """
import pathlib, time
print("begun", flush=True)
while not pathlib.Path({gate!r}).exists():
    time.sleep(0.05)
"""


def short_id(gpu, folder) -> str:
    return gpu.json("jobs", "--all", "--here", folder=folder)["items"][0]["short_id"]


@pytest.fixture(scope="module")
def saved(gpu, tmp_path_factory):
    """A Job that saved four times: what `run` told of it, and its id."""
    folder = project(tmp_path_factory.mktemp("telling") / "proj", {"saves.py": SAVES})
    ran = gpu("run", "--smoke", "saves.py", folder=folder)
    assert ran.status == 0, ran.err
    return ran.err, short_id(gpu, folder)


def counted(text: str) -> int:
    """How many saves the rows of a text tell of."""
    rows = [line for line in text.splitlines() if re.search(r"\bcheckpoint\b(?:: |  )", line)]
    assert rows
    return sum(int(match[1]) if (match := re.search(r"Saved (\d+) times", row)) else 1 for row in rows)


@pytest.mark.parametrize("of", ["run", "status", "watch"])
def test_saves_are_counted_for_people(gpu, saved, of):
    told, short = saved
    text = told if of == "run" else gpu(of, short).out
    reasons = [event["reason"] for event in gpu.json("status", short)["events"]]
    saves = reasons.count("checkpoint_end")
    assert saves >= 4
    assert "A checkpoint is being saved" not in text
    assert "checkpointing" not in text
    assert "of step 400 is kept: " in text
    copies = reasons.count("checkpoint_copied")
    assert saves - copies <= counted(text) <= saves + copies


def test_programs_and_all_are_told_of_every_save(gpu, saved):
    _, short = saved
    events = gpu.json("status", short)["events"]
    assert {"checkpoint_begin", "checkpoint_end", "checkpoint_copied"} <= {each["reason"] for each in events}
    (document,) = map(json.loads, gpu("watch", short, "--json").out.splitlines())
    assert document["events"] == events
    saves = sum(each["reason"] == "checkpoint_begin" for each in events)
    assert gpu("status", short, "--all").out.count("A checkpoint is being saved") == saves


def test_the_log_is_printed_to_its_end_before_the_end_is_told(gpu, new_project, tmp_path):
    folder = new_project({"many.py": MANY})
    assert gpu("run", "--smoke", "many.py", folder=folder).status == 0
    short = short_id(gpu, folder)
    with Seat(tmp_path / "seat", ["logs", "-f", short], gpu.environment) as seat:
        assert seat.status() == 0
        shown = seat.shown()
    assert shown.index("provisioning → running") < shown.index("line 0\r")
    assert shown.index("line 2499") < shown.index("running → done") < shown.index("-- fetched: ")
    assert shown.count("running → done") == 1


def test_the_hint_about_left_out_files_is_given_when_it_is_new(gpu, new_project, tmp_path):
    folder = new_project({".gitignore": "data/\nlogs/\n"})
    write(folder, {"data/a.csv": "1"})
    home = {"TRAINSHED_HOME": str(tmp_path / "home")}

    def hinted(*words: str) -> bool:
        ran = gpu(*words, folder=folder, env=home)
        assert ran.status == 0, ran.err
        told = ran.out + ran.err
        assert "left out  data/ (" in told
        return "hint      " in told

    run = ("run", "--detach", "--smoke", "train.py")
    assert hinted(*run)
    write(folder, {"data/a.csv": "1, 2"})
    assert not hinted(*run), "it was said, and a size is no news"
    assert hinted("bundle")
    assert hinted("route", "train.py")
    write(folder, {"logs/a.txt": "1"})
    assert hinted(*run)
    assert not hinted(*run)
    kept = b"".join(path.read_bytes() for path in (tmp_path / "home" / "told").iterdir())
    assert re.fullmatch(rb"[0-9a-f]{40}", kept), "digests alone are kept"


def test_a_job_that_never_ran_has_no_time_that_it_ran(gpu, new_project):
    folder = new_project()
    assert gpu("run", "--as-agent", "train.py", folder=folder).status == 0
    short = short_id(gpu, folder)
    assert "since " in gpu("status", short).out
    gpu.json("cancel", short)
    for words, columns in ((["history"], "EXIT +RAN"), (["jobs", "--all"], "NEWEST +SINCE")):
        text = gpu(*words, "--here", folder=folder).out
        assert re.search(columns, text)
        row = next(line for line in text.splitlines() if line.startswith(short))
        assert not re.search(r"\d (?:s|min)\b", row), row
    one = gpu("status", short).out
    assert "since " not in one
    assert "ran " not in one


def test_a_job_that_ran_says_how_long(gpu, saved):
    assert re.search(r"^ran +[\d.]+ s$", gpu("status", saved[1]).out, re.MULTILINE)


def test_route_says_each_thing_once(gpu, new_project):
    folder = new_project()
    write(folder, {"slow.py": GOES_ON.format(gate=str(folder / "go"))})
    process = gpu.process("run", "--smoke", "slow.py", folder=folder)
    assert next(lines(process)) == "begun\n"
    busy = gpu("route", "--smoke", "train.py", folder=folder).out
    (folder / "go").touch()
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert "route     it would wait: local: it runs a Job of yours" in busy
    assert busy.count("it runs a Job of yours") == 1
    free = re.compile(r"it would run: local · .* GB · nothing else can be used$", re.MULTILINE)

    def looks_free() -> bool:
        return free.search(gpu("route", "train.py", folder=folder).out) is not None

    assert wait_until(looks_free, 60, "this machine to be free again")
    none = gpu("route", "--gpu", "NoSuch9000", "train.py", folder=folder).out
    assert "route     nothing fits: none offers NoSuch9000; " in none
    pinned = gpu("route", "-p", "local", "--gpu", "NoSuch9000", "train.py", folder=folder).out
    assert pinned.count("offers no NoSuch9000") == 1


def test_route_to_a_provider_that_is_not_enabled_says_how_to_add_it(gpu, new_project):
    ran = gpu("route", "-p", "kaggle", "train.py", folder=new_project())
    assert (ran.status, ran.out) == (4, "")
    assert "provider `kaggle` is not enabled at this server" in ran.err
    assert "providers.use" in ran.err


def test_quota_says_each_thing_once(gpu):
    told = gpu("quota").out
    assert told.count("no limit is known") == 1
    assert not told.endswith("\n\n")


def test_every_event_is_asked_for_of_one_job_only(gpu):
    ran = gpu("status", "--all")
    assert (ran.status, ran.out) == (2, "")
    assert "`gpu jobs --all`" in ran.err
