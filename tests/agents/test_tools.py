"""What an agent is told of the tools, and how calls are checked (contract G, a.0)."""

from __future__ import annotations

import json

import pytest

from support.agents import Agent
from trainshed.mcp.schemas import TOOLS

SUBMIT_INPUTS = {
    "project_dir",
    "script",
    "args",
    "hours",
    "vram_gb",
    "gpu",
    "provider",
    "name",
    "env",
    "data",
    "include",
    "smoke",
    "request_id",
    "wait_s",
    "verbose",
}
FORBIDDEN = ("approve", "deny", "secret", "policy")


def test_G1_gpu_submit_has_its_15_inputs_and_needs_only_the_folder(agent):
    submit = agent.tools()["gpu_submit"].input_schema
    assert set(submit["properties"]) == SUBMIT_INPUTS
    assert submit["required"] == ["project_dir"]
    assert all(each["description"] for each in submit["properties"].values())


def test_G2_the_description_says_when_to_use_it_and_when_not(agent):
    said = agent.tools()["gpu_submit"].description
    for word in ("training", "fine-tuning", "evaluations", "CUDA", "runs long"):
        assert word in said
    assert "Do not use it for quick CPU work" in said


def test_G30_no_tool_can_answer_a_question_or_change_secrets_or_rules(agent):
    tools = agent.tools()
    assert {name for name in tools if name.startswith("gpu_")} == {
        "gpu_submit",
        "gpu_status",
        "gpu_logs",
        "gpu_fetch",
        "gpu_cancel",
        "gpu_quota",
        "gpu_route",
    }
    assert not [name for name in tools if any(word in name for word in FORBIDDEN)]


@pytest.mark.parametrize(
    ("name", "reads_only", "destructive", "idempotent", "open_world"),
    [
        ("gpu_submit", False, False, False, True),
        ("gpu_status", True, False, True, False),
        ("gpu_logs", True, False, True, False),
        ("gpu_quota", True, False, True, False),
        ("gpu_route", True, False, True, False),
        ("gpu_fetch", False, False, True, True),
        ("gpu_cancel", False, True, True, True),
    ],
)
def test_a04_annotations_say_what_a_tool_may_do(agent, name, reads_only, destructive, idempotent, open_world):
    told = agent.tools()[name].annotations
    assert (told.read_only_hint, told.destructive_hint) == (reads_only, destructive)
    assert (told.idempotent_hint, told.open_world_hint) == (idempotent, open_world)


def test_a05_every_tool_declares_what_it_answers(agent):
    for tool in agent.tools().values():
        assert tool.output_schema["type"] == "object"
        assert tool.output_schema["properties"]


def test_a01_tools_are_listed_without_a_server_a_login_or_a_network(tmp_path):
    nowhere = {"TRAINSHED_HOME": str(tmp_path / "home"), "TRAINSHED_NO_AUTOSTART": "1"}
    with Agent(nowhere) as alone:
        assert set(alone.tools()) == {tool.name for tool in TOOLS}
        error = alone.refused("gpu_status")
        bad = alone.refused("gpu_status", ref="xyz")
    assert error["code"] == "daemon_unavailable"
    assert error["hint"]
    assert bad["code"] == "invalid_request"
    assert not (tmp_path / "home").exists(), "nothing was started or written"


@pytest.mark.parametrize(
    ("tool", "arguments", "path", "hint"),
    [
        ("gpu_submit", {"project_dir": "/tmp", "hour": 1}, "hour", "Did you mean hours?"),
        ("gpu_submit", {}, "project_dir", ""),
        ("gpu_submit", {"project_dir": "/tmp", "hours": 0}, "hours", ""),
        ("gpu_submit", {"project_dir": "/tmp", "hours": -1}, "hours", ""),
        ("gpu_submit", {"project_dir": "/tmp", "hours": 336.5}, "hours", ""),
        ("gpu_submit", {"project_dir": "/tmp", "hours": "two"}, "hours", ""),
        ("gpu_submit", {"project_dir": "/tmp", "wait_s": 51}, "wait_s", ""),
        ("gpu_submit", {"project_dir": "/tmp", "name": "n" * 81}, "name", ""),
        ("gpu_submit", {"project_dir": "/tmp", "request_id": "a b"}, "request_id", ""),
        ("gpu_submit", {"project_dir": "/tmp", "request_id": "a" * 65}, "request_id", ""),
        ("gpu_submit", {"project_dir": "/tmp", "include": ["x"] * 65}, "include", ""),
        ("gpu_submit", {"project_dir": "/tmp", "vram_gb": 641}, "vram_gb", ""),
        ("gpu_status", {"ref": "xyz"}, "ref", ""),
        ("gpu_status", {"ref": "0" * 13}, "ref", ""),
        ("gpu_logs", {"ref": "abc", "since": "1:2:3"}, "since", ""),
        ("gpu_logs", {"ref": "abc", "tail": 1001}, "tail", ""),
        ("gpu_fetch", {"ref": "abc", "wait_s": 301}, "wait_s", ""),
    ],
)
def test_G60_G68_G79_a07_a_bad_call_names_what_is_wrong_and_starts_nothing(
    agent, tool, arguments, path, hint
):
    error = agent.refused(tool, **arguments)
    assert error["code"] == "invalid_request"
    assert [fault["path"] for fault in error["detail"]["faults"]] == [path]
    assert path in error["message"]
    assert error["hint"] == hint or not hint


def test_a07_every_fault_of_a_call_is_told_at_once(agent):
    error = agent.refused("gpu_submit", hours=0, vram_gb=-1, wait_s=99, scirpt="x")
    faults = {fault["path"] for fault in error["detail"]["faults"]}
    assert faults == {"project_dir", "hours", "vram_gb", "wait_s", "scirpt"}
    assert error["hint"] == "Did you mean script?"
    error = agent.refused("gpu_submit", project_dir="/tmp", hour=1, vram=8)
    assert error["hint"] == "Did you mean hours and vram_gb?"


def test_a06_an_error_is_pure_json_and_the_same_in_both_places(agent):
    result = agent.result("gpu_status", {"ref": "0" * 12})
    assert result.is_error
    assert json.loads(result.content[0].text) == result.structured_content
    assert set(result.structured_content["error"]) == {"code", "message", "hint", "detail"}
    assert result.structured_content["error"]["code"] == "job_not_found"
    assert "gpu_status" in result.structured_content["error"]["hint"]


def test_a06_a_tool_that_does_not_exist_is_refused_with_those_that_do(agent):
    error = agent.refused("gpu_approve", ref="abc")
    assert error["code"] == "invalid_request"
    assert "gpu_submit" in error["hint"]
