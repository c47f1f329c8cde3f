"""An agent runs projects: submitted, found again, asked about, brought back (contract G, checklist)."""

from __future__ import annotations

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.agent_jobs import GOES_ON, SHOW, cancelled, ended, fetched, notes, submitted
from support.agents import GPU, Agent
from support.projects import write
from support.waiting import wait_until
from trainshed import Client
from trainshed.model.words import counted


def test_G4_G38_G45_G47_G53_G82_a_quick_test_runs_here_and_its_outputs_come_back(agent, new_project):
    folder = new_project({"show.py": SHOW})
    odd = ["a b", "--x=1", "-", "", "'\"", "ümläut", "$HOME", "--"]
    answer = agent.call(
        "gpu_submit", project_dir=str(folder), script="show.py", args=odd, smoke=True, env={"X_PLAIN": "1"}
    )
    assert set(answer) >= {"job", "guidance", "submitted", "bundle"}
    assert answer["submitted"] is True
    assert answer["bundle"]["files"] == 2
    short = answer["job"]["short_id"]
    outputs = fetched(agent, short)
    assert outputs == folder / "runs" / short
    seen = json.loads((outputs / "seen.json").read_text())
    assert seen["argv"] == odd, "G53: arguments arrive unchanged"
    assert seen["env"]["X_PLAIN"] == "1", "G47: a plain variable reaches the job"
    found = ended(agent, short)
    assert (found["job"]["state"], found["job"]["provider"], found["job"]["exit_code"]) == (
        "done",
        "local",
        0,
    )
    words = [event["to"] for event in found["events"] if event["kind"] == "transition"]
    assert words == ["queued", "routing", "provisioning", "running", "done"]
    assert found["guidance"]["route"]
    assert "gpu_mismatch" not in notes(found), "a simulated GPU is no other than was promised"
    log = agent.call("gpu_logs", ref=short)
    assert log["lines"][-1] == "shown"
    again = agent.call("gpu_logs", ref=short, since=log["next_since"])
    assert (again["lines"], again["finished"]) == ([], True)


def test_G13_G14_the_call_returns_at_once_and_the_job_goes_on_without_the_agent(
    server, new_project, tmp_path
):
    gate = tmp_path / "gate"
    folder = new_project(
        {
            "long.py": GOES_ON.format(gate=str(gate)) + "import gpu, pathlib\n"
            "(pathlib.Path(gpu.output_dir()) / 'out').write_text('x')\n"
        }
    )
    with Agent(server.environment) as first:
        begun = time.monotonic()
        answer = first.call("gpu_submit", project_dir=str(folder), script="long.py", smoke=True, wait_s=0)
        assert time.monotonic() - begun < 30
        assert not answer["guidance"]["finished"]
    gate.touch()
    with Agent(server.environment) as second:
        short = answer["job"]["short_id"]
        assert ended(second, short)["job"]["state"] == "done"
        assert (fetched(second, short) / "out").read_text() == "x"


def test_G32_G33_the_same_call_answers_the_same_job_until_that_has_ended(
    agent, server, new_project, tmp_path
):
    gate = tmp_path / "gate"
    folder = new_project({"long.py": GOES_ON.format(gate=str(gate))})
    call = {"project_dir": str(folder), "script": "long.py", "smoke": True, "wait_s": 0}
    with ThreadPoolExecutor(10) as pool, Agent(server.environment) as other:
        answers = list(pool.map(lambda one: one.call("gpu_submit", **call), [agent, other] * 5))
    assert len({answer["job"]["short_id"] for answer in answers}) == 1
    assert [answer["submitted"] for answer in answers].count(True) == 1
    again = agent.call("gpu_submit", **call)
    short = again["job"]["short_id"]
    assert (again["submitted"], again["duplicate_of"]) == (False, short)
    assert again["message"]
    write(folder, {"later.txt": "not what runs"})
    changed = agent.call("gpu_submit", **call)
    assert (changed["submitted"], changed["duplicate_of"]) == (False, short)
    assert changed["bundle"]["files"] == again["bundle"]["files"] + 1
    assert "files have changed" in changed["bundle"]["warnings"][0]
    gate.touch()
    ended(agent, short)
    fresh = agent.call("gpu_submit", **call)
    assert fresh["submitted"] is True
    assert fresh["job"]["short_id"] != short
    ended(agent, fresh["job"]["short_id"])


def test_G34_G35_a_request_id_names_one_job_for_good_and_a_new_one_starts_another(agent, new_project):
    folder = new_project()
    call = {"project_dir": str(folder), "script": "train.py", "smoke": True, "wait_s": 0}
    one = agent.call("gpu_submit", **call, request_id="r-1")
    ended(agent, one["job"]["short_id"])
    same = agent.call("gpu_submit", **call, request_id="r-1")
    assert (same["submitted"], same["job"]["short_id"]) == (False, one["job"]["short_id"])
    other = agent.call("gpu_submit", **call, request_id="r-2")
    assert (other["submitted"], other["job"]["short_id"]) == (True, other["job"]["short_id"])
    clash = agent.refused("gpu_submit", **call | {"hours": 0.5}, request_id="r-1")
    assert clash["code"] == "conflict"
    assert "hours" in clash["message"] + str(clash["detail"])
    ended(agent, other["job"]["short_id"])


@pytest.mark.parametrize("hours", [None, 1.01])
def test_G21_G22_G27_G29_what_may_be_long_asks_a_person(agent, new_project, hours):
    folder = new_project()
    call = {"project_dir": str(folder), "script": "train.py", "provider": "local", "name": "Approve me"}
    answer = agent.call("gpu_submit", **call, hours=hours)
    guidance, short = answer["guidance"], answer["job"]["short_id"]
    assert answer["job"]["state"] == "awaiting_approval"
    assert guidance["needs_approval"] is True
    assert guidance["follow"] == "end_turn"
    assert short in guidance["tell_user"]
    assert "Approve me" not in guidance["tell_user"]
    assert "never approve" in guidance["rules"].lower()
    status = agent.call("gpu_status")
    assert status["active"][0]["needs_approval"] is True
    assert short in status["guidance"]["tell_user"]
    again = agent.call("gpu_submit", **call, hours=hours)
    assert (again["submitted"], again["job"]["short_id"]) == (False, short)
    predicted = agent.call("gpu_route", **{k: v for k, v in call.items() if k != "name"}, hours=hours)
    assert predicted["approval"]["would_ask"] is True
    assert predicted["route"]["chosen"] == "local"
    cancelled(agent, short)


@pytest.mark.parametrize("hours", [0.25, 1.0])
def test_G23_an_hour_is_not_asked_about(agent, new_project, hours):
    folder = new_project()
    call = {"script": "train.py", "provider": "local", "hours": hours}
    answer = agent.call("gpu_submit", project_dir=str(folder), **call)
    assert answer["guidance"]["needs_approval"] is False
    assert ended(agent, answer["job"]["short_id"])["job"]["state"] == "done"


def test_G44_a_script_that_fails_is_told_apart(agent, new_project):
    folder = new_project({"bad.py": "import sys\nprint('why it failed')\nsys.exit(7)\n"})
    answer = agent.call("gpu_submit", project_dir=str(folder), script="bad.py", smoke=True)
    job = ended(agent, answer["job"]["short_id"])["job"]
    assert (job["state"], job["exit_code"], job["failure_kind"]) == ("failed", 7, "user_error")
    assert agent.call("gpu_logs", ref=job["short_id"])["lines"][-1] == "why it failed"


def test_G15_G16_G36_what_is_left_out_is_named_with_a_hint(agent, new_project):
    folder = new_project({".gitignore": "data/\n"})
    write(folder, {"data/big.bin": b"x" * 5000})
    answer = agent.call("gpu_route", project_dir=str(folder), script="train.py", smoke=True)
    assert answer["bundle"]["left_out"] == ["data/ (5.0 kB, ignored)"]
    assert answer["bundle"]["hint"]
    shipped = agent.call(
        "gpu_route", project_dir=str(folder), script="train.py", smoke=True, include=["data/"]
    )
    assert "left_out" not in shipped["bundle"]
    assert "hint" not in shipped["bundle"]
    assert shipped["bundle"]["files"] == answer["bundle"]["files"] + 1


@pytest.mark.parametrize(
    ("env", "named"),
    [({"MY_TOKEN": "abc"}, "MY_TOKEN"), ({"HARMLESS": "ghp_" + "a1B2" * 9}, "HARMLESS")],
)
def test_G48_G49_G50_secrets_are_refused_as_variables_and_not_repeated(agent, new_project, env, named):
    error = agent.refused("gpu_submit", project_dir=str(new_project()), script="train.py", env=env)
    assert error["code"] in {"invalid_request", "invalid_spec"}
    said = str(error)
    assert named in said
    assert "gpu secrets set" in said
    assert "secrets:" in said
    assert "ghp_" not in said


def test_G59_G74_the_name_is_shown_and_null_fields_only_when_asked_for(agent, new_project):
    folder = new_project()
    answer = agent.call(
        "gpu_submit", project_dir=str(folder), script="train.py", smoke=True, name="ni\x07ce", wait_s=0
    )
    short = answer["job"]["short_id"]
    assert answer["job"]["name"] == "nice"
    assert None not in answer["job"].values()
    found = ended(agent, short)
    assert None in found["job"].values()
    assert len(found["events"]) >= 5
    brief = agent.call("gpu_status", ref=short, events=2)
    assert len(brief["events"]) == 2
    assert "route" not in brief


@pytest.mark.parametrize("folder", ["relative/path", "/nowhere/at/all", "/etc/hostname"])
def test_G80_the_folder_must_be_one(agent, folder):
    error = agent.refused("gpu_submit", project_dir=folder, script="train.py")
    assert error["code"] == "invalid_request"
    assert "project_dir" in error["message"]


@pytest.mark.parametrize("script", ["../x.py", "/etc/x.py", "missing.py"])
def test_G65_a_script_that_is_not_in_the_folder_is_refused(agent, new_project, script):
    before = agent.call("gpu_status")["counts"]
    error = agent.refused("gpu_submit", project_dir=str(new_project()), script=script)
    assert error["code"] in {"invalid_request", "invalid_spec"}
    assert agent.call("gpu_status")["counts"] == before


def test_G78_a_provider_that_does_not_exist_is_named_with_the_nearest(agent, new_project):
    error = agent.refused("gpu_submit", project_dir=str(new_project()), script="train.py", provider="locl")
    assert error["code"] == "provider_not_found"
    assert "local" in error["message"] + error["hint"]


def test_G37_G41_a_short_id_names_a_job_everywhere_and_a_cancel_is_final(agent, new_project, tmp_path):
    folder = new_project({"long.py": GOES_ON.format(gate=str(tmp_path / "never"))})
    answer = agent.call("gpu_submit", project_dir=str(folder), script="long.py", smoke=True, wait_s=30)
    short = answer["job"]["short_id"]
    wait_until(lambda: agent.call("gpu_status", ref=short, wait_s=5)["job"]["state"] == "running", 60)
    for tool in ("gpu_status", "gpu_logs", "gpu_fetch"):
        assert agent.call(tool, ref=short.upper())["job"]["short_id"] == short
    assert agent.call("gpu_fetch", ref=short)["fetched"] is False
    cancelled(agent, short)
    again = agent.call("gpu_cancel", ref=short)
    assert "nothing changed" in again["message"]
    words = [e["to"] for e in ended(agent, short)["events"] if e["kind"] == "transition"]
    assert words[-2:] == ["cancelling", "cancelled"]


def test_a4_outputs_that_were_deleted_count_as_neither_there_nor_brought(server, agent, new_project):
    writes = (
        "import gpu, os\nfor name in 'ab':\n    open(os.path.join(gpu.output_dir(), name), 'w').write(name)\n"
    )
    folder = new_project({"two.py": writes})
    short, answer = submitted(agent, folder, script="two.py", smoke=True)
    fetched(agent, short)
    with Client(server.url, server.key) as client:
        for name, left in (("outputs/a", 1), ("outputs/b", 0)):
            client.artifacts.delete_of_job(answer["job"]["id"], name=name)
            found = agent.call("gpu_fetch", ref=short)
            assert (found["files"], found["outputs"]["count"], found["outputs"]["bytes"]) == (left,) * 3
            assert (len(found["outputs"]["listing"]), found["outputs"]["deleted"]) == (left, 2 - left)
            assert f"{counted(2 - left, 'file')} deleted" in found["message"]


def test_G82_doctor_names_what_is_missing_for_the_rest(server):
    env = {"PATH": os.environ["PATH"], **server.environment}
    done = subprocess.run(
        [GPU, "doctor", "--json"], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    checks = {each["name"]: each for each in json.loads(done.stdout)["checks"]}
    assert checks["provider local"]["state"] == "ok"
    for name in ("provider kaggle", "provider colab"):
        assert checks[name]["state"] != "ok"
        assert checks[name]["remedy"]


def test_a011_a_call_that_waits_tells_progress(agent, new_project):
    folder = new_project({"long.py": "import time; time.sleep(1)"})
    agent.call("gpu_submit", project_dir=str(folder), script="long.py", smoke=True, wait_s=5)
    assert agent.progress
    assert all(total is not None and done <= total for done, total, _ in agent.progress)


@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
def test_both_generations_of_the_protocol_are_served(server, new_project, mode):
    folder = new_project()
    with Agent(server.environment, mode=mode) as other:
        modern = mode != "legacy"
        assert (other.protocol_version == "2026-07-28") is modern
        answer = other.call("gpu_submit", project_dir=str(folder), script="train.py", smoke=True)
        short = answer["job"]["short_id"]
        ended(other, short)
        other.call("gpu_route", project_dir=str(folder), script="train.py", smoke=True)
        other.call("gpu_logs", ref=short)
        other.call("gpu_fetch", ref=short)
        other.call("gpu_quota")
        other.call("gpu_cancel", ref=short)
        assert other.call("trainshed_jobs", limit=5)["items"]
        other.call("trainshed_why", job=short)
        assert other.call("trainshed_events", job=short)["events"]
        assert other.call("trainshed_search_logs", job=short, text="TRAINED")["matches"]
        assert other.call("trainshed_compare", a=short, b=short)["differences"] == []
