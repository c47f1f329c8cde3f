"""Jobs of an agent at a simulated Kaggle, through a real server; not tried against Kaggle itself."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from support.agent_jobs import approve, ended, fetched, notes, submitted, words
from support.kaggle_sim import KEY, USER, Kaggle, kaggle
from support.server import ServerProcess
from support.waiting import wait_until

STEPS = """
import json, pathlib, time
import gpu
gpu.total_steps(1000)
last = gpu.latest_checkpoint()
begun = json.loads((last / "step.json").read_text())["step"] if last else 0
step = begun
(pathlib.Path(gpu.output_dir()) / ("from-%d" % begun)).touch()
while begun == 0 or step < begun + 3:
    step += 1
    gpu.log(step, loss=1 / step)
    if step == begun + 3:
        with gpu.checkpoint(step) as folder:
            (folder / "step.json").write_text(json.dumps({"step": step}))
    time.sleep(0.05)
"""
"""Counts steps, and ends when it went on from a checkpoint."""
READS = "import gpu\nprint('it says', (gpu.data_dir() / 'set' / 'a.txt').read_text())\n"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kaggle]:
    with kaggle(tmp_path_factory.mktemp("kaggle")) as made:
        yield made


@pytest.fixture(scope="module")
def server(there: Kaggle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """This user's server, with a login at Kaggle."""
    folder = tmp_path_factory.mktemp("agents")
    config = folder / "config.toml"
    config.write_text(
        '[providers]\nuse = ["kaggle"]\npoll_seconds = 0.2\nretry_seconds = 1.0\n'
        f'kaggle_url = "{there.url}"\n'
    )
    login = {"KAGGLE_USERNAME": USER, "KAGGLE_KEY": KEY}
    made = ServerProcess(
        folder / "server", gpus="H100:1", options=("--config", str(config)), environment=login
    )
    made.start()
    yield made
    made.stop()


def test_G3_G21_G31_G39_G58_chosen_without_being_named_and_nothing_is_sent_before_a_yes(
    agent, person, there, new_project
):
    folder = new_project({"reads.py": READS, "set/a.txt": "hello"})
    before = there.writes
    short, _ = submitted(agent, folder, script="reads.py", data=["set=set"])
    waiting = wait_until(
        lambda: (
            (found := agent.call("gpu_status", ref=short, wait_s=5, verbose=True))["job"]["state"]
            == "awaiting_approval"
            and found
        ),
        60,
        "the question",
    )
    assert waiting["guidance"]["needs_approval"] is True
    assert "kaggle T4" in waiting["guidance"]["tell_user"]
    assert (there.writes, there.started) == (before, []), "G31: nothing is there before a person says yes"
    approve(person, agent, short)
    found = ended(agent, short)
    assert (found["job"]["state"], found["job"]["provider"]) == ("done", "kaggle"), found["job"]
    assert found["job"]["gpu"] == "Tesla T4"
    assert "kaggle" in found["job"]["route_reason"]
    shown = words(found)
    assert shown[:3] == ["queued", "routing", "awaiting_approval"]
    assert shown[-3:] == ["provisioning", "running", "done"]
    assert "it says hello" in agent.call("gpu_logs", ref=short)["lines"]

    again, _ = submitted(agent, folder, script="reads.py", data=["set=set"], hours=0.5, name="again")
    assert ended(agent, again)["job"]["state"] == "done"
    assert "data_reused" in notes(agent.call("gpu_status", ref=again, verbose=True))
    data = [slug for slug in there.uploaded if slug.startswith("trainshed-data-")]
    assert len(data) == 1, "G58: two Jobs, one upload"
    (folder / "set" / "a.txt").write_text("hellO")
    third, _ = submitted(agent, folder, script="reads.py", data=["set=set"], hours=0.5, name="third")
    assert ended(agent, third)["job"]["state"] == "done"
    data = [slug for slug in there.uploaded if slug.startswith("trainshed-data-")]
    assert len(set(data)) == 2, "G58: a byte changed"
    wait_until(lambda: set(there.datasets) == set(data), 60, "the input of ended runs to be removed")


def test_G43_G45_a_lost_session_goes_on_elsewhere_from_its_checkpoint(agent, there, new_project):
    folder = new_project({"steps.py": STEPS})
    short, _ = submitted(agent, folder, script="steps.py", hours=0.5)
    slug = wait_until(lambda: [s for s in there.started if short in s], 60, "a session")[0]
    store = there.root / "sessions" / f"{slug}-1" / "kaggle" / "working" / "checkpoint_store" / "latest"
    wait_until(store.exists, 90, "a stored checkpoint")
    wait_until(lambda: agent.call("gpu_status", ref=short)["job"]["state"] == "running", 60)
    there.lose(slug)
    found = ended(agent, short)
    assert found["job"]["state"] == "done", found["job"]
    assert len(found["attempts"]) == 2
    shown = words(found)
    after = shown[shown.index("migrating") :]
    assert after.index("provisioning") < after.index("running") < after.index("done")
    outputs = fetched(agent, short)
    assert (outputs / "from-3").exists(), "the step goes on"
    assert sum(short in s for s in there.started) == 2


def test_the_account_is_seen_through_the_tools(agent):
    listed = {row["provider"]: row for row in agent.call("gpu_quota", refresh=True)["quota"]}
    assert (listed["kaggle"]["limit"], listed["kaggle"]["unit"], listed["kaggle"]["source"]) == (
        30.0,
        "gpu_hours",
        "live",
    )
    assert KEY not in json.dumps(listed)
