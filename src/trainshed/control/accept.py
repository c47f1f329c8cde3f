"""The door for submissions: check, freeze everything, store once, answer only after the commit.

Serves E1-E4, E8, E15-E31, E38-E60, A2, A3, A12 and promises P1, P2, P7. Nothing is stored for a refused
request (E3).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from trainshed import __version__
from trainshed.content.blobs import BlobStore
from trainshed.content.registry import RegistryClient
from trainshed.control.costs import USER, ask_if_costly, runner_cost
from trainshed.control.crashpoints import Point, reach
from trainshed.control.fleet import SharedFleet
from trainshed.control.frozen import FrozenImage, FrozenProfile
from trainshed.control.images import ImageFreezer
from trainshed.control.profiles import Lookups, ProfileFreezer, revoked_content
from trainshed.control.references import approval_hint
from trainshed.control.request_ids import earlier
from trainshed.control.resuming import freeze_checkpoint, hold_checkpoints
from trainshed.control.scripts.reserving import reservations
from trainshed.control.snapshots import Snapshots
from trainshed.model.access import Permission, Principal
from trainshed.model.content import ContentKind
from trainshed.model.errors import Fault, FaultList, Refusal
from trainshed.model.ids import IdFactory
from trainshed.model.images import RegistryRules
from trainshed.model.runner import RUN_COMMAND, RunnerDefinition
from trainshed.model.selectors import Selector
from trainshed.model.states import OutputStatus, State
from trainshed.model.strict_json import canonical_json
from trainshed.model.submission import (
    MAX_COMPARED,
    RESOURCE_KEYS,
    SPEC_KEYS,
    UNREAD,
    Submission,
    TrialRequest,
    read_submission,
)
from trainshed.policy.budget import Account, ProjectLimits, RunningTrial, account
from trainshed.policy.effective import (
    TIMEOUT,
    EffectiveResources,
    ServerPolicy,
    effective_resources,
)
from trainshed.policy.waiting import rank
from trainshed.store import access, contents, jobs, moves, queue, runners, scripts
from trainshed.store.database import Connection, Database
from trainshed.store.records import Job, Project, Revision


@dataclass(frozen=True, slots=True)
class _Frozen:
    """One Trial with everything decided that a later change must not touch (E31)."""

    request: TrialRequest
    revision: Revision
    source_ref: str | None
    definition: RunnerDefinition
    resources: EffectiveResources
    profile: FrozenProfile | None = None
    image: FrozenImage | None = None
    resume_from: str | None = None

    @property
    def image_name(self) -> str | None:
        """The image that was asked for, or else the Runner's own (E41)."""
        return self.request.image or self.definition.image

    @property
    def image_path(self) -> str:
        """Where the image is named; one of the Runner's stands at the Runner."""
        return f"{self.request.path}.{'image' if self.request.image else 'runner'}"


class Acceptance:
    """Accepts submissions. Thread-safe; holds nothing that another process would need."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        policy: ServerPolicy,
        clock: Callable[[], float],
        ids: IdFactory,
        images: ImageFreezer | None = None,
    ) -> None:
        self._database = database
        self._policy = policy
        self._clock = clock
        self._ids = ids
        self._snapshots = Snapshots(blobs)
        self._fleet = SharedFleet()
        self._images = images or ImageFreezer(database, RegistryClient(RegistryRules()))
        self._profiles = ProfileFreezer(blobs)

    def accept(self, principal: Principal, document: Any, *, source: str = USER) -> tuple[str, bool]:
        """The id of the Job that ``document`` names, and whether it was made by this call.

        ``source`` says by whose approval rules it is judged, ``agent`` or ``user``. Raises `Refusal`; then
        nothing was stored.
        """
        if not principal.may(Permission.TRAINING_RUN):
            raise Refusal.of("PERMISSION_DENIED", "this key has no `training.run` in its project")
        submission, malformed = read_submission(document)
        with self._database.read() as connection:
            if malformed:
                # What its references mean is looked up all the same, so that every fault is told at once.
                project = access.get_project(connection, principal.project_id)
                self._freeze(connection, principal, project, submission, malformed)
            if job_id := self._replay(connection, principal, submission):
                return job_id, False
            project = access.get_project(connection, principal.project_id)
            frozen = self._freeze(connection, principal, project, submission)
        self._profiles.verify((item.request.path, item.profile) for item in frozen if item.profile)
        frozen = self._freeze_images(frozen)
        job, rows, uses = self._rows(principal, project, submission, frozen)
        resumed = {i.resume_from: f"{i.request.path}.resume_from" for i in frozen if i.resume_from}
        costs = [(item.resources.amounts.gpus, item.resources.timeout_seconds) for item in frozen]

        def store(connection: Connection) -> str | None:
            if job_id := self._replay(connection, principal, submission):
                return job_id
            hold_checkpoints(connection, resumed)
            jobs.insert_job(connection, job, rows)
            jobs.insert_contents(connection, uses)
            ask_if_costly(connection, job, runner_cost(source, costs), at=job.created_at)
            reach(Point.ACCEPT_BEFORE_COMMIT)
            return None

        replayed = self._database.write(store)
        reach(Point.ACCEPT_AFTER_COMMIT)
        return (replayed, False) if replayed else (job.id, True)

    def _replay(self, connection: Connection, principal: Principal, submission: Submission) -> str | None:
        """The Job that already has this request id; raises on other input and on revoked access (A2)."""
        job = earlier(connection, principal, submission.request_id, submission.canonical)
        if job is None:
            return None
        trials = jobs.trials_of(connection, [job.id])[job.id]
        for number, trial in enumerate(trials):
            if not runners.still_readable(connection, principal.project_id, trial.runner, trial.revision):
                raise Refusal.of(
                    "RUNNER_NOT_FOUND",
                    f"the Runner {trial.selector} is no longer readable for this project",
                    path=f"trials[{number}].spec.runner",
                )
        if with_profile := [trial.id for trial in trials if trial.profile is not None]:
            _refuse_revoked(connection, principal.project_id, with_profile, [trial.id for trial in trials])
        return job.id

    def _freeze(
        self,
        connection: Connection,
        principal: Principal,
        project: Project,
        submission: Submission,
        malformed: Sequence[Fault] = (),
    ) -> list[_Frozen]:
        """Everything decided; raises `Refusal` with every fault, ``malformed`` among them."""
        faults = FaultList(list(malformed))
        judge = partial(
            effective_resources,
            policy=self._policy,
            fleet=self._fleet.read(connection),
            limits=project_limits(project),
            funds=project_account(connection, project, now=self._clock()),
        )
        known = Lookups()
        resolved: dict[Selector, tuple[Revision, str | None] | Refusal] = {}
        frozen = []
        for request in submission.trials:
            path = request.path
            if request.selector not in resolved and request.selector != UNREAD:
                resolved[request.selector] = self._resolve(connection, principal, request.selector)
            found = resolved.get(request.selector)
            if found is None or isinstance(found, Refusal):
                # What else the Trial refers to is told all the same: nobody wants to learn it piece by piece.
                if found is not None:
                    faults.faults += [replace(fault, path=f"{path}.{fault.path}") for fault in found.faults]
                self._profiles.freeze(connection, principal, request, None, known, faults)
                freeze_checkpoint(connection, project.id, request, None, faults)
                unread = _not_given(request) | _unread(request, malformed)
                faults.faults += judge(request, None, unread=unread, path=path)[1]
                continue
            revision, source_ref = found
            definition = self._snapshots.definition(revision.snapshot_sha256, revision.definition)
            faults.faults += _runner_faults(request, definition, path)
            profile = self._profiles.freeze(connection, principal, request, definition, known, faults)
            resumed = freeze_checkpoint(connection, project.id, request, definition, faults)
            resources, ill = judge(request, definition, unread=_unread(request, malformed), path=path)
            faults.faults += ill
            if resources is not None:
                frozen.append(
                    _Frozen(
                        request, revision, source_ref, definition, resources, profile, resume_from=resumed
                    )
                )
        faults.raise_if_any()
        return frozen

    def _freeze_images(self, frozen: list[_Frozen]) -> list[_Frozen]:
        """Give every Trial its image's digest; one name is asked for once, so all its Trials agree."""
        names = {item.image_name for item in frozen if item.image_name is not None}
        if not names:
            return frozen
        try:
            found = self._images.freeze(names)
        except Refusal as refusal:
            found = dict.fromkeys(names, refusal)
        faults, waits, done = FaultList(), [], []
        for item in frozen:
            answer = None if item.image_name is None else found[item.image_name]
            if isinstance(answer, Refusal):
                faults.faults += [replace(fault, path=item.image_path) for fault in answer.faults]
                waits.append(answer.retry_after or 0)
            else:
                done.append(replace(item, image=answer))
        if faults:
            raise Refusal(faults.faults, retry_after=max(waits) or None)
        return done

    def _resolve(
        self, connection: Connection, principal: Principal, selector: Selector
    ) -> tuple[Revision, str | None] | Refusal:
        try:
            revision, source_ref = runners.resolve(connection, principal, selector, to_run=True)
            self._snapshots.check(self._snapshots.files(revision.snapshot_sha256, revision.manifest))
        except Refusal as refusal:
            return refusal
        return revision, source_ref

    def _rows(
        self, principal: Principal, project: Project, submission: Submission, frozen: list[_Frozen]
    ) -> tuple[Job, list[dict[str, Any]], list[dict[str, Any]]]:
        now = self._clock()
        job = Job(
            id=self._ids.job(),
            project_id=project.id,
            request_id=submission.request_id,
            type="train",
            canonical=submission.canonical,
            status="queued",
            submitted_by=principal.actor,
            created_at=now,
            updated_at=now,
            finished_at=None,
            stop_accepted_at=None,
            platform_version=__version__,
        )
        rows = [
            {
                "id": self._ids.trial(),
                "job_id": job.id,
                "project_id": project.id,
                "position": position,
                "name": item.request.name,
                "state": State.QUEUED,
                "runner": item.revision.runner,
                "revision": item.revision.revision,
                "selector": str(item.request.selector),
                "source_ref": item.source_ref,
                "snapshot_sha256": item.revision.snapshot_sha256,
                "entrypoint": item.definition.entrypoint,
                "command": item.request.command,
                "gpu_type": item.resources.gpu_type,
                **{key: getattr(item.resources.amounts, key) for key in _AMOUNTS},
                "timeout_seconds": item.resources.timeout_seconds,
                "outputs": canonical_json(list(item.definition.outputs)),
                "params": canonical_json(_variables(item)),
                "tags": canonical_json(dict(item.request.tags)),
                "created_at": now,
                "updated_at": now,
                "priority": project.priority,
                "queue_rank": rank(project.priority, now, self._policy.priority_worth_seconds),
                "output_status": OutputStatus.PENDING if item.definition.outputs else OutputStatus.NONE,
                "image_requested": item.image.requested if item.image else None,
                "image_resolved": item.image.resolved if item.image else None,
                "image_digest": item.image.digest if item.image else None,
                "profile": item.profile.document if item.profile else None,
                "profile_sha256": item.profile.sha256 if item.profile else None,
                "resume_from": item.resume_from,
            }
            for position, item in enumerate(frozen)
        ]
        uses = [
            {
                "trial_id": row["id"],
                "role": use.role,
                "kind": use.kind.value,
                "name": use.name,
                "version": use.version,
                "manifest_sha256": use.manifest_sha256,
            }
            for row, item in zip(rows, frozen, strict=True)
            if item.profile is not None
            for use in item.profile.contents
        ]
        return job, rows, uses


def _refuse_revoked(
    connection: Connection, project_id: str, with_profile: list[str], trial_ids: list[str]
) -> None:
    """Refuse the retry of a Job whose content its project may not use any more (A2, of content)."""
    for trial_id, frozen in jobs.contents_of(connection, with_profile).items():
        if revoked := revoked_content(connection, project_id, frozen):
            kind, digest = ContentKind(revoked.kind), revoked.manifest_sha256
            there = contents.still_readable(connection, project_id, kind, revoked.name, digest)
            raise Refusal.of(
                "ACCESS_DENIED",
                f"{kind.noun} {revoked.name}@{revoked.version} may no longer be used",
                path=f"trials[{trial_ids.index(trial_id)}].spec.profile",
                hint=approval_hint(revoked.name, digest) if there else "",
            )


_AMOUNTS = ("gpus", "cpus", "memory_mb", "storage_mb", "shm_mb")


def project_limits(project: Project) -> ProjectLimits:
    """The limits of a project in the words of ``policy``."""
    budget = project.budget_gpu_seconds
    return ProjectLimits(
        max_gpus=project.max_gpus,
        budget_gpu_seconds=None if budget is None else int(budget),
    )


def project_account(connection: Connection, project: Project, *, now: float) -> Account:
    """The project's GPU time at ``now``; its active Trials are read only if there is a budget."""
    running: list[RunningTrial] = []
    if project.budget_gpu_seconds is not None:
        active = queue.active(connection, project.id)
        running = [
            RunningTrial(trial.gpus, trial.timeout_seconds, trial.started_at)
            if trial.kind == moves.RUNNER
            # A training task may have no end: what it ran for counts, its quota bounds the rest.
            else RunningTrial(
                trial.gpus, math.ceil(max(0.0, now - (trial.started_at or now))), trial.started_at
            )
            for trial in active
            if trial.kind != scripts.SCRIPT
        ]
        packed = [trial for trial in active if trial.kind == scripts.SCRIPT]
        running += reservations(connection, packed, now) if packed else []
    return account(project_limits(project), int(project.used_gpu_seconds), running, now=now)


def _variables(item: _Frozen) -> dict[str, str]:
    given = {} if item.request.command is None else {RUN_COMMAND: item.request.command}
    return item.definition.variables(given)


def _not_given(request: TrialRequest) -> set[str]:
    """What a Trial leaves to its Runner: keys of ``resources``, and ``timeout_seconds``."""
    given = set(request.counts)
    given |= set() if request.gpu_type is None else {"gpu_type"}
    given |= set() if request.timeout_seconds is None else {TIMEOUT}
    return {*RESOURCE_KEYS, TIMEOUT} - given


def _unread(request: TrialRequest, malformed: Iterable[Fault]) -> set[str]:
    """What of a Trial's resources is malformed, and what may be meant by a key that is.

    Judged with defaults in their place it would be as nobody asked for it.
    """
    found: set[str] = set()
    compared = 0
    resources = f"{request.path}.resources"
    for fault in malformed:
        if fault.path.startswith(f"{request.path}.timeout"):
            found.add(TIMEOUT)
        elif fault.path.startswith(resources):
            key = fault.path.removeprefix(f"{resources}.")
            found |= {key} if key in RESOURCE_KEYS else _not_given(request) - {TIMEOUT}
        elif compared < MAX_COMPARED and fault.path.startswith(f"{request.path}."):
            key = fault.path.removeprefix(f"{request.path}.")
            compared += 1
            if key not in SPEC_KEYS and difflib.get_close_matches(key, ("resources", *RESOURCE_KEYS), n=1):
                found |= _not_given(request) - {TIMEOUT}
    return found


def _runner_faults(request: TrialRequest, definition: RunnerDefinition, path: str) -> list[Fault]:
    faults = []
    if request.command is not None and not definition.takes_command:
        faults.append(
            Fault(
                f"{path}.command",
                "UNSUPPORTED_COMMAND",
                f"the Runner {request.selector} declares no `run_command` parameter, so it takes no command",
            )
        )
    return faults
