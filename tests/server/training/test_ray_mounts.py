"""A Ray task whose driver and Ray tasks read a Dataset and a Model on its own cluster (C11-C13, C46)."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

from server.training.test_end_to_end import ended, submit
from support.contents import published_on
from support.ray_cluster import need_ray
from support.server import ServerProcess
from trainshed.jobkit import linux
from trainshed.model.content import ContentKind

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.timeout(700),
    pytest.mark.skipif(not linux.may_mount(), reason="needs the right to mount"),
]
DRIVER = textwrap.dedent("""
    python - <<'PY'
    import os, ray
    ray.init()

    @ray.remote
    def look():
        try:
            open("/mnt/train/a.txt", "a").close()
        except OSError as error:
            refused = error.strerror
        return open("/mnt/train/a.txt").read(), open("/mnt/model/weights/model.bin").read(), refused

    print("driver", open("/mnt/train/a.txt").read(), sorted(os.listdir("/mnt/train")))
    print("task", ray.get(look.remote()))
    PY
""")


def test_C11_C13_a_driver_and_its_ray_tasks_read_a_dataset_in_part_and_a_model(
    new_server: Callable[..., ServerProcess],
):
    path = f"{need_ray().parent}:/usr/local/bin:/usr/bin:/bin"
    server = new_server(environment={"PATH": path}).start()
    words = {"train/a.txt": b"one", "test/b.txt": b"two"}
    data = published_on(server, ContentKind.DATASETS, "team/words", words)["manifest_sha256"]
    base = published_on(server, ContentKind.MODELS, "team/base", {"weights/model.bin": b"w"})
    name = submit(
        server,
        kind="ray",
        name_prefix="reads",
        instance={"specs": ["c2m4"]},
        cmd=DRIVER,
        mounts=[
            {
                "type": "dataset",
                "ref": f"team/words@sha256:{data}",
                "mount_path": "/mnt/train",
                "sub_path": "train",
            },
            {"type": "model", "ref": base["uri"], "mount_path": "/mnt/model"},
        ],
        # Beside other tests a machine may take minutes to start a node.
        env=[{"name": "RAY_raylet_start_wait_time_s", "value": "300"}],
    )
    task = ended(server, name)
    log = server.http().get(f"/v1/tasks/{name}/logs?role=submitter").json["items"]
    said = [item["content"] for item in log]
    assert task["state"] == "Succeeded", (task["failure"], said)
    assert "driver one ['a.txt']" in said
    assert "task ('one', 'w', 'Read-only file system')" in said
    server.wait_for_release(task["job_id"])
