"""Where a packed project runs, and why not elsewhere (contract G, section g)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.scripts.spec import Bundle, DataItem, ScriptSpec
from trainshed.policy.routing import Need, Offer, Outcome, ProviderView, Quota, decide
from trainshed.policy.routing.snapshot import Health, need_of

NOW = 1_000_000.0
HOUR = 3600.0
T4, P100 = Offer("T4", 16.0, 2), Offer("P100", 16.0)
LOCAL = ProviderView("local", offers=(Offer("RTX 4090", 24.0),), max_session_hours=None)
KAGGLE = ProviderView("kaggle", offers=(T4, P100), max_session_hours=12.0)
COLAB = ProviderView("colab", offers=(Offer("T4", 15.0), Offer("A100", 40.0)), max_session_hours=12.0)
ALL = (LOCAL, KAGGLE, COLAB)
SPEC = ScriptSpec("/home/u/p", Bundle("0" * 64, 1, 10), script="train.py", hours=1.0)


def need(**changes: object) -> Need:
    return need_of(replace(SPEC, **changes))


def why(decision, provider: str) -> tuple[str, str]:
    found = next(each for each in decision.rejected if each.provider == provider)
    return found.code, found.sentence


def test_G3_a_provider_is_chosen_and_the_reason_says_why():
    short = decide(need(hours=1.0), ALL, NOW)
    assert (short.outcome, short.chosen.provider) == (Outcome.PLACE, "colab")
    assert short.reason.startswith("colab · T4 with 15 GB: it begins at once (+20)")
    assert "better than kaggle" in short.reason
    long = decide(need(hours=8.0), ALL, NOW)
    assert long.chosen.provider == "kaggle"
    assert "long sessions suit a long Job (+30)" in long.reason


def test_G3_a_gpu_of_the_accounting_alone_is_called_simulated():
    here = replace(LOCAL, offers=(Offer("H100", 81.9, simulated=True),))
    found = decide(need(), (here,), NOW)
    assert found.reason.startswith("local · H100 (simulated) with 81.9 GB")
    assert found.as_dict()["candidates"][0]["gpu"] == "H100", "what reads it knows types"


def test_G4_G61_a_quick_test_prefers_this_machine_and_says_so_where_it_cannot():
    assert decide(need(smoke=True, hours=None), ALL, NOW).chosen.provider == "local"
    gone = replace(LOCAL, health=Health.UNAVAILABLE, message="the driver is missing")
    elsewhere = decide(need(smoke=True, hours=None), (gone, KAGGLE, COLAB), NOW)
    assert elsewhere.chosen.provider == "colab"
    assert "a quick test would run on this machine, but it does not answer: the driver" in elsewhere.reason


def test_g3_five_minutes_without_a_wish_are_a_quick_test():
    assert decide(need(hours=0.05), ALL, NOW).chosen.provider == "local"
    assert decide(need(hours=0.05, gpu="T4"), ALL, NOW).chosen.provider != "local"
    assert decide(need(hours=0.05, vram_gb=8), ALL, NOW).chosen.provider != "local"
    assert decide(need(hours=0.1), ALL, NOW).chosen.provider != "local"


def test_g3_this_machine_is_taken_otherwise_only_if_asked_for_or_alone():
    assert decide(need(provider="local"), ALL, NOW).chosen.provider == "local"
    others = [replace(each, health=Health.AUTH_REQUIRED, message="run x") for each in (KAGGLE, COLAB)]
    alone = decide(need(), (LOCAL, *others), NOW)
    assert alone.chosen.provider == "local"
    assert "nothing else can be used" in alone.reason
    busy = decide(need(), (LOCAL, replace(KAGGLE, running=1)), NOW)
    assert busy.outcome is Outcome.WAIT
    assert why(busy, "local")[0] == "local_not_asked"


def test_c2_one_that_waits_names_who_may_take_it_unless_only_a_renewal_helps():
    busy, cooling = replace(KAGGLE, running=1), replace(COLAB, cooldown_until=NOW + 60)
    down = replace(COLAB, health=Health.UNAVAILABLE)
    used_up = replace(KAGGLE, quota=Quota(0.0, 30.0, NOW + 90 * HOUR))
    closed = replace(COLAB, health=Health.AUTH_REQUIRED)
    for views, wanted in (
        ((busy, cooling), ("kaggle", "colab")),
        ((busy, closed), ("kaggle",)),
        ((cooling,), ("colab",)),
        ((down,), ("colab",)),
        ((used_up, down), ("kaggle", "colab")),
        ((used_up, closed), ()),
        ((used_up,), ()),
        ((KAGGLE, cooling), ()),
        ((closed,), ()),
    ):
        assert decide(need(), views, NOW).waits_for == wanted, [each.name for each in views]
    big = need(gpu="A100")
    assert decide(big, (busy, down), NOW).waits_for == ("colab",), "what never fits takes nothing later"


def test_G76_a_pin_is_kept_or_the_job_waits_or_fails_never_elsewhere():
    assert decide(need(provider="kaggle"), ALL, NOW).chosen.provider == "kaggle"
    waits = decide(need(provider="kaggle"), (LOCAL, replace(KAGGLE, running=1), COLAB), NOW)
    assert (waits.outcome, waits.chosen) == (Outcome.WAIT, None)
    assert waits.reason == "waits: kaggle: it runs a Job of yours and takes no more at once"
    off = decide(need(provider="kaggle"), (LOCAL, replace(KAGGLE, enabled=False), COLAB), NOW)
    assert off.outcome is Outcome.NO_FIT
    assert "asks for kaggle, and it is switched off" in off.reason


def test_G75_memory_is_a_hard_filter_even_for_a_pin():
    found = decide(need(provider="kaggle", vram_gb=20), ALL, NOW)
    assert found.outcome is Outcome.NO_FIT
    assert "its largest GPU has 16 GB, 20 GB are needed" in found.reason
    assert decide(need(vram_gb=20), ALL, NOW).chosen.offer.type == "A100"
    assert decide(need(vram_gb=16), (KAGGLE, COLAB), NOW).chosen.offer.vram_gb >= 16


def test_G52_an_unknown_type_lists_what_is_offered():
    found = decide(need(gpu="H100"), ALL, NOW)
    assert found.outcome is Outcome.NO_FIT
    assert found.reason == "no provider fits: none offers H100; they offer A100, P100, RTX 4090, T4"
    assert decide(need(gpu="a100"), ALL, NOW).chosen.provider == "colab"
    assert decide(need(gpu="rtx4090", provider="local"), ALL, NOW).chosen.provider == "local"


@pytest.mark.parametrize(
    ("change", "code", "lasting"),
    [
        ({"enabled": False}, "disabled", True),
        ({"health": Health.AUTH_REQUIRED, "message": "run `gpu login kaggle`"}, "auth_required", True),
        ({"health": Health.NOT_INSTALLED}, "not_installed", True),
        ({"health": Health.UNAVAILABLE}, "provider_unavailable", False),
        ({"cooldown_until": NOW + 60}, "cooling_down", False),
        ({"exhausted_until": NOW + HOUR}, "quota_exhausted", False),
        ({"quota": Quota(0.0, 30.0, NOW + HOUR)}, "quota_exhausted", False),
        ({"offers": (Offer("V100", 16.0),)}, "gpu_not_offered", True),
        ({"offers": (Offer("T4", 8.0),)}, "vram_too_small", True),
        ({"interactive": False}, "interactive_unsupported", True),
        ({"max_session_hours": 0.5}, "session_too_short", True),
        ({"data": False}, "data_unsupported", True),
        ({"max_bundle_mb": 0.5}, "bundle_too_big", True),
        ({"running": 1}, "concurrency_full", False),
    ],
)
def test_g1_each_filter_says_its_reason_in_a_line(change, code, lasting):
    data = DataItem("d", manifest_sha256="0" * 64)
    bundle = Bundle("0" * 64, 1, 10**6)
    asked = need(gpu="T4", vram_gb=10, interactive=True, data=(data,), bundle=bundle)
    view = ProviderView("kaggle", offers=(T4,), interactive=True)
    assert decide(asked, (view,), NOW).outcome is Outcome.PLACE
    found = decide(asked, (replace(view, **change),), NOW)
    assert found.outcome is (Outcome.NO_FIT if lasting else Outcome.WAIT)
    [rejection] = found.rejected
    assert (rejection.code, rejection.lasting) == (code, lasting)
    assert "\n" not in rejection.sentence
    assert len(rejection.sentence) < 150
    assert (found.retry_at is None) is lasting


def test_g1_a_provider_that_refused_the_job_is_not_asked_again():
    excluded = need_of(SPEC, excluded={"colab": "the archive is too large"})
    found = decide(excluded, (COLAB, KAGGLE), NOW)
    assert found.chosen.provider == "kaggle"
    assert why(found, "colab") == ("excluded", "it refused this Job: the archive is too large")


def test_g1_a_long_job_goes_where_it_can_hand_over():
    long = need(hours=30.0)
    assert decide(long, (KAGGLE,), NOW).outcome is Outcome.PLACE
    stuck = decide(need(hours=30.0, checkpoint_interval_min=0), (KAGGLE,), NOW)
    assert why(stuck, "kaggle")[0] == "session_too_short"
    assert decide(long, (replace(KAGGLE, resume=False),), NOW).outcome is Outcome.NO_FIT


def test_g2_what_would_be_lost_at_a_reset_is_used_first():
    soon = replace(KAGGLE, name="one", quota=Quota(20.0, 30.0, NOW + 10 * HOUR))
    later = replace(KAGGLE, name="two", quota=Quota(20.0, 30.0, NOW + 150 * HOUR))
    found = decide(need(hours=2.0), (later, soon), NOW)
    assert [each.provider for each in found.candidates] == ["one", "two"]
    assert "20.0 h would be lost then (+10)" in found.candidates[0].sentence


def test_g2_more_than_half_of_what_is_left_speaks_against_it():
    tight = replace(COLAB, quota=Quota(1.5, 30.0))
    found = decide(need(hours=1.0), (tight,), NOW)
    assert found.chosen.quota_share == pytest.approx(2 / 3)
    assert "more than half of what is left (-10)" in found.chosen.sentence
    assert decide(need(hours=None), (tight,), NOW).chosen.quota_share is None


def test_c2_hours_that_were_guessed_are_called_so():
    assert decide(need(hours=None), ALL, NOW).hours_source == "heuristic"
    quick = decide(need(hours=None, smoke=True), ALL, NOW)
    assert (quick.hours_source, quick.hours) == ("spec", 0.25)
    earlier = decide(need_of(replace(SPEC, hours=None), earlier_hours=5.0), ALL, NOW)
    assert (earlier.hours, earlier.hours_source) == (5.0, "heuristic")


def test_a_server_without_providers_says_so():
    assert decide(need(), (), NOW).reason == "no provider fits: this server has none"
    assert "no provider modal" in decide(need(provider="modal"), ALL, NOW).reason


_offers = st.lists(
    st.builds(Offer, st.sampled_from(["T4", "A100"]), st.sampled_from([8.0, 16.0, 40.0])), max_size=3
)
_views = st.builds(
    ProviderView,
    name=st.sampled_from(["local", "kaggle", "colab", "ray"]),
    enabled=st.booleans(),
    health=st.sampled_from(Health),
    offers=_offers.map(tuple),
    cooldown_until=st.none() | st.floats(NOW - 100, NOW + 100),
    exhausted_until=st.none() | st.floats(NOW - 100, NOW + 100),
    quota=st.none() | st.builds(Quota, st.floats(0, 30), st.just(30.0), st.none() | st.just(NOW + HOUR)),
    running=st.integers(0, 2),
    max_concurrency=st.none() | st.integers(1, 2),
    max_session_hours=st.none() | st.floats(0.1, 12),
    max_bundle_mb=st.none() | st.floats(0, 10),
    interactive=st.booleans(),
    resume=st.booleans(),
    data=st.booleans(),
    priority=st.integers(-1, 1),
)
_needs = st.builds(
    Need,
    hours=st.floats(0.01, 20),
    hours_given=st.booleans(),
    smoke=st.booleans(),
    vram_gb=st.none() | st.sampled_from([8.0, 20.0]),
    gpu=st.none() | st.sampled_from(["T4", "a100", "H100"]),
    provider=st.none() | st.sampled_from(["local", "kaggle", "modal"]),
    interactive=st.booleans(),
    checkpoints=st.booleans(),
    data=st.booleans(),
    bundle_mb=st.floats(0, 10),
)


@given(_needs, st.lists(_views, max_size=4, unique_by=lambda view: view.name))
def test_every_provider_is_a_candidate_or_has_a_reason_and_no_hard_wish_is_broken(asked, views):
    found = decide(asked, views, NOW)
    named = [each.provider for each in (*found.candidates, *found.rejected)]
    assert sorted(named) == sorted(view.name for view in views)
    assert found.reason
    assert (found.outcome is Outcome.PLACE) is bool(found.candidates)
    assert (found.outcome is Outcome.WAIT) is (found.retry_at is not None)
    if found.retry_at is not None:
        assert found.retry_at > NOW
    if found.chosen is not None:
        assert asked.provider in {None, found.chosen.provider}
        offer = found.chosen.offer
        assert asked.vram_gb is None or (offer is not None and offer.vram_gb >= asked.vram_gb)
        assert asked.gpu is None or (offer is not None and offer.type.casefold() == asked.gpu.casefold())
    assert decide(asked, list(reversed(views)), NOW).chosen == found.chosen
