"""The door for training tasks: judge, freeze everything, store once, answer only after the commit.

Serves C1-C23, C29, C55, C56 of the contract "Create Training" and promises P1, P2, P7 and P9. Nothing is
stored for a refused request.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainshed import __version__
from trainshed.content.blobs import BlobError, BlobStore
from trainshed.control.costs import USER, ask_if_costly, dearness, task_cost, worst_seconds
from trainshed.control.crashpoints import Point, reach
from trainshed.control.frozen import FrozenImage
from trainshed.control.images import ImageFreezer
from trainshed.control.request_ids import earlier
from trainshed.control.sealing import Seal
from trainshed.control.training.catalogs import Catalogs
from trainshed.control.training.mounted import Mounted, find_mounted, sub_path_faults
from trainshed.model.access import Permission, Principal
from trainshed.model.errors import Fault, FaultList, Refusal
from trainshed.model.ids import IdFactory
from trainshed.model.states import OutputStatus, State
from trainshed.model.strict_json import canonical_json
from trainshed.model.training.catalog import Catalog
from trainshed.model.training.document import digest, secrets_of, to_document
from trainshed.model.training.fitting import Fleet, FleetNode
from trainshed.model.training.naming import final_name
from trainshed.model.training.resolve import Effective, Resolution, Who, weigh
from trainshed.model.training.resolve_parts import EffectiveVariable
from trainshed.model.training.spec import HOST_IMAGE, TaskSpec
from trainshed.store import access, jobs, tasks
from trainshed.store.database import Connection, Database
from trainshed.store.records import Job, Task, TrialContent

DUPLICATE_SECONDS = 60.0
"""So long after a task an identical one without a request id is suspected to be a mistake (C56)."""
NO_LIMIT_SECONDS = 10 * 365 * 86_400
"""What stands where nothing limits the run: ten years."""
_NAME_TRIES = 20


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a submission came to."""

    job_id: str
    created: bool
    """False where its request id named a task before."""
    warnings: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Judged:
    """A task that could be accepted now, for `validate`."""

    effective: Effective
    catalog: Catalog
    revision: int
    environment: tuple[EffectiveVariable, ...]


@dataclass(frozen=True, slots=True)
class _Frozen:
    effective: Effective
    revision: int
    image: FrozenImage | None
    contents: tuple[TrialContent, ...]
    """Their Trial is not known yet."""
    hidden: Mapping[str, str]
    digest: str
    canonical: str


class TaskAcceptance:
    """Accepts training tasks. Thread-safe; holds nothing that another process would need.

    ``key`` is this deployment's own: digests of hidden values are made with it.
    """

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        database: Database,
        blobs: BlobStore,
        catalogs: Catalogs,
        seal: Seal,
        images: ImageFreezer,
        clock: Callable[[], float],
        ids: IdFactory,
        *,
        key: bytes,
        random_below: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._catalogs = catalogs
        self._seal = seal
        self._images = images
        self._clock = clock
        self._ids = ids
        self._key = key
        self._random_below = random_below

    def judge(self, principal: Principal, document: Any, *, smoke: bool = False) -> Judged:
        """What ``document`` means now; asks no registry and stores nothing (C16). Raises `Refusal`."""
        _may_run(principal)
        with self._database.read() as connection:
            resolution, revision, catalog = self._weigh(connection, principal, document, smoke=smoke)
            mounted = find_mounted(connection, principal.project_id, resolution.mounts)
        effective = self._accepted(resolution, mounted)
        return Judged(effective, catalog, revision, effective.environment)

    def accept(self, principal: Principal, document: Any, *, source: str = USER) -> Accepted:
        """The task that ``document`` names. Raises `Refusal`; then nothing was stored.

        ``source`` says by whose approval rules it is judged, ``agent`` or ``user``.
        """
        _may_run(principal)
        with self._database.read() as connection:
            resolution, revision, _ = self._weigh(connection, principal, document, smoke=False)
            if (known := resolution.effective) is not None and (request_id := known.request.request_id):
                canonical = self._canonical(known.request.spec)
                if job := earlier(connection, principal, request_id, canonical):
                    return Accepted(job.id, created=False)
            mounted = find_mounted(connection, principal.project_id, resolution.mounts)
        effective = self._accepted(resolution, mounted)
        request_id, canonical = effective.request.request_id, self._canonical(effective.request.spec)
        frozen = _Frozen(
            effective,
            revision,
            self._image(effective),
            mounted.contents,
            _hidden(effective),
            digest(effective.request.spec, self._key),
            canonical,
        )
        job, trial, task = self._rows(principal, frozen)
        # Which of the choices it starts with is not known yet, nor how far it grows: the dearest counts.
        choices = [
            task_cost(source, each.amounts.gpus, worst_seconds(effective.spec), each.price_per_hour)
            for each in effective.largest
        ]
        cost = max(choices, key=dearness)

        def store(connection: Connection) -> str | None:
            # Submissions of a project wait for each other, so that of twins one is first (P2, C56).
            access.lock_project(connection, principal.project_id)
            if request_id and (before := earlier(connection, principal, request_id, canonical)):
                return before.id
            allowed = effective.request.allow_duplicate
            # A command line makes an id for each run of it: by itself that does not tell a mistake.
            if not (bool(request_id) if allowed is None else allowed):
                self._refuse_twin(connection, task)
            named = self._named(connection, task)
            sentence = _submitted(named, effective)
            labels = effective.spec.labels
            tasks.insert_task(
                connection, job, {**trial, "name": named.name}, named, labels, sentence=sentence
            )
            rows = [
                {
                    "trial_id": task.trial_id,
                    "role": use.role,
                    "kind": use.kind,
                    "name": use.name,
                    "version": use.version,
                    "manifest_sha256": use.manifest_sha256,
                }
                for use in mounted.contents
            ]
            jobs.insert_contents(connection, rows)
            ask_if_costly(connection, job, cost, at=job.created_at)
            reach(Point.ACCEPT_BEFORE_COMMIT)
            return None

        replayed = self._database.write(store)
        reach(Point.ACCEPT_AFTER_COMMIT)
        if replayed:
            return Accepted(replayed, created=False)
        return Accepted(job.id, created=True, warnings=tuple(each.as_dict() for each in effective.warnings))

    def _weigh(
        self, connection: Connection, principal: Principal, document: Any, *, smoke: bool
    ) -> tuple[Resolution, int, Catalog]:
        revision, catalog = self._catalogs.current(connection)
        fleet: Fleet = {
            cluster: [FleetNode(node, labels) for node, labels in nodes]
            for cluster, nodes in self._catalogs.nodes(connection).items()
        }
        who = Who(user=principal.person, project=principal.project_id)
        return weigh(document, catalog, who, fleet, smoke=smoke), revision, catalog

    def _accepted(self, resolution: Resolution, mounted: Mounted) -> Effective:
        """Raises `Refusal` with the faults of the document and of what it mounts, all at once."""
        faults = list(mounted.faults)
        try:
            faults += sub_path_faults(self._blobs, mounted.parts)
        except (BlobError, Refusal):
            if resolution.effective is not None and not faults:
                raise
        return resolution.accepted(faults)

    def _canonical(self, spec: TaskSpec) -> str:
        """What a repeated request must equal; hidden values are compared by a keyed digest (P9)."""
        hidden = {
            name: hmac.new(self._key, value.encode(), hashlib.sha256).hexdigest()
            for name, value in secrets_of(spec).items()
        }
        return canonical_json({"spec": to_document(spec), **({"hidden": hidden} if hidden else {})})

    def _refuse_twin(self, connection: Connection, task: Task) -> None:
        since = task.submitted_at - DUPLICATE_SECONDS
        twin = tasks.identical(connection, task.owner, task.spec_sha256, since=since)
        if twin is None:
            return
        ago = max(0, round(task.submitted_at - twin.submitted_at))
        raise Refusal.of(
            "DUPLICATE_SUSPECTED",
            f"you submitted the same task {ago} s ago: it is {twin.name} ({twin.job_id})",
            path="spec",
            hint=f"Look at it with `trainshed train get {twin.name}`; `--allow-duplicate` (in a request"
            " `allow_duplicate: true`) submits another.",
            job_id=twin.job_id,
            name=twin.name,
            task_uuid=twin.task_uuid,
        )

    def _named(self, connection: Connection, task: Task) -> Task:
        """The task under a name that was never used before (C3)."""
        for _ in range(_NAME_TRIES):
            name = final_name(task.name, self._random_below)
            if not tasks.name_is_taken(connection, name):
                return replace(task, name=name)
        raise RuntimeError(f"{_NAME_TRIES} random names in a row were taken")

    def _image(self, effective: Effective) -> FrozenImage | None:
        name = effective.spec.image
        if name == HOST_IMAGE:
            return None
        try:
            found = self._images.freeze([name])[name]
        except Refusal as refusal:
            raise _at_image(refusal) from refusal
        if isinstance(found, Refusal):
            raise _at_image(found)
        return found

    def _rows(self, principal: Principal, frozen: _Frozen) -> tuple[Job, dict[str, Any], Task]:
        now = self._clock()
        effective, spec = frozen.effective, frozen.effective.spec
        sums = effective.totals[0]
        job = Job(
            id=self._ids.job(),
            project_id=principal.project_id,
            request_id=effective.request.request_id or f"auto-{uuid.uuid4()}",
            type="train",
            canonical=frozen.canonical,
            status="queued",
            submitted_by=principal.actor,
            created_at=now,
            updated_at=now,
            finished_at=None,
            stop_accepted_at=None,
            platform_version=__version__,
        )
        trial_id = self._ids.trial()
        trial = {
            "id": trial_id,
            "job_id": job.id,
            "project_id": principal.project_id,
            "position": 0,
            "name": spec.name_prefix,
            "kind": str(spec.kind),
            "state": State.QUEUED,
            "runner": "",
            "revision": "",
            "selector": "",
            "source_ref": None,
            "snapshot_sha256": "",
            "entrypoint": "",
            "command": spec.cmd,
            "gpu_type": "",
            "gpus": sums.amounts.gpus,
            "cpus": sums.amounts.cpus,
            "memory_mb": sums.amounts.memory_mb,
            "storage_mb": 0,
            "shm_mb": 0,
            "timeout_seconds": spec.max_run_seconds or NO_LIMIT_SECONDS,
            "outputs": "[]",
            "params": "{}",
            "tags": canonical_json(dict(spec.labels)),
            "created_at": now,
            "updated_at": now,
            "priority": effective.priority_value,
            "queue_rank": now,
            "output_status": OutputStatus.NONE,
            "image_requested": frozen.image.requested if frozen.image else None,
            "image_resolved": frozen.image.resolved if frozen.image else None,
            "image_digest": frozen.image.digest if frozen.image else None,
        }
        document = effective.document()
        document["env"] = [each.as_dict() for each in effective.environment]
        task = Task(
            trial_id=trial_id,
            job_id=job.id,
            project_id=principal.project_id,
            task_uuid=str(uuid.uuid4()),
            name=spec.name_prefix,
            kind=str(spec.kind),
            owner=principal.person,
            spec=canonical_json(document),
            secrets=self._seal.seal(frozen.hidden),
            spec_sha256=frozen.digest,
            region=spec.region or "",
            cluster=spec.cluster or "",
            pool=spec.pool or "",
            resource_type=str(spec.resource_type),
            guarantee=bool(spec.guarantee),
            catalog_revision=frozen.revision,
            submitted_at=now,
            totals=canonical_json(sums.as_dict() | _largest(effective)),
            public=spec.public,
            priority_class=str(spec.priority),
            priority=effective.priority_value,
            queued_at=now,
            next_cause="initial",
            resubmissions=0,
            excluded_nodes="[]",
            chosen_spec=None,
            plan=None,
            stage=None,
            retained_until=None,
            deleted_at=None,
            deleted_by=None,
        )
        return job, trial, task


def _may_run(principal: Principal) -> None:
    if not principal.may(Permission.TRAINING_RUN):
        raise Refusal.of("PERMISSION_DENIED", "this key has no `training.run` in its project")


def _hidden(effective: Effective) -> dict[str, str]:
    """Hidden values by where they belong: ``env.HF_TOKEN``, ``precheck.env.KEY`` (C9, C10)."""
    found = secrets_of(effective.spec)
    faults = FaultList()
    for each in effective.environment:
        if not each.hidden or each.source == "task":
            continue
        try:
            found[f"env.{each.name}"] = each.value if each.value is not None else _read_secret(each)
        except (OSError, KeyError) as error:
            said = f"the project's hidden variable {each.name} cannot be read: {error}"
            faults.add("spec.env", "ENV_SECRET_UNAVAILABLE", said)
    faults.raise_if_any()
    return found


def _read_secret(variable: EffectiveVariable) -> str:
    kind, _, place = (variable.secret or "").partition(":")
    if kind == "env":
        return os.environ[place]
    return Path(place).read_text(encoding="utf-8").rstrip("\n")


def _at_image(refusal: Refusal) -> Refusal:
    faults = [Fault("spec.image", each.code, each.message, each.hint) for each in refusal.faults]
    return Refusal(faults, extra=refusal.extra, retry_after=refusal.retry_after)


def _largest(effective: Effective) -> dict[str, Any]:
    """What the task comes to once it has grown as far as it may, for a later question about its cost."""
    return {"largest": effective.largest[0].as_dict()} if effective.spec.autoscales else {}


def _submitted(task: Task, effective: Effective) -> str:
    sums = effective.totals[0]
    size = f"{sums.replicas} replicas, {sums.amounts.gpus} GPUs, {sums.amounts.cpus} CPUs"
    return f"Submitted {task.name} by {task.owner}: {task.kind} with {size}."
