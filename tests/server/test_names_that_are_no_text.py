"""NUL and bytes that are no UTF-8 in paths and queries: unknown names on both databases, never a failure."""

from __future__ import annotations

import pytest

from support.site import Site

NOT_TEXT = ["a%00b", "%00", "%FF%FE", "%ED%A0%80", "a%C3"]
PATHS = [
    ("GET", "/v1/jobs/{}", "JOB_NOT_FOUND"),
    ("GET", "/v1/jobs/{}/result", "JOB_NOT_FOUND"),
    ("GET", "/v1/jobs/{}/logs", "JOB_NOT_FOUND"),
    ("GET", "/v1/jobs/{}/logs/stream", "JOB_NOT_FOUND"),
    ("GET", "/v1/jobs/{}/events", "JOB_NOT_FOUND"),
    ("POST", "/v1/jobs/{}/stop", "JOB_NOT_FOUND"),
    ("GET", "/v1/trials/{}", "TRIAL_NOT_FOUND"),
    ("GET", "/v1/trials/{}/logs/raw", "TRIAL_NOT_FOUND"),
    ("GET", "/v1/trials/{}/artifacts", "TRIAL_NOT_FOUND"),
    ("GET", "/v1/trials/t/artifacts/{}/content", "ARTIFACT_NOT_FOUND"),
    ("GET", "/v1/runners/n/{}", "RUNNER_NOT_FOUND"),
    ("GET", "/v1/runners/{}/n", "RUNNER_NOT_FOUND"),
    ("GET", "/v1/runners/envloop/bash/{}", "RUNNER_NOT_FOUND"),
    ("DELETE", "/v1/runners/envloop/bash/{}", "RUNNER_NOT_FOUND"),
    ("DELETE", "/v1/admin/projects/default/keys/{}", "KEY_NOT_FOUND"),
]


@pytest.mark.parametrize("text", NOT_TEXT)
def test_in_a_path_they_name_nothing(site: Site, text: str):
    for method, path, code in PATHS:
        answer = site.request(method, path.format(text))
        assert (path, answer.status_code, answer.json()["code"]) == (path, 404, code)


def test_every_operation_takes_them_in_its_path_without_failing(site: Site):
    document = site.get("/openapi.json").json()
    for path, item in document["paths"].items():
        if "{" not in path:
            continue
        segments = path.split("/")
        named = [place for place, segment in enumerate(segments) if segment.startswith("{")]
        for method in item:
            for place in named:
                filled = ["x" if at in named else segment for at, segment in enumerate(segments)]
                filled[place] = "a%00b"
                body = {} if method in {"post", "put", "patch"} else None
                answer = site.request(method.upper(), "/".join(filled), body)
                assert 400 <= answer.status_code < 500, (method, filled, answer.text)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/trials?job_id=a%00b", 404, "JOB_NOT_FOUND"),
        ("/v1/trials?status=%00", 422, "INVALID_TRIAL_STATUS"),
        ("/v1/trials?cursor=%00", 400, "INVALID_CURSOR"),
        ("/v1/jobs?status=%00", 422, "INVALID_JOB_STATUS"),
        ("/v1/jobs?type=%00", 422, "INVALID_JOB_TYPE"),
        ("/v1/jobs?limit=%00", 422, "INVALID_LIMIT"),
        ("/v1/runners?cursor=a%00", 400, "INVALID_CURSOR"),
    ],
)
def test_in_a_query_they_are_refused_as_any_bad_value(site: Site, path: str, status: int, code: str):
    answer = site.get(path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert site.get(path.replace("%00", "%FF")).status_code in {status, 404}


def test_of_a_job_that_is_there_they_name_no_trial(site: Site):
    job_id = site.submit()["job_id"]
    answer = site.get(f"/v1/jobs/{job_id}/logs?trial=a%00b")
    assert (answer.status_code, answer.json()["code"]) == (404, "TRIAL_NOT_FOUND")


def test_bytes_of_a_path_are_not_mistaken_for_others(sqlite_site: Site):
    """A path parameter that is no UTF-8 is not the one with U+FFFD in its place."""
    put = sqlite_site.request("PUT", "/v1/admin/projects/default/members/a%EF%BF%BD", {"role": "viewer"})
    assert put.status_code == 200
    assert sqlite_site.request("DELETE", "/v1/admin/projects/default/members/a%FF").status_code == 404
    assert sqlite_site.request("DELETE", "/v1/admin/projects/default/members/a%EF%BF%BD").status_code == 200
