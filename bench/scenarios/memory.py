"""Memory of an idle server, and what each active Trial adds."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from bench.figures import Bench, Budget, Figure
from bench.site import Site, publish, serve, wait_for

_KIB = 1024
_TRIALS = 16


def measure(bench: Bench) -> list[Figure]:
    """PSS: shared pages count by their share. The user's own program is not ours and not counted."""
    jobs = bench.scale.sleepers // _TRIALS
    with serve(bench.place, gpus=bench.scale.sleepers + _TRIALS) as site:
        runner = publish(site, bench.place, "bench/run")["bench/run"]
        site.released(site.submit(runner, "warm", _TRIALS, command="true"), 30.0)
        idle_resident, idle = _resident_mb(site.process.pid), _pss_mb([site.process.pid])
        before = idle + _pss_mb(site.helpers())
        running = [site.submit(runner, f"sleep-{n}", _TRIALS, command="sleep 600") for n in range(jobs)]
        for job in running:
            wait_for(partial(_all_running, site, job), 60.0, f"{job} to run", 0.1)
        after = _pss_mb([site.process.pid, *site.helpers()])
        for job in running:
            site.stop_job(job)
    return [
        Figure("idle server, resident", idle_resident, "MB", Budget(120), note=f"PSS {idle:.0f} MB."),
        Figure(
            "memory per active Trial",
            (after - before) / (jobs * _TRIALS),
            "MB",
            Budget(1),
            note=f"{jobs * _TRIALS} Trials: their shims and the growth of server and fork server, PSS.",
        ),
    ]


def _all_running(site: Site, job: str) -> bool:
    return all(trial["status"] == "running" for trial in site.job(job)["training"]["trials"])


def _pss_mb(pids: Iterable[int]) -> float:
    return sum(_field(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") for pid in pids) / _KIB


def _resident_mb(pid: int) -> float:
    return _field(Path(f"/proc/{pid}/status"), "VmRSS:") / _KIB


def _field(path: Path, name: str) -> int:
    """A field in kB."""
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(name))
