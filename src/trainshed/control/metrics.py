"""What the controller counts, for ``/metrics``."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

_START_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30, 120, 600, 3600, 86400)
_RUN_BUCKETS = (0.1, 1, 10, 60, 300, 1800, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600)

starts = Counter("trainshed_trial_starts", "Trials whose user code was started")
ends = Counter("trainshed_trial_ends", "Trials that reached a terminal state", ["status", "code"])
start_latency = Histogram(
    "trainshed_trial_start_latency_seconds",
    "From acceptance to the start of user code",
    buckets=_START_BUCKETS,
)
durations = Histogram(
    "trainshed_trial_duration_seconds", "Run time of user code", ["status"], buckets=_RUN_BUCKETS
)
queue = Gauge("trainshed_queue_length", "Waiting Trials by the reason they wait for", ["reason"])
leaked = Gauge("trainshed_allocations_leaked", "Allocations whose release could not be confirmed yet")
releases = Counter("trainshed_allocation_releases", "Allocations released, with evidence")
strangers = Counter("trainshed_strangers_ended", "Processes with our mark that belonged to no Attempt")
garbage_blobs = Counter("trainshed_garbage_blobs", "Blobs removed because nothing needed them")
garbage_bytes = Counter("trainshed_garbage_bytes", "Bytes of the blobs removed")
cache_bytes = Gauge("trainshed_content_cache_bytes", "Disk that the node's cache of content takes")
cache_trees = Gauge("trainshed_content_cache_trees", "Trees of content on the node")
passes = Histogram(
    "trainshed_placement_pass_seconds",
    "Duration of a placement pass",
    buckets=(0.0005, 0.001, 0.005, 0.01, 0.1, 1),
)
gang_passes = Histogram(
    "trainshed_gang_pass_seconds",
    "Duration of a placement pass over training tasks, its commit included",
    buckets=(0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 1),
)
gang_queue = Gauge(
    "trainshed_gang_queue_length", "Waiting training tasks by the reason they wait for", ["reason"]
)
gang_starts = Counter("trainshed_gang_starts", "Attempts of training tasks whose user code was started")
gang_ends = Counter("trainshed_gang_ends", "Attempts of training tasks that ended", ["outcome"])
preemptions = Counter("trainshed_preemptions", "Gangs that had to go for another one")
