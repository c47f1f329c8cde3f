"""Arguments, the order of things, and the report."""

from __future__ import annotations

import argparse
import json
import os
import platform as machine
import sys
import tempfile
import time
from pathlib import Path

from gpu_check import wheels
from gpu_check.checks import CHECKS, Context
from gpu_check.platform import CheckError, running

PASSED, FAILED, UNUSABLE = 0, 1, 2


def main() -> int:
    """Run; 0 if every check passed, 1 if one failed, 2 if there was nothing to check with."""
    parser = argparse.ArgumentParser(prog="gpu-check", description="Check Trainshed on real GPUs.")
    parser.add_argument("--prepare", type=Path, metavar="DIR", help="collect the wheels into DIR and end")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="where --prepare left them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report there")
    parser.add_argument(
        "--simulate", metavar="MODEL:COUNT", help="rehearse without GPUs: everything but CUDA itself"
    )
    arguments = parser.parse_args()
    try:
        if arguments.prepare:
            size = wheels.prepare(arguments.prepare)
            print(f"{arguments.prepare}: {len(list(arguments.prepare.glob('*.whl')))} wheels, {size:,} bytes")
            return PASSED
        if not arguments.wheels:
            parser.error("give --wheels DIR (or --prepare DIR)")
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
            report = check(arguments.wheels, Path(folder), arguments.simulate)
    except (wheels.WheelError, CheckError) as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return UNUSABLE
    show(report)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return PASSED if report["passed"] else FAILED


def check(folder: Path, place: Path, simulate: str | None) -> dict:
    """Unpack, start a server, run the checks, end the server; the report."""
    begin = time.monotonic()
    code = place / "code"
    used = wheels.unpack(folder, code)
    results = []
    with running(code, place, simulate) as platform:
        gpus = simulated_inventory(simulate) if simulate else platform.inventory()
        if not gpus:
            raise CheckError("NVML finds no GPU here; --simulate H100:2 rehearses without one")
        context = Context(platform, gpus, simulated=bool(simulate))
        ready = time.monotonic() - begin
        for name, run in CHECKS:
            at = time.monotonic()
            try:
                seen, passed = run(context), True
            except CheckError as error:
                seen, passed = str(error), False
            except Exception as error:  # noqa: BLE001 - one broken check must not hide the others
                seen, passed = f"{type(error).__name__}: {error}", False
            results.append(
                {"check": name, "passed": passed, "seen": seen, "seconds": round(time.monotonic() - at, 2)}
            )
    return {
        "passed": all(result["passed"] for result in results),
        "simulated": bool(simulate),
        "machine": f"{machine.platform()}, {os.cpu_count()} CPUs, Python {machine.python_version()}",
        "gpus": gpus,
        "wheels": len(used),
        "seconds_to_ready": round(ready, 2),
        "seconds": round(time.monotonic() - begin, 2),
        "checks": results,
    }


def simulated_inventory(spec: str) -> list[dict]:
    """What the simulated GPUs of a server started with ``spec`` are called."""
    model, _, count = spec.partition(":")
    return [
        {"index": index, "model": model, "uuid": f"SIMULATED-{model}-{index}", "memory_mb": 0}
        for index in range(int(count or 1))
    ]


def show(report: dict) -> None:
    """Print the table."""
    print(f"{report['machine']}; {len(report['gpus'])} GPU(s){', SIMULATED' if report['simulated'] else ''}")
    for result in report["checks"]:
        mark = "ok  " if result["passed"] else "FAIL"
        print(f"{mark} {result['seconds']:6.1f} s  {result['check']}\n               {result['seen']}")
    print(f"{'passed' if report['passed'] else 'FAILED'} in {report['seconds']} s")
