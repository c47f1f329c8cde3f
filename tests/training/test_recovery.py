"""What follows ends and faults, through the door: the ledger, loops, broken GPUs, scratch (C14, C33-C35, c8).

The pauses between tries are real, so the tasks of this module begin together; each test waits for its own.
"""

from __future__ import annotations

import os
import signal
from datetime import datetime

import pytest

from training.live import MOUNT, Live, causes, classes, in_order
from trainshed.jobkit import folder

TRIES = {"enabled": True, "max_resubmissions": 3}
COUNTS = f'echo x >> "{MOUNT}/$CASE-$RANK"; n=$(wc -l < "{MOUNT}/$CASE-$RANK")'
FAILS_TWICE = f"{COUNTS}; [ $RANK = 1 ] && [ $n = 1 ] && exit 3; [ $RANK = 0 ] && [ $n = 2 ] && exit 4; "
FAILS_TWICE += (
    f'[ $n -ge 3 ] || sleep 600; echo "$TRAINSHED_ATTEMPT $TRAINSHED_RESUBMISSION" > "{MOUNT}/$CASE-at-$RANK"'
)
SCRATCH = (
    f"{COUNTS}; ls -A > {MOUNT}/$CASE-saw-$n; touch mine /dev/shm/$CASE; touch {MOUNT}/$CASE-kept; [ $n = 2 ]"
)


def case(name: str) -> list[dict[str, str]]:
    return [{"name": "CASE", "value": name}]


@pytest.fixture(scope="module", autouse=True)
def begun(live: Live) -> dict[str, str]:
    """All tasks of this module that wait between tries, begun at once; their Jobs by name."""
    return {
        "twice": live.create(FAILS_TWICE, workers=1, fault_tolerance=TRIES, env=case("twice")),
        "loop": live.create(
            f"{COUNTS}; exit 7", fault_tolerance=TRIES | {"max_resubmissions": 50}, env=case("loop")
        ),
        "scratch": live.create(
            SCRATCH, fault_tolerance=TRIES, env=case("scratch"), instance={"specs": ["c1m1"]}
        ),
    }


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_T6_C33_without_resubmissions_the_first_failure_is_the_end_and_a_person_may_go_on(live: Live) -> None:
    text = f"{COUNTS}; [ $n = 2 ] || {{ echo broken >&2; exit 5; }}"
    job = live.create(text, env=case("manual"), fault_tolerance={"enabled": True, "max_resubmissions": 0})
    failed = live.ended(job)
    assert failed["state"] == "Failed"
    failure = failed["failure"]
    assert (failure["class"], failure["code"]) == ("user", "NONZERO_EXIT")
    assert (failure["replica"], failure["exit_code"]) == (0, 5)
    assert failure["last_lines"] == ["broken"]
    assert live.http.post(f"/v1/tasks/{job}/resubmit").status == 200
    task = live.succeeded(job)
    assert causes(task) == ["initial", "manual"]
    assert task["resubmissions"] == 0
    assert live.http.post(f"/v1/tasks/{job}/resubmit").status == 200, "what succeeded may be run once more"
    assert causes(live.ended(job)) == ["initial", "manual", "manual"]


def test_c8_one_replica_that_fails_stops_the_others_at_once(live: Live) -> None:
    hangs = "trap '' TERM; while :; do sleep 1; done"
    job = live.create(f'if [ "$RANK" = 2 ]; then exit 9; fi; {hangs}', workers=2)
    task = live.ended(job)
    assert task["state"] == "Failed"
    assert (task["failure"]["replica"], task["failure"]["exit_code"]) == (2, 9)
    replicas = task["attempts"][0]["replicas"]
    ends = [seconds(replica["ended_at"]) for replica in replicas]
    assert max(ends) - min(ends) < 60


def test_c8_C34_who_loses_its_watcher_ends_the_gang_as_a_fault_of_the_machine(live: Live) -> None:
    job = live.create(f"echo x > {MOUNT}/lost-$RANK; exec sleep 600", workers=1)
    for rank in (0, 1):
        live.file(f"lost-{rank}")
    attempt = live.until(job, "Running")["attempts"][0]["attempt_id"]
    watcher = folder.holder(live.server.data / "local" / "attempts" / f"{attempt}.1")
    os.kill(watcher, signal.SIGKILL)
    task = live.ended(job)
    failure = task["failure"]
    assert (failure["code"], failure["class"], failure["replica"]) == ("EXECUTION_LOST", "machine", 1)
    assert [each["state"] for each in task["attempts"][0]["replicas"]] == ["Failed", "Lost"]


def test_C33_a_stop_between_two_tries_is_the_end(live: Live) -> None:
    job = live.create("exit 3", fault_tolerance=TRIES)
    live.told(job, "RESUBMITTED")
    assert live.until(job, "Queuing")["detail"] == "Resubmitting (1 of 3)"
    live.stop(job)
    task = live.ended(job)
    assert (task["state"], len(task["attempts"])) == ("Stopped", 1)


def test_T13_c8_a_worker_that_ends_long_after_the_master_ends_by_itself(live: Live) -> None:
    waits = f"while [ ! -e {MOUNT}/late-go ]; do sleep 0.1; done"
    text = f'[ "$RANK" = 0 ] || {waits}; echo $RANK > {MOUNT}/late-$RANK'
    job = live.create(text, workers=1)
    live.file("late-0")
    live.until(job, "Running")
    live.succeeded(live.create("true"))
    live.succeeded(live.create("true", workers=1))
    assert live.task(job)["state"] == "Running", "two tasks lived and went since the master's program ended"
    (live.volume / "late-go").touch()
    task = live.succeeded(job)
    assert (live.volume / "late-1").read_text() == "1\n"
    first, last = task["attempts"][0]["replicas"]
    assert (first["exit_code"], last["exit_code"]) == (0, 0)


def test_C34_a_broken_gpu_is_closed_and_the_task_goes_on_without_it(own: Live) -> None:
    text = f"{COUNTS}; echo $CUDA_VISIBLE_DEVICES > {MOUNT}/on-$RANK-$n; [ $n = 2 ] && exit; "
    text += f"while [ ! -e {MOUNT}/broken ]; do sleep 0.1; done; exit 1"
    job = own.create(
        text,
        workers=1,
        env=case("broken"),
        fault_tolerance={"enabled": True, "max_resubmissions": 0, "replace_node": True},
    )
    for rank in (0, 1):
        own.file(f"on-{rank}-1")
    held = [replica["gpu_indices"] for replica in own.task(job)["attempts"][0]["replicas"]]
    bad = held[1][0]
    (own.server.data / "local" / "faults").write_text(f"gpu:{bad} XID 79: it fell off the bus\n")
    (own.volume / "broken").touch()
    task = own.succeeded(job, 120)
    assert causes(task) == ["initial", "node_replaced"]
    assert classes(task) == ["machine", None]
    assert task["resubmissions"] == 0
    again = [replica["gpu_indices"] for replica in task["attempts"][1]["replicas"]]
    assert [bad] not in again
    assert in_order(own.codes(job), ["NODE_SUSPECTED", "NODE_REPLACED", "STARTED"])
    assert "CORDONED" in own.codes(job)
    assert "XID 79" in own.told(job, "NODE_SUSPECTED")[0]
    [replaced] = own.told(job, "NODE_REPLACED")
    assert replaced.startswith("Again on local without the GPUs that broke"), "there is no other node (c9)"
    pools = own.http.get("/v1/pools").json["items"]
    assert {row["cordoned"] for pool in pools for row in pool["specs"] if row["spec"] == "h100x1"} == {1}
    refused = own.ask("true", instance={"specs": ["h100x8"]})
    waits = own.task(refused.json["job_id"])
    assert waits["state"] == "Queuing"
    own.stop(refused.json["job_id"])


def test_C14_the_next_try_finds_the_volume_and_nothing_else(live: Live, begun: dict[str, str]) -> None:
    task = live.succeeded(begun["scratch"], 120)
    assert causes(task) == ["initial", "auto_failure"]
    assert (live.volume / "scratch-saw-1").read_text() == (live.volume / "scratch-saw-2").read_text()
    assert "mine" not in (live.volume / "scratch-saw-2").read_text()
    assert (live.volume / "scratch-kept").exists()


def test_T6_C33_a_gang_that_fails_twice_restarts_whole_and_each_failure_counts_once(
    live: Live, begun: dict[str, str]
) -> None:
    task = live.succeeded(begun["twice"], 150)
    assert causes(task) == ["initial", "auto_failure", "auto_failure"]
    assert classes(task) == ["user", "user", None]
    assert task["resubmissions"] == 2
    assert [len((live.volume / f"twice-{rank}").read_text().split()) for rank in (0, 1)] == [3, 3]
    assert [(live.volume / f"twice-at-{rank}").read_text() for rank in (0, 1)] == ["3 2\n"] * 2
    starts = [seconds(attempt["started_at"]) for attempt in task["attempts"]]
    ends = [seconds(attempt["ended_at"]) for attempt in task["attempts"]]
    assert starts[1] - ends[0] >= 9.5, "the back-off of 10 s"
    assert starts[2] - ends[1] >= 19.5, "doubled"
    assert live.codes(begun["twice"]).count("RESUBMITTED") == 2
    [first, second] = live.told(begun["twice"], "RESUBMITTED")
    assert "1 of 3" in first
    assert "2 of 3" in second


def test_C35_three_exits_that_look_the_same_end_it_with_the_budget_unspent(
    live: Live, begun: dict[str, str]
) -> None:
    task = live.ended(begun["loop"], 150)
    assert task["state"] == "Failed"
    assert (task["failure"]["code"], task["failure"]["exit_code"]) == ("NONZERO_EXIT", 7)
    assert len(task["attempts"]) == 3
    assert len((live.volume / "loop-0").read_text().split()) == 3
    assert task["resubmissions"] < task["max_resubmissions"] == 50
    assert in_order(live.codes(begun["loop"]), ["RESUBMITTED", "RESUBMITTED", "CRASH_LOOP"])
