"""E3: who may not run, or not run this Runner, is told so before anything published is read or frozen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from support.site import Site, submission
from support.watching import Watch
from trainshed.model.access import Permission
from trainshed.store.columns import metadata

Ask = Callable[[Site], Any]


def rows(site: Site) -> dict[str, list[str]]:
    """Every row of every table."""
    with site.services.database.read() as connection:
        tables = metadata.sorted_tables
        return {table.name: sorted(map(repr, connection.execute(select(table)))) for table in tables}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_the_right_to_run(site: Site) -> Any:
    key = site.add_key("default", *(set(Permission) - {Permission.TRAINING_RUN}))
    return lambda: site.post("/v1/jobs", submission(), key=key)


def with_a_runner_of_others(site: Site) -> Any:
    site.add_project("other")
    key = site.add_key("other")
    hidden = site.request("PUT", "/v1/runners/envloop/bash/visibility", {"visibility": "project"})
    assert hidden.status_code == 200, hidden.text
    return lambda: site.post("/v1/jobs", submission(), key=key)


def with_a_runner_that_was_withdrawn(site: Site) -> Any:
    listed = site.get("/v1/runners").json()["items"]
    revision = next(item["revision"] for item in listed if item["name"] == "envloop/bash")
    gone = site.request("DELETE", f"/v1/runners/envloop/bash/{revision}")
    assert gone.status_code == 200, gone.text
    return lambda: site.post("/v1/jobs", submission(runner=f"envloop/bash@{revision}"))


def with_a_runner_that_is_none(site: Site) -> Any:
    return lambda: site.post("/v1/jobs", submission(runner="envloop/none@main"))


def without_a_key(site: Site) -> Any:
    return lambda: site.post("/v1/jobs", submission(), key="tsk_unknown")


CASES = {
    without_a_key: (401, "AUTHENTICATION_REQUIRED"),
    without_the_right_to_run: (403, "PERMISSION_DENIED"),
    with_a_runner_of_others: (404, "RUNNER_NOT_FOUND"),
    with_a_runner_that_was_withdrawn: (404, "RUNNER_NOT_FOUND"),
    with_a_runner_that_is_none: (404, "RUNNER_NOT_FOUND"),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_E2_E3_a_refused_request_reads_no_published_file_and_leaves_nothing(site: Site, case: Ask):
    ask = case(site)
    content = site.data / "content"
    before = rows(site), files(content), list(site.woken)
    with Watch(content) as watch:
        answer = ask()
        assert watch.opened() == set()
    assert (answer.status_code, answer.json()["code"]) == CASES[case]
    assert (rows(site), files(content), site.woken) == before


def test_E3_what_is_accepted_is_looked_at_and_frozen(site: Site):
    """So the test above would see it."""
    content = site.data / "content"
    before = rows(site)
    with Watch(content) as watch:
        assert site.post("/v1/jobs", submission()).status_code == 201
        assert watch.opened() != set()
    changed = {name for name, found in rows(site).items() if found != before[name]}
    assert changed >= {"jobs", "trials"}
    assert site.woken


def test_E3_E4_one_trial_that_may_not_run_refuses_all_of_its_job(site: Site):
    before = rows(site)
    trials = [{"spec": submission()["spec"]}, {"spec": submission(runner="envloop/none@main")["spec"]}]
    answer = site.post("/v1/jobs", {"type": "train", "request_id": "r", "trials": trials})
    assert (answer.status_code, answer.json()["code"]) == (404, "RUNNER_NOT_FOUND")
    assert [fault["path"] for fault in answer.json()["errors"]] == ["trials[1].spec.runner"]
    assert rows(site) == before
