"""Specs and queries that somebody wrote to do harm: refused, and nothing that is there suffers (P1)."""

from __future__ import annotations

import pytest

from support.scripts import document, send_script, send_tree

FOLDERS = iter(f"/srv/hostile{number}" for number in range(10_000))
LONE = "\ud800"
"""Half of a character: JSON can say it, UTF-8 cannot."""


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("labels", {LONE: "x"}),
        ("provider_options", {LONE: {}}),
        ("provider_options", {"kaggle": {LONE: 1}}),
        ("provider_options", {"kaggle": {"title": LONE}}),
        ("data", [{"mount": "a", "uri": f"hf://datasets/owner/repo/{LONE}"}]),
        ("hours", 10**400),
        ("vram_gb", -(10**400)),
        ("max_attempts", 10**4000),
    ],
)
def test_what_cannot_be_told_again_is_refused_and_the_list_stays_readable(module_site, key, value):
    answer = send_script(module_site, project_dir=next(FOLDERS), **{key: value})
    assert answer.status_code == 422, answer.text
    assert key in answer.json()["errors"][0]["path"]
    assert module_site.get("/v1/scripts").status_code == 200


@pytest.mark.parametrize("number", ["²" * 10, "1" * 5000, "-1", "1e3"])
def test_numbers_that_are_none_are_refused(module_site, number):
    job = send_script(module_site, project_dir=next(FOLDERS)).json()["job"]
    for query in ({"offset": number}, {"limit": number}):
        answer = module_site.get(f"/v1/scripts/{job['id']}/logs", params=query)
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("rules", "path"),
    [
        ({"agent": {"unknown_hours": []}}, "agent.unknown_hours"),
        ({"agent": {"auto_max_hours": 10**400}}, "agent.auto_max_hours"),
        ({"agent": {"ask_providers": [[]]}}, "agent.ask_providers"),
        ({"version": []}, "version"),
        ({"max_cost": -(10**400)}, "max_cost"),
    ],
)
def test_rules_that_are_none_are_refused(make_site, rules, path):
    answer = make_site(personal=False).request("PUT", "/v1/approval-policy", rules)
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, path)


def test_a_list_of_Jobs_shows_the_first_lines_of_what_is_said_of_a_bundle(module_site):
    lines = [f"line {number} " + "x" * 900 for number in range(600)]
    bundle = send_tree(module_site, {"train.py": b""})
    bundle |= {"warnings": lines, "left_out": lines, "left_out_not_shown": 7, "included": lines[:20]}
    spec = document(bundle, project_dir=next(FOLDERS))
    answer = module_site.post("/v1/jobs", {"type": "train", "spec": spec})
    assert answer.status_code == 201, answer.text
    path = f"/v1/scripts/{answer.json()['job']['id']}"
    listed = module_site.get("/v1/scripts?limit=1").json()["items"][0]["bundle"]
    whole = module_site.get(path).json()["job"]["bundle"]
    assert (whole["warnings"], whole["left_out"], whole["left_out_not_shown"]) == (lines, lines, 7)
    assert (whole["warnings_not_shown"], whole["included_not_shown"]) == (0, 0)
    for part, more in (("warnings", 580), ("left_out", 587), ("included", 0)):
        assert (len(listed[part]), listed[f"{part}_not_shown"]) == (20, more), part
        assert listed[part][3].startswith("line 3 xxx")
        assert max(map(len, listed[part])) <= 300
