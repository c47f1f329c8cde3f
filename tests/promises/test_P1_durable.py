"""P1: an answered submission survives whatever happens to the server afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from support.http import Http
from support.programs import bash
from support.server import ServerProcess

_PEOPLE = 4
_ANSWERS = 20


def test_P1_an_answered_submission_survives_a_kill_right_after_the_answer(new_server):
    server: ServerProcess = new_server().start()
    answered = []
    for round_number in range(3):
        answered.append(server.submit(bash("true", f"r{round_number}")))
        server.kill()
        server.start()
    for job_id in answered:
        assert server.wait_for_job(job_id)["status"] == "completed"
        server.wait_for_release(job_id)


def _request(name: str) -> dict:
    return bash("true", name, resources={"gpus": 8})


class Crowd:
    """People who submit one Job after another until the server is gone."""

    def __init__(self, http: Http) -> None:
        self.answered: dict[str, str] = {}
        self.enough = threading.Event()
        self._http = http
        self._people = [threading.Thread(target=self._submit, args=[number]) for number in range(_PEOPLE)]
        for each in self._people:
            each.start()

    def join(self) -> None:
        for each in self._people:
            each.join(60)

    def _submit(self, number: int) -> None:
        for turn in range(100):
            name = f"{number}-{turn}"
            try:
                answer = self._http.post("/v1/jobs", _request(name))
            except OSError:
                return
            assert answer.status == 201
            self.answered[name] = answer.json["job_id"]
            if len(self.answered) >= _ANSWERS:
                self.enough.set()


def _every_job(http: Http) -> Iterator[dict]:
    cursor = ""
    while cursor is not None:
        page = http.get("/v1/jobs?limit=100" + (f"&cursor={cursor}" if cursor else "")).json
        yield from page["items"]
        cursor = page["next_cursor"]


def test_P1_P2_the_server_dies_while_many_submit_and_every_answered_job_is_there_once(new_server):
    server: ServerProcess = new_server().start()
    crowd = Crowd(server.http())
    assert crowd.enough.wait(60)
    server.kill()
    crowd.join()
    server.start()
    http = server.http()
    for name, job_id in crowd.answered.items():
        again = http.post("/v1/jobs", _request(name))
        assert (again.status, again.json["job_id"]) == (200, job_id)
    listed = [job["request_id"] for job in _every_job(http)]
    assert len(listed) == len(set(listed))
    assert set(crowd.answered) <= set(listed)
    for job in _every_job(http):
        http.post(f"/v1/jobs/{job['job_id']}/stop")
    for job in _every_job(http):
        server.wait_for_release(job["job_id"])
