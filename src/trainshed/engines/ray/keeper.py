"""Keeps the mirror and the cluster in step: a thread that hands over what is asked and takes what is new.

It decides by what lies in the mirror alone, so after a restart of the server it goes on where it was. The
order of its writes is the evidence: ``handed.json`` is durable before a host is asked to launch, and nobody
is asked to launch twice.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from trainshed.engines.contract import EndedBy, EngineError, Exit, Observation, Phase, Release
from trainshed.engines.ray import units, wire
from trainshed.engines.ray.carrying import Carrying, State
from trainshed.engines.ray.channel import Channel
from trainshed.engines.ray.mirror import GROUP, HANDED, LOST, RELEASED, Mirror
from trainshed.jobkit import folder

Json = dict[str, Any]
log = structlog.get_logger(__name__)
_LOOK_SECONDS = 0.25
_UNREACHABLE_SECONDS = 3.0
_HOST_TRIES = 5
_PIECE_BYTES = 1 << 20
_LOSS_SECONDS = 50.0
"""How long members of a gang that lost one may take to end by themselves, before they are ended (c8)."""


class Keeper:
    """The thread and what it shares with callers."""

    def __init__(self, attempts: Path, channel: Channel, instance: str) -> None:
        self._attempts = attempts
        self._channel = channel
        self._instance = instance
        self._guard = threading.RLock()
        """Held by whoever works on the cluster."""
        self._bell = threading.Condition()
        self._touched: set[str] = set()
        self._woken = self._interrupted = self._closed = False
        self._told: dict[str, str] = {}
        """Unit -> the request to end, or to give notice, that its host has heard."""
        self._carrying: dict[str, Carrying] = {}
        """What is on its way to hosts, by unit."""
        self._failures: dict[str, int] = {}
        self._lost_at: dict[str, float] = {}
        self._trouble = ""
        self._surprises: set[str] = set()
        self._open: set[str] = {path.name for path in attempts.iterdir()}
        """Units that something may still come of."""
        self._thread = threading.Thread(target=self._run, name="ray-keeper", daemon=True)
        self._thread.start()

    # Hints

    def wake(self, unit: str | None = None) -> None:
        """Look at once."""
        with self._bell:
            self._woken = True
            if unit is not None:
                self._touched.add(unit)
            self._bell.notify_all()

    def changed(self, timeout: float) -> set[str]:
        """See `Engine.changed`."""
        with self._bell:
            self._bell.wait_for(lambda: self._touched or self._interrupted, timeout)
            found, self._touched, self._interrupted = self._touched, set(), False
            return found

    def interrupt(self) -> None:
        with self._bell:
            self._interrupted = True
            self._bell.notify_all()

    def _touch(self, unit: str) -> None:
        with self._bell:
            self._touched.add(unit)
            self._bell.notify_all()

    def close(self) -> None:
        """End the thread."""
        with self._bell:
            self._closed = True
            self._bell.notify_all()
        self._thread.join()
        for way in self._carrying.values():
            way.cancel()
        for way in self._carrying.values():
            way.close()

    # The thread

    def _run(self) -> None:
        pause = _LOOK_SECONDS
        while True:
            with self._bell:
                self._bell.wait_for(lambda: self._closed or self._woken, pause)
                self._woken = False
                if self._closed:
                    return
            try:
                with self._guard:
                    self._step()
                pause, self._trouble = _LOOK_SECONDS, ""
            except (EngineError, OSError) as error:
                pause = _UNREACHABLE_SECONDS  # what is known stays; it is tried again
                if self._trouble != str(error):
                    self._trouble = str(error)
                    log.warning("a Ray cluster is not kept in step", reason=self._trouble)
            except Exception as error:  # noqa: BLE001 - whatever it is, the attempts of others go on
                pause = _UNREACHABLE_SECONDS
                self._say_once(error)

    def _say_once(self, error: Exception) -> None:
        message = f"{type(error).__name__}: {error}"
        if message not in self._surprises:
            self._surprises.add(message)
            log.error("a Ray cluster is not kept in step", reason=message, exc_info=error)

    def _step(self) -> None:
        self._find_new()
        gangs: dict[str, dict[str, Mirror]] = {}
        for unit in sorted(self._open):
            mirror = self._mirror(unit)
            said = mirror.read(GROUP)
            if not said or mirror.has(RELEASED):
                if mirror.has(RELEASED):
                    self._open.discard(unit)
                continue
            if not mirror.is_launched():
                continue  # its place is known, what to launch is not yet: as one that is not there
            gangs.setdefault(said["gang"], {})[unit] = mirror
        for gang, members in gangs.items():
            if not any(mirror.has(HANDED) for mirror in members.values()):
                try:
                    self._bring(gang, members)
                except (EngineError, OSError):
                    raise  # it is the cluster's or the disk's: the others would fare no better
                except Exception as error:  # noqa: BLE001 - one that cannot be understood is no other's end
                    self._say_once(error)
        self._poll({unit: mirror for members in gangs.values() for unit, mirror in members.items()})
        for gang, members in gangs.items():
            self._end_broken(gang, members)

    def _find_new(self) -> None:
        for path in self._attempts.iterdir():
            if path.name not in self._open and not folder.exists(path, RELEASED):
                self._open.add(path.name)

    # Starting

    def _bring(self, gang: str, members: dict[str, Mirror]) -> None:
        """Have hosts for all members, and hand them over together (rule 14)."""
        groups = {unit: _group(mirror) for unit, mirror in members.items()}
        first = next(iter(groups.values()))
        late = time.time() > min(group.at for group in groups.values()) + first.start_seconds
        if self._is_held_up(members, first, late=late):
            return
        said = {unit: mirror.intent() for unit, mirror in members.items()}
        if not all(said.values()):
            self._never(members, EndedBy.NOT_STARTED, "What was to be launched cannot be read any more.")
            return
        asked = sorted(
            (units.member(unit, groups[unit], said[unit], self._instance) for unit in members),
            key=lambda each: each["rank"],
        )
        cluster = {"dashboard": self._facts().get("dashboard", "")} if first.ray else None
        made = self._channel.call("ensure", gang, asked, cluster)
        if made["state"] != "CREATED":
            if late:
                nodes = ", ".join(sorted({group.node or "any node" for group in groups.values()}))
                why = f"The Ray cluster has no room for its gang on {nodes}: {made['state'].lower()}."
                self._never(members, EndedBy.NOT_STARTED, why)
                self._channel.call("end_group", gang)
            return
        answers = self._channel.call("poll", {unit: [0, 0, 0.0] for unit in members})
        faults = [
            each.get("gone") or each["failed"] for each in answers.values() if {"gone", "failed"} & set(each)
        ]
        if faults:
            self._failures[gang] = self._failures.get(gang, 0) + 1
            late = late or self._failures[gang] >= _HOST_TRIES
        if late and not all("new" in answer for answer in answers.values()):
            why = f"Its hosts do not start on the Ray cluster: {(faults or ['no answer'])[0]}"
            self._never(members, EndedBy.NOT_STARTED, why)
        elif all("new" in answer for answer in answers.values()):
            new = {unit: answer["new"] for unit, answer in answers.items()}
            if self._is_brought(members, said, new):
                self._hand_over(members, said, {unit: each["node"] for unit, each in new.items()})

    def _is_held_up(self, members: dict[str, Mirror], first: units.Group, *, late: bool) -> bool:
        """Whether it has to wait for its members or their content, or never starts."""
        if any(mirror.is_over() for mirror in members.values()):
            self._drop(members)
            self._never(members, EndedBy.GANG, "Another member of its gang does not start.")
            return True
        ways = [self._carrying[unit] for unit in members if unit in self._carrying]
        if len(members) < first.size:
            why = "Not all members of its gang were launched."
        elif any(way.state is State.UNDER_WAY for way in ways):
            why = "What it needs did not come to its node in time."
        else:
            return False
        if late:
            self._drop(members)
            self._never(members, EndedBy.NOT_STARTED, why)
        return True

    def _is_brought(self, members: dict[str, Mirror], said: dict[str, Json], new: dict[str, Json]) -> bool:
        """Whether these hosts have all that is to be brought to them; what they lack is sent from here on."""
        ready = True
        for unit in [each for each in members if said[each].get("carry")]:
            way = self._carrying.get(unit)
            if way is not None and way.state is State.FAILED:
                self._drop(members)
                self._never(members, EndedBy.NOT_STARTED, way.why)
                return False
            if way is None or way.state is State.HOST_GONE or way.host not in {"", new[unit]["host"]}:
                ring = partial(self.wake, unit)
                self._carrying[unit] = Carrying(unit, members[unit], said[unit], self._channel, ring)
                ready = False
            ready = ready and way is not None and way.state is State.THERE
        if ready:
            self._drop(members)
        return ready

    def _drop(self, units: Iterable[str]) -> None:
        for unit in units:
            if (way := self._carrying.pop(unit, None)) is not None:
                way.cancel()

    def _facts(self) -> Json:
        if not self._channel.facts:
            self._channel.call("hello")
        return self._channel.facts

    def _hand_over(self, members: dict[str, Mirror], said: dict[str, Json], nodes: dict[str, str]) -> None:
        for unit, mirror in members.items():
            mirror.write(HANDED, {"at": time.time(), "node": nodes[unit]})
            answer = self._channel.call("tell", unit, "launch", [said[unit]])
            self._touch(unit)
            error = (answer.get("new") or {}).get("error")
            if error:
                self._lose_to_hub(members, unit, error[1])
                self._unstarted(mirror, EndedBy.NOT_STARTED, error[1])

    def _never(self, members: dict[str, Mirror], ended_by: EndedBy, why: str) -> None:
        for unit, mirror in members.items():
            if not mirror.is_over():
                self._unstarted(mirror, ended_by, why)
                self._touch(unit)

    @staticmethod
    def _unstarted(mirror: Mirror, ended_by: EndedBy, why: str) -> None:
        ended = Exit(None, None, ended_by, time.time(), why)
        mirror.see(wire.observation_to_json(Observation(Phase.EXITED, exit=ended, detail=why)))
        mirror.end()

    # Watching

    def _poll(self, members: dict[str, Mirror]) -> None:
        live = {u: m for u, m in members.items() if m.has(HANDED) and not m.is_over()}
        if not live:
            return
        for unit, mirror in live.items():
            self._pass_on(unit, mirror)
        after = {unit: [m.log_at, m.reports, m.sampled_at] for unit, m in live.items()}
        for unit, answer in self._channel.call("poll", after).items():
            if "new" in answer:
                self._take(unit, live[unit], answer["new"])
            elif "gone" in answer:
                self._lose(unit, live[unit], members, answer["gone"])

    def _pass_on(self, unit: str, mirror: Mirror) -> None:
        """Tell the host of a stop or a notice that it has not heard of."""
        stop, notice = mirror.read(folder.STOP), mirror.read(folder.NOTICE)
        request = stop or notice
        if request is None or self._told.get(unit) == repr(request):
            return
        if stop is not None:
            answer = self._channel.call("tell", unit, "stop", [stop.get("grace")])
        else:
            assert notice is not None  # noqa: S101 - one of the two is there
            answer = self._channel.call("tell", unit, "notify", [notice["reason"], notice["deadline"]])
        if "new" in answer:
            self._told[unit] = repr(request)

    def _take(self, unit: str, mirror: Mirror, new: Json) -> None:
        mirror.take(new)
        seen = new["seen"]
        ended = seen["phase"] in {Phase.EXITED, Phase.LOST}
        if ended and (new["log_more"] or mirror.reports < seen["reports"]):
            self.wake()
            return  # the end is known here once everything before it is
        if ended and new["work_bytes"] is not None:
            archive = b""
            while len(archive) < new["work_bytes"]:
                answer = self._channel.call("tell", unit, "work", [len(archive)])
                if "new" not in answer:
                    return
                archive += base64.b64decode(answer["new"])
            mirror.unpack(archive)
        if mirror.see(seen):
            self._touch(unit)
        if ended:
            mirror.end()

    def _lose(self, unit: str, mirror: Mirror, members: dict[str, Mirror], why: str) -> None:
        group = _group(mirror)
        for node in self._channel.call("nodes"):
            if node["address"] == group.node and not node["alive"]:
                why = f"Ray declared its node {group.node} dead: {node['why'] or why}"
        mirror.write(LOST, {"why": f"Whoever watched the program is gone. {why}"})
        mirror.end()
        self._touch(unit)
        self._lose_to_hub(members, unit, why)

    def _lose_to_hub(self, members: dict[str, Mirror], unit: str, why: str) -> None:
        """Have the others know at once; without us they would in some seconds."""
        group = _group(members[unit])
        hub = f"{group.gang}.0"
        if group.rank and hub in members:
            self._channel.call("tell", hub, "lost", [group.rank, why])

    def _end_broken(self, gang: str, members: dict[str, Mirror]) -> None:
        """Give back the whole group of a gang that lost a member, as Ray would place its bundle anew (X8)."""
        if not any(mirror.has(LOST) for mirror in members.values()):
            return
        since = self._lost_at.setdefault(gang, time.monotonic())
        alive = [unit for unit, mirror in members.items() if not mirror.is_over()]
        if alive and time.monotonic() - since > _LOSS_SECONDS:
            for unit in alive:
                self._channel.call("tell", unit, "kill", [])
        if not alive:
            for unit in members:
                self._free(unit)
            self._channel.call("end_group", gang)

    # Ending

    def kill(self, unit: str) -> None:
        """End a unit past its shim, or past its host."""
        with self._guard:
            mirror = self._mirror(unit)
            if mirror.is_over() or not mirror.has(HANDED):
                return
            answer = self._channel.call("tell", unit, "kill", [])
            if "new" not in answer:
                self._channel.call("end_host", unit)
            self._poll({unit: mirror})

    def release(self, unit: str) -> Release:
        """See `Engine.release`."""
        try:
            with self._guard:
                return self._free(unit)
        except EngineError as error:
            return Release(confirmed=False, checks={"cluster": error.message}, killed=0)

    def _free(self, unit: str) -> Release:
        mirror = self._mirror(unit)
        if (known := mirror.read(RELEASED)) is not None:
            return Release(confirmed=True, checks=known.get("checks", {}), killed=known.get("killed", 0))
        if not mirror.has(GROUP):
            return Release(confirmed=True, checks={"cluster": "nothing was launched"}, killed=0)
        self._drop([unit])
        group = _group(mirror)
        outcome = self._clear(unit, mirror, group)
        checks = dict(outcome["checks"])
        confirmed = bool(outcome["confirmed"])
        if confirmed:
            ended = self._channel.call("end_host", unit)["gone"]
            checks["actor"] = "gone" if ended else "still there"
            confirmed = ended
        if confirmed and not mirror.is_over():
            mirror.write(LOST, {"why": "Its host was gone when it was released."})
            mirror.end()
        if confirmed:
            mirror.write(RELEASED, {"checks": checks, "killed": outcome["killed"]})
            self._open.discard(unit)
            confirmed = self._end_group(group, checks)
        return Release(confirmed=confirmed, checks=checks, killed=int(outcome["killed"]))

    def _clear(self, unit: str, mirror: Mirror, group: units.Group) -> Json:
        """Have its node let go of all that a unit holds there; what was seen."""
        handed = mirror.read(HANDED)
        if handed is None:
            self._channel.call("tell", unit, "leave", [])  # where it does not answer, its tether does it
            return {"confirmed": True, "checks": {"host": "nothing was handed to it"}, "killed": 0}
        answer = self._channel.call("tell", unit, "release", [])
        if "new" in answer:
            outcome: Json = answer["new"]
            if outcome["confirmed"]:
                self._poll({unit: mirror})  # to the last byte
                self._channel.call("tell", unit, "leave", [])
            return outcome
        if "gone" not in answer:
            return {"confirmed": False, "checks": {"host": "does not answer"}, "killed": 0}
        node = str(handed.get("node") or group.node)
        outcome = self._channel.call("clean", node, units.root(unit, self._instance))
        if "dead" in outcome:
            return {"confirmed": True, "checks": {"node": f"dead: {outcome['dead']}"}, "killed": 0}
        return outcome

    def _end_group(self, group: units.Group, checks: dict[str, str]) -> bool:
        """Remove the placement group with the last of its members."""
        names = [group.gang] if group.size == 1 else [f"{group.gang}.{rank}" for rank in range(group.size)]
        held = [name for name in names if self._mirror(name).has(GROUP)]
        if all(self._mirror(name).has(RELEASED) for name in held):
            gone = bool(self._channel.call("end_group", group.gang)["gone"])
            checks["placement_group"] = "removed" if gone else "still there"
            return gone
        return True

    def sweep(self, known: Collection[str]) -> Sequence[str]:
        """See `Engine.sweep`. Raises `EngineError` where the cluster cannot be reached."""
        belongs = set(known)
        gangs = belongs | {unit.rpartition(".")[0] for unit in belongs}
        with self._guard:
            mine = self._channel.call("mine")
            here = {
                path.name
                for path in self._attempts.iterdir()
                if folder.exists(path, GROUP) and not folder.exists(path, RELEASED)
            }
            strangers = (set(mine["units"]) | here) - belongs
            for unit in sorted(strangers):
                mirror = self._mirror(unit)
                if not mirror.is_over() and mirror.path.is_dir():
                    mirror.write(folder.STOP, {"grace": 0, "at": time.time()})
                if mirror.has(GROUP):
                    self._free(unit)
                else:
                    for method in ("release", "leave"):
                        self._channel.call("tell", unit, method, [])
                    self._channel.call("end_host", unit)
            for gang in set(mine["groups"]) - gangs:
                self._channel.call("end_group", gang)
        return sorted(strangers | (set(mine["groups"]) - gangs))

    def used_nodes(self) -> set[str]:
        """Addresses of nodes on which units are that are not released."""
        found = set()
        for unit in list(self._open):
            said = self._mirror(unit).read(GROUP) or {}
            if said.get("node"):
                found.add(str(said["node"]))
        return found

    def _mirror(self, unit: str) -> Mirror:
        return Mirror(self._attempts / unit)


def _group(mirror: Mirror) -> units.Group:
    return units.Group(**(mirror.read(GROUP) or {}))
