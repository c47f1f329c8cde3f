"""Trials that must be prepared: a profile with everything that one can name, and an image."""

from __future__ import annotations

from typing import Any

from support.deployment import Deployment
from trainshed.model.content import ContentKind
from trainshed.store import plugins, tables

IMAGE = "registry.example/team/train@sha256:" + "a" * 64
ABI = "envloop.train-recipe/1"
READS_PROFILES = {"abis": [ABI], "tables": '[recipe]\nentrypoint = "train:main"\n'}
RECIPE = f'abi = "{ABI}"\nentrypoint = "train:main"\n'


def profile_of(d: Deployment) -> dict[str, Any]:
    """A profile with everything that one can name, published."""
    base = d.publish_content(
        ContentKind.RECIPES, "team/base", {"recipe.toml": RECIPE.encode(), "train.py": b"0"}
    )
    text = (
        f'{RECIPE}[dependencies.base]\nuri = "{base["uri"]}"\nmanifest_sha256 = "{base["manifest_sha256"]}"\n'
    )
    recipe = d.publish_content(
        ContentKind.RECIPES, "team/recipe", {"recipe.toml": text.encode(), "train.py": b"main", "x.sh": b"#!"}
    )
    data = d.publish_content(
        ContentKind.DATASETS, "team/words", {"train/a.txt": b"one", "train/b.txt": b"two"}
    )
    plugin = d.publish_content(ContentKind.PLUGINS, "team/extra", {"extra.py": b"more"})
    d.database.write(
        lambda c: plugins.approve_plugin(
            c, "team/extra", plugin["manifest_sha256"], by="human:admin", at=d.now()
        )
    )
    return {
        "schema": "envloop.job-profile/v2",
        "recipe": recipe,
        "parameters": {},
        "inputs": {"words": data},
        "plugins": [plugin],
    }


def with_image(d: Deployment, job: str, image: str = IMAGE) -> None:
    """Give the waiting Trials of a Job an image, as acceptance does where a registry answered."""
    values = {"image_requested": "train", "image_resolved": image, "image_digest": image.partition("@")[2]}
    d.database.write(
        lambda c: c.execute(tables.trials.update().where(tables.trials.c.job_id == job).values(**values))
    )
