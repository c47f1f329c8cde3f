"""Checkpoints and the receipts of operations (contract E b7)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainshed.server.shapes.common import Shape, Time


class CheckpointFile(Shape):
    """One file of a Checkpoint."""

    name: str = Field(description="Relative to the Checkpoint's folder.")
    size_bytes: int
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Checkpoint(Shape):
    """A durable state that a Trial produced and that can be resumed from or served (E106)."""

    checkpoint_id: str = Field(examples=["ckpt_01KB7Q3V9E8Z6R5T4W3X2Y1M0Q"])
    job_id: str
    train_job_id: str = Field(description="The same as `job_id`.")
    trial_id: str
    attempt_id: str
    checkpoint_type: Literal["lora"]
    base_model: str
    lora_rank: int | None
    step: int | None = Field(description="From the folder's name or the trainer's state; null without one.")
    parent: str | None = Field(description="The Checkpoint that its Trial resumed from.")
    metric: str | None = Field(description="The metric that the Runner's rules name, if it has a value.")
    metric_value: float | None
    metric_fault: str | None = Field(description="Why the metric that the Runner's rules name has no value.")
    folder: str = Field(description="Where it lay among the Trial's outputs; empty for the top.")
    uri: str = Field(examples=["envloop://job_01KB7Q3V9E8Z6R5T4W3X2Y1M0N/ckpt_01KB7Q3V9E8Z6R5T4W3X2Y1M0Q"])
    tinker_path: str = Field(description="The same as `uri`.")
    durable: bool = Field(description="Its files are kept whatever happens to the Trial's Artifacts.")
    pinned: bool = Field(description="Neither rules nor people delete it until it is unpinned.")
    superseded: str | None = Field(
        description="Why the Runner's rules do not keep it: deleted once it is neither pinned nor in use."
    )
    size_bytes: int = Field(description="Of all its files.")
    files: list[CheckpointFile]
    created_at: Time


class CheckpointDownload(Shape):
    """Where the files of a Checkpoint can be fetched without a key, for a while."""

    checkpoint_id: str
    urls: dict[str, str] = Field(description="File name -> absolute URL; 403 once it has expired.")
    expires_at: Time


class OperationReceipt(Shape):
    """What became of something that was asked for."""

    operation_id: str = Field(examples=["op_01KB7Q3V9E8Z6R5T4W3X2Y1M0R"])
    project_id: str
    kind: str = Field(examples=["checkpoint.delete"])
    resource_id: str
    status: Literal["SUCCEEDED"] = Field(description="Nothing is half done: a receipt is that of a success.")
    errors: list[str]
    created_at: Time
    updated_at: Time
