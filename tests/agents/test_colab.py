"""Jobs of an agent at a simulated Colab, through a real server; not tried against Colab itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.agent_jobs import ended, fetched, submitted
from support.colab_sim import Colab
from support.server import ServerProcess
from support.waiting import wait_until

SAYS = "import gpu, pathlib\nprint('said')\npathlib.Path(gpu.output_dir(), 'out').write_text('x')\n"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Colab]:
    made = Colab(tmp_path_factory.mktemp("colab"))
    made.install()
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(there: Colab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """This user's server, with Google's command line beside it."""
    folder = tmp_path_factory.mktemp("agents")
    config = folder / "config.toml"
    config.write_text(
        f'[providers]\nuse = ["colab"]\npoll_seconds = 0.5\ncolab_program = "{there.program}"\n'
    )
    made = ServerProcess(folder / "server", gpus="H100:1", options=("--config", str(config)))
    made.start()
    yield made
    made.stop()


def sessions(there: Colab) -> list[str]:
    with there.state() as state:
        return list(state["sessions"])


def test_G3_G45_G54_a_job_runs_there_and_its_session_is_given_back(agent, there, new_project):
    folder = new_project({"says.py": SAYS, "set/a.txt": "1"})
    short, _ = submitted(agent, folder, script="says.py", hours=0.5)
    found = ended(agent, short)
    assert (found["job"]["state"], found["job"]["provider"]) == ("done", "colab"), found["job"]
    assert (fetched(agent, short) / "out").read_text() == "x"
    assert "said" in agent.call("gpu_logs", ref=short)["lines"]
    wait_until(lambda: not sessions(there), 60, "the session to be given back")
    with there.state() as state:
        assert len(state["cells"]) == 1
    route = agent.call(
        "gpu_route", project_dir=str(folder), script="says.py", data=["set=set"], provider="colab"
    )["route"]
    assert route["outcome"] == "no_fit"
    assert "datasets" in str(route["rejected"])
