"""``docs/sdk.md`` against the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import trainshed
from support.fake_server import FakeServer
from trainshed import Client, sdk
from trainshed.sdk import errors

TEXT = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text()


def public(value):
    return {name for name, _ in inspect.getmembers(value, callable) if not name.startswith("_")}


def test_every_resource_and_method_is_documented_and_exists():
    with FakeServer({}) as server, Client(server.url) as client:
        for name in (
            "training_jobs",
            "jobs",
            "tasks",
            "pools",
            "quotas",
            "catalog",
            "trials",
            "checkpoints",
            "runners",
            "datasets",
            "models",
            "recipes",
            "plugins",
            "content",
            "projects",
            "members",
            "keys",
        ):
            (row,) = re.findall(rf"^\| `client\.{name}` \| (.*) \|$", TEXT, re.MULTILINE)
            listed = {re.match(r"\w+", cell)[0] for cell in re.findall(r"`([^`]+)`", row)}
            assert listed == public(getattr(client, name)), name


def test_the_error_tree_in_the_documentation_is_that_of_the_module():
    tree = inspect.getdoc(errors).split("::\n\n", 1)[1]
    shown = TEXT.split("<!-- begin error tree -->\n```text\n")[1].split("```")[0]
    assert inspect.cleandoc(tree) == inspect.cleandoc(shown)


def test_the_tree_that_is_drawn_is_the_tree_there_is():
    drawn = dict(re.findall(r"── (\w+)\s+(yes|no|the)\b", inspect.getdoc(errors)))
    kinds = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind)
        and issubclass(kind, errors.TrainshedError)
        and kind is not errors.TrainshedError
    }
    assert drawn.keys() == kinds.keys()
    for name, again in drawn.items():
        if again != "the":
            assert kinds[name].again == (again == "yes"), name
    assert {*kinds, "TrainshedError"} <= set(sdk.__all__)


def test_every_public_name_can_be_imported_and_is_listed():
    for module in (sdk, trainshed):
        assert set(module.__all__) <= set(dir(module))
        for name in sdk.__all__:
            assert getattr(module, name).__name__ == name
    assert set(trainshed.__all__) == {*sdk.__all__, "__version__"}
