"""The process beside the server that is connected to a Ray cluster; the only one that imports Ray there.

It reads one JSON request a line and answers each with one line. It keeps nothing that the cluster does not
know: actors are found by their names, placement groups by theirs. It ends with the server, whose end of the
pipe then closes; a connection that broke makes it end too, and the server starts another.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]
_CALL_SECONDS = 5.0
_POLL_SECONDS = 1.0
_RELEASE_SECONDS = 45.0
_PROBE_SECONDS = 60.0
_GONE_SECONDS = 20.0
_SHARE = 0.001
"""Of a node's own resource: it only says which node."""
_GONE: Json = {"gone": True}


class Actor:
    """Becomes the detached actor of one replica: unpacks our code on its node and hands every call on.

    Ray sends this class by value, so nothing of ours need be installed there.
    """

    def __init__(self, code: bytes, setup: Json) -> None:
        try:
            self._unpack(code, setup)
        except BaseException:
            shutil.rmtree(setup["root"], ignore_errors=True)
            raise

    def _unpack(self, code: bytes, setup: Json) -> None:
        root = setup["root"]
        place = f"{root}/code"
        # Of a host that vanished before it was handed anything: its tether removes it.
        until = time.monotonic() + _GONE_SECONDS
        while Path(root).exists() and time.monotonic() < until:
            time.sleep(0.1)
        Path(root).mkdir(mode=0o700, parents=True, exist_ok=True)
        with zipfile.ZipFile(io.BytesIO(code)) as archive:
            archive.extractall(place)
        module = _load(place)
        import ray  # noqa: PLC0415 - on the node

        node = ray._private.worker._global_node  # noqa: SLF001 - no public name for a node's folder of logs
        gpus = [str(each) for each in ray.get_gpu_ids()]
        setup = {**setup, "code": place, "gpus": gpus, "address": ray.util.get_node_ip_address()}
        if setup.get("cluster"):
            setup["cluster"] = {**setup["cluster"], "logs": node.get_logs_dir_path()}
        self._hub_name = f"{setup['prefix']}{setup['gang']}.0"
        self._namespace = setup["namespace"]
        self._module = module
        exchange = None if setup["rank"] == 0 else self._exchange
        self._host = module.Host(root, setup, exchange)

    def call(self, method: str, *arguments: Any) -> str:
        """As JSON: whoever asks has no types of ours, and is not made to unpickle any."""
        return json.dumps(getattr(self._host, method)(*arguments))

    def exchange(self, rank: int, state: Json) -> Any:
        return self._host.hub.exchange(rank, state)

    def _exchange(self, rank: int, state: Json) -> Any:
        import ray  # noqa: PLC0415 - on the node

        bridge = importlib.import_module("trainshed.engines.ray.bridge")
        try:
            hub = ray.get_actor(self._hub_name, namespace=self._namespace)
            return ray.get(hub.exchange.remote(rank, state), timeout=_CALL_SECONDS)
        except (ray.exceptions.RayActorError, ValueError) as error:
            raise bridge.HubGone(str(error)) from error
        except ray.exceptions.RayError as error:
            raise bridge.HubSlow(str(error)) from error


def _load(place: str) -> Any:
    """Our code as it lies in ``place``, with what Ray brings along for it."""
    sys.path.insert(0, place)
    try:
        importlib.import_module("pynvml")
    except ImportError:
        sys.modules["pynvml"] = importlib.import_module("ray._private.thirdparty.pynvml")
    return importlib.import_module("trainshed.engines.ray.host")


def _clean(code: bytes, root: str) -> Json:
    """A task on a node where a host vanished: end what it left, say what was seen."""
    import tempfile  # noqa: PLC0415 - sent by value, as `Actor`

    with tempfile.TemporaryDirectory(prefix="trainshed-clean-") as place:
        with zipfile.ZipFile(io.BytesIO(code)) as archive:
            archive.extractall(place)
        outcome: Json = _load(place).clean(root)
        sys.path.remove(place)
        return outcome


class Helper:
    """Does what the server asks of the cluster."""

    def __init__(self, settings: Json) -> None:
        import ray  # noqa: PLC0415 - in this process alone

        self._ray = ray
        self._namespace = settings["namespace"]
        self._prefix = settings["prefix"]
        self._code = Path(settings["code"]).read_bytes()
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        context = ray.init(
            address=settings["address"],
            namespace=self._namespace,
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
        )
        self._dashboard = getattr(context, "dashboard_url", "") or ""
        self._gcs = ray.get_runtime_context().gcs_address
        self._actor = ray.remote(Actor)
        self._polls: dict[str, Any] = {}
        """Polls that hosts did not answer in time, some because Ray has not started them yet."""

    def hello(self) -> Json:
        return {"version": self._ray.__version__, "dashboard": self._dashboard, "gcs": self._gcs}

    def nodes(self) -> list[Json]:
        """Every node that the cluster ever had, dead ones with the reason."""
        return [
            {
                "id": node["NodeID"],
                "address": node["NodeManagerAddress"],
                "alive": bool(node["Alive"]),
                "resources": node.get("Resources", {}),
                "labels": node.get("Labels") or {},
                "why": str(node.get("DeathReasonMessage") or "").strip(),
            }
            for node in self._ray.nodes()
        ]

    # Gangs

    def ensure(self, gang: str, members: Sequence[Json], cluster: Json | None) -> Json:
        """Have the placement group and the actors; what there is of them."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: PLC0415 - lazy

        group, state = self._group(gang, members)
        hosts = {}
        for member in members:
            name = self._prefix + member["unit"]
            if cluster is not None:
                where = {**cluster, "gcs": self._gcs, "group": group.id.hex(), "node": member["node"]}
            else:
                where = None
            setup = {
                **{key: member[key] for key in ("unit", "gang", "rank", "size", "root")},
                "prefix": self._prefix,
                "namespace": self._namespace,
                "cluster": where,
            }
            bundle = member["bundle"]
            own = {} if cluster is not None else member["resources"]
            try:
                self._actor.options(
                    name=name,
                    namespace=self._namespace,
                    lifetime="detached",
                    get_if_exists=True,
                    max_restarts=0,
                    max_concurrency=8,
                    num_cpus=own.get("CPU", 0),
                    num_gpus=own.get("GPU", 0),
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle),
                ).remote(self._code, setup)
                hosts[member["unit"]] = "asked"
            except self._ray.exceptions.RayError as error:
                hosts[member["unit"]] = f"refused: {error}"
        return {"state": state, "hosts": hosts}

    def _group(self, gang: str, members: Sequence[Json]) -> tuple[Any, str]:
        from ray import util  # noqa: PLC0415 - in this process alone

        name = self._prefix + gang
        try:
            group = util.get_placement_group(name)
        except ValueError:
            bundles: list[dict[str, float]] = []
            for member in members:
                if member["bundle"] < len(bundles):
                    continue
                bundles.append(dict(member["resources"]))
            group = util.placement_group(bundles, strategy="PACK", name=name, lifetime="detached")
        return group, str(util.placement_group_table(group).get("state", "PENDING"))

    def poll(self, units: Mapping[str, Sequence[Any]]) -> Json:
        """What is new of each unit: ``{"new": …}``, ``{"gone": why}`` or ``{"slow": true}``."""
        return self._ask({unit: ("poll", *after) for unit, after in units.items()}, _POLL_SECONDS)

    def tell(self, unit: str, method: str, arguments: Sequence[Any]) -> Json:
        """One call of one host."""
        seconds = _RELEASE_SECONDS if method in {"release", "kill", "work", "launch"} else _CALL_SECONDS
        answers: Json = self._ask({unit: (method, *arguments)}, seconds)[unit]
        return answers

    def _ask(self, calls: Mapping[str, Sequence[Any]], seconds: float) -> Json:
        ray = self._ray
        found: Json = {}
        waiting: dict[Any, str] = {}
        for unit, call in calls.items():
            if call[0] == "poll" and unit in self._polls:
                waiting[self._polls.pop(unit)] = unit  # nothing was taken since: it answers this one, too
                continue
            try:
                actor = ray.get_actor(self._prefix + unit, namespace=self._namespace)
                waiting[actor.call.remote(*call)] = unit
            except ValueError as error:
                found[unit] = {"gone": f"the cluster knows no host of this name: {error}"}
        ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=seconds) if waiting else ([], [])
        for reference in ready:
            unit = waiting.pop(reference)
            try:
                found[unit] = {"new": json.loads(ray.get(reference))}
            except ray.exceptions.ActorUnavailableError:
                found[unit] = {"slow": True}
            except ray.exceptions.RayActorError as error:
                found[unit] = {"gone": _short(error)}
            except ray.exceptions.RayError as error:
                found[unit] = {"failed": _short(error)}
        for reference, unit in waiting.items():
            if calls[unit][0] == "poll":
                self._polls[unit] = reference
            found[unit] = {"slow": True}
        return found

    # The end

    def end_host(self, unit: str) -> Json:
        """End the actor; whether it is gone."""
        ray = self._ray
        try:
            ray.kill(ray.get_actor(self._prefix + unit, namespace=self._namespace), no_restart=True)
        except ValueError:
            return _GONE
        return {"gone": self._until(lambda: not self._has(unit))}

    def _has(self, unit: str) -> bool:
        try:
            self._ray.get_actor(self._prefix + unit, namespace=self._namespace)
        except ValueError:
            return False
        return True

    def end_group(self, gang: str) -> Json:
        """Remove the placement group; whether it is gone."""
        from ray import util  # noqa: PLC0415 - in this process alone

        try:
            group = util.get_placement_group(self._prefix + gang)
        except ValueError:
            return _GONE
        util.remove_placement_group(group)
        return {"gone": self._until(lambda: util.placement_group_table(group).get("state") == "REMOVED")}

    def clean(self, node: str, root: str) -> Json:
        """Run `host.clean` on a node; ``{"dead": why}`` where it is no more."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 - lazy

        alive = [each for each in self.nodes() if each["address"] == node and each["alive"]]
        if not alive:
            dead = [each["why"] for each in self.nodes() if each["address"] == node]
            return {"dead": (dead or ["the cluster has no such node"])[-1] or "declared dead"}
        strategy = NodeAffinitySchedulingStrategy(alive[0]["id"], soft=False)
        task = self._ray.remote(_clean).options(num_cpus=0, scheduling_strategy=strategy, max_retries=0)
        try:
            outcome: Json = self._ray.get(task.remote(self._code, root), timeout=_PROBE_SECONDS)
        except self._ray.exceptions.RayError as error:
            return {"confirmed": False, "checks": {"probe": _short(error)}, "killed": 0}
        return outcome

    def mine(self) -> Json:
        """Units with an actor, and gangs with a placement group, that carry our prefix."""
        from ray.util import placement_group_table  # noqa: PLC0415 - lazy

        names = self._ray.util.list_named_actors(all_namespaces=True)
        units = [each["name"] for each in names if each["namespace"] == self._namespace]
        table = placement_group_table()
        groups = [
            each["name"]
            for each in table.values()
            if each["name"].startswith(self._prefix) and each["state"] != "REMOVED"
        ]
        cut = len(self._prefix)
        return {
            "units": [name[cut:] for name in units if name.startswith(self._prefix)],
            "groups": [name[cut:] for name in groups],
        }

    @staticmethod
    def _until(condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + _GONE_SECONDS
        while not condition():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        return True


def _short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return (lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1]}")[:500]


_METHODS = frozenset(
    {"hello", "nodes", "ensure", "poll", "tell", "end_host", "end_group", "clean", "mine"},
)


def main() -> None:
    """Serve until the server closes its end."""
    # What Ray prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    helper: Helper | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["method"] == "connect":
                helper = Helper(request["arguments"][0])
                answer: Any = helper.hello()
            elif helper is None or request["method"] not in _METHODS:
                raise RuntimeError(f"{request['method']!r} is not asked of a helper")  # noqa: TRY301 - answered
            else:
                answer = getattr(helper, request["method"])(*request["arguments"])
            said = {"answer": answer}
        except Exception as error:  # noqa: BLE001 - every failure is an answer
            said = {"error": f"{type(error).__name__}: {_short(error)}"}
        answers.write(json.dumps(said) + "\n")
        answers.flush()
    os._exit(0)  # Ray's own end of a driver takes seconds, and detached actors do not need it


if __name__ == "__main__":
    main()
