"""Reading, waiting for, cancelling and listing script Jobs, at their own door and at others (contract G)."""

from __future__ import annotations

import time

import pytest

from support.rows import allocation
from support.scripts import document, new_attempt_id, send_script
from support.site import once_followed, put_output
from trainshed.control.scripts.routing import publish_capabilities
from trainshed.engines.providers.contract import Capabilities
from trainshed.jobkit.frames import STDERR, STDOUT
from trainshed.model.access import Permission
from trainshed.model.scripts.states import Note, Phase, Reason
from trainshed.model.states import State
from trainshed.store import attempts, jobs, moves, providers, script_attempts, scripts
from trainshed.store.moves import Move
from trainshed.store.script_records import ScriptAttempt

FOLDERS = iter(f"/srv/r{number}" for number in range(10_000))
S = State


@pytest.fixture
def job(module_site):
    """A Job that was just submitted."""
    return submitted(module_site)


def submitted(site, **values):
    answer = send_script(site, project_dir=next(FOLDERS), **values)
    assert answer.status_code == 201, answer.text
    return answer.json()["job"]


def trial_of(site, job):
    with site.services.database.read() as connection:
        [trial] = jobs.trials_of(connection, [job["job_id"]])[job["job_id"]]
    return trial


def route(site, job, phase=Phase.ROUTING, reason=Reason.ROUTING_STARTED, **values):
    site.services.database.write(
        lambda c: scripts.set_phase(c, job["trial_id"], phase, reason, "said", at=site.clock(), values=values)
    )


def move(site, job, after, code="X", **values):
    trial = trial_of(site, job)
    made = Move(trial, trial.state, after, code, f"to {after}", values)
    site.services.database.write(lambda c: moves.apply(c, [made], at=site.clock(), actor="controller"))


def start(site, job, number=1, provider="kaggle", state="running"):
    """An Attempt of the Job at a provider; its id."""
    trial = trial_of(site, job)
    held = allocation(trial, new_attempt_id(), engine=provider)
    row = ScriptAttempt(
        attempt_id=held.attempt_id,
        trial_id=trial.id,
        number=number,
        key=f"gpu-{job['id']}-{number}",
        provider=provider,
        state=state,
        remote_ref="r",
        url=None,
        gpu_promised="T4",
        gpu_real=None,
        resumed_from=None,
        submitted_at=site.clock(),
        started_at=site.clock(),
        ended_at=None,
        exit_code=None,
        cursor=None,
        lines=0,
        seen_at=None,
        unreachable_seconds=0.0,
        message=None,
    )

    def store(connection):
        attempts.open_all(connection, [(held, number)])
        script_attempts.insert_attempt(connection, row)

    site.services.database.write(store)
    return held.attempt_id


def running(site, job):
    route(site, job)
    attempt_id = start(site, job)
    move(site, job, S.PREPARING)
    move(site, job, S.RUNNING)
    return attempt_id


def test_G37_a_Job_is_found_by_every_prefix_of_its_digits_in_any_case(module_site, job):
    for ref in (job["short_id"], job["id"], job["id"][:9], job["id"].upper(), job["job_id"]):
        found = module_site.get(f"/v1/scripts/{ref}")
        assert found.status_code == 200, ref
        assert found.json()["job"]["id"] == job["id"]


def test_G37_every_other_door_takes_a_prefix_too(module_site, job):
    short = job["short_id"]
    for path in (f"/v1/jobs/{short}", f"/v1/job/{short}", f"/v1/jobs/{short}/result"):
        assert module_site.get(path).json()["job_id"] == job["job_id"], path
    for path in (f"/v1/jobs/{short}/events", f"/v1/jobs/{short}/logs", f"/v1/jobs/{short}/manifest"):
        assert module_site.get(path).status_code == 200, path
    runner = module_site.submit("for-its-digits")
    with module_site.services.database.read() as connection:
        digits = jobs.find_job(connection, "default", runner["job_id"]).digits
    assert module_site.get(f"/v1/jobs/{digits}").json()["job_id"] == runner["job_id"]
    assert module_site.get(f"/v1/tasks/{digits}").status_code == 404  # it is no training task
    assert module_site.get(f"/v1/scripts/{digits}").status_code == 404


def test_a0_a_prefix_of_several_Jobs_is_ambiguous(module_site):
    made = [submitted(module_site) for _ in range(17)]
    firsts = [each["id"][0] for each in made]
    twice = next(digit for digit in firsts if firsts.count(digit) > 1)
    answer = module_site.get(f"/v1/scripts/{twice}")
    assert answer.status_code == 409
    assert answer.json()["code"] == "AMBIGUOUS_JOB_REF"
    assert len(answer.json()["matches"]) > 1
    assert module_site.get(f"/v1/jobs/{twice}").json()["code"] == "AMBIGUOUS_JOB_REF"


@pytest.mark.parametrize("ref", ["000000000000", "zzz", "job_01KB7Q3V9E8Z6R5T4W3X2Y1M0N", "%00"])
def test_an_unknown_reference_is_no_Job(module_site, ref):
    answer = module_site.get(f"/v1/scripts/{ref}")
    assert (answer.status_code, answer.json()["code"]) == (404, "JOB_NOT_FOUND")


def test_another_projects_Job_is_not_there(module_site, job):
    module_site.add_project("elsewhere")
    key = module_site.add_key("elsewhere")
    for path in (f"/v1/scripts/{job['id']}", f"/v1/jobs/{job['id']}", f"/v1/scripts/{job['id']}/logs"):
        assert module_site.get(path, key=key).json()["code"] == "JOB_NOT_FOUND"
    assert module_site.get("/v1/scripts", key=key).json()["items"] == []
    checkpoint = f"/v1/scripts/{job['id']}/checkpoints/1/files"
    for path in (checkpoint, f"{checkpoint}/state.pt"):
        assert module_site.get(path, key=key).json()["code"] == "JOB_NOT_FOUND"


@pytest.mark.parametrize("number", ["1", "0", "-1", "x", "9" * 30, "²", "%00"])
def test_a4_a_checkpoint_that_is_not_kept_is_not_found(module_site, job, number):
    for path in ("files", "files/a"):
        answer = module_site.get(f"/v1/scripts/{job['id']}/checkpoints/{number}/{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "CHECKPOINT_NOT_FOUND")


def test_P10_why_one_waits_for_this_machine_is_told_at_the_other_doors_too(module_site, job):
    found = {"provider": "local", "route_reason": "local has an H100", "message": "may use 12 GPU-hours"}
    module_site.services.database.write(lambda c: scripts.change(c, trial_of(module_site, job).id, found))
    [trial] = module_site.get(f"/v1/jobs/{job['id']}").json()["training"]["trials"]
    assert trial["waiting"]["message"] == "may use 12 GPU-hours"


def test_E_the_doors_of_contract_E_show_a_script_Job_in_their_words(module_site, job):
    found = module_site.get(f"/v1/jobs/{job['id']}").json()
    [trial] = found["training"]["trials"]
    assert (found["status"], trial["status"], trial["state"]) == ("queued", "queued", "queued")
    assert (found["name"], trial["runner"], trial["waiting"]["code"]) == ("train", None, "QUEUED")
    running(module_site, job)
    listed = module_site.get("/v1/jobs", params={"status": "running"}).json()["items"]
    assert job["job_id"] in {each["job_id"] for each in listed}
    frozen = module_site.get(f"/v1/jobs/{job['id']}/manifest").json()["frozen"]
    assert frozen["trials"][0]["script"]["spec"]["script"] == "train.py"
    assert module_site.get(f"/v1/trials/{job['trial_id']}/snapshot").json()["runner"] is None


def test_a2_the_detail_holds_attempts_events_and_the_route(module_site, job):
    running(module_site, job)
    module_site.services.database.write(
        lambda c: scripts.change(
            c,
            job["trial_id"],
            {
                "route": '{"outcome":"place"}',
                "route_reason": "kaggle has a T4",
                "provider": "kaggle",
                "gpu": "T4",
                "progress": '{"step":3,"total":9,"source":"helper"}',
                "metrics": '{"loss":0.5}',
            },
        )
    )
    found = module_site.get(f"/v1/scripts/{job['short_id']}").json()
    shown = found["job"]
    assert (shown["state"], shown["provider"], shown["route_reason"]) == (
        "running",
        "kaggle",
        "kaggle has a T4",
    )
    assert shown["current_attempt_id"] == f"{job['id']}.1"
    assert shown["progress"] == {"step": 3.0, "total": 9.0, "source": "helper"}
    assert shown["last_metrics"] == {"loss": 0.5}
    assert found["route"] == {"outcome": "place"}
    assert [(each["provider"], each["state"], each["gpu"]) for each in found["attempts"]] == [
        ("kaggle", "running", "T4")
    ]
    assert [(each["from"], each["to"]) for each in found["events"]] == [
        (None, "queued"),
        ("queued", "routing"),
        ("routing", "provisioning"),
        ("provisioning", "running"),
    ]
    page = module_site.get(f"/v1/scripts/{job['id']}/events?limit=2").json()
    assert [each["to"] for each in page["items"]] == ["queued", "routing"]
    rest = module_site.get(f"/v1/scripts/{job['id']}/events?after={page['next_after']}").json()
    assert ([each["to"] for each in rest["items"]], rest["next_after"]) == (["provisioning", "running"], None)


def test_a2_a_wait_ends_as_soon_as_the_state_changes(module_site, job):
    begun = time.monotonic()
    with once_followed(module_site, job["job_id"], lambda: route(module_site, job)):
        answer = module_site.get(f"/v1/scripts/{job['id']}?wait_s=40&version={job['version']}")
    assert answer.json()["job"]["state"] == "routing"
    assert time.monotonic() - begun < 30
    known = answer.json()["job"]["version"]
    with once_followed(module_site, job["job_id"], lambda: told(module_site, job)):
        answer = module_site.get(f"/v1/scripts/{job['id']}?wait_s=40&version={known}")
    assert answer.json()["events"][-1]["reason"] == "provider_excluded"


def told(site, job):
    site.services.database.write(
        lambda c: scripts.note(c, job["trial_id"], Note.PROVIDER_EXCLUDED, "said", at=site.clock())
    )


def test_a2_another_version_is_answered_at_once_and_the_limit_is_no_error(module_site, job):
    begun = time.monotonic()
    assert module_site.get(f"/v1/scripts/{job['id']}?wait_s=50&version=0").status_code == 200
    same = module_site.get(f"/v1/scripts/{job['id']}?wait_s=0.2&version={job['version']}")
    assert same.json()["job"]["version"] == job["version"]
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("query", ["wait_s=51", "wait_s=-1", "wait_s=nan", "wait_s=x", "version=x"])
def test_G68_other_waits_are_refused(module_site, job, query):
    answer = module_site.get(f"/v1/scripts/{job['id']}?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")


def test_a5_a_cancel_is_repeatable_and_says_whether_it_changed_anything(module_site, job):
    path = f"/v1/scripts/{job['short_id']}/cancel"
    first = module_site.post(path, headers={"Trainshed-Source": "cli"}).json()
    assert (first["changed"], first["job"]["state"]) == (True, "cancelled")
    again = module_site.post(path).json()
    assert (again["changed"], again["job"]["version"]) == (False, first["job"]["version"])
    events = module_site.get(f"/v1/scripts/{job['id']}").json()["events"]
    assert (events[-1]["reason"], events[-1]["actor"]) == ("user_cancel", "user:cli")
    assert first["job"]["cancel_requested_at"] is not None


def test_a5_a_Job_that_runs_goes_through_cancelling(module_site, job):
    running(module_site, job)
    first = module_site.post(f"/v1/scripts/{job['id']}/cancel").json()
    assert (first["changed"], first["job"]["state"]) == (True, "cancelling")
    assert module_site.post(f"/v1/scripts/{job['id']}/cancel").json()["changed"] is False


def test_E_a_stop_at_the_door_of_contract_E_cancels_too(module_site, job):
    assert module_site.post(f"/v1/jobs/{job['short_id']}/stop").json()["status"] == "cancelled"
    assert module_site.get(f"/v1/scripts/{job['id']}").json()["job"]["state"] == "cancelled"


def test_who_may_only_read_cannot_cancel(module_site, job):
    key = module_site.add_key("default", Permission.TRAINING_READ)
    assert module_site.get(f"/v1/scripts/{job['id']}", key=key).status_code == 200
    assert module_site.post(f"/v1/scripts/{job['id']}/cancel", key=key).status_code == 403


def test_lists_are_narrowed_and_paged(sqlite_site):
    folder = "/srv/listed"
    made = [
        send_script(sqlite_site, project_dir=folder, request_id=f"r{number}").json()["job"]
        for number in range(3)
    ]
    other = submitted(sqlite_site)
    sqlite_site.post(f"/v1/scripts/{made[0]['id']}/cancel")

    def listed(**query):
        found = sqlite_site.get("/v1/scripts", params=query).json()
        return [each["id"] for each in found["items"]], found

    assert listed()[0] == [each["id"] for each in (other, *reversed(made))]
    assert listed(active="1", project_dir=folder)[0] == [made[2]["id"], made[1]["id"]]
    assert listed(active="0")[0] == [made[0]["id"]]
    assert listed(active="0", since=sqlite_site.clock() + 1)[0] == []
    ids, page = listed(limit=3)
    assert page["counts"] == {"queued": 3, "cancelled": 1}
    assert listed(cursor=page["next_cursor"])[0] == [made[0]["id"]]
    assert len(ids) == 3
    assert sqlite_site.get("/v1/scripts", params={"active": "2"}).status_code == 400


def test_a3_a_log_is_read_once_across_attempts_without_the_helpers_lines(module_site, job):
    empty = module_site.get(f"/v1/scripts/{job['id']}/logs").json()
    assert (empty["lines"], empty["next_since"], empty["finished"]) == ([], None, False)
    first = running(module_site, job)
    put_output(
        module_site,
        first,
        [
            (STDOUT, b'one\n::gpu:: {"t":"hello"}\ntwo\n'),
            (STDERR, b"::gpu:: no word of the runner\n"),
            (STDOUT, b"thr"),
            (STDOUT, b"ee\nlast without end"),
        ],
        end=False,
    )
    path = f"/v1/scripts/{job['id']}/logs"
    found = module_site.get(path).json()
    assert found["lines"] == ["one", "two", "::gpu:: no word of the runner", "three"]
    assert (found["attempt"], found["provider"], found["latest_attempt"]) == (1, "kaggle", 1)
    number, _, offset = found["next_since"].partition(":")
    assert module_site.get(f"{path}?attempt={number}&offset={offset}").json()["lines"] == []
    module_site.services.database.write(
        lambda c: script_attempts.change_attempt(c, first, {"state": "lost", "ended_at": 5.0})
    )
    second = start(module_site, job, 2, "colab")
    put_output(module_site, second, [(STDOUT, b"again\n")])
    rest = module_site.get(f"{path}?attempt={number}&offset={offset}").json()
    assert rest["lines"] == ["last without end", "--- attempt 2 on colab ---", "again"]
    assert (rest["attempt"], rest["finished"]) == (2, False)  # another Attempt may follow
    placed = module_site.get(f"{path}?places=1").json()
    assert placed["lines"] == [*found["lines"], *rest["lines"]]
    for line, place in zip(placed["lines"], placed["places"], strict=True):
        number_there, _, offset_there = place.partition(":")
        on = module_site.get(f"{path}?attempt={number_there}&offset={offset_there}").json()["lines"]
        # Ours has no place of its own: it is told again to whoever begins with its Attempt.
        behind = placed["lines"].index(line) + (not line.startswith("--- attempt"))
        assert on == placed["lines"][behind:]
    one_by_one = []
    place = "1:0"
    for _ in range(20):
        attempt, _, at = place.partition(":")
        page = module_site.get(f"{path}?attempt={attempt}&offset={at}&limit=1").json()
        one_by_one += page["lines"]
        place = page["next_since"]
        if not page["lines"]:
            break
    assert one_by_one == [*found["lines"], *rest["lines"]]
    assert module_site.get(f"{path}?tail=2&attempt=1").json()["lines"] == ["three", "last without end"]
    tail = module_site.get(f"{path}?tail=1").json()
    assert (tail["lines"], tail["attempt"], tail["next_since"].split(":")[0]) == (["again"], 2, "2")
    move(module_site, job, S.COLLECTING)
    move(module_site, job, S.SUCCEEDED, "COMPLETED")
    assert module_site.get(f"{path}?tail=1").json()["finished"] is True
    assert module_site.get(f"{path}?attempt=1&offset=0").json()["finished"] is True


def test_a3_long_lines_are_cut_and_a_page_is_bounded(module_site, job):
    attempt = running(module_site, job)
    line = b"x" * 5000 + b"\n"
    put_output(module_site, attempt, [(STDOUT, line * 10) for _ in range(10)])
    path = f"/v1/scripts/{job['id']}/logs"
    page = module_site.get(path).json()
    assert len(page["lines"]) == 30
    assert {len(each) for each in page["lines"]} == {2000}
    tail = module_site.get(f"{path}?tail=1000").json()
    assert (len(tail["lines"]), tail["older_lines_not_shown"]) == (30, 70)
    assert module_site.get(f"{path}?attempt=7").json()["code"] == "INVALID_REQUEST"
    assert module_site.get(f"{path}?tail=5&offset=0").json()["code"] == "INVALID_REQUEST"


def test_a4_outputs_are_listed_by_path_and_can_be_asked_for(module_site, job):
    asked = module_site.post(f"/v1/scripts/{job['id']}/fetch", {}).json()
    assert asked["asked"] is False  # it ran nowhere
    running(module_site, job)
    names = {"outputs/b.txt": 3, "outputs/a/model.bin": 5}
    rows = [
        {
            "id": f"art_{job['id']}{number}",
            "trial_id": job["trial_id"],
            "name": name,
            "size": size,
            "sha256": "c" * 64,
            "upload_state": "uploaded",
            "created_at": 1.0,
        }
        for number, (name, size) in enumerate(names.items())
    ]
    database = module_site.services.database
    database.write(lambda c: moves.put_artifacts(c, job["trial_id"], rows))
    database.write(lambda c: scripts.change(c, job["trial_id"], {"provider": "kaggle"}))
    listed = module_site.get(f"/v1/scripts/{job['id']}/outputs").json()
    assert [(each["path"], each["bytes"]) for each in listed["items"]] == [("a/model.bin", 5), ("b.txt", 3)]
    assert {each["upload_state"] for each in listed["items"]} == {"uploaded"}
    assert module_site.post(f"/v1/scripts/{job['id']}/fetch", {}).json()["asked"] is True
    database.write(lambda c: scripts.change(c, job["trial_id"], {"outputs_fetched": True}))
    assert module_site.post(f"/v1/scripts/{job['id']}/fetch", {}).json()["asked"] is False
    again = module_site.post(f"/v1/scripts/{job['id']}/fetch", {"refetch": True}).json()
    assert again["asked"] is True
    assert again["job"]["outputs_fetched"] is False, "who waits for them waits for those that come now"
    assert module_site.post(f"/v1/scripts/{job['id']}/fetch", {"again": 1}).status_code == 422


def test_a7_a_dry_run_says_what_a_submission_would_do_and_makes_nothing(sqlite_site):
    database = sqlite_site.services.database
    able = {"local": Capabilities(), "kaggle": Capabilities(max_session_hours=12.0)}
    database.write(lambda c: publish_capabilities(c, able))
    offer = '[{"type":"T4","vram_gb":15.0,"count":1}]'
    database.write(lambda c: providers.change_state(c, "kaggle", {"health": "ok", "offers": offer}))
    spec = document(
        {"manifest_sha256": "a" * 64, "files": 1, "bytes": 1}, hours=5, gpu="T4", provider="kaggle"
    )
    answer = sqlite_site.post("/v1/scripts/route", {"spec": spec}, headers={"Trainshed-Source": "agent"})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["route"]["outcome"], found["route"]["chosen"]) == ("place", "kaggle")
    assert found["approval"]["would_ask"] is True
    assert "over the 1h auto limit" in found["approval"]["reason"]
    user = sqlite_site.post("/v1/scripts/route", {"spec": spec}).json()
    assert user["approval"]["would_ask"] is False
    assert sqlite_site.get("/v1/scripts").json()["items"] == []
    wrong = sqlite_site.post("/v1/scripts/route", {"spec": {**spec, "hours": 0}})
    assert wrong.json()["errors"][0]["path"] == "spec.hours"


def test_a6_providers_and_quotas_are_shown(sqlite_site):
    database = sqlite_site.services.database
    database.write(lambda c: publish_capabilities(c, {"kaggle": Capabilities(), "lightning": Capabilities()}))
    values = {"health": "auth_required", "message": "log in with `gpu login kaggle`", "checked_at": 5.0}
    database.write(lambda c: providers.change_state(c, "kaggle", values))
    reading = {"used": 3.0, "quota_limit": 15.0, "unit": "credits", "resets_at": None, "live": True}
    database.write(
        lambda c: providers.record_quota(
            c, "lightning", {**reading, "detail": "as it says", "observed_at": 1.0}
        )
    )
    listed = {each["name"]: each for each in sqlite_site.get("/v1/providers").json()["items"]}
    assert (listed["kaggle"]["health"], listed["lightning"]["health"]) == ("auth_required", "unknown")
    quota = {each["provider"]: each for each in sqlite_site.get("/v1/provider-quota").json()["quota"]}
    assert quota["kaggle"]["detail"] == "log in with `gpu login kaggle`"
    assert (quota["lightning"]["used"], quota["lightning"]["unit"], quota["lightning"]["source"]) == (
        3.0,
        "credits",
        "live",
    )
    assert sqlite_site.post("/v1/providers/kaggle/healthcheck").json()["health"] == "auth_required"
    unknown = sqlite_site.post("/v1/providers/nowhere/healthcheck")
    assert unknown.json()["code"] == "PROVIDER_NOT_FOUND"


def test_h_secrets_are_kept_sealed_and_only_their_names_are_told(make_site):
    site = make_site(personal=False)
    value = "canary-9f1c2e"
    assert site.request("PUT", "/v1/secrets/WANDB_KEY", {"value": value}).json()["name"] == "WANDB_KEY"
    listed = site.get("/v1/secrets")
    assert [each["name"] for each in listed.json()["items"]] == ["WANDB_KEY"]
    assert value not in listed.text
    raw = b"".join(path.read_bytes() for path in site.data.parent.rglob("*") if path.is_file())
    assert value.encode() not in raw
    bob = site.add_key(user="bob", kind="human")
    assert site.get("/v1/secrets", key=bob).json()["items"] == []
    assert site.request("DELETE", "/v1/secrets/WANDB_KEY", key=bob).json()["code"] == "SECRET_NOT_FOUND"
    assert site.request("DELETE", "/v1/secrets/WANDB_KEY").status_code == 200


@pytest.mark.parametrize(
    ("name", "value", "path"),
    [
        ("HF_TOKEN", "x", "name"),
        ("a-b", "x", "name"),
        ("OK", "", "value"),
        ("OK", 3, "value"),
        ("OK", "\0", "value"),
    ],
)
def test_h_bad_secrets_are_refused(make_site, name, value, path):
    answer = make_site(personal=False).request("PUT", f"/v1/secrets/{name}", {"value": value})
    assert answer.json()["code"] == "INVALID_REQUEST"
    assert answer.json()["errors"][0]["path"] == path


def test_h_an_agent_changes_no_secret(module_site):
    agent = {"Trainshed-Source": "agent"}
    put = module_site.request("PUT", "/v1/secrets/X", {"value": "v"}, headers=agent)
    assert (put.status_code, put.json()["code"]) == (403, "FORBIDDEN")
    assert module_site.request("DELETE", "/v1/secrets/X", headers=agent).json()["code"] == "FORBIDDEN"


def test_f_metrics_are_read_as_they_went_across_attempts(module_site, job):
    path = f"/v1/scripts/{job['id']}/metrics"
    assert module_site.get(path).json() == {"source": None, "series": []}
    first = running(module_site, job)
    put_output(
        module_site, first, [(STDOUT, b"loss=3 step 1/9\nloss"), (STDOUT, b"=2\n"), (STDERR, b"loss=1\n")]
    )
    guessed = {"name": "loss", "steps": [None] * 3, "values": [3, 2, 1]}
    assert module_site.get(path).json() == {"source": "guess", "series": [guessed]}
    said = b"".join(
        b'::gpu:: {"t":"metric","step":%d,"values":{"loss":%d}}\n' % (n, 1000 - n) for n in range(501)
    )
    put_output(module_site, first, [(STDOUT, b"loss=3\n" + said)])
    module_site.services.database.write(
        lambda c: script_attempts.change_attempt(c, first, {"state": "lost", "ended_at": 5.0})
    )
    second = start(module_site, job, 2, "colab")
    put_output(
        module_site,
        second,
        [
            (STDERR, b'::gpu:: {"t":"metric","step":1,"values":{"loss":1}}\n'),
            (STDOUT, b'::gpu:: {"t":"metric","step":501,"values":{"loss":0.5,"acc":1}}\n'),
        ],
    )
    found = module_site.get(path).json()
    assert found["source"] == "helper"
    loss, acc = found["series"]
    assert (loss["name"], acc) == ("loss", {"name": "acc", "steps": [501], "values": [1]})
    assert (loss["steps"][-1], loss["values"][-1]) == (501, 0.5)
    assert len(loss["steps"]) == len(loss["values"]) <= 200
    assert loss["steps"] == sorted(set(loss["steps"]))
