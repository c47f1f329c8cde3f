"""Values in gpu.yaml and arguments that somebody wrote to do harm: one clear error each."""

from __future__ import annotations

import pytest

from trainshed.model.scripts.faults import SpecError
from trainshed.model.scripts.gpu_yaml import read_arguments, read_gpu_yaml


@pytest.mark.parametrize(
    "line",
    [
        "hours: 1" + "0" * 400,
        "hours: .nan",
        "hours: .inf",
        "hours: 1e999",
        "vram: -1" + "0" * 400,
        "max_attempts: 1" + "0" * 4000,
        'labels: {"\\ud800": x}',
        'provider_options: {kaggle: {a: "\\ud800"}}',
        "hours: " + "[" * 5000 + "]" * 5000,
        "labels: &a [*a]",
        "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nargs: [*b,*b,*b,*b,*b,*b,*b,*b]",
    ],
)
def test_a_file_with_such_a_value_is_refused_with_its_line(line):
    with pytest.raises(SpecError) as caught:
        read_gpu_yaml(line.encode())
    assert all(fault.place.startswith("gpu.yaml:") for fault in caught.value.faults)


@pytest.mark.parametrize(
    ("key", "value"), [("hours", 10**400), ("hours", float("nan")), ("args", "[" * 100_000), ("hours", "1")]
)
def test_an_argument_with_such_a_value_is_refused_with_its_name(key, value):
    with pytest.raises(SpecError) as caught:
        read_arguments({key: value})
    assert [fault.key for fault in caught.value.faults] == [key]
