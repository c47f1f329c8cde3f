"""P3, P6: the real server kills itself at each named point; the next one reaches the same end.

Each start of the server is told the next point, so most recoveries are interrupted as well.
"""

from __future__ import annotations

import signal
from http.client import HTTPException

import pytest

from support.contents import published_on
from support.processes import marked
from support.programs import artifact_names, bash, leaving_a_mark, marks
from support.runners import definition, publish, repository
from support.server import ServerProcess
from support.waiting import wait_until
from trainshed.control.crashpoints import VARIABLE, Point
from trainshed.model.content import ContentKind

_NO_ANSWER = (OSError, HTTPException, AssertionError)
# In this order no recovery passes the next point, so each is reached by the stop it is meant for.
_STOPPING = [Point.STOP_AFTER_ENGINE, Point.STOP_AFTER_COMMIT, Point.STOP_BEFORE_COMMIT]
_ELSEWHERE = [  # these need starts that fail and logs that are old: tests/control/test_crash_points.py
    Point.UNSTARTED_BEFORE_COMMIT,
    Point.UNSTARTED_AFTER_COMMIT,
    Point.RETIRE_AFTER_ENGINE,
    Point.RETIRE_AFTER_COMMIT,
    *(point for point in Point if point.startswith(("garbage.", "prepare.", "gang.", "script."))),
]
_RUNNING = [point for point in Point if point not in {*_STOPPING, *_ELSEWHERE}]


class Doomed:
    """A server that dies at a point, and the clients that do not give up on it."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server

    def start(self, point: Point | None) -> None:
        """Start it; it may die at once, where the point lies in its recovery."""
        try:
            self.server.start(environment={VARIABLE: point} if point else {})
        except AssertionError:
            assert not self.server.running, "it did not die, it does not answer"

    def ask(self, method: str, path: str, body: object = None) -> dict | None:
        """The answer, or nothing if the server died over it."""
        try:
            answer = self.server.http().request(method, path, body)
        except _NO_ANSWER:
            return None
        assert answer.status in {200, 201}, answer.body
        return dict(answer.json)

    def wait_for_death(self, point: Point) -> None:
        status = self.server.wait(60)
        assert status == -signal.SIGKILL, f"{point}: it ended with {status}"


@pytest.fixture
def doomed(new_server):
    server = new_server()
    server.start()
    server.stop()
    return Doomed(server)


def _nothing_is_left(server: ServerProcess) -> bool:
    return not [s for s in marked(str(server.data).encode()) if "TRAINSHED_ATTEMPT_ID" in s.mark]


def test_P3_P6_killed_at_each_point_of_a_run_the_trial_runs_once_to_its_end(doomed, tmp_path):
    starts, server = tmp_path / "starts", doomed.server
    command = leaving_a_mark(starts, "echo result > outputs/file; sleep 0.4")
    documents = {point: bash(command, f"run-{point}") for point in _RUNNING}
    for point, document in documents.items():
        doomed.start(point)
        doomed.ask("POST", "/v1/jobs", document)
        doomed.wait_for_death(point)
    doomed.start(None)
    for document in documents.values():
        job_id = server.submit(document)
        [trial] = server.wait_for_release(job_id)
        assert (trial["status"], trial["exit_code"], trial["output_status"]) == ("succeeded", 0, "complete")
        assert artifact_names(server, trial["trial_id"]) == ["outputs/file"]
        assert marks(starts).count(trial["trial_id"]) == 1
    assert len(marks(starts)) == len(documents)
    assert _nothing_is_left(server)


def test_P3_killed_while_it_brings_content_the_trial_runs_once_and_sees_it(doomed, tmp_path):
    server = doomed.server.start()
    text = 'abi = "envloop.job-profile/v1"\n' + definition(outputs=("out",))
    main = f'echo >> {tmp_path / "starts"}\ncat "$TRAINSHED_INPUTS/words/a.txt" > out\n'
    repository(tmp_path / "runner", {"runner.toml": text, "main.sh": main})
    selector = publish(server, tmp_path / "runner", "team/reads")["selector"]
    words = published_on(server, ContentKind.DATASETS, "team/words", {"a.txt": b"one"})
    server.stop()
    profile = {"schema": "envloop.job-profile/v1", "inputs": {"words": words}, "recipe": {}, "plugins": []}
    spec = {"runner": selector, "resources": {"gpu_type": "H100", "gpus": 1}, "profile": profile}
    document = {"type": "train", "request_id": "reads", "spec": spec}
    doomed.start(Point.PREPARE_AFTER_CONTENT)
    doomed.ask("POST", "/v1/jobs", document)
    doomed.wait_for_death(Point.PREPARE_AFTER_CONTENT)
    doomed.start(None)
    [trial] = server.wait_for_release(server.submit(document))
    assert trial["status"] == "succeeded"
    assert artifact_names(server, trial["trial_id"]) == ["out"]
    assert (tmp_path / "starts").read_text() == "\n"
    assert not list((server.data / "content" / "cache" / "held").iterdir())
    assert _nothing_is_left(server)


def test_P3_P6_killed_at_each_point_of_a_stop_the_trial_is_cancelled_and_released(doomed, tmp_path):
    starts, server = tmp_path / "starts", doomed.server
    command = leaving_a_mark(starts, "echo result > outputs/file; sleep 600 & sleep 600")
    documents = {point: bash(command, f"stop-{point}") for point in _STOPPING}
    for number, (point, document) in enumerate(documents.items(), start=1):
        doomed.start(point)
        job = doomed.ask("POST", "/v1/jobs", document)
        assert job is not None
        wait_until(lambda n=number: len(marks(starts)) == n, what="the program to start")
        doomed.ask("POST", f"/v1/jobs/{job['job_id']}/stop")
        doomed.wait_for_death(point)
    doomed.start(None)
    for document in documents.values():
        job_id = server.submit(document)
        server.http().post(f"/v1/jobs/{job_id}/stop")
        [trial] = server.wait_for_release(job_id)
        assert (trial["status"], trial["exit_code"], trial["output_status"]) == ("cancelled", 143, "complete")
        assert artifact_names(server, trial["trial_id"]) == ["outputs/file"]
    assert sorted(marks(starts)) == sorted(set(marks(starts)))
    assert len(marks(starts)) == len(documents)
    assert _nothing_is_left(server)
