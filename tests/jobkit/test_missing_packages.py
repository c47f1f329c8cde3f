"""What the runner says of packages that cannot be had: for certain, for this machine, or nothing at all (b).

On its word a Job ends at once, at the second try, or goes on to another place.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.installers import path_with
from support.work_folders import WorkFolder
from trainshed.policy.migration import End, Ending, judge_end


class Index(ThreadingHTTPServer):
    """A package index of one package: its files, or the status of every answer."""

    daemon_threads = True
    files: Mapping[str, str] = {}
    """File -> the Pythons that it is for."""
    status: int | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/simple"


class _Answers(BaseHTTPRequestHandler):
    server: Index

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        there = self.path.strip("/") == "simple/odd-thing"
        body = "".join(
            f'<a href="/{name}" data-requires-python="{python.replace(">", "&gt;")}">{name}</a>'
            for name, python in self.server.files.items()
        ).encode()
        self.send_response(self.server.status or (200 if there and body else 404))
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def index() -> Iterator[Index]:
    with Index(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(params=["pip", "uv"])
def variables(request: pytest.FixtureRequest, tmp_path: Path, index: Index) -> dict[str, str]:
    """Those with which the runner has this installer, and this index alone."""
    return {
        "PATH": path_with(request.param, tmp_path),
        "PIP_INDEX_URL": index.url,
        "PIP_RETRIES": "1",
        "PIP_CACHE_DIR": str(tmp_path / "pip-cache"),
        "UV_DEFAULT_INDEX": index.url,
        "UV_HTTP_RETRIES": "0",
        "UV_CACHE_DIR": str(tmp_path / "uv-cache"),
    }


def judged(tmp_path: Path, variables: Mapping[str, str], needs: str) -> tuple[Ending, Ending]:
    """What the first end means, and a second one that says the same."""
    work = WorkFolder(tmp_path / "work").code({"train.py": "", "requirements.txt": needs})
    work.manifest({"script": "train.py"}, {"kind": "requirements", "file": "requirements.txt"})
    assert work.run(**variables).code == 90
    end = {"phase": "failed", "exit_code": 90, "started": True, "message": work.record["message"]}
    first = judge_end(End(**end))
    return first.ending, judge_end(End(**end, before=[first.message])).ending


def test_b_a_package_that_the_index_does_not_know_ends_a_job_at_once(tmp_path, variables):
    assert judged(tmp_path, variables, "odd-thing\n") == (Ending.FAILED, Ending.FAILED)


def test_b_a_version_that_the_index_does_not_know_ends_a_job_at_once(tmp_path, variables, index):
    index.files = {"odd_thing-1.0-py3-none-any.whl": ""}
    assert judged(tmp_path, variables, "odd-thing==9\n") == (Ending.FAILED, Ending.FAILED)


def test_b_an_index_that_the_requirements_name_is_asked(tmp_path, variables, index):
    given = {**variables, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "UV_DEFAULT_INDEX": ""}
    needs = f"--index-url {index.url}\nodd-thing\n"
    assert judged(tmp_path, given, needs) == (Ending.FAILED, Ending.FAILED)


@pytest.mark.parametrize(
    ("file", "python"),
    [
        ("odd_thing-2.0-py3-none-any.whl", ">=3.99"),
        ("odd_thing-2.0-cp399-cp399-manylinux_2_17_x86_64.whl", ""),
    ],
)
def test_b_one_for_another_machine_is_looked_for_a_second_time(tmp_path, variables, index, file, python):
    index.files = {file: python}
    first, _second = judged(tmp_path, variables, "odd-thing==2.0\n")
    assert first is Ending.LOST, "another place may have the Python that it is for"


@pytest.mark.parametrize("status", [403, 500, 503])
def test_b_an_index_that_does_not_answer_ends_no_job(tmp_path, variables, index, status):
    index.status = status
    assert judged(tmp_path, variables, "odd-thing\n") == (Ending.LOST, Ending.LOST)


def test_b_an_index_that_is_not_there_ends_no_job(tmp_path, variables):
    nobody = "http://127.0.0.1:9/simple"
    given = {**variables, "PIP_INDEX_URL": nobody, "UV_DEFAULT_INDEX": nobody}
    assert judged(tmp_path, given, "odd-thing\n") == (Ending.LOST, Ending.LOST)
