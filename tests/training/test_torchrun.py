"""Distributed training as users write it: torchrun, DDP with gloo, checkpoints on a notice (C36, C41-C44)."""

from __future__ import annotations

import re
import textwrap

import pytest

from training.live import MOUNT, PAGE, Live, causes, in_order, torch_env

pytestmark = pytest.mark.starts_first
LONG = 500.0
HEARD = "EXIT_NOTICE_HEARD"
PAIR = {"specs": ["h100x2"]}
DDP = textwrap.dedent(f"""
    import os, sys
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # DDP itself has to make them equal
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    before = sum(float(p.sum()) for p in model.parameters())
    for step in range(5):
        model.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
    after = sum(float(p.sum()) for p in model.parameters())
    place = f"{MOUNT}/{{os.environ['CASE']}}-{{rank}}"
    with open(place, "w") as file:
        file.write(f"{{size}} {{before.hex()}} {{after.hex()}}")
    dist.barrier(); dist.destroy_process_group(); sys.stdout.flush(); os._exit(0)
""")


@pytest.fixture(scope="module", autouse=True)
def train(live: Live) -> None:
    """The programs lie on the volume, as users would have them there."""
    for name, text in (("ddp", DDP), ("saving", SAVES)):
        (live.volume / name).mkdir()
        (live.volume / name / "train.py").write_text(text)


@pytest.mark.timeout(900)
def test_T5_C44_a_bare_torchrun_trains_on_two_replicas_with_two_processes_each(live: Live) -> None:
    """The command line of the page, which says itself what this one is told: below."""
    job = live.create(
        f"cd {MOUNT}/ddp\ntorchrun train.py",
        workers=1,
        instance=PAIR,
        env=[*torch_env(), {"name": "CASE", "value": "bare"}],
    )
    task = live.succeeded(job, LONG)
    said = [(live.volume / f"bare-{rank}").read_text().split() for rank in range(4)]
    assert {size for size, _, _ in said} == {"4"}, "processes, as torchrun counts them"
    assert task["replicas"] == 2, "machines, as WORLD_SIZE counts them (C42)"
    assert len({after for _, _, after in said}) == 1, "all ranks have the same parameters"
    assert said[0][1] != said[0][2], "they learned"


SAVES = textwrap.dedent(f"""
    import os, signal, sys, time
    import torch, torch.distributed as dist

    told, place = [], f"{MOUNT}/{{os.environ['CASE']}}"
    def hear(*_):
        told.append(1)
        open(f"{{place}}-told-{{os.environ['RANK']}}", "w").close()
    signal.signal(signal.SIGUSR1, hear)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    saved = f"{{place}}.pt"
    state = torch.load(saved) if os.path.exists(saved) else {{"step": 0, "total": torch.zeros(1)}}
    with open(f"{{place}}-began-{{rank}}-{{os.environ['TRAINSHED_ATTEMPT']}}", "w") as file:
        file.write(f"{{state['step']}} {{dist.get_world_size()}}")
    while state["step"] < int(os.environ["STEPS"]) or not os.path.exists(f"{{place}}-go"):
        flag = torch.tensor([len(told)])
        dist.all_reduce(flag)
        if flag.item():
            if rank == 0:
                time.sleep(3)  # a large checkpoint takes its time
                torch.save(state, saved + ".part"); os.rename(saved + ".part", saved)
            break
        state["step"] += 1
        state["total"] += 2
        if rank == 0 and state["step"] == 20:
            open(f"{{place}}-at-20", "w").write("20")
        time.sleep(0.01)
    else:
        if rank == 0:
            with open(f"{{place}}-result", "w") as file:
                file.write(f"{{state['step']}} {{int(state['total'])}}")
    dist.barrier(); dist.destroy_process_group(); sys.stdout.flush(); os._exit(0)
""")


@pytest.mark.timeout(900)
def test_T5_T7_C44_C36_C30_a_preempted_task_saves_and_goes_on_from_its_checkpoint(live: Live) -> None:
    low = live.create(
        f"cd {MOUNT}/saving; {PAGE}",
        workers=1,
        instance=PAIR,
        priority="low",
        exit_notice={"enabled": True, "timeout_seconds": 120},
        fault_tolerance={"enabled": True, "max_resubmissions": 2},
        env=[*torch_env(), {"name": "CASE", "value": "preempted"}, {"name": "STEPS", "value": "30"}],
    )
    queued_at = live.task(low)["queued_at"]
    live.file("preempted-at-20", LONG)
    high = live.create(
        f"while [ ! -e {MOUNT}/go-high ]; do sleep 0.1; done",
        instance={"specs": ["h100x8"]},
        priority="high",
    )
    live.until(high, "Running", timeout=LONG)
    waiting = live.until(low, "Queuing")
    saved = live.volume / "preempted.pt"
    assert saved.exists(), "what held the GPUs had saved before they were given to another"
    assert waiting["queued_at"] == queued_at, "the place in the queue is kept (C30)"
    heard = {each["actor"]: each["message"] for each in live.events(low) if each["code"] == HEARD}
    assert set(heard) == {"replica:0", "replica:1"}
    assert len(list(live.volume.glob("preempted-told-*"))) == 4, "every process of torchrun heard it"
    after = min(float(re.search(r"([0-9.]+) seconds after its notice", said)[1]) for said in heard.values())
    assert after >= 3, "events say who answered, and after how long"
    (live.volume / "preempted-go").touch()
    (live.volume / "go-high").touch()
    live.succeeded(high)
    task = live.succeeded(low, LONG)
    assert causes(task) == ["initial", "preempted"]
    assert task["resubmissions"] == 0, "the budget is unspent (C33)"
    began = {(live.volume / f"preempted-began-{rank}-2").read_text() for rank in range(4)}
    assert len(began) == 1, "all ranks went on where the checkpoint was"
    first, size = map(int, began.pop().split())
    assert (first >= 20, size, task["replicas"]) == (True, 4, 2), "four processes on two machines (C42, C44)"
    step, total = (live.volume / "preempted-result").read_text().split()
    assert int(step) >= max(first, 30)
    assert int(total) == 2 * int(step), "each step was made once, across both Attempts"
    assert in_order(
        live.codes(low),
        ["STARTED", "EXIT_NOTICE_SENT", HEARD, "PREEMPTED_QUEUED", "STARTED", "FINISHED"],
    )
