"""C51 with a real Ray: a cluster grows under load, shrinks when it is idle, and everything is released."""

from __future__ import annotations

import pytest

from support.databases import on_one_kind
from support.gangs import task
from support.local_gangs import LocalGangs
from support.ray_cluster import need_ray
from support.scaling import workers
from trainshed.model.states import State
from trainshed.model.training.spec import Autoscaling, EnvVar, Kind

pytestmark = [on_one_kind, pytest.mark.xdist_group("ray"), pytest.mark.timeout(500)]

_DRIVER = """
python - <<'EOF'
import ray, time
ray.init()

def alive():
    return sum(node["Alive"] for node in ray.nodes())

@ray.remote(num_cpus=2)
class Busy:
    def where(self):
        return ray.get_runtime_context().get_node_id()

print("begins with", alive(), flush=True)
busy = [Busy.remote() for _ in range(3)]
print("busy on", len({ray.get(each.where.remote()) for each in busy}), flush=True)
for each in busy:
    ray.kill(each)
while alive() > 2:
    time.sleep(0.5)
print("ends with", alive(), flush=True)
time.sleep(5)
EOF
"""


def test_C51_a_cluster_grows_under_load_and_shrinks_when_it_is_idle(database, tmp_path):
    path = f"{need_ray().parent}:/usr/local/bin:/usr/bin:/bin"
    d = LocalGangs(database, tmp_path / "site", nodes=())
    try:
        own = Autoscaling(enabled=True, min=1, max=2, idle_timeout_seconds=6)
        spec = task(
            kind=Kind.RAY,
            specs=["c2"],
            workers=1,
            cmd=_DRIVER,
            autoscaling=own,
            env=(EnvVar("PATH", path),),
        )
        job = d.create(spec)
        d.settled(job, 400)
        events = [f"{event.code}: {event.message}" for event in d.facts(job).events]
        said = d.output(d.units(job)[2]).decode()
        assert d.trial(job).state is State.SUCCEEDED, (said, events)
        own_lines = [line for line in said.splitlines() if line.startswith(("begins", "busy", "ends"))]
        assert own_lines == ["begins with 2", "busy on 3", "ends with 2"], (said, events)
        codes = d.facts(job).codes()
        assert codes.count("SCALED_UP") == 1, events
        assert codes.index("SCALED_UP") < codes.index("SCALED_DOWN") < codes.index("FINISHED"), events
        rows = {row.rank: row for row in d.replicas(job)}
        assert (rows[3].role, rows[3].state, rows[3].exit_code) == ("worker", "Succeeded", 0)
        assert b"==> raylet.out <==" in d.output(rows[3].unit_id or "")
        # Both were idle; which of them was seen to be so first is a matter of moments.
        assert len(workers(d, job)) == 1
        assert not d.unreleased()
    finally:
        d.close()
