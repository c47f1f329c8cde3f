"""``trainshed artifact``: deleting asks first, says how much it is, and nobody is asked where nobody is."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from support import documents
from support.fake_server import Reply, refusal
from trainshed.cli.exits import Exit

OF_TRIAL = f"DELETE /v1/trials/{documents.TRIAL_ID}/artifacts"
OF_JOB = f"DELETE /v1/jobs/{documents.JOB_ID}/artifacts"
FOUND = {
    "job_id": documents.JOB_ID,
    "trial_id": documents.TRIAL_ID,
    "artifacts": 3,
    "size_bytes": 3 << 20,
    "kept_bytes": 1 << 20,
    "dry_run": False,
}


@pytest.mark.parametrize(("owner", "path"), [(documents.TRIAL_ID, OF_TRIAL), (documents.JOB_ID, OF_JOB)])
def test_with_yes_nobody_is_asked_and_the_bytes_are_told(run, fake, owner, path):
    fake.routes[path] = Reply(body=FOUND)
    ran = run("artifact", "delete", owner, "--name", "out/**", "--yes")
    assert ran.out == "Deleted 3 Artifacts, 3.0 MiB (Checkpoints keep 1.0 MiB of it).\n"
    [asked] = fake.asked(path)
    assert asked.query == {"name": "out/**"}
    assert run("artifact", "delete", owner, "--yes", "--json").json == FOUND


def test_a_dry_run_only_says_what_would_be_deleted(run, fake):
    fake.routes[OF_TRIAL] = Reply(body=FOUND | {"dry_run": True})
    ran = run("artifact", "delete", documents.TRIAL_ID, "--dry-run")
    assert ran.out.startswith("Would delete 3 Artifacts, 3.0 MiB")
    assert [each.query for each in fake.asked(OF_TRIAL)] == [{"dry_run": "true"}]


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_where_nobody_can_be_asked_nothing_is_sent(run, fake, more):
    ran = run("artifact", "delete", documents.TRIAL_ID, *more)
    assert ran.status == Exit.USAGE
    assert "--yes or --dry-run" in ran.err
    assert not fake.seen


@pytest.mark.parametrize(("answer", "status"), [("y", Exit.OK), ("n", Exit.INTERRUPTED)])
def test_at_a_terminal_a_person_is_asked_with_the_bytes(fake, tmp_path, answer, status):
    fake.routes[OF_TRIAL] = Reply(body=FOUND)
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRAINSHED_", "ENVLOOP_"))
    }
    place = {"TRAINSHED_URL": fake.url, "TRAINSHED_API_KEY": "tsk_test", "TRAINSHED_HOME": str(tmp_path)}
    mine, theirs = pty.openpty()
    command = [sys.executable, "-m", "trainshed", "artifact", "delete", documents.TRIAL_ID]
    os.write(mine, f"{answer}\n".encode())
    ran = subprocess.run(
        command, env=own | place, stdin=theirs, capture_output=True, text=True, check=False, timeout=60
    )
    os.close(theirs)
    os.close(mine)
    assert ran.returncode == status, ran
    question = f"Delete 3 Artifacts, 3.0 MiB (Checkpoints keep 1.0 MiB of it) of {documents.TRIAL_ID}?"
    assert question in ran.stderr + ran.stdout
    asked = [each.query for each in fake.asked(OF_TRIAL)]
    assert asked == [{"dry_run": "true"}, {}][: 2 if answer == "y" else 1]


def test_a_trial_that_runs_exits_as_a_conflict(run, fake):
    fake.routes[OF_TRIAL] = refusal(409, "RESOURCE_IN_USE", "the Trial is running")
    assert run("artifact", "delete", documents.TRIAL_ID, "--yes").status == Exit.CONFLICT
