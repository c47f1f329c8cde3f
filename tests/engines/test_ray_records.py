"""Where records of Ray clusters lie, whatever the catalogue calls these."""

from __future__ import annotations

from pathlib import Path

from trainshed.engines.ray.records import records_of


def test_records_go_with_the_address_of_a_cluster(tmp_path: Path):
    root = tmp_path / "engines"
    first = records_of(root, "east", "10.0.0.1:6379")
    assert first == root / "east"
    assert records_of(root, "east", "10.0.0.1:6379") == first
    assert records_of(root, "renamed", "10.0.0.1:6379") == first
    other = records_of(root, "east", "10.0.0.2:6379")
    assert other != first
    assert records_of(root, "east", "10.0.0.2:6379") == other
    assert records_of(root, "west", "10.0.0.3:6379") == root / "west"
    assert records_of(root, "east", "10.0.0.1:6379") == first


def test_records_that_were_made_before_addresses_were_kept_are_taken_over_once(tmp_path: Path):
    (tmp_path / "east" / "attempts").mkdir(parents=True)
    (tmp_path / "local").mkdir()
    assert records_of(tmp_path, "east", "10.0.0.1:6379") == tmp_path / "east"
    assert records_of(tmp_path, "east", "10.0.0.2:6379") != tmp_path / "east"


def test_a_folder_whose_address_cannot_be_read_is_nobodys(tmp_path: Path):
    torn = records_of(tmp_path, "east", "10.0.0.1:6379")
    (torn / "address.json").write_text("{")
    assert records_of(tmp_path, "east", "10.0.0.1:6379") != torn
