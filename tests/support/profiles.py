"""What Job Profiles need: published Datasets, Recipes and Plugins, and a Runner that reads Profiles."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.contents import manifest_of, publish
from support.rows import IDS
from support.runners import definition, repository
from support.site import Site, submission
from trainshed.model.content import ContentKind
from trainshed.sdk.runner_tree import freeze
from trainshed.store import jobs, plugins

V1, V2, ABI = "envloop.job-profile/v1", "envloop.job-profile/v2", "envloop.train-recipe/1"
ENTRYPOINT = "pev.train:main"
DATASET_FILES = {
    "dataset.toml": b'[configs.default.splits]\ntrain = ["train/**"]\ntest = ["test/**"]\n'
    b'[configs.small.splits]\ntrain = ["train/0*"]\n',
    "train/0.txt": b"zero\n",
    "train/1.txt": b"one\n",
    "test/0.txt": b"two\n",
}
PARAMETERS = """
[parameters]
type = "object"
additionalProperties = false
required = ["steps"]
[parameters.properties]
steps = {type = "integer", minimum = 1}
lr = {type = "string", pattern = "^[0-9]+([.][0-9]+)?$", default = "0.001"}
optimizer = {type = "object", default = {}, properties = {name = {type = "string", default = "adam"}}}
"""


def recipe_files(*more: str, entrypoint: str = ENTRYPOINT) -> dict[str, bytes]:
    """A Recipe's files; ``more`` is added to its ``recipe.toml``."""
    text = f'abi = "{ABI}"\nentrypoint = "{entrypoint}"\n' + "\n".join(more) + PARAMETERS
    module = entrypoint.partition(":")[0].replace(".", "/")
    return {"recipe.toml": text.encode(), f"{module}.py": b"def main():\n    pass\n"}


def dependency(name: str, uri: str, manifest_sha256: str) -> str:
    return f'[dependencies.{name}]\nuri = "{uri}"\nmanifest_sha256 = "{manifest_sha256}"\n'


def runner_toml(*abis: str, entrypoint: str | None = ENTRYPOINT, **values: Any) -> str:
    head = f"abi = {json.dumps(list(abis))}\n" if abis else ""
    recipe = f'[recipe]\nentrypoint = "{entrypoint}"\n' if entrypoint else ""
    return head + recipe + definition(**values)


def publish_runner(
    site: Site, folder: Path, name: str, text: str, *, key: str | None = None, main: str = "true\n"
) -> str:
    """Publish a Runner of this definition through the site's HTTP doors; its selector."""
    repository(folder, {"runner.toml": text, "main.sh": main})
    frozen = freeze(folder)
    for file in frozen.files:
        assert site.request("PUT", f"/v1/content/blobs/{file.sha256}", file.read(), key=key).is_success
    body = {**frozen.publication().as_document(), "source_ref": "main", "visibility": "public"}
    answer = site.post(f"/v1/runners/{name}/revisions", body, key=key)
    assert answer.is_success, answer.text
    return f"{name}@main"


@dataclass(frozen=True)
class Published:
    """One version of a content."""

    kind: ContentKind
    name: str
    version: str
    manifest_sha256: str

    @property
    def uri(self) -> str:
        return f"envloop://{self.kind}/{self.name}@{self.version}"

    @property
    def reference(self) -> dict[str, str]:
        """As a Profile names it; with the digest in its URI where that has to be."""
        executed = self.kind in {ContentKind.RECIPES, ContentKind.PLUGINS}
        ref = self.manifest_sha256 if executed else self.version
        return {
            "uri": f"envloop://{self.kind}/{self.name}@{ref}",
            "manifest_sha256": self.manifest_sha256,
        }

    @property
    def path(self) -> str:
        """Of this version over HTTP."""
        return f"/v1/content/{self.kind}/{self.name}/versions/{self.manifest_sha256}"


def published(
    site: Site,
    kind: ContentKind,
    name: str,
    files: dict[str, bytes],
    *,
    version: str | None = None,
    **options: Any,
) -> Published:
    answer = publish(site, name, files, kind=kind, version=version, **options)
    assert answer.is_success, answer.text
    digest = manifest_of(kind, files).sha256
    return Published(kind, name, version or digest, digest)


@dataclass(frozen=True)
class World:
    """The seed's example, published on a site."""

    site: Site
    folder: Path
    data: Published
    recipe: Published
    model: Published
    runner: str

    @classmethod
    def on(cls, site: Site, folder: Path) -> World:
        return cls(
            site,
            folder,
            published(site, ContentKind.DATASETS, "envloop/pev-smoke-data", DATASET_FILES, version="smoke-1"),
            published(site, ContentKind.RECIPES, "envloop/pev-recipe", recipe_files()),
            published(site, ContentKind.MODELS, "envloop/base", {"model.bin": b"weights"}, version="1"),
            publish_runner(site, folder / "runner", "envloop/trainer", runner_toml(ABI, V1)),
        )

    def v1(self, **changes: Any) -> dict[str, Any]:
        document = {
            "schema": V1,
            "recipe": {"steps": 1, "lr": "0.1"},
            "inputs": {"data": self.data.reference},
            "plugins": [],
        }
        return {**document, **changes}

    def v2(self, **changes: Any) -> dict[str, Any]:
        document = {
            "schema": V2,
            "recipe": self.recipe.reference,
            "parameters": {"steps": 1},
            "inputs": {"data": {**self.data.reference, "config": "default", "split": "train"}},
            "plugins": [],
        }
        return {**document, **changes}

    def new_recipe(self, name: str, *more: str, **options: Any) -> Published:
        """Another Recipe, with more in its ``recipe.toml``."""
        files = recipe_files(*more, entrypoint=options.pop("entrypoint", ENTRYPOINT))
        return published(self.site, ContentKind.RECIPES, name, files, **options)

    def new_plugin(self, name: str, text: str = "", *, approved: bool = True, **options: Any) -> Published:
        found = published(
            self.site, ContentKind.PLUGINS, name, {"plugin.py": f"# {name} {text}\n".encode()}, **options
        )
        if approved:
            self.approve(found)
        return found

    def approve(self, plugin: Published) -> None:
        """As the operator does, whose process a site within this one cannot see."""
        name, digest = plugin.name, plugin.manifest_sha256
        self.site.services.database.write(
            lambda connection: plugins.approve_plugin(connection, name, digest, at=1.0, by="human:owner")
        )

    def revoke(self, plugin: Published) -> None:
        answer = self.site.request(
            "DELETE", f"/v1/content/plugins/{plugin.name}/versions/{plugin.manifest_sha256}/approval"
        )
        assert answer.is_success, answer.text

    def withdraw(self, content: Published) -> None:
        answer = self.site.request("DELETE", content.path)
        assert answer.is_success, answer.text

    def hide(self, content: Published, *projects: str) -> None:
        """Let only these projects (and the owner of the content) read it."""
        body = {"visibility": "projects", "projects": list(projects)}
        path = f"/v1/content/{content.kind}/{content.name}/visibility"
        assert self.site.request("PUT", path, body).is_success

    def other_projects(self, kind: ContentKind, name: str, files: dict[str, bytes]) -> Published:
        """A content that the project ``other`` publishes for itself."""
        key = self.site.add_key("other")
        return published(self.site, kind, name.replace("envloop", "theirs"), files, key=key, version="1")

    def accepted(self, profile: Any, **spec: Any) -> dict[str, Any]:
        """Submit one Trial; its view."""
        answer = self.site.post("/v1/jobs", self.submission(profile, IDS.ulid(), **spec))
        assert answer.status_code == 201, answer.text
        return dict(answer.json()["training"]["trials"][0])

    def refused(self, profile: Any, **spec: Any) -> tuple[int, dict[str, str]]:
        """Submit one Trial that must be refused: the status, and path below the profile -> code."""
        request = IDS.ulid()
        answer = self.site.post("/v1/jobs", self.submission(profile, request, **spec))
        body = answer.json()
        assert not answer.is_success, answer.text
        with self.site.services.database.read() as connection:
            assert jobs.find_by_request(connection, "default", request) is None
        found = {
            each["path"].removeprefix("spec.profile").lstrip("."): each["code"] for each in body["errors"]
        }
        assert body["code"] in found.values()
        return answer.status_code, found

    def message(self, profile: Any, **spec: Any) -> str:
        """The sentence that a refused Trial is answered with."""
        answer = self.site.post("/v1/jobs", self.submission(profile, IDS.ulid(), **spec))
        return str(answer.json()["message"])

    def submission(self, profile: Any, request_id: str = "r", **spec: Any) -> dict[str, Any]:
        return submission(request_id, runner=spec.pop("runner", self.runner), profile=profile, **spec)
