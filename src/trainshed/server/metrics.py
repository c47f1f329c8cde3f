"""Prometheus text: HTTP latencies of this process, and the state of queue and Trials read at scrape time."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from trainshed.engines.local import metrics as measure_gpus
from trainshed.store import jobs
from trainshed.store.database import Connection

disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus-client leaves it untyped
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HttpMetrics:
    """Counts and times requests by route template, so that ids never become labels."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "trainshed_http_request_seconds",
            "Time from the request's head to the answer's last byte.",
            ("method", "route"),
            registry=self.registry,
            buckets=_BUCKETS,
        )
        self._answers = Counter(
            "trainshed_http_answers",
            "Answers by status.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._limited = Counter(
            "trainshed_http_rate_limited",
            "Requests refused by the rate limit.",
            ("action",),
            registry=self.registry,
        )

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        method = method if method in _METHODS else "OTHER"
        self._seconds.labels(method, route).observe(seconds)
        self._answers.labels(method, route, str(status)).inc()

    def limited(self, action: str) -> None:
        self._limited.labels(action).inc()

    def text(self) -> str:
        return generate_latest(self.registry).decode()


def state_metrics(connection: Connection) -> str:
    """How many Trials are in each state that is not an end, counted now."""
    registry = CollectorRegistry()
    gauge = Gauge("trainshed_trials", "Trials that have not ended, by state.", ("state",), registry=registry)
    for state, count in jobs.count_by_state(connection).items():
        gauge.labels(state).set(count)
    return generate_latest(registry).decode()


def gpu_metrics() -> str:
    """What the real GPUs of this machine do now; nothing where there are none."""
    measured = measure_gpus()
    if not measured:
        return ""
    registry = CollectorRegistry()
    names = ("index", "model", "uuid")
    gauges = {
        "utilisation": Gauge(
            "trainshed_gpu_utilisation", "Share of time in use, 0 to 1.", names, registry=registry
        ),
        "memory_used_mb": Gauge("trainshed_gpu_memory_used_mb", "MiB in use.", names, registry=registry),
        "memory_total_mb": Gauge("trainshed_gpu_memory_total_mb", "MiB there are.", names, registry=registry),
        "power_watts": Gauge("trainshed_gpu_power_watts", "Power draw.", names, registry=registry),
        "temperature_c": Gauge("trainshed_gpu_temperature_celsius", "Temperature.", names, registry=registry),
    }
    for gpu in measured:
        for field, gauge in gauges.items():
            if (value := getattr(gpu, field)) is not None:
                gauge.labels(str(gpu.index), gpu.model, gpu.uuid).set(value)
    return generate_latest(registry).decode()
