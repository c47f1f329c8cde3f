"""Datasets as the published client reads them (contract E b9)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainshed.server.shapes.common import Page, Shape, Time
from trainshed.server.shapes.contents import Digest

TypeWord = Literal["data", "environment", "trajectory"]
Configs = dict[str, dict[str, list[str]]]


class DatasetItem(Shape):
    """A Dataset by its newest version."""

    name: str = Field(examples=["team/words"])
    type: TypeWord
    visibility: Literal["public", "private", "mixed"]
    splits: list[str]
    authors: list[str]
    version_count: int
    catalog_updated_at: Time


class DatasetPage(Page[DatasetItem]):
    """One page of Datasets, and when it was read."""

    observed_at: Time


class DatasetDetail(DatasetItem):
    """A Dataset with what its newest version says."""

    version: str
    manifest_sha256: Digest
    description: str | None
    license: str | None
    configs: Configs = Field(description="Config -> split -> patterns of its files.")


class DatasetVersion(Shape):
    """One immutable version."""

    name: str
    version: str
    manifest_sha256: Digest
    created_at: Time


class DatasetVersionDetail(DatasetVersion):
    """One version with its configs and splits."""

    type: TypeWord
    splits: list[str]
    configs: Configs
    files: int
    bytes: int


class DatasetTask(Shape):
    """One task of an environment Dataset."""

    name: str
    version: str
    task_id: str
    path: str = Field(description="The folder that holds its `task.toml`.")
