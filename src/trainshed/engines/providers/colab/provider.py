"""Runs packed projects in sessions of Google Colab, by Google's command line (g.5, g.8).

A run is a session whose name is the run's key, with one cell that goes on until the program has ended: a
session whose kernel is idle is taken away. What is said to it and what it says are files of the session, for
a kernel that is busy answers nothing else. Its disk goes with it, so checkpoints are fetched while it runs.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from trainshed.engines.providers.colab.command import INSTALL, LOG_IN, Command, Said
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
    QuotaReading,
    RateLimited,
    RemoteNotFound,
    Run,
    Status,
    Submission,
    Unavailable,
)
from trainshed.engines.providers.facts import all_facts
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

FACTS = all_facts()["colab"]
CAPABILITIES = Capabilities(
    lookup_by_key=True,
    live_logs=True,
    interactive=False,
    resume=True,
    fetch=True,
    cancel_confirms=True,
    live_quota=False,
    max_session_hours=FACTS.asked_session_hours,
    max_concurrency=FACTS.max_concurrency,
    poll_interval_s=FACTS.poll_seconds,
    data=False,
)
STOPS_HARD_SECONDS = 240.0
"""A run that was told to end and did not is ended with its session after so long."""
_TOP = "/content"
_CALL, _CELL_CALL, _LONG, _FETCH = 20.0, 40.0, 280.0, 900.0
"""Seconds that one call of the program may take."""
_SEND_SHARE = 0.85
"""Of the time of a submission: what is left is for giving back a session that could not be used."""
_CELL_SECONDS = 15
"""The cell is not waited for longer; it goes on."""
_LOOKS = 3
_PACK = f"all{SUFFIX}"
_BUSY_SECONDS = 900.0
_MOST_LINES = 20_000
_KEY = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_HARDWARE = re.compile(r"\| Hardware: (\S+)")
_BALANCE = re.compile(r"Current balance: ([0-9.]+)")
_CELL = """import os, subprocess, sys
top = os.environ.get("TRAINSHED_SESSION_ROOT", "") + {top!r}
out = top + "/{key}-out"
os.makedirs(out, exist_ok=True)
try:
    os.close(os.open(out + "/started", os.O_CREAT | os.O_EXCL))
except FileExistsError:
    pass
else:
    with open(out + "/log.txt", "ab") as log:
        subprocess.run([sys.executable, top + "/{key}-start.py"], stdout=log, stderr=subprocess.STDOUT)
"""


class ColabProvider:
    """See the module's description. Thread-safe."""

    name = "colab"

    def __init__(
        self,
        command: Command,
        folder: Path,
        clock: Callable[[], float],
        pause: Callable[[float], None] = time.sleep,
        poll_seconds: float | None = None,
    ) -> None:
        self._colab = command
        self._folder = folder
        self._clock = clock
        self._pause = pause
        self._capabilities = replace(CAPABILITIES, poll_interval_s=poll_seconds or FACTS.poll_seconds)

    @property
    def deadline(self) -> Deadline:
        """When the call that goes on has to be over (rule 10)."""
        return self._colab.deadline

    def capabilities(self) -> Capabilities:
        return self._capabilities

    def offers(self) -> Iterable[GpuOffer]:
        return FACTS.offers

    # Starting

    @limited
    def submit(self, submission: Submission) -> Run:
        """A session of that name, its input, and the cell; each only where it is not there yet."""
        key = submission.key
        if not _KEY.fullmatch(key):
            raise InvalidJob("its key is no name for a session")
        if submission.data:
            raise InvalidJob("Colab keeps no datasets")
        if submission.options:
            raise InvalidJob(
                f"provider_options.colab: there is no option {', '.join(sorted(submission.options))}"
            )
        shape = None
        if submission.gpu is not None:
            # A name that it does not know it takes for its most expensive one.
            shape = FACTS.shapes.get(submission.gpu.type)
            if shape is None:
                raise InvalidJob(f"Colab offers no {submission.gpu.type}")
        if self._session(key) is None:
            self._new(key, shape)
        elif self._is_started(key):
            return Run(key)
        try:
            with self.deadline.part(_SEND_SHARE):
                self._send(submission)
        except ProviderError:
            with suppress(ProviderError):
                self._colab("stop", "-s", key, seconds=_CALL)
            raise
        return self._start(key)

    @limited
    def lookup_by_key(self, key: str) -> Run | None:
        if not _KEY.fullmatch(key) or self._session(key) is None or not self._is_started(key):
            return None
        return Run(key)

    def stage_data(self, manifest_sha256: str, folder: Path, *, single_file: str | None) -> str:  # noqa: ARG002 - as its capabilities say
        raise InvalidJob("Colab keeps no datasets")

    def _new(self, key: str, shape: str | None) -> None:
        gpu = [] if shape is None else ["--gpu", shape]
        said = self._colab("new", "-s", key, *gpu, seconds=_LONG)
        if "Session READY" in said.text:
            return
        if "Allocation refused" in said.text:
            raise RateLimited("Colab gives no session now", retry_after=_BUSY_SECONDS)
        if "rejected accelerator" in said.text:
            raise InvalidJob(f"Colab does not give this account a {shape}")
        raise Unavailable("Colab gave no session, and did not say why")

    def _send(self, submission: Submission) -> None:
        key = submission.key
        with self._scratch() as scratch:
            shipped = {"bundle": submission.archive()}
            if submission.resume is not None:
                shipped["resume"] = scratch / "resume"
                pack_tree(submission.resume, shipped["resume"])
            pad = b""
            if submission.secrets:
                half, pad = masked(submission.secrets)
                shipped["hidden"] = scratch / "hidden"
                shipped["hidden"].write_bytes(half)
            inputs = {name: self._send_file(key, name, path, scratch) for name, path in shipped.items()}
            seconds = submission.timeout_seconds
            text = start_text(
                {
                    "key": key,
                    "work": f"{_TOP}/{key}-work",
                    "out": f"{_TOP}/{key}-out",
                    "stop": f"{_TOP}/{key}-stop",
                    "ask": f"{_TOP}/{key}-ask",
                    "pack": _PACK,
                    "env": dict(submission.env),
                    "inputs": inputs,
                    "pad": base64.b64encode(pad).decode(),
                    "data": [],
                    "seconds": seconds,
                }
            )
            program = scratch / "start.py"
            program.write_text(text, encoding="utf-8")
            self._upload(key, program, f"{key}-start.py", _LONG)

    def _send_file(self, key: str, name: str, path: Path, scratch: Path) -> dict[str, Any]:
        """In parts, for each is one request; where it is found."""
        size = int(FACTS.more["upload_part_mb"]) << 20
        parts: list[str] = []
        with path.open("rb") as source:
            while (block := source.read(size)) or not parts:
                part = scratch / "part"
                part.write_bytes(block)
                parts.append(f"{_TOP}/{key}-{name}.{len(parts)}")
                self._upload(key, part, parts[-1].removeprefix(f"{_TOP}/"), _LONG)
        whole = f"{_TOP}/{key}-{name}{SUFFIX}"
        return {"parts": parts, "whole": whole, "file": whole, "sha256": sha256_of(path)}

    def _start(self, key: str) -> Run:
        with self._scratch() as scratch:
            cell = scratch / "cell.py"
            cell.write_text(_CELL.format(top=_TOP, key=key), encoding="utf-8")
            # That it is not done in time is what is expected of it, and any other answer says nothing either.
            with suppress(Unavailable):
                self._colab(
                    "exec", "-s", key, "-f", str(cell), "--timeout", str(_CELL_SECONDS), seconds=_CELL_CALL
                )
        for _ in range(_LOOKS):
            if self._is_started(key):
                return Run(key)
            self._pause(self.deadline.left(2.0))
        raise Unavailable("Colab did not begin the cell")

    # Watching

    @limited
    def status(self, run: Run) -> Status:
        key = self._key(run)
        hardware = self._session(key)
        if hardware is None:
            raise RemoteNotFound("Colab has no session of this name any more")
        end = self._record(key)
        if end is not None:
            return replace(status_of(end), gpu=hardware)
        if self._is_started(key):
            return Status(Phase.RUNNING, gpu=hardware)
        return Status(Phase.PENDING)

    @limited
    def logs(self, run: Run, cursor: str | None) -> LogChunk:
        key = self._key(run)
        if self._session(key) is None:
            raise RemoteNotFound("Colab has no session of this name any more")
        over = self._record(key) is not None
        lines = Lines(LineCount.of(cursor), _MOST_LINES)
        data = self._read(key, f"{key}-out/log.txt")
        lines.add("stdout", (data or b"").decode("utf-8", "replace"))
        if over:
            lines.end()
        return LogChunk(tuple(lines.found), lines.cursor(), finished=over and not lines.full)

    @limited
    def fetch(self, run: Run, into: Path) -> Fetched:
        """Everything of a run that has ended; of one that goes on its stored checkpoints."""
        phase = self.status(run).phase
        landing = Landing(into)
        try:
            with self._scratch() as scratch:
                if phase in ENDED:
                    self._fetch_all(run.ref, landing, scratch / "all")
                else:
                    self._fetch_checkpoints(run.ref, landing)
        except (OSError, tarfile.TarError) as error:
            raise Unavailable(f"what it wrote cannot be kept: {type(error).__name__}") from error
        return landing.fetched()

    def _fetch_all(self, key: str, landing: Landing, packed: Path) -> None:
        if not self._download(key, f"{key}-out/{_PACK}", packed, _FETCH):
            raise Unavailable("Colab does not have what it wrote")
        with tarfile.open(packed) as archive:
            for member in archive:
                if member.isdir():
                    continue
                content = archive.extractfile(member) if member.isreg() else None
                if content is None:
                    landing.skip(member.name)
                    continue
                place = landing.place(member.name)
                if place is not None:
                    landing.write(place, _blocks(content))

    def _fetch_checkpoints(self, key: str, landing: Landing) -> None:
        """Those that are not here yet; `latest` was written after what it names, and is fetched before it."""
        top = f"{key}-out/checkpoint_store"
        names = self._list(key, top)
        loose = [(name, self._read(key, f"{top}/{name}")) for name in names if not name.endswith("/")]
        for name in sorted(each for each in names if each.rstrip("/").isdigit()):
            manifest = landing.place(f"checkpoint_store/{name}manifest.json")
            if manifest is None or manifest.exists():
                continue
            for path in [*self._below(key, f"{top}/{name}files/"), f"{top}/{name}manifest.json"]:
                self._land(key, path, landing)
        for name, data in loose:
            place = landing.place(f"checkpoint_store/{name}")
            if place is not None and data is not None:
                landing.write(place, iter([data]))

    def _below(self, key: str, folder: str) -> Iterator[str]:
        for name in self._list(key, folder):
            path = folder.rstrip("/") + "/" + name
            if name.endswith("/"):
                yield from self._below(key, path)
            else:
                yield path

    def _land(self, key: str, path: str, landing: Landing) -> None:
        data = self._read(key, path, _FETCH)
        place = landing.place(path.removeprefix(f"{key}-out/"))
        if data is not None and place is not None:
            landing.write(place, iter([data]))

    # Ending

    @limited
    def cancel(self, run: Run) -> None:
        """Tell it to end, so that what it wrote can be fetched; end its session where it does not."""
        key = self._key(run)
        try:
            phase = self.status(run).phase
        except RemoteNotFound:
            return
        if phase in ENDED:
            return
        told = self._read(key, f"{key}-stop")
        if phase is Phase.PENDING or (told and self._clock() - _number(told) > STOPS_HARD_SECONDS):
            self._colab("stop", "-s", key, seconds=_CALL)
        elif not told:
            self._say(key, f"{key}-stop")

    @limited
    def request_checkpoint(self, run: Run) -> bool:
        key = self._key(run)
        if self.status(run).phase is not Phase.RUNNING:
            return False
        self._say(key, f"{key}-ask")
        return True

    @limited
    def release(self, run: Run) -> bool:
        """Give the session back, with its disk."""
        key = self._key(run)
        try:
            if self.status(run).phase not in ENDED:
                return False
        except RemoteNotFound:
            return True
        self._colab("stop", "-s", key, seconds=_CALL)
        return self._session(key) is None

    # The account

    @limited
    def quota(self) -> QuotaReading | None:
        """Compute units, as far as it says; the hours of an account without them are reckoned elsewhere."""
        found = _BALANCE.search(self._colab("usage", seconds=_CALL).text)
        if found is None:
            return None
        return QuotaReading(
            None,
            float(found[1]),
            "credits",
            None,
            live=True,
            detail="compute units",
            observed_at=self._clock(),
        )

    @limited
    def healthcheck(self) -> Health:
        if not self._colab.installed():
            return Health(
                ok=False, code="not_installed", message="Colab's command line is not here.", hint=INSTALL
            )
        try:
            said = self._colab("sessions", seconds=_CALL)
        except AuthRequired:
            return Health(ok=False, code="auth_required", message="Nobody is logged in.", hint=LOG_IN)
        except ProviderError as error:
            return Health(ok=False, code="provider_unavailable", message=error.message)
        if said.code != 0 or "Traceback" in said.text:
            return Health(ok=False, code="provider_unavailable", message="`colab sessions` fails.")
        return Health(ok=True)

    # Sessions and their files

    @staticmethod
    def _key(run: Run) -> str:
        if not _KEY.fullmatch(run.ref):
            raise RemoteNotFound("that is no run of Colab's")
        return run.ref

    def _session(self, key: str) -> str | None:
        """The hardware of a session; ``None``: there is none."""
        said = self._colab("status", "-s", key, seconds=_CALL)
        line = next((each for each in said.text.splitlines() if each.startswith(f"[{key}] ")), None)
        if line is not None:
            found = _HARDWARE.search(line)
            return found[1] if found else ""
        if said.code == 0 and said.not_found:
            return None
        raise Unavailable("Colab does not say whether there is a session")

    def _is_started(self, key: str) -> bool:
        return self._read(key, f"{key}-out/started") is not None

    def _record(self, key: str) -> dict[str, Any] | None:
        data = self._read(key, f"{key}-out/{END}")
        try:
            found = json.loads(data) if data is not None else None
        except ValueError:
            return {}
        return found if isinstance(found, dict) or found is None else {}

    def _say(self, key: str, name: str) -> None:
        with self._scratch() as scratch:
            (scratch / "said").write_text(f"{self._clock():.0f}\n", encoding="ascii")
            self._upload(key, scratch / "said", name, _CALL)

    def _read(self, key: str, path: str, seconds: float = _CALL) -> bytes | None:
        with self._scratch() as scratch:
            target = scratch / "file"
            return target.read_bytes() if self._download(key, path, target, seconds) else None

    def _download(self, key: str, path: str, target: Path, seconds: float) -> bool:
        """Whether the file is there."""
        said = self._colab("download", "-s", key, f"{_TOP}/{path}", str(target), seconds=seconds)
        if said.code == 0 and target.exists():
            return True
        return self._absent(said)

    def _upload(self, key: str, source: Path, path: str, seconds: float) -> None:
        said = self._colab("upload", "-s", key, str(source), f"{_TOP}/{path}", seconds=seconds)
        if said.code != 0 or "Uploaded" not in said.text:
            raise Unavailable("Colab did not take a file")

    def _list(self, key: str, path: str) -> list[str]:
        """Names in a folder, those of folders with a slash; none where there is no such folder."""
        said = self._colab("ls", "-s", key, f"{_TOP}/{path}", seconds=_CALL)
        if said.code != 0:
            self._absent(said)
            return []
        return [line for line in said.text.splitlines() if line and not line.startswith("[colab]")]

    @staticmethod
    def _absent(said: Said) -> bool:
        if said.not_found:
            return False
        raise Unavailable("Colab does not hand over a file")

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        place = Path(tempfile.mkdtemp(prefix="colab-", dir=self._folder))
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _blocks(content: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: content.read(1 << 20), b"")


def _number(data: bytes) -> float:
    try:
        return float(data)
    except ValueError:
        return 0.0
