import pytest

from trainshed.policy import matching_models, nearest_models

SXM, PCIE, NVL = "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 NVL"
A100, A100_40 = "NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB"
FLEET = (SXM, PCIE, NVL, A100, A100_40, "NVIDIA A10", "Tesla T4", "NVIDIA L4", "NVIDIA L40S")


@pytest.mark.parametrize(
    ("gpu_type", "models"),
    [
        ("H100", {SXM, PCIE, NVL}),
        ("h100", {SXM, PCIE, NVL}),
        ("NVIDIA H100", {SXM, PCIE, NVL}),
        ("H100 NVL", {NVL}),
        ("h100-nvl", {NVL}),
        ("H100-80GB", {SXM}),
        (SXM, {SXM}),
        ("A100", {A100, A100_40}),
        ("A100-80GB", {A100}),
        ("A100 40GB", {A100_40}),
        ("A10", {"NVIDIA A10"}),
        ("T4", {"Tesla T4"}),
        ("Tesla_T4", {"Tesla T4"}),
        ("L4", {"NVIDIA L4"}),
        ("L40", set()),
        ("H10", set()),
        ("100", set()),
        ("NVIDIA", set()),
        ("H100 A100", set()),
    ],
)
def test_a_gpu_type_means_the_models_that_contain_its_whole_words(gpu_type, models):
    assert set(matching_models(gpu_type, FLEET)) == models


def test_a10_never_means_a100_where_there_is_no_a10():
    assert matching_models("A10", [A100]) == ()


def test_a_complete_name_means_that_model_alone():
    both = ["NVIDIA GeForce RTX 3080", "NVIDIA GeForce RTX 3080 Ti"]
    assert matching_models("RTX 3080", both) == ("NVIDIA GeForce RTX 3080",)
    assert matching_models("RTX3080", both) == ("NVIDIA GeForce RTX 3080",)
    assert matching_models("RTX 3080", both[1:]) == ("NVIDIA GeForce RTX 3080 Ti",)
    assert matching_models("3080", both) == tuple(both)


def test_a_simulated_gpu_is_found_by_the_name_it_was_given():
    assert matching_models("H100", ["H100"]) == ("H100",)


def test_a_mig_slice_is_meant_only_by_a_type_that_says_so():
    slices = ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-SXM4-40GB"]
    assert matching_models("A100", slices) == (slices[1],)
    assert matching_models("A100 MIG 1g.5gb", slices) == (slices[0],)


def test_the_nearest_models_come_first():
    assert nearest_models("H10", FLEET)[0] in {SXM, PCIE, NVL}
    assert nearest_models("L40", FLEET)[0] == "NVIDIA L40S"
    assert nearest_models("anything", []) == ()
