"""What a task that runs shows: replicas, logs by role, samples, failures (contract C52, C53, C57, c1)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from support.site import Site, put_output
from support.tasks import fail, place

Submit = Callable[..., dict[str, Any]]
OUT, ERR = 1, 2


def lines(site: Site, path: str) -> list[str]:
    answer = site.get(path)
    assert answer.status_code == 200, answer.text
    return [item["content"] for item in answer.json()["items"]]


def test_C53_the_page_lists_every_replica_with_its_role_node_address_and_gpus(site: Site, submit: Submit):
    task = submit(workers=1, instance={"specs": ["h100x2"]})
    place(site, task)
    shown = site.get(f"/v1/tasks/{task['name']}").json()
    assert (shown["state"], shown["internal_state"], shown["position"]) == ("Running", "running", None)
    (attempt,) = shown["attempts"]
    assert (attempt["number"], attempt["cause"], attempt["state"]) == (1, "initial", "Running")
    keys = ("rank", "role", "index", "state", "node", "address", "gpu_indices", "restarts")
    assert [[replica[key] for key in keys] for replica in attempt["replicas"]] == [
        [0, "master", 0, "Running", "n1", "127.0.0.1", [0, 1], 0],
        [1, "worker", 0, "Running", "n1", "127.0.0.1", [2, 3], 0],
    ]


def test_C52_logs_are_read_by_role_and_index_or_merged_by_time(site: Site, submit: Submit):
    task = submit(workers=2)
    for rank, unit in enumerate(place(site, task)):
        put_output(site, unit, [(OUT, f"step 1 of {rank}\n".encode()), (ERR, f"step 2 of {rank}\n".encode())])
    path = f"/v1/tasks/{task['name']}/logs"
    assert lines(site, f"{path}?role=master") == ["step 1 of 0", "step 2 of 0"]
    assert lines(site, f"{path}?role=worker&index=1") == ["step 1 of 2", "step 2 of 2"]
    assert lines(site, path) == [f"step {step} of {rank}" for step in (1, 2) for rank in range(3)]
    item = site.get(f"{path}?role=worker&index=1").json()["items"][0]
    assert (item["replica"], item["role"], item["attempt"], item["stream"]) == (2, "worker", 1, "stdout")
    first = site.get(f"{path}?limit=4").json()
    rest = site.get(f"{path}?limit=4&cursor={first['next_cursor']}").json()
    assert len({item["id"] for item in first["items"] + rest["items"]}) == 6
    assert lines(site, f"/v1/jobs/{task['job_id']}/logs?source=runtime") == lines(site, path)
    assert site.get(f"/v1/trials/{task['trial_id']}/logs/raw").text == "".join(
        f"step 1 of {rank}\n" for rank in range(3)
    )


def test_C52_a_ray_task_shows_its_submitter_unless_another_role_is_asked_for(site: Site, submit: Submit):
    task = submit(kind="ray", workers=1, cmd="python main.py", instance={"specs": ["h100x1"]})
    for rank, unit in enumerate(place(site, task)):
        put_output(site, unit, [(OUT, f"of {rank}\n".encode())])
    path = f"/v1/tasks/{task['name']}/logs"
    replicas = site.get(f"/v1/tasks/{task['name']}").json()["attempts"][0]["replicas"]
    ranks = {replica["role"]: replica["rank"] for replica in replicas}
    assert lines(site, path) == [f"of {ranks['submitter']}"]
    assert lines(site, f"{path}?role=head") == [f"of {ranks['head']}"]
    assert len(lines(site, f"{path}?role=all")) == 3
    for wrong in ("role=master", "index=0", "role=worker&index=x", "attempt=0"):
        refused = site.get(f"{path}?{wrong}")
        assert (refused.status_code, refused.json()["code"]) == (422, "INVALID_LOG_QUERY"), wrong


def test_C52_a_replica_that_a_task_does_not_have_is_refused(site: Site, submit: Submit):
    task = submit(workers=2)
    logs, samples = f"/v1/tasks/{task['name']}/logs", f"/v1/jobs/{task['job_id']}/resource-metrics"
    for started in (False, True):
        if started:
            place(site, task)
        for path, query, field in (
            (logs, "role=worker&index=2", "index"),
            (f"{logs}/stream", "role=master&index=1", "index"),
            (samples, "replica=3", "replica"),
            (samples, "attempt=2", "attempt"),
        ):
            answer = site.get(f"{path}?{query}")
            assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, field), query
        assert site.get(f"{logs}?role=worker&index=1").status_code == 200
        assert site.get(f"{samples}?replica=2").status_code == 200


def test_c1_a_failure_names_class_replica_exit_code_and_the_last_lines(site: Site, submit: Submit):
    task = submit()
    place(site, task)
    fail(site, task, lines=[f"line {number}" for number in range(60)])
    shown = site.get(f"/v1/tasks/{task['name']}").json()
    assert (shown["state"], shown["detail"]) == ("Failed", "replica ended with exit code 3")
    failure = shown["failure"]
    assert (failure["code"], failure["class"], failure["replica"], failure["exit_code"]) == (
        "NONZERO_EXIT",
        "user",
        0,
        3,
    )
    assert failure["last_lines"] == [f"line {number}" for number in range(10, 60)]
    assert shown["attempts"][0]["state"] == "Failed"


def test_C37_samples_of_each_replica_are_read_in_order(site: Site, submit: Submit):
    task = submit(workers=1)
    for rank, unit in enumerate(place(site, task)):
        files = site.services.log_files(unit)
        files.samples.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"at": 100.0 + at, "values": {"cpu_percent": float(rank), "loss": 1.0}} for at in range(3)]
        files.samples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = f"/v1/jobs/{task['job_id']}/resource-metrics"
    page = site.get(path).json()
    assert [item["replica"] for item in page["items"]] == [0, 1] * 3
    only = site.get(f"{path}?replica=1&after=101&series=cpu").json()
    assert [(item["replica"], item["values"]) for item in only["items"]] == [(1, {"cpu_percent": 1.0})]
    assert only["next_after"] == 102.0
    assert site.get(f"{path}?after=yesterday").status_code == 400
