"""P9: what is secret appears nowhere: not in rows, files, logs, events, refusals or a program's environment.

A canary is put in wherever a secret belongs, and then searched for in everything the server wrote and said.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from support.http import Http
from support.programs import bash
from support.runners import trainshed
from support.waiting import wait_until

CANARY = f"canary{secrets.token_hex(12)}"


def _files_holding(folder: Path, secret: str) -> list[str]:
    wanted = secret.encode()
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and wanted in path.read_bytes()
    ]


def _everything_said(http: Http, job_id: str) -> bytes:
    paths = [
        f"/v1/jobs/{job_id}",
        f"/v1/jobs/{job_id}/result",
        f"/v1/jobs/{job_id}/events",
        f"/v1/jobs/{job_id}/logs?source=all&limit=1000",
        "/v1/jobs",
        "/v1/trials",
        "/v1/me",
        "/v1/admin/projects",
        "/v1/admin/projects/default/keys",
        "/openapi.json",
        "/metrics",
    ]
    return b"".join(http.get(path).body for path in paths)


@pytest.fixture
def server(new_server):
    """A server that was itself started with secrets in its environment."""
    environment = {
        "TRAINSHED_API_KEY": f"{CANARY}-api-key",
        "ENVLOOP_API_KEY": f"{CANARY}-envloop",
        "AWS_SECRET_ACCESS_KEY": f"{CANARY}-aws",
        "PGPASSWORD": f"{CANARY}-pg",
        "HTTPS_PROXY": f"http://u:{CANARY}-proxy@127.0.0.1:1",
    }
    return new_server(environment=environment, warm=False).start()


def test_P9_the_servers_own_secrets_do_not_reach_programs(server):
    job_id = server.submit(bash("env; cat /proc/$PPID/environ | tr '\\0' '\\n'; true", "r"))
    server.wait_for_release(job_id)
    said = "\n".join(record["content"] for record in server.log_records(job_id))
    assert "TRAINSHED_ATTEMPT_ID=" in said, "the program did print its environment"
    assert CANARY not in said
    assert server.key not in said
    assert _files_holding(server.data, CANARY) == []
    assert CANARY not in server.tail(1 << 20)


def test_P9_key_texts_are_shown_once_and_stored_nowhere(server):
    made = trainshed(server, "key", "create", "robot", "--kind", "agent", "--json")
    text = next(word for word in made.stdout.replace('"', " ").split() if word.startswith("tsk_"))
    http = server.http(text)
    job_id = server.submit(bash("true", "r"))
    assert http.get(f"/v1/jobs/{job_id}").status == 200
    refused = [
        http.get("/v1/jobs/unknown"),
        http.post("/v1/jobs", {"type": "train", "request_id": "x", "spec": {"runner": f"a/{text}@main"}}),
        server.http(f"{text}x").get("/v1/me"),
        http.get(f"/v1/jobs?cursor={CANARY}"),
        http.request("GET", "/v1/me", headers={"X-Project-ID": CANARY}),
    ]
    assert all(answer.status >= 400 for answer in refused)
    assert f"{text}x" not in refused[2].body.decode()
    server.wait_for_release(job_id)
    for secret in (text, server.key):
        assert secret.encode() not in _everything_said(server.http(), job_id)
        places = _files_holding(server.data, secret)
        assert places == (["owner.key"] if secret == server.key else [])
        assert secret not in server.tail(1 << 20)
    assert (server.data / "owner.key").stat().st_mode & 0o077 == 0
    assert server.data.stat().st_mode & 0o077 == 0


def test_P9_a_key_in_the_wrong_place_is_not_repeated_by_the_server(server):
    """People paste keys into headers and paths; neither answers nor the log repeat them."""
    http = Http(server.url)
    key = f"tsk_{CANARY}"
    answers = [
        http.get("/v1/me", headers={"Authorization": key}),
        http.get("/v1/me", headers={"Authorization": f"Basic {key}"}),
        http.get("/v1/me", headers={"Authorization": f"Bearer {key}"}),
    ]
    for answer in answers:
        assert answer.status == 401
        assert key not in answer.body.decode()
    assert key not in server.tail(1 << 20)
    assert _files_holding(server.data, key) == []


def test_P9_commands_and_parameters_stay_out_of_the_servers_log_and_of_errors(server):
    """A command is not secret, but it is nobody's business but its project's."""
    secret = f"{CANARY}-in-a-command"
    job_id = server.submit(bash(f"echo {secret} > /dev/null; exit 3", "r"))
    [trial] = server.wait_for_release(job_id)
    assert trial["error"]["code"] == "NONZERO_EXIT"
    assert secret not in str(trial["error"])
    conflict = server.http().post("/v1/jobs", bash(f"echo {secret} 2", "r"))
    assert conflict.code == "JOB_REQUEST_CONFLICT"
    for event in server.http().get(f"/v1/jobs/{job_id}/events").json["items"]:
        assert secret not in str(event)
    assert secret not in server.tail(1 << 20)
    metrics = server.http().get("/metrics").body.decode()
    assert secret not in metrics


def test_P9_no_secret_stands_in_a_command_line(server, tmp_path):
    """Whoever may list processes must not learn keys or commands from their arguments."""
    secret = f"{CANARY}-argv"
    go = tmp_path / "go"
    job_id = server.submit(bash(f": {secret}; while [ ! -e {go} ]; do sleep 0.05; done", "r"))
    server.wait_for_job(job_id, {"running"})
    trials = wait_until(
        lambda: [t for t in server.job(job_id)["training"]["trials"] if t["status"] == "running"]
    )
    assert trials
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if _readable(path)]
    ours = [line for line in lines if b"trainshed" in line]
    assert ours
    assert not [line for line in ours if server.key.encode() in line or b"tsk_" in line]
    go.touch()
    server.wait_for_release(job_id)


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True
