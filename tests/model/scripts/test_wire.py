"""What the server reads in a script Job's log (contract G, section f)."""

from __future__ import annotations

import json
import math
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.scripts import wire
from trainshed.model.scripts.wire import Progress, follow, parse

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
KINDS = ("hello", "device", "total", "metric", "ckpt_begin", "ckpt_end", "exit")
HEAD = ("job", "attempt", "python", "kind", "name", "vram_gb", "count", "n", "step", "values", "where", "ok")
TAIL = ("bytes", "code", "signal", "stage", "stopped", "message", "script_seconds", "checkpoint")
NEARLY = st.fixed_dictionaries(
    {"t": st.sampled_from(KINDS) | JSON}, optional=dict.fromkeys((*HEAD, *TAIL), JSON)
)


def said(kind: str, /, **fields: object) -> str:
    return wire.PREFIX + json.dumps({"t": kind, **fields})


def after(*lines: str) -> Progress:
    return reduce(follow, lines, Progress())


@given(NEARLY | JSON)
def test_no_line_of_the_wire_raises_and_what_it_says_can_be_stored(document):
    line = wire.PREFIX + json.dumps(document)
    found, progress = parse(line), follow(Progress(), line)
    assert found is None or type(found).__module__ == wire.__name__
    stored = json.dumps(progress.document(), allow_nan=False)
    assert Progress.of(json.loads(stored)) == progress
    stored.encode()


@given(st.text())
def test_whatever_a_program_prints_is_no_error(text):
    for line in (text, wire.PREFIX + text, wire.PREFIX + "{" + text):
        assert follow(Progress(), line).document().keys() == Progress().document().keys()


@given(
    st.lists(st.sampled_from(["loss=0.5", "step 1/9", "Epoch 2/3", said("metric", step=4), "x"]), max_size=8)
)
def test_after_the_helper_spoke_nothing_is_guessed(lines):
    found = after(said("metric", step=7, values={"acc": 1}), *(line for line in lines if "::" not in line))
    assert (found.step, found.metrics, found.source, found.total) == (7, {"acc": 1}, "helper", None)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 60_000,
        '{"t":"metric","step":' + "9" * 5000 + "}",
        '{"t":"metric","values":{"a":1e999}}',
        '{"t":"total","n":-1}',
        '{"t":"exit","code":1000}',
        '{"t":["metric"]}',
        '{"t":"metric","values":{"x y":1,"' + "n" * 65 + '":1}}',
        '{"t":"total","n":true}',
        '{"t":"shiny"}',
        '{"t":"metric","values":{"loss":"0.5"}}',
    ],
)
def test_hostile_lines_say_nothing(text):
    assert parse(wire.PREFIX + text) is None


def test_lines_of_the_wire_are_hidden_and_others_are_not():
    assert wire.hidden(said("shiny"))
    assert not wire.hidden("::gpu:: is what they begin with")
    assert not wire.hidden(" " + said("hello"))


def test_each_kind_is_read():
    assert parse(said("hello", job="a1", attempt=2, python="3.8.1")) == wire.Hello("a1", 2, "3.8.1")
    device = {"kind": "cuda", "name": "NVIDIA\tH200", "vram_gb": 150.7, "count": 1}
    assert parse(said("device", **device)) == wire.Device("cuda", "NVIDIA H200", 150.7, 1)
    assert parse(said("total", n=9)) == wire.Total(9)
    begin = parse(said("ckpt_begin", where="store", name=None, step=3))
    assert begin == wire.CheckpointBegin(stored=True, name=None, step=3)
    end = parse(said("ckpt_end", where="script", ok=True, name="step-3", step=3))
    assert end == wire.CheckpointEnd(stored=False, ok=True, name="step-3", step=3, n=None, bytes=None)
    left = {"code": 143, "signal": 15, "stage": "script", "stopped": True, "message": "", "checkpoint": 4}
    assert parse(said("exit", script_seconds=1.5, **left)) == wire.Exit(143, 15, "script", True, "", 1.5, 4)  # noqa: FBT003


def test_a_line_has_thirty_two_metrics_and_so_does_a_run():
    line = said("metric", values={f"m{n}": n for n in range(40)})
    message = parse(line)
    assert isinstance(message, wire.Metric)
    assert list(message.values) == [f"m{n}" for n in range(32)]
    more = after(line, said("metric", values={"m3": 5, "new": 1})).metrics
    assert len(more) == 32
    assert more["m3"] == 5


def test_what_is_not_finite_is_dropped_and_the_rest_stays():
    message = parse('::gpu:: {"t":"metric","step":1,"values":{"a":NaN,"b":Infinity,"c":0.5,"d":true}}')
    assert message == wire.Metric(1, {"c": 0.5})


@pytest.mark.parametrize(
    ("line", "step", "total"),
    [
        ("step 12/300", 12, 300),
        ("Step: 12 / 300 loss 1", 12, 300),
        ("global step [12/300]", 12, 300),
        ("Epoch 3/10", 3, 10),
        ("Epoch: [3/10] done", 3, 10),
        (" 34%|███▍      | 170/500 [00:12<00:23, 13.5it/s, loss=0.5]", 170, 500),
    ],
)
def test_progress_is_guessed_from_what_programs_print(line, step, total):
    found = after(line)
    assert (found.step, found.total, found.source) == (step, total, "guess")


@pytest.mark.parametrize("line", ["step 5/0", "epochs 1/2 of it", "footstep 1/2", "step 9/3", "50% | 1/2"])
def test_what_only_looks_like_progress_is_none(line):
    assert after(line).step is None


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("loss=0.25", {"loss": 0.25}),
        ("{'loss': 1.5, 'grad_norm': 2}", {"loss": 1.5}),
        ("train_loss: 2e-3 val_loss=.5", {"train_loss": 0.002, "val_loss": 0.5}),
        ("loss=nan", {}),
        ("gloss=1.2.3", {}),
        ("loss=1e999", {}),
    ],
)
def test_losses_are_guessed(line, values):
    assert after(line).metrics == values


def test_the_bar_of_an_epoch_does_not_hide_the_epochs():
    bar = "100%|██████████| 500/500 [00:12<00:00]"
    found = after(bar, "Epoch 2/4", bar)
    assert (found.step, found.total) == (2, 4)
    assert after("Epoch 2/4", "step 7/900", "Epoch 3/4").step == 7


def test_the_first_metric_takes_the_place_of_all_guesses_but_not_of_the_declared_total():
    found = after("loss=9", "Epoch 1/2", said("total", n=800), said("metric", step=5, values={"acc": 0.5}))
    assert (found.step, found.total, found.metrics, found.source) == (5, 800, {"acc": 0.5}, "helper")
    assert after("Epoch 1/2", said("metric", step=5)).total is None


def test_a_declared_total_stays_while_steps_are_guessed():
    found = after(said("total", n=800), "step 4/10")
    assert (found.step, found.total, found.source) == (4, 800, "guess")


def test_metrics_are_the_newest_of_each_and_a_step_stays_until_another_is_said():
    found = after(said("metric", step=1, values={"a": 1, "b": 2}), said("metric", values={"a": 3}))
    assert (found.step, found.metrics) == (1, {"a": 3, "b": 2})


@pytest.mark.parametrize("line", ["loss" * 50_000, "1%|" + "|" * 100_000, "epoch " * 30_000, "9" * 200_000])
def test_a_long_line_is_read_at_once(line):
    assert after(line) == Progress()


def test_a_text_of_the_runner_fits_into_one_line_and_a_database():
    message = parse(said("exit", code=90, message="a\nb\x00\ud800" + "x" * 999))
    assert isinstance(message, wire.Exit)
    assert message.message.startswith("a b ?xx")
    assert len(message.message) <= 300
    assert math.isclose(message.code, 90)
