"""What simulated providers start ends with them, so that tests leave nothing running."""

from __future__ import annotations

import signal

from support.kaggle_sim import USER, Kaggle

FOREVER = "import signal\nprint('here', flush=True)\nsignal.pause()\n"


def test_sessions_of_every_version_end_with_their_kernel(tmp_path):
    there = Kaggle(tmp_path)
    kernel = {"slug": f"{USER}/twice-1", "newTitle": "twice 1", "text": FOREVER, "isPrivate": True}
    for _ in range(2):
        there.answer("SaveKernel", {**kernel, "datasetDataSources": [], "enableGpu": False})
    made = there.kernels["twice-1"]
    sessions = [*made.earlier, made.session]
    there.answer("DeleteKernel", {"kernelSlug": "twice-1"})
    there.close()
    assert [session.code for session in sessions] == [-signal.SIGKILL, -signal.SIGKILL]
