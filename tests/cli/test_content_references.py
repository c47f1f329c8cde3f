"""A digest written `sha256:HEX`: the same version at every door of the client and the program (C11, E104)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest

from cli.test_train_end_to_end import runner
from support.contents import published_on
from support.server import ServerProcess
from trainshed import Client
from trainshed.cli.exits import Exit
from trainshed.model.content import ContentKind
from trainshed.sdk.errors import ApiError

WORDS = {"train/a.txt": b"one\n", "test/b.txt": b"two\n"}
TASK = """\
type: train
spec:
  kind: pytorch
  name_prefix: reads
  image: host
  cmd: "true"
  resource_type: ondemand
  instance: {specs: [h100x1]}
  mounts: [{type: dataset, ref: "%s", mount_path: /mnt/data, sub_path: %s}]
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(module_server: ServerProcess) -> Run:
    return runner(module_server)


@pytest.fixture
def client(module_server: ServerProcess) -> Iterator[Client]:
    with Client(module_server.url, module_server.key) as opened:
        yield opened


@pytest.fixture
def digest(module_server: ServerProcess) -> str:
    return published_on(module_server, ContentKind.DATASETS, "team/words", WORDS)["manifest_sha256"]


@pytest.mark.parametrize("form", ["team/words@sha256:{}", "envloop://datasets/team/words@sha256:{}"])
def test_the_program_takes_both_spellings(run: Run, digest: str, form: str, tmp_path):
    ref = form.format(digest)
    shown = run("dataset", "show", ref, "--json")
    assert (shown.returncode, json.loads(shown.stdout)["manifest_sha256"]) == (0, digest), shown.stderr
    assert run("dataset", "files", ref, "train/a.txt").stdout == "one\n"
    fetched = run("dataset", "download", ref, str(tmp_path / "copy"))
    assert fetched.returncode == 0, fetched.stderr
    assert (tmp_path / "copy/test/b.txt").read_bytes() == b"two\n"
    assert run("content", "verify", ref).returncode == 0


def test_the_client_takes_both_spellings(client: Client, digest: str):
    for ref in (digest, f"sha256:{digest}"):
        assert client.datasets.version(f"team/words@{ref}").manifest_sha256 == digest
        assert b"".join(client.datasets.read_file(f"team/words@{ref}", "test/b.txt")) == b"two\n"
    with pytest.raises(ApiError, match="CONTENT_NOT_FOUND"):
        client.datasets.version(f"team/words@sha256:{'0' * 64}")


def test_withdrawing_and_approving_take_both_spellings(client: Client, module_server: ServerProcess):
    extra = published_on(module_server, ContentKind.PLUGINS, "team/extra", {"extra.py": b"1"})
    ref = f"team/extra@sha256:{extra['manifest_sha256']}"
    assert client.plugins.approve(ref)["approved"] is True
    assert client.plugins.revoke(ref)["approved"] is False
    assert client.plugins.withdraw(ref)["withdrawn"] == [extra["manifest_sha256"]]


def test_C16_validating_a_file_says_which_part_is_not_there(run: Run, digest: str, tmp_path):
    file = tmp_path / "task.yaml"
    file.write_text(TASK % (f"team/words@sha256:{digest}", "trian"))
    refused = run("train", "validate", "-f", str(file))
    assert refused.returncode == Exit.REFUSED
    said = " ".join(refused.stderr.split())
    assert "spec.mounts[0].sub_path" in said
    assert f"Dataset team/words@{digest} has no file or folder `trian`" in said
    assert "did you mean `train`?" in said
    created = run("train", "create", "-f", str(file))
    assert created.returncode == Exit.REFUSED
    assert "did you mean `train`?" in " ".join(created.stderr.split())
    file.write_text(TASK % (f"team/words@sha256:{digest}", "train"))
    assert run("train", "validate", "-f", str(file)).returncode == 0
