"""P8: every byte, in order, any byte values; EOF only after collection; loss is flagged, never silent."""

from __future__ import annotations

import base64
import os
import signal
import time

from support.http import Http
from support.processes import all_pids, environment_of
from support.programs import bash, leaving_a_mark, marks
from support.waiting import wait_until


def _raw(http: Http, trial_id: str, stream: str = "stdout"):
    answer = http.get(f"/v1/trials/{trial_id}/logs/raw?stream={stream}")
    assert answer.status == 200, answer.body
    return answer


def _bytes_of(records: list[dict]) -> bytes:
    parts = []
    for record in records:
        encoded = record.get("content_base64")
        data = base64.b64decode(encoded) if encoded is not None else record["content"].encode()
        parts.append(data if record.get("partial") else data + b"\n")
    return b"".join(parts)


def _page(server, job_id: str) -> dict:
    return server.http().get(f"/v1/jobs/{job_id}/logs?source=all&limit=1000").json


_ALL_BYTES = bytes(range(256)) * 20 + b"no line end"


def test_P8_E71_every_byte_of_both_streams_is_there_before_and_after_a_restart(new_server, tmp_path):
    server = new_server().start()
    (tmp_path / "bytes").write_bytes(_ALL_BYTES)
    job_id = server.submit(bash(f"cat {tmp_path}/bytes; rev {tmp_path}/lines >&2", "r"))
    (tmp_path / "lines").write_text("abc\ndef\n")
    [trial] = server.wait_for_release(job_id)
    for _ in range(2):
        assert _raw(server.http(), trial["trial_id"]).body == _ALL_BYTES
        records = server.log_records(job_id)
        assert _bytes_of([r for r in records if r["stream"] == "stdout"]) == _ALL_BYTES
        assert len({r["id"] for r in records}) == len(records)
        server.kill()
        server.start()


def test_P8_nothing_written_while_the_server_is_down_is_missing(new_server, tmp_path):
    server = new_server().start()
    go = tmp_path / "go"
    command = leaving_a_mark(
        tmp_path / "starts",
        f"echo before; while [ ! -e {go} ]; do sleep 0.05; done; seq 1 20000; echo end >&2",
    )
    job_id = server.submit(bash(command, "r"))
    wait_until(lambda: marks(tmp_path / "starts"))
    server.kill()
    go.touch()
    attempts = server.data / "local" / "attempts"
    wait_until(lambda: list(attempts.glob("*/exit.json")), what="the program to end without a server")
    server.start()
    [trial] = server.wait_for_release(job_id)
    expected = b"before\n" + b"".join(b"%d\n" % n for n in range(1, 20001))
    answer = _raw(server.http(), trial["trial_id"])
    assert answer.body == expected
    assert answer.headers["x-log-complete"] == "true"
    assert _raw(server.http(), trial["trial_id"], "stderr").body == b"end\n"
    assert _page(server, job_id)["dropped_bytes"] == 0


def test_P8_the_end_is_stated_only_after_collection(server, tmp_path):
    """Many outputs take a while; until they are stored the log has not ended."""
    many = "for i in $(seq 600); do echo $i > outputs/$i; done"
    command = f"echo out; {many}; head -c 80000000 /dev/urandom > outputs/big"
    job_id = server.submit(bash(command, "r"))
    seen = []

    def ended() -> bool:
        page = _page(server, job_id)  # before the state: an end between the two is none of the log's
        trial = server.job(job_id)["training"]["trials"][0]
        seen.append((trial["state"], page["eof"] and not page["has_more"]))
        return seen[-1][1]

    wait_until(ended, 60)
    assert all(not eof for state, eof in seen if state not in {"succeeded", "failed"})
    states = [state for state, _ in seen]
    trial = server.job(job_id)["training"]["trials"][0]
    assert trial["state"] == "succeeded"
    assert trial["output_status"] == "complete"
    assert states[0] != "succeeded"
    server.wait_for_release(job_id)


def test_P8_E79_after_the_watcher_was_killed_the_loss_is_said_and_nothing_is_run_again(server, tmp_path):
    starts = tmp_path / "starts"
    job_id = server.submit(bash(leaving_a_mark(starts, "echo said; sleep 600 & sleep 600"), "r"))
    wait_until(lambda: marks(starts))
    wait_until(lambda: server.job(job_id)["training"]["trials"][0]["status"] == "running")
    [trial] = server.job(job_id)["training"]["trials"]
    wait_until(lambda: _raw(server.http(), trial["trial_id"]).body == b"said\n")
    attempt = trial["attempts"][0]["attempt_id"]
    [shim] = [pid for pid in all_pids() if _is_shim(pid, server, attempt)]
    os.kill(shim, signal.SIGKILL)
    [trial] = server.wait_for_release(job_id)
    assert (trial["status"], trial["exit_code"]) == ("failed", None)
    assert trial["error"]["code"] == "EXECUTION_LOST"
    assert trial["user_code_started"]
    assert len(trial["attempts"]) == 1
    assert marks(starts) == [trial["trial_id"]]
    assert _raw(server.http(), trial["trial_id"]).headers["x-log-complete"] == "false"
    page = _page(server, job_id)
    assert page["eof"]
    assert page["collection_status"] == "partial"
    runtime = next(source for source in page["sources"] if source["trial_id"] == trial["trial_id"])
    assert runtime["missing_reason"]
    assert [i["content"] for i in page["items"] if i["source"] == "runtime"] == ["said"]
    mark = f"TRAINSHED_ATTEMPT_ID={attempt}".encode()
    assert not [pid for pid in all_pids() if mark in environment_of(pid)]


def _is_shim(pid: int, server, attempt: str) -> bool:
    """The process that holds the attempt's lock: its id stands in the file."""
    lock = server.data / "local" / "attempts" / attempt / "lock"
    return lock.exists() and lock.read_text().strip() == str(pid)


def test_P8_order_is_kept_across_streams_of_one_trial(server):
    """Lines written one after another to alternating streams, each waiting for a moment, read in order."""
    command = "for i in 1 2 3 4 5 6; do echo o$i; sleep 0.05; echo e$i >&2; sleep 0.05; done"
    job_id = server.submit(bash(command, "r"))
    server.wait_for_release(job_id)
    records = server.log_records(job_id)
    assert [r["content"] for r in records] == [f"{s}{i}" for i in range(1, 7) for s in "oe"]
    assert [r["stream"] for r in records] == ["stdout", "stderr"] * 6
    assert [r["at"] for r in records] == sorted(r["at"] for r in records)


def test_P8_system_records_tell_in_sentences_what_the_platform_did(server):
    begun = time.time()
    job_id = server.submit(bash("echo hi", "r"))
    server.wait_for_release(job_id)
    records = server.log_records(job_id, source="system")
    codes = [record["code"] for record in records]
    assert codes == ["ACCEPTED", "QUEUED", "PLACED", "STARTED", "ENDED", "SUCCEEDED", "RELEASED"]
    assert all(record["content"].endswith(".") for record in records)
    assert time.time() - begun < 60
