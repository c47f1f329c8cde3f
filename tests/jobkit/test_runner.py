"""The runner of script Jobs as a provider starts it: what runs, where, how its end is told (contract G)."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from support.waiting import wait_until
from support.work_folders import WorkFolder, finish

SAY_ARGUMENTS = "import json, sys\nprint(json.dumps(sys.argv[1:]))\n"
LIVES = "import os, sys, time\nopen('lives', 'w').close()\n"
FOR_EVER = "while True: time.sleep(0.05)\n"


@pytest.fixture
def work(tmp_path: Path) -> WorkFolder:
    return WorkFolder(tmp_path / "work")


def lives(work: WorkFolder) -> bool:
    return (work.path / "code" / "lives").exists()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_G53_arguments_arrive_unchanged(work):
    given = ["a b", "", "'\"", "--lr=1", "-x", "grün ☃", "$HOME;*", "line\nbreak"]
    done = work.script(SAY_ARGUMENTS, *given).run()
    assert json.loads(done.lines[0]) == given
    assert done.code == 0


def test_G64_a_command_line_runs_with_one_argument_a_b(work):
    work.code({"jobs/run.sh": 'printf "%s|" "$@"\npython -c "import gpu; print(gpu.enabled())"\n'})
    done = work.manifest({"command": ["bash", "jobs/run.sh", "--x", "a b"]}).run()
    assert done.lines[0] == "--x|a b|True"
    assert done.code == 0


def test_G47_a_plain_variable_reaches_the_program_and_what_is_the_runners_does_not(work):
    work.script("import os, json\nprint(json.dumps(dict(os.environ)))\n")
    done = work.run(COLOR="grün", TRAINSHED_HUB_TOKEN="hidden-token", TRAINSHED_CHECKPOINT_INTERVAL_S="60")
    seen = json.loads(done.lines[0])
    assert seen["COLOR"] == "grün"
    assert seen["TRAINSHED_JOB_ID"] == "a1b2c3d4e5f6"
    assert (seen["TRAINSHED_ATTEMPT"], seen["TRAINSHED_PROTOCOL"]) == ("1", "1")
    assert seen["GPU_OUTPUT_DIR"] == str(work.path / "outputs")
    assert "GPU_RESUME_DIR" not in seen
    assert "hidden-token" not in done.text
    assert "TRAINSHED_CHECKPOINT_INTERVAL_S" not in seen


def test_G81_a_sibling_package_is_importable_from_a_project_below_the_git_root(work):
    work.code(
        {
            "shared/__init__.py": "WORD = 'sibling'",
            "src/laid_out/__init__.py": "WORD = 'src'",
            "team/app/train.py": "import os, shared, laid_out, near, gpu\n"
            "print(shared.WORD, laid_out.WORD, near.WORD, os.path.basename(os.getcwd()), gpu.enabled())\n",
            "team/app/near.py": "WORD = 'near'",
        }
    )
    done = work.manifest({"script": "train.py", "workdir": "team/app"}).run()
    assert done.lines == ["sibling src near app True"]


def test_a_projects_own_module_gpu_comes_first(work):
    done = work.code({"gpu.py": "OWN = 1"}).script("import gpu; print(gpu.OWN)\n").run()
    assert done.lines == ["1"]


def test_the_programs_output_appears_while_it_runs(work):
    process = work.script(LIVES + "print('first', end=' ')\nprint('line')\n" + FOR_EVER).start()
    assert process.stdout is not None
    lines = iter(process.stdout.readline, b"")
    assert next(line for line in lines if not line.startswith(b"::")) == b"first line\n"
    process.terminate()
    finish(process)


@pytest.mark.parametrize("code", [0, 1, 3, 90])
def test_the_exit_status_is_the_programs_and_the_record_says_so(work, code):
    done = work.script(f"raise SystemExit({code})\n").run()
    assert done.code == code
    record = work.record
    assert (record["code"], record["signal"], record["stage"]) == (code, None, "script")
    assert record["stopped"] is False
    assert record["started_at"] <= record["finished_at"]
    assert done.wire("exit")[0]["code"] == code
    assert done.text.splitlines()[-1].startswith('::gpu:: {"t":"exit"')


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_death_by_a_signal_is_128_and_its_number(work, number):
    done = work.script(f"import os\nos.kill(os.getpid(), {number:d})\n").run()
    assert (done.code, work.record["signal"], work.record["stopped"]) == (128 + number, number, False)


def test_a_program_that_is_not_there_is_said_as_a_shell_would(work):
    done = work.manifest({"command": ["no-such-program", "x"]}).run()
    assert (done.code, work.record["stage"]) == (127, "script")
    assert "cannot run no-such-program" in work.record["message"]


def test_a_file_that_may_not_be_run_is_said_as_a_shell_would(work):
    done = work.code({"run.sh": "echo"}).manifest({"command": ["./run.sh"]}).run()
    assert done.code == 126


def test_hello_and_the_real_device_come_first(work):
    smi = work.path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(
        "#!/bin/sh\necho '0, GPU-aa11, NVIDIA H200, 143771'\necho '1, GPU-bb22, NVIDIA H200, 143771'\n"
    )
    smi.chmod(0o755)
    path = f"{smi.parent}:{os.environ['PATH']}"
    done = work.script("print('x')\n").run(PATH=path, CUDA_VISIBLE_DEVICES="1")
    assert done.text.startswith('::gpu:: {"t":"hello"')
    assert done.wire("hello")[0]["attempt"] == 1
    device = {"t": "device", "kind": "cuda", "name": "NVIDIA H200", "vram_gb": 150.8, "count": 1}
    assert done.wire("device") == [device]


def test_a_machine_without_an_accelerator_says_cpu(work):
    done = work.script("\n").run(PATH=f"{Path(sys.executable).parent}", CUDA_VISIBLE_DEVICES="")
    assert done.wire("device")[0]["kind"] == "cpu"


def test_sigterm_reaches_the_program_which_may_end_by_itself(work):
    work.script(
        "import signal, sys\n"
        "def end(*_):\n    print('saving')\n    sys.exit(7)\n"
        "signal.signal(signal.SIGTERM, end)\n" + LIVES + FOR_EVER
    )
    process = work.start()
    wait_until(lambda: lives(work))
    process.terminate()
    done = finish(process)
    assert (done.code, work.record["stopped"], work.record["signal"]) == (7, True, None)
    assert "saving" in done.lines


def test_a_program_that_does_not_end_is_killed_with_all_it_started(work):
    work.script(
        "import signal, subprocess\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        "print(child.pid)\n" + LIVES + FOR_EVER
    )
    process = work.start(TRAINSHED_STOP_GRACE_S="0.3")
    wait_until(lambda: lives(work))
    process.terminate()
    done = finish(process)
    assert (done.code, work.record["signal"]) == (137, signal.SIGKILL)
    assert gone(int(done.lines[0]))


def test_a_second_sigterm_does_not_wait(work):
    work.script(
        "import signal\nsignal.signal(signal.SIGTERM, lambda *_: print('heard'))\n" + LIVES + FOR_EVER
    )
    process = work.start(TRAINSHED_STOP_GRACE_S="600")
    wait_until(lambda: lives(work))
    assert process.stdout is not None
    process.terminate()
    assert b"heard\n" in iter(process.stdout.readline, b"")
    process.terminate()
    assert finish(process).code == 137


def test_what_a_program_leaves_running_does_not_hold_the_runner_up(work):
    work.script("import subprocess\nprint(subprocess.Popen(['sleep', '300']).pid)\n")
    done = work.run()
    assert done.code == 0
    assert gone(int(done.lines[0]))


def test_what_a_program_lets_go_does_not_stay_behind_as_zombies(work):
    work.script(
        "import os, subprocess, time\n"
        "for _ in range(20): subprocess.run(['sh', '-c', 'true &'], check=True)\n"
        "def zombies():\n"
        "    found = 0\n"
        "    for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "        try: fields = open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()\n"
        "        except OSError: continue\n"
        "        found += fields[0] == 'Z' and int(fields[1]) == os.getppid()\n"
        "    return found\n"
        "until = time.monotonic() + 20\n"
        "while zombies() and time.monotonic() < until: time.sleep(0.05)\n"
        "print(zombies())\n"
    )
    assert work.run().lines == ["0"]


def test_a_runner_that_is_killed_leaves_no_program_behind(work):
    process = work.script("import os\nprint(os.getpid())\n" + LIVES + FOR_EVER).start()
    assert process.stdout is not None
    pid = next(int(line) for line in iter(process.stdout.readline, b"") if line.strip().isdigit())
    process.kill()
    process.communicate()
    wait_until(lambda: gone(pid))
    assert not (work.path / ".gpu" / "exit.json").exists()


def test_a_runner_is_known_to_live_by_its_lock(work):
    process = work.script(LIVES + FOR_EVER).start()
    wait_until(lambda: lives(work))
    assert int((work.path / ".gpu" / "lock").read_text()) == process.pid
    second = work.run()
    assert second.code == 90
    assert "another runner works in this folder" in second.text
    assert not (work.path / ".gpu" / "exit.json").exists()
    process.terminate()
    assert finish(process).code == 143


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        ("{", "manifest.json cannot be read"),
        ("[]", "must be an object"),
        ('{"manifest_version": 2}', "manifest_version is 2"),
        ('{"entrypoint": {}}', "one of script and command"),
        ('{"entrypoint": {"script": "a.py", "args": [1]}}', "entrypoint.args must be a list of strings"),
        ('{"entrypoint": {"script": "a.py", "workdir": "../x"}}', "leads out"),
        ('{"entrypoint": {"script": "a.py", "workdir": "nowhere"}}', "no folder 'nowhere'"),
        ('{"entrypoint": {"script": "a.py"}, "deps": {"kind": "conda"}}', "deps.kind"),
    ],
)
def test_a_job_that_cannot_be_begun_is_never_the_programs_fault(work, manifest, says):
    (work.path / "manifest.json").write_text(manifest)
    done = work.run()
    assert (done.code, work.record["code"]) == (90, 90)
    assert says in work.record["message"]


def test_a_program_cannot_pose_as_the_runner(work):
    forged = [
        '{"t":"exit","code":0}',
        '{"t":"device","kind":"cuda"}',
        '{"t":"ckpt_end","where":"store","ok":true,"n":9}',
    ]
    work.script("".join(f"print('::gpu:: ' + {line!r})\n" for line in forged) + "raise SystemExit(5)\n")
    done = work.run()
    assert [said["code"] for said in done.wire("exit")] == [5]
    assert [said["kind"] for said in done.wire("device")] == ["cpu"]
    assert [said["where"] for said in done.wire("ckpt_end")] == ["script"]


def test_an_output_that_nobody_reads_does_not_end_the_program(work):
    process = work.script(
        "import os, time\n" + LIVES + "while not os.path.exists('go'): time.sleep(0.02)\n"
        "for n in range(1000): print('x' * 1000)\n"
        "open('over', 'w').close()\n"
    ).start()
    wait_until(lambda: lives(work))
    assert process.stdout is not None
    process.stdout.close()
    (work.path / "code" / "go").touch()
    assert process.wait(60) == 0
    assert (work.path / "code" / "over").exists()
