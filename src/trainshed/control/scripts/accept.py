"""The door for script Jobs: judge the whole spec, prove what was packed, store once (contract G, a.1).

Nothing is stored for a refused request. Which of two equal calls makes the Job is decided in the database.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from trainshed import __version__
from trainshed.content.blobs import BlobNotFound, BlobStore
from trainshed.content.bundles import BUNDLES, PackedTree, read_packed
from trainshed.control.crashpoints import Point, reach
from trainshed.control.scripts.callers import Caller
from trainshed.engines.providers.registry import NAMED
from trainshed.model.access import Permission
from trainshed.model.conflicts import differences
from trainshed.model.errors import Fault, FaultList, Refusal
from trainshed.model.ids import IdFactory
from trainshed.model.manifests import MAX_MANIFEST_BYTES
from trainshed.model.scripts.document import content_digests, from_document, identity, spec_hash, to_document
from trainshed.model.scripts.reading import read_request, read_spec, shipped_path
from trainshed.model.scripts.spec import MAX_BUNDLE_BYTES, DataItem, ScriptSpec
from trainshed.model.scripts.states import Phase, Word
from trainshed.model.states import OutputStatus, State
from trainshed.model.strict_json import canonical_json
from trainshed.model.words import counted
from trainshed.store import access, contents, jobs, possession, scripts
from trainshed.store.contents import Release
from trainshed.store.database import Connection, Database
from trainshed.store.job_digits import with_digits
from trainshed.store.records import Job
from trainshed.store.script_records import Script

NO_LIMIT_SECONDS = 10 * 365 * 86_400
"""What stands where nothing limits the run: ten years."""
OUTPUTS = "outputs/**"
"""What is collected of a script Job: all that it wrote to ``gpu.output_dir()``."""
RUNS = "runs"
"""The folder in ``project_dir`` where outputs are brought to (i.1)."""
ENABLE = "Name it in `providers.use` of the settings that the server reads (TRAINSHED_CONFIG for your own)."
_SHOWN_MISSING = 50
_ASKED_AT_ONCE = 500
_STAGED_FROM, _STAGED_AT_ONCE = 5_000, 1_000
OTHER_CONTENT = (
    "The files have changed since the Job was submitted; it runs what was packed then. Cancel it, or give a"
    " new request_id, to run the files as they are now."
)


@dataclass(frozen=True, slots=True)
class AcceptedScript:
    """What a submission came to."""

    job_id: str
    submitted: bool
    """False where it named a Job that was there before."""
    bundle: Mapping[str, Any]
    """The summary of what was packed for this call."""
    message: str | None = None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A submission that can be stored."""

    caller: Caller
    request_id: str | None
    spec: ScriptSpec
    spec_hash: str
    identity: Mapping[str, Any]

    @property
    def job_key(self) -> str | None:
        """Under which name the Job is unique in its project: per user and folder (a.1)."""
        if self.request_id is None:
            return None
        parts = (self.caller.person, self.spec.project_dir, self.request_id)
        return "script-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()

    @property
    def canonical(self) -> str:
        return canonical_json({"request_id": self.request_id, "spec": self.identity})


class ScriptAcceptance:
    """Accepts script Jobs. Thread-safe; holds nothing that another process would need."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        providers: Callable[[], Collection[str]],
        clock: Callable[[], float],
        ids: IdFactory,
    ) -> None:
        """``providers`` answers the names of those that there are."""
        self._database = database
        self._blobs = blobs
        self._providers = providers
        self._clock = clock
        self._ids = ids

    def judge(self, caller: Caller, document: Any) -> ScriptSpec:
        """The spec that ``document`` means, for a dry run; nothing has to be uploaded (a.7)."""
        _may_run(caller)
        faults = FaultList()
        spec = read_spec(document, faults)
        self._check_provider(spec, faults)
        faults.raise_if_any()
        assert spec is not None  # noqa: S101 - a spec without faults was read
        return spec

    def accept(self, caller: Caller, document: Any) -> AcceptedScript:
        """The Job that ``document`` names. Raises `Refusal`; then nothing was stored."""
        _may_run(caller)
        faults = FaultList()
        request_id, spec = read_request(document, faults)
        self._check_provider(spec, faults)
        faults.raise_if_any()
        assert spec is not None  # noqa: S101 - a spec without faults was read
        wanted = _Wanted(caller, request_id, spec, spec_hash(spec), identity(spec))
        with self._database.read() as connection:
            if (before := _earlier(connection, wanted)) is not None:
                return _duplicate(wanted, before)
        spec, trees = self._packed(caller, spec)
        wanted = replace(wanted, spec=spec)
        releases = [_release(tree) for tree in trees]
        for release in releases:
            self._stage(release)
        now, job_id, trial_id = self._clock(), self._ids.job(), self._ids.trial()

        def store(connection: Connection) -> tuple[Job, Script] | None:
            # Submissions of a project wait for each other, so that of twins one is first.
            access.lock_project(connection, caller.project_id)
            if (found := _earlier(connection, wanted)) is not None:
                return found
            for release in releases:
                contents.hold_manifest(connection, release, at=now)
            key = wanted.job_key or _fresh_key(connection, wanted)
            job = with_digits(connection, _job(wanted, job_id, key, now))
            script = _script(wanted, job, trial_id)
            scripts.insert_script(
                connection,
                job,
                _trial(wanted, job, trial_id),
                script,
                _contents(spec, trial_id),
                message=_sentence(wanted),
                actor=caller.actor_word,
            )
            reach(Point.ACCEPT_BEFORE_COMMIT)
            return None

        before = self._database.write(store)
        reach(Point.ACCEPT_AFTER_COMMIT)
        if before is not None:
            return _duplicate(wanted, before)
        return AcceptedScript(job_id, submitted=True, bundle=_bundle(spec))

    def _check_provider(self, spec: ScriptSpec | None, faults: FaultList) -> None:
        if spec is None or spec.provider is None:
            return
        here = self._providers()
        if spec.provider in here:
            return
        if spec.provider in NAMED:
            said = f"provider `{spec.provider}` is not enabled at this server"
            faults.add("spec.provider", "PROVIDER_NOT_FOUND", said, ENABLE)
            return
        shown = sorted({*here} - {"fake"})
        near = get_close_matches(spec.provider, sorted({*shown, *NAMED}), n=1)
        hint = f"Did you mean `{near[0]}`?" if near else f"There are: {', '.join(shown)}."
        if near and near[0] not in here:
            hint = f"{hint} That is not enabled here. {ENABLE}"
        faults.add("spec.provider", "PROVIDER_NOT_FOUND", f"there is no provider `{spec.provider}`", hint)

    def _packed(self, caller: Caller, spec: ScriptSpec) -> tuple[ScriptSpec, list[PackedTree]]:
        """The spec with the numbers that the manifests say, and the manifests; each blob was sent."""
        faults = FaultList()
        trees: list[PackedTree] = []
        missing: list[str] = []
        script = None if spec.script is None else shipped_path(spec.workdir, spec.script)
        wanted = tuple(path for path in (script, spec.deps.file) if path is not None)
        places = [("spec.bundle.manifest_sha256", spec.bundle.manifest_sha256, wanted)]
        for place, item in enumerate(spec.data):
            if item.manifest_sha256 is not None:
                only = (item.single_file,) if item.single_file is not None else ()
                places.append((f"spec.data[{place}].manifest_sha256", item.manifest_sha256, only))
        found: dict[str, PackedTree] = {}
        for path, digest, paths in places:
            try:
                tree = self._tree(caller, digest, path, paths)
            except Refusal as refusal:
                faults.faults += refusal.faults
                missing += refusal.extra.get("missing", ())
                continue
            found[path] = tree
            trees.append(tree)
            missing += self._absent(caller, tree, path, faults)
        self._judge_trees(spec, found, script, faults)
        if faults:
            raise Refusal(faults.faults, extra={"missing": missing[:_SHOWN_MISSING]} if missing else {})
        bundle = found["spec.bundle.manifest_sha256"]
        data = tuple(
            _counted(item, found.get(f"spec.data[{place}].manifest_sha256"))
            for place, item in enumerate(spec.data)
        )
        return replace(
            spec,
            bundle=replace(spec.bundle, files=bundle.files, bytes=bundle.bytes),
            data=data,
            deps=replace(spec.deps, sha256=bundle.present.get(spec.deps.file or "")),
        ), trees

    @staticmethod
    def _judge_trees(
        spec: ScriptSpec, found: Mapping[str, PackedTree], script: str | None, faults: FaultList
    ) -> None:
        bundle = found.get("spec.bundle.manifest_sha256")
        if bundle is not None and script is not None and script not in bundle.present:
            said = f"`script`: {spec.script} is not among the {bundle.files} files that were packed"
            hint = "Check its path; a file that git ignores has to be named under `include`."
            faults.add("spec.script", "INVALID_SPEC", said, hint)
        if bundle is not None and bundle.bytes > MAX_BUNDLE_BYTES:
            said = f"what was packed has {bundle.bytes} bytes, over the limit of {MAX_BUNDLE_BYTES}"
            faults.add("spec.bundle", "INVALID_SPEC", said, "Pass large files as `data`.")
        for place, item in enumerate(spec.data):
            tree = found.get(f"spec.data[{place}].manifest_sha256")
            if tree is not None and item.single_file is not None and (not tree.present or tree.files != 1):
                said = f"`data`: {item.mount} is not the one file `{item.single_file}`"
                faults.add(f"spec.data[{place}].single_file", "INVALID_SPEC", said)

    def _tree(self, caller: Caller, digest: str, path: str, wanted: Collection[str]) -> PackedTree:
        with self._database.read() as connection:
            size = possession.sizes(connection, caller.project_id, [digest]).get(digest)
        if size is None:
            raise _missing([digest], path, "the manifest is not stored; upload it as a blob")
        if size > MAX_MANIFEST_BYTES:
            said = f"the manifest has {size} bytes; at most {MAX_MANIFEST_BYTES}"
            raise Refusal.of("INVALID_CONTENT", said, path=path)
        try:
            with self._blobs.open(digest) as reader:
                return read_packed(reader.read, digest, path=path, wanted=wanted)
        except BlobNotFound:
            raise _missing([digest], path, "the manifest's bytes are gone; upload it again") from None

    def _absent(self, caller: Caller, tree: PackedTree, path: str, faults: FaultList) -> list[str]:
        """Blobs that the caller's project has not sent; noted as faults too (P7)."""
        names, absent = list(tree.blobs), []
        with self._database.read() as connection:
            for start in range(0, len(names), _ASKED_AT_ONCE):
                asked = names[start : start + _ASKED_AT_ONCE]
                stored = possession.sizes(connection, caller.project_id, asked)
                absent += [name for name in asked if name not in stored]
                for name in asked:
                    if stored.get(name, tree.blobs[name]) != tree.blobs[name]:
                        said = f"blob {name} has {stored[name]} bytes; the manifest says {tree.blobs[name]}"
                        faults.add(path, "INVALID_CONTENT", said)
        if absent:
            said = f"{len(absent)} of the {len(names)} blobs are not stored; upload them"
            faults.add(path, "BLOB_NOT_FOUND", said)
        return absent[:_SHOWN_MISSING]

    def _stage(self, release: Release) -> None:
        """Write most of a large manifest's rows in small transactions, so that others have their turn."""
        names, now = list(release.blobs), self._clock()
        if len(names) > _STAGED_FROM:
            for start in range(0, len(names), _STAGED_AT_ONCE):
                some = names[start : start + _STAGED_AT_ONCE]
                self._database.write(lambda c, some=some: contents.stage(c, release, some, at=now))  # type: ignore[misc]  # mypy knows no default of a lambda


def _may_run(caller: Caller) -> None:
    if not caller.principal.may(Permission.TRAINING_RUN):
        raise Refusal.of("PERMISSION_DENIED", "this key has no `training.run` in its project")


def _earlier(connection: Connection, wanted: _Wanted) -> tuple[Job, Script] | None:
    """The Job that the submission names already; raises `Refusal` ``JOB_REQUEST_CONFLICT`` (a.1)."""
    project_id, person = wanted.caller.project_id, wanted.caller.person
    if wanted.job_key is None:
        script = scripts.active_with(connection, project_id, person, wanted.spec_hash)
        if script is None:
            return None
        job = jobs.find_job(connection, project_id, script.job_id)
    else:
        job = jobs.find_by_request(connection, project_id, wanted.job_key)
        script = None if job is None else scripts.of_jobs(connection, [job.id]).get(job.id)
    if job is None or script is None:
        return None
    if script.spec_hash != wanted.spec_hash:
        faults = differences(job.canonical, wanted.canonical)
        keys = sorted({fault.path.removeprefix("spec.").split(".")[0].split("[")[0] for fault in faults})
        head = Fault(
            "request_id",
            "JOB_REQUEST_CONFLICT",
            f"request id {wanted.request_id} names Job {job.short_id}, whose {', '.join(keys)} differ",
            "Use a new request_id for changed arguments, or the same arguments to get that Job.",
        )
        raise Refusal([head, *faults], extra={"job_id": job.id, "short_id": job.short_id, "keys": keys})
    return job, script


def _fresh_key(connection: Connection, wanted: _Wanted) -> str:
    """A name for a Job without a request id: twins make the same one, and the database takes it once."""
    project_id, person = wanted.caller.project_id, wanted.caller.person
    number = scripts.count_with(connection, project_id, person, wanted.spec_hash)
    owner = hashlib.sha256(wanted.caller.person.encode()).hexdigest()[:12]
    return f"script-auto-{owner}-{wanted.spec_hash}-{number}"


def _duplicate(wanted: _Wanted, before: tuple[Job, Script]) -> AcceptedScript:
    job, script = before
    summary = _bundle(wanted.spec)
    if content_digests(from_document(script.document)) != content_digests(wanted.spec):
        summary["warnings"] = [OTHER_CONTENT, *summary["warnings"]]
    how = "has this request_id" if wanted.request_id else "has the same arguments and has not ended"
    said = f"Job {job.short_id} {how}; nothing new was submitted. It is {script.word}."
    return AcceptedScript(job.id, submitted=False, bundle=summary, message=said)


def _bundle(spec: ScriptSpec) -> dict[str, Any]:
    return dict(to_document(spec)["bundle"])


def _counted(item: DataItem, tree: PackedTree | None) -> DataItem:
    return item if tree is None else replace(item, files=tree.files, bytes=tree.bytes)


def _release(tree: PackedTree) -> Release:
    kind: Any = BUNDLES
    return Release(
        kind=kind,
        name="what was packed",
        version=tree.sha256,
        manifest_sha256=tree.sha256,
        manifest_bytes=tree.size,
        about="{}",
        files=tree.files,
        bytes=tree.bytes,
        blobs=tree.blobs.keys(),
    )


def _missing(names: list[str], path: str, message: str) -> Refusal:
    return Refusal.of("BLOB_NOT_FOUND", message, path=path, missing=names)


def _contents(spec: ScriptSpec, trial_id: str) -> list[dict[str, Any]]:
    """What keeps the packed trees from being collected."""
    trees = [("bundle", spec.bundle.manifest_sha256)]
    trees += [(f"data:{item.mount}", item.manifest_sha256) for item in spec.data if item.manifest_sha256]
    return [
        {
            "trial_id": trial_id,
            "role": role,
            "kind": "bundle",
            "name": role.partition(":")[2] or spec.name,
            "version": digest,
            "manifest_sha256": digest,
        }
        for role, digest in trees
    ]


def _sentence(wanted: _Wanted) -> str:
    """Only words of ours: names and paths come from the project (a.0.9)."""
    bundle = wanted.spec.bundle
    files, datasets = counted(bundle.files, "file"), counted(len(wanted.spec.data), "dataset")
    return f"Submitted with {files} ({counted(bundle.bytes, 'byte')}) and {datasets}."


def _job(wanted: _Wanted, job_id: str, key: str, now: float) -> Job:
    return Job(
        id=job_id,
        project_id=wanted.caller.project_id,
        request_id=key,
        type="train",
        canonical=wanted.canonical,
        status="queued",
        submitted_by=wanted.caller.principal.actor,
        created_at=now,
        updated_at=now,
        finished_at=None,
        stop_accepted_at=None,
        platform_version=__version__,
    )


def _trial(wanted: _Wanted, job: Job, trial_id: str) -> dict[str, Any]:
    spec, now = wanted.spec, job.created_at
    return {
        "id": trial_id,
        "job_id": job.id,
        "project_id": job.project_id,
        "position": 0,
        "name": spec.name,
        "kind": scripts.SCRIPT,
        "state": State.QUEUED,
        "runner": "",
        "revision": "",
        "selector": "",
        "source_ref": None,
        "snapshot_sha256": "",
        "entrypoint": "",
        "command": None,
        "gpu_type": spec.gpu or "",
        "gpus": 0,
        "cpus": 0,
        "memory_mb": 0,
        "storage_mb": 0,
        "shm_mb": 0,
        "timeout_seconds": NO_LIMIT_SECONDS,
        "outputs": canonical_json([OUTPUTS]),
        "params": "{}",
        "tags": canonical_json(dict(spec.labels)),
        "created_at": now,
        "updated_at": now,
        "priority": 0,
        "queue_rank": now,
        "output_status": OutputStatus.PENDING,
    }


def _script(wanted: _Wanted, job: Job, trial_id: str) -> Script:
    spec = wanted.spec
    return Script(
        trial_id=trial_id,
        job_id=job.id,
        project_id=job.project_id,
        owner=wanted.caller.person,
        source=wanted.caller.source,
        spec=canonical_json(to_document(spec)),
        spec_hash=wanted.spec_hash,
        outputs_dir=f"{spec.project_dir.rstrip('/')}/{RUNS}/{job.short_id}",
        host=spec.host,
        phase=Phase.WAITING,
        word=Word.QUEUED,
        provider=None,
        gpu=None,
        route=None,
        route_reason=None,
        not_before=None,
        waiting_since=job.created_at,
        excluded="{}",
        placements=0,
        accepted_attempts=0,
        free_attempts=0,
        ran_seconds=0.0,
        overrun_approved=False,
        progress=None,
        metrics=None,
        failure_kind=None,
        message=None,
        outputs_fetched=False,
        outputs_count=None,
        cancel_requested_at=None,
        fetch_requested_at=None,
        version=1,
    )
