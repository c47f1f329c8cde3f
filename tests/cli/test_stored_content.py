"""``content``: usage, garbage and damage, against a scripted server and against a real one."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.fake_server import Reply, in_turn, refusal
from support.server import ServerProcess
from trainshed.cli.exits import Exit

VERIFY = "GET /v1/admin/content/verify"
TOTAL = {"total_blobs": 2, "total_bytes": 20, "damaged": 0}
NOBODY = {"shown": [], "count": 0}
AFFECTED = dict.fromkeys(("versions", "revisions", "jobs", "artifacts", "checkpoints"), NOBODY)
DAMAGE = {
    "type": "damage",
    "checked": 1,
    "bytes": 10,
    **TOTAL,
    "damaged": 1,
    "sha256": "a" * 64,
    "problem": "changed",
    "message": "its 3 bytes have another digest",
    "advice": "Publish it again.",
    "affected": {**AFFECTED, "versions": {"shown": ["datasets team/words@1"], "count": 3}},
}
PROGRESS = {"type": "progress", "checked": 1, "bytes": 10, **TOTAL}
END = {"checked": 2, "bytes": 20, **TOTAL}


def stream(*events: tuple[str, str, dict[str, Any]], cut: bool = False) -> Reply:
    text = ": open\n\n" + "".join(
        f"event: {kind}\nid: {place}\ndata: {json.dumps(document)}\n\n" for kind, place, document in events
    )
    return Reply(200, text.encode(), {"Content-Type": "text/event-stream"}, len(text) if cut else None)


def test_damage_is_shown_with_whom_it_affects_and_exits_9(run, fake):
    fake.routes[VERIFY] = stream(("message", "1", DAMAGE), ("end", "", {**END, "damaged": 1}))
    ran = run("content", "verify", "team/words@1")
    assert ran.status == Exit.DIFFERS == 9
    assert "datasets team/words@1 and 2 more versions" in ran.out
    assert "its 3 bytes have another digest. Publish it again." in ran.out
    (request,) = fake.asked(VERIFY)
    assert request.query == {"target": "team/words@1"}
    ran = run("content", "verify", "team/words@1", "--json")
    assert (ran.status, ran.json["damaged"], ran.json["damage"][0]["problem"]) == (9, 1, "changed")


def test_no_damage_is_exit_0_and_options_reach_the_server(run, fake):
    fake.routes[VERIFY] = stream(("message", "1", PROGRESS), ("end", "", END))
    ran = run("content", "verify", "--all", "--rate", "1.5", "--cursor", "start")
    assert ran.status == Exit.OK
    assert "No damage." in ran.out
    (request,) = fake.asked(VERIFY)
    assert request.query == {"mb_per_second": "1.5"}
    assert request.headers["last-event-id"] == "start"


def test_a_lost_connection_is_taken_up_where_it_broke(run, fake):
    fake.routes[VERIFY] = in_turn(
        stream(("message", "1", PROGRESS), cut=True),
        refusal(503, "DATABASE_UNAVAILABLE"),
        stream(("message", "2", DAMAGE), ("error", "", {"code": "DATABASE_UNAVAILABLE", "message": "gone"})),
        stream(("end", "", {**END, "damaged": 1})),
    )
    ran = run("content", "verify", "--all", "--json")
    assert (ran.status, len(ran.json["damage"])) == (Exit.DIFFERS, 1)
    assert [each.headers.get("last-event-id") for each in fake.asked(VERIFY)] == [None, "1", "1", "2"]


def test_a_verification_that_breaks_off_says_how_it_goes_on(run, fake):
    fake.routes[VERIFY] = in_turn(
        stream(("message", "17", PROGRESS), cut=True), *[refusal(503, "DATABASE_UNAVAILABLE")] * 20
    )
    ran = run("content", "verify", "--all")
    assert ran.status == Exit.UNAVAILABLE
    assert "--cursor 17" in ran.err
    fake.routes[VERIFY] = stream(("error", "", {"code": "AUTHENTICATION_REQUIRED", "message": "revoked"}))
    assert run("content", "verify", "--all").status == Exit.ACCESS


@pytest.mark.parametrize(
    "arguments", [(), ("a/b@1", "--all"), ("--all", "--rate", "0"), ("--all", "--rate", "x")]
)
def test_a_verification_needs_one_target(run, fake, arguments):
    assert run("content", "verify", *arguments).status == Exit.USAGE
    assert fake.asked(VERIFY) == []


def test_a_pass_is_waited_for(run, fake):
    counts = {"manifests": 1, "blobs": 2, "bytes": 3000, "adopted": 0, "reason": None}
    state = {"request_id": "gc_1", "started_at": None, "updated_at": None, **counts}
    fake.routes["POST /v1/admin/content/gc"] = Reply(202, {**state, "state": "asked"})
    fake.routes["GET /v1/admin/content/gc"] = in_turn(
        Reply(200, {"newest": None, "asked": {**state, "state": "asked"}}),
        Reply(200, {"newest": None, "asked": {**state, "state": "done"}}),
    )
    ran = run("content", "gc")
    assert ran.status == Exit.OK
    assert "2.9 KiB" in ran.out
    failed = {**state, "state": "failed", "reason": "the store does not answer"}
    fake.routes["GET /v1/admin/content/gc"] = Reply(200, {"newest": None, "asked": failed})
    ran = run("content", "gc")
    assert (ran.status, "the store does not answer" in ran.out) == (Exit.FAILED, True)
    fake.routes["GET /v1/admin/content/gc"] = Reply(
        200, {"newest": None, "asked": {**state, "state": "asked"}}
    )
    assert run("content", "gc", "--wait-timeout", "0").status == Exit.TIMEOUT


# A real server


def test_from_damage_to_repair_and_from_withdrawal_to_free_disk(server: ServerProcess, tmp_path: Path):
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRAINSHED_", "ENVLOOP_"))
    }

    def el(*arguments: str, status: int = 0) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "trainshed", *arguments, "--json"],
            capture_output=True,
            text=True,
            env={**own, **server.environment},
            timeout=120,
            check=False,
        )
        assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)

    data = tmp_path / "data"
    data.mkdir()
    (data / "a.txt").write_bytes(b"first\n")
    (data / "b.txt").write_bytes(b"second\n")
    publish = ("dataset", "publish", str(data), "--name", "team/words", "--version", "1")
    published = el(*publish)
    assert el("content", "verify", "--all")["damaged"] == 0

    sha256 = hashlib.sha256(b"first\n").hexdigest()
    stored = server.data / "content" / "sha256" / sha256[:2] / sha256
    stored.chmod(0o600)
    stored.write_bytes(b"FIRST\n")
    found = el("content", "verify", "team/words@1", status=Exit.DIFFERS)
    [damage] = found["damage"]
    assert (damage["sha256"], damage["problem"]) == (sha256, "changed")
    assert damage["affected"]["versions"]["shown"] == ["datasets team/words@1"]
    publishing = "`trainshed dataset publish FOLDER --name team/words --version 1`"
    assert damage["advice"].endswith(f" --repair`, then publish it again: {publishing}.")
    repaired = el("content", "verify", "--all", "--repair", status=Exit.DIFFERS)
    advice = f"Publish it again, which sends what is missing: {publishing}."
    assert ([each["advice"] for each in repaired["damage"]], repaired["taken_out"]) == ([advice], [sha256])
    assert not stored.exists()
    for target in (sha256, "team/words@1", "--all"):
        left = el("content", "verify", target, status=Exit.DIFFERS)
        found = [(each["problem"], each["advice"]) for each in left["damage"]]
        assert (left["damaged"], found) == (1, [("missing", advice)])
    (data / "a.txt").touch()
    el(*publish)
    assert el("content", "verify", "--all")["damaged"] == 0

    usage = el("content", "usage")
    [datasets] = [kind for kind in usage["projects"][0]["kinds"] if kind["kind"] == "datasets"]
    assert datasets["logical_bytes"] == datasets["stored_bytes"] > 13, "the manifest counts, too"
    el("dataset", "withdraw", "team/words@1")
    waiting = el("content", "gc", "--dry-run")
    assert (waiting["blobs"], waiting["waiting_blobs"]) == (0, 3)
    with sqlite3.connect(server.data / "trainshed.sqlite") as database:
        database.execute("UPDATE blobs SET touched_at = 1, created_at = 1")
        database.execute("UPDATE manifests SET created_at = 1")
        database.execute("UPDATE content_versions SET withdrawn_at = 1")
    database.close()
    assert el("content", "gc", "--dry-run")["blobs"] == 3
    passed = el("content", "gc")
    assert (passed["state"], passed["blobs"], passed["manifests"]) == ("done", 3, 1)
    assert not stored.exists()
    assert el("content", "verify", "--all")["damaged"] == 0
    # Publishing brings it back, from the files themselves.
    again = el(*publish)
    assert again["manifest_sha256"] == published["manifest_sha256"]
    assert stored.read_bytes() == b"first\n"


def test_what_is_damaged_is_named_at_once_and_publishing_again_says_what_it_did(
    server: ServerProcess, tmp_path: Path
):
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRAINSHED_", "ENVLOOP_"))
    }

    def el(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "trainshed", *arguments]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**own, **server.environment},
            timeout=120,
            check=False,
        )

    data = tmp_path / "data"
    data.mkdir()
    for name, content in (("a.txt", b"first\n"), ("large.bin", b"x" * 100_000)):
        (data / name).write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        stored = server.data / "content" / "sha256" / sha256[:2] / sha256
        publish = ("dataset", "publish", str(data), "--name", "team/words", "--version", name)
        assert el(*publish).returncode == 0
        again = el(*publish)
        assert "published before with the same files; nothing had to be sent." in again.stderr
        for damage in ("gone", "cut off", "a folder"):
            stored.unlink()
            if damage == "a folder":
                stored.mkdir()
            elif damage == "cut off":
                stored.write_bytes(content[:3])
            to = str(tmp_path / f"{name} {damage}")
            read = el("dataset", "download", f"team/words@{name}", to)
            assert read.returncode == Exit.FAILED, read.stderr
            assert f"`{name}` of envloop://datasets/team/words@{name}: " in read.stderr
            assert "trying again" not in read.stderr
            assert f"trainshed content verify team/words@{name}" in read.stderr
            assert not (tmp_path / f"{name} {damage}" / name).exists()
            again = el(*publish)
            assert "same files; 1 file that the server lacked sent again." in again.stderr, again.stderr
            assert el("dataset", "download", f"team/words@{name}", to).returncode == 0
    (server.data / "content" / "sha256" / ".DS_Store").write_bytes(b"")
    looked = el("content", "verify", "--all")
    assert (looked.returncode, "NOT OURS, PASSED OVER\n.DS_Store" in looked.stdout) == (0, True), (
        looked.stdout
    )
    orphan = hashlib.sha256(b"orphan").hexdigest()
    place = server.data / "content" / "sha256" / orphan[:2] / orphan
    place.write_bytes(b"or")
    assert el("content", "gc").returncode == 0
    mended = json.loads(el("content", "verify", orphan, "--repair", "--json").stdout)
    assert (mended["damaged"], mended["taken_out"], place.exists()) == (1, [orphan], False)
