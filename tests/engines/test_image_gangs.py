"""Training in images: what gangs, notices, hidden values and volumes are there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engines.conformance import SETTLED, written
from engines.containers import ImageHarness
from engines.gangs import codes, gang, settled
from support.waiting import wait_until
from trainshed.engines import EndedBy, EngineError, ExitNotice, Mount, Precheck, Ssh
from trainshed.jobkit import frames


def output(contained: ImageHarness, attempt_id: str) -> str:
    return written(contained.engine.logs(attempt_id).frames).decode()


def test_C39_C41_names_and_host_files_of_the_gang_are_in_the_image(contained: ImageHarness) -> None:
    text = "cat /root/hostfile /root/hostfile.hostname $TRAINSHED_HOSTFILE; cat /etc/hosts"
    launches = gang(contained, [text] * 2)
    contained.engine.launch_many(launches)
    hosts = launches[0].gang.meeting.hosts
    by_address = "".join(f"{host.address} slots=1\n" for host in hosts)
    by_name = "".join(f"{host.name} slots=1\n" for host in hosts)
    for each, ended in zip(launches, settled(contained, launches), strict=True):
        log = contained.engine.logs(each.attempt_id).frames
        assert ended.exit.code == 0, written(log, frames.STDERR)
        said = output(contained, each.attempt_id)
        assert said.startswith(by_address + by_name + by_address)
        assert said.endswith("".join(f"{host.address}\t{host.name}\n" for host in hosts))
        assert contained.engine.release(each.attempt_id).confirmed


def test_C13_a_volume_is_written_from_an_image(contained: ImageHarness, tmp_path: Path) -> None:
    volume, data = tmp_path / "volume", tmp_path / "data"
    for place in (volume, data):
        place.mkdir()
        place.chmod(0o777)
    text = "echo new > /volume/out/new; cat /volume/out/new; echo x > /mnt/data/x || echo refused"
    mounts = (Mount(volume, "v", "/volume/out", writable=True), Mount(data, "d", "/mnt/data"))
    contained.engine.launch(contained.shell("attempt-1", text, mounts=mounts))
    ended = contained.until("attempt-1", SETTLED)
    assert ended.exit.code == 0, written(contained.engine.logs("attempt-1").frames, frames.STDERR)
    assert output(contained, "attempt-1") == "new\nrefused\n"
    assert contained.engine.release("attempt-1").confirmed
    assert (volume / "new").read_text() == "new\n"
    assert list(data.iterdir()) == []


def test_C13_a_part_of_a_volume_is_written_from_an_image_and_no_link_leads_out_of_it(
    contained: ImageHarness, tmp_path: Path
) -> None:
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    (volume / "runs" / "1").mkdir(parents=True)
    outside.mkdir()
    for place in (volume / "runs" / "1", outside):
        place.chmod(0o777)
    (volume / "link").symlink_to(outside)
    for number, within in enumerate(["runs/1", "link"]):
        mount = Mount(volume, "v", "/volume/out", writable=True, within=within)
        text = "echo new > /volume/out/new; ls /volume/out"
        if contained.runtime == "docker":  # whoever writes to the volume could change what a name means
            with pytest.raises(EngineError, match="mount the whole volume: docker mounts by name alone"):
                contained.engine.launch(contained.shell("attempt-1", text, mounts=(mount,)))
            return
        contained.engine.launch(contained.shell(f"attempt-{number}", text, mounts=(mount,)))
    ended = contained.until("attempt-0", SETTLED)
    assert ended.exit.code == 0, (ended.exit.detail, written(contained.engine.logs("attempt-0").frames))
    assert output(contained, "attempt-0") == "new\n"
    assert (volume / "runs" / "1" / "new").read_text() == "new\n"
    refused = contained.until("attempt-1", SETTLED)
    assert refused.exit.ended_by is EndedBy.NOT_STARTED
    assert "link" in refused.exit.detail
    assert list(outside.iterdir()) == []
    for number in range(2):
        assert contained.engine.release(f"attempt-{number}").confirmed
    assert (volume / "runs" / "1" / "new").exists()


def test_C36_P9_a_notice_and_a_hidden_value_reach_a_program_in_an_image(contained: ImageHarness) -> None:
    text = """
    trap 'cat $TRAINSHED_NOTICE_FILE | tr -d "\\n"; echo; touch $TRAINSHED_NOTICE_FILE.done' USR1
    echo "ready $TOKEN"; while :; do read -t 1 < <(:) || sleep 0.05; done"""
    launch = replace(
        contained.shell("attempt-1", text), notice=ExitNotice(600), secrets={"TOKEN": "nobody-sees-this"}
    )
    contained.engine.launch(launch)
    contained.running("attempt-1")
    wait_until(lambda: "ready" in output(contained, "attempt-1"))
    contained.engine.notify("attempt-1", reason="stop", deadline=2e9)
    ended = contained.until("attempt-1", SETTLED)
    assert ended.exit.ended_by is EndedBy.STOP
    assert codes(contained, "attempt-1") == ["EXIT_NOTICE_SENT", "EXIT_NOTICE_HEARD"]
    said = output(contained, "attempt-1")
    assert said.startswith("ready ***\n")
    assert '"reason": "stop"' in said
    for place in contained.folder("attempt-1").rglob("*"):
        if place.is_file():
            assert b"nobody-sees-this" not in place.read_bytes(), place


def test_C31_an_image_without_torch_fails_the_check(contained: ImageHarness) -> None:
    launches = [replace(each, precheck=Precheck({})) for each in gang(contained, ["true"] * 2)]
    contained.engine.launch_many(launches)
    ended = settled(contained, launches)
    assert EndedBy.PRECHECK in {each.exit.ended_by for each in ended}
    assert [contained.starts(each.attempt_id) for each in launches] == [0, 0]
    details = [each.exit.detail for each in ended if each.exit.ended_by is EndedBy.PRECHECK]
    assert details[0].startswith("PRECHECK_FAILED: replica ")


def test_C39_an_image_has_no_logins_and_that_is_said(contained: ImageHarness) -> None:
    keys = Ssh("private", "ssh-ed25519 AAAA", ("host",), ("ssh-ed25519 BBBB",))
    [launch] = gang(contained, ["true"], shared={"ssh": keys})
    contained.engine.launch(launch)
    detail = contained.until(launch.attempt_id, SETTLED).exit.detail
    assert detail.startswith("SSH_UNAVAILABLE: programs run apart from the machine (container)")
