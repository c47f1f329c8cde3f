"""Images on this machine: pulled once by digest, tried out once, kept within a limit (E42, E43, E45)."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

from trainshed.engines.contract import EngineError
from trainshed.engines.local import drivers, runtimes
from trainshed.engines.local.containers import Containers, ImageSettings
from trainshed.engines.local.pulls import Cancelled, Pulls
from trainshed.engines.local.runtimes import ImageFacts
from trainshed.model.images import SYSTEM, ImageReference, machine_architecture

OLDEST_BASH, OLDEST_PYTHON = (4, 0), (3, 8)
"""What an image must have (E45): Runners start with ``bash main.sh`` or ``python3 main.py``."""
_FROZEN = re.compile(r"([^/@]+)/([^@]+)@(sha256:[0-9a-f]{64})")
_CHECK = """
printf 'bash %s\\n' "$BASH_VERSION"
found=$(command -v python3) || exit 0
exec "$found" -I -S -c 'import sys; print("python %d.%d.%d" % sys.version_info[:3])'
"""
_NO_CONTAINER = "made no container"
_PARALLEL_PULLS = 3


@dataclass(frozen=True, slots=True)
class Known:
    """What was found out about an image when it came; kept beside it."""

    image: str
    id: str
    size: int
    bash: str = ""
    python: str = ""
    """Versions; empty where there is none."""
    fault: str | None = None
    """Why no Trial can run in it."""
    pulled: bool = True
    """Whether we brought it. What others brought (docker is shared) is never evicted."""


class _Preparation:
    """One image on its way, and everybody who waits for it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.sentence = ""
        self.version = 0
        self.waiting = 0
        self.cancelled = threading.Event()
        self.over = False
        self.failure: BaseException | None = None

    def say(self, sentence: str) -> None:
        with self.changed:
            if sentence != self.sentence:
                self.sentence, self.version = sentence, self.version + 1
                self.changed.notify_all()

    def finish(self, failure: BaseException | None) -> None:
        with self.changed:
            self.over, self.failure = True, failure
            self.changed.notify_all()


class ImageCache:
    """The images of one engine. Thread-safe: who asks for an image that is on its way waits for it."""

    def __init__(self, containers: Containers, settings: ImageSettings) -> None:
        self._containers = containers
        self._settings = settings
        self._known = containers.home / "known"
        self._guard = threading.Lock()
        self._running: dict[str, _Preparation] = {}
        self._threads: set[threading.Thread] = set()
        self._evicting = threading.Lock()
        self._turns = threading.BoundedSemaphore(_PARALLEL_PULLS)
        self._pulls = Pulls(containers.home, settings)
        self._closed = False

    # Making present

    def prepare(self, image: str, on_progress: Callable[[str], None], cancelled: Callable[[], bool]) -> Known:
        """See `Engine.prepare`."""
        if reason := self._containers.why_impossible():
            raise EngineError("IMAGE_UNSUITABLE", f"{image} cannot run: {reason}", retryable=False)
        preparation = self._join(image)
        told = 0
        try:
            while True:
                with preparation.changed:
                    if not preparation.over and preparation.version == told:
                        preparation.changed.wait(runtimes.LOOK_SECONDS)
                    over, sentence = preparation.over, preparation.sentence
                    news, told = preparation.version != told, preparation.version
                if news:
                    on_progress(sentence)
                if over:
                    break
                if cancelled():
                    raise _cancelled(image)
        finally:
            self._leave(image, preparation)
        if preparation.failure is not None:
            raise _copy(preparation.failure)
        known = self.find(image)
        if known is None:
            raise EngineError("IMAGE_PULL_FAILED", f"{image} was removed again", retryable=True)
        if known.fault:
            raise EngineError("IMAGE_UNSUITABLE", known.fault, retryable=False)
        return known

    def find(self, image: str) -> Known | None:
        """What is known of an image that is here; looking counts as use."""
        path = self._path(image)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            os.utime(path)
            return Known(**document)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):
            return None  # torn by a power loss: it is found out again

    def close(self) -> None:
        """End what is on its way. What came wholly stays."""
        with self._guard:
            self._closed = True
            for preparation in self._running.values():
                preparation.cancelled.set()
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def _join(self, image: str) -> _Preparation:
        with self._guard:
            if self._closed:
                raise EngineError("PREPARE_CANCELLED", "the engine is closed", retryable=True)
            preparation = self._running.get(image)
            if preparation is None or preparation.cancelled.is_set():
                preparation = self._running[image] = _Preparation()
                thread = threading.Thread(
                    target=self._work, args=(image, preparation), name="image", daemon=True
                )
                self._threads.add(thread)
                thread.start()
            preparation.waiting += 1
            return preparation

    def _leave(self, image: str, preparation: _Preparation) -> None:
        with self._guard:
            preparation.waiting -= 1
            if preparation.waiting == 0:
                preparation.cancelled.set()
                if self._running.get(image) is preparation:
                    del self._running[image]

    def _work(self, image: str, preparation: _Preparation) -> None:
        failure: BaseException | None = None
        try:
            self._bring(image, preparation)
        except Cancelled:
            failure = _cancelled(image)
        except EngineError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            failure = EngineError("IMAGE_PULL_FAILED", f"{image}: {error!r}", retryable=True)
        finally:
            with self._guard:
                self._threads.discard(threading.current_thread())
            preparation.finish(failure)

    def _bring(self, image: str, preparation: _Preparation) -> None:
        reference = _reference(image)
        runtime = self._containers.runtime
        known, facts = self.find(image), runtime.inspect(image)
        if known is not None and facts is not None and facts.id == known.id:
            return
        self._known.mkdir(mode=0o700, exist_ok=True)
        pulled = facts is None or self._intent(image).exists() or (known is not None and known.pulled)
        if facts is None:
            runtimes.write(self._intent(image), image)
            with self._turns:
                facts = self._pulls.pull(runtime, reference, preparation.say, preparation.cancelled.is_set)
        if reference.digest not in {name.rpartition("@")[2] for name in facts.names}:
            held = ", ".join(facts.names) or "none"
            words = f"{image} was pulled, and what came has other digests ({held})"
            raise EngineError("IMAGE_PULL_FAILED", words, retryable=False)
        preparation.say(f"Looking what {image} holds.")
        known = replace(self._look_into(image, facts, preparation), pulled=pulled)
        runtimes.write(self._path(image), json.dumps(asdict(known)))
        self._intent(image).unlink(missing_ok=True)
        self.evict()

    # Looking into it

    def _look_into(self, image: str, facts: ImageFacts, preparation: _Preparation) -> Known:
        found = Known(image, facts.id, facts.size)
        here = machine_architecture()
        if facts.system != SYSTEM:
            fault: str | None = f"{image} is for {facts.system or 'no system'}; Trials run on {SYSTEM}"
        elif facts.architecture != here:
            fault = f"{image} is for {facts.architecture or 'no processor'}, and this machine is {here}"
        else:
            fault = drivers.fault(facts.environment.get("NVIDIA_REQUIRE_CUDA", ""))
        if fault:
            return replace(found, fault=fault)
        for other in self._all():  # another name of the same image
            if other.id == facts.id and not other.fault:
                return replace(found, bash=other.bash, python=other.python)
        bash, python, fault = self._try(image, facts.id, preparation)
        return replace(found, bash=bash, python=python, fault=fault)

    def _try(self, image: str, image_id: str, preparation: _Preparation) -> tuple[str, str, str | None]:
        """Run the image's Bash and Python: no network, nothing writable, limited."""
        argv = ("bash", "--norc", "--noprofile", "-p", "-c", _CHECK)
        code, said = self._containers.rehearse(image_id, argv, preparation.cancelled.is_set)
        if preparation.cancelled.is_set():
            raise Cancelled
        if code == 1 and _NO_CONTAINER in said and (place := self._containers.link(image_id)):
            words = "is a symbolic link in it, where Trials have folders of their own; make it a folder"
            return "", "", f"{image} cannot run: {place} {words}"
        return _verdict(image, code, said)

    # Keeping within the limit

    def evict(self) -> None:
        """Remove images that nobody used for longest until the rest is within the limit."""
        with self._evicting:
            self._forget_cut_pulls()
            dated = [(when, known) for when, known in self._dated() if known.pulled]
            if sum({known.id: known.size for _, known in dated}.values()) <= self._settings.cache_bytes:
                return
            used = self._containers.used_images()
            with self._guard:
                used |= set(self._running)
            now = time.time()
            in_use = {known.id for _, known in dated if known.image in used}
            idle = [each for each in sorted(dated, key=lambda each: each[0]) if each[1].id not in in_use]
            total = sum({known.id: known.size for _, known in idle}.values())
            for when, known in idle:
                if total <= self._settings.cache_bytes or now - when < self._settings.keep_seconds:
                    return
                # The note goes first: without it nobody launches what is about to go.
                self._path(known.image).unlink(missing_ok=True)
                if not self._containers.runtime.remove_image(known.image):
                    runtimes.write(self._path(known.image), json.dumps(asdict(known)))
                elif all(other.id != known.id for other in self._all()):
                    total -= known.size

    def _forget_cut_pulls(self) -> None:
        """Remove what servers that were killed pulled and nobody has asked for since."""
        for intent in self._known.glob("*.pulling") if self._known.is_dir() else ():
            with suppress(OSError):
                image = intent.read_text(encoding="utf-8")
                old = time.time() - intent.stat().st_mtime >= self._settings.keep_seconds
                if old and image not in self._running and self._containers.runtime.remove_image(image):
                    intent.unlink(missing_ok=True)

    def _all(self) -> Iterator[Known]:
        return (known for _, known in self._dated())

    def _dated(self) -> Iterator[tuple[float, Known]]:
        if not self._known.is_dir():
            return
        for path in self._known.glob("*.json"):
            with suppress(OSError, ValueError, TypeError):
                yield path.stat().st_mtime, Known(**json.loads(path.read_text(encoding="utf-8")))

    def _intent(self, image: str) -> Path:
        """Exists while an image is being brought: what a pull that was cut left is found by it."""
        return self._path(image).with_suffix(".pulling")

    def _path(self, image: str) -> Path:
        return self._known / f"{sha256(image.encode()).hexdigest()}.json"


def _reference(image: str) -> ImageReference:
    """The parts of a frozen name. Raises `EngineError` for one that is not frozen."""
    match = _FROZEN.fullmatch(image)
    if match is None:
        words = f"{image!r} is no image by digest (registry/repository@sha256:…)"
        raise EngineError("IMAGE_UNSUITABLE", words, retryable=False)
    host, repository, digest = match.groups()
    return ImageReference(host=host, repository=repository, tag=None, digest=digest)


def _verdict(image: str, code: int | None, said: str) -> tuple[str, str, str | None]:
    """Versions of Bash and Python, and what is missing. Raises `EngineError` if the try says nothing."""
    found = dict(re.findall(r"^(bash|python) (\d[\w.()-]*)", said, re.MULTILINE))
    bash, python = found.get("bash", ""), found.get("python", "")
    if not bash:
        return "", "", f"{image} {_without_bash(image, code, runtimes.last_words(said))}"
    if _version(bash) < OLDEST_BASH:
        return bash, python, f"{image} has Bash {bash}; Runners need {_text(OLDEST_BASH)} or newer"
    if not python:
        how = "has no Python 3 (python3 on its PATH)" if code == 0 else "has a Python 3 that does not run"
        return bash, python, f"{image} {how}, which starts Runners"
    if _version(python) < OLDEST_PYTHON:
        return bash, python, f"{image} has Python {python}; Runners need {_text(OLDEST_PYTHON)} or newer"
    return bash, python, None


def _without_bash(image: str, code: int | None, words: str) -> str:
    if code == 1 and _NO_CONTAINER in words:
        if "not found" in words or "no such file" in words:
            return "has no Bash, which starts Runners"
        if "exec format error" in words:
            return "has programs for another processor than this machine's"
        raise EngineError("IMAGE_PULL_FAILED", f"{image} could not be tried: {words}", retryable=True)
    how = "did not end in time" if code is None else f"failed with status {code}: {words}"
    return f"has a Bash that {how}"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _cancelled(image: str) -> EngineError:
    return EngineError("PREPARE_CANCELLED", f"nobody waits for {image} any more", retryable=True)


def _copy(failure: BaseException) -> BaseException:
    """An exception of each waiter's own: a raised one grows by where it was raised."""
    if isinstance(failure, EngineError):
        return EngineError(failure.code, failure.message, retryable=failure.retryable)
    return failure
