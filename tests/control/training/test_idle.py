"""Samples of what is free, and the figures that follow (C24, C25, c6)."""

from __future__ import annotations

from sqlalchemy import select

from support.gangs import task
from trainshed.engines.fake import Script
from trainshed.store.training_tables import idle_samples


def _samples(d, spec):
    query = select(idle_samples.c.units).where(idle_samples.c.spec == spec).order_by(idle_samples.c.at)
    with d.database.read() as connection:
        return list(connection.execute(query).scalars())


def test_C25_free_units_are_sampled_every_five_minutes(site):
    d = site(default=Script(run_seconds=None))
    assert _samples(d, "h100x1") == [8]
    d.create(task(workers=2))
    d.step()
    for _ in range(3):
        d.pass_time(150.0)
        d.step()
    assert _samples(d, "h100x1") == [8, 5]
    assert _samples(d, "h100x4") == [2, 1]
    assert _samples(d, "a100x1") == [0, 0]


def test_C25_samples_of_the_last_two_days_are_kept(site):
    d = site()
    for _ in range(60):
        d.pass_time(3600.0)
        d.step()
    assert len(_samples(d, "h100x1")) == 49
