"""Datasets of the hub are fetched where the Job runs, whole or not at all (contract G, section e.12)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.hub import COMMIT, Hub, serving
from support.work_folders import Done, WorkFolder
from trainshed.jobkit.gpu_runner import attempt, jobs
from trainshed.jobkit.gpu_runner import hub as fetching
from trainshed.jobkit.gpu_runner.jobs import Broken

FILES = {
    "README.md": b"# set\n",
    "train/a b.txt": b"one\n",
    "train/large.bin": b"\x00\x01" * 50_000,
    "train/deep/x.txt": b"x",
    "test/t.txt": b"t",
}
SHOW = (
    "import gpu, json, os\n"
    "top = gpu.data_dir() / 'set'\n"
    "files = [top] if top.is_file() else sorted(path for path in top.rglob('*') if path.is_file())\n"
    "print(json.dumps({os.path.relpath(str(path), str(top)): path.stat().st_size for path in files}))\n"
)
Start = Callable[..., Hub]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda **more: stack.enter_context(serving(Hub(files=FILES, **more)))


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_PAUSE_SECONDS", 0.0)


def run(tmp_path: Path, hub: Hub, uri: str, **env: str) -> Done:
    work = WorkFolder(tmp_path / "work").script(SHOW, data=[{"mount": "set", "uri": uri}])
    return work.run(HF_ENDPOINT=hub.url, **env)


def fetched(
    tmp_path: Path, hub: Hub, uri: str, monkeypatch: pytest.MonkeyPatch, token: str | None = None
) -> Path:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    fetching.fetch(uri, str(tmp_path / "set"), token)
    return tmp_path / "set"


def test_G57_a_dataset_of_the_hub_is_readable_in_the_data_folder(tmp_path, start):
    done = run(tmp_path, start(), "hf://datasets/owner/set")
    assert json.loads(done.lines[-1]) == {name: len(data) for name, data in FILES.items()}
    assert done.code == 0


def test_G57_beside_datasets_that_were_mounted_read_only_too(tmp_path, start, monkeypatch):
    hub = start()
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    mounted = tmp_path / "mounted"
    (mounted / "given").mkdir(parents=True)
    (mounted / "given" / "a").write_text("a")
    place = jobs.place(str(tmp_path / "work"), {"GPU_DATA_DIR": str(mounted)})
    monkeypatch.setattr(attempt.os, "access", lambda path, mode: (path, mode) != (str(mounted), os.W_OK))
    roomy = attempt._with_room_for_data(place)
    fetching.fetch("hf://datasets/owner/set/test", str(Path(roomy.data, "set")), None)
    assert Path(roomy.data, "given", "a").read_text() == "a"
    assert Path(roomy.data, "set", "t.txt").read_text() == "t"
    assert sorted(path.name for path in mounted.iterdir()) == ["given"]


def test_every_file_is_asked_of_one_commit(tmp_path, start, monkeypatch):
    hub = start()
    top = fetched(tmp_path, hub, "hf://datasets/owner/set@main", monkeypatch)
    assert {name: (top / name).read_bytes() for name in FILES} == FILES
    assert all(COMMIT in path for path, _ in hub.asked[1:])


@pytest.mark.parametrize("uri", ["hf://datasets/owner/set/train", f"hf://datasets/owner/set@{COMMIT}/train/"])
def test_a_folder_of_a_dataset_is_that_folder(tmp_path, start, monkeypatch, uri):
    top = fetched(tmp_path, start(), uri, monkeypatch)
    assert sorted(path.name for path in top.iterdir()) == ["a b.txt", "deep", "large.bin"]
    assert (top / "deep" / "x.txt").read_bytes() == b"x"


@pytest.mark.parametrize("name", ["README.md", "train/a b.txt"])
def test_a_file_of_a_dataset_is_that_file(tmp_path, start, monkeypatch, name):
    assert (
        fetched(tmp_path, start(), f"hf://datasets/owner/set/{name}", monkeypatch).read_bytes() == FILES[name]
    )


def test_a_private_dataset_is_fetched_with_the_token_which_stays_at_the_hub(tmp_path, start):
    hub = start(token="own-token")
    done = run(
        tmp_path, hub, "hf://datasets/owner/set/train", HF_TOKEN="own-token", TRAINSHED_HUB_TOKEN="other"
    )
    assert done.code == 0
    assert hub.stored == [None]
    assert {token for _, token in hub.asked} == {"Bearer own-token"}
    assert "own-token" not in done.text


def test_without_a_token_of_its_own_a_job_has_that_of_the_storage(tmp_path, start, monkeypatch):
    hub = start(token="storage-token")
    for name in fetching._TOKENS:
        monkeypatch.delenv(name, raising=False)
    uri = "hf://datasets/owner/set"
    named = {"TRAINSHED_HUB_TOKEN": "storage-token", "TRAINSHED_HUB_ENDPOINT": hub.url + "/"}
    done = run(tmp_path, hub, uri, **named)
    assert done.code == 0
    assert {token for _, token in hub.asked} == {"Bearer storage-token"}
    assert hub.stored == [None]


@pytest.mark.parametrize("named", [{}, {"TRAINSHED_HUB_ENDPOINT": "http://127.0.0.1:9"}])
@pytest.mark.parametrize("library", [False, True], ids=["plain", "library"])
def test_a_hub_that_the_job_named_is_not_shown_the_token_of_the_storage(
    tmp_path, start, monkeypatch, named, library
):
    """`HF_ENDPOINT` may come from gpu.yaml, and what is there may keep what it is shown."""
    hub = start()
    for name in fetching._TOKENS:
        monkeypatch.delenv(name, raising=False)
    if library:
        packages = tmp_path / "packages"
        packages.mkdir()
        (packages / "huggingface_hub.py").write_text(
            "def snapshot_download(repo_id, *, token, **more): raise OSError(f'token is {token}')\n"
        )
        named = {**named, "PYTHONPATH": str(packages)}
    done = run(tmp_path, hub, "hf://datasets/owner/set", TRAINSHED_HUB_TOKEN="storage-token", **named)
    assert done.code == 0, "what needs no token is fetched all the same"
    assert len(hub.asked) > 1
    assert {token for _, token in hub.asked} == {None}
    assert ("token is False" in done.text) is library
    assert "is not for " + hub.url in done.text
    assert "storage-token" not in done.text


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("hf://datasets/owner/other", "HTTP 404"),
        ("hf://datasets/owner/set/no-such-folder", "nothing of that name"),
        ("hf://datasets/owner", "is no dataset of the hub"),
        ("hf://datasets/owner/set/../x", "is no dataset of the hub"),
    ],
)
def test_what_cannot_be_fetched_is_exit_90_and_the_program_does_not_run(tmp_path, start, uri, says):
    done = run(tmp_path, start(), uri)
    assert done.code == 90
    exit_line = done.wire("exit")[0]
    assert exit_line["stage"] == "data"
    assert says in exit_line["message"]
    assert not (tmp_path / "work" / "data" / "set").exists()


def test_a_dataset_that_one_may_not_see_says_that_a_token_is_asked_for(tmp_path, start, monkeypatch):
    with pytest.raises(Broken, match="asks for a token"):
        fetched(tmp_path, start(token="x"), "hf://datasets/owner/set", monkeypatch)


def test_passing_faults_are_waited_out(tmp_path, start, monkeypatch):
    hub = start(faults=[503, 429, 500])
    assert fetched(tmp_path, hub, "hf://datasets/owner/set/test", monkeypatch).is_dir()


def test_a_hub_that_stays_ill_is_given_up(tmp_path, start, monkeypatch):
    with pytest.raises(Broken, match="HTTP 503"):
        fetched(tmp_path, start(faults=[503] * 9), "hf://datasets/owner/set", monkeypatch)


@pytest.mark.parametrize("name", ["train/large.bin", "README.md"])
def test_a_file_that_arrives_changed_is_not_taken(tmp_path, start, monkeypatch, name):
    with pytest.raises(Broken, match="arrived changed"):
        fetched(tmp_path, start(garble={name}), "hf://datasets/owner/set", monkeypatch)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_leads_elsewhere_is_refused(tmp_path, start, monkeypatch):
    row = {"type": "file", "path": "../outside", "size": 1, "oid": "0"}
    with pytest.raises(Broken, match="names a file"):
        fetched(tmp_path, start(rows=[row]), "hf://datasets/owner/set", monkeypatch)


def test_the_hubs_own_library_is_used_where_it_is_installed(tmp_path, start):
    library = tmp_path / "packages" / "huggingface_hub.py"
    library.parent.mkdir()
    library.write_text(
        "import os, json\n"
        "def snapshot_download(repo_id, *, repo_type, revision, allow_patterns, local_dir, token):\n"
        "    os.makedirs(os.path.join(local_dir, '.cache'))\n"
        "    os.makedirs(os.path.join(local_dir, 'train'))\n"
        "    said = [repo_id, repo_type, revision, allow_patterns, token]\n"
        "    open(os.path.join(local_dir, 'train', 'said'), 'w').write(json.dumps(said))\n"
    )
    uri = f"hf://datasets/owner/set@{COMMIT}/train"
    done = run(tmp_path, start(), uri, PYTHONPATH=str(library.parent))
    assert done.code == 0
    said = json.loads((tmp_path / "work" / "data" / "set" / "said").read_text())
    assert said == ["owner/set", "dataset", COMMIT, ["train", "train/*"], False]


def test_a_library_that_fails_is_done_without(tmp_path, start):
    library = tmp_path / "packages" / "huggingface_hub.py"
    library.parent.mkdir()
    library.write_text("def snapshot_download(repo_id): pass\n")
    done = run(tmp_path, start(), "hf://datasets/owner/set", PYTHONPATH=str(library.parent))
    assert done.code == 0
    assert json.loads(done.lines[-1]) == {name: len(data) for name, data in FILES.items()}
