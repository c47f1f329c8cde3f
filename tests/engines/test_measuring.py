"""What replicas use and what their programs say of themselves (C37)."""

from __future__ import annotations

import json
import socket
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engines.conformance import SETTLED
from engines.gangs import codes, gang, report
from engines.machinery import WAYS, LocalHarness, each_way
from support.waiting import wait_until
from trainshed.engines import Endpoint, Launch, Sample
from trainshed.jobkit import measuring

SERVES = textwrap.dedent("""
    import os, sys, threading, time
    from http.server import BaseHTTPRequestHandler, HTTPServer
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = os.environ["BODY"].encode()
            status = 404 if os.path.exists("broken") else 200
            self.send_response(status); self.end_headers(); self.wfile.write(body)
        def log_message(self, *_): pass
    server = HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler)
    print("ready", flush=True)
    server.serve_forever()
    """)
BODY = """# HELP loss The loss.
# TYPE loss gauge
loss 0.25
step{rank="0",note="a } b"} 1e3 1700000000000
bad NaN
nonsense
"""


@pytest.fixture(params=WAYS)
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalHarness]:
    yield from each_way(request.param, tmp_path)


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def serving(local: LocalHarness, port: int, attempt_id: str = "attempt-1", **changes: object) -> Launch:
    launch = local.program(
        attempt_id, [local.interpreter, "-c", SERVES], env={"PORT": str(port), "BODY": BODY}
    )
    endpoints = (Endpoint(port, "/metrics"),)
    return replace(launch, **{"endpoints": endpoints, "sample_seconds": 0.1, **changes})  # type: ignore[arg-type]


def sampled(local: LocalHarness, endpoint: str, attempt_id: str = "attempt-1") -> list[Sample]:
    return wait_until(
        lambda: [each for each in local.engine.samples(attempt_id, 0) if each.endpoint == endpoint],
        what=f"samples of {endpoint or 'resources'}",
    )


def test_C37_a_programs_own_metrics_are_collected(either: LocalHarness, port: int) -> None:
    either.engine.launch(serving(either, port))
    [first, *_] = sampled(either, f"{port}/metrics")
    assert first.values == {"loss": 0.25, 'step{rank="0",note="a } b"}': 1000.0}
    either.engine.stop("attempt-1")
    either.until("attempt-1", SETTLED)
    kept = either.engine.samples("attempt-1", 0)
    assert kept == sorted(kept, key=lambda each: each.at)
    assert either.engine.samples("attempt-1", kept[-1].at) == []
    assert either.engine.release("attempt-1").confirmed
    assert either.engine.samples("attempt-1", 0) == kept
    assert either.engine.logs("attempt-1").samples.is_file()
    either.engine.forget("attempt-1")
    assert either.engine.samples("attempt-1", 0) == []


def test_C37_what_a_replica_uses_is_always_measured(either: LocalHarness) -> None:
    text = "held = bytearray(60 << 20)\nopen('file', 'wb').write(bytes(8 << 20))\nwhile True: pass"
    either.engine.launch(replace(either.python("attempt-1", text), sample_seconds=0.2))

    def busy() -> list[Sample]:
        taken = either.engine.samples("attempt-1", 0)
        return [each for each in taken if each.values["memory_bytes"] > 50 << 20]

    values = wait_until(busy)[-1].values
    assert values["processes"] >= 1
    assert values["disk_bytes"] >= 0
    wait_until(lambda: any(each.values["cpu_percent"] > 5 for each in either.engine.samples("attempt-1", 0)))


def test_C37_a_dead_endpoint_is_one_report_and_no_failure(local: LocalHarness, port: int) -> None:
    launch = replace(
        local.shell("attempt-1", "exec sleep 1000"),
        endpoints=(Endpoint(port, "/metrics"),),
        sample_seconds=0.05,
    )
    local.engine.launch(launch)
    down = report(local, "attempt-1", "METRICS_DOWN")
    assert (down.level, down.data["port"]) == ("warning", port)
    count = len(sampled(local, ""))
    wait_until(lambda: len(sampled(local, "")) > count + 10)
    assert codes(local, "attempt-1") == ["METRICS_DOWN"]


def test_C37_an_endpoint_that_begins_to_answer_with_errors_is_down(local: LocalHarness, port: int) -> None:
    # A pause so long that the program opens its port before it counts as dead, however busy we are.
    local.engine.launch(serving(local, port, sample_seconds=3.0))
    sampled(local, f"{port}/metrics")
    (local.engine.work_directory("attempt-1") / "broken").touch()
    assert "status 404" in report(local, "attempt-1", "METRICS_DOWN").message


def test_C37_a_port_that_another_replica_serves_is_reported_and_not_mixed_up(
    local: LocalHarness, port: int
) -> None:
    launches = gang(local, ["true", "exec sleep 1000"])
    serves = serving(local, port, launches[0].attempt_id)
    launches[0] = replace(serves, gang=launches[0].gang)
    launches[1] = replace(launches[1], endpoints=serves.endpoints, sample_seconds=0.1)
    local.engine.launch_many(launches)
    assert sampled(local, f"{port}/metrics", launches[0].attempt_id)
    assert str(port) in report(local, launches[1].attempt_id, "METRICS_PORT_TAKEN").message
    assert not [each for each in local.engine.samples(launches[1].attempt_id, 0) if each.endpoint]


def test_C37_what_is_measured_is_bounded_on_the_disk(local: LocalHarness, port: int) -> None:
    many = "".join(f'series_{number}{{name="{"x" * 200}"}} {number}\n' for number in range(2000))
    parsed = measuring.parse(many)
    assert len(parsed) == 500
    assert measuring.parse(f"long{'x' * 400} 1\nshort 2") == {"short": 2.0}
    path = local.folder("attempt-1")
    path.mkdir()
    lines = [json.dumps({"at": float(at), "values": {"a": 1.0}}) for at in range(20_000)]
    (path / "samples.1.jsonl").write_text("\n".join(lines[:15_000]) + "\n")
    (path / "samples.jsonl").write_text("\n".join(lines[15_000:]) + '\n{"at": 1, "torn')
    kept = local.engine.samples("attempt-1", 0)
    assert [kept[0].at, kept[-1].at, len(kept)] == [10_000.0, 19_999.0, 10_000]


def test_C37_the_series_of_a_program_hide_its_hidden_values(local: LocalHarness, port: int) -> None:
    launch = serving(local, port, secrets={"TOKEN": "nobody-sees-this"})
    env = {**launch.env, "BODY": 'run{token="nobody-sees-this"} 1\n'}
    local.engine.launch(replace(launch, env=env))
    assert sampled(local, f"{port}/metrics")[0].values == {'run{token="***"}': 1.0}
