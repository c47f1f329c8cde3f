"""Datasets through ``el`` 1.7.0 and its SDK, unchanged (contract E b9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainshed import Client

TOML = """
[dataset]
type = "environment"
authors = ["Ada", "Bob"]
[configs.default.splits]
train = ["tasks/a*/**"]
test = ["tasks/b*/**"]
"""


@pytest.fixture(scope="module")
def published(module_server, tmp_path_factory) -> dict[str, str]:
    """An environment with four tasks and a Dataset of two versions; label of a version -> its digest."""
    root: Path = tmp_path_factory.mktemp("datasets")
    (root / "envs").mkdir()
    (root / "envs/dataset.toml").write_text(TOML)
    for task in ("a1", "a2", "b1", "b2"):
        (root / f"envs/tasks/{task}").mkdir(parents=True)
        (root / f"envs/tasks/{task}/task.toml").write_text("")
    (root / "words").mkdir()
    (root / "words/train.csv").write_text("1")
    found = {}
    with Client(module_server.url, module_server.key) as ours:
        envs = ours.datasets.publish(root / "envs", name="b9/envs", version="1.0", visibility="public")
        found["envs"] = envs.version.manifest_sha256
        for version in ("1.0", "1.1"):
            (root / "words/test.csv").write_text(version)
            made = ours.datasets.publish(root / "words", name="b9/words", version=version).version
            found[version] = made.manifest_sha256
    return found


def test_b9_datasets_are_listed_as_a_table_and_filtered(client, published):
    lines = client.el("dataset", "list", "--q", "b9/").lines
    assert lines[0].split()[:2] == ["NAME", "TYPE"]
    (envs,) = [line for line in lines if line.startswith("b9/envs")]
    assert all(word in envs for word in ("Environment", "Public", "train, test", "Ada, Bob"))
    (words,) = [line for line in lines if line.startswith("b9/words")]
    assert "Private" in words
    assert any(line.startswith("Observed") for line in lines)
    items = client.el("dataset", "list", "--type", "environment", "--json").json["items"]
    assert [item["name"] for item in items] == ["b9/envs"]
    assert client.el("dataset", "list", "--type", "trajectory", "--json").json["items"] == []
    first = client.el("dataset", "list", "--q", "b9/", "--limit", "1", "--json").json
    rest = client.el(
        "dataset", "list", "--q", "b9/", "--limit", "1", "--cursor", first["next_cursor"], "--json"
    )
    assert {first["items"][0]["name"], rest.json["items"][0]["name"]} == {"b9/envs", "b9/words"}


def test_b9_a_dataset_its_revisions_and_tasks_are_read(client, published):
    detail = client.el("dataset", "get", "b9/words").json
    assert (detail["name"], detail["version_count"], detail["version"]) == ("b9/words", 2, "1.1")
    revisions = client.el("dataset", "revision", "list", "b9/words", "--json").json["items"]
    assert [(row["version"], row["manifest_sha256"]) for row in revisions] == [
        ("1.1", published["1.1"]),
        ("1.0", published["1.0"]),
    ]
    assert client.el("dataset", "revision", "list", "b9/words").lines[-1].split() == ["b9/words", "1.0"]
    for revision in ("1.0", published["1.0"]):
        one = client.el("dataset", "revision", "get", "b9/words", revision).json
        assert (one["version"], one["splits"]) == ("1.0", ["train", "test"])
    tasks = client.el("dataset", "task", "list", "b9/envs", "1.0", "--json").json["items"]
    assert [task["task_id"] for task in tasks] == [f"tasks/{name}" for name in ("a1", "a2", "b1", "b2")]
    assert "tasks/a1" in client.el("dataset", "task", "list", "b9/envs", "1.0").out
    assert "DATASET_NOT_FOUND" in client.el("dataset", "get", "b9/none", expect=1).err
    unknown = client.el("dataset", "revision", "get", "b9/words", "9", expect=1)
    assert "DATASET_REVISION_NOT_FOUND" in unknown.err


def test_b9_the_sdk_reads_the_same_and_pins_a_version_by_its_label(client, published):
    kind, newest, pinned = client.sdk(
        "answer = [client.datasets.get(name)['type'], client.datasets.revisions(name, limit=1)['items'],"
        " client._transport.resolve_dataset(name, '1.0')]",
        name="b9/words",
    )
    assert kind == "data"
    assert [row["version"] for row in newest] == ["1.1"]
    digest = published["1.0"]
    assert pinned == {"kind": "dataset", "name": "b9/words", "version": "1.0", "manifest_sha256": digest}
