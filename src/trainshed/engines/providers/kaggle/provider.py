"""Runs packed projects in Kaggle's notebook sessions (g.5, g.8).

A run is a private kernel whose name is the run's key: a small program that unpacks a private dataset with the
project, the runner and the checkpoint to go on from. What it writes is stored when the session ends, and read
from there. Kaggle names no session to its public interface, so nothing can be said to one while it runs, and
one is ended by deleting its kernel, with what it wrote.
"""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2

from trainshed.engines.providers.contract import (
    ENDED,
    AuthRequired,
    Capabilities,
    Fetched,
    GpuOffer,
    Health,
    InvalidJob,
    LogChunk,
    Phase,
    ProviderError,
    QuotaExhausted,
    QuotaReading,
    RateLimited,
    RemoteNotFound,
    Run,
    Status,
    Submission,
    Unavailable,
)
from trainshed.engines.providers.facts import all_facts
from trainshed.engines.providers.kaggle.credentials import LOG_IN
from trainshed.engines.providers.kaggle.datasets import POLL_SECONDS, Datasets
from trainshed.engines.providers.kaggle.names import DATA, input_slug, linked, names_of, run_named, sent_as
from trainshed.engines.providers.kaggle.values import check_options, hours, moment, word
from trainshed.engines.providers.kaggle.wire import Wire, events, stored_events
from trainshed.engines.providers.limits import Deadline, limited
from trainshed.engines.providers.lines import LineCount, Lines
from trainshed.engines.providers.sending import (
    END,
    SUFFIX,
    Landing,
    masked,
    pack_tree,
    sha256_of,
    start_text,
    status_of,
)

FACTS = all_facts()["kaggle"]
CAPABILITIES = Capabilities(
    lookup_by_key=True,
    live_logs=True,
    interactive=False,
    resume=True,
    fetch=True,
    cancel_confirms=True,
    live_quota=True,
    max_session_hours=FACTS.asked_session_hours,
    max_concurrency=FACTS.max_concurrency,
    poll_interval_s=FACTS.poll_seconds,
    data=True,
)
LEAVES_EARLY_SECONDS = 2100.0
"""So long before the session's end the program is stopped: half an hour before it a run that can be asked to
save is (g.9), and Kaggle stores what a run wrote only when its session ends by itself."""
_SERVICE = "kernels.KernelsApiService"
_OUT, _WORK = "/kaggle/working", "/tmp/trainshed"  # noqa: S108 - of the session, which is ours alone
_READY_SECONDS, _STAGE_SECONDS = 200.0, 3000.0
_READ_SECONDS, _MOST_LINES = 2.0, 5000
_BUSY_SECONDS = 600.0
_UNUSED_SECONDS, _EVICT_EVERY_SECONDS = 30 * 86400.0, 86400.0
"""After so long a dataset that no Job used is removed (e.11); how often that is looked at."""
_LOG_SECONDS, _MOST_LOG_SECONDS = 5.0, 40.0
"""How long a log that goes on is listened to, once something new came, and if nothing did."""
_PAGE = 100
_SAME_HOURS = 0.1
_MOST_RECORD = 1 << 16
_PHASES = {
    "NEW_SCRIPT": Phase.PENDING,
    "QUEUED": Phase.PENDING,
    "RUNNING": Phase.RUNNING,
    "CANCEL_REQUESTED": Phase.RUNNING,
    "CANCEL_ACKNOWLEDGED": Phase.CANCELLED,
}


class KaggleProvider:
    """See the module's description. Thread-safe. ``pause`` waits so many seconds."""

    name = "kaggle"

    def __init__(
        self,
        wire: Wire,
        folder: Path,
        clock: Callable[[], float],
        pause: Callable[[float], None] = time.sleep,
        poll_seconds: float | None = None,
    ) -> None:
        self._wire = wire
        self._folder = folder
        self._clock = clock
        self._datasets = Datasets(wire, pause, min(POLL_SECONDS, poll_seconds or POLL_SECONDS))
        self._heard: dict[str, float] = {}
        """When the log of a run that goes on was read to its end, as far as there was one."""
        self._staged: dict[str, float] = {}
        """When a dataset was asked for; no run has it yet by which its use could be seen."""
        self._evicted_at = float("-inf")
        self._capabilities = replace(CAPABILITIES, poll_interval_s=poll_seconds or FACTS.poll_seconds)

    @property
    def deadline(self) -> Deadline:
        """When the call that goes on has to be over (rule 10)."""
        return self._wire.deadline

    def capabilities(self) -> Capabilities:
        return self._capabilities

    def offers(self) -> Iterable[GpuOffer]:
        return FACTS.offers

    # Starting

    @limited
    def submit(self, submission: Submission) -> Run:
        """Bring the input there, then save the kernel, which runs it."""
        found = self.lookup_by_key(submission.key)
        if found is not None:
            return found
        check_options(submission.options)
        shape = None
        if submission.gpu is not None:
            shape = FACTS.shapes.get(submission.gpu.type)
            if shape is None:
                raise InvalidJob(f"Kaggle offers no {submission.gpu.type}")
        with self._scratch() as scratch:
            slug, text = self._send(submission, scratch)
        most = int(FACTS.more["max_source_bytes"])
        if len(text.encode()) > most:
            raise InvalidJob(
                f"its variables make a program of {len(text.encode())} bytes; {most} may be sent"
            )
        return self._save(submission, slug, text, shape)

    @limited
    def lookup_by_key(self, key: str) -> Run | None:
        owner = self._wire.username()
        try:
            self._wire.call(_SERVICE, "GetKernel", {"userName": owner, "kernelSlug": key})
        except RemoteNotFound:
            return None
        return run_named(owner, key)

    @limited
    def stage_data(self, manifest_sha256: str, folder: Path, *, single_file: str | None) -> str:  # noqa: ARG002 - it is packed as a folder either way
        """One private dataset for each content, by its digest."""
        slug = f"{DATA}{manifest_sha256[:32]}"
        self._staged[slug] = self._clock()
        with self._scratch() as scratch:

            def pack() -> list[Path]:
                target = scratch / f"data{SUFFIX}"
                pack_tree(folder, target)
                return [target]

            self._datasets.have(slug, pack, _STAGE_SECONDS)
        return f"{self._wire.username()}/{slug}"

    def _send(self, submission: Submission, scratch: Path) -> tuple[str, str]:
        """Bring the input of a run to Kaggle; its dataset, and the program that finds it there."""
        shipped = {"bundle": submission.archive()}
        if submission.resume is not None:
            shipped["resume"] = scratch / "resume"
            pack_tree(submission.resume, shipped["resume"])
        pad = b""
        if submission.secrets:
            # What is in the dataset is noise without the program, and the dataset goes once the run ended.
            half, pad = masked(submission.secrets)
            shipped["hidden"] = scratch / "hidden"
            shipped["hidden"].write_bytes(half)
        digests = {name: sha256_of(path) for name, path in shipped.items()}
        slug = input_slug(submission.key, digests)
        inputs = {name: sent_as(slug, f"{name}{SUFFIX}", digest) for name, digest in digests.items()}

        def files() -> list[Path]:
            return [linked(path, scratch / "sent" / f"{name}{SUFFIX}") for name, path in shipped.items()]

        self._datasets.have(slug, files, _READY_SECONDS)
        seconds = submission.timeout_seconds
        return slug, start_text(
            {
                "key": submission.key,
                "work": f"{_WORK}/{submission.key}",
                "out": _OUT,
                "env": dict(submission.env),
                "inputs": inputs,
                "pad": base64.b64encode(pad).decode(),
                "data": [
                    {
                        **sent_as(item.ref.partition("/")[2], f"data{SUFFIX}", None),
                        "mount": item.mount,
                        "single": item.single_file,
                    }
                    for item in submission.data
                ],
                "seconds": None if seconds is None else max(60.0, seconds - LEAVES_EARLY_SECONDS),
            }
        )

    def _save(self, submission: Submission, slug: str, text: str, shape: str | None) -> Run:
        owner, key = self._wire.username(), submission.key
        sources = [f"{owner}/{slug}", *dict.fromkeys(item.ref for item in submission.data)]
        body: dict[str, Any] = {
            "slug": f"{owner}/{key}",
            "newTitle": key,
            "text": text,
            "language": "python",
            "kernelType": "script",
            "isPrivate": True,
            "enableGpu": shape is not None,
            "enableTpu": False,
            "enableInternet": submission.options.get("internet", True),
            "datasetDataSources": sources,
        }
        if shape is not None:
            body["machineShape"] = shape
        if submission.timeout_seconds is not None:
            body["sessionTimeoutSeconds"] = int(submission.timeout_seconds)
        said = self._wire.call(_SERVICE, "SaveKernel", body)
        if error := str(said.get("error") or ""):
            raise self._refusal(error)
        if said.get("invalidDatasetSources"):
            # It runs all the same, without its input.
            self._delete(owner, key)
            raise Unavailable("Kaggle cannot attach a dataset that was just sent")
        if (said.get("versionNumber") or 1) != 1:
            # Another call of ours came first, and now there are two; neither may be left alone.
            self._delete(owner, key)
            raise Unavailable("the run was begun twice, and both were ended")
        return run_named(owner, key)

    def _refusal(self, error: str) -> ProviderError:
        """What Kaggle says with status 200 when it does not run a kernel."""
        said, text = f"Kaggle does not run it: {' '.join(error.split())[:250]}", error.lower()
        if "session count" in text:
            return RateLimited(said, retry_after=_BUSY_SECONDS)
        if "quota" not in text:
            return InvalidJob(said)
        try:
            reading = self.quota()
        except ProviderError:
            reading = None
        return QuotaExhausted(said, resets_at=reading.resets_at if reading else None)

    # Watching

    @limited
    def status(self, run: Run) -> Status:
        said = self._wire.call(_SERVICE, "GetKernelSessionStatus", names_of(run))
        state = word(said.get("status"), (*_PHASES, "COMPLETE", "ERROR"), "QUEUED")
        message = " ".join(str(said.get("failureMessage") or "").split())[:300]
        phase = _PHASES.get(state)
        if phase not in {Phase.PENDING, Phase.RUNNING}:
            self._heard.pop(run.ref, None)  # its last lines are there to be read
        if phase is not None:
            return Status(phase, message=message)
        if state not in {"COMPLETE", "ERROR"}:
            raise Unavailable(f"Kaggle says {state[:40]!r} of it, which means nothing to us")
        record = self._record(run)
        if record is None and state == "COMPLETE":
            # Its files are not listed yet, or never will be: what the runner said in the log tells.
            return Status(Phase.FAILED, message=message)
        return status_of(record, message=message)

    @limited
    def logs(self, run: Run, cursor: str | None) -> LogChunk:
        """Kaggle sends a log from its begin each time; the cursor counts whole lines of each stream."""
        if self._clock() - self._heard.get(run.ref, float("-inf")) < self._capabilities.poll_interval_s / 2:
            # Of one that prints all the time there is always more, and it comes with everything before it.
            return LogChunk((), cursor or LineCount().text())
        known = LineCount.of(cursor)
        lines, over, begun = Lines(known, _MOST_LINES), False, self._clock()
        try:
            for entry in self._entries(run):
                if entry is None:
                    over = True
                    lines.end()
                    break
                lines.add(str(entry.get("stream_name") or "stdout"), str(entry.get("data") or ""))
                waited = self._clock() - begun
                if lines.full or waited > _MOST_LOG_SECONDS or (lines.found and waited > _LOG_SECONDS):
                    break
        except httpx2.ReadTimeout:
            pass  # it is quiet just now
        if not over and not lines.full:
            self._heard[run.ref] = self._clock()
        return LogChunk(tuple(lines.found), lines.cursor(), finished=over and not lines.full)

    def _entries(self, run: Run) -> Iterator[dict[str, Any] | None]:
        names = names_of(run)
        path = f"kernels/logs/stream/{names['userName']}/{names['kernelSlug']}"
        try:
            with self._wire.stream(path, {"versionLabel": names["versionLabel"]}, _READ_SECONDS) as answer:
                yield from events(answer)
        except RemoteNotFound:
            # There is no stream of it (any more); a session that is over has its log beside its files.
            said = self._wire.call(_SERVICE, "ListKernelSessionOutput", {**names, "pageSize": 1})
            if said.get("log"):
                yield from stored_events(str(said["log"]))
                yield None

    @limited
    def fetch(self, run: Run, into: Path) -> Fetched:
        """Nothing of a run that goes on: Kaggle has its files when its session is over."""
        landing = Landing(into)
        files = list(self._files(run))
        if not any(name == END for name, _ in files) and self.status(run).phase in ENDED - {Phase.LOST}:
            raise Unavailable("Kaggle has not stored what it wrote yet")
        try:
            for name, address in files:
                place = landing.place(name)
                if place is not None:
                    landing.write(place, self._wire.download(address))
        except OSError as error:
            raise Unavailable(f"what it wrote cannot be kept: {error.strerror}") from error
        return landing.fetched()

    def _files(self, run: Run) -> Iterator[tuple[str, str]]:
        token = ""
        while True:
            more = {"pageToken": token} if token else {}
            said = self._wire.call(
                _SERVICE, "ListKernelSessionOutput", {**names_of(run), "pageSize": _PAGE, **more}
            )
            for file in said.get("files") or []:
                if isinstance(file, dict) and file.get("fileName") and file.get("url"):
                    yield str(file["fileName"]), str(file["url"])
            following = str(said.get("nextPageToken") or "")
            if not following or following == token:
                return
            token = following

    def _record(self, run: Run) -> dict[str, Any] | None:
        address = next((address for name, address in self._files(run) if name == END), None)
        if address is None:
            return None
        data = b""
        for block in self._wire.download(address):
            data += block
            if len(data) > _MOST_RECORD:
                return None
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    # Ending

    @limited
    def cancel(self, run: Run) -> None:
        """Delete the kernel: its session goes with it, and what it wrote."""
        try:
            phase = self.status(run).phase
        except RemoteNotFound:
            return
        if phase not in ENDED:
            names = names_of(run)
            self._delete(names["userName"], names["kernelSlug"])

    def request_checkpoint(self, run: Run) -> bool:  # noqa: ARG002 - nothing reaches a session
        return False

    @limited
    def release(self, run: Run) -> bool:
        """Delete the datasets that were its input."""
        names = names_of(run)
        owner, key = names["userName"], names["kernelSlug"]
        attached: list[str] = []
        try:
            if self.status(run).phase not in ENDED:
                return False
            said = self._wire.call(_SERVICE, "GetKernel", {"userName": owner, "kernelSlug": key})
            attached = [str(ref) for ref in (said.get("metadata") or {}).get("datasetDataSources") or []]
        except RemoteNotFound:
            pass
        begin = input_slug(key, None)
        own = {ref.partition("/")[2] for ref in attached if ref.startswith(f"{owner}/{begin}")}
        for slug in sorted(own | set(self._datasets.named(begin))):
            self._datasets.remove(slug)
        self._evict()
        return True

    def _evict(self) -> None:
        """Remove datasets that no Job used for a month, now and then; what fails is tried the next time."""
        now = self._clock()
        if now - self._evicted_at < _EVICT_EVERY_SECONDS:
            return
        self._evicted_at, since = now, now - _UNUSED_SECONDS
        self._staged = {slug: at for slug, at in self._staged.items() if at >= since}
        with suppress(ProviderError):
            self._datasets.evict(DATA, since, self._staged)

    def _delete(self, owner: str, slug: str) -> None:
        try:
            said = self._wire.call(_SERVICE, "DeleteKernel", {"userName": owner, "kernelSlug": slug})
        except RemoteNotFound:
            return
        if said.get("errorMessage"):
            raise Unavailable(f"Kaggle does not delete the kernel: {str(said['errorMessage'])[:200]}")

    # The account

    @limited
    def quota(self) -> QuotaReading | None:
        try:
            said = self._wire.call(_SERVICE, "GetAcceleratorQuotaStatistics", {})
        except (RemoteNotFound, InvalidJob):
            return None
        gpu = said.get("gpuQuota")
        if not isinstance(gpu, dict):
            return None
        used, reserved = hours(gpu.get("timeUsed")), hours(gpu.get("timeReserved"))
        limit = hours(gpu.get("totalTimeAllowed"))
        if limit is None:
            return None
        return QuotaReading(
            used=(used or 0.0) + (reserved or 0.0),
            limit=limit,
            unit="gpu_hours",
            resets_at=moment(said.get("quotaRefreshTime")),
            live=True,
            detail="reserved by sessions that run: " + f"{reserved or 0.0:g} h",
            observed_at=self._clock(),
        )

    @limited
    def healthcheck(self) -> Health:
        try:
            self._wire.username()
            self._wire.call(_SERVICE, "ListKernels", {"group": "PROFILE", "pageSize": 1})
        except AuthRequired as error:
            said = error.message.removesuffix(LOG_IN).strip()
            return Health(ok=False, code="auth_required", message=said, hint=LOG_IN)
        except ProviderError as error:
            return Health(ok=False, code="provider_unavailable", message=error.message)
        return Health(ok=True, message=self._surprise())

    def _surprise(self) -> str:
        """Where Kaggle is not what the facts say it is."""
        try:
            reading = self.quota()
        except ProviderError:
            return ""
        if reading is None:
            return "Kaggle does not say what is left of its hours; they are reckoned."
        if reading.limit is None or abs(reading.limit - FACTS.quota_hours) < _SAME_HOURS:
            return ""
        known = f"{FACTS.quota_hours:g} h were known on {FACTS.checked}"
        return f"It grants {reading.limit:g} h a week, where {known}."

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """A folder for what is packed; it goes again, whatever happens."""
        try:
            place = Path(tempfile.mkdtemp(prefix="sending-", dir=self._folder))
        except OSError as error:
            raise Unavailable(f"there is no room to pack it: {error.strerror}") from error
        try:
            yield place
        except OSError as error:
            raise Unavailable(f"it cannot be packed: {error.strerror}") from error
        finally:
            shutil.rmtree(place, ignore_errors=True)
