"""The catalogue that an embedded server makes of its machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.resources import Amounts, Gpu, Node
from trainshed.model.training.automatic import automatic, short_names, units_on
from trainshed.model.training.catalog import Catalog
from trainshed.model.training.catalog_document import to_document
from trainshed.model.training.catalog_reading import read_catalog
from trainshed.model.training.spec import ResourceType


def node(cpus: int, memory_gib: int, *models: str, name: str = "here") -> Node:
    gpus = tuple(Gpu(place, model, f"GPU-{place}", 80_000) for place, model in enumerate(models))
    return Node(name, gpus, Amounts(len(gpus), cpus, memory_gib * 1024, 1000, 1000))


def names(catalog: Catalog) -> list[str]:
    return [spec.name for spec in catalog.instance_specs]


def test_a_machine_without_gpus_offers_cpu_specs_up_to_the_whole_of_it():
    catalog = automatic([node(6, 20)])
    assert names(catalog) == ["c1m1", "c1m2", "c1m4", "c2m4", "c2m8", "c4m8", "c4m16", "c6m20"]
    assert [row.id for row in catalog.clusters] == ["local"]
    assert catalog.pools[0].resource_types == tuple(ResourceType)
    assert (catalog.organization, catalog.tenant, catalog.allow_host_image) == ("default", "default", ("*",))


def test_gpu_specs_are_named_after_the_model_and_get_their_share_of_the_machine():
    catalog = automatic([node(64, 512, *["NVIDIA H100 80GB HBM3"] * 4)])
    assert [name for name in names(catalog) if name.startswith("h")] == ["h100x1", "h100x2", "h100x4"]
    row = catalog.spec("h100x2")
    assert row is not None
    assert (row.cpus, row.memory_gib, row.gpu_model) == (32, 256, "NVIDIA H100 80GB HBM3")


def test_quota_is_the_whole_machine_for_every_project_and_type():
    catalog = automatic([node(64, 512, *["H100"] * 4)])
    for kind in (ResourceType.RESERVED, ResourceType.ONDEMAND, ResourceType.SPOT):
        assert catalog.quota("anybody", kind, "default", "h100x1").units == 4
        assert catalog.quota("anybody", kind, "default", "c64m512").units == 1
    assert catalog.quota("anybody", ResourceType.IDLE, "default", "h100x1") is None


@pytest.mark.parametrize(
    ("model", "short"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Odd", "odd"),
        ("NVIDIA", "gpu"),
    ],
)
def test_a_model_has_the_short_name_that_people_use(model, short):
    assert short_names([model]) == {model: short}


def test_models_that_are_called_alike_keep_their_whole_names():
    assert short_names(["NVIDIA RTX 3080", "NVIDIA RTX 3080 Ti", "H100"]) == {
        "H100": "h100",
        "NVIDIA RTX 3080": "rtx-3080",
        "NVIDIA RTX 3080 Ti": "rtx-3080-ti",
    }


MODELS = st.lists(st.sampled_from(["H100", "NVIDIA H200", "A100 40GB", "A100 80GB", "Tesla T4"]), max_size=9)


@given(st.lists(st.tuples(st.integers(1, 256), st.integers(0, 2048), MODELS), min_size=1, max_size=3))
def test_any_machine_makes_a_catalogue_whose_specs_all_fit_it(machines):
    nodes = [node(cpus, memory, *models, name=f"n{at}") for at, (cpus, memory, models) in enumerate(machines)]
    catalog = automatic(nodes)
    assert len(set(names(catalog))) == len(names(catalog))
    assert all(any(units_on(spec, each) for each in nodes) for spec in catalog.instance_specs)
    assert read_catalog(to_document(catalog)) == catalog
