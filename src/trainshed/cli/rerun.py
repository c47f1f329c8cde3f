"""``trainshed job manifest`` and ``job rerun``: what exactly ran, and running it again."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli.exits import Exit
from trainshed.cli.follow import follow_to_the_end
from trainshed.cli.output import Column, Fields, Sentence, Table, to_json
from trainshed.cli.parameters import JOB, SECONDS
from trainshed.cli.session import Session, json_option
from trainshed.cli.submission import read_file
from trainshed.cli.waiting import Deadline, await_release, wait_for

if TYPE_CHECKING:
    from trainshed.sdk import Client
    from trainshed.sdk.errors import ApiError, FieldFault

MAX_MANIFEST_BYTES = 1 << 30
_PLACE = re.compile(r"trials\[(\d+)\]\.spec\.(.+)")
_ENTRY = re.compile(r"spec\.(data|mounts)\[(\d+)\]\.(?:manifest_sha256|ref)")
_UNAVAILABLE = frozenset(
    {"ACCESS_DENIED", "CONTENT_NOT_FOUND", "PROFILE_ARCHIVED", "PROFILE_HASH_MISMATCH", "CONTENT_DAMAGED"}
)
"""Codes of a profile's faults that publishing or approving its content can end."""
_OF_A_TRIAL = re.compile(r"trials\[\d+\]\.")
_RECIPES, _CONTENTS, _PLUGINS, _APPROVALS, _LAST = range(1, 6)
"""In which order things can be published: a Recipe needs what it depends on, an approval its Plugin."""


def _folded(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What runs otherwise, field by field; what only is named otherwise, one row a kind, over all Trials."""
    found: list[dict[str, Any]] = []
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in document["differences"]:
        if row["runs"]:
            found.append({**row, "told": "yes"})
        else:
            kinds.setdefault(_OF_A_TRIAL.sub("trials[*].", row["path"]), []).append(row)
    for kind, rows in kinds.items():
        shown = {"path": rows[0]["path"] if len(rows) == 1 else kind}
        for key in ("before", "after"):
            values = [row[key] for row in rows]
            shown[key] = values[0] if all(value == values[0] for value in values) else "various"
        times = "" if len(rows) == 1 else f" ({len(rows)} times)"
        found.append({**shown, "told": f"only named so{times}"})
    return found


_DIFFERENCES = Table(
    (
        Column("FIELD", "path"),
        Column("WAS", "before", shortest=12),
        Column("IS", "after", shortest=12),
        Column("RUNS", "told"),
    ),
    empty="Every field is the same.",
    rows=_folded,
)
_RERUN = Fields(
    (
        ("job", "job_id"),
        ("rerun of", "rerun_of.job_id"),
        ("status", "job.status"),
        ("manifest", "digest"),
        ("runs the same", "same"),
    )
)


@click.command()
@click.argument("job_id", type=JOB)
@click.option("--output", "-o", metavar="FILE", type=click.Path(path_type=Path), help="Write it to FILE.")
@json_option
@click.pass_obj
def manifest(session: Session, job_id: str, *, output: Path | None) -> None:
    """Print everything that was frozen of a Job, and the digest of that.

    The digest is the same before, during and after the run, and for good. `job rerun FILE` runs it again.
    """
    with session.client() as client:
        document = client.jobs.manifest(job_id)
    if output is None:
        session.show(document, Sentence(to_json))
        session.note(f"digest {document['digest']}")
        return
    from trainshed.sdk.errors import LocalFileError  # noqa: PLC0415 - click only at import time

    try:
        _write(output, document)
    except OSError as error:
        raise LocalFileError(f"cannot write {output}: {error.strerror or error}") from None
    told = {"job_id": job_id, "digest": document["digest"], "file": str(output)}
    session.show(told, Sentence(lambda row: f"{row['digest']}  {row['file']}"))


@click.command()
@click.argument("source", metavar="JOB|FILE")
@click.option("--request-id", metavar="ID", help="Names the new submission; a retry finds the same Job.")
@click.option(
    "--hidden",
    metavar="NAME",
    multiple=True,
    help="Give a training task's hidden variable NAME the value that it has in this program's environment.",
)
@click.option("--wait", is_flag=True, help="Wait for the end; exit 1 unless the Job completed.")
@click.option("--follow", is_flag=True, help="Print the log until its end, then as --wait.")
@click.option("--wait-timeout", type=SECONDS, help="Seconds to wait at most (exit 8).")
@json_option
@click.pass_context
def rerun(
    context: click.Context,
    source: str,
    *,
    request_id: str | None,
    hidden: tuple[str, ...],
    wait: bool,
    follow: bool,
    wait_timeout: float | None,
) -> None:
    """Run again what a Job ran, here or on another server, and show every difference.

    JOB is a Job of the server in use, also one of `gpu` or a training task; FILE is what `job manifest`
    wrote, on whatever server, or `-` for stdin. Runners are named by commit, images and content by digest;
    a version's label is kept where it leads to the same digest.
    Exits 9 if what runs differs.
    """
    from trainshed.model.provenance import compare  # noqa: PLC0415 - click only at import time

    session = context.ensure_object(Session)
    if wait_timeout is not None and not wait and not follow:
        raise click.UsageError("--wait-timeout bounds --wait or --follow; give one of them")
    wait = wait or follow
    deadline = Deadline(wait_timeout)
    values = _from_environment(hidden)
    given = read_file(source, "a Job manifest", most=MAX_MANIFEST_BYTES) if _is_file(source) else None
    with session.client() as client:
        before = _checked(given if given is not None else client.jobs.manifest(source), source)
        job = _submitted(client, before, request_id, values)
        session.job_id = job.job_id
        said = "was accepted before: nothing new was started" if job.accepted_before else "accepted"
        session.note(f"{job.job_id} {said}.")
        after = client.jobs.manifest(job.job_id)
        found = compare(before["frozen"], _checked(after, job.job_id)["frozen"])
        if wait:
            if not session.json:
                # Whoever waits for hours for another thing than was meant should know at once.
                session.show({"differences": [each.as_dict() for each in found]}, _DIFFERENCES)
            if follow:
                follow_to_the_end(session, client, job, deadline.left())
            job = wait_for(session, client, job.job_id, deadline.left())
            await_release(client, job, deadline.left())
            job = client.jobs.get(job.job_id)
        session.job_id = None
    same = not any(each.runs for each in found)
    document = {
        "job_id": job.job_id,
        "rerun_of": {"job_id": before["frozen"]["job"]["job_id"], "digest": before["digest"]},
        "digest": after["digest"],
        "same": same,
        "differences": [each.as_dict() for each in found],
        "job": job.raw,
    }
    session.show(document, _RERUN, *([] if wait else [_DIFFERENCES]))
    if wait and not job.succeeded:
        context.exit(Exit.FAILED)
    context.exit(Exit.OK if same else Exit.DIFFERS)


def _from_environment(names: tuple[str, ...]) -> dict[str, str]:
    """Values by name: a command line is for all of the machine to read, its environment is not."""
    lacking = [name for name in names if not os.environ.get(name)]
    if lacking:
        raise click.UsageError(f"--hidden: this program's environment has no value of {', '.join(lacking)}")
    return {name: os.environ[name] for name in names}


def _is_file(source: str) -> bool:
    return source == "-" or os.sep in source or source.endswith(".json") or Path(source).exists()


def _checked(document: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """The manifest, if it is one and its digest is its own. Raises `click.UsageError`."""
    from trainshed.model.provenance import ManifestFault, check_manifest  # noqa: PLC0415 - as above

    try:
        check_manifest(document)
    except ManifestFault as fault:
        raise click.UsageError(f"{source}: {fault}") from None
    return document


def _submitted(
    client: Client, manifest: Mapping[str, Any], request_id: str | None, hidden: Mapping[str, str]
) -> Any:
    """Submit it; a refusal is told with what has to be published there."""
    from trainshed.model.provenance_kinds import HiddenValuesWanted  # noqa: PLC0415 - as above
    from trainshed.sdk.errors import ApiError  # noqa: PLC0415 - as above

    try:
        return client.training_jobs.rerun(manifest, request_id=request_id, hidden=hidden)
    except HiddenValuesWanted as fault:
        names = [each.removeprefix("precheck.").removeprefix("env.") for each in fault.missing]
        how = "".join(f" --hidden {name}" for name in dict.fromkeys(names))
        way = f". Set them in this program's environment and add{how}" if names else ""
        raise click.UsageError(f"{fault}{way}") from None
    except ApiError as error:
        found = [list(_wanted(manifest["frozen"], error, fault)) for fault in error.faults]
        wanted = _in_order(step for steps in found for step in steps)
        if wanted:
            # The first fault is the headline: where nothing has to be provided for it, its own hint stays.
            first = [] if found[0] or not error.hint else [error.hint]
            last = [_NAMES] if any(step.rank[0] < _APPROVALS for step in wanted) else []
            error.hint = "\n".join([*first, _HEAD, *(f"  {step.line}" for step in wanted), _TAIL, *last])
            error.body = {**error.body, "publish": [step.sentence for step in wanted]}
        raise


_HEAD = "make available there, in this order:"
_TAIL = "then run it again"
_NAMES = (
    "a name is part of what ran: where it is refused as NAMESPACE_TAKEN, have that project or the owner key "
    "publish it and open it to yours, with `visibility NAME projects --to PROJECT` of the same command"
)
"""Who may publish under a name only that server knows, and says only to who tries."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One thing to do before the Job can run there."""

    rank: tuple[int, int]
    """Steps of a lower one come first."""
    line: str
    """A command, with what else is to be known as a comment; or a sentence where no command does it."""
    sentence: str
    """The same for ``publish`` of ``--json``."""


def _in_order(steps: Iterable[_Step]) -> list[_Step]:
    """Each once, in an order that works."""
    found: dict[str, _Step] = {}
    for step in sorted(steps, key=lambda step: step.rank):
        found.setdefault(step.sentence, step)
    return list(found.values())


def _wanted(frozen: Mapping[str, Any], error: ApiError, fault: FieldFault) -> Iterator[_Step]:
    """What has to be made available on that server, from the place of a fault."""
    if fault.path.startswith("spec.") and frozen["trials"]:
        yield from _of_one(frozen["trials"][0], fault)
        return
    place = _PLACE.match(fault.path)
    if place is None or int(place[1]) >= len(frozen["trials"]):
        return
    trial, where = frozen["trials"][int(place[1])], place[2]
    if where.startswith("runner") and fault.code == "RUNNER_NOT_FOUND":
        runner = trial["runner"]
        command = f"trainshed runner publish PATH --ref {runner['revision']} --name {runner['name']}"
        yield _Step(
            (0, 0),
            f"{command}  # from a clone of its repository",
            f"publish the Runner there: `{command}`, from a clone of its repository",
        )
    elif where.startswith("profile") and (fault.code in _UNAVAILABLE or _is_unknown_version(fault, where)):
        taken = error.body.get("labels_taken", ())
        yield from _contents_wanted(trial, where.removeprefix("profile."), taken)
    elif where.startswith("image"):
        yield _sentence(f"make the image {trial['image']['resolved']} available to that server")
    elif where.startswith("resume_from"):
        yield _sentence(
            f"a Checkpoint stays on its server: run the Job there that has "
            f"{trial['resume_from']['checkpoint_id']}; if that was deleted, nothing can go on from it"
        )


def _sentence(text: str) -> _Step:
    return _Step((_LAST, 0), text, text)


def _of_one(trial: Mapping[str, Any], fault: FieldFault) -> Iterator[_Step]:
    """The same for a packed project or a training task, which is a Job by itself."""
    from trainshed.model.provenance_kinds import SCRIPT, TASK, kind_of  # noqa: PLC0415 - as above

    kind, entry = kind_of(trial), _ENTRY.fullmatch(fault.path)
    if kind == SCRIPT and fault.code == "BLOB_NOT_FOUND":
        spec = trial[SCRIPT]["spec"]
        what = f"the project (manifest {spec['bundle']['manifest_sha256']})"
        if entry is not None and int(entry[2]) < len(spec["data"]):
            item = spec["data"][int(entry[2])]
            what = f"the data `{item['mount']}` (manifest {item.get('manifest_sha256')})"
        yield _sentence(
            f"send {what} there: `gpu run` against that server, in a folder that has the same files as "
            f"{spec['project_dir']} had"
        )
    elif kind == TASK and fault.path == "spec.image" and trial["image"] is not None:
        yield _sentence(f"make the image {trial['image']['resolved']} available to that server")
    elif kind == TASK and entry is not None and int(entry[2]) < len(trial[TASK]["spec"]["mounts"]):
        path = trial[TASK]["spec"]["mounts"][int(entry[2])]["mount_path"]
        for use in trial["contents"]:
            if use["role"] == f"mount:{path}":
                yield _publish(use, _CONTENTS)


def _is_unknown_version(fault: FieldFault, where: str) -> bool:
    """Whether a reference of a profile is at fault whose content is readable there, without that version."""
    return fault.code == "INVALID_PROFILE" and (where.endswith(".uri") or where == "profile.recipe")


def _publish(
    use: Mapping[str, Any], rank: int, *, before: int = 0, label: str | None = None, why: str = ""
) -> _Step:
    """Publishing a content there: under its digest unless it is known that the label can be had.

    The digest always leads to it, and a label may be that of other files there. Of one rank what has a
    higher ``before`` comes first.
    """
    version = "" if label is None else f" --version {label}"
    command = f"trainshed {use['kind'].removesuffix('s')} publish PATH --name {use['name']}{version}"
    digest = use["manifest_sha256"]
    return _Step(
        (rank, -before),
        f"{command}  # readable for your project, manifest {digest}{why}",
        f"publish there, readable for your project: `{command}` (manifest {digest}{why})",
    )


def _contents_wanted(trial: Mapping[str, Any], where: str, taken: Collection[str]) -> Iterator[_Step]:
    from trainshed.model.provenance import labelled  # noqa: PLC0415 - as above

    document = trial["profile"]["document"]
    plugins = [each["name"] for each in document["plugins"]]
    for use in trial["contents"]:
        kind, _, name = use["role"].partition(":")
        places = {"input": f"inputs.{name}", "recipe": "recipe", "dependency": "recipe"}
        if kind == "plugin" and name in plugins:
            places["plugin"] = f"plugins[{plugins.index(name)}]"
        if kind not in places or not f"{where}.".startswith(f"{places[kind]}."):
            continue
        if kind == "input":
            uri = labelled(document["inputs"].get(name))
            free = uri is not None and uri not in taken
            why = "" if uri is None or free else f"; its label {use['version']} names something else there"
            yield _publish(use, _CONTENTS, label=use["version"] if free else None, why=why)
        elif kind != "plugin":
            # What a Recipe depends on has to be there before it; `common.text` is what `common` needs.
            depth = name.count(".") + 1 if kind == "dependency" else 0
            yield _publish(use, _RECIPES, before=depth)
        elif where != places[kind]:  # else it is there and readable: only not approved
            yield _publish(use, _PLUGINS)
        if kind == "plugin":
            command = f"trainshed plugin approve {name}@{use['manifest_sha256']}"
            yield _Step(
                (_APPROVALS, 0),
                f"{command}  # with the owner key",
                f"approve it there with the owner key: `{command}`",
            )


def _write(place: Path, document: Mapping[str, Any]) -> None:
    """All of the file or nothing: the canonical document, as the server wrote it."""
    from trainshed.model.strict_json import canonical_json  # noqa: PLC0415 - as above

    with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False, encoding="ascii") as file:
        try:
            file.write(canonical_json(document))
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(0o644)
            Path(file.name).rename(place)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
