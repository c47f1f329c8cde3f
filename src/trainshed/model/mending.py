"""The commands that bring stored bytes back, the same words wherever damage is told."""

from __future__ import annotations

from trainshed.model.content import SHA256, ContentKind


def publish_content(kind: ContentKind, name: str, version: str) -> str:
    """The command that sends a version's files again; a version without a label is named by its files."""
    label = "" if SHA256.fullmatch(version) else f" --version {version}"
    return f"`trainshed {kind.noun.lower()} publish FOLDER --name {name}{label}`"


def publish_runner(name: str, revision: str) -> str:
    """The command that sends a Revision's files again, in a clone that has its commit."""
    return f"`trainshed runner publish PATH --ref {revision} --name {name}`"


def take_out(target: str) -> str:
    """The command, for the owner key, that takes damaged copies out so that publishing sends them."""
    return f"`trainshed content verify {target} --repair`"


def rerun(job_id: str) -> str:
    """The command that makes the same Job again."""
    return f"`trainshed job rerun {job_id}`"
