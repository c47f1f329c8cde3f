"""What events say of tasks: names instead of ids, units as they are, the cause of an end."""

from __future__ import annotations

import pytest

from support.gangs import catalog, task
from trainshed.control.training.judging import telling_line
from trainshed.engines.fake import Script
from trainshed.model.states import State
from trainshed.model.training.catalog import ANY, Quota
from trainshed.model.training.spec import ResourceType


def _messages(d, job, code):
    return [event.message for event in d.facts(job).events if event.code == code]


@pytest.mark.parametrize(
    ("owner", "said"), [("ann", "makes room for task-000002 ("), ("bob", "makes room for another task (")]
)
def test_C5_c2_a_victim_learns_the_name_of_who_comes_first_if_its_owner_may_see_that(site, owner, said):
    d = site(default=Script(run_seconds=None))
    victim = d.create(task(workers=1, specs=["h100x4"], resource_type=ResourceType.IDLE))
    d.until(victim, State.RUNNING)
    later = d.now() + 700.0
    d.run_until(lambda: d.now() > later, pause=50.0)
    first = d.create(task(workers=1, specs=["h100x4"]), owner=owner)
    d.run_until(lambda: _messages(d, victim, "PREEMPTED"))
    [message] = _messages(d, victim, "PREEMPTED")
    assert message.startswith(said)
    assert d.trial(first).id not in message


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (ResourceType.RESERVED, "2 x h100x1 (2 own)"),
        (ResourceType.ONDEMAND, "2 x h100x1 (2 of its ondemand quota)"),
        (ResourceType.SPOT, "2 x h100x1 (2 of its spot quota)"),
        (ResourceType.IDLE, "2 x h100x1 (2 idle)"),
    ],
)
def test_C23_only_reserved_units_are_anybodys_own(site, kind, said):
    quotas = [Quota(ANY, each, "default", ANY, 100) for each in ResourceType if each is not ResourceType.IDLE]
    d = site(catalog_=catalog(quotas))
    job = d.create(task(workers=1, resource_type=kind))
    d.step()
    assert _messages(d, job, "ADMITTED") == [f"Admitted as {kind} in pool default: {said}."]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            [(False, "X_USER_NAME=human:owner"), (True, "ValueError: no data"), (False, "bye")],
            "ValueError: no data",
        ),
        ([(True, "ValueError: no data"), (True, "  "), (True, "=====")], "ValueError: no data"),
        ([(False, "first"), (False, "last"), (False, "")], "last"),
        ([], ""),
    ],
    ids=["stderr", "without-words", "stdout-alone", "silent"],
)
def test_C35_the_reason_of_an_end_is_what_stderr_said_last(lines, said):
    assert telling_line(lines) == said
