"""Approving a Plugin: a person sees the bytes that are decided on, a script names them or says --yes."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys

import pytest

from support.fake_server import FakeServer, Reply
from trainshed.cli.exits import Exit

DIGEST = "d" * 64
WHEN = "2026-11-29T12:00:00.000000+00:00"
VERSION = {
    "kind": "plugins",
    "name": "team/filter",
    "version": "1.0",
    "uri": "envloop://plugins/team/filter@1.0",
    "manifest_sha256": DIGEST,
    "files": 2,
    "bytes": 2048,
    "published_at": WHEN,
    "published_by": "human:ada",
    "about": {},
    "visibility": "project",
    "approval": None,
}
APPROVAL = {
    "name": "team/filter",
    "manifest_sha256": DIGEST,
    "approved": True,
    "approved_at": WHEN,
    "approved_by": "human:owner",
    "revoked_at": None,
    "revoked_by": None,
}
VERSIONS = "/v1/content/plugins/team/filter/versions"
BY_LABEL, BY_DIGEST = f"PUT {VERSIONS}/1.0/approval", f"PUT {VERSIONS}/{DIGEST}/approval"


@pytest.fixture
def plugins(fake: FakeServer) -> FakeServer:
    fake.routes = {
        f"GET {VERSIONS}/1.0": Reply(body=VERSION),
        BY_LABEL: Reply(body=APPROVAL),
        BY_DIGEST: Reply(body=APPROVAL),
    }
    return fake


def asked(server: FakeServer) -> list[str]:
    return [f"{each.method} {each.path}" for each in server.seen if each.method != "GET"]


def at_terminal(answer: bytes, *arguments: str) -> tuple[int, str]:
    """Exit status, and what was told to a person who types ``answer``."""
    mine, theirs = pty.openpty()
    command = [sys.executable, "-m", "trainshed", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        os.write(mine, answer)
        said = process.stderr.read().decode()
        with contextlib.suppress(OSError):
            os.read(mine, 65536)
    os.close(mine)
    return process.returncode, said


def test_E94_at_a_terminal_the_package_is_shown_and_what_was_shown_is_approved(plugins):
    status, said = at_terminal(b"y\n", "plugin", "approve", "team/filter@1.0")
    assert status == Exit.OK, said
    for shown in ("team/filter", "1.0", DIGEST, "human:ada", "2 files, 2.0 KiB", "[y/N]"):
        assert shown in said
    assert asked(plugins) == [BY_DIGEST]


@pytest.mark.parametrize("answer", [b"n\n", b"\n"])
def test_E94_whoever_does_not_say_yes_approves_nothing(plugins, answer):
    status, _ = at_terminal(answer, "plugin", "approve", "team/filter@1.0")
    assert (status, asked(plugins)) == (Exit.INTERRUPTED, [])


def test_E94_where_nobody_can_be_asked_a_label_needs_yes_and_a_digest_does_not(plugins, run):
    refused = run("plugin", "approve", "team/filter@1.0")
    assert (refused.status, asked(plugins)) == (Exit.USAGE, [])
    assert "give --yes" in refused.err
    assert f"`trainshed plugin approve team/filter@{DIGEST}`" in refused.err
    assert "yes" in run("plugin", "approve", "team/filter@1.0", "--yes").out
    assert run("plugin", "approve", f"team/filter@{DIGEST}", "--json").json == APPROVAL
    assert asked(plugins) == [BY_LABEL, BY_DIGEST]
    assert run("plugin", "approve", "team/filter").status == Exit.USAGE


def test_E94_plugins_are_revoked_and_listed(run, fake):
    revoked = {**APPROVAL, "approved": False, "revoked_at": WHEN, "revoked_by": "human:o"}
    fake.routes = {
        f"DELETE {VERSIONS}/1.0/approval": Reply(body=revoked),
        "GET /v1/content/plugins/approvals": Reply(body={"items": [revoked], "next_cursor": None}),
    }
    assert run("plugin", "revoke", "team/filter@1.0", "--json").json == revoked
    listed = run("plugin", "approved")
    assert "team/filter" in listed.out
    assert "no" in listed.out.split()
