"""What is known of notebook providers, and who reckons with it (g.5)."""

from __future__ import annotations

import datetime as dt
import time

from trainshed.control.scripts.routing import GRANTS
from trainshed.engines.providers.facts import all_facts
from trainshed.engines.providers.registry import Setting, open_provider


def test_facts_have_a_day_and_a_source():
    for name, facts in all_facts().items():
        assert dt.date.fromisoformat(facts.checked).year >= 2026
        assert "not tried against" in facts.source, name
        assert facts.asked_session_hours < facts.session_hours
        assert {offer.type for offer in facts.offers} == set(facts.shapes)


def test_routing_and_providers_go_by_them(tmp_path):
    assert GRANTS == {"kaggle": (30.0, 7 * 86_400.0), "colab": (12.0, 86_400.0)}
    for name, facts in all_facts().items():
        made = open_provider(name, Setting(tmp_path, time.time))
        able = made.capabilities()
        assert (able.max_session_hours, able.poll_interval_s) == (
            facts.asked_session_hours,
            facts.poll_seconds,
        )
        assert tuple(made.offers()) == facts.offers
        quick = open_provider(name, Setting(tmp_path, time.time, {"poll_seconds": 0.5}))
        assert quick.capabilities().poll_interval_s == 0.5
