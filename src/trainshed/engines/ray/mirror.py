"""What is known of one replica, in a folder of the server's own: readers never need the cluster.

==================  =====================================================================
``intent.json``     what to launch, hidden values included, readable by us alone; gone after the end
``sending.json``    how much of what is brought to the node is there
``handed.json``     written before a host is asked to launch: from here on a start cannot be excluded
``stop.json``       durable request to end; ``notice.json`` to give notice
``seen.json``       the newest observation of the host; final if it ended
``lost.json``       the host is gone and left no end: why
``group.json``      the gang, its rank, its node and the folder there
``released``        the cluster holds nothing of it any more
``log.frames``      its output, as it came; ``log.index``, ``reports.jsonl``, ``samples.jsonl`` likewise
``work``            what the program left in its work directory
==================  =====================================================================
"""

from __future__ import annotations

import base64
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainshed.engines.contract import EndedBy, Exit, Observation, Phase
from trainshed.engines.local import feedback
from trainshed.engines.ray import wire
from trainshed.jobkit import folder, frames, tree
from trainshed.jobkit.logwriter import end_log

Json = dict[str, Any]
INTENT, HANDED, SEEN, LOST, GROUP, RELEASED, SENDING = (
    "intent.json",
    "handed.json",
    "seen.json",
    "lost.json",
    "group.json",
    "released",
    "sending.json",
)
_SAMPLE_BYTES = 4 << 20
_STOPPED = "It was stopped before it started."


class Mirror:
    """The folder of one unit."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def has(self, name: str) -> bool:
        return folder.exists(self.path, name)

    def read(self, name: str) -> Json | None:
        return folder.read(self.path, name)

    def intent(self) -> Json:
        """What to launch, with the bytes of its files: more than other records hold; empty: unreadable."""
        try:
            said: Json = json.loads((self.path / INTENT).read_bytes())
        except (OSError, ValueError):
            return {}
        return said

    def write(self, name: str, content: Json) -> None:
        """Durably. Makes the folder."""
        if not self.path.is_dir():
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.sync_directory(self.path.parent)
        folder.write_durably(self.path, name, content)

    def observe(self) -> Observation:
        """What durable evidence says (rule 3)."""
        seen = self._seen()
        if seen is not None and seen.phase in {Phase.EXITED, Phase.LOST}:
            return seen
        if (lost := self.read(LOST)) is not None:
            started = seen.started_at if seen else None
            detail = str(lost.get("why", "Its host is gone."))
            return Observation(Phase.LOST, started, detail=detail, reports=self.reports)
        if not self.has(HANDED):
            if (stop := self.read(folder.STOP)) is not None:
                at = float(stop.get("at", 0.0))
                ended = Exit(None, None, EndedBy.STOP, at, _STOPPED)
                return Observation(Phase.EXITED, exit=ended, detail=_STOPPED)
            known = self.has(INTENT)
            if known and (sending := self.read(SENDING)) is not None:
                return Observation(Phase.PREPARING, stage="sending", detail=str(sending.get("said", "")))
            return Observation(Phase.PREPARING if known else Phase.ABSENT, stage="starting" if known else "")
        return seen or Observation(Phase.PREPARING, stage="starting")

    def _seen(self) -> Observation | None:
        said = self.read(SEEN)
        try:
            return wire.observation_from_json(said) if said else None
        except (KeyError, TypeError, ValueError):
            return None

    def is_launched(self) -> bool:
        """Whether it is known what to launch, or what became of it."""
        return self.has(INTENT) or self.has(HANDED) or self.is_over()

    def is_over(self) -> bool:
        """Whether nothing comes any more."""
        return self.observe().phase in {Phase.EXITED, Phase.LOST}

    # What a host hands over

    @property
    def log_at(self) -> int:
        """How many bytes of the log are here."""
        try:
            return (self.path / folder.FRAMES).stat().st_size
        except FileNotFoundError:
            return 0

    @property
    def reports(self) -> int:
        return feedback.newest(self.path)

    @property
    def sampled_at(self) -> float:
        """When the newest sample was taken (Unix seconds); 0 without any."""
        newest = feedback.samples(self.path, 0.0)
        return newest[-1].at if newest else 0.0

    def take(self, new: Mapping[str, Any]) -> None:
        """Keep what is new of a unit; the observation last, as an end says that all is here."""
        log = base64.b64decode(new["log"])
        if log:
            self._append(folder.FRAMES, log)
        if new["reports"]:
            fields = ("at", "code", "message", "level", "data")
            self._append_lines(
                folder.REPORTS,
                [{"n": each["number"], **{name: each[name] for name in fields}} for each in new["reports"]],
            )
        if new["samples"]:
            if (self.path / folder.SAMPLES).exists() and (
                (self.path / folder.SAMPLES).stat().st_size > _SAMPLE_BYTES
            ):
                (self.path / folder.SAMPLES).replace(self.path / folder.OLDER_SAMPLES)
            self._append_lines(folder.SAMPLES, new["samples"])

    def see(self, seen: Json) -> bool:
        """Keep an observation; whether it differs from the last one."""
        if self.read(SEEN) == seen:
            return False
        self.write(SEEN, seen)
        return True

    def _append_lines(self, name: str, lines: Sequence[object]) -> None:
        self._append(name, b"".join(json.dumps(line).encode() + b"\n" for line in lines))

    def _append(self, name: str, data: bytes) -> None:
        fd = os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            while data:
                data = data[os.write(fd, data) :]
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def unpack(self, archive: bytes) -> None:
        """Make ``work`` of the archive that a host made of it; nothing in it can lead out of it."""
        place = self.path / folder.WORK
        tree.remove(place)
        place.mkdir(mode=0o700)
        if archive:
            with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
                packed.extractall(place, filter="data")

    def end(self) -> None:
        """See to it that the log has an end, and that no hidden value stays here."""
        end_log(self.path)
        (self.path / INTENT).unlink(missing_ok=True)


def log_ended(path: Path) -> bool:
    """Whether the log in ``path`` ends with an end frame."""
    try:
        with path.open("rb") as file:
            file.seek(-frames.HEADER.size, os.SEEK_END)
            return bool(frames.HEADER.unpack(file.read())[1] == frames.EOF)
    except OSError:
        return False
