"""The page about training tasks: its examples are accepted, and it speaks of every field."""

from __future__ import annotations

import re
from pathlib import Path

from trainshed.model.resources import Amounts, Node
from trainshed.model.training.automatic import automatic
from trainshed.model.training.catalog import ANY, Volume
from trainshed.model.training.catalog_reading import read_catalog
from trainshed.model.training.fields import SPEC_FIELDS
from trainshed.model.training.resolve import Who, judge
from trainshed.model.training.variables import RESERVED
from trainshed.model.training.yaml_documents import read_yaml

PAGE = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
TASK, MOUNTS, CATALOG = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def test_the_task_of_the_page_is_accepted_by_a_machine_without_gpus():
    catalog = automatic([Node("here", (), Amounts(0, 4, 16 * 1024, 1000, 1000))])
    effective = judge(read_yaml(TASK).value, catalog, Who("ada", "default"))
    assert (effective.spec.replicas, effective.totals[0].amounts.cpus) == (2, 4)


def test_C11_the_mounts_of_the_page_are_accepted_and_both_contents_are_named():
    volumes = [Volume("out", (ANY,), "/srv/out")]
    catalog = automatic([Node("here", (), Amounts(0, 4, 16 * 1024, 1000, 1000))], volumes)
    effective = judge(read_yaml(TASK + MOUNTS).value, catalog, Who("ada", "default"))
    digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    assert [each.path or each.content for each in effective.mounts] == [
        "/srv/out",
        "envloop://datasets/team/words@1.0",
        f"envloop://models/team/base@{digest}",
    ]


def test_the_catalogue_of_the_page_is_accepted():
    catalog = read_catalog(read_yaml(CATALOG).value)
    assert [row.id for row in catalog.pools] == ["h200-pool"]


def test_every_field_and_every_variable_of_ours_is_on_the_page():
    missing = [
        each.path
        for each in SPEC_FIELDS
        if "." not in each.path and not re.search(rf"`{each.path}`|^  {each.path}:", PAGE, re.MULTILINE)
    ]
    # Said in other words: where it runs, and what is seldom needed.
    assert set(missing) <= {
        "task_type",
        "region",
        "cluster",
        "project",
        "pool",
        "idle_supplement",
        "max_run_seconds",
        "spec_patience_seconds",
    }
    names = {name for names in RESERVED.values() for name in names if not name.startswith("PET_")}
    assert {name for name in names if f"`{name}`" not in PAGE} == set()
