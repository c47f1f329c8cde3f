"""Design section 10: a pass over 50,000 waiting Trials and 1,000 nodes takes less than a second.

The bounds here are several times the measured figures, for slow and busy machines; ``make bench`` reports
the figures themselves.
"""

import pytest

from trainshed.policy.measure import time_passes


@pytest.mark.parametrize("classes", [200, 50_000])
def test_a_pass_over_a_large_queue_is_fast(classes):
    times = time_passes(nodes=1000, pending=50_000, classes=classes, repeat=5)
    assert times.placed > 2000
    assert times.full < 1.0
    assert times.incremental < 0.1
    assert times.forecast < 1.0
