"""A task judged by a catalogue: what it means there, everything filled in, or all that is wrong with it.

`weigh` is what `validate` and creation do with a document; nothing here knows what is in use now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainshed.model.errors import Fault, Refusal
from trainshed.model.training.capabilities import unsupported
from trainshed.model.training.catalog import ANY, DEFAULT_PRIORITY, Catalog, Engine, InstanceSpec, Pool
from trainshed.model.training.codes import SpecFaults
from trainshed.model.training.document import to_document
from trainshed.model.training.fitting import Fleet, fit_faults
from trainshed.model.training.notices import Notice, notices_of
from trainshed.model.training.quota import QuotaAnswer, ceiling
from trainshed.model.training.reading import SPEC_PATH, read_document
from trainshed.model.training.resolve_parts import (
    EffectiveVariable,
    ResolvedMount,
    check_alarms,
    check_labels,
    merged_environment,
    resolve_image,
    resolve_mounts,
    resolve_place,
    resolve_shared_storage,
)
from trainshed.model.training.spec import (
    GUARANTEE_DEFAULTS,
    Instance,
    InstanceType,
    ResourceType,
    Smoke,
    SpecChoice,
    TaskRequest,
    TaskSpec,
)
from trainshed.model.training.totals import Totals, totals


@dataclass(frozen=True, slots=True)
class Who:
    """Whoever submits: the user's name (`X_USER_NAME`), the project of the key, and any other allowed."""

    user: str
    project: str
    projects: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """A task that a catalogue accepts."""

    request: TaskRequest
    """As it was sent."""
    spec: TaskSpec
    """Every field filled in; the image is an address, references are those that were written."""
    engine: Engine
    priority_value: int
    environment: tuple[EffectiveVariable, ...]
    """TaskEnv below the task's own variables, by name (C10); injected ones come with each Attempt."""
    mounts: tuple[ResolvedMount, ...]
    shared_storage: ResolvedMount | None
    choices: tuple[SpecChoice, ...]
    """Those that can ever run, in descending preference (C22)."""
    totals: tuple[Totals, ...]
    """Of each choice."""
    largest: tuple[Totals, ...]
    """The same of an autoscaling task at its `max`: what it may come to (C51)."""
    quota: tuple[QuotaAnswer, ...]
    """Of the first choice; of an autoscaling task at its `max`."""
    warnings: tuple[Notice, ...]

    @property
    def project(self) -> str:
        return self.spec.project or ""

    def document(self) -> dict[str, Any]:
        """The effective spec as JSON, hidden values `null`."""
        return to_document(self.spec)

    def as_dict(self) -> dict[str, Any]:
        """The answer of `validate`, without what only the server knows."""
        return {
            "spec": self.document(),
            "totals": self.totals[0].as_dict(),
            "alternatives": [each.as_dict() for each in self.totals[1:]],
            "quota": [each.as_dict() for each in self.quota],
            "priority_value": self.priority_value,
            "warnings": [each.as_dict() for each in self.warnings],
        }


@dataclass(frozen=True, slots=True)
class Resolution:
    """What became of a task: ``effective`` exactly where there are no faults."""

    effective: Effective | None
    faults: tuple[Fault, ...]
    exceeded: tuple[QuotaAnswer, ...] = ()
    left_out: int = 0
    """Faults beside ``faults``, which were counted only."""
    mounts: tuple[ResolvedMount, ...] = ()
    """Those that could be read, also where there are faults."""

    def accepted(self, also: Sequence[Fault] = ()) -> Effective:
        """What is accepted; raises `Refusal` with every fault, those ``also`` that others found."""
        if also or self.effective is None:
            extra = {"quota": [each.as_dict() for each in self.exceeded]} if self.exceeded else None
            raise Refusal([*self.faults, *also], extra=extra, left_out=self.left_out)
        return self.effective


def judge(
    document: Any, catalog: Catalog, who: Who, fleet: Fleet | None = None, **options: bool
) -> Effective:
    """`weigh`, where nobody finds further faults: raises `Refusal` with all of them at once."""
    return weigh(document, catalog, who, fleet, **options).accepted()


def weigh(
    document: Any,
    catalog: Catalog,
    who: Who,
    fleet: Fleet | None = None,
    *,
    request_id_required: bool = False,
    smoke: bool = False,
) -> Resolution:
    """What ``document`` means under ``catalog``, and what is wrong with it in itself and there.

    ``fleet`` holds the nodes of clusters as far as they are known. With ``smoke`` (`validate`), a request
    that has a `smoke` is judged as the small copy that it describes (C16); without, one is refused.
    """
    reading = read_document(document, catalog.mount_roots, request_id_required=request_id_required)
    request, faults = reading.request, list(reading.faults)
    if request.smoke is not None and not smoke:
        said = "`smoke` is for `validate`; a task is created as it is"
        faults.append(Fault("smoke", "SMOKE_INVALID", said))
    if request.smoke is not None:
        request = smoke_copy(request, request.smoke)
    resolution = resolve(request, catalog, who, fleet, broken=reading.broken, places=reading.places)
    known = set(faults)
    faults += [each for each in resolution.faults if each not in known]
    return replace(
        resolution,
        effective=None if faults else resolution.effective,
        faults=tuple(faults),
        left_out=reading.left_out + resolution.left_out,
    )


def smoke_copy(request: TaskRequest, smoke: Smoke) -> TaskRequest:
    """The same task with few workers and a time limit (C16)."""
    spec = request.spec
    limit = min(smoke.minutes * 60, spec.max_run_seconds or smoke.minutes * 60)
    return replace(
        request, spec=replace(spec, workers=smoke.workers, max_run_seconds=limit, autoscaling=None)
    )


def resolve(
    request: TaskRequest | TaskSpec,
    catalog: Catalog,
    who: Who,
    fleet: Fleet | None = None,
    *,
    broken: Collection[str] = (),
    places: Mapping[str, Sequence[int]] | None = None,
) -> Resolution:
    """Judges a task that was read. ``broken`` and ``places`` are those of a `Reading` with faults."""
    if isinstance(request, TaskSpec):
        request = TaskRequest(spec=request)
    return _Resolver(request, catalog, who, fleet, frozenset(broken), places or {}).result()


class _Resolver:
    def __init__(
        self,
        request: TaskRequest,
        catalog: Catalog,
        who: Who,
        fleet: Fleet | None,
        broken: frozenset[str],
        places: Mapping[str, Sequence[int]],
    ) -> None:
        self._request = request
        self._task = request.spec
        self._catalog = catalog
        self._who = who
        self._fleet = fleet
        self._broken = broken
        self._places = places
        self._faults = SpecFaults()
        self._exceeded: list[QuotaAnswer] = []
        self._specs = {row.name: row for row in catalog.instance_specs}
        self._ceilings: dict[str, int | None] = {}

    def result(self) -> Resolution:
        project = self._project()
        place = resolve_place(self._task, self._catalog, self._broken, self._faults)
        cluster, pool = place.cluster, place.pool
        instance = self._instance(self._task.instance, "instance", pool)
        head = self._task.head
        if head.instance is not None:
            head = replace(head, instance=self._instance(head.instance, "head.instance", pool))
        self._resource_type(pool)
        self._precheck(instance)
        priority = self._priority(project)
        check_labels(self._task, self._catalog, self._faults)
        check_alarms(self._task, self._catalog, project, self._faults)
        cluster_id = cluster.id if cluster else None
        image = resolve_image(self._task, self._catalog, cluster_id, self._faults)
        mounts = resolve_mounts(
            self._task, self._catalog, cluster_id, project, self._faults, self._places.get("mounts")
        )
        shared = resolve_shared_storage(self._task, self._catalog, cluster_id, project, self._faults)
        effective = replace(
            self._task,
            region=cluster.region if cluster else self._task.region,
            cluster=cluster_id,
            project=project,
            pool=pool.id if pool else self._task.pool,
            instance=instance,
            head=head,
            image=image,
            guarantee=self._guarantee(),
            priority=DEFAULT_PRIORITY if self._task.priority is None else self._task.priority,
        )
        if cluster and "kind" not in self._broken:
            for field, message in unsupported(effective, cluster.engine):
                self._faults.add(f"{SPEC_PATH}.{field}", "NOT_SUPPORTED_BY_ENGINE", message)
        sums, passed_over = self._choices(effective, pool)
        if self._faults or cluster is None or not sums:
            found = self._faults
            return Resolution(None, tuple(found.faults), tuple(self._exceeded), found.left_out, mounts)
        return Resolution(
            Effective(
                request=self._request,
                spec=effective,
                engine=cluster.engine,
                priority_value=priority,
                environment=merged_environment(self._task, self._catalog, project),
                mounts=mounts,
                shared_storage=shared,
                choices=tuple(each.choice for each in sums),
                totals=sums,
                largest=tuple(totals(_largest(effective), self._specs, each.choice) for each in sums),
                quota=self._quota(effective, sums[0].choice),
                warnings=(*notices_of(effective, cluster.engine), *passed_over),
            ),
            (),
            mounts=mounts,
        )

    def _add(self, path: str, code: str, message: str) -> None:
        self._faults.add(f"{SPEC_PATH}.{path}", code, message)

    def _project(self) -> str:
        given = self._task.project
        if given is None or given == self._who.project or given in self._who.projects:
            return given or self._who.project
        self._add("project", "PROJECT_ACCESS_DENIED", f"you are no member of project {given}")
        return given

    def _instance(self, instance: Instance, path: str, pool: Pool | None) -> Instance:
        """C20: the specs exist, are of one type and in the pool; the type is filled in."""
        rows: list[InstanceSpec] = []
        places = self._places.get(f"{path}.specs") or range(len(instance.specs))
        for place, name in zip(places, instance.specs, strict=True):
            where = f"{path}.specs[{place}]"
            row = self._specs.get(name)
            if row is None:
                offered = ", ".join(pool.specs if pool else self._specs) or "none"
                self._add(where, "SPEC_UNKNOWN", f"there is no instance spec {name}; there are: {offered}")
                continue
            rows.append(row)
            wanted = instance.type or rows[0].type
            if row.type is not wanted:
                said = f"{name} is of type {row.type}, not {wanted}"
                self._add(where, "SPEC_TYPE_MISMATCH", said)
            if pool is not None and name not in pool.specs:
                said = f"pool {pool.id} does not offer {name}; it offers {', '.join(pool.specs) or 'none'}"
                self._add(where, "SPEC_NOT_IN_POOL", said)
        return replace(instance, type=rows[0].type) if instance.type is None and rows else instance

    def _resource_type(self, pool: Pool | None) -> None:
        wanted = self._task.resource_type
        if pool is None or "resource_type" in self._broken or wanted in pool.resource_types:
            return
        said = f"pool {pool.id} does not offer {wanted}; it offers {', '.join(pool.resource_types)}"
        self._add("resource_type", "RESOURCE_TYPE_NOT_OFFERED", said)

    def _precheck(self, instance: Instance) -> None:
        if not self._task.precheck.enabled or self._task.instance.type is not None:
            return
        if instance.type is InstanceType.CPU:
            said = "a precheck tests GPUs; the instance specs are of type cpu"
            self._add("precheck.enabled", "PRECHECK_NEEDS_GPU", said)

    def _guarantee(self) -> bool:
        if self._task.guarantee is not None:
            return self._task.guarantee
        return bool(GUARANTEE_DEFAULTS[self._task.resource_type]) and not self._task.idle_supplement

    def _priority(self, project: str) -> int:
        """C29."""
        given = self._task.priority
        value = self._catalog.priority_value(given)
        allowed = self._catalog.priority_range(project)
        if "priority" in self._broken:
            return 0
        if value is None:
            names = ", ".join(row.name for row in self._catalog.priority_classes)
            said = f"there is no priority class {given}; there are: {names}"
            self._add("priority", "PRIORITY_NOT_ALLOWED", said)
            return 0
        if not allowed.min <= value <= allowed.max:
            said = f"project {project} may use priorities from {allowed.min} to {allowed.max}, not {value}"
            self._add("priority", "PRIORITY_NOT_ALLOWED", said)
        return value

    def _choices(self, task: TaskSpec, pool: Pool | None) -> tuple[tuple[Totals, ...], tuple[Notice, ...]]:
        """The choices that can ever run. Faults where there is none, warnings for those passed over."""
        instances = ("instance", "head.instance")
        wrong = {f"{path}.{key}" for path in instances for key in ("specs", "count_per_node")}
        if self._broken & {*wrong, *instances, "head", "kind", "workers", "resource_type"}:
            return (), ()
        names = {*task.instance.specs, *task.head_instance.specs}
        if pool is None or not names or not names <= self._specs.keys() & set(pool.specs):
            return (), ()
        found: list[Totals] = []
        findings: list[tuple[str, str, str]] = []
        for choice in task.choices():
            wrongs = [*fit_faults(task, choice, self._specs, pool, self._catalog, self._fleet)]
            for answer in self._quota(task, choice):
                if answer.exceeded:
                    self._exceeded.append(answer)
                    wrongs.append(_quota_fault(task, answer))
            if wrongs:
                findings += [each for each in wrongs if each not in findings]
            else:
                found.append(totals(task, self._specs, choice))
        if not found:
            for path, code, message in findings:
                self._add(path, code, message)
            return (), ()
        self._exceeded.clear()
        return tuple(found), tuple(
            Notice("SPEC_PASSED_OVER", f"{SPEC_PATH}.{path}", message) for path, _, message in findings
        )

    def _quota(self, task: TaskSpec, choice: SpecChoice) -> tuple[QuotaAnswer, ...]:
        """What the whole task asks of its quotas (C23), an autoscaling one at its largest (C51)."""
        largest = _largest(task)
        return tuple(
            QuotaAnswer(
                task.resource_type,
                task.pool or "",
                spec,
                units,
                self._ceiling(task, spec),
            )
            for spec, units in totals(largest, self._specs, choice).demand.items()
        )

    def _ceiling(self, task: TaskSpec, spec: str) -> int | None:
        """Asked once a spec: there may be hundreds of choices, and thousands of rows."""
        if spec not in self._ceilings:
            self._ceilings[spec] = ceiling(
                self._catalog,
                task.project or ANY,
                task.resource_type,
                task.pool or "",
                spec,
                guarantee=bool(task.guarantee),
                idle_supplement=task.idle_supplement,
            )
        return self._ceilings[spec]


def _largest(task: TaskSpec) -> TaskSpec:
    """An autoscaling task as it is at its largest; others as they are."""
    scaling = task.autoscaling
    return replace(task, workers=scaling.max) if scaling is not None and scaling.enabled else task


def _quota_fault(task: TaskSpec, answer: QuotaAnswer) -> tuple[str, str, str]:
    # Without workers there is often no such field in the file: what asks is the spec then.
    path = "autoscaling.max" if task.autoscales else "workers" if task.workers else "instance.specs"
    units = "unit" if answer.requested == 1 else "units"
    owner = "may own" if answer.resource_type is ResourceType.RESERVED and task.guarantee else "may ever hold"
    said = (
        f"the task asks for {answer.requested} {units} of {answer.spec}; project {task.project} {owner} "
        f"{answer.limit} ({answer.resource_type}, pool {answer.pool})"
    )
    return path, "QUOTA_EXCEEDED", said


def specs_by_name(catalog: Catalog) -> Mapping[str, InstanceSpec]:
    """The instance specs of a catalogue, for `totals`."""
    return {row.name: row for row in catalog.instance_specs}
