"""Rates and body sizes: refused before any work, told how long to wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.site import Site, submission
from trainshed.server.limits import Action, Rate, RateLimiter
from trainshed.server.services import BodyLimits


class Ticks:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def limiter(clock: Ticks, **rates: tuple[float, float]) -> RateLimiter:
    wide = {action: Rate(1e6, 1e6) for action in Action}
    return RateLimiter({**wide, **{Action(k): Rate(*v) for k, v in rates.items()}}, clock=clock)


def test_reads_writes_and_submissions_are_counted_separately_for_each_key(make_site):
    clock = Ticks()
    site: Site = make_site(limiter=limiter(clock, submissions=(1, 2), reads=(1, 3)))
    other = site.add_key()
    for key in (site.owner_key, other):
        site.get("/v1/me", key=key)
    for number in range(2):
        site.submit(f"r{number}")
    refused = site.post("/v1/jobs", submission("r3"))
    assert (refused.status_code, refused.json()["code"]) == (429, "RATE_LIMITED")
    assert refused.headers["Retry-After"] == "1"
    assert site.post("/v1/job", submission("r3")).status_code == 429
    assert site.post("/api/v1/jobs", submission("r3")).status_code == 429
    assert site.post("/v1/jobs", submission("r3"), key=other).status_code == 201
    assert site.get("/v1/jobs").status_code == 200
    clock.now += 1
    assert site.post("/v1/jobs", submission("r4")).status_code == 201


def test_keys_that_never_proved_valid_share_the_rate_of_their_address(make_site):
    site: Site = make_site(limiter=limiter(Ticks(), reads=(1, 3)))
    statuses = [site.get("/v1/me", key=f"tsk_guess{n}").status_code for n in range(5)]
    assert statuses == [401, 401, 401, 429, 429]


def test_health_and_metrics_are_never_limited(make_site):
    site: Site = make_site(limiter=limiter(Ticks(), reads=(1, 1)))
    for path in ("/healthz", "/readyz", "/metrics") * 3:
        assert site.client.get(path).status_code == 200


def test_the_default_rates_allow_100_reads_and_500_submissions_a_second():
    limits = RateLimiter(clock=Ticks())
    limits.proved("key")
    assert not any(limits.take("key", "here", Action.READ) for _ in range(100))
    assert not any(limits.take("key", "here", Action.SUBMIT) for _ in range(500))


@given(
    st.lists(st.floats(0, 3), max_size=60),
    st.floats(0.1, 20),
    st.floats(1, 20),
)
def test_never_more_than_the_burst_and_the_rate_are_let_through(pauses, per_second, burst):
    clock = Ticks()
    limits = RateLimiter({Action.READ: Rate(per_second, burst)}, clock=clock)
    let_through = 0
    for pause in pauses:
        clock.now += pause
        wait = limits.take(None, "here", Action.READ)
        assert wait >= 0
        let_through += not wait
    assert let_through <= burst + per_second * clock.now + 1e-6


def test_the_limiter_remembers_a_bounded_number_of_callers():
    limits = RateLimiter(capacity=10, clock=Ticks())
    for number in range(100):
        limits.proved(f"k{number}")
        limits.take(f"k{number}", "here", Action.READ)
    assert len(limits._buckets) <= 10
    assert len(limits._proven) <= 10


SMALL = BodyLimits(submission=2000, revision=3000, blob=1000, other=500)


@pytest.mark.parametrize(
    ("method", "path", "limit"),
    [
        ("POST", "/v1/jobs", 2000),
        ("PUT", f"/v1/content/blobs/{'0' * 64}", 1000),
        ("POST", "/v1/runners/a/b/revisions", 3000),
        ("POST", "/v1/admin/projects", 500),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused_whether_its_length_is_declared_or_not(
    make_site, method: str, path: str, limit: int, *, chunked: bool
):
    site: Site = make_site(bodies=SMALL)
    headers = {"Authorization": f"Bearer {site.owner_key}"}
    content = iter([b"x" * 100] * (limit // 100) + [b"x"]) if chunked else b"x" * (limit + 1)
    answer = site.client.request(method, path, content=content, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "REQUEST_TOO_LARGE")
    at_limit = site.client.request(method, path, content=b" " * limit, headers=headers)
    assert at_limit.status_code != 413


def test_a_body_where_none_is_read_is_ignored(sqlite_site: Site):
    job = sqlite_site.submit()
    assert sqlite_site.post(f"/v1/jobs/{job['job_id']}/stop", b"x" * 100_000).status_code == 200
