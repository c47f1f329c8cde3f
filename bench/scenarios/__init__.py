"""The scenarios, by the name that ``--only`` takes."""

from collections.abc import Callable, Mapping

from bench.figures import Bench, Figure
from bench.scenarios import (
    artifacts,
    command_line,
    content,
    kueue,
    large_database,
    logs,
    memory,
    mount,
    placement,
    placement_gangs,
    repack,
    republish,
    starts,
    submissions,
    throughput,
)

Scenario = Callable[[Bench], list[Figure]]

SCENARIOS: Mapping[str, Scenario] = {
    "submissions": submissions.measure,
    "starts": starts.measure,
    "throughput": throughput.measure,
    "large_database": large_database.measure,
    "logs": logs.measure,
    "artifacts": artifacts.measure,
    "content": content.measure,
    "republish": republish.measure,
    "repack": repack.measure,
    "mount": mount.measure,
    "command_line": command_line.measure,
    "memory": memory.measure,
    "placement": placement.measure,
    "placement_gangs": placement_gangs.measure,
    "kueue": kueue.measure,
}
