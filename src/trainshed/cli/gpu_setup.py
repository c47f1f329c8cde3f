"""``gpu setup`` and ``gpu statusline``: for coding agents, and for prompts."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import click

from trainshed.cli.gpu_common import ASKS
from trainshed.cli.output import Sentence
from trainshed.cli.session import Session, json_option

REGISTER = "claude mcp add gpu -- gpu mcp"
SERVER = {"command": "gpu", "args": ["mcp"]}
_SECONDS = 2.0


@click.command()
@click.option(
    "--skill", metavar="DIR", help="Write the skill file to DIR/gpu/SKILL.md, such as ~/.claude/skills."
)
@click.option("--force", is_flag=True, help="Replace a skill file that is there and is another one.")
@json_option
@click.pass_obj
def setup(session: Session, *, skill: str | None, force: bool) -> None:
    """Say how coding agents are told of this program.

    Prints the line that registers `gpu mcp`, and what other clients take in their configuration. Writes
    nothing unless --skill names a folder.
    """
    document: dict[str, Any] = {
        "register": REGISTER,
        "server": {"mcpServers": {"gpu": SERVER}},
        "skill": None,
    }
    if skill is not None:
        document["skill"] = _write_skill(Path(skill).expanduser(), force=force)
    session.show(document, Sentence(_told))


def _told(document: Mapping[str, Any]) -> str:
    import json  # noqa: PLC0415 - not for `--help`

    lines = [document["register"], "", json.dumps(document["server"])]
    if document["skill"]:
        lines += ["", f"wrote {document['skill']}"]
    return "\n".join(lines)


def _write_skill(folder: Path, *, force: bool) -> str:
    from trainshed.sdk.errors import LocalFileError  # noqa: PLC0415 - not for `--help`

    text = resources.files("trainshed.mcp").joinpath("SKILL.md").read_text(encoding="utf-8")
    target = folder / "gpu" / "SKILL.md"
    try:
        if target.exists() and target.read_text(encoding="utf-8") != text and not force:
            raise LocalFileError(
                f"{target} is there already and is another one", hint="`--force` replaces it."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LocalFileError(f"cannot write {target}: {error.strerror}") from error
    return str(target)


@click.command()
@json_option
@click.pass_obj
def statusline(session: Session) -> None:
    """Print one line about Jobs, for a prompt.

    Nothing where no server runs or nothing goes on; starts nothing and is never an error.
    """
    session.show(_brief(session), Sentence(lambda row: row["line"]))


def _brief(session: Session) -> dict[str, Any]:
    from trainshed.sdk.client import Client  # noqa: PLC0415 - not for `--help`
    from trainshed.sdk.discovery import find_connection  # noqa: PLC0415 - as above
    from trainshed.sdk.errors import TrainshedError  # noqa: PLC0415 - as above
    from trainshed.sdk.transport import RetryPolicy  # noqa: PLC0415 - as above

    try:
        used = find_connection(session.url, project=session.project, start=False)
        with Client(connection=used, retry=RetryPolicy(attempts=1), timeout=_SECONDS) as client:
            found = client.scripts.list(active=True, limit=100)
    except TrainshedError:
        return {"line": "", "active": 0, "asks": []}
    jobs = [job.raw for job in found]
    asks = [job["short_id"] for job in jobs if job["state"] == ASKS]
    return {"line": line_of(jobs), "active": len(jobs), "asks": asks}


def line_of(jobs: list[Mapping[str, Any]]) -> str:
    """What waits for an answer first, then how far the others are."""
    asks = [f"{job['short_id']} asks" for job in jobs if job["state"] == ASKS]
    others = [f"{job['short_id']} {job['state']}{_share(job)}" for job in jobs if job["state"] != ASKS]
    shown = [*asks, *others][:3]
    more = len(jobs) - len(shown)
    return f"gpu: {' · '.join(shown)}{f' · +{more}' if more else ''}" if jobs else ""


def _share(job: Mapping[str, Any]) -> str:
    progress = job.get("progress") or {}
    step, total = progress.get("step"), progress.get("total")
    return f" {min(1.0, step / total):.0%}" if step is not None and total else ""
