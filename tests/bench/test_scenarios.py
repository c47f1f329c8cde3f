"""Every scenario of the bench runs, very small, on a real server. The figures are not judged here."""

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("bench.__main__")


@pytest.fixture
def tiny(bench):
    return replace(
        bench.QUICK,
        submit_seconds=0.1,
        starts=2,
        jobs=1,
        stored_jobs=50,
        submissions_beside_reads=60,
        reads=8,
        log_mib=1,
        artifact_mib=1,
        content_mib=1,
        content_files=4,
        sparse_mib=1,
        unchanged_files=20,
        dataset_mib=1,
        command_runs=1,
        nodes=10,
        pending=100,
        peer_tasks=2,
        slow_peer_tasks=1,
    )


@pytest.mark.parametrize(
    "name",
    [
        "submissions",
        "starts",
        "throughput",
        "large_database",
        "logs",
        "artifacts",
        "content",
        "republish",
        "repack",
        "mount",
        "command_line",
        "memory",
        "placement",
        "placement_gangs",
        "kueue",
    ],
)
def test_a_scenario_measures_something(bench, tiny, name):
    figures, failed = bench.run({name: bench.SCENARIOS[name]}, tiny)
    assert not failed
    assert figures
    assert all(figure.value > 0 for figure in figures)
    assert len(bench.table(figures)) >= len(figures) + 2


def test_a_scenario_that_fails_is_told_and_the_others_go_on(bench, tiny):
    def fails(_):
        raise OSError("no such disk")

    figures, failed = bench.run({"broken": fails, "placement": bench.SCENARIOS["placement"]}, tiny)
    assert failed == {"broken": "OSError: no such disk"}
    assert figures


def test_a_verdict_says_by_how_much_a_budget_was_missed(bench):
    figures = importlib.import_module("bench.figures")

    def verdict(value, unit, budget=None):
        return figures.Figure("a", value, unit, budget).verdict

    assert verdict(9.0, "ms", figures.Budget(10)) == "met"
    assert verdict(15.0, "ms", figures.Budget(10)) == "missed by 5 ms (50%)"
    assert verdict(75.0, "/s", figures.Budget(100, at_least=True)) == "missed by 25 /s (25%)"
    assert verdict(1.0, "ms") == ""


def test_the_test_covers_every_scenario(bench):
    assert len(bench.SCENARIOS) == 15
