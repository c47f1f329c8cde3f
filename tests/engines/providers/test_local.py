"""This machine as a provider, through its real engine and the real runner."""

from __future__ import annotations

import json
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from engines.providers.conformance import SECRET, Harness, Program, ProviderRules, bundle
from trainshed.engines.contract import Limits
from trainshed.engines.local import LocalEngine
from trainshed.engines.providers.contract import InvalidJob, Phase, Submission
from trainshed.engines.providers.framelog import LineLog, read_lines
from trainshed.engines.providers.local import LocalProvider, Room
from trainshed.jobkit import frames, gpu_files
from trainshed.model.logs import LogFiles

PROGRAM = """
import json, os, sys, time
outputs = json.loads(os.environ["OUTPUTS"])
for line in json.loads(os.environ["LINES"]):
    print(line)
print("secret", os.environ["TOKEN"])
for name, text in outputs.items():
    place = os.path.join(os.environ["GPU_OUTPUT_DIR"], name)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    open(place, "w").write(text)
if os.environ.get("FOREVER"):
    time.sleep(600)
sys.exit(int(os.environ["CODE"]))
"""


class LocalHarness(Harness):
    """Real programs on this machine."""

    loses_answers = False

    def __init__(self, root: Path) -> None:
        self._root = root
        self._attempts: set[str] = set()
        self.engine = LocalEngine(root / "engine", simulate_gpus={"H100": 1})
        self.reopen()

    def reopen(self) -> None:
        room = Room((), Limits(1, 2000, 2000, 64), 600, 1.0)
        self.provider = LocalProvider(self.engine, lambda _attempt: room, self.engine.nodes)

    def submission(self, key: str, program: Program) -> Submission:
        entry = {"script": "train.py", "command": None, "args": [], "workdir": ""}
        manifest = {"manifest_version": 1, "entrypoint": entry, "checkpoint_interval_min": 0}
        folder = bundle(self._root / key, {"train.py": PROGRAM.encode()}, json.dumps(manifest).encode())
        for path, data in gpu_files.files().items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        env = {
            "LINES": json.dumps(program.lines),
            "OUTPUTS": json.dumps({name: data.decode() for name, data in program.outputs.items()}),
            "CODE": str(program.code),
            "TRAINSHED_JOB_ID": "abc",
            "TRAINSHED_ATTEMPT": "1",
            **({"FOREVER": "1"} if program.forever else {}),
        }
        attempt = "att_" + key.replace("-", "_")
        self._attempts.add(attempt)
        return Submission(
            key, "name", folder, lambda: folder, env, {"TOKEN": SECRET}, None, None, attempt_id=attempt
        )

    def pass_time(self) -> None:
        self.engine.changed(0.1)

    def runs(self) -> int:
        seen = self.engine.observe(self._attempts)
        return sum(each.phase != "absent" for each in seen.values())

    def written(self) -> str:
        files = [path for path in (self._root / "engine").rglob("*") if path.is_file()]
        return "\n".join(path.read_bytes().decode("utf-8", "replace") for path in files)


@pytest.fixture
def harness(tmp_path):
    made = LocalHarness(tmp_path)
    yield made
    for attempt in made._attempts:
        made.engine.release(attempt)
    made.engine.close()


class TestLocal(ProviderRules):
    """See `engines.providers.conformance`."""


def test_a_program_is_asked_to_save_by_a_file_that_no_link_leads_away(harness, tmp_path):
    run = harness.provider.submit(harness.submission("gpu-ask-1", Program(forever=True)))
    harness.until(run, lambda phase: phase is Phase.RUNNING)
    work = harness.provider.folder(run)
    deadline = 200
    while not (work / ".gpu").is_dir() and deadline:
        harness.pass_time()
        deadline -= 1
    assert harness.provider.request_checkpoint(run)
    assert (work / ".gpu" / "checkpoint_requested").exists()
    (work / ".gpu").rename(work / "moved")
    (work / ".gpu").symlink_to(tmp_path)
    assert harness.provider.request_checkpoint(run) is False
    assert not (tmp_path / "checkpoint_requested").exists()


def test_the_interpreter_may_be_that_of_a_projects_own_environment(harness, tmp_path):
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (packages / "only_here.py").write_text("WORD = 'mine'")
    submission = harness.submission("gpu-own-1", Program())
    submission = replace(submission, options={"python": str(tmp_path / "venv" / "bin" / "python")})
    (submission.bundle / "code" / "train.py").write_text("import only_here; print('line', only_here.WORD)")
    run = harness.provider.submit(submission)
    assert harness.ended(run) is Phase.SUCCEEDED
    assert harness.lines_of(run) == ["line mine"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pythn": "python3"}, "there is no option pythn"),
        ({"python": "bin/python"}, "no whole path"),
        ({"python": 3}, "no name of a program"),
        ({"python": "-m"}, "no program on this machine"),
        ({"python": "/no/venv/bin/python"}, "no program on this machine"),
        ({"python": "/etc/passwd"}, "no program on this machine"),
    ],
)
def test_options_that_mean_nothing_are_refused_for_good(harness, options, said):
    submission = replace(harness.submission("gpu-odd-1", Program()), options=options)
    with pytest.raises(InvalidJob, match=said):
        harness.provider.submit(submission)
    assert harness.runs() == 0


def test_a_run_that_was_begun_keeps_its_answer_when_its_interpreter_goes(harness, tmp_path):
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    submission = replace(harness.submission("gpu-own-2", Program()), options={"python": str(python)})
    run = harness.provider.submit(submission)
    assert harness.ended(run) is Phase.SUCCEEDED
    python.unlink()
    assert harness.provider.submit(submission) == run


# Lines out of frames


def _log(folder: Path, *parts: bytes) -> LogFiles:
    folder.mkdir(exist_ok=True)
    (folder / "log.frames").write_bytes(b"".join(parts))
    return LogFiles(folder / "log.frames", folder / "log.index")


def _frame(text: bytes, stream: int = frames.STDOUT, flags: int = 0) -> bytes:
    return frames.header(len(text), stream, flags, 1) + text


def test_a_line_in_pieces_is_one_line_and_is_held_until_it_ends(tmp_path):
    files = _log(tmp_path, _frame(b"one\n"), _frame(b"tw", flags=frames.CONTINUES))
    first = read_lines(files, None, ended=False)
    assert first.lines == ("one",)
    files = _log(tmp_path, _frame(b"one\n"), _frame(b"tw", flags=frames.CONTINUES), _frame(b"o\n"))
    second = read_lines(files, first.cursor, ended=False)
    assert (second.lines, second.finished) == (("two",), False)


def test_a_line_without_its_end_is_a_line_once_nobody_writes(tmp_path):
    files = _log(tmp_path, _frame(b"tail", flags=frames.CONTINUES), frames.header(0, frames.EOF, 0, 1))
    chunk = read_lines(files, None, ended=False)
    assert (chunk.lines, chunk.finished) == (("tail",), True)


def test_a_torn_frame_is_not_read(tmp_path):
    whole = _frame(b"whole\n")
    chunk = read_lines(_log(tmp_path, whole, _frame(b"torn\n")[:-2]), None, ended=False)
    assert chunk.lines == ("whole",)
    assert int(chunk.cursor) == len(whole)


def test_what_is_written_to_standard_error_is_no_word_of_the_runner(tmp_path):
    line = b'::gpu:: {"t": "exit"}\n'
    chunk = read_lines(_log(tmp_path, _frame(line, frames.STDERR)), None, ended=False)
    assert not chunk.lines[0].startswith("::gpu::")


def test_lines_that_are_kept_again_after_a_crash_are_kept_once(tmp_path):
    log = LineLog(tmp_path / "kept")
    at = log.append(["a", "b"], begins_at=0, at_ns=1)
    log.append(["lost with the crash"], begins_at=at, at_ns=2)
    end = log.append(["c"], begins_at=at, at_ns=3)
    log.end(begins_at=end, at_ns=4)
    chunk = read_lines(log.files, None, ended=False)
    assert (chunk.lines, chunk.finished) == (("a", "b", "c"), True)
