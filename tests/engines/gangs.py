"""Driving gangs of a real local engine: members of shell or Python text, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from engines.conformance import SETTLED
from engines.machinery import LocalHarness
from support.waiting import wait_until
from trainshed.engines import Gang, Launch, Meeting, Observation, Phase, Report, Role


def member(launch: Launch, meeting: Meeting, rank: int, *, start_seconds: float = 60.0) -> Launch:
    """The same as a member of a gang; its id names the gang."""
    gang_id = launch.attempt_id.rpartition(".")[0]
    size = len(meeting.hosts)
    role = Role.WORKER if rank else Role.MASTER
    return replace(launch, gang=Gang(gang_id, rank, size, role, "local", meeting, start_seconds))


def gang(
    local: LocalHarness,
    texts: Sequence[str],
    *,
    gang_id: str = "gang-1",
    start_seconds: float = 60.0,
    shared: Mapping[str, object] | None = None,
    **settings: object,
) -> list[Launch]:
    """Launches of a gang whose members run these shell texts; ``shared`` are fields of each `Launch`."""
    meeting = local.engine.meet(gang_id, ["local"] * len(texts), [1] * len(texts))
    found = []
    for rank, text in enumerate(texts):
        launch = local.shell(f"{gang_id}.{rank}", text, **settings)
        env = {
            **launch.env,
            "MASTER_ADDR": meeting.hosts[0].name,
            "MASTER_PORT": str(meeting.port),
            "WORLD_SIZE": str(len(texts)),
            "RANK": str(rank),
        }
        launch = replace(launch, env=env, **(shared or {}))  # type: ignore[arg-type]
        found.append(member(launch, meeting, rank, start_seconds=start_seconds))
    return found


def settled(local: LocalHarness, launches: Sequence[Launch]) -> list[Observation]:
    """How all of them ended, by rank."""
    return [local.until(each.attempt_id, SETTLED) for each in launches]


def running(local: LocalHarness, launches: Sequence[Launch]) -> None:
    """Wait until user code of all of them really runs."""
    for each in launches:
        local.running(each.attempt_id)


def report(local: LocalHarness, attempt_id: str, code: str) -> Report:
    """Wait for a report of this code."""

    def find() -> Report | None:
        found = [each for each in local.engine.reports(attempt_id, 0) if each.code == code]
        return found[0] if found else None

    return wait_until(find, what=f"the report {code} of {attempt_id}")


def codes(local: LocalHarness, attempt_id: str) -> list[str]:
    """The codes of all its reports, in their order."""
    return [each.code for each in local.engine.reports(attempt_id, 0)]


def stage(local: LocalHarness, attempt_id: str, name: str) -> None:
    """Wait until a member that prepares is at this stage."""

    def reached() -> bool:
        seen = local.observe(attempt_id)
        return seen.phase is Phase.PREPARING and seen.stage == name

    wait_until(reached, what=f"{attempt_id} to be {name}")
