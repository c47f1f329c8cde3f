"""What each tool does: calls of the SDK, waits that tell progress, answers of the right size (a.1 to a.7)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainshed.mcp import reading
from trainshed.mcp.documents import (
    MOST_LISTED,
    bundle_document,
    job_document,
    overview,
    with_guidance,
    without_nulls,
)
from trainshed.mcp.errors import ToolError
from trainshed.model.scripts.guidance import UNTRUSTED
from trainshed.model.scripts.states import SETTLED_WAITS, TERMINAL_WORDS, Word
from trainshed.model.words import counted
from trainshed.sdk.client import Client
from trainshed.sdk.packing import pack

Progress = Callable[[float, float, str], None]
AGENT = "agent"
_POLL_S = 10.0
"""How long one question to the server waits; progress is told between them (a.0.11)."""
_PAUSE_S = 0.25
_LINE_CHARACTERS, _ALL_CHARACTERS = 2000, 60_000
_RECENT_S = 24 * 3600.0
_PROJECT_ARGUMENTS = (
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
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One call: a tool, its checked arguments, and where progress is told."""

    tool: str
    arguments: Mapping[str, Any]
    progress: Progress


class Calls:
    """Answers calls for one caller. Used from worker threads."""

    def __init__(self, client: Callable[[], Client], *, local_files: bool = True) -> None:
        """``client`` opens the server at the first call that needs it.

        ``local_files`` says whether the agent's folders are on this machine; over HTTP they are not.
        """
        self._client = client
        self._local_files = local_files
        self._tools: Mapping[str, Callable[[Ask], dict[str, Any]]] = {
            "gpu_submit": self._submit,
            "gpu_status": self._status,
            "gpu_logs": self._logs,
            "gpu_fetch": self._fetch,
            "gpu_cancel": self._cancel,
            "gpu_quota": self._quota,
            "gpu_route": self._route,
        }

    def answer(self, ask: Ask) -> dict[str, Any]:
        """The tool's answer. Raises `ToolError` and whatever the SDK raises."""
        if ask.tool in self._tools:
            return self._tools[ask.tool](ask)
        return reading.READERS[ask.tool](self._client(), ask.arguments)

    # What changes something

    def _submit(self, ask: Ask) -> dict[str, Any]:
        given = ask.arguments
        folder, arguments = self._project(given)
        # Everything that is wrong with the folder is told before a server is looked for.
        packed = pack(folder, arguments)
        client = self._client()
        ask.progress(
            0, 1, f"{counted(packed.summary['files'], 'file')} packed; sending what the server lacks"
        )
        packed.upload(client)
        answer = client.scripts.submit(packed.spec, request_id=given["request_id"], source=AGENT).raw
        job = self._waited(ask, answer["job"], given["wait_s"], _settled)
        more: dict[str, Any] = {
            "submitted": answer["submitted"],
            "bundle": bundle_document(answer["bundle"]),
            **without_nulls({key: answer.get(key) for key in ("duplicate_of", "message")}),
        }
        return with_guidance(job, verbose=given["verbose"], **more)

    def _route(self, ask: Ask) -> dict[str, Any]:
        packed = pack(*self._project(ask.arguments))
        answer = self._client().scripts.route(packed.spec, source=AGENT).raw
        approval = answer["approval"]
        asks = bool(approval and approval.get("would_ask"))
        outcome = answer["route"]["outcome"]
        said = {
            "place": "gpu_submit with these arguments would be "
            + ("held for your user's approval." if asks else "placed at once."),
            "wait": "gpu_submit with these arguments would wait for a provider.",
            "no_fit": "gpu_submit with these arguments would fail: nothing fits. route.rejected says why.",
        }[outcome]
        return {
            "spec": {key: value for key, value in answer["spec"].items() if key != "bundle"},
            "route": answer["route"],
            "approval": approval,
            "bundle": bundle_document(packed.summary),
            "guidance": {"summary": answer["route"]["reason"], "next": said},
            "untrusted": UNTRUSTED,
        }

    def _cancel(self, ask: Ask) -> dict[str, Any]:
        answer = self._client().scripts.cancel(ask.arguments["ref"], source=AGENT).raw
        job = answer["job"]
        ended = job["state"] in TERMINAL_WORDS
        if not answer["changed"]:
            said = f"It had ended already ({job['state']}): nothing changed."
        elif ended:
            said = "Cancelled: nothing of it runs."
        else:
            said = "The cancel was accepted; what was saved is kept."
        return with_guidance(job, verbose=ask.arguments["verbose"], message=said)

    def _fetch(self, ask: Ask) -> dict[str, Any]:
        given, client = ask.arguments, self._client()
        job = client.scripts.get(given["ref"]).raw["job"]
        if job["state"] not in TERMINAL_WORDS:
            said = f"It has not finished ({job['state']}). Its outputs will be in {job['outputs_dir']}."
            more = {"fetched": False, "outputs_dir": job["outputs_dir"], "files": 0, "message": said}
            return with_guidance(job, verbose=given["verbose"], **more)
        if given["refetch"] or not job["outputs_fetched"]:
            client.scripts.fetch(job["short_id"], refetch=given["refetch"])
            job = self._waited(ask, job, given["wait_s"], lambda now: bool(now["outputs_fetched"]))
        items = client.scripts.outputs(job["short_id"]).raw["items"]
        listed = [each for each in items if each.get("upload_state") != "deleted"]
        deleted = len(items) - len(listed)
        shown = [{"path": each["path"], "bytes": each["bytes"]} for each in listed[:MOST_LISTED]]
        outputs: dict[str, Any] = {
            "count": len(listed),
            "bytes": sum(each["bytes"] for each in listed),
            "listing": shown,
        }
        if len(listed) > len(shown):
            outputs["listing_truncated"] = True
        if deleted:
            outputs["deleted"] = deleted
        fetched = bool(job["outputs_fetched"])
        more = {
            "fetched": fetched,
            "outputs_dir": job["outputs_dir"],
            "files": len(listed),
            "message": _brought(job, len(listed), deleted)
            if fetched
            else "They are still being brought; call gpu_fetch again.",
            "outputs": outputs,
        }
        if not fetched:
            more["in_progress"] = True
        return with_guidance(job, verbose=given["verbose"], **more)

    # What only reads

    def _status(self, ask: Ask) -> dict[str, Any]:
        given = ask.arguments
        if given["ref"] is None:
            return self._overview(verbose=given["verbose"])
        found = self._client().scripts.get(given["ref"]).raw
        if given["wait_s"]:
            before = found["job"]["state"]
            self._waited(
                ask, found["job"], given["wait_s"], lambda job: _ended(job) or job["state"] != before
            )
            found = self._client().scripts.get(given["ref"]).raw
        if given["verbose"]:
            return with_guidance(
                found["job"],
                verbose=True,
                **{key: found[key] for key in ("attempts", "checkpoints", "events", "route")},
            )
        last = given["events"]
        return with_guidance(
            found["job"],
            verbose=False,
            attempts=[without_nulls(each) for each in found["attempts"][-3:]],
            checkpoints=[without_nulls(each) for each in found["checkpoints"][-3:]],
            events=[without_nulls(each) for each in found["events"][-last:]] if last else [],
        )

    def _overview(self, *, verbose: bool) -> dict[str, Any]:
        client = self._client()
        active = client.scripts.list(active=True, limit=100).raw
        recent = client.scripts.list(active=False, since=time.time() - _RECENT_S, limit=100).raw["items"]
        providers = client.providers.list().raw["items"]
        return overview(active["counts"], active["items"], recent, providers, verbose=verbose)

    def _logs(self, ask: Ask) -> dict[str, Any]:
        given, client = ask.arguments, self._client()
        answer = client.scripts.logs(
            given["ref"], tail=given["tail"], since=given["since"], attempt=given["attempt"]
        ).raw
        job = client.scripts.get(given["ref"]).raw["job"]
        lines, left = _cut(answer["lines"], from_end=given["since"] is None)
        found = {key: value for key, value in answer.items() if key != "lines" and value is not None}
        found["older_lines_not_shown"] = answer.get("older_lines_not_shown", 0) + left
        brief = job_document(job, verbose=False)
        shown = {key: brief[key] for key in ("id", "short_id", "name", "state")}
        if not lines:
            found["empty"] = True
        found.setdefault("next_since", None)
        return {"job": shown, "lines": lines, **found, "untrusted": UNTRUSTED}

    def _quota(self, ask: Ask) -> dict[str, Any]:
        answer = self._client().providers.quota(refresh=ask.arguments["refresh"]).raw
        said = "Estimates are reckoned from what ran through here; refresh=true asks the providers."
        return {"quota": answer["quota"], "summary": answer["summary"], "guidance": {"next": said}}

    # Parts

    def _project(self, given: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
        """The folder, and what is asked of it; raises before anything is created."""
        folder = Path(given["project_dir"]).expanduser()
        if not self._local_files:
            said = "this MCP server is not on your machine, so it cannot read project_dir"
            raise ToolError("invalid_request", said, hint="Use `gpu mcp` on the machine with the folder.")
        if not folder.is_absolute():
            raise ToolError("invalid_request", "project_dir must be an absolute path")
        if not folder.is_dir():
            what = "is a file" if folder.exists() else "does not exist"
            raise ToolError("invalid_request", f"project_dir {what}", hint="Give the folder of the project.")
        arguments = {name: given[name] for name in _PROJECT_ARGUMENTS if given.get(name) is not None}
        if not arguments.get("smoke"):
            arguments.pop("smoke", None)
        return folder, arguments

    def _waited(
        self, ask: Ask, job: dict[str, Any], seconds: float, over: Callable[[Mapping[str, Any]], bool]
    ) -> dict[str, Any]:
        """The Job once ``over`` or after ``seconds``; progress is told meanwhile."""
        begun = time.monotonic()
        while not over(job):
            left = seconds - (time.monotonic() - begun)
            if left <= 0:
                break
            ask.progress(seconds - left, seconds, f"{job['state']}")
            asked, wait = time.monotonic(), min(left, _POLL_S)
            known = job["version"]
            job = self._client().scripts.get(job["short_id"], wait_s=wait, version=known).raw["job"]
            if job["version"] == known and time.monotonic() - asked < _PAUSE_S:
                # Nothing new will come by itself, of a Job that has ended say.
                time.sleep(min(left, _PAUSE_S))
        return job


def _ended(job: Mapping[str, Any]) -> bool:
    return job["state"] in TERMINAL_WORDS


def _settled(job: Mapping[str, Any]) -> bool:
    """Whether a submission needs no more waiting (a.1)."""
    word = Word(job["state"])
    return word not in SETTLED_WAITS or (word is Word.QUEUED and job.get("not_before") is not None)


def _cut(lines: list[str], *, from_end: bool) -> tuple[list[str], int]:
    """Lines of a bearable length, the newest of them; those read in order are never dropped (a.3)."""
    short = [line if len(line) <= _LINE_CHARACTERS else line[:_LINE_CHARACTERS] + "…" for line in lines]
    if not from_end:
        return short, 0
    kept: list[str] = []
    total = 0
    for line in reversed(short):
        total += len(line)
        if total > _ALL_CHARACTERS:
            break
        kept.append(line)
    return kept[::-1], len(short) - len(kept)


def _brought(job: Mapping[str, Any], files: int, deleted: int) -> str:
    gone = f"{counted(deleted, 'file')} deleted" if deleted else ""
    if files:
        said = f"{counted(files, 'file')} brought to {job['outputs_dir']}"
        return f"{said}; {gone} on the server." if gone else f"{said}."
    if gone:
        return f"The server has no files any more: {gone}."
    return "It wrote no files." if job["started_at"] else "It never ran, so it wrote nothing."
