"""E56-E60 and the readings A12, A19: what a Trial gets, and which requests can never be served."""

from dataclasses import dataclass, field

import pytest

from policy.worlds import A100, H100, node
from trainshed.model.errors import Refusal
from trainshed.model.resources import Amounts
from trainshed.model.runner import RunnerDefinition
from trainshed.model.selectors import parse_selector
from trainshed.model.submission import TrialRequest
from trainshed.policy import (
    UNLIMITED,
    Account,
    EffectiveResources,
    Fleet,
    ProjectLimits,
    ServerPolicy,
    effective_resources,
    quota_faults,
)

SMALL = node("small", 2, A100, cpus=16, memory_mb=65_536)
BIG = node("big", 8, H100, cpus=64, memory_mb=1 << 20)
SEED = {"gpus": 1, "cpus": 8, "memory_mb": 65_536, "storage_mb": 102_400}


@dataclass
class Declared:
    resources: dict = field(default_factory=dict)
    timeout_seconds: int | None = None


def ask(gpu_type=None, timeout=None, **counts):
    return TrialRequest(
        "trial-1", parse_selector("ns/name@main"), gpu_type=gpu_type, counts=counts, timeout_seconds=timeout
    )


def result(request, runner=None, policy=None, nodes=(BIG, SMALL), **options):
    policy = policy or ServerPolicy()
    return effective_resources(
        request, runner or Declared(), policy, Fleet(nodes), path="trials[0].spec", **options
    )


def granted(*args, **options):
    found, faults = result(*args, **options)
    assert not faults
    return found


def refused(*args, **options):
    found, faults = result(*args, **options)
    assert found is None
    return [(fault.path.removeprefix("trials[0].spec"), fault.code, fault.message) for fault in faults]


def test_E57_the_request_goes_before_the_runner_and_the_runner_before_policy():
    runner = Declared({"gpu_type": "A100", "gpus": 2, "cpus": 4, "memory_mb": 2048}, timeout_seconds=90)
    found = granted(ask("H100", cpus=3), runner)
    assert found == EffectiveResources(
        "H100", Amounts(gpus=2, cpus=3, memory_mb=2048, storage_mb=1024, shm_mb=64), 90
    )


def test_E57_a_real_runner_definition_supplies_defaults():
    runner = RunnerDefinition("main.sh", timeout_seconds=5, resources={"gpu_type": "H100", "gpus": 4})
    found = granted(ask(), runner)
    assert (found.gpu_type, found.amounts.gpus, found.timeout_seconds) == ("H100", 4, 5)


def test_E57_what_nobody_names_fits_any_machine():
    found = granted(ask("H100", gpus=1))
    assert found.amounts == Amounts(gpus=1, cpus=1, memory_mb=1024, storage_mb=1024, shm_mb=64)
    assert found.timeout_seconds == 3600


def test_E63_the_effective_values_have_the_keys_of_the_wire():
    assert granted(ask("H100", gpus=1)).as_dict() == {
        "gpu_type": "H100",
        "gpus": 1,
        "cpus": 1,
        "memory_mb": 1024,
        "storage_mb": 1024,
        "shm_mb": 64,
    }


def test_the_seeds_own_example_fits_a_node_with_simulated_gpus():
    assert granted(ask("H100", **SEED)).amounts.memory_mb == 65_536


def test_A19_a_missing_type_comes_from_the_only_model_there_is():
    assert granted(ask(gpus=1), nodes=[BIG]).gpu_type == H100


def test_A19_a_missing_type_comes_from_policy_before_the_only_model():
    assert granted(ask(gpus=1), policy=ServerPolicy(gpu_type="A100")).gpu_type == "A100"


def test_A19_a_missing_count_comes_from_policy():
    assert granted(ask("H100"), policy=ServerPolicy(gpus=2)).amounts.gpus == 2


def test_E58_no_gpu_request_at_all_is_refused_with_both_halves_named():
    found = refused(ask())
    assert [(path, code) for path, code, _ in found] == [
        (".resources.gpus", "INVALID_EXECUTION_CONFIG"),
        (".resources.gpu_type", "INVALID_EXECUTION_CONFIG"),
    ]
    assert H100 in found[1][2]


def test_E58_a_type_alone_is_refused_where_nobody_supplies_the_count():
    assert [fault[:2] for fault in refused(ask("H100"))] == [
        (".resources.gpus", "INVALID_EXECUTION_CONFIG"),
    ]


def test_A12_an_unknown_gpu_type_is_refused_with_the_nearest_names():
    ((path, code, message),) = refused(ask("H10", gpus=1))
    assert (path, code) == (".resources.gpu_type", "UNSUPPORTED_HARDWARE")
    assert f"nearest: {H100}" in message
    assert "up to 8" in message


def test_A12_more_gpus_than_the_largest_node_has_are_refused_with_both_numbers():
    ((path, code, message),) = refused(ask("A100", gpus=3))
    assert (path, code) == (".resources.gpus", "UNSUPPORTED_HARDWARE")
    assert "wants 3 A100" in message
    assert "has 2" in message


def test_E34_gpus_of_two_models_on_one_node_do_not_add_up():
    mixed = node("mixed", model=[H100, H100, "NVIDIA H100 NVL"])
    ((path, code, _),) = refused(ask("H100", gpus=3), nodes=[mixed])
    assert (path, code) == (".resources.gpus", "UNSUPPORTED_HARDWARE")


@pytest.mark.parametrize("key", ["cpus", "memory_mb", "storage_mb", "shm_mb"])
def test_E59_an_amount_above_every_node_is_refused_with_both_numbers(key):
    there = getattr(BIG.amounts, key)
    ((path, code, message),) = refused(ask("H100", gpus=1, **{key: there + 1}))
    assert (path, code) == (f".resources.{key}", "UNSUPPORTED_HARDWARE")
    assert str(there) in message
    assert str(there + 1) in message


def test_E59_an_amount_that_only_nodes_without_the_gpu_have_is_refused():
    ((path, _, message),) = refused(ask("A100", gpus=1, cpus=64))
    assert path == ".resources.cpus"
    assert "has 16" in message


def test_E59_amounts_that_no_single_node_has_together_are_refused():
    wide, tall = node("wide", cpus=64, memory_mb=100), node("tall", cpus=4, memory_mb=10_000)
    ((path, code, message),) = refused(ask("H100", gpus=1, cpus=32, memory_mb=5000), nodes=[wide, tall])
    assert (path, code) == (".resources", "UNSUPPORTED_HARDWARE")
    assert "together" in message


def test_a_fault_says_where_the_value_came_from():
    ((_, _, message),) = refused(ask("H100", gpus=1), Declared({"cpus": 100}))
    assert "from the Runner" in message


def test_a_timeout_above_the_maximum_is_refused():
    ((path, code, message),) = refused(ask("H100", gpus=1, timeout=604_801))
    assert (path, code) == (".timeout_seconds", "INVALID_EXECUTION_CONFIG")
    assert "604800" in message
    assert granted(ask("H100", gpus=1, timeout=604_800)).timeout_seconds == 604_800


def test_all_faults_come_at_once():
    codes = {code for _, code, _ in refused(ask("B200", gpus=1, timeout=10**9))}
    assert codes == {"INVALID_EXECUTION_CONFIG", "UNSUPPORTED_HARDWARE"}


def test_one_fault_hides_none_of_another_value():
    asked = ask("B200", gpus=9, cpus=65, timeout=604_801)
    found = result(asked, nodes=[BIG, SMALL], limits=ProjectLimits(max_gpus=8))[1]
    assert [(fault.path.removeprefix("trials[0].spec"), fault.code) for fault in found] == [
        (".timeout_seconds", "INVALID_EXECUTION_CONFIG"),
        (".resources.gpu_type", "UNSUPPORTED_HARDWARE"),
        (".resources.gpus", "UNSUPPORTED_HARDWARE"),
        (".resources.cpus", "UNSUPPORTED_HARDWARE"),
        (".resources.gpus", "TRAIN_JOB_CAPACITY_EXCEEDED"),
    ]
    # Neither a GPU type that nobody has nor too many GPUs make an amount wrong that some node has.
    assert [fault[0] for fault in refused(ask("B200", gpus=1, cpus=64))] == [".resources.gpu_type"]
    assert [fault[0] for fault in refused(ask("H100", gpus=9, cpus=64))] == [".resources.gpus"]


@pytest.mark.parametrize(
    ("unread", "asked", "told"),
    [
        ({"gpus"}, ask("B200", cpus=65), {"gpu_type", "cpus"}),
        ({"gpus"}, ask("H100", cpus=64), set()),
        ({"gpu_type"}, ask(gpus=9, cpus=65), {"gpus", "cpus"}),
        ({"gpu_type"}, ask(gpus=2, cpus=64), set()),
        ({"cpus"}, ask("A100", gpus=3, memory_mb=2**30), {"gpus", "memory_mb"}),
        ({"timeout_seconds"}, ask("H100", gpus=9), {"gpus"}),
        ({"gpus", "gpu_type", "cpus"}, ask(memory_mb=1024), set()),
    ],
)
def test_of_a_malformed_request_what_could_be_read_is_judged_and_nothing_in_place_of_the_rest(
    unread, asked, told
):
    impossible = {"gpu_type": "B200", "gpus": 64, "cpus": 1000}
    in_their_place = {key: value for key, value in impossible.items() if key in unread}
    runner = Declared({"gpus": 1} | in_their_place, 10**9 if "timeout_seconds" in unread else None)
    found, faults = result(asked, runner, unread=unread)
    assert found is None
    assert {fault.path.rpartition(".")[2] for fault in faults} == told


def test_without_its_runner_what_a_trial_names_itself_is_judged():
    unread = {"cpus", "memory_mb", "storage_mb", "shm_mb", "gpus"}
    found, faults = effective_resources(
        ask("B200", timeout=10**9), None, ServerPolicy(), Fleet([BIG]), unread=unread
    )
    assert found is None
    assert {fault.path for fault in faults} == {"spec.timeout_seconds", "spec.resources.gpu_type"}


def test_A12_without_any_node_the_gpu_is_unavailable_at_the_moment():
    ((path, code, _),) = refused(ask("H100", gpus=1), nodes=[])
    assert (path, code) == (".resources", "RUNNER_GPU_UNAVAILABLE")


def test_A12_without_any_node_a_trial_may_wait_where_policy_allows_it():
    assert granted(ask("H100", gpus=1), nodes=[], policy=ServerPolicy(wait_for_nodes=True)).gpu_type == "H100"


def test_a_server_without_gpus_says_so():
    found = refused(ask(gpus=1), nodes=[node("plain", 0)])
    assert [fault[:2] for fault in found] == [(".resources.gpu_type", "UNSUPPORTED_HARDWARE")]
    assert "no GPUs" in found[0][2]
    ((_, code, message),) = refused(ask("H100", gpus=1), nodes=[node("plain", 0)])
    assert code == "UNSUPPORTED_HARDWARE"
    assert "no GPUs" in message


def test_every_fault_has_a_code_of_the_catalogue():
    for faults in (result(ask())[1], result(ask("x", gpus=1, timeout=10**9))[1]):
        assert Refusal(faults).code != "INVALID_SPEC"


TWO_HOURS = (4, 7200)
"""GPUs, and seconds of each."""


def quota(limits, funds=UNLIMITED):
    return [(fault.path, fault.code) for fault in quota_faults(*TWO_HOURS, limits, funds)]


def test_E36_a_limit_that_can_never_admit_one_trial_is_refused():
    assert quota(ProjectLimits(max_gpus=3)) == [("spec.resources.gpus", "TRAIN_JOB_CAPACITY_EXCEEDED")]
    assert quota(ProjectLimits(max_active_trials=0)) == [("spec", "TRAIN_JOB_CAPACITY_EXCEEDED")]
    assert quota(ProjectLimits(max_gpus=4, max_active_trials=1)) == []


def test_E59_a_budget_that_can_never_cover_one_trial_is_refused():
    budget = 8 * 3600
    spent = Account(budget=budget, used=3600, spent=0, reserved=0)
    assert quota(ProjectLimits(), spent) == [("spec.timeout_seconds", "INSUFFICIENT_BALANCE")]


def test_E36_a_budget_that_running_trials_may_give_back_makes_a_trial_wait():
    reserved = Account(budget=8 * 3600, used=0, spent=0, reserved=5 * 3600)
    assert reserved.left < 8 * 3600
    assert quota(ProjectLimits(), reserved) == []


def test_what_running_trials_have_spent_does_not_come_back():
    half_spent = Account(budget=8 * 3600, used=0, spent=1, reserved=5 * 3600)
    assert quota(ProjectLimits(), half_spent) == [("spec.timeout_seconds", "INSUFFICIENT_BALANCE")]


def test_both_refusals_come_at_once_and_the_first_by_the_contracts_order_leads():
    poor = Account(budget=0, used=0, spent=0, reserved=0)
    refusal = Refusal(quota_faults(*TWO_HOURS, ProjectLimits(max_gpus=1), poor))
    assert (refusal.code, refusal.status) == ("TRAIN_JOB_CAPACITY_EXCEEDED", 409)
    assert len(refusal.faults) == 2


@pytest.mark.parametrize(
    "wrong", [{"cpus": 0}, {"gpus": 0}, {"timeout_seconds": 8, "max_timeout_seconds": 7}, {"shm_mb": -1}]
)
def test_a_policy_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ServerPolicy(**wrong)
