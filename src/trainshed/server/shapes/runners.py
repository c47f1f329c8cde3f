"""Runners, their Revisions and the blobs they are made of (contract E b8)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from trainshed.server.shapes.common import Shape, Time
from trainshed.server.shapes.jobs import TreeFile

VisibilityWord = Literal["public", "project", "projects"]


class RunnerGpu(Shape):
    """The GPU request that a Runner brings."""

    gpu_type: str | None
    gpus: int | None


class BestCheckpoints(Shape):
    """The rule that keeps the Checkpoints with the best values of a metric."""

    metric: str
    mode: Literal["min", "max"]
    keep: int


class RunnerCheckpoints(Shape):
    """What a Runner says about its Checkpoints; without rules all of them are kept."""

    resume: bool = Field(description="Whether its program can go on from a Checkpoint.")
    keep_last: int | None
    best: BestCheckpoints | None


class RunnerItem(Shape):
    """One readable Revision, with what is needed to write `namespace/name@revision` (E7)."""

    name: str = Field(examples=["envloop/bash"])
    revision: str = Field(pattern="^[0-9a-f]{40}$")
    selector: str
    source_ref: str | None
    visibility: VisibilityWord
    snapshot_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    entrypoint: Literal["main.sh", "main.py"]
    params: list[str] = Field(description="Declared parameter names.")
    gpu: RunnerGpu | None
    checkpoints: RunnerCheckpoints | None = Field(description="`[checkpoints]`, where it has any.")
    abi: str | list[str] | None = Field(description="Which Job Profiles it reads, as published.")
    recipe_entrypoint: str | None = Field(description="Which Recipes it runs: those with this entrypoint.")
    image: str | None
    execution: dict[str, Any]
    created_at: Time
    published_by: str


class RunnerDetail(RunnerItem):
    """The newest readable Revision of a Runner, with its moving refs."""

    definition: dict[str, Any]
    refs: dict[str, str] = Field(description="Branch or tag -> full commit.")
    projects: list[str] = Field(description="Projects named by visibility `projects`.")


class RevisionDetail(RunnerItem):
    """One Revision: its execution definition and files (E9)."""

    definition: dict[str, Any]
    files: list[TreeFile]


class RunnerVisibility(Shape):
    """Who may read a Runner."""

    name: str
    visibility: VisibilityWord
    projects: list[str]


class Withdrawn(Shape):
    """A Revision that is no longer found. Jobs that froze it and started go on."""

    selector: str
    withdrawn: bool
