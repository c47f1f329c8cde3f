"""T2 of the contract "Create Training": the formulas of C21 and what counts against a quota (C23)."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.training import pytorch_document, ray_document
from trainshed.model.training.catalog import InstanceSpec
from trainshed.model.training.reading import read_task
from trainshed.model.training.spec import InstanceType, Role
from trainshed.model.training.totals import totals

SPECS = {
    "h200x8": InstanceSpec("h200x8", InstanceType.GPU, 128, 2048, 8, "H200", Decimal("32.00"), "EUR"),
    "h200x1": InstanceSpec("h200x1", InstanceType.GPU, 16, 256, 1, "H200", Decimal("4.10"), "EUR"),
    "g1": InstanceSpec("g1", InstanceType.GPU, 1, 1, 1, "G"),
    "c16m64": InstanceSpec("c16m64", InstanceType.CPU, 16, 64),
}


def pytorch(spec: str, workers: int, count: int):
    document = pytorch_document(
        workers=workers, instance={"type": "gpu", "specs": [spec], "count_per_node": count}
    )
    return totals(read_task(document).spec, SPECS)


@pytest.mark.parametrize(
    ("spec", "workers", "count", "wanted"),
    [("h200x8", 3, 1, (4, 4, 32, 512, 8192)), ("g1", 0, 4, (1, 4, 4, 4, 4))],
    ids=["h200x8", "g1"],
)
def test_C21_the_vectors_of_the_contract(spec, workers, count, wanted):
    found = pytorch(spec, workers, count).as_dict()
    keys = ("replicas", "units", "gpus", "cpus", "memory_gib")
    assert tuple(found[key] for key in keys) == wanted


@given(st.integers(0, 9_999), st.integers(1, 65_536))
def test_C21_the_formula_is_exact_for_any_size(workers, count):
    found = pytorch("h200x8", workers, count)
    units = (1 + workers) * count
    assert (found.replicas, found.units, found.demand) == (1 + workers, units, {"h200x8": units})
    assert (found.amounts.gpus, found.amounts.cpus) == (8 * units, 128 * units)
    assert found.amounts.memory_mb == 2048 * 1024 * units
    assert found.price_per_hour == {"EUR": Decimal("32.00") * units}


def test_C19_head_and_workers_are_counted_apart_and_the_submitter_is_shown_free_of_charge():
    found = totals(read_task(ray_document()).spec, SPECS)
    assert (found.replicas, found.units) == (5, 5)
    roles = {each.group.role: each for each in found.roles}
    assert roles[Role.WORKER].amounts.gpus == 4
    assert roles[Role.HEAD].amounts.cpus == 16
    assert not roles[Role.SUBMITTER].group.charged
    shown = {each["role"]: each for each in found.as_dict()["roles"]}
    assert (shown["submitter"]["cpus"], shown["submitter"]["memory_gib"]) == (1, 0.25)
    assert found.amounts.cpus == 16 + 4 * 16


def test_C23_different_specs_of_head_and_workers_are_different_demands():
    assert totals(read_task(ray_document()).spec, SPECS).demand == {"c16m64": 1, "h200x1": 4}


@pytest.mark.parametrize("head", [None, {"instance": {"specs": ["h200x1"], "count_per_node": 2}}])
def test_C23_the_same_spec_of_head_and_workers_is_one_demand(head):
    found = totals(read_task(ray_document(head=head)).spec, SPECS)
    assert found.demand == {"h200x1": 6 if head else 5}


def test_C18_a_task_without_workers_has_a_master_only():
    assert [each.group.role for each in pytorch("g1", 0, 1).roles] == [Role.MASTER]


def test_C22_each_spec_of_the_list_is_a_choice_and_the_head_has_its_own():
    document = ray_document(
        instance={"specs": ["h200x8", "h200x1"]}, head={"instance": {"specs": ["c16m64", "g1"]}}
    )
    task = read_task(document).spec
    assert [(each.spec, each.head) for each in task.choices()] == [
        ("h200x8", "c16m64"),
        ("h200x8", "g1"),
        ("h200x1", "c16m64"),
        ("h200x1", "g1"),
    ]
    assert totals(task, SPECS, task.choices()[3]).demand == {"g1": 1, "h200x1": 4}


def test_a_task_has_a_price_only_if_each_of_its_specs_has_one():
    assert totals(read_task(ray_document()).spec, SPECS).price_per_hour is None
    assert pytorch("h200x1", 1, 1).as_dict()["price_per_hour"] == [{"amount": "8.20", "currency": "EUR"}]
