"""Catalogues: read with all faults at once, written out again, compared, made by themselves."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.training import catalog_document
from trainshed.model.errors import Refusal
from trainshed.model.training.catalog import Catalog, Cluster, Engine, NodeRule, Quota
from trainshed.model.training.catalog_document import diff, masked_url, to_document
from trainshed.model.training.catalog_fields import CATALOG_FIELDS
from trainshed.model.training.catalog_reading import read_catalog, read_catalog_document
from trainshed.model.training.codes import SPEC_CODES
from trainshed.model.training.quota import ceiling
from trainshed.model.training.spec import ResourceType
from trainshed.policy.gangs.quota import QuotaTable


def refused(**changes: Any) -> set[tuple[str, str]]:
    with pytest.raises(Refusal) as caught:
        read_catalog(catalog_document(**changes))
    assert all(fault.message and fault.hint for fault in caught.value.faults)
    return {(fault.path, fault.code) for fault in caught.value.faults}


def spec(**more: Any) -> list[dict[str, Any]]:
    rows = catalog_document()["instance_specs"]
    return [
        *rows,
        {"name": "new", "type": "gpu", "gpu_model": "X", "gpus": 1, "cpus": 1, "memory_gib": 1} | more,
    ]


def quota(**more: Any) -> list[dict[str, Any]]:
    return [{"resource_type": "reserved", "pool": "h200-pool", "spec": "h200x8", "units": 4} | more]


def volume(**more: Any) -> list[dict[str, Any]]:
    return [*catalog_document()["volumes"], {"id": "new", "path": "/srv/new"} | more]


CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"region": []}, "region", "UNKNOWN_FIELD"),
    ({"regions": {}}, "regions", "FIELD_INVALID"),
    ({"clusters": [{"id": "k", "region": "x", "engine": "ray"}]}, "clusters[0].region", "CATALOG_REFERENCE"),
    ({"clusters": [{"id": "k", "region": "bj-1", "engine": "x"}]}, "clusters[0].engine", "FIELD_INVALID"),
    ({"clusters": [{"region": "bj-1", "engine": "ray"}]}, "clusters[0].id", "FIELD_REQUIRED"),
    ({"regions": [{"id": "bj-1"}, {"id": "sh-1"}, {"id": "bj-1"}]}, "regions[2]", "CATALOG_DUPLICATE"),
    ({"instance_specs": spec(gpus=0)}, "instance_specs[4].gpus", "FIELD_INVALID"),
    ({"instance_specs": spec(type="cpu")}, "instance_specs[4].gpus", "FIELD_INVALID"),
    ({"instance_specs": spec(cpus=0)}, "instance_specs[4].cpus", "FIELD_INVALID"),
    ({"instance_specs": spec(price_per_hour=2)}, "instance_specs[4].price_per_hour", "FIELD_INVALID"),
    (
        {"instance_specs": spec(price_per_hour="-1", currency="EUR")},
        "instance_specs[4].price_per_hour",
        "FIELD_INVALID",
    ),
    ({"pools": [{"id": "p", "cluster": "no", "specs": []}]}, "pools[0].cluster", "CATALOG_REFERENCE"),
    ({"pools": [{"id": "p", "cluster": "here", "specs": ["no"]}]}, "pools[0].specs", "CATALOG_REFERENCE"),
    (
        {"pools": [{"id": "p", "cluster": "here", "specs": [], "nodes": {"name": []}}]},
        "pools[0].nodes.name",
        "UNKNOWN_FIELD",
    ),
    (
        {"pools": [{"id": "p", "cluster": "here", "specs": [], "resource_types": ["x"]}]},
        "pools[0].resource_types[0]",
        "FIELD_INVALID",
    ),
    ({"quotas": quota(pool="no")}, "quotas[0].pool", "CATALOG_REFERENCE"),
    ({"quotas": quota(spec="c1m1")}, "quotas[0].spec", "CATALOG_REFERENCE"),
    ({"quotas": quota(resource_type="idle")}, "quotas[0].resource_type", "FIELD_INVALID"),
    ({"quotas": quota(units=-1)}, "quotas[0].units", "FIELD_INVALID"),
    ({"quotas": quota(borrowing_limit=1)}, "quotas[0].borrowing_limit", "FIELD_INVALID"),
    (
        {"quotas": quota(pool="calm-pool", resource_type="spot")},
        "quotas[0].resource_type",
        "CATALOG_REFERENCE",
    ),
    ({"quotas": [*quota(), *quota()]}, "quotas[1]", "CATALOG_DUPLICATE"),
    ({"priority_classes": [{"name": "high", "value": 1}]}, "priority_classes", "CATALOG_REFERENCE"),
    ({"priority_ranges": [{"min": 600}]}, "priority_ranges[0]", "CATALOG_REFERENCE"),
    ({"priority_ranges": [{"min": 9, "max": 1}]}, "priority_ranges[0].min", "FIELD_INVALID"),
    ({"volumes": volume(path="srv")}, "volumes[4].path", "FIELD_INVALID"),
    ({"volumes": volume(clusters=["no"])}, "volumes[4].clusters", "CATALOG_REFERENCE"),
    ({"volumes": volume(id="vol-out")}, "volumes[4]", "CATALOG_DUPLICATE"),
    ({"aliases": [{"id": "a", "type": "dataset", "ref": "b"}]}, "aliases[0].ref", "FIELD_INVALID"),
    ({"aliases": [{"id": "a", "type": "volume", "ref": "a/b@1"}]}, "aliases[0].type", "FIELD_INVALID"),
    ({"task_env": [{"name": "A B", "value": "x"}]}, "task_env[0].name", "ENV_NAME_INVALID"),
    ({"task_env": [{"name": "RANK", "value": "x"}]}, "task_env[0].name", "ENV_NAME_RESERVED"),
    ({"task_env": [{"name": "A"}]}, "task_env[0].value", "FIELD_REQUIRED"),
    ({"task_env": [{"name": "A", "value": "x", "hidden": True}]}, "task_env[0].value", "FIELD_INVALID"),
    ({"task_env": [{"name": "A", "secret": "x"}]}, "task_env[0].secret", "FIELD_INVALID"),
    ({"labels": {"rules": [{"key": "-"}]}}, "labels.rules[0].key", "LABEL_INVALID"),
    (
        {"alarm_channels": [{"id": "a", "type": "webhook", "url": "tgram://x"}]},
        "alarm_channels[0].url",
        "FIELD_INVALID",
    ),
    (
        {"alarm_channels": [{"id": "a", "type": "webhook", "url": "https://***"}]},
        "alarm_channels[0].url",
        "FIELD_INVALID",
    ),
    ({"images": [{"id": "host", "address": "a/b"}]}, "images[0].id", "FIELD_INVALID"),
    ({"images": [{"id": "a", "address": "A"}]}, "images[0].address", "FIELD_INVALID"),
    ({"mount_roots": ["mnt"]}, "mount_roots[0]", "FIELD_INVALID"),
    ({"allow_host_image": ["no"]}, "allow_host_image", "CATALOG_REFERENCE"),
]


@pytest.mark.parametrize(
    ("changes", "path", "code"), CASES, ids=[f"{n}-{case[1]}" for n, case in enumerate(CASES)]
)
def test_a_catalogue_is_refused_with_path_and_code(changes, path, code):
    assert (path, code) in refused(**changes)


def test_all_faults_of_a_catalogue_are_answered_at_once():
    assert refused(mount_roots=["x"], quotas=quota(pool="no"), images=[{"id": "a"}]) == {
        ("mount_roots[0]", "FIELD_INVALID"),
        ("quotas[0].pool", "CATALOG_REFERENCE"),
        ("images[0].address", "FIELD_REQUIRED"),
    }


def test_a_catalogue_is_read_as_it_is_written():
    catalog = read_catalog(catalog_document(allow_host_image=True, labels={"validation": True}))
    assert catalog.cluster("ray-1") == Cluster("ray-1", "sh-1", Engine.RAY, "ray://10.0.0.1:10001")
    row = catalog.spec("h200x8")
    assert row is not None
    assert (row.price_per_hour, row.currency) == (Decimal("32.00"), "EUR")
    assert (catalog.allow_host_image, catalog.label_validation) == (("*",), True)
    assert catalog.pool("calm-pool").resource_types == (ResourceType.RESERVED, ResourceType.ONDEMAND)
    assert [row.value for row in catalog.priority_classes] == [100, 500, 900]


def test_an_empty_document_is_a_catalogue_without_anything():
    assert read_catalog(None) == read_catalog({}) == Catalog()
    assert to_document(Catalog()) == {}


def everything() -> dict[str, Any]:
    """A document that uses every field of the table."""
    return catalog_document(
        clusters=[
            {
                "id": "k8s-h200",
                "region": "bj-1",
                "engine": "kubernetes",
                "address": "prod",
                "node_selector": {"team": "x"},
            },
            *catalog_document()["clusters"][1:],
        ],
        pools=[
            *catalog_document()["pools"],
            {
                "id": "named",
                "cluster": "here",
                "specs": ["c1m1"],
                "nodes": {"names": ["n1"], "labels": {"zone": "a"}},
                "precheck": {"gemm_tflops": 600.5, "allreduce_gb_per_second": 300, "timeout_seconds": 60},
            },
        ],
        quotas=quota(cohort="all", borrowing_limit=2, lending_limit=1, project="team-a"),
        priority_classes=[{"name": "normal", "value": 5}, {"name": "urgent", "value": 9}],
        priority_ranges=[{"project": "team-a", "min": 0, "max": 9}],
        aliases=[
            {
                "id": "alpaca@v3",
                "type": "dataset",
                "ref": "team-a/alpaca@v3",
                "clusters": ["here"],
                "projects": ["team-a"],
            }
        ],
        task_env=[
            {"name": "A", "value": "1"},
            {"project": "team-a", "name": "TOKEN", "secret": "env:HF_TOKEN", "hidden": True},
        ],
        labels={"validation": True, "rules": [{"key": "k", "values": ["a", "b"], "required": True}]},
        mount_roots=["/data"],
        allow_host_image=["here"],
        organization="acme",
        tenant="t-1",
    )


def test_every_field_of_the_table_is_read_and_written_out_again():
    catalog = read_catalog(everything())
    assert read_catalog(to_document(catalog)) == catalog
    known = {each.path for each in CATALOG_FIELDS}
    assert paths(everything()) >= known
    assert paths(to_document(catalog)) <= known | {f"{each}.*" for each in known}


def paths(value: Any, path: str = "") -> set[str]:
    found = {path} if path else set()
    if isinstance(value, dict):
        for key, inner in value.items():
            found |= paths(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            found |= {each for each in paths(inner, f"{path}[]") if each != f"{path}[]"}
    return {each for each in found if not each.endswith((".team", ".zone"))}


def test_what_is_shown_has_no_url_and_cannot_be_applied_by_mistake():
    catalog = read_catalog(catalog_document())
    shown = to_document(catalog, masked=True)
    assert shown["alarm_channels"][0]["url"] == "https://***"
    assert "T0K3N" not in f"{shown} {catalog!r}"
    with pytest.raises(Refusal):
        read_catalog(shown)


@pytest.mark.parametrize("url", ["tgram://bottoken/chat", "mailto:me:pw@host", "https://h/T", "odd"])
def test_a_masked_url_keeps_its_scheme_at_most(url):
    assert masked_url(url) in {"tgram://***", "mailto:***", "https://***", "***"}


def test_applying_a_catalogue_twice_changes_nothing():
    catalog = read_catalog(everything())
    assert diff(catalog, read_catalog(to_document(catalog))) == []


def test_a_difference_is_told_in_words_without_secrets():
    old = read_catalog(catalog_document())
    document = catalog_document(tenant="t-2")
    document["quotas"][0]["units"] = 12
    document["regions"].append({"id": "gz-1"})
    document["aliases"] = []
    document["alarm_channels"][0]["url"] = "https://hooks.example/N3W"
    document["images"].append({"id": "new", "address": "a/b:1"})
    told = [str(each) for each in diff(old, read_catalog(document))]
    assert told == [
        "added region gz-1",
        "changed quota team-a reserved h200-pool h200x8: units 8 -> 12",
        "removed alias dataset alpaca@v3",
        "changed alarm channel ops-webhook: url changed",
        "added image new: address a/b:1",
        "changed tenant: default -> t-2",
    ]


def test_another_order_is_a_difference():
    document = catalog_document()
    document["regions"].reverse()
    changes = diff(read_catalog(catalog_document()), read_catalog(document))
    assert [str(each) for each in changes] == ["reordered regions: sh-1, bj-1"]


@given(
    st.dictionaries(
        st.sampled_from([each.path for each in CATALOG_FIELDS if "." not in each.path]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(sorted({each.name for each in CATALOG_FIELDS})), inner, max_size=4
                )
            ),
            max_leaves=12,
        ),
        max_size=5,
    )
)
def test_any_document_is_a_catalogue_or_has_faults(document):
    catalog, faults = read_catalog_document(document)
    assert all(fault.code in SPEC_CODES and fault.message for fault in faults.faults)
    if not faults:
        assert read_catalog(to_document(catalog)) == catalog


ROWS = {
    "own": Quota("a", ResourceType.RESERVED, "p", "s", 4, "c", None, None),
    "other": Quota("b", ResourceType.RESERVED, "p", "*", 10, "c", None, 6),
    "elsewhere": Quota("d", ResourceType.RESERVED, "q", "s", 50, "c"),
    "cap": Quota("*", ResourceType.ONDEMAND, "p", "*", 3),
}


def limit(kind: ResourceType, project: str = "a", spec: str = "s", **more: bool) -> int | None:
    return ceiling(Catalog(quotas=tuple(ROWS.values())), project, kind, "p", spec, **more)


def test_C23_the_most_that_a_project_can_ever_have():
    assert limit(ResourceType.RESERVED) == 4 + 6
    assert limit(ResourceType.RESERVED, guarantee=True) == 4
    assert limit(ResourceType.RESERVED, idle_supplement=True) is None
    assert limit(ResourceType.RESERVED, project="stranger") == 0
    assert limit(ResourceType.ONDEMAND) == 3
    assert limit(ResourceType.SPOT) == 0
    assert limit(ResourceType.IDLE) is None


def test_C23_borrowing_stops_at_its_limit_and_rows_of_all_projects_borrow_but_do_not_lend():
    few = Quota("a", ResourceType.RESERVED, "p", "s", 4, "c", 2)
    everyone = Quota("*", ResourceType.RESERVED, "p", "s", 1, "c")

    def most(project: str, *rows: Quota) -> int | None:
        return ceiling(Catalog(quotas=rows), project, ResourceType.RESERVED, "p", "s")

    assert most("a", few, ROWS["other"]) == 6
    assert most("x", everyone) == 1
    assert most("x", everyone, few) == 5
    assert most("a", few, everyone) == 4


KINDS = st.sampled_from([ResourceType.RESERVED, ResourceType.ONDEMAND])
QUOTAS = st.lists(
    st.builds(
        Quota,
        st.sampled_from(["a", "b", "c", "*"]),
        KINDS,
        st.sampled_from(["p", "q"]),
        st.sampled_from(["s", "t", "*"]),
        st.integers(0, 5),
        st.sampled_from([None, "one", "two"]),
        st.none() | st.integers(0, 5),
        st.none() | st.integers(0, 5),
    ),
    max_size=8,
    unique_by=lambda row: (row.project, row.resource_type, row.pool, row.spec),
)


@given(QUOTAS, st.sampled_from("abcx"), KINDS, st.sampled_from("pq"), st.sampled_from("st"), st.booleans())
def test_C23_the_door_and_the_scheduler_mean_the_same_by_the_rows(rows, project, kind, pool, spec, guarantee):
    catalog = Catalog(quotas=tuple(rows))
    most = QuotaTable(rows).most((project, kind, pool, spec), guarantee=guarantee)
    assert ceiling(catalog, project, kind, pool, spec, guarantee=guarantee) == most


def test_the_row_that_says_most_counts():
    def row(project: str, spec: str, units: int) -> Quota:
        return Quota(project, ResourceType.RESERVED, "p", spec, units)

    catalog = Catalog(quotas=(row("*", "*", 1), row("*", "s", 2), row("a", "*", 3), row("a", "s", 4)))

    def units(project: str, spec: str) -> int:
        found = catalog.quota(project, ResourceType.RESERVED, "p", spec)
        return found.units if found else 0

    assert [units("a", "s"), units("a", "t"), units("b", "s"), units("b", "t")] == [4, 3, 2, 1]


def test_a_pool_has_nodes_by_name_and_labels():
    assert NodeRule().covers("any")
    rule = NodeRule(("n1", "n2"), {"zone": "a"})
    assert rule.covers("n1", {"zone": "a", "x": "y"})
    assert not rule.covers("n1", {"zone": "b"})
    assert not rule.covers("n3", {"zone": "a"})
