"""What somebody who is new here meets first says what to do, and shows no machinery."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.scripts import document, packed_over_http
from trainshed.cli.exits import Exit

EXAMPLE = Path(__file__).parents[2] / "examples" / "training" / "pytorch.yaml"


@pytest.fixture
def here(module_server, monkeypatch, run):
    """The program, talking to a server with nothing set up."""
    for name, value in module_server.environment.items():
        monkeypatch.setenv(name, value)
    return run


def test_a_list_of_jobs_has_a_name_in_place_of_an_id_that_was_made_up(here, module_server):
    http = module_server.http()
    bundle = packed_over_http(http, {"train.py": b"print(1)\n"})
    for more in ({}, {"request_id": "my-own"}):
        spec = document(bundle, provider="local", hours=0.1, name="a-label")
        answer = http.post("/v1/jobs", {"type": "train", "spec": spec, **more})
        assert answer.status in {200, 201}, answer.body
    made = [each["request_id"] for each in here("job", "list", "--json").json["items"]]
    assert len([each for each in made if each.startswith("script-")]) == 2, "programs are told the id itself"
    text = here("job", "list").out
    assert "script-" not in text
    assert text.count("a-label") == 2


def test_a_volume_that_is_not_there_says_how_one_is_declared(here):
    ran = here("train", "validate", "-f", str(EXAMPLE))
    told = ran.out + ran.err
    assert ran.status == Exit.REFUSED
    assert "there is no volume out, or project" in told
    assert '`[training] volumes = ["ID=/FOLDER"]`' in told
    assert 'volumes = ["out=' in EXAMPLE.read_text()
