"""What a replica of a training task needs besides: the part of the launch intent that its shim keeps to."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

from trainshed.engines.contract import EngineError, Launch
from trainshed.engines.local import neighbours
from trainshed.engines.local.meetings import Meetings, free_port
from trainshed.jobkit import folder
from trainshed.jobkit import neighbours as inside
from trainshed.jobkit import notice as notices

_SIGNALS = ("SIGUSR1", "SIGTERM")
_GROUP_SHARE = 0.8
"""Of a check's time that its process group may take, so that what went wrong is told."""
_LOOPBACK = "127.0.0.1"


class TrainingIntents:
    """Says what of a launch is for training, in one engine."""

    def __init__(self, attempts: Path, meetings: Meetings, *, may_mount: bool) -> None:
        self._attempts = attempts
        self._meetings = meetings
        self._may_mount = may_mount

    def check(self, launch: Launch) -> None:
        """Raises `EngineError` for what no member can be."""
        gang = launch.gang
        if gang is not None:
            if launch.attempt_id != f"{gang.id}.{gang.rank}" or gang.rank < 0:
                _refuse(f"{launch.attempt_id} is not rank {gang.rank} of the {gang.size} of {gang.id}")
            if gang.joins != (gang.host is not None):
                _refuse(
                    f"rank {gang.rank} of the {gang.size} of {gang.id}: who joins, and only they, has a host"
                )
            if gang.joins and (launch.ssh is not None or launch.precheck is not None):
                _refuse(f"{launch.attempt_id} joins: logins and the check are for those that begin together")
            if len(gang.meeting.hosts) != gang.size:
                _refuse(f"{gang.id} has {gang.size} members and {len(gang.meeting.hosts)} hosts")
        if launch.notice is not None and launch.notice.signal not in _SIGNALS:
            _refuse(f"an exit notice is {' or '.join(_SIGNALS)}, not {launch.notice.signal}")
        if launch.ssh is not None and gang is not None:
            keys = (launch.ssh.host_private_keys, launch.ssh.host_public_keys)
            if any(len(each) != gang.size for each in keys):
                _refuse(f"logins need a host key for each of the {gang.size} members")

    def variables(self, launch: Launch, *, apart: bool) -> dict[str, str]:
        """Variables of the program. ``apart``: it sees folders of its own (a sandbox or an image)."""
        path = self._attempts / launch.attempt_id
        found: dict[str, str] = {}
        if launch.notice is not None:
            place = "/tmp" if apart else os.fspath(path / folder.TEMPORARY)  # noqa: S108 - inside
            found["TRAINSHED_NOTICE_FILE"] = f"{place}/{notices.FILE}"
            found["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(math.ceil(launch.notice.timeout_seconds))
        if launch.gang is not None:
            where = inside.HOME if self._shows_home() else os.fspath(path)
            found[inside.VARIABLE] = f"{inside.INSIDE if apart else where}/{inside.HOSTFILE}"
        return found

    def _shows_home(self) -> bool:
        return self._may_mount and os.geteuid() == 0

    def for_child(self, launch: Launch, *, apart: str) -> dict[str, Any]:
        """Keys of ``launch.json``: what prepares the program. ``apart``: what keeps programs apart, if so."""
        found: dict[str, Any] = {"notice": launch.notice is not None}
        if launch.gang is not None:
            found["neighbours"] = not apart and self._shows_home()
        if launch.ssh is not None:
            reason = neighbours.why_no_logins(apart=apart, may_mount=self._may_mount)
            found["logins"] = {"reason": reason, **(neighbours.logins(launch) or {})}
        if launch.precheck is not None:
            found["precheck"] = {"env": dict(launch.precheck.env), "ranks": self._ranks(launch)}
        return found

    def write(self, path: Path, launch: Launch, *, apart: bool, elsewhere: list[str]) -> None:
        """Write what the shim keeps to into the attempt folder, before its launch. Raises `OSError`.

        ``elsewhere`` are sentences about what the program does not find where it was asked for.
        """
        if launch.gang is not None:
            for name, text in neighbours.files(launch.gang).items():
                (path / name).write_text(text, encoding="utf-8")
                (path / name).chmod(0o644)
        hidden = {
            "env": dict(launch.secrets),
            "check": dict(launch.precheck.secrets) if launch.precheck else {},
            "keys": neighbours.keys(launch),
        }
        if any(hidden.values()):
            folder.write_durably(path, folder.SECRETS, hidden)
        caveats = [["MOUNT_ELSEWHERE", sentence] for sentence in elsewhere]
        if launch.gang is not None and not apart and not self._shows_home():
            words = (
                "The server may not mount here: host files are in the folder of"
                f" ${inside.VARIABLE}, and members are reached by their addresses."
            )
            caveats.append(["HOSTFILE_ELSEWHERE", words])
        settings = self._settings(launch, caveats)
        if settings is not None:
            folder.write_durably(path, folder.TRAINING, settings)

    def _settings(self, launch: Launch, caveats: list[list[str]]) -> dict[str, Any] | None:
        gang, notice, check = launch.gang, launch.notice, launch.precheck
        plain = gang is None and notice is None and check is None and not launch.secrets
        if plain and launch.sample_seconds is None and not caveats:
            return None
        return {
            "gang": gang
            and {
                "id": gang.id,
                "rank": gang.rank,
                "size": gang.size,
                "start_seconds": gang.start_seconds,
                "optional": sorted(gang.optional),
                "folder": os.fspath(self._meetings.root / gang.id),
            },
            "notice": notice and {"signal": int(signal.Signals[notice.signal]), "name": notice.signal},
            "precheck": check and {"ranks": self._ranks(launch), "timeout": check.timeout_seconds},
            "endpoints": [[each.port, each.path] for each in launch.endpoints],
            "sample_seconds": launch.sample_seconds,
            "gpus": [[gpu.index, gpu.uuid, gpu.simulated] for gpu in launch.gpus],
            "caveats": caveats,
        }

    def _ranks(self, launch: Launch) -> list[dict[str, Any]]:
        """One process of the check for each GPU, or one where there is none."""
        check, gang = launch.precheck, launch.gang
        if check is None:
            return []
        slots = [host.slots for host in gang.meeting.hosts] if gang else [max(1, len(launch.gpus))]
        rank = gang.rank if gang else 0
        port = check.port or (
            self._meetings.check_port(gang.id, gang.meeting) if gang else free_port(_LOOPBACK)
        )
        return [
            {
                "local": local,
                "gpu": launch.gpus[local].index if local < len(launch.gpus) else None,
                "rank": sum(slots[:rank]) + local,
                "world": sum(slots),
                "address": gang.meeting.hosts[0].address if gang else _LOOPBACK,
                "port": port,
                "timeout": check.timeout_seconds * _GROUP_SHARE,
                "thresholds": dict(check.thresholds),
                "simulated": not launch.gpus or launch.gpus[0].simulated,
            }
            for local in range(slots[rank])
        ]


def _refuse(message: str) -> None:
    raise EngineError("LAUNCH_INVALID", message, retryable=False)
