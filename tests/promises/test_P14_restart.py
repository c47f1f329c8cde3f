"""P14: a restart resumes everything; programs run on while the server is down and are found again."""

from __future__ import annotations

import pytest

from support.programs import artifact_names, bash, leaving_a_mark, marks
from support.waiting import wait_until

ENDS = {"orderly stop": "stop", "kill -9": "kill"}


@pytest.mark.parametrize("how", ENDS)
def test_P14_programs_run_on_without_the_server_and_end_with_their_own_codes(new_server, tmp_path, how):
    server, go, starts = new_server().start(), tmp_path / "go", tmp_path / "starts"
    waits = f"while [ ! -e {go} ]; do sleep 0.05; done"
    jobs = {
        code: server.submit(
            bash(leaving_a_mark(starts, f"{waits}; echo {code} > outputs/code; exit {code}"), f"r{code}")
        )
        for code in (0, 3, 255)
    }
    queued = server.submit(bash(leaving_a_mark(starts), "waits", resources={"gpus": 8}))
    wait_until(lambda: len(marks(starts)) == 3)
    getattr(server, ENDS[how])()
    go.touch()
    attempts = server.data / "local" / "attempts"
    wait_until(
        lambda: len(list(attempts.glob("*/exit.json"))) == 3, what="three programs to end by themselves"
    )
    server.start()
    for code, job_id in jobs.items():
        [trial] = server.wait_for_release(job_id)
        assert trial["exit_code"] == code
        assert trial["status"] == ("failed" if code else "succeeded")
        assert trial["output_status"] == "complete"
        assert artifact_names(server, trial["trial_id"]) == ["outputs/code"]
        assert len(trial["attempts"]) == 1
    [waited] = server.wait_for_release(queued)
    assert waited["status"] == "succeeded"
    assert len(marks(starts)) == len(set(marks(starts))) == 4


def test_P14_what_still_runs_after_a_restart_can_be_followed_and_stopped(new_server, tmp_path):
    server, starts = new_server().start(), tmp_path / "starts"
    job_id = server.submit(bash(leaving_a_mark(starts, "echo one; sleep 600 & sleep 600"), "r"))
    wait_until(lambda: marks(starts))
    for _ in range(2):
        server.kill()
        server.start()
    wait_until(lambda: server.job(job_id)["training"]["trials"][0]["status"] == "running")
    page = server.http().get(f"/v1/jobs/{job_id}/logs?source=runtime").json
    assert [item["content"] for item in page["items"]] == ["one"]
    assert not page["eof"]
    server.http().post(f"/v1/jobs/{job_id}/stop")
    [trial] = server.wait_for_release(job_id)
    assert (trial["status"], trial["exit_code"]) == ("cancelled", 143)
    assert len(marks(starts)) == 1


def test_P14_a_stop_accepted_just_before_the_server_died_is_carried_out(new_server, tmp_path):
    (tmp_path / "config.toml").write_text("[trials]\nstop_grace_seconds = 1\n")
    server = new_server(options=["--config", str(tmp_path / "config.toml")]).start()
    starts = tmp_path / "starts"
    job_id = server.submit(bash(leaving_a_mark(starts, "trap '' TERM; sleep 600"), "r", trials=3))
    wait_until(lambda: len(marks(starts)) == 3)
    server.http().post(f"/v1/jobs/{job_id}/stop")
    server.kill()
    server.start()
    for trial in server.wait_for_release(job_id):
        assert trial["status"] == "cancelled"
    assert server.job(job_id)["status"] == "cancelled"


def test_P14_a_timeout_passes_while_the_server_is_down(new_server, tmp_path):
    server, starts = new_server().start(), tmp_path / "starts"
    job_id = server.submit(bash(leaving_a_mark(starts, "sleep 600"), "r", timeout_seconds=2))
    wait_until(lambda: marks(starts))
    server.kill()
    attempts = server.data / "local" / "attempts"
    wait_until(lambda: list(attempts.glob("*/exit.json")), what="the timeout to end the program")
    server.start()
    [trial] = server.wait_for_release(job_id)
    assert (trial["status"], trial["error"]["code"]) == ("failed", "TRIAL_TIMEOUT")
