"""One error shape: the first fault by the contract's order decides, all are listed, none is too long."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.errors import CODES, MAX_BODY_BYTES, Fault, Refusal

B13 = [
    ("INVALID_REQUEST", 400),
    ("REQUEST_TOO_LARGE", 413),
    ("METHOD_NOT_ALLOWED", 405),
    ("AUTHENTICATION_REQUIRED", 401),
    ("PERMISSION_DENIED", 403),
    ("PROJECT_ACCESS_DENIED", 403),
    ("JOB_NOT_FOUND", 404),
    ("TRIAL_NOT_FOUND", 404),
    ("NOT_FOUND", 404),
    ("INVALID_JOB_TYPE", 422),
    ("INVALID_REQUEST_ID", 422),
    ("JOB_REQUEST_CONFLICT", 409),
    ("INVALID_TRIALS", 422),
    ("INVALID_TRAIN_JOB_SPEC", 422),
    ("UNSUPPORTED_TRAINING_BACKEND_SELECTION", 422),
    ("INVALID_RUNNER", 422),
    ("RUNNER_NOT_FOUND", 404),
    ("INVALID_RUNNER_ENVIRONMENT", 422),
    ("RUNNER_HASH_MISMATCH", 409),
    ("RUNNER_VERSION_AMBIGUOUS", 409),
    ("INVALID_COMMAND", 422),
    ("UNSUPPORTED_COMMAND", 422),
    ("INVALID_TAG", 422),
    ("INVALID_EXECUTION_CONFIG", 422),
    ("UNSUPPORTED_HARDWARE", 422),
    ("RUNNER_GPU_UNAVAILABLE", 503),
    ("TRAIN_JOB_CAPACITY_EXCEEDED", 409),
    ("INSUFFICIENT_BALANCE", 402),
    ("EXECUTOR_UNAVAILABLE", 503),
    ("INVALID_PROFILE", 422),
    ("PROFILE_RUNNER_UNSUPPORTED", 422),
    ("PROFILE_HASH_MISMATCH", 409),
    ("PROFILE_ARCHIVED", 409),
    ("INVALID_JOB_STATUS", 422),
    ("INVALID_TRIAL_STATUS", 422),
    ("INVALID_LIMIT", 422),
    ("INVALID_CURSOR", 400),
    ("RATE_LIMITED", 429),
]
"""Contract E b13 in its order, copied from the contract."""


def test_the_catalogue_holds_the_codes_of_contract_E_b13_in_its_order():
    order = list(CODES)
    places = [order.index(name) for name, _ in B13]
    assert places == sorted(places)
    assert [(name, CODES[name].status) for name, _ in B13] == B13


def test_every_code_can_be_read_by_the_published_client_and_says_what_to_do():
    for name, code in CODES.items():
        assert name == code.name
        assert re.fullmatch(r"[A-Z0-9_]{1,128}", name)
        assert code.hint.endswith(".")
        assert 400 <= code.status < 600


@given(st.permutations(list(CODES)).map(lambda names: names[:6]))
def test_the_first_code_in_the_contracts_order_is_the_answers_code(names):
    refusal = Refusal([Fault("", name, f"about {name}") for name in names])
    first = min(names, key=list(CODES).index)
    body = refusal.body()
    assert (refusal.code, refusal.status, body["code"]) == (first, CODES[first].status, first)
    assert body["message"] == f"about {first}"
    assert {error["code"] for error in body["errors"]} == set(names)


def test_the_hint_is_the_first_faults_then_those_of_others_that_fit_whole():
    hints = ["Do a.", "", "Do b.", "Do a.", f"Do {'c' * 990}.", "Do d."]
    refusal = Refusal([Fault(str(place), "INVALID_PROFILE", "x", hint) for place, hint in enumerate(hints)])
    assert refusal.body()["hint"] == "Do a. Do b. Do d."


def test_a_code_that_the_catalogue_does_not_know_is_answered_as_an_invalid_spec():
    refusal = Refusal.of("C_SOMETHING", "said elsewhere")
    assert (refusal.code, refusal.status) == ("INVALID_SPEC", 422)
    assert refusal.body()["errors"][0]["code"] == "C_SOMETHING"


TEXTS = st.one_of(
    st.text(max_size=50),
    st.text(max_size=10).map(lambda t: t * 2000),
    st.sampled_from(["\U0001f600" * 3000, "\x00" * 9000, "\ud800" * 3000, '"' * 9000]),
)


@given(
    st.lists(st.tuples(TEXTS, st.sampled_from(list(CODES)), TEXTS), min_size=1, max_size=60),
    st.dictionaries(st.sampled_from(["job_id", "differences"]), TEXTS),
)
def test_no_error_body_is_longer_than_the_published_client_reads(faults, extra):
    refusal = Refusal([Fault(*fault) for fault in faults], extra=extra)
    body = refusal.body()
    for encoded in (
        json.dumps(body, separators=(",", ":")).encode(),
        json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode(),
    ):
        assert len(encoded) <= MAX_BODY_BYTES
    shown, hidden = len(body["errors"]), body.get("errors_not_shown", 0)
    assert shown + hidden == len(faults)
    assert hidden == 0 or "errors_not_shown" in body


def test_a_refusal_without_a_fault_cannot_be_made():
    with pytest.raises(ValueError, match="at least one"):
        Refusal([])


def test_many_faults_are_counted_when_they_are_not_shown():
    refusal = Refusal([Fault(f"trials[{n}]", "INVALID_TRIALS", "no " * 40) for n in range(500)])
    body = refusal.body()
    assert 10 < len(body["errors"]) < 500
    assert body["errors_not_shown"] == 500 - len(body["errors"])
