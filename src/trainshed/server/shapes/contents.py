"""Datasets, Models, Recipes and Plugins, their versions and files."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from trainshed.server.shapes.common import Shape, Time
from trainshed.server.shapes.runners import VisibilityWord

KindWord = Literal["datasets", "models", "recipes", "plugins"]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class ContentVersionItem(Shape):
    """One published version. It never changes; `manifest_sha256` names what is in it for good."""

    kind: KindWord
    name: str = Field(examples=["team/words"])
    version: str = Field(description="A label, or the manifest's digest where the publisher gave none.")
    uri: str = Field(examples=["envloop://datasets/team/words@1.0"])
    manifest_sha256: Digest
    files: int
    bytes: int
    published_at: Time
    published_by: str


class PluginApproval(Shape):
    """What was decided of a plugin package on this deployment (E94)."""

    name: str
    manifest_sha256: Digest
    approved: bool
    approved_at: Time
    approved_by: str
    revoked_at: Time | None
    revoked_by: str | None


class ContentVersionDetail(ContentVersionItem):
    """A version with what its publisher says of it."""

    about: dict[str, Any] = Field(description="Configs and splits of a Dataset, `recipe.toml` of a Recipe.")
    visibility: VisibilityWord
    approval: PluginApproval | None = Field(description="Of Plugins only; null where nobody decided.")


class ContentItem(Shape):
    """A content and the newest of its versions."""

    kind: KindWord
    name: str
    visibility: VisibilityWord
    description: str | None
    versions: int = Field(description="How many can be read.")
    newest: ContentVersionItem
    created_at: Time
    updated_at: Time


class ContentDetail(ContentItem):
    """A content with what the newest version says of it."""

    project_id: str = Field(description="The project that publishes it.")
    projects: list[str] = Field(description="Projects named by visibility `projects`.")
    about: dict[str, Any]


class ContentFileItem(Shape):
    """One file of a version."""

    path: str
    size: int
    sha256: Digest
    executable: bool


class ContentVisibility(Shape):
    """Who may read a content."""

    kind: KindWord
    name: str
    visibility: VisibilityWord
    projects: list[str]


class ContentWithdrawn(Shape):
    """Versions that are no longer found. Trials that run with them go on."""

    kind: KindWord
    name: str
    withdrawn: list[str] = Field(description="Their labels.")
