"""The life of a gang through the door: commands, notices, logins, checks, metrics (C15, C27, C31-C39)."""

from __future__ import annotations

import shutil
import socket
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.processes import strangers_of
from support.waiting import wait_until
from training.live import MOUNT, Live, in_order, torch_env
from trainshed.jobkit import linux

HARD = r"""printf '%s\n' '$(X) $$ $X' "$$(echo not make)" \
 "it's" 'a "quoted" \n \\ word' 'żółć 火 🔥' > "$OUT/said"
cat > "$OUT/here" <<'END'
  $(X) ${Y} `z` $$ \
	tab and	tab	# no comment
END
printf 'last line without a line break' >> "$OUT/here"; cat /proc/$$/cmdline | tr '\0' '\n' > "$OUT/argv" """
SAVES = """
import json, os, signal, sys, time
def save(*_):
    told = json.load(open(os.environ["TRAINSHED_NOTICE_FILE"]))
    time.sleep(2)
    write("saved", told["reason"])
    sys.exit(0)
def write(name, text):
    place = f"{OUT}/{os.environ['CASE']}-{name}-{os.environ['RANK']}"
    open(place + ".part", "w").write(text); os.rename(place + ".part", place)
signal.signal(signal.SIGUSR1, save)
write("ready", "yes")
while not os.path.exists(f"{OUT}/{os.environ['CASE']}-end"):
    time.sleep(0.05)
sys.exit(int(open(f"{OUT}/{os.environ['CASE']}-end").read()))
""".replace("{OUT}", MOUNT)
CPU = "c1m1"
NOTICE = {"enabled": True, "timeout_seconds": 60}
needs_ssh = pytest.mark.skipif(
    not (shutil.which("sshd", path="/usr/sbin:/usr/bin") and shutil.which("ssh") and linux.may_mount()),
    reason="needs OpenSSH's server and client, and the right to mount (scripts/install-ssh)",
)
METRICS = """
import http.server, os, sys, threading, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = b"# TYPE train_loss gauge\\ntrain_loss 0.25\\n"
        self.send_response(200); self.send_header("Content-Length", str(len(text))); self.end_headers()
        self.wfile.write(text)
        open("{OUT}/scraped-0", "w").write(self.path)
    def log_message(self, *_): pass
if os.environ["RANK"] == "0":
    served = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    threading.Thread(target=served.serve_forever, daemon=True).start()
while not os.path.exists("{OUT}/metrics-end"):
    time.sleep(0.05)
os._exit(0)
""".replace("{OUT}", MOUNT)


@pytest.fixture(scope="module", autouse=True)
def measured(live: Live) -> tuple[str, int]:
    """A task with an endpoint, and its port. It begins first: its first sample takes 15 seconds."""
    (live.volume / "metrics.py").write_text(METRICS)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    job = live.create(
        f"exec python3 {MOUNT}/metrics.py {port}",
        workers=1,
        instance={"specs": [CPU]},
        metrics={"enabled": True, "endpoints": [{"port": port, "path": "/metrics"}]},
    )
    return job, port


def test_T4_C15_a_command_arrives_byte_for_byte(live: Live) -> None:
    job = live.create(HARD, env=[{"name": "OUT", "value": MOUNT}])
    live.succeeded(job)
    said = (live.volume / "said").read_text().splitlines()
    assert said[0] == "$(X) $$ $X"
    assert said[1].isdecimal() is False
    assert said[1].endswith("(echo not make)")
    assert said[2:] == ["it's", 'a "quoted" \\n \\\\ word', "żółć 火 🔥"]
    here = (live.volume / "here").read_text()
    assert here == "  $(X) ${Y} `z` $$ \\\n\ttab and\ttab\t# no comment\nlast line without a line break"
    assert (live.volume / "argv").read_text() == f"bash\n-c\n{HARD}\n"
    assert live.task(job)["spec"]["cmd"] == HARD


@pytest.mark.parametrize(
    ("trigger", "reason"), [("stop", "stop"), ("delete", "deletion"), ("end", ""), ("failure", "")]
)
def test_T7_C36_stop_and_deletion_give_notice_a_natural_end_and_a_failure_do_not(
    live: Live, trigger: str, reason: str
) -> None:
    (live.volume / "saving.py").write_text(SAVES)
    job = live.create(
        f"exec python3 {MOUNT}/saving.py",
        workers=1,
        exit_notice=NOTICE,
        env=[{"name": "CASE", "value": trigger}],
    )
    for rank in (0, 1):
        live.file(f"{trigger}-ready-{rank}")
    if trigger == "stop":
        live.stop(job)
    elif trigger == "delete":
        assert live.http.request("DELETE", f"/v1/tasks/{job}").status == 202
        assert live.http.get(f"/v1/tasks/{job}").status == 404, "hidden at once (c7)"
    else:
        (live.volume / f"{trigger}-end").write_text("0" if trigger == "end" else "3")
    if reason:
        for rank in (0, 1):
            assert live.file(f"{trigger}-saved-{rank}").read_text() == reason
    if trigger == "delete":
        wait_until(lambda: _in_use(live) == 0, what="everything that it held to be free")
        return
    task = live.ended(job)
    codes = live.codes(job)
    assert task["state"] == {"stop": "Stopped", "end": "Succeeded", "failure": "Failed"}[trigger]
    if not reason:
        assert not [code for code in codes if "NOTICE" in code]
        assert not list(live.volume.glob(f"{trigger}-saved-*"))
        return
    assert in_order(codes, ["EXIT_NOTICE_SENT", "EXIT_NOTICE_HEARD", "CANCELLED"])
    heard = [each for each in live.events(job) if each["code"] == "EXIT_NOTICE_HEARD"]
    assert {each["actor"] for each in heard} == {"replica:0", "replica:1"}
    assert all("seconds after its notice" in each["message"] for each in heard)


def test_T7_C36_who_hears_it_and_hangs_is_killed_at_the_limit(live: Live) -> None:
    ignores = "trap : USR1; trap '' TERM; "
    job = live.create(
        f"{ignores}echo x > {MOUNT}/hangs; while :; do sleep 0.1; done",
        exit_notice={"enabled": True, "timeout_seconds": 2},
    )
    live.file("hangs")
    live.stop(job)
    task = live.ended(job)
    assert task["state"] == "Stopped"
    assert "none was done within 2 seconds" in live.told(job, "EXIT_NOTICE_UNHEARD")[0]
    assert task["attempts"][0]["replicas"][0]["exit_code"] == 137


def _in_use(live: Live) -> int:
    """Units of specs with GPUs that are held."""
    pools = live.http.get("/v1/pools").json["items"]
    return sum(row["in_use"] for pool in pools for row in pool["specs"] if row["spec"] != CPU)


@needs_ssh
def test_T9_C39_replicas_log_in_to_each_other_by_both_files(live: Live) -> None:
    text = f"""
for file in /root/hostfile /root/hostfile.hostname; do
  cp $file {MOUNT}/$(basename $file)-$RANK
  while read host slots; do
    ssh -o BatchMode=yes $host 'echo ${{TRAINSHED_ATTEMPT_ID: -1}}' < /dev/null || exit
  done < $file
done >> {MOUNT}/reached-$RANK
touch {MOUNT}/done-$RANK
while [ ! -e {MOUNT}/done-0 ] || [ ! -e {MOUNT}/done-1 ]; do sleep 0.05; done"""
    job = live.create(text, workers=1, ssh=True, instance={"specs": ["h100x2"]})
    task = live.succeeded(job)
    addresses = [replica["address"] for replica in task["attempts"][0]["replicas"]]
    for rank in (0, 1):
        by_address = (live.volume / f"hostfile-{rank}").read_text()
        assert by_address == "".join(f"{address} slots=2\n" for address in addresses)
        by_name = (live.volume / f"hostfile.hostname-{rank}").read_text().splitlines()
        assert [line.split()[1] for line in by_name] == ["slots=2"] * 2
        assert (live.volume / f"reached-{rank}").read_text().split() == ["0", "1"] * 2
    assert not Path("/root/hostfile").exists()
    assert not [each for each in strangers_of(live.server.data) if "ssh" in each.command]


@pytest.mark.timeout(300)
def test_C31_C32_a_check_passes_with_numbers_before_the_command_runs(live: Live) -> None:
    job = live.create(
        f'echo "$NCCL_DEBUG" > {MOUNT}/checked-$RANK',
        workers=1,
        env=[*torch_env(), {"name": "NCCL_DEBUG", "value": "WARN"}],
        precheck={"enabled": True, "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]},
    )
    live.until(job, "Prechecking", timeout=120)
    assert not (live.volume / "checked-0").exists()
    live.succeeded(job, 240)
    for rank in (0, 1):
        assert (live.volume / f"checked-{rank}").read_text() == "WARN\n", "not the check's own (C32)"
    codes = live.codes(job)
    assert in_order(codes, ["PRECHECK_STARTED", "PRECHECK_PASSED", "STARTED"])
    [first, _] = live.told(job, "PRECHECK_PASSED")
    for word in ("TFLOP/s", "GB/s", "gloo", "simulated"):
        assert word in first, first


def test_C31_C58_without_torch_the_check_fails_by_name_and_the_command_never_runs(live: Live) -> None:
    job = live.create(
        f"touch {MOUNT}/unchecked",
        env=[{"name": "PATH", "value": "/usr/bin:/bin"}],
        precheck={"enabled": True},
        fault_tolerance={"enabled": True, "max_resubmissions": 5},
    )
    task = live.ended(job, 120)
    failure = task["failure"]
    assert (task["state"], failure["code"], failure["replica"]) == ("Failed", "PRECHECK_FAILED", 0)
    assert "torch" in failure["message"]
    assert "GPU 0" in failure["message"] + live.told(job, "PRECHECK_FAILED")[0]
    assert len(task["attempts"]) == 1, "no other try cures it"
    assert not (live.volume / "unchecked").exists()


def test_C37_an_endpoint_is_scraped_and_who_finds_its_port_taken_says_so(
    live: Live, measured: tuple[str, int]
) -> None:
    job, port = measured
    assert live.file("scraped-0", 90).read_text() == "/metrics"

    def samples() -> list[dict[str, Any]]:
        answer = live.http.get(f"/v1/jobs/{job}/resource-metrics")
        assert answer.status == 200, answer.body
        return list(answer.json["items"])

    def served() -> list[dict[str, Any]]:
        return [each for each in samples() if each["endpoint"]]

    [first, *_] = wait_until(served, 60, "a sample")
    assert (first["replica"], first["values"]) == (0, {"train_loss": 0.25})
    assert {each["replica"] for each in samples() if not each["endpoint"]} == {0, 1}, "the preset ones"
    assert str(port) in live.told(job, "METRICS_PORT_TAKEN")[0]
    (live.volume / "metrics-end").touch()
    live.succeeded(job)
    assert first in samples(), "still readable after the end"


def test_T11_C27_gangs_that_each_fit_half_run_one_after_the_other_and_whole(live: Live) -> None:
    """Each wants all eight GPUs in two halves: were halves given out, each would wait for the other."""
    text = (
        f"mkdir {MOUNT}/turn-$TASK_UUID-$RANK; other=$((1 - RANK)); "
        f"until [ -d {MOUNT}/turn-$TASK_UUID-$other ]; do sleep 0.02; done; "
        f"mkdir {MOUNT}/left-$TASK_UUID-$RANK; "
        f"until [ -d {MOUNT}/left-$TASK_UUID-$other ]; do sleep 0.02; done"
    )
    jobs = [live.create(text, workers=1, instance={"specs": ["h100x4"]}) for _ in range(6)]
    tasks = [live.succeeded(job, 120) for job in jobs]
    spans = sorted((task["attempts"][0]["started_at"], task["attempts"][0]["ended_at"]) for task in tasks)
    for (_, ended), (began, _) in pairwise(spans):
        assert ended <= began, "never two at a time: there is no room"
    for task in tasks:
        assert [replica["state"] for replica in task["attempts"][0]["replicas"]] == ["Succeeded"] * 2
        assert len(task["attempts"]) == 1


def test_C27_user_code_of_a_gang_does_not_run_while_a_part_of_it_cannot(live: Live) -> None:
    (live.volume / "half").mkdir()
    holder = live.create(
        f"while [ ! -e {MOUNT}/free-it ]; do sleep 0.1; done",
        guarantee=True,
        resource_type="reserved",
        instance={"specs": ["h100x4"]},
    )
    live.until(holder, "Running")
    waiting = live.create(f"mkdir -p {MOUNT}/half/$RANK", workers=1, instance={"specs": ["h100x4"]})
    task = live.task(waiting)
    assert (task["state"], task["position"]) == ("Queuing", 1)
    wait_until(lambda: live.task(waiting)["reason"], what="a reason with numbers")
    live.succeeded(live.create("true", priority="high"))
    assert live.task(waiting)["state"] == "Queuing"
    assert list((live.volume / "half").iterdir()) == []
    (live.volume / "free-it").touch()
    live.succeeded(waiting)
    assert len(list((live.volume / "half").iterdir())) == 2
