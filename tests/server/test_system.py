"""Health, metrics, the machine, and failures of what the server stands on."""

from __future__ import annotations

import re

import pytest

from support.site import Site, start, submission, trials
from trainshed.content.blobs import StoreFull, StoreUnavailable
from trainshed.engines.local import GpuMetrics
from trainshed.server import metrics
from trainshed.server.services import Services
from trainshed.store.database import Database, DatabaseFull, DatabaseUnavailable


def test_health_and_readiness_answer_without_a_key(site: Site):
    assert site.client.get("/healthz").json() == {"status": "ok"}
    ready = site.client.get("/readyz")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "checks": {"database": "ok"}})


def test_a_server_whose_database_does_not_answer_is_alive_but_not_ready(make_site, monkeypatch):
    site: Site = make_site()

    def fail(_self: Database):
        raise DatabaseUnavailable("gone")

    monkeypatch.setattr(Database, "read", fail)
    assert site.client.get("/healthz").status_code == 200
    ready = site.client.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (503, "not ready")
    assert "gone" in ready.json()["checks"]["database"]
    answer = site.get("/v1/jobs")
    assert (answer.status_code, answer.json()["code"]) == (503, "DATABASE_UNAVAILABLE")


def test_a_full_database_disk_is_told_and_nothing_is_changed(make_site, monkeypatch):
    site: Site = make_site()

    def fail(_self: Database, _work: object):
        raise DatabaseFull("full")

    with monkeypatch.context() as patched:
        patched.setattr(Database, "write", fail)
        answer = site.post("/v1/jobs", submission())
    assert (answer.status_code, answer.json()["code"]) == (507, "STORAGE_FULL")
    assert site.get("/v1/jobs").json()["items"] == []


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(StoreFull("x"), 507, "STORAGE_FULL"), (StoreUnavailable("x"), 503, "STORAGE_UNAVAILABLE")],
)
def test_a_blob_store_that_cannot_take_more_is_told(make_site, monkeypatch, error, status: int, code: str):
    site: Site = make_site()

    def fail(*_: object, **__: object):
        raise error

    monkeypatch.setattr(type(site.services.blobs), "put", fail)
    answer = site.request("PUT", f"/v1/content/blobs/{'0' * 64}", b"x")
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_metrics_count_trials_by_state_and_requests_by_route(site: Site):
    for number in range(2):
        job = site.submit(f"r{number}")
    start(site, trials(site, job["job_id"])[0])
    site.get("/v1/nix")
    site.get(f"/v1/jobs/{job['job_id']}")
    text = site.client.get("/metrics").text
    assert 'trainshed_trials{state="queued"} 1.0' in text
    assert 'trainshed_trials{state="running"} 1.0' in text
    assert re.search(r'answers_total\{method="POST",route="/v1/jobs",status="201"\} 2\.0', text)
    assert re.search(r'answers_total\{method="GET",route="/v1/jobs/\{job_id\}",status="200"\} 1\.0', text)
    assert re.search(r'answers_total\{method="GET",route="unknown",status="404"\} 1\.0', text)
    assert job["job_id"] not in text


def test_real_gpus_are_measured(monkeypatch):
    assert metrics.gpu_metrics() == "" or "trainshed_gpu" in metrics.gpu_metrics()
    measured = GpuMetrics(0, "H100", "GPU-1", 0.5, 100, 200, None, 40.0, ())
    monkeypatch.setattr(metrics, "measure_gpus", lambda: (measured,))
    text = metrics.gpu_metrics()
    assert 'trainshed_gpu_utilisation{index="0",model="H100",uuid="GPU-1"} 0.5' in text
    assert "trainshed_gpu_power_watts{" not in text


def test_the_system_shows_nodes_with_what_is_free(site: Site):
    before = site.get("/v1/system").json()
    (node,) = before["nodes"]
    assert (node["total"]["gpus"], node["free"]["gpus"], node["simulated"]) == (8, 8, True)
    assert before["data_folder"]["free_bytes"] > 0
    start(site, trials(site, site.submit()["job_id"])[0])
    after = site.get("/v1/system").json()
    assert after["nodes"][0]["free"]["gpus"] == 7
    assert after["queue"] == {"running": 1}
    assert after["database"] == site.services.database.dialect


def test_every_error_code_that_can_be_answered_is_documented(sqlite_site: Site):
    document = sqlite_site.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    submit = document["paths"]["/v1/jobs"]["post"]["responses"]
    assert set(submit) >= {
        "200",
        "201",
        "400",
        "401",
        "402",
        "403",
        "404",
        "409",
        "413",
        "422",
        "429",
        "500",
        "503",
    }
    assert "JOB_REQUEST_CONFLICT" in submit["409"]["content"]["application/json"]["examples"]
    assert document["paths"]["/v1/job"]["post"]["x-permission-any-of"] == ["training.run"]
    for path, item in document["paths"].items():
        for operation in item.values():
            assert operation["summary"], path
            assert operation["responses"], path


def test_services_hold_no_secret_in_their_text(sqlite_site: Site):
    assert isinstance(sqlite_site.services, Services)
    assert sqlite_site.owner_key not in repr(sqlite_site.services)
