"""Kaggle's provider against a simulated Kaggle: the contract's rules, and the traps of its interface.

None of this was tried against Kaggle itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.providers.conformance import Program, ProviderRules
from engines.providers.remote import LOGIN_WORD, RemoteHarness, RemoteRules
from support.kaggle_sim import USER, Fault, Kaggle, kaggle
from support.waiting import wait_until
from trainshed.engines.providers.contract import (
    AuthRequired,
    InvalidJob,
    Phase,
    ProviderError,
    QuotaExhausted,
    RateLimited,
    RemoteNotFound,
    Run,
    StagedData,
    Unavailable,
)
from trainshed.engines.providers.kaggle import KaggleProvider
from trainshed.engines.providers.kaggle.credentials import Login, find_login
from trainshed.engines.providers.kaggle.values import hours, moment, word
from trainshed.engines.providers.kaggle.wire import Wire


class KaggleHarness(RemoteHarness):
    cancel_removes = True
    provider: KaggleProvider

    def __init__(self, there: Kaggle, folder: Path) -> None:
        self.there = there
        self.login: Login | None = Login(None, LOGIN_WORD, is_token=True)
        super().__init__(folder)

    def reopen(self) -> None:
        place = self.folder / "kept"
        place.mkdir(exist_ok=True)
        wire = Wire(self.there.url, lambda: self.login, time.time, self.deadline)
        self.provider = KaggleProvider(wire, place, time.time, pause=lambda _seconds: None)

    def pass_time(self) -> None:
        with self.there.changed:
            self.there.changed.wait(0.05)

    def runs(self) -> int:
        return len(self.there.started)

    def lose_answer(self, method: str) -> None:
        assert method == "submit"
        self.there.lost["SaveKernel"] += 1

    def written(self) -> str:
        """What others may see who come by: programs, files of datasets, and what is kept here."""
        programs = [json.dumps(kernel.request) for kernel in self.there.kernels.values()]
        files = [data for each in self.there.datasets.values() for data in each["files"].values()]
        kept = [path.read_bytes() for path in (self.folder / "kept").rglob("*") if path.is_file()]
        return "\n".join([*programs, *(data.decode("utf-8", "replace") for data in [*files, *kept])])

    def refuse(self) -> None:
        self.there.refuse = "Your account may not run this."

    def slow_down(self, seconds: float | None) -> None:
        self.there.slow = seconds

    def go_down(self) -> None:
        said = {"code": 503, "message": f"the key {LOGIN_WORD} of {USER} cannot be looked up"}
        self.there.down = Fault(503, json.dumps(said).encode())


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[KaggleHarness]:
    with kaggle(tmp_path / "kaggle", LOGIN_WORD) as there:
        yield KaggleHarness(there, tmp_path)


class TestKaggle(ProviderRules, RemoteRules):
    """All rules."""


def test_a_name_that_is_there_already_gets_no_second_session(harness):
    """Kaggle would run a second version of it: both are ended, and nobody believes in either."""
    harness.there.faults["GetKernel"].append(Fault(404, b'{"code": 404, "message": "not yet"}'))
    first = harness.provider.submit(harness.submission("gpu-twice-1", Program(forever=True)))
    harness.there.faults["GetKernel"].append(Fault(404, b'{"code": 404, "message": "not yet"}'))
    with pytest.raises(Unavailable, match="begun twice"):
        harness.provider.submit(harness.submission("gpu-twice-1", Program(forever=True)))
    with pytest.raises(RemoteNotFound):
        harness.provider.status(first)
    assert harness.provider.lookup_by_key("gpu-twice-1") is None


@pytest.mark.parametrize(
    "said", ["RUNNING", "running", "KERNEL_WORKER_STATUS_RUNNING", "kernelWorkerStatusRunning"]
)
def test_words_come_in_more_than_one_way(harness, said):
    body = json.dumps({"status": said}).encode()
    harness.there.faults["GetKernelSessionStatus"].append(Fault(200, body))
    assert harness.provider.status(Run(f"{USER}/gpu-x-1/1")).phase is Phase.RUNNING


def test_words_of_two_parts_and_moments_of_nine_digits():
    assert word("cancelAcknowledged", ("CANCEL_ACKNOWLEDGED",), "") == "CANCEL_ACKNOWLEDGED"
    assert word(None, ("READY",), "QUEUED") == "QUEUED"
    assert moment("2099-01-03T00:00:00.123456789Z") == 4_071_081_600.123456
    assert (moment("soon"), hours(None), hours("5400s"), hours("1.5s")) == (None, None, 1.5, 1.5 / 3600)


def test_rule_10_an_answer_without_an_end_is_not_waited_for(harness, monkeypatch):
    monkeypatch.setattr("trainshed.engines.providers.kaggle.wire._MOST_BYTES", 1000)
    harness.there.faults["GetKernelSessionStatus"].append(Fault(200, b'"' + b"x" * 5000 + b'"'))
    with pytest.raises(Unavailable, match="no end"):
        harness.provider.status(Run(f"{USER}/gpu-x-1/1"))


HTML = Fault(200, b"<html>Sign in</html>", {"Content-Type": "text/html"})


@pytest.mark.parametrize(
    ("fault", "kind", "retry_after"),
    [
        (Fault(401, b'{"code": 401, "message": "Unauthenticated"}'), AuthRequired, None),
        (Fault(403, b'{"message": "Forbidden"}'), AuthRequired, None),
        (Fault(403, b'{"message": "Permission \'kernels.get\' was denied"}'), RemoteNotFound, None),
        (Fault(404, b'{"code": 404, "message": "Not found"}'), RemoteNotFound, None),
        (Fault(429, b"{}", {"Content-Type": "application/json", "Retry-After": "17"}), RateLimited, 17.0),
        (Fault(429, b"slow down", {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}), RateLimited, 0.0),
        (Fault(500), Unavailable, None),
        (Fault(503, b"<html>", {"Content-Type": "text/html", "Retry-After": "5"}), Unavailable, 5.0),
        (HTML, Unavailable, None),
        (Fault(200, b'{"code": 403, "message": "Forbidden"}'), AuthRequired, None),
        (Fault(200, b"[1]"), Unavailable, None),
        (Fault(400, b'{"code": 400, "message": "bad"}'), InvalidJob, None),
        (Fault(200, b'{"status": "DANCING"}'), Unavailable, None),
    ],
)
def test_G7_answers_are_errors_of_one_kind(harness, fault, kind, retry_after):
    harness.there.faults["GetKernelSessionStatus"].append(fault)
    with pytest.raises(ProviderError) as caught:
        harness.provider.status(Run(f"{USER}/gpu-x-1/1"))
    assert (type(caught.value), caught.value.retry_after) == (kind, retry_after)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Maximum weekly GPU quota of 30.00 hours reached.", QuotaExhausted),
        ("Maximum batch GPU session count of 2 reached.", RateLimited),
        ("The kernel source must not be empty.", InvalidJob),
    ],
)
def test_an_error_with_status_200_is_an_error(harness, said, kind):
    harness.there.refuse = said
    with pytest.raises(kind) as caught:
        harness.provider.submit(harness.submission("gpu-error-1", Program()))
    assert said.rstrip(".") in caught.value.message
    if kind is QuotaExhausted:
        assert caught.value.resets_at == 4_071_081_600.0, "asked of Kaggle's quota"


def test_a_program_of_more_than_a_megabyte_is_refused_before_it_is_sent(harness):
    big = harness.packed("gpu-big-1", {"train.py": ""}, env={"BIG": "x" * 1_000_001})
    with pytest.raises(InvalidJob, match="bytes"):
        harness.provider.submit(big)
    assert harness.runs() == 0


def test_a_dataset_that_is_not_ready_is_waited_for(harness):
    harness.there.polls_until_ready = 5
    run = harness.provider.submit(harness.submission("gpu-slow-1", Program()))
    assert harness.ended(run) is Phase.SUCCEEDED
    harness.there.polls_until_ready = 10**6
    with pytest.raises(Unavailable, match="not done"):
        harness.provider.submit(harness.submission("gpu-slow-2", Program()))
    assert harness.runs() == 1


def test_an_upload_that_breaks_goes_on_where_it_ended(harness, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "x").write_bytes(b"12345678" * 100_000)
    harness.there.break_upload_at = 300_000
    ref = harness.provider.stage_data("e" * 64, tmp_path / "set", single_file=None)
    assert harness.there.uploaded == [ref.partition("/")[2]]
    data = harness.there.datasets[ref.partition("/")[2]]["files"]["data.trainshed"]
    assert data.count(b"12345678") == 100_000
    assert harness.there.authorization == set(), "a signed address gets no credentials"


def test_a_session_that_is_lost_leaves_what_it_saved(harness, tmp_path):
    save = (
        "import gpu, pathlib, time\n"
        "with gpu.atomic_checkpoint('step') as place: pathlib.Path(place).write_text('1')\n"
        "pathlib.Path(gpu.output_dir(), 'part').write_text('some')\n"
        "while True: time.sleep(0.05)\n"
    )
    env = {"TRAINSHED_CHECKPOINT_INTERVAL_S": "0.5"}
    run = harness.provider.submit(harness.packed("gpu-loss-1", {"train.py": save}, env=env))
    top = harness.there.root / "sessions" / "gpu-loss-1-1" / "kaggle" / "working"
    wait_until((top / "checkpoint_store" / "latest").exists, 60, "a stored checkpoint")
    harness.there.lose("gpu-loss-1")
    seen = harness.provider.status(run)
    assert (seen.phase, seen.exit_code) == (Phase.LOST, None)
    assert "session was lost" in seen.message
    harness.provider.fetch(run, tmp_path / "into")
    assert (tmp_path / "into" / "outputs" / "part").read_text() == "some"
    assert (tmp_path / "into" / "checkpoints" / "1" / "manifest.json").exists()


def test_the_end_of_a_session_is_no_fault_of_the_program(harness):
    stays = harness.packed("gpu-end-1", {"train.py": "import time; time.sleep(600)"}, timeout_seconds=60.0)
    run = harness.provider.submit(stays)
    text = harness.there.kernels["gpu-end-1"].request["text"]
    assert r"\"seconds\": 60.0" in text
    harness.provider.cancel(run)
    harness.there.shorten = '\\"seconds\\": 60.0', '\\"seconds\\": 1.0'
    again = harness.packed("gpu-end-2", {"train.py": "import time; time.sleep(600)"}, timeout_seconds=60.0)
    run = harness.provider.submit(again)
    assert harness.ended(run) is Phase.LOST


def test_files_that_are_listed_late_are_not_taken_for_lost(harness, tmp_path):
    harness.there.list_late = True
    run = harness.provider.submit(harness.submission("gpu-late-1", Program()))
    harness.until(run, lambda phase: phase is Phase.FAILED)
    assert harness.provider.status(run).exit_code is None, "the log tells with what"
    with pytest.raises(Unavailable, match="not stored"):
        harness.provider.fetch(run, tmp_path / "into")
    harness.there.list_files()
    assert harness.provider.status(run).phase is Phase.SUCCEEDED
    assert harness.provider.fetch(run, tmp_path / "into").files >= 2


def test_a_log_without_a_stream_is_read_beside_the_files(harness):
    run = harness.provider.submit(harness.submission("gpu-log-1", Program(lines=("line 1", "line 2"))))
    harness.ended(run)
    harness.there.faults["logs"].append(Fault(404, b"{}"))
    chunk = harness.provider.logs(run, None)
    assert chunk.finished
    assert [line for line in chunk.lines if line.startswith("line")] == ["line 1", "line 2"]


def test_the_input_goes_when_the_run_has_ended_and_datasets_stay(harness, tmp_path):
    (tmp_path / "x").write_text("1")
    data = harness.provider.stage_data("f" * 64, tmp_path, single_file="x").partition("/")[2]
    run = harness.provider.submit(harness.submission("gpu-clean-1", Program()))
    assert len(harness.there.datasets) == 2
    harness.ended(run)
    assert harness.provider.release(run)
    assert set(harness.there.datasets) == {data}


def test_e11_datasets_that_no_Job_used_for_a_month_are_removed(harness, tmp_path):
    (tmp_path / "x").write_text("1")
    month = 31 * 86400.0
    kinds = {"fresh": "a", "used": "b", "idle": "c", "never used": "d", "asked for again": "e"}
    shared = {
        kind: harness.provider.stage_data(digit * 64, tmp_path, single_file="x")
        for kind, digit in kinds.items()
    }
    runs = [
        harness.provider.submit(
            harness.packed(
                f"gpu-{kind}-1",
                {"train.py": ""},
                data=(StagedData("set", shared[kind], single_file="x"),),
            )
        )
        for kind in ("used", "idle")
    ]
    for run in runs:
        harness.ended(run)
    slugs = {kind: ref.partition("/")[2] for kind, ref in shared.items()}
    harness.there.datasets["somebody-elses"] = {"files": {}, "polls": 0, "made": 0.0}
    harness.there.datasets["not-trainshed-data-x"] = {"files": {}, "polls": 0, "made": 0.0}
    for kind in ("used", "idle", "never used", "asked for again"):
        harness.there.datasets[slugs[kind]]["made"] -= month
    harness.there.kernels["gpu-idle-1"].ran -= month
    harness.reopen()
    harness.provider.stage_data("e" * 64, tmp_path, single_file="x")
    assert harness.provider.release(runs[0])
    left = {kind for kind, slug in slugs.items() if slug in harness.there.datasets}
    assert left == {"fresh", "used", "asked for again"}
    assert {"somebody-elses", "not-trainshed-data-x"} <= set(harness.there.datasets)
    before = harness.there.calls["ListKernels"]
    assert harness.provider.release(runs[1])
    assert harness.there.calls["ListKernels"] == before, "once a day is enough"


def test_e11_what_cannot_be_looked_at_is_not_removed(harness, tmp_path):
    (tmp_path / "x").write_text("1")
    slug = harness.provider.stage_data("a" * 64, tmp_path, single_file="x").partition("/")[2]
    harness.there.datasets[slug]["made"] = 0.0
    run = harness.provider.submit(harness.submission("gpu-keep-1", Program()))
    harness.ended(run)
    harness.reopen()
    harness.there.faults["ListKernels"].append(Fault(500))
    assert harness.provider.release(run), "the run is released all the same"
    assert slug in harness.there.datasets


def test_what_is_asked_of_the_machine(harness):
    with pytest.raises(InvalidJob, match=r"there is no option fast; internet must be true or false"):
        harness.provider.submit(
            harness.packed("gpu-opt-1", {"train.py": ""}, options={"internet": "no", "fast": True})
        )
    gpu = harness.provider.submit(harness.packed("gpu-opt-2", {"train.py": ""}, options={"internet": False}))
    harness.ended(gpu)
    harness.provider.submit(harness.packed("gpu-opt-3", {"train.py": ""}, gpu=None))
    first, second = (harness.there.kernels[slug].request for slug in ("gpu-opt-2", "gpu-opt-3"))
    assert (first["machineShape"], first["enableGpu"], first["enableInternet"]) == (
        "NvidiaTeslaT4",
        True,
        False,
    )
    assert ("machineShape" in second, second["enableGpu"], second["enableInternet"]) == (False, False, True)
    assert first["sessionTimeoutSeconds"] == 40_000
    lines = harness.provider.logs(gpu, None).lines
    device = next(json.loads(line[8:]) for line in lines if line.startswith('::gpu:: {"t":"device"'))
    assert (device["name"], device["count"]) == ("Tesla T4", 2)


def test_the_quota_is_kaggles_own_word(harness):
    reading = harness.provider.quota()
    assert (reading.used, reading.limit, reading.unit, reading.live) == (2.5, 30.0, "gpu_hours", True)
    assert reading.resets_at == 4_071_081_600.0
    harness.there.faults["GetAcceleratorQuotaStatistics"].append(Fault(404, b"{}"))
    assert harness.provider.quota() is None


def test_facts_that_are_out_of_date_are_told(harness):
    assert harness.provider.healthcheck().message == ""
    harness.there.granted_hours = 35.0
    health = harness.provider.healthcheck()
    assert (health.ok, health.message.startswith("It grants 35 h a week, where 30 h were known on 20")) == (
        True,
        True,
    )


def test_nobody_logged_in_is_said_with_what_to_do(harness):
    harness.login = None
    health = harness.provider.healthcheck()
    assert (health.ok, health.code) == (False, "auth_required")
    assert "kaggle.json" in health.hint
    assert harness.there.calls.total() == 0
    harness.login = Login("ada", "wrong-key", is_token=False)
    health = harness.provider.healthcheck()
    assert (health.ok, health.code) == (False, "auth_required")
    assert "wrong-key" not in health.message + health.hint


def test_logins_are_read_where_kaggles_own_program_reads_them(tmp_path):
    assert find_login({}, tmp_path) is None
    (tmp_path / ".kaggle").mkdir()
    (tmp_path / ".kaggle" / "kaggle.json").write_text('{"username": "bea", "key": "k1"}')
    assert find_login({}, tmp_path) == Login("bea", "k1", is_token=False)
    named = {"KAGGLE_USERNAME": "ada", "KAGGLE_KEY": "k2"}
    assert find_login(named, tmp_path) == Login("ada", "k2", is_token=False)
    (tmp_path / ".kaggle" / "access_token").write_text("t1\n")
    assert find_login({}, tmp_path) == Login(None, "t1", is_token=True)
    assert find_login({"KAGGLE_API_TOKEN": "t2"}, tmp_path) == Login(None, "t2", is_token=True)
    assert "t2" not in repr(find_login({"KAGGLE_API_TOKEN": "t2"}, tmp_path))
    (tmp_path / ".kaggle" / "access_token").unlink()
    (tmp_path / ".kaggle" / "kaggle.json").write_text("{broken")
    assert find_login({}, tmp_path) is None
