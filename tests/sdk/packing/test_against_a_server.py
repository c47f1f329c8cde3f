"""A folder is packed, brought to a real server, and submitted there."""

from __future__ import annotations

import pytest

from support.projects import project, write
from trainshed import Client
from trainshed.sdk.packing import prepare


@pytest.fixture(scope="module")
def client(module_server):
    with Client(module_server.url, module_server.key) as opened:
        yield opened


def test_only_what_the_server_lacks_travels_and_the_job_has_the_summary(client, tmp_path):
    place = project(
        tmp_path / "work" / "proj",
        {
            ".gitignore": "data\n",
            "train.py": "print('hello')\n",
            'sub/naïve "x".py': "1",
            "gpu.yaml": "script: train.py\nrequires_approval: true\ndata: [{mount: d, path: data}]\n",
        },
    )
    write(place, {"data/big.bin": b"\0" * 3_000_000, "data/empty": b""})
    ready = prepare(client, place)
    assert ready.uploaded == 6 + 2
    assert prepare(client, place).uploaded == 0
    write(place, {"train.py": "print('changed')\n"})
    ready = prepare(client, place)
    assert ready.uploaded == 2
    sent = client.scripts.submit(ready.spec)
    assert sent.submitted
    bundle = sent.job.raw["bundle"]
    assert {key: bundle.get(key) for key in ready.bundle if key != "size"} == {
        key: value for key, value in ready.bundle.items() if key != "size"
    }
    assert sent.job.raw["bundle_sha256"] == ready.spec["bundle"]["manifest_sha256"]
    again = client.scripts.submit(prepare(client, place).spec)
    assert (again.submitted, again.job.job_id) == (False, sent.job.job_id)
    client.scripts.cancel(sent.job.short_id)


def test_a_dry_run_sends_nothing_and_is_judged_alike(client, tmp_path):
    place = project(tmp_path / "work" / "dry", {"train.py": "print('only looked at')\n"})
    ready = prepare(None, place, {"script": "train.py", "hours": 0.1})
    assert ready.uploaded is None
    answer = client.scripts.route(ready.spec)
    assert answer.raw["spec"]["script"] == "train.py"
    assert prepare(client, place, {"script": "train.py", "hours": 0.1}).uploaded == 2
