"""``trainshed recipe profile``: a Job Profile of a Recipe, written for the person who submits it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli.output import Sentence, to_json
from trainshed.cli.session import Session, json_option

if TYPE_CHECKING:
    from trainshed.model.profile_draft import Draft, DraftInput
    from trainshed.model.recipe import Recipe
    from trainshed.sdk import Client, ContentVersion
    from trainshed.sdk.contents import Contents

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
    and was not is named all at once.
    """
    from trainshed.model.errors import Refusal  # noqa: PLC0415 - click only at import time
    from trainshed.model.profile_draft import draft_profile, parameter_value  # noqa: PLC0415 - as above
    from trainshed.model.recipe import recipe_from_about  # noqa: PLC0415 - as above

    named, values = _pairs("--input", inputs), _pairs("--param", parameters)
    with session.client() as client:
        version = _version(session, client.recipes, name)
        try:
            recipe = recipe_from_about(version.about)
        except Refusal as refusal:
            raise click.UsageError(f"{version.uri} was published under older rules: {refusal}") from None
        found = {each: _input(session, client, recipe, each, given) for each, given in named.items()}
        bound = [_version(session, client.plugins, each) for each in plugins]
    for plugin in bound:
        decided = plugin.raw.get("approval")
        if not (isinstance(decided, Mapping) and decided.get("approved")):
            approve = f"{session.program} plugin approve {plugin.name}@{plugin.manifest_sha256}"
            session.warn(f"{plugin.uri} is not approved here; with the owner key: `{approve}`")
    draft = draft_profile(
        _pinned(version),
        recipe,
        found,
        [_pinned(each) for each in bound],
        {key: parameter_value(recipe.parameters, key, text) for key, text in values.items()},
    )
    _refuse(draft, template=template)
    session.show(draft.document, Sentence(to_json))
    if draft.missing:
        session.note("To be filled in:\n" + "\n".join(f"  {each}" for each in draft.missing))


def _refuse(draft: Draft, *, template: bool) -> None:
    """Raises `click.UsageError` with all that is wrong, a line each."""
    lines = [*([] if template else draft.missing), *draft.faults]
    if not lines:
        return
    head = "the Profile is not complete" if len(lines) == len(draft.missing) else "this makes no Profile"
    more = "" if template or not draft.missing else "\n--template leaves placeholders for what is not given"
    raise click.UsageError(f"{head}:" + "".join(f"\n  - {line}" for line in lines) + more)


def _pairs(option: str, given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not key or not equals:
            raise click.UsageError(f"{option} {each}: write NAME=VALUE")
        if key in found:
            raise click.UsageError(f"{option}: `{key}` is given twice")
        found[key] = value
    return found


def _version(session: Session, door: Contents, name: str) -> ContentVersion:
    from trainshed.cli.content_kinds import suggestions  # noqa: PLC0415 - it lists this command

    with suggestions(session, door, name):
        return door.version(name)


def _input(session: Session, client: Client, recipe: Recipe, name: str, given: str) -> DraftInput:
    """The version that an input names. Where the Recipe does not say of which kind it is, a URI does."""
    from trainshed.model.content import SCHEME, ContentKind  # noqa: PLC0415 - click only at import time
    from trainshed.model.profile_draft import DraftInput  # noqa: PLC0415 - as above

    ref, *rest = given.split(",")
    parts = _pairs(f"--input {name}: ", tuple(rest))
    if unknown := parts.keys() - set(_PARTS):
        raise click.UsageError(f"--input {name}: `{min(unknown)}` is not known; {' and '.join(_PARTS)} are")
    wanted = (recipe.inputs or {}).get(name)
    kind = ContentKind.DATASETS if wanted is None else wanted.kind
    if ref.startswith(f"{SCHEME}{ContentKind.MODELS}/"):
        kind = ContentKind.MODELS
    elif ref.startswith(f"{SCHEME}{ContentKind.DATASETS}/"):
        kind = ContentKind.DATASETS
    version = _version(session, client.models if kind is ContentKind.MODELS else client.datasets, ref)
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
