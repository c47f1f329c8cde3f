"""The OpenAPI document against the application: no 5xx, and no answer outside the documented shapes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import schemathesis
from schemathesis import GenerationMode, checks
from schemathesis.python import asgi
from starlette.types import ASGIApp

from support.examples import examples
from support.lora import adapter
from support.scripts import send_script
from support.site import Site, finish, open_site, put_output, start, trials
from support.tasks import task_document
from trainshed.control.scripts import approving
from trainshed.model.scripts.states import Phase, Reason
from trainshed.policy.approval import Rule, Verdict
from trainshed.store import jobs, moves, scripts
from trainshed.store.database import Connection, Database

EXAMPLES = max(12, examples(12))
PARTS = 4
"""So that no single test takes longer than one may."""


@dataclass(frozen=True)
class Fuzzed:
    """An application, its document, a key, and path parameters that name what exists."""

    app: ASGIApp
    document: dict[str, Any]
    key: str
    known: dict[str, str]
    scripts: dict[str, str]
    """The same of operations of script Jobs."""

    def named(self, path: str) -> dict[str, str]:
        """What path parameters of an operation name."""
        return self.scripts if path.startswith(("/v1/scripts", "/v1/approvals")) else self.known


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory, _migrated_sqlite: Path) -> Iterator[Fuzzed]:
    folder = tmp_path_factory.mktemp("fuzzed")
    path = folder / "site.sqlite"
    path.write_bytes(_migrated_sqlite.read_bytes())
    database = Database(f"sqlite:///{path}")
    with open_site(database, folder / "data") as site:
        found = Fuzzed(
            site.app, site.get("/openapi.json").json(), site.owner_key, seed(site), seed_scripts(site)
        )
    yield found
    database.close()


CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]


def seed(site: Site) -> dict[str, str]:
    """A finished Job with a log, an Artifact and a Checkpoint; path parameters that name what exists."""
    job = site.submit("seed")
    (trial,) = trials(site, job["job_id"])
    attempt = start(site, trial)
    put_output(site, attempt, [(1, b"line\n"), (2, b"\xff\n")])
    finish(site, trial, attempt, artifacts={"outputs/a.txt": b"artifact", **adapter("outputs")})
    artifact, *_ = site.get(f"/v1/trials/{trial.id}/artifacts").json()["items"]
    (checkpoint,) = site.get("/v1/job/checkpoints").json()["items"]
    (runner,) = site.get("/v1/runners").json()["items"]
    task = site.post("/v1/jobs", task_document()).json()
    site.post(f"/v1/tasks/{task['name']}/stop")
    return {
        "ref": task["name"],
        "pool": "default",
        "cluster": "local",
        "job_id": job["job_id"],
        "trial_id": trial.id,
        "artifact_id": artifact["artifact_id"],
        "checkpoint_id": checkpoint["checkpoint_id"],
        "namespace": "envloop",
        "name": "bash",
        "revision": "main",
        "path": "main.sh",
        "workspace": "default",
        "project": "default",
        "user": "ada",
        "sha256": runner["snapshot_sha256"],
    }


def seed_scripts(site: Site) -> dict[str, str]:
    """A script Job that was cancelled, so that nobody waits for it, and a question about another one."""
    over, asking = (
        send_script(site, project_dir=f"/srv/{name}").json()["job"] for name in ("over", "asking")
    )
    site.post(f"/v1/scripts/{over['short_id']}/cancel")

    def ask(connection: Connection) -> int:
        args = (connection, asking["trial_id"], Phase.ROUTING, Reason.ROUTING_STARTED, "said")
        scripts.set_phase(*args, at=site.clock())
        moves.lock_jobs(connection, [asking["job_id"]])
        waiting = jobs.trials_of(connection, [asking["job_id"]])[asking["job_id"]]
        verdict = Verdict(ask=True, rules=(Rule.HOURS,), reason="no hours given")
        return approving.ask(connection, waiting, asking["spec_hash"], verdict, at=site.clock())

    question = site.services.database.write(ask)
    assert site.get(f"/v1/scripts/{over['short_id']}").json()["job"]["state"] == "cancelled"
    assert site.get(f"/v1/approvals/{question}").status_code == 200
    return {"ref": over["short_id"], "number": "1", "path": "a", "approval_id": str(question)}


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_answer_is_a_5xx_or_outside_the_documented_shapes(fuzzed: Fuzzed, mode: GenerationMode, part: int):
    schema = schemathesis.openapi.from_dict(fuzzed.document)
    headers = {"Authorization": f"Bearer {fuzzed.key}"}
    seen = 0
    with asgi.get_client(fuzzed.app) as session:
        for found in schema.get_all_operations():
            operation = found.ok()
            seen += 1
            if seen % PARTS != part:
                continue

            @hypothesis.settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
                suppress_health_check=list(hypothesis.HealthCheck),
            )
            @hypothesis.given(case=operation.as_strategy(generation_mode=mode), real=st.booleans())
            def check(case: Any, *, real: bool) -> None:
                # Nobody runs the task here: queued anew, it would be followed for ever.
                if real and not case.operation.path.endswith("/resubmit"):
                    known = fuzzed.named(case.operation.path)
                    for name in case.path_parameters or {}:
                        case.path_parameters[name] = known.get(name, case.path_parameters[name])
                answer = case.call(session=session, headers=headers)
                case.validate_response(answer, checks=CHECKS)

            # Operations without any input have nothing that could be wrong.
            with contextlib.suppress(hypothesis.errors.Unsatisfiable):
                check()
    assert seen > 70
