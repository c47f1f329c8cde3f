"""The catalogue of a server that nobody wrote one for: what its machine has, all of it, for everybody.

Region and cluster `local`, pool `default`; GPU specs `h100x1`, CPU specs `c4m16`; every resource type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from trainshed.model.resources import Node
from trainshed.model.training.catalog import (
    ANY,
    MB_PER_GIB,
    Catalog,
    Cluster,
    Engine,
    InstanceSpec,
    Pool,
    Quota,
    Region,
    Volume,
)
from trainshed.model.training.spec import InstanceType, ResourceType

LOCAL = "local"
POOL = "default"
GPU_COUNTS = (1, 2, 4, 8)
GIB_PER_CPU = (2, 4)
_VENDOR_WORDS = frozenset({"nvidia", "geforce", "tesla", "quadro", "amd", "instinct", "radeon"})


def automatic(nodes: Sequence[Node], volumes: Iterable[Volume] = ()) -> Catalog:
    """The embedded server's catalogue. ``volumes`` are those that its configuration has."""
    specs = (*_gpu_specs(nodes), *_cpu_specs(nodes))
    return Catalog(
        regions=(Region(LOCAL),),
        clusters=(Cluster(LOCAL, LOCAL, Engine.LOCAL),),
        pools=(Pool(POOL, LOCAL, tuple(spec.name for spec in specs)),),
        instance_specs=specs,
        quotas=tuple(
            Quota(ANY, kind, POOL, spec.name, sum(units_on(spec, node) for node in nodes))
            for kind in ResourceType
            if kind is not ResourceType.IDLE
            for spec in specs
        ),
        volumes=tuple(volumes),
        allow_host_image=(ANY,),
    )


def units_on(spec: InstanceSpec, node: Node) -> int:
    """How many units of a spec an empty node holds, by its totals; GPU models must be the very same."""
    need = spec.amounts()
    gpus = sum(gpu.model == spec.gpu_model for gpu in node.gpus)
    rooms = [node.amounts.cpus // need.cpus, node.amounts.memory_mb // need.memory_mb]
    return min(*rooms, gpus // need.gpus) if need.gpus else min(rooms)


def _gpu_specs(nodes: Sequence[Node]) -> Iterator[InstanceSpec]:
    for model, short in short_names({gpu.model for node in nodes for gpu in node.gpus}).items():
        for count in GPU_COUNTS:
            shares = [
                (
                    node.amounts.cpus * count // len(node.gpus),
                    node.amounts.memory_mb * count // len(node.gpus),
                )
                for node in nodes
                if sum(gpu.model == model for gpu in node.gpus) >= count
            ]
            if not shares:
                continue
            cpus = min(cpus for cpus, _ in shares)
            memory = min(memory for _, memory in shares) // MB_PER_GIB
            if cpus and memory:
                name = f"{short}x{count}"
                yield InstanceSpec(name, InstanceType.GPU, cpus, memory, count, model)


def _cpu_specs(nodes: Sequence[Node]) -> Iterator[InstanceSpec]:
    """One small spec, powers of two with 2 and 4 GiB a core, and each whole machine."""
    sizes = {(1, 1)}
    for node in nodes:
        whole = (node.amounts.cpus, node.amounts.memory_mb // MB_PER_GIB)
        sizes.add(whole)
        cpus = 1
        while cpus <= whole[0]:
            sizes.update((cpus, cpus * each) for each in GIB_PER_CPU if cpus * each <= whole[1])
            cpus *= 2
    for cpus, memory in sorted(sizes):
        spec = InstanceSpec(f"c{cpus}m{memory}", InstanceType.CPU, max(cpus, 1), max(memory, 1))
        if cpus and memory and any(units_on(spec, node) for node in nodes):
            yield spec


def short_names(models: Iterable[str]) -> Mapping[str, str]:
    """A short lower-case name for each GPU model, all different: `NVIDIA H100 80GB HBM3` is `h100`."""
    words = {model: _words(model) for model in sorted(models)}
    short = {model: _to_number(parts) for model, parts in words.items()}
    taken: dict[str, str] = {}
    for model, parts in words.items():
        alone = sum(each == short[model] for each in short.values()) == 1
        name = short[model] if alone else "-".join(parts)
        number = 2
        while name in taken.values():
            name, number = f"{'-'.join(parts)}-{number}", number + 1
        taken[model] = name
    return taken


def _words(model: str) -> list[str]:
    words = [word for word in re.findall(r"[a-z0-9]+", model.lower()) if word not in _VENDOR_WORDS]
    return words or ["gpu"]


def _to_number(words: Sequence[str]) -> str:
    """The words up to the first that has a digit, joined: the model's number is what people call it."""
    end = next((at for at, word in enumerate(words) if any(letter.isdigit() for letter in word)), None)
    return "".join(words if end is None else words[: end + 1])
