"""Between its looks the controller rests, also where what is due fails and pauses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.cloud import CLOUD, CloudDeployment

Make = Callable[..., CloudDeployment]


def rests(d: CloudDeployment) -> float:
    """Seconds until the controller looks again by itself."""
    return d.controller._pause()


def test_a_provider_is_asked_when_its_last_answer_is_old_and_not_before(cloud: Make):
    d = cloud()
    d.step()
    assert rests(d) > 0
    asked = d.cloud.calls["healthcheck"]
    d.pass_time(3600.0)
    assert rests(d) == 0
    d.controller.step(everything=False)
    assert d.cloud.calls["healthcheck"] > asked
    assert rests(d) > 0


def test_a_provider_whose_answer_is_a_fault_of_ours_is_no_reason_to_look_without_pause(
    cloud: Make, monkeypatch: pytest.MonkeyPatch
):
    d = cloud()
    d.step()

    def broken() -> None:
        raise FileNotFoundError("the folder of this server is gone")

    monkeypatch.setattr(d.options["scripts"].providers[CLOUD], "healthcheck", broken)
    for _ in range(5):
        d.pass_time(3600.0)
        d.step()
        assert rests(d) > 0
