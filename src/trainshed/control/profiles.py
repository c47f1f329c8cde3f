"""Freezing Job Profiles: every reference is checked for permission and digest (E91-E104, A16-A18).

What is frozen is the snapshot that the Runner reads (``docs/profiles.md`` describes it) and a row for every
content that it names, so that nothing of it is collected and access to it can be looked at again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainshed.content.blobs import BlobError, BlobNotFound, BlobStore, DigestMismatch
from trainshed.control.frozen import ContentUse, FrozenProfile
from trainshed.control.references import approval_hint, denied_hint, unknown_version, versions_hint
from trainshed.model import mending
from trainshed.model.access import Principal
from trainshed.model.content import ContentKind, ContentUri
from trainshed.model.errors import Fault, FaultList, Refusal
from trainshed.model.json_schema import MAX_TOTAL_STEPS, Found, Steps, budget
from trainshed.model.parameters import apply_schema, place_text
from trainshed.model.profile import PROFILE_V1, PROFILE_V2, JobProfile, ProfileInput
from trainshed.model.recipe import RECIPE_ABI, Recipe, Reference, recipe_from_about
from trainshed.model.runner import RunnerDefinition
from trainshed.model.splits import DEFAULT_CONFIG
from trainshed.model.strict_json import canonical_json
from trainshed.model.submission import TrialRequest
from trainshed.store import contents
from trainshed.store.database import Connection
from trainshed.store.records import ContentVersion, TrialContent

MAX_DEPENDENCIES = 64
"""Of a Recipe, those of its dependencies included."""
MAX_DEPENDENCY_DEPTH = 8
MAX_SNAPSHOT_BYTES = 256 << 10
_SHOWN = 20
_MALFORMED = "INVALID_PROFILE"

MAX_WAITING_CHECKS = 16
"""Submissions whose parameters wait to be checked at one instant; each holds a thread of requests."""
_CHECK_WAIT_SECONDS = 1.0


@dataclass(slots=True)
class Lookups:
    """What the Trials of one submission share."""

    versions: dict[ContentUri, ContentVersion | tuple[str, str, str]] = field(default_factory=dict)
    """What its references were found to be: the version, or a code, why there is none, and a hint."""
    checked: dict[tuple[str, str], tuple[dict[str, Any], list[Found]]] = field(default_factory=dict)
    """What was said of parameters, by Recipe and canonical text: most Trials of a Job give the same."""
    steps: Steps = field(default_factory=lambda: Steps(MAX_TOTAL_STEPS))
    """What all checks of the submission may cost."""


class CheckGate:
    """Lets one schema be applied at a time: that holds the interpreter, which other requests need, too."""

    def __init__(self) -> None:
        self._waiting = threading.BoundedSemaphore(MAX_WAITING_CHECKS)
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Raises `Refusal` ``RATE_LIMITED`` where too many wait already, or this one waited too long."""
        if not self._waiting.acquire(blocking=False):
            raise _too_many_checks()
        try:
            if not self._turn.acquire(timeout=_CHECK_WAIT_SECONDS):
                raise _too_many_checks()
            try:
                yield
            finally:
                self._turn.release()
        finally:
            self._waiting.release()


def _too_many_checks() -> Refusal:
    message = "the parameters of too many submissions are being checked; send this one again"
    return Refusal([Fault("", "RATE_LIMITED", message)], retry_after=1)


class ProfileFreezer:
    """Turns a Trial's profile into the snapshot that its Runner is handed. Thread-safe."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._gate = CheckGate()

    def freeze(
        self,
        connection: Connection,
        principal: Principal,
        request: TrialRequest,
        definition: RunnerDefinition | None,
        known: Lookups,
        faults: FaultList,
    ) -> FrozenProfile | None:
        """The frozen profile, or ``None`` where there is none or ``faults`` were added.

        ``known`` is shared by the Trials of one submission. Without the ``definition`` of the Runner, which
        is a fault that was told, the profile is judged as far as that goes.
        """
        if request.profile is None:
            if (
                definition is not None
                and definition.needs_profile
                and not any(fault.path.startswith(f"{request.path}.profile") for fault in faults.faults)
            ):
                said = (
                    f"the Runner {request.selector} runs Recipes (`[recipe] entrypoint`), so it needs a Job "
                    f"Profile of {PROFILE_V2} that names one; docs/profiles.md shows how"
                )
                faults.add(f"{request.path}.profile", _MALFORMED, said)
            return None
        before = len(faults.faults)
        freezing = _Freezing(connection, principal.project_id, request, definition, known, faults, self._gate)
        document = freezing.run(request.profile)
        if len(faults.faults) > before:
            return None
        text = canonical_json(document)
        if len(text) > MAX_SNAPSHOT_BYTES:
            said = f"its snapshot would have {len(text)} bytes, at most {MAX_SNAPSHOT_BYTES}"
            faults.add(f"{request.path}.profile", _MALFORMED, f"{said}; name one split of each Dataset")
            return None
        return FrozenProfile(text, hashlib.sha256(text.encode()).hexdigest(), tuple(freezing.uses))

    def verify(self, profiles: Iterable[tuple[str, FrozenProfile]]) -> None:
        """Read the manifests that these profiles pin, and compare: before any GPU is allocated (E95).

        Each comes with the place of its Trial's spec. Reads the blob store, so it is never called with a
        connection. Raises `Refusal` ``CONTENT_DAMAGED``, ``STORAGE_UNAVAILABLE`` with every fault.
        """
        seen: dict[str, tuple[str, str, str] | None] = {}
        faults = FaultList()
        for path, profile in profiles:
            for use in profile.contents:
                if use.manifest_sha256 not in seen:
                    seen[use.manifest_sha256] = self._damage(use)
                if found := seen[use.manifest_sha256]:
                    code, why, hint = found
                    said = f"the stored manifest of {use.kind.noun} {use.name}@{use.version} {why}"
                    faults.add(place_text(f"{path}.profile", _place_of(use, profile)), code, said, hint)
        faults.raise_if_any()

    def _damage(self, use: ContentUse) -> tuple[str, str, str] | None:
        """Why a stored manifest is not the published one: code, words and hint; or ``None``."""
        try:
            self._blobs.verify(use.manifest_sha256)
        except BlobNotFound:
            return "CONTENT_DAMAGED", "is gone from the server's store", _repair_hint(use)
        except DigestMismatch:
            said = f"is damaged: its bytes are not those of {use.manifest_sha256} any more"
            return "CONTENT_DAMAGED", said, _repair_hint(use)
        except BlobError as error:
            return "STORAGE_UNAVAILABLE", f"cannot be read: {error}", ""
        return None


def _place_of(use: ContentUse, profile: FrozenProfile) -> tuple[str | int, ...]:
    """Where a profile names what it uses; a Recipe's dependency is named by the Recipe."""
    role, _, name = use.role.partition(":")
    if role == "input":
        return ("inputs", name)
    if role == "plugin":
        named = [each["name"] for each in json.loads(profile.document)["plugins"]]
        return ("plugins", named.index(name))
    return ("recipe",)


def _repair_hint(use: ContentUse) -> str:
    return (
        f"The reference is right. With the owner key {mending.take_out(f'{use.name}@{use.version}')}; then "
        f"publish the same files again: {mending.publish_content(use.kind, use.name, use.version)}."
    )


def revoked_content(
    connection: Connection, project_id: str, frozen: Iterable[TrialContent]
) -> TrialContent | None:
    """The first of what a Trial froze that its project may not use any more, or ``None`` (E94, A2)."""
    for each in frozen:
        kind = ContentKind(each.kind)
        if not contents.still_readable(connection, project_id, kind, each.name, each.manifest_sha256):
            return each
        if kind is ContentKind.PLUGINS and _plugin_fault(connection, each.name, each.manifest_sha256):
            return each
    return None


def _plugin_fault(connection: Connection, name: str, manifest_sha256: str) -> str | None:
    """Why a plugin package may not run here, or ``None`` if it is approved (E94)."""
    approval = contents.approval(connection, name, manifest_sha256)
    if approval is None:
        return "is not approved on this deployment; the owner key approves it by its digest"
    return None if approval.revoked_at is None else "is not approved any more on this deployment"


@functools.lru_cache(maxsize=256)
def _recipe(_manifest_sha256: str, about: str) -> Recipe:
    """A published Recipe. Its schema was judged when it was published, and is here once a process."""
    return recipe_from_about(json.loads(about))


@dataclass(slots=True)
class _Freezing:
    """Freezes one profile. What it answers counts only if no fault was added."""

    connection: Connection
    project_id: str
    request: TrialRequest
    definition: RunnerDefinition | None
    known: Lookups
    faults: FaultList
    gate: CheckGate
    uses: list[ContentUse] = field(default_factory=list)
    told: set[str] = field(default_factory=set)
    """Places at fault before anything was looked up; nothing more is said of them."""
    dependencies: dict[str, dict[str, str]] = field(default_factory=dict)

    def run(self, profile: JobProfile) -> dict[str, Any]:
        """The snapshot."""
        self.told = {fault.path for fault in self.faults.faults}
        if self.definition is not None and not self.runner_takes(profile, self.definition):
            self.definition = None  # so that nothing more is said of the two together
        document: dict[str, Any] = {"schema": profile.schema}
        recipe = None
        if profile.recipe is not None:
            recipe = self.recipe(profile.recipe)
            document["recipe"] = profile.recipe.document() | (
                {"entrypoint": recipe.entrypoint} if recipe else {}
            )
            document["parameters_given"] = dict(profile.parameters)
            document["parameters"] = (
                self.parameters(profile.recipe, recipe, profile.parameters) if recipe else {}
            )
            document["dependencies"] = self.dependencies
        else:
            document["recipe"] = dict(profile.parameters)
        document["inputs"] = {
            name: self.input(name, each, recipe) for name, each in sorted(profile.inputs.items())
        }
        document["plugins"] = [self.plugin(number, each) for number, each in enumerate(profile.plugins)]
        if recipe is not None and recipe.inputs is not None:
            for name, wanted in recipe.inputs.items():
                if wanted.required and name not in profile.given_inputs:
                    self.add(
                        ("inputs", name), _MALFORMED, f"is missing; the Recipe needs a {wanted.kind.noun}"
                    )
        return document

    def add(self, place: tuple[str | int, ...], code: str, message: str, hint: str = "") -> None:
        path = place_text(f"{self.request.path}.profile", place)
        if path not in self.told:
            name = place[-1] if isinstance(place[-1], str) else place_text("", place[-2:])
            self.faults.add(path, code, f"`{name}` {message}", hint)

    def runner_takes(self, profile: JobProfile, definition: RunnerDefinition) -> bool:
        """Whether the Runner declares that it reads such profiles (E91, E100)."""
        abis = definition.abis
        wanted = (PROFILE_V1, RECIPE_ABI) if profile.schema == PROFILE_V1 else (RECIPE_ABI,)
        if set(wanted).isdisjoint(abis):
            said = (
                f"a profile of {profile.schema} needs a Runner with the abi {' or '.join(wanted)}; "
                f"{self.request.selector} declares {' and '.join(abis) or 'none'}"
            )
        elif profile.schema == PROFILE_V1 and PROFILE_V1 not in abis and definition.recipe_entrypoint:
            # Its program calls the Recipe's entrypoint, and a profile of v1 names no Recipe.
            said = (
                f"a profile of {PROFILE_V1} names no Recipe, and the Runner {self.request.selector} runs "
                f"those with the entrypoint `{definition.recipe_entrypoint}`; it needs a profile of "
                f"{PROFILE_V2}, or has to declare the abi {PROFILE_V1}, too"
            )
        else:
            return True
        self.faults.add(f"{self.request.path}.profile", "PROFILE_RUNNER_UNSUPPORTED", said)
        return False

    def recipe(self, reference: Reference) -> Recipe | None:
        # Of a Recipe with another digest the rest is judged all the same, by the one that its URI names.
        version = self.find(("recipe",), reference) or self.named(reference.uri)
        if version is None:
            return None
        with self.gate.turn():  # the first time its schema is judged
            recipe = self.read(version)
        if recipe is None:
            return None
        definition = self.definition
        if definition is not None and (declared := definition.recipe_entrypoint) != recipe.entrypoint:
            said = f"declares the entrypoint `{declared}`" if declared else "declares no [recipe] entrypoint"
            self.add(
                ("recipe",),
                "PROFILE_RUNNER_UNSUPPORTED",
                f"has the entrypoint `{recipe.entrypoint}`, and the Runner {self.request.selector} {said}",
            )
        self.use("recipe", version)
        self.follow(recipe, "", 1)
        return recipe

    def read(self, version: ContentVersion) -> Recipe | None:
        """The Recipe, unless an earlier version of the server let it be published and this one would not."""
        try:
            return _recipe(version.manifest_sha256, version.about)
        except Refusal as refusal:
            path = f"{self.request.path}.profile.recipe"
            for fault in refusal.faults:
                said = f"the Recipe {version.uri} was published under older rules: {fault.message}"
                hint = "Correct its recipe.toml, publish it again and name the new one."
                self.faults.add(path, _MALFORMED, said, hint)
            return None

    def follow(self, recipe: Recipe, above: str, depth: int) -> None:
        """Check and list what a Recipe depends on, and what that depends on (E101, E102)."""
        for name, reference in sorted(recipe.dependencies.items()):
            full = f"{above}{name}"
            if depth > MAX_DEPENDENCY_DEPTH or len(self.dependencies) >= MAX_DEPENDENCIES:
                self.add(
                    ("recipe",),
                    _MALFORMED,
                    f"depends on more than {MAX_DEPENDENCIES} Recipes, or over more than "
                    f"{MAX_DEPENDENCY_DEPTH} levels, at `{full}`",
                )
                return
            version = self.pinned(reference) or self.find(
                ("recipe",), reference, f"depends as `{full}` on {reference.uri}, which "
            )
            if version is not None:
                self.dependencies[full] = reference.document()
                self.use(f"dependency:{full}", version)
                if (below := self.read(version)) is not None:
                    self.follow(below, f"{full}.", depth + 1)

    def parameters(self, reference: Reference, recipe: Recipe, given: Mapping[str, Any]) -> dict[str, Any]:
        key = (str(reference.uri), canonical_json(dict(given)))
        if key not in self.known.checked:
            with self.gate.turn(), budget(self.known.steps):
                self.known.checked[key] = apply_schema(recipe.parameters, given)
        merged, found = self.known.checked[key]
        for place, message in found:
            self.add(("parameters", *place), _MALFORMED, message)
        return merged

    def input(self, name: str, given: ProfileInput, recipe: Recipe | None) -> dict[str, Any]:
        place = ("inputs", name)
        reference = given.reference
        if recipe is not None and recipe.inputs is not None:
            wanted = recipe.inputs.get(name)
            if wanted is None:
                known = ", ".join(sorted(recipe.inputs)) or "none"
                self.add(place, _MALFORMED, f"is no input of the Recipe; its inputs: {known}")
            elif wanted.kind is not reference.uri.kind:
                said = f"is a {reference.uri.kind.noun}, and the Recipe takes a {wanted.kind.noun} here"
                self.add(place, _MALFORMED, said)
        document: dict[str, Any] = reference.document()
        version = self.find(place, reference)
        if version is not None:
            self.use(f"input:{name}", version)
            if reference.uri.kind is ContentKind.DATASETS:
                document |= self.selection(place, given, json.loads(version.about).get("configs", {}))
        return document

    def selection(
        self, place: tuple[str, ...], given: ProfileInput, configs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Config and split of a Dataset with the patterns of their files; nothing where neither is named."""
        config = given.config
        if config is None and given.split is not None:
            config = DEFAULT_CONFIG if DEFAULT_CONFIG in configs or len(configs) != 1 else next(iter(configs))
        if config is None:
            return {}
        if config not in configs:
            said = "is not named, and" if given.config is None else f"{config!r} does not exist:"
            where = (*place, "config")
            self.add(where, _MALFORMED, f"{said} the Dataset has the configs {_some(configs)}")
            return {}
        splits = configs[config]
        if given.split is None:
            return {"config": config, "files": splits}
        if given.split not in splits:
            said = f"{given.split!r} does not exist: config {config!r} has the splits {_some(splits)}"
            self.add((*place, "split"), _MALFORMED, said)
            return {}
        return {"config": config, "split": given.split, "files": {given.split: splits[given.split]}}

    def plugin(self, number: int, reference: Reference) -> dict[str, Any]:
        place = ("plugins", number)
        version = self.find(place, reference)
        if version is not None:
            if fault := _plugin_fault(self.connection, version.name, version.manifest_sha256):
                hint = approval_hint(version.name, version.manifest_sha256)
                self.add(place, "ACCESS_DENIED", f"is {reference.uri}, which {fault}", hint)
            self.use(f"plugin:{version.name}", version)
        return reference.document() | {"name": reference.uri.full_name}

    def find(
        self, place: tuple[str | int, ...], reference: Reference, said: str = ""
    ) -> ContentVersion | None:
        """The version that a reference names, if the project may read it and the digest is its own.

        ``said`` starts the sentence of a fault that is about something behind ``place``.
        """
        behind = bool(said)
        if reference.uri not in self.known.versions:
            self.known.versions[reference.uri] = self.look_up(reference.uri)
        found = self.known.versions[reference.uri]
        if not isinstance(found, ContentVersion):
            code, why, hint = found
            said = said or f"is {reference.uri}, which "
            self.add(place if behind else (*place, "uri"), code, f"{said}{why}", hint)
            return None
        if found.manifest_sha256 != reference.manifest_sha256:
            self.add(
                place if behind else (*place, "manifest_sha256"),
                "PROFILE_HASH_MISMATCH",
                f"{said}is {reference.manifest_sha256}, and {reference.uri} was published with "
                f"{found.manifest_sha256}",
            )
            return None
        return found

    def pinned(self, reference: Reference) -> ContentVersion | None:
        """What a Recipe depends on, by its label or else by its digest, which names it for good (E101).

        On another server the label may be that of something else, which no publication there can mend.
        """
        by_digest = replace(reference.uri, ref=reference.manifest_sha256)
        for uri in (reference.uri, by_digest):
            found = self.known.versions.get(uri) or self.look_up(uri)
            if isinstance(found, ContentVersion) and found.manifest_sha256 == reference.manifest_sha256:
                self.known.versions[uri] = found
                return found
        return None

    def named(self, uri: ContentUri) -> ContentVersion | None:
        """What `find` found by this URI alone."""
        found = self.known.versions.get(uri)
        return found if isinstance(found, ContentVersion) else None

    def look_up(self, uri: ContentUri) -> ContentVersion | tuple[str, str, str]:
        found = contents.resolve(self.connection, self.project_id, uri)
        if found is not None:
            return found
        # Whoever may not read a content learns nothing of it: unknown and forbidden are one answer.
        if contents.readable(self.connection, self.project_id, uri.kind, uri.full_name):
            there = contents.find_version(self.connection, uri.kind, uri.full_name, uri.ref)
            if there is not None:
                hint = versions_hint(uri.kind, uri.full_name)
                return "PROFILE_ARCHIVED", "was withdrawn by its publisher", hint
            said, hint = unknown_version(self.connection, uri.kind, uri.full_name, uri.ref)
            # Nothing is denied: who may read a content is told its versions anyway.
            return _MALFORMED, f"does not exist: {said}", hint
        said = "is nothing that this project may read"
        if uri.kind is ContentKind.PLUGINS:
            # Of a submission to a new server both are missing, and are to be told in one answer.
            hint = f"Publish it there, readable for the project. {approval_hint(uri.full_name, uri.ref)}"
            return "ACCESS_DENIED", f"{said}; a plugin has to be approved on this deployment, too", hint
        return "ACCESS_DENIED", said, denied_hint(uri.kind)

    def use(self, role: str, version: ContentVersion) -> None:
        kind = ContentKind(version.kind)
        self.uses.append(ContentUse(role, kind, version.name, version.version, version.manifest_sha256))


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return f"{', '.join(listed[:_SHOWN])}{more}"
