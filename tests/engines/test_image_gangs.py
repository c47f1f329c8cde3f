"""Training in images: what gangs, notices, hidden values and volumes are there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engines.conformance import SETTLED, written
from engines.containers import ImageHarness
from engines.gangs import codes, gang, settled
from support.waiting import wait_until
from trainshed.engines import EndedBy, ExitNotice, Mount, Precheck, Ssh
from trainshed.jobkit import frames


def output(podman: ImageHarness, attempt_id: str) -> str:
    return written(podman.engine.logs(attempt_id).frames).decode()


def test_C39_C41_names_and_host_files_of_the_gang_are_in_the_image(podman: ImageHarness) -> None:
    text = "cat /root/hostfile /root/hostfile.hostname $TRAINSHED_HOSTFILE; cat /etc/hosts"
    launches = gang(podman, [text] * 2)
    podman.engine.launch_many(launches)
    hosts = launches[0].gang.meeting.hosts
    by_address = "".join(f"{host.address} slots=1\n" for host in hosts)
    by_name = "".join(f"{host.name} slots=1\n" for host in hosts)
    for each, ended in zip(launches, settled(podman, launches), strict=True):
        log = podman.engine.logs(each.attempt_id).frames
        assert ended.exit.code == 0, written(log, frames.STDERR)
        said = output(podman, each.attempt_id)
        assert said.startswith(by_address + by_name + by_address)
        assert said.endswith("".join(f"{host.address}\t{host.name}\n" for host in hosts))
        assert podman.engine.release(each.attempt_id).confirmed


def test_C13_a_volume_is_written_from_an_image(podman: ImageHarness, tmp_path: Path) -> None:
    volume, data = tmp_path / "volume", tmp_path / "data"
    for place in (volume, data):
        place.mkdir()
        place.chmod(0o777)
    text = "echo new > /volume/out/new; cat /volume/out/new; echo x > /mnt/data/x || echo refused"
    mounts = (Mount(volume, "v", "/volume/out", writable=True), Mount(data, "d", "/mnt/data"))
    podman.engine.launch(podman.shell("attempt-1", text, mounts=mounts))
    ended = podman.until("attempt-1", SETTLED)
    assert ended.exit.code == 0, written(podman.engine.logs("attempt-1").frames, frames.STDERR)
    assert output(podman, "attempt-1") == "new\nrefused\n"
    assert podman.engine.release("attempt-1").confirmed
    assert (volume / "new").read_text() == "new\n"
    assert list(data.iterdir()) == []


def test_C13_a_part_of_a_volume_is_written_from_an_image_and_no_link_leads_out_of_it(
    podman: ImageHarness, tmp_path: Path
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
        podman.engine.launch(podman.shell(f"attempt-{number}", text, mounts=(mount,)))
    ended = podman.until("attempt-0", SETTLED)
    assert ended.exit.code == 0, (ended.exit.detail, written(podman.engine.logs("attempt-0").frames))
    assert output(podman, "attempt-0") == "new\n"
    assert (volume / "runs" / "1" / "new").read_text() == "new\n"
    refused = podman.until("attempt-1", SETTLED)
    assert refused.exit.ended_by is EndedBy.NOT_STARTED
    assert "link" in refused.exit.detail
    assert list(outside.iterdir()) == []
    for number in range(2):
        assert podman.engine.release(f"attempt-{number}").confirmed
    assert (volume / "runs" / "1" / "new").exists()


def test_C36_P9_a_notice_and_a_hidden_value_reach_a_program_in_an_image(podman: ImageHarness) -> None:
    text = """
    trap 'cat $TRAINSHED_NOTICE_FILE | tr -d "\\n"; echo; touch $TRAINSHED_NOTICE_FILE.done' USR1
    echo "ready $TOKEN"; while :; do read -t 1 < <(:) || sleep 0.05; done"""
    launch = replace(
        podman.shell("attempt-1", text), notice=ExitNotice(600), secrets={"TOKEN": "nobody-sees-this"}
    )
    podman.engine.launch(launch)
    podman.running("attempt-1")
    wait_until(lambda: "ready" in output(podman, "attempt-1"))
    podman.engine.notify("attempt-1", reason="stop", deadline=2e9)
    ended = podman.until("attempt-1", SETTLED)
    assert ended.exit.ended_by is EndedBy.STOP
    assert codes(podman, "attempt-1") == ["EXIT_NOTICE_SENT", "EXIT_NOTICE_HEARD"]
    said = output(podman, "attempt-1")
    assert said.startswith("ready ***\n")
    assert '"reason": "stop"' in said
    for place in podman.folder("attempt-1").rglob("*"):
        if place.is_file():
            assert b"nobody-sees-this" not in place.read_bytes(), place


def test_C31_an_image_without_torch_fails_the_check(podman: ImageHarness) -> None:
    launches = [replace(each, precheck=Precheck({})) for each in gang(podman, ["true"] * 2)]
    podman.engine.launch_many(launches)
    ended = settled(podman, launches)
    assert EndedBy.PRECHECK in {each.exit.ended_by for each in ended}
    assert [podman.starts(each.attempt_id) for each in launches] == [0, 0]
    details = [each.exit.detail for each in ended if each.exit.ended_by is EndedBy.PRECHECK]
    assert details[0].startswith("PRECHECK_FAILED: replica ")


def test_C39_an_image_has_no_logins_and_that_is_said(podman: ImageHarness) -> None:
    keys = Ssh("private", "ssh-ed25519 AAAA", ("host",), ("ssh-ed25519 BBBB",))
    [launch] = gang(podman, ["true"], shared={"ssh": keys})
    podman.engine.launch(launch)
    detail = podman.until(launch.attempt_id, SETTLED).exit.detail
    assert detail.startswith("SSH_UNAVAILABLE: programs run apart from the machine (container)")
