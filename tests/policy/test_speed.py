"""Design section 10 asks for a pass over 50,000 waiting Trials and 1,000 nodes in less than a second.

What such a pass does is looked at here; how long it takes depends on the machine, and is ``make bench``'s to
say.
"""

import pytest

from trainshed.policy.measure import time_passes

_GPUS = 8 * 1000


@pytest.mark.parametrize("classes", [200, 50_000])
def test_a_pass_over_a_large_queue_fills_the_fleet_and_measures_every_part(classes):
    times = time_passes(nodes=1000, pending=50_000, classes=classes, repeat=1)
    assert 2000 < times.placed <= _GPUS
    assert min(times.build, times.full, times.incremental, times.forecast) > 0
