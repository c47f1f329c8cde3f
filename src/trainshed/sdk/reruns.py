"""Submitting a frozen Job again: by label where that still leads to the same content, else by digest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainshed.model.provenance import labelled, rerun_request
from trainshed.sdk.errors import ApiError, TrainshedError
from trainshed.sdk.transport import Answer, Transport, route

_INPUT = re.compile(r"trials\[(\d+)\]\.spec\.profile\.inputs\.([^.]+)\.(uri|manifest_sha256)")
_TAKEN = frozenset({"PROFILE_HASH_MISMATCH", "PROFILE_ARCHIVED"})
_ELSEWHERE = _TAKEN | {"ACCESS_DENIED"}
"""Codes of a label that does not lead to the content: the digest may."""
_NO_VERSION = "INVALID_PROFILE"
"""The same at a URI, where the content may be read and has no version of that label."""
_ANOTHER_REQUEST = "JOB_REQUEST_CONFLICT"


def submit_again(
    transport: Transport, frozen: Mapping[str, Any], request_id: str, hidden: Mapping[str, str] | None
) -> Answer:
    """Submit what was frozen, by the names that this server knows it by.

    An input whose label is refused is named by its digest in the next try; each try names at least one more
    input so, and nothing was accepted before the last. Raises `ApiError`; where labels name something else
    here its body has their URIs, ``labels_taken``. Raises `HiddenValuesWanted`.
    """
    by_digest: set[str] = set()
    taken: set[str] = set()
    while True:
        body = rerun_request(frozen, request_id, hidden=hidden, by_digest=by_digest)
        try:
            return transport.ask("POST", route("jobs"), body=body, repeatable=True)
        except ApiError as error:
            refused = {(code, uri) for code, uri in _refused(frozen, error) if uri not in by_digest}
            taken |= {uri for code, uri in refused if code in _TAKEN}
            more = {uri for _, uri in refused} | (_of_its_job(transport, frozen, error) - by_digest)
            if not more:
                if taken:
                    error.body = {**error.body, "labels_taken": sorted(taken)}
                raise
            by_digest |= more


def _refused(frozen: Mapping[str, Any], error: ApiError) -> Iterator[tuple[str, str]]:
    """The labels at fault: the code and the URI."""
    for fault in error.faults:
        place = _INPUT.fullmatch(fault.path)
        if place is None or int(place[1]) >= len(frozen["trials"]):
            continue
        if fault.code not in _ELSEWHERE and (fault.code, place[3]) != (_NO_VERSION, "uri"):
            continue
        uri = labelled(_inputs(frozen["trials"][int(place[1])]).get(place[2]))
        if uri is not None:
            yield fault.code, uri


def _of_its_job(transport: Transport, frozen: Mapping[str, Any], error: ApiError) -> set[str]:
    """What the Job that has this request id named by digest: the same request may have been sent before."""
    job_id = error.body.get("job_id")
    if error.code != _ANOTHER_REQUEST or not isinstance(job_id, str):
        return set()
    try:
        there = transport.call("GET", route("jobs", job_id, "manifest"))["frozen"]["trials"]
        digests = [{name for name, each in _inputs(trial).items() if not labelled(each)} for trial in there]
    except (TrainshedError, KeyError, TypeError, AttributeError):
        return set()  # then the refusal is told as it came
    found = {
        labelled(each)
        for trial, names in zip(frozen["trials"], digests, strict=False)
        for name, each in _inputs(trial).items()
        if name in names
    }
    return {uri for uri in found if uri is not None}


def _inputs(trial: Mapping[str, Any]) -> Mapping[str, Any]:
    inputs: Mapping[str, Any] = {} if trial["profile"] is None else trial["profile"]["document"]["inputs"]
    return inputs
