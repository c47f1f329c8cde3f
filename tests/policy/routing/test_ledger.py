"""What is left of an allowance, and how far that can be trusted (contract G, g.6)."""

from __future__ import annotations

import pytest

from trainshed.policy.routing.ledger import FRESH_SECONDS, Reading, Usage, reckon

NOW, HOUR, WEEK = 1_000_000.0, 3600.0, 7 * 24 * 3600.0


def reckoned(*readings: Reading, usage: tuple[Usage, ...] = (), limit: float | None = 30.0):
    return reckon(readings, usage, NOW, limit=limit, period_seconds=WEEK)


def test_a_fresh_word_of_the_provider_counts_alone():
    mine = Usage(NOW - 2 * HOUR, None)
    found = reckoned(Reading(12.0, 30.0, NOW + HOUR, NOW - FRESH_SECONDS + 1), usage=(mine,))
    assert (found.used, found.source, found.resets_at) == (12.0, "live", NOW + HOUR)
    assert found.quota().left_hours == 18.0
    assert found.quota().live


def test_an_older_word_counts_with_what_ran_since():
    mine = Usage(NOW - 3 * HOUR, NOW - HOUR)
    found = reckoned(Reading(12.0, 30.0, NOW + HOUR, NOW - 2 * HOUR), usage=(mine,))
    assert (found.used, found.source) == (pytest.approx(13.0), "estimate")
    assert "120 min ago" in found.detail


def test_without_a_word_our_own_history_of_a_period_counts():
    old, recent = Usage(NOW - WEEK - 5 * HOUR, NOW - WEEK + HOUR), Usage(NOW - HOUR, None, gpus=2)
    found = reckoned(usage=(old, recent))
    assert (found.used, found.source) == (pytest.approx(3.0), "estimate")
    assert found.quota().left_hours == pytest.approx(27.0)


def test_what_was_said_before_a_reset_is_forgotten():
    found = reckoned(Reading(30.0, 30.0, NOW - 1, NOW - HOUR))
    assert (found.used, found.source) == (0.0, "estimate")


def test_the_newest_word_counts_and_one_that_says_nothing_does_not():
    found = reckoned(
        Reading(20.0, 30.0, None, NOW - 60),
        Reading(5.0, 30.0, None, NOW - 90),
        Reading(None, None, None, NOW),
    )
    assert found.used == 20.0


def test_without_a_limit_there_is_no_quota():
    assert reckoned(limit=None).quota() is None
    assert reckoned(usage=(Usage(NOW - 100 * HOUR, NOW),)).quota().left_hours == 0.0
