"""LAUNCH for gangs: what is prepared meets and starts together (C27, C41)."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf

import structlog

from trainshed.control.crashpoints import Point, reach
from trainshed.control.launching import GpusMissing
from trainshed.control.training.frozen import spec_of
from trainshed.control.training.holding import parts_of
from trainshed.control.training.judging import Failure
from trainshed.control.training.keys import AttemptFolders
from trainshed.control.training.launching import Frame, build_joins, build_launches, meeting_of, slots_of
from trainshed.control.training.observing import STARTING
from trainshed.control.training.placing import GangPlacer
from trainshed.control.training.preparing import GangPrepared, GangPreparer, Unprepared, VolumeMissing
from trainshed.control.training.sites import Site, Sites
from trainshed.engines.contract import EngineError, Host, Launch, Meeting
from trainshed.model.training.spec import HOST_IMAGE
from trainshed.store import gangs, queue
from trainshed.store.database import Connection, Database
from trainshed.store.gangs import Gang, unit_id

OpenSecrets = Callable[[str | None], Mapping[str, str]]
"""The hidden values of a task by place: ``env.NAME``, ``precheck.env.NAME``."""
Met = tuple[Gang, Site, GangPrepared, Meeting]
JOIN_SECONDS = 5.0
"""So long after its launch a worker that joins may be unknown to its engine before it is launched again."""

log = structlog.get_logger(__name__)


class SecretsLost(Exception):
    """Hidden values cannot be decrypted: another key sealed them."""


class GangStarter:
    """Launches gangs. Used by the controller's one thread."""

    def __init__(
        self,
        database: Database,
        sites: Sites,
        placer: GangPlacer,
        preparer: GangPreparer,
        folders: AttemptFolders,
        clock: Callable[[], float],
        grace_seconds: float,
        open_secrets: OpenSecrets,
    ) -> None:
        self._database = database
        self._sites = sites
        self._placer = placer
        self._preparer = preparer
        self._folders = folders
        self._clock = clock
        self._grace = grace_seconds
        self._open_secrets = open_secrets
        self._launched: dict[str, float] = {}
        self._joins: dict[str, float] = {}
        """When this process launched members that join, by unit (Unix seconds)."""

    def launched_at(self, gang: Gang) -> float | None:
        """When this process launched it last (Unix seconds)."""
        return self._launched.get(gang.attempt_id)

    def launch_again(self, gang: Gang) -> None:
        """Some member never arrived: the next step launches once more, which starts nobody twice."""
        self._launched.pop(gang.attempt_id, None)

    def forget_all_but(self, attempt_ids: Collection[str]) -> None:
        self._launched = {key: at for key, at in self._launched.items() if key in attempt_ids}
        self._joins = {u: at for u, at in self._joins.items() if u.rpartition(".")[0] in attempt_ids}

    def launch(self, group: Sequence[Gang]) -> list[tuple[Gang, Failure]]:
        """Start what is prepared, and have the others prepared; answers starts that failed."""
        ready: list[tuple[Gang, Site, GangPrepared]] = []
        failed: list[tuple[Gang, Failure]] = []
        for gang in group:
            site = self._sites.of(gang.allocation.engine)
            if site is None:
                continue  # its engine cannot be reached now
            outcome = self._prepared(gang, site)
            if isinstance(outcome, Unprepared):
                failed.append((gang, Failure(outcome.code, outcome.detail, outcome.retryable)))
            elif outcome is not None:
                ready.append((gang, site, outcome))
        met: list[tuple[Gang, Site, GangPrepared, Meeting]] = []
        for gang, site, prepared in ready:
            parts = parts_of(gang.allocation)
            try:
                meeting = site.engine.meet(
                    gang.attempt_id, [part.node for part in parts], [slots_of(part) for part in parts]
                )
            except EngineError as error:
                failed.append((gang, Failure(error.code, error.message, error.retryable)))
            else:
                met.append((gang, site, prepared, meeting))
        if met:
            reach(Point.GANG_MEET_AFTER_ENGINE)
            failed += self._start(met)
        return failed

    def join(self, gang: Gang, site: Site, ranks: Sequence[int]) -> None:
        """Have workers join a gang that runs (C51). One that cannot is stopped, and seen as ended then."""
        now = self._clock()
        due = [r for r in ranks if now - self._joins.get(unit_id(gang.attempt_id, r), -inf) > JOIN_SECONDS]
        outcome = self._prepared(gang, site) if due else None
        if outcome is None:
            return
        self._joins |= {unit_id(gang.attempt_id, rank): now for rank in due}
        if isinstance(outcome, Unprepared):
            refused = {unit_id(gang.attempt_id, rank): outcome.detail for rank in due}
        else:
            refused = self._join(gang, site, outcome, due)
        reach(Point.GANG_JOIN_AFTER_LAUNCH)
        for unit, why in refused.items():
            log.warning("a worker cannot join", unit=unit, reason=why)
            self._preparer.forget(gang.allocation.id)
            site.engine.stop(unit, grace_seconds=0.0)

    def _join(self, gang: Gang, site: Site, prepared: GangPrepared, due: Sequence[int]) -> dict[str, str]:
        """Launch them; units that cannot be, with the reason."""
        try:
            parts = {part.rank: part for part in parts_of(gang.allocation)}
            hosts = {r: site.engine.join(gang.attempt_id, r, slots_of(parts[r])) for r in due}
            reach(Point.GANG_JOIN_AFTER_ENGINE)
            frame = self._frame(gang, site, prepared, meeting_of(gang), self._store_hosts(gang, hosts))
            errors = site.engine.launch_many(build_joins(frame, hosts))
        except (EngineError, GpusMissing, OSError, SecretsLost, VolumeMissing) as error:
            return {unit_id(gang.attempt_id, rank): str(error) for rank in due}
        return {unit: error.message for unit, error in errors.items()}

    def _store_hosts(self, gang: Gang, hosts: Mapping[int, Host]) -> dict[str, tuple[str, int]]:
        """Where those that join are reached, for readers; answers the number of the Attempt."""

        def store(connection: Connection) -> dict[str, tuple[str, int]]:
            for rank, host in hosts.items():
                values = {"address": host.address, "state": STARTING}
                gangs.change_replica(connection, gang.attempt_id, rank, values)
            return queue.newest_attempts(connection, [gang.trial.id])

        return self._database.write(store)

    def _prepared(self, gang: Gang, site: Site) -> GangPrepared | Unprepared | None:
        spec = spec_of(gang.task)
        if spec.image == HOST_IMAGE and not spec.mounts:
            return GangPrepared()
        key = gang.allocation.id
        if self._preparer.outcome(key) is None:
            self._preparer.start(gang, site.engine, self._placer.catalog)
        return self._preparer.outcome(key)

    def _start(self, met: Sequence[tuple[Gang, Site, GangPrepared, Meeting]]) -> list[tuple[Gang, Failure]]:
        numbers = self._store_meetings([(gang, meeting) for gang, _, _, meeting in met])
        failed: list[tuple[Gang, Failure]] = []
        of_site: dict[str, list[Launch]] = {}
        by_attempt: dict[str, Gang] = {}
        now = self._clock()
        for gang, site, prepared, meeting in met:
            try:
                launches = build_launches(self._frame(gang, site, prepared, meeting, numbers))
            except VolumeMissing as error:
                failed.append((gang, Failure("VOLUME_UNAVAILABLE", str(error), retryable=True)))
                continue
            except (GpusMissing, OSError) as error:
                failed.append((gang, Failure("LAUNCH_FAILED", str(error), retryable=True)))
                continue
            except SecretsLost as error:
                failed.append((gang, Failure("SECRETS_LOST", str(error), retryable=False)))
                continue
            of_site.setdefault(site.key, []).extend(launches)
            by_attempt[gang.attempt_id] = gang
            self._launched[gang.attempt_id] = now
        errors: dict[str, EngineError] = {}
        for key, batch in of_site.items():
            there = self._sites.of(key)
            if there is not None:
                errors |= there.engine.launch_many(batch)
        reach(Point.GANG_LAUNCH_AFTER_ENGINE)
        told: set[str] = set()
        for unit, refused in errors.items():
            attempt_id = unit.rpartition(".")[0]
            if attempt_id not in told:
                told.add(attempt_id)
                self._preparer.forget(by_attempt[attempt_id].allocation.id)
                failure = Failure(refused.code, refused.message, refused.retryable)
                failed.append((by_attempt[attempt_id], failure))
        return failed

    def _frame(
        self,
        gang: Gang,
        site: Site,
        prepared: GangPrepared,
        meeting: Meeting,
        numbers: Mapping[str, tuple[str, int]],
    ) -> Frame:
        spec, members = spec_of(gang.task), len(meeting.hosts)
        try:
            hidden = self._open_secrets(gang.task.secrets)
        except Exception as error:
            raise SecretsLost(f"the hidden values of the task cannot be read: {error}") from error
        return Frame(
            gang=gang,
            number=numbers.get(gang.trial.id, ("", 1))[1],
            meeting=meeting,
            prepared=prepared,
            secrets=_under("env.", hidden),
            check_secrets=_under("precheck.env.", hidden),
            keys=self._folders.keys(gang.attempt_id, members, ssh=spec.ssh),
            folder=self._folders.of(gang.attempt_id),
            catalog=self._placer.catalog,
            nodes=site.nodes,
            grace_seconds=self._grace,
        )

    def _store_meetings(self, met: Sequence[tuple[Gang, Meeting]]) -> dict[str, tuple[str, int]]:
        """Where members meet, for readers; answers the number of each Attempt."""
        fresh = [(gang, meeting) for gang, meeting in met if gang.allocation.meeting is None]
        trial_ids = [gang.trial.id for gang, _ in met]

        def store(connection: Connection) -> dict[str, tuple[str, int]]:
            for gang, meeting in fresh:
                hosts = [[host.name, host.address, host.slots] for host in meeting.hosts]
                ports = {"port": meeting.port, "dashboard_port": meeting.dashboard_port}
                text = json.dumps({"hosts": hosts, **ports})
                gangs.change_allocation(connection, gang.allocation.id, {"meeting": text})
                for rank, host in enumerate(meeting.hosts):
                    values = {"address": host.address, "state": STARTING}
                    gangs.change_replica(connection, gang.attempt_id, rank, values)
                gangs.change_task(connection, gang.trial.id, {"stage": "starting"})
            return queue.newest_attempts(connection, trial_ids)

        if fresh:
            return self._database.write(store)
        with self._database.read() as connection:
            return queue.newest_attempts(connection, trial_ids)


def _under(prefix: str, hidden: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in hidden.items() if name.startswith(prefix)}
