"""`gpu run` from a folder to the outputs, and everything it can end with (contract G, j)."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest

from support.gpu_line import lines
from support.projects import write
from support.waiting import wait_until
from trainshed.cli.gpu_fetch import DELIVERY_SECONDS

SHOW = """
import json, sys, gpu
gpu.total_steps(3)
for step in range(3):
    print(f"loss={1 / (step + 1):.2f}", flush=True)
    gpu.log(step + 1, loss=1 / (step + 1))
(gpu.output_dir() / "seen.json").write_text(json.dumps(sys.argv[1:]))
"""
GOES_ON = """
import pathlib, time
print("begun", flush=True)
while not pathlib.Path({gate!r}).exists():
    time.sleep(0.05)
"""


def waits(folder: Path) -> str:
    return GOES_ON.format(gate=str(folder / "go"))


def ended(gpu, ref: str) -> dict:
    def look() -> dict | None:
        job = gpu.json("status", ref)["job"]
        return job if job["finished_at"] else None

    return wait_until(look, 120, f"the end of {ref}")


def test_run_says_what_ships_prints_the_log_and_brings_the_outputs(gpu, new_project):
    folder = new_project({"show.py": SHOW, ".gitignore": "data/\n"})
    write(folder, {"data/a.csv": "1"})
    ran = gpu("run", "--smoke", "show.py", "--x=1", "a b", "", folder=folder)
    assert ran.status == 0, ran.err
    assert ran.out == "loss=1.00\nloss=0.50\nloss=0.33\n", "stdout is the program's"
    (outputs,) = (folder / "runs").iterdir()
    assert json.loads((outputs / "seen.json").read_text()) == ["--x=1", "a b", ""]
    for told in (
        "ships     3 files",
        "left out  data/ (1 B, ignored)",
        "hint      ",
        f"{outputs.name} is submitted",
        "-- routing → provisioning: Placed on local",
        "-- why: local · ",
        "seen.json",
        f"{outputs.name} is done",
    ):
        assert told in ran.err, told
    one = gpu("status", outputs.name)
    assert "100% (3/3)" in one.out
    assert re.search(r"course +loss  \S{3}  1 → 0\.3333\n", one.out), one.out
    assert "local H100 (simulated)" in one.out
    document = gpu.json("status", outputs.name)
    assert (document["job"]["gpu"], document["job"]["simulated"]) == ("H100", True)
    (course,) = document["courses"]
    assert (course["name"], course["source"], course["steps"]) == ("loss", "helper", [1, 2, 3])
    assert course["values"] == [1, 1 / 2, 1 / 3]
    assert document["job"]["outputs_fetched"] is True


def test_json_detaches_and_with_wait_it_is_the_whole_answer(gpu, new_project):
    folder = new_project({"show.py": SHOW})
    ran = gpu("run", "--smoke", "show.py", "--json", "--wait", folder=folder)
    assert ran.status == 0, ran.err
    assert ran.json["job"]["state"] == "done"
    assert ran.json["submitted"] is True
    assert (ran.json["bundle"]["files"], ran.json["outputs"]["count"]) == (2, 1)
    write(folder, {"slow.py": waits(folder)})
    first = gpu.json("run", "--smoke", "slow.py", folder=folder)
    assert first["job"]["state"] not in {"queued", "routing"}, "it returns once it is placed"
    assert first["guidance"]["finished"] is False
    again = gpu.json("run", "--smoke", "slow.py", folder=folder)
    short = first["job"]["short_id"]
    assert (again["submitted"], again["duplicate_of"]) == (False, short)
    (folder / "go").touch()
    assert ended(gpu, short)["state"] == "done"


def test_a_script_that_fails_ends_with_10_and_its_exit_code(gpu, new_project):
    folder = new_project({"bad.py": "import sys\nprint('no')\nsys.exit(3)\n"})
    ran = gpu("run", "--smoke", "bad.py", folder=folder)
    assert (ran.status, ran.out) == (10, "no\n")
    assert "failed with exit code 3" in ran.err


def test_a_secret_that_nobody_keeps_is_told_before_the_submission(gpu, new_project):
    folder = new_project({"gpu.yaml": "secrets: [KEPT_NAME, LACKED_NAME]\n"})
    assert gpu("secrets", "set", "KEPT_NAME", "--stdin", stdin="value").status == 0
    ran = gpu("run", "--smoke", "train.py", folder=folder)
    assert gpu("secrets", "rm", "KEPT_NAME").status == 0
    told, submitted = ran.err.index("no secret LACKED_NAME is kept"), ran.err.index(" is submitted")
    assert told < submitted
    assert "secret KEPT_NAME is" not in ran.err
    assert ran.status == 10, "the Job ends failed, and says why"


def test_what_nothing_fits_ends_with_12_in_both_doors(gpu, new_project):
    folder = new_project()
    assert gpu("route", "train.py", "--gpu", "NoSuch9000", folder=folder).status == 12
    ran = gpu("run", "train.py", "--dry-run", "--gpu", "NoSuch9000", "--json", folder=folder)
    assert (ran.status, ran.json["route"]["outcome"]) == (12, "no_fit")
    ran = gpu("run", "train.py", "--gpu", "NoSuch9000", folder=folder)
    assert ran.status == 12, ran.err
    assert gpu.json("jobs", "--here", "--all", folder=folder)["items"][0]["failure_kind"] == "no_provider"


def test_outputs_of_a_job_that_no_provider_took_are_not_waited_for(gpu, new_project):
    options = "provider_options: {local: {python: /no/venv/bin/python}}\n"
    folder = new_project({"gpu.yaml": options})
    short = gpu.json("run", "--smoke", "train.py", folder=folder)["job"]["short_id"]
    gpu("cancel", short)  # if it has not been given up by then
    begun = time.monotonic()
    fetched = gpu("fetch", short)
    assert fetched.out.strip() == "There are no files: it wrote none."
    assert time.monotonic() - begun < DELIVERY_SECONDS
    job = gpu.json("status", short)["job"]
    assert job["state"] in {"cancelled", "failed"}
    assert job["accepted_attempts"] == 0


def test_a_dry_run_tells_what_run_would_do_and_creates_nothing(gpu, new_project):
    folder = new_project()
    ran = gpu("route", "--hours", "2", "--as-agent", "train.py", folder=folder)
    assert ran.status == 0
    assert "it would run: local" in ran.out
    assert "a person would be asked: over the 1h auto limit" in ran.out
    same = gpu.json("run", "--dry-run", "--hours", "2", "train.py", env={"CLAUDECODE": "1"}, folder=folder)
    assert same["approval"]["would_ask"] is True, "an agent's environment has the agent's rules"
    assert gpu.json("route", "--hours", "2", "train.py", folder=folder)["approval"]["would_ask"] is False
    assert gpu.json("jobs", "--here", "--all", folder=folder)["items"] == []


def test_an_agent_is_told_the_question_and_does_not_wait_for_it(gpu, new_project):
    folder = new_project()
    ran = gpu("run", "--as-agent", "train.py", folder=folder)
    assert ran.status == 0, ran.err
    assert "needs your approval: no hours given" in ran.out
    assert "Never approve or deny" in ran.out
    answer = gpu.json("run", "--as-agent", "--wait", "train.py", folder=folder)
    assert answer["guidance"]["needs_approval"] is True
    short = answer["job"]["short_id"]
    assert gpu.json("cancel", short)["job"]["state"] == "cancelled"
    assert gpu("fetch", short, folder=folder).status == 0, "nothing was written, which is no error"


def test_a_cancelled_or_denied_job_that_was_waited_for_ends_with_11(gpu, new_project):
    folder = new_project({"slow.py": waits(Path("nowhere"))})
    process = gpu.process("run", "--smoke", "slow.py", folder=folder)
    assert next(lines(process)) == "begun\n"
    short = gpu.json("jobs", "--here", folder=folder)["items"][0]["short_id"]
    gpu.json("cancel", short)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 11
    assert f"{short} is cancelled" in err


def test_ctrl_c_detaches_and_never_cancels(gpu, new_project):
    folder = new_project()
    write(folder, {"slow.py": waits(folder)})
    process = gpu.process("run", "--smoke", "slow.py", folder=folder)
    assert next(lines(process)) == "begun\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    (short,) = [job["short_id"] for job in gpu.json("jobs", "--here", folder=folder)["items"]]
    assert f"{short} goes on; `gpu logs {short} -f` follows it" in err
    assert gpu.json("status", short)["job"]["cancel_requested_at"] is None
    (folder / "go").touch()
    assert ended(gpu, short)["state"] == "done"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere.py"], "nowhere.py"),
        (["--hours", "0", "train.py"], "hours"),
        (["--hours", "soon", "train.py"], "hours"),
        (["--env", "HF_KEY=1", "train.py"], "gpu secrets set HF_KEY"),
        (["--env", "NOTHING", "train.py"], "NAME=VALUE"),
        (["--wait", "--detach", "train.py"], "exclude"),
        (["--frobnicate", "train.py"], "--frobnicate"),
        (["-C", "/nowhere", "train.py"], "project_dir"),
    ],
)
def test_what_is_wrong_with_the_command_line_or_the_folder_ends_with_2(gpu, new_project, words, told):
    folder = new_project()
    ran = gpu("run", *words, folder=folder)
    assert (ran.status, ran.out) == (2, "")
    assert told in ran.err
    assert gpu.json("jobs", "--here", "--all", folder=folder)["items"] == []


def test_an_unknown_provider_ends_with_4_and_no_server_with_3(gpu, new_project):
    folder = new_project()
    ran = gpu("run", "-p", "kagle", "train.py", "--json", folder=folder)
    assert (ran.status, ran.error["code"]) == (4, "provider_not_found")
    ran = gpu("run", "-p", "kagle", "train.py", folder=folder)
    assert "there is no provider `kagle`" in ran.err
    assert "may have been submitted" not in ran.err, "a refusal leaves no doubt"
    ran = gpu("run", "-p", "kaggle", "train.py", folder=folder)
    assert ran.status == 4
    assert "provider `kaggle` is not enabled at this server" in ran.err
    assert "providers.use" in ran.err
    assert gpu.json("jobs", "--here", "--all", folder=folder)["items"] == []
    ran = gpu("run", "train.py", "--json", folder=folder, env={"TRAINSHED_URL": "http://127.0.0.1:9"})
    assert (ran.status, ran.error["code"]) == (3, "daemon_unavailable")


def test_the_same_request_id_for_something_else_ends_with_5(gpu, new_project):
    folder = new_project()
    first = gpu.json("run", "--smoke", "--request-id", "one", "train.py", folder=folder)
    ran = gpu("run", "--request-id", "one", "--hours", "2", "train.py", "--json", folder=folder)
    assert (ran.status, ran.error["code"]) == (5, "conflict")
    ended(gpu, first["job"]["short_id"])
