"""Exit notices (C36): a program is told to save and gets its time, on every branch of its process tree."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engines.conformance import SETTLED, written
from engines.gangs import codes, gang, report, stage
from engines.machinery import WAYS, LocalHarness, each_way
from support.waiting import wait_until
from trainshed.engines import EndedBy, ExitNotice, Launch, Phase
from trainshed.jobkit import folder

NOTICE = ExitNotice(600)
PREAMBLE = """
import json, os, signal, sys, time
file = os.environ["TRAINSHED_NOTICE_FILE"]
def wait(condition):
    while not condition():
        time.sleep(0.02)
"""
READY = "print('ready', flush=True)\n"
SAVES = """
def save(*_):
    notice = json.load(open(file))
    print("told:", notice["reason"], notice["deadline"] > time.time(), flush=True)
    wait(lambda: os.path.exists("go"))
    open("checkpoint", "w").write("saved")
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
"""


@pytest.fixture(params=WAYS)
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalHarness]:
    yield from each_way(request.param, tmp_path)


def program(local: LocalHarness, text: str, attempt_id: str = "attempt-1", **changes: object) -> Launch:
    """A Python program with a notice, which says ``ready`` when its handlers are there."""
    launch = local.python(attempt_id, PREAMBLE + textwrap.dedent(text))
    return replace(launch, **{"notice": NOTICE, **changes})  # type: ignore[arg-type]


def said(local: LocalHarness, attempt_id: str = "attempt-1") -> str:
    log = local.engine.logs(attempt_id).frames
    return written(log).decode() if log.exists() else ""


def begin(local: LocalHarness, launch: Launch) -> None:
    local.engine.launch(launch)
    wait_until(lambda: "ready" in said(local, launch.attempt_id), what="the program's handlers")


def notify(local: LocalHarness, attempt_id: str = "attempt-1", *, seconds: float = 600) -> float:
    deadline = time.time() + seconds
    local.engine.notify(attempt_id, reason="preemption", deadline=deadline)
    return deadline


def go(local: LocalHarness, attempt_id: str = "attempt-1") -> None:
    (local.engine.work_directory(attempt_id) / "go").touch()


def test_C36_a_program_that_saves_gets_its_time_and_its_answer_is_told(either: LocalHarness) -> None:
    begin(either, program(either, f"{SAVES}\n{READY}\nsignal.pause()"))
    deadline = notify(either)
    sent = report(either, "attempt-1", "EXIT_NOTICE_SENT")
    assert sent.data == {"reason": "preemption", "deadline": deadline, "processes": 1}
    wait_until(lambda: "told: preemption True" in said(either))
    assert either.observe("attempt-1").noticed
    assert either.observe("attempt-1").phase is Phase.RUNNING
    go(either)
    ended = either.until("attempt-1", SETTLED)
    assert (ended.exit.code, ended.exit.ended_by) == (0, EndedBy.STOP)
    assert (either.engine.work_directory("attempt-1") / "checkpoint").read_text() == "saved"
    heard = report(either, "attempt-1", "EXIT_NOTICE_HEARD")
    assert heard.data["seconds"] > 0
    assert len(heard.data["processes"]) == 1
    assert codes(either, "attempt-1") == ["EXIT_NOTICE_SENT", "EXIT_NOTICE_HEARD"]
    assert ended.reports == 2


def test_C36_the_done_file_ends_the_wait_of_a_program_that_stays(either: LocalHarness) -> None:
    text = f"""
    signal.signal(signal.SIGUSR1, lambda *_: open(file + '.done', 'w'))
    {READY}
    while True: time.sleep(9)"""
    begin(either, program(either, text))
    notify(either)
    ended = either.until("attempt-1", SETTLED)
    assert (ended.exit.code, ended.exit.ended_by) == (143, EndedBy.STOP)
    assert "says that it is done" in report(either, "attempt-1", "EXIT_NOTICE_HEARD").message


def test_C36_a_program_that_only_looks_for_the_file_may_answer_with_ack(either: LocalHarness) -> None:
    text = f"""{READY}
wait(lambda: os.path.exists(file)); open(file + '.ack', 'w')
wait(lambda: os.path.exists('go'))"""
    begin(either, program(either, text))
    notify(either)
    assert "says that it heard" in report(either, "attempt-1", "EXIT_NOTICE_HEARD").message
    assert either.observe("attempt-1").phase is Phase.RUNNING
    go(either)
    assert either.until("attempt-1", SETTLED).exit.code == 0


def test_C36_nobody_who_hears_it_within_fifteen_seconds_gets_no_more_time(local: LocalHarness) -> None:
    begin(local, program(local, f"{READY}\ntime.sleep(1000)"))
    notify(local)
    unheard = wait_until(
        lambda: [e for e in local.engine.reports("attempt-1", 0) if e.code == "EXIT_NOTICE_UNHEARD"],
        timeout=60,
    )[0]
    assert 14.9 <= unheard.data["seconds"] < 40
    assert (unheard.level, unheard.data["processes"]) == ("warning", [])
    ended = local.until("attempt-1", SETTLED)
    assert (ended.exit.code, ended.exit.ended_by) == (143, EndedBy.STOP)


def test_C36_a_hang_is_killed_at_the_limit(local: LocalHarness) -> None:
    text = f"""
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    {READY}
    while True: time.sleep(9)"""
    begin(local, program(local, text))
    deadline = notify(local, seconds=1)
    unheard = report(local, "attempt-1", "EXIT_NOTICE_UNHEARD")
    assert "1 process(es) caught SIGUSR1, but none was done" in unheard.message
    ended = local.until("attempt-1", SETTLED)
    assert (ended.exit.code, ended.exit.ended_by) == (137, EndedBy.STOP)
    assert 9.5 <= ended.exit.finished_at - deadline < 30


def test_C36_children_that_inherited_the_handler_are_left_alone(either: LocalHarness) -> None:
    text = f"""
    got = lambda *_: (open("got", "a").write(f"{{os.getpid()}} "), setattr(sys, "over", True))
    signal.signal(signal.SIGUSR1, got)
    for _ in range(3):
        if os.fork() == 0:
            while True: time.sleep(9)
    print("me", os.getpid())
    {READY}
    wait(lambda: hasattr(sys, "over"))"""
    begin(either, program(either, text))
    notify(either)
    assert either.until("attempt-1", SETTLED).exit.code == 0
    me = said(either).split()[1]
    assert (either.engine.work_directory("attempt-1") / "got").read_text().split() == [me]


def test_C36_each_branch_is_told_below_a_shell_that_would_die_of_the_signal(either: LocalHarness) -> None:
    worker = PREAMBLE + textwrap.dedent("""
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
        open(f"up-{sys.argv[1]}", "w").close()
        while True: time.sleep(9)""")
    text = f'{either.interpreter} -c "$W" a & {either.interpreter} -c "$W" b & wait; wait; echo both; exit 5'
    launch = either.program("attempt-1", ["bash", "-c", text], env={"W": worker})
    either.engine.launch(replace(launch, notice=NOTICE))
    work = either.engine.work_directory("attempt-1")
    wait_until(lambda: (work / "up-a").exists() and (work / "up-b").exists())
    notify(either)
    assert either.until("attempt-1", SETTLED).exit.code == 5
    assert "both" in said(either)
    assert report(either, "attempt-1", "EXIT_NOTICE_SENT").data["processes"] == 2


def test_C36_what_gets_its_handler_late_is_told_late(local: LocalHarness) -> None:
    text = f"""{READY}
wait(lambda: os.path.exists("go"))
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
while True: time.sleep(9)"""
    begin(local, program(local, text))
    notify(local)
    assert report(local, "attempt-1", "EXIT_NOTICE_SENT").data["processes"] == 0
    go(local)
    assert local.until("attempt-1", SETTLED).exit.code == 0


def test_C36_a_server_that_goes_in_the_middle_changes_nothing(local: LocalHarness) -> None:
    begin(local, program(local, f"{SAVES}\n{READY}\nsignal.pause()"))
    deadline = notify(local)
    wait_until(lambda: "told:" in said(local))
    local.engine.close()
    go(local)
    wait_until((local.folder("attempt-1") / folder.EXIT).exists)
    local.reopen()
    local.engine.notify("attempt-1", reason="again", deadline=deadline + 100)
    ended = local.until("attempt-1", SETTLED)
    assert (ended.exit.code, ended.exit.ended_by) == (0, EndedBy.STOP)
    assert codes(local, "attempt-1") == ["EXIT_NOTICE_SENT", "EXIT_NOTICE_HEARD"]


def test_C36_it_is_sent_once_and_the_first_deadline_stands(local: LocalHarness) -> None:
    text = """
    count = []
    signal.signal(signal.SIGUSR1, lambda *_: count.append(1))
    print("ready", flush=True)
    wait(lambda: os.path.exists("go"))
    print("count", len(count), json.load(open(file))["reason"])"""
    begin(local, program(local, text))
    deadline = notify(local)
    report(local, "attempt-1", "EXIT_NOTICE_SENT")
    local.engine.notify("attempt-1", reason="other", deadline=deadline - 600)
    local.reopen()
    local.engine.notify("attempt-1", reason="other", deadline=deadline - 600)
    go(local)
    local.until("attempt-1", SETTLED)
    assert "count 1 preemption" in said(local)


KILLED = textwrap.dedent("""
    import os, signal, sys, time
    from pathlib import Path
    from trainshed.engines.local import LocalEngine
    engine = LocalEngine(Path(sys.argv[1]))
    engine.notify("attempt-1", reason="stop", deadline=time.time() + 600)
    os.kill(os.getpid(), signal.SIGKILL)
""")


def test_P14_C36_a_notice_of_a_server_that_was_killed_stands(local: LocalHarness) -> None:
    begin(local, program(local, f"{SAVES}\n{READY}\nsignal.pause()"))
    local.engine.close()
    done = subprocess.run([sys.executable, "-c", KILLED, str(local.root)], check=False)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: "told: stop" in said(local))
    go(local)
    local.reopen()
    assert local.until("attempt-1", SETTLED).exit.code == 0


def test_C36_a_stop_cuts_the_notice_short(local: LocalHarness) -> None:
    begin(local, program(local, f"{SAVES}\n{READY}\nsignal.pause()"))
    notify(local)
    wait_until(lambda: "told:" in said(local))
    local.engine.stop("attempt-1", grace_seconds=0)
    ended = local.until("attempt-1", SETTLED)
    assert (ended.exit.signal, ended.exit.ended_by) == (9, EndedBy.STOP)


def test_C36_without_a_notice_in_its_launch_it_is_stopped(local: LocalHarness) -> None:
    begin(local, program(local, f"{READY}\nprint('TRAINSHED_NOTICE_FILE' in os.environ)", notice=NOTICE))
    launch = local.shell("attempt-2", "exec sleep 1000")
    local.engine.launch(launch)
    local.running("attempt-2")
    notify(local, "attempt-2")
    assert local.until("attempt-2", SETTLED).exit.ended_by is EndedBy.STOP
    assert codes(local, "attempt-2") == []


def test_C36_what_did_not_start_has_nothing_to_save(local: LocalHarness) -> None:
    local.engine.notify("attempt-1", reason="stop", deadline=time.time() + 600)
    local.engine.launch(program(local, READY))
    ended = local.until("attempt-1", SETTLED)
    assert (ended.exit.code, ended.exit.ended_by) == (None, EndedBy.STOP)


def test_C36_a_member_that_waits_for_its_gang_has_nothing_to_save(local: LocalHarness) -> None:
    launches = gang(local, ["true"] * 2, shared={"notice": NOTICE})
    local.engine.launch(launches[0])
    stage(local, launches[0].attempt_id, "ready")
    notify(local, launches[0].attempt_id)
    ended = local.until(launches[0].attempt_id, SETTLED)
    assert (ended.exit.code, ended.exit.ended_by) == (None, EndedBy.STOP)
    local.engine.launch(launches[1])
    assert local.until(launches[1].attempt_id, SETTLED).exit.ended_by is EndedBy.GANG


def test_C36_a_launch_without_a_shim_is_settled_by_a_notice(local: LocalHarness) -> None:
    launch = program(local, READY)
    local.engine._record_intent(local.folder("attempt-1"), launch)  # the crash: recorded, never asked for
    notify(local)
    assert local.observe("attempt-1").exit.ended_by is EndedBy.STOP
    local.engine.launch(launch)
    assert local.observe("attempt-1").exit.code is None


def test_P3_C36_a_shim_that_is_killed_while_its_program_saves_leaves_it_lost(local: LocalHarness) -> None:
    begin(local, program(local, f"{SAVES}\n{READY}\nsignal.pause()"))
    notify(local)
    wait_until(lambda: "told:" in said(local))
    local.lose("attempt-1")
    assert local.observe("attempt-1").phase is Phase.LOST
    assert codes(local, "attempt-1") == ["EXIT_NOTICE_SENT"]
    assert local.engine.release("attempt-1").confirmed
    assert local.processes("attempt-1") == set()


def test_C36_sigterm_may_be_the_signal(local: LocalHarness) -> None:
    text = f"{SAVES.replace('SIGUSR1', 'SIGTERM')}\n{READY}\nsignal.pause()"
    begin(local, program(local, text, notice=ExitNotice(600, "SIGTERM")))
    notify(local)
    go(local)
    assert local.until("attempt-1", SETTLED).exit.code == 0


def test_C36_torchrun_is_told_how_long_saving_may_take(local: LocalHarness) -> None:
    launch = program(local, "print(os.environ['TORCH_ELASTIC_SHUTDOWN_TIMEOUT'])", notice=ExitNotice(77.5))
    local.engine.launch(launch)
    local.until("attempt-1", SETTLED)
    assert said(local) == "78\n"


def test_C36_what_the_program_put_in_the_files_place_is_not_followed(
    either: LocalHarness, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    text = f"""
    os.symlink({str(victim)!r}, file)
    os.symlink({str(victim)!r}, file + ".done")
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0 if json.load(open(file)) else 1))
    {READY}
    while True: time.sleep(9)"""
    begin(either, program(either, text))
    notify(either)
    assert either.until("attempt-1", SETTLED).exit.code == 0
    assert victim.read_text() == "untouched"


def test_C36_c8_members_that_save_are_not_cut_short_by_one_that_went(local: LocalHarness) -> None:
    quick = "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))\n"
    texts = [f"{quick}{READY}\nsignal.pause()", f"{SAVES}\n{READY}\nsignal.pause()"]
    launches = [
        replace(each, argv=program(local, text).argv, notice=NOTICE)
        for each, text in zip(gang(local, ["true"] * 2), texts, strict=True)
    ]
    local.engine.launch_many(launches)
    for each in launches:
        wait_until(lambda each=each: "ready" in said(local, each.attempt_id))
    for each in launches:
        notify(local, each.attempt_id)
    first = local.until(launches[0].attempt_id, SETTLED)
    assert (first.exit.code, first.exit.ended_by) == (3, EndedBy.STOP)
    wait_until(lambda: "told:" in said(local, launches[1].attempt_id))
    assert local.observe(launches[1].attempt_id).phase is Phase.RUNNING
    go(local, launches[1].attempt_id)
    second = local.until(launches[1].attempt_id, SETTLED)
    assert (second.exit.code, second.exit.ended_by) == (0, EndedBy.STOP)
