"""Settings: defaults, a file over them, every fault at once, and the documentation of all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainshed.policy.effective import ServerPolicy
from trainshed.server.config import Config, ConfigFaults, load, parse, settings
from trainshed.server.limits import DEFAULT_RATES
from trainshed.server.services import BodyLimits

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def test_without_a_file_the_defaults_of_the_code_hold():
    assert load(None) == Config()
    assert Config().policy == ServerPolicy()
    assert Config().bodies == BodyLimits()
    assert Config().limits == DEFAULT_RATES


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path: Path):
    file = tmp_path / "trainshed.toml"
    file.write_text('[rates]\nreads = 5\n[trials]\ngpu_type = "H100"\nmax_active_trials = 3\n')
    config = load(file)
    assert config.rates.reads == 5.0
    assert config.rates.writes == Config().rates.writes
    assert (config.policy.gpu_type, config.policy.max_active_trials) == ("H100", 3)


def test_all_faults_are_told_at_once_with_the_nearest_name():
    with pytest.raises(ConfigFaults) as refused:
        parse(
            {
                "rate": {},
                "rates": {"read": 1, "writes": "many", "submissions": 0},
                "logs": [],
                "trials": {"cpus": True, "memory_mb": 1.5, "wait_for_nodes": 1},
            }
        )
    faults = "\n".join(refused.value.faults)
    for said in (
        "rate: unknown setting; did you mean `rates`?",
        "rates.read: unknown setting; did you mean `rates.reads`?",
        "rates.writes: must be a number, not 'many'",
        "rates.submissions: must be 0.1 or more, not 0",
        "logs: must be a table",
        "trials.cpus: must be a whole number, not True",
        "trials.memory_mb: must be a whole number, not 1.5",
        "trials.wait_for_nodes: must be true or false, not 1",
    ):
        assert said in faults
    assert len(refused.value.faults) == 8


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigFaults, match="max_timeout_seconds"):
        parse({"trials": {"timeout_seconds": 10, "max_timeout_seconds": 5}})


def test_lists_hold_texts_that_are_checked_one_by_one():
    with pytest.raises(ConfigFaults) as refused:
        parse(
            {
                "images": {
                    "default_registry": "Not A Host",
                    "mirrors": ["hub.internal/X", "a.example=b.example:99999"],
                    "insecure_registries": "lab:5000",
                    "allowed_registries": ["ghcr.example/team", 5],
                    "pull_retries": -2,
                }
            }
        )
    mirror = "REGISTRY=HOST[:PORT][/PATH]"
    assert sorted(refused.value.faults) == [
        "images.allowed_registries: must be a list of texts, not ['ghcr.example/team', 5]",
        "images.default_registry: `Not A Host` is no host: write host or host:port in lower case",
        "images.insecure_registries: must be a list of texts, not 'lab:5000'",
        f"images.mirrors: write {mirror}; `X` is no path: write lower-case parts between `/`",
        "images.pull_retries: must be -1 or more, not -2",
    ]


def test_the_registries_are_what_the_settings_say():
    rules = parse(
        {
            "images": {
                "default_registry": "hub.internal:5000",
                "mirrors": ["cache.internal/hub", "docker.io=cache.internal:8000"],
                "insecure_registries": ["hub.internal:5000"],
                "allowed_registries": ["hub.internal:5000/team"],
            }
        }
    ).registries
    assert [(mirror.registry, mirror.place) for mirror in rules.mirrors] == [
        ("hub.internal:5000", "cache.internal/hub"),
        ("docker.io", "cache.internal:8000"),
    ]
    assert (rules.plain_http("hub.internal:5000"), rules.plain_http("docker.io")) == (True, False)
    assert rules.allows(rules.parse("team/tool"))
    assert not rules.allows(rules.parse("teams/tool"))


@pytest.mark.parametrize("content", [b"a = ", b"\xff"])
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, content: bytes):
    file = tmp_path / "x.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigFaults, match=re.escape(str(file))):
        load(file)
    with pytest.raises(ConfigFaults, match="No such file"):
        load(tmp_path / "none.toml")


def test_the_documentation_lists_every_setting_with_its_default():
    rows = re.findall(
        r"^\| `([a-z_.]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", OPERATIONS.read_text(), re.MULTILINE
    )
    documented = {key: (kind.strip(), default.strip(), about.strip()) for key, kind, default, about in rows}
    assert documented == {each.key: (each.kind, shown(each.default), each.about) for each in settings()}


def shown(default: object) -> str:
    if default is None:
        return "unset"
    if default == ():
        return "none"
    return str(default).lower() if isinstance(default, bool) else f"{default}"


def test_where_blobs_lie_is_judged_with_everything_else():
    for content, expected in (
        ({"url": "ftp://host/x"}, "content.url: must begin with one of file:// (a folder), s3://"),
        ({"url": "s3://"}, "content.url: must name a bucket"),
        ({"url": "s3://bucket/a//b"}, "content.url: must have a prefix of letters"),
        ({"url": "s3://bucket/../x"}, "content.url: must have a prefix of letters"),
        ({"url": "file://host/x"}, "content.url: must name a folder of this machine"),
        ({"url": "s3://bucket", "endpoint": "s3.local"}, "content.endpoint: must be a URL"),
        ({"url": "s3://bucket", "endpoint": "http://s3.local"}, "content.endpoint: is not encrypted"),
        ({"endpoint": "https://s3.local"}, "content.endpoint: counts for remote stores only"),
        ({"region": "eu-1"}, "content.region: counts for remote stores only"),
        ({"url": "gs://bucket", "region": "eu-1"}, "content.region: counts for s3:// only"),
        ({"url": "s3://[", "retry_seconds": -1}, "content.url: is no URL"),
    ):
        with pytest.raises(ConfigFaults) as refused:
            parse({"content": content, "rates": {"reads": 0}})
        told = "\n".join(refused.value.faults)
        assert expected in told
        assert "rates.reads" in told
    for url in ("s3://bucket/a/prefix/", "gs://my_bucket", "az://container/x", "file:///srv/b%20c", None):
        assert parse({"content": {} if url is None else {"url": url}}).content.url == url


@pytest.mark.parametrize(
    "url", ["s3://AKIA:canary@bucket/x", "https://canary@host", "az://c?sig=canary", "s3://b#canary"]
)
def test_P9_credentials_in_an_address_are_refused_and_not_repeated(url):
    for content in ({"url": url}, {"url": "s3://bucket", "endpoint": url}):
        with pytest.raises(ConfigFaults, match="must hold no user, password or query") as refused:
            parse({"content": content})
        assert "canary" not in str(refused.value)
