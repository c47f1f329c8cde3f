"""``trainshed recipe profile``: a Job Profile of a Recipe, written for the person who submits it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli.nearest import near_contents
from trainshed.cli.output import Sentence, to_json
from trainshed.cli.session import Session, json_option

if TYPE_CHECKING:
    from trainshed.model.profile_draft import Draft, DraftInput
    from trainshed.model.recipe import Recipe
    from trainshed.sdk import Client, ContentVersion
    from trainshed.sdk.contents import Contents
    from trainshed.sdk.errors import TrainshedError

_PARTS = ("config", "split")


@click.command()
@click.argument("name")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="INPUT=REF",
    help="A Dataset or Model, NS/NAME[@VERSION], for this input; of a Dataset also a part of it: "
    "REF[,config=C][,split=S]. Repeatable.",
)
@click.option(
    "--plugin", "plugins", multiple=True, metavar="REF", help="A Plugin, NS/NAME[@VERSION]. Repeatable."
)
@click.option(
    "--param",
    "parameters",
    multiple=True,
    metavar="KEY=VALUE",
    help="A parameter; lists and objects as JSON. Repeatable.",
)
@click.option("--template", is_flag=True, help="Leave placeholders for what is not given.")
@json_option
@click.pass_obj
def profile(
    session: Session,
    name: str,
    *,
    inputs: tuple[str, ...],
    plugins: tuple[str, ...],
    parameters: tuple[str, ...],
    template: bool,
) -> None:
    """Print a Job Profile of a Recipe (NS/NAME or NS/NAME@VERSION), ready for `job submit --profile-file`.

    Digests and the Recipe's defaults are filled in; without @VERSION the newest counts. What has to be given
    and was not, and what was given and is wrong, is named all at once.
    """
    from trainshed.model.errors import Refusal  # noqa: PLC0415 - click only at import time
    from trainshed.model.profile_draft import draft_profile, parameter_value  # noqa: PLC0415 - as above
    from trainshed.model.recipe import recipe_from_about  # noqa: PLC0415 - as above

    wrong = _Wrong(session)
    named, values = wrong.pairs("--input", inputs), wrong.pairs("--param", parameters)
    with session.client() as client:
        version = _version(session, client.recipes, name)
        try:
            recipe = recipe_from_about(version.about)
        except Refusal as refusal:
            raise click.UsageError(f"{version.uri} was published under older rules: {refusal}") from None
        found = {each: _input(wrong, client, recipe, each, given) for each, given in named.items()}
        bound = [wrong.version("--plugin", client.plugins, each) for each in plugins]
    there = [plugin for plugin in bound if plugin is not None]
    for plugin in there:
        decided = plugin.raw.get("approval")
        if not (isinstance(decided, Mapping) and decided.get("approved")):
            approve = f"{session.program} plugin approve {plugin.name}@{plugin.manifest_sha256}"
            session.warn(f"{plugin.uri} is not approved here; with the owner key: `{approve}`")
    draft = draft_profile(
        _pinned(version),
        recipe,
        found,
        [_pinned(each) for each in there],
        {key: parameter_value(recipe.parameters, key, text) for key, text in values.items()},
    )
    _refuse(draft, wrong, template=template)
    session.show(draft.document, Sentence(to_json))
    if draft.missing:
        session.note("To be filled in:\n" + "\n".join(f"  {each}" for each in draft.missing))


def _refuse(draft: Draft, wrong: _Wrong, *, template: bool) -> None:
    """Raises `click.UsageError` with all that is wrong, a line each; what alone was not found, as such."""
    missing = [] if template else draft.missing
    lines = [*missing, *wrong.lines, *draft.faults]
    if not lines:
        return
    if wrong.unknown is not None and len(lines) == 1:
        wrong.session.suggestions = wrong.near
        raise wrong.unknown
    wrong.session.suggestions = []
    head = "the Profile is not complete" if len(lines) == len(missing) else "this makes no Profile"
    more = "\n--template leaves placeholders for what is not given" if missing else ""
    raise click.UsageError(f"{head}:" + "".join(f"\n  - {line}" for line in lines) + more)


@dataclass(slots=True)
class _Wrong:
    """What cannot be read or found of what was given; all of it is told at once."""

    session: Session
    lines: list[str] = field(default_factory=list)
    unknown: TrainshedError | None = None
    """Why something was not found, and the nearest names."""
    near: list[str] = field(default_factory=list)

    def pairs(self, option: str, given: Iterable[str]) -> dict[str, str]:
        """``NAME=VALUE`` of each."""
        found: dict[str, str] = {}
        for each in given:
            key, equals, value = each.partition("=")
            if not key or not equals:
                self.lines.append(f"{option} {each}: write NAME=VALUE")
            elif key in found:
                self.lines.append(f"{option}: `{key}` is given twice")
            else:
                found[key] = value
        return found

    def version(self, what: str, door: Contents, name: str) -> ContentVersion | None:
        """The version that ``what`` names."""
        from trainshed.sdk.errors import ConfigurationError, NotFound  # noqa: PLC0415 - click only at import time

        self.session.suggestions = []
        try:
            return _version(self.session, door, name)
        except (ConfigurationError, NotFound) as error:
            self.unknown, self.near = error, self.session.suggestions
            near = " or ".join(self.near)
            self.lines.append(f"{what}: {error.message}" + (f"; did you mean {near}?" if near else ""))
            return None


def _version(session: Session, door: Contents, name: str) -> ContentVersion:
    with near_contents(session, door, name):
        return door.version(name)


def _input(wrong: _Wrong, client: Client, recipe: Recipe, name: str, given: str) -> DraftInput:
    """The version that an input names. Where the Recipe does not say of which kind it is, a URI does."""
    from trainshed.model.content import SCHEME, ContentKind  # noqa: PLC0415 - click only at import time
    from trainshed.model.profile_draft import DraftInput  # noqa: PLC0415 - as above

    ref, *rest = given.split(",")
    option = f"--input {name}"
    parts = wrong.pairs(f"{option}:", rest)
    for part in [part for part in parts if part not in _PARTS]:
        near = difflib.get_close_matches(part, _PARTS, n=1)
        said = f"did you mean `{near[0]}`?" if near else f"{' and '.join(_PARTS)} are"
        wrong.lines.append(f"{option}: `{part}` is not known; {said}")
        del parts[part]
    wanted = (recipe.inputs or {}).get(name)
    kind = ContentKind.DATASETS if wanted is None else wanted.kind
    if ref.startswith(f"{SCHEME}{ContentKind.MODELS}/"):
        kind = ContentKind.MODELS
    elif ref.startswith(f"{SCHEME}{ContentKind.DATASETS}/"):
        kind = ContentKind.DATASETS
    version = wrong.version(option, client.models if kind is ContentKind.MODELS else client.datasets, ref)
    if version is None:
        return DraftInput(kind)
    configs = version.about.get("configs")
    reference = {**_reference(version, ref), **parts}
    return DraftInput(kind, reference, configs if isinstance(configs, Mapping) else {})


def _reference(version: ContentVersion, asked: str) -> dict[str, Any]:
    """By its label, unless it was asked for by its digest."""
    if asked.endswith(version.manifest_sha256):
        return _pinned(version)
    return {"uri": version.uri, "manifest_sha256": version.manifest_sha256}


def _pinned(version: ContentVersion) -> dict[str, Any]:
    digest = version.manifest_sha256
    return {"uri": f"{version.uri.rpartition('@')[0]}@{digest}", "manifest_sha256": digest}
