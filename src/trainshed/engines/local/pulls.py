"""One pull of an image: the runtime's own command, watched and told of, and what its failures mean."""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from trainshed.engines.contract import EngineError
from trainshed.engines.local import runtimes
from trainshed.engines.local.containers import ImageSettings
from trainshed.engines.local.runtimes import ImageFacts, Runtime
from trainshed.model.images import SYSTEM, ImageReference, machine_architecture

_PROGRESS_SECONDS = 2.0
_REMOVAL_SECONDS = 10.0
_IDLE_BYTES = 1 << 15
"""What a command that only waits reads and writes meanwhile, and much more: it wakes up by itself."""
_MIB = 1 << 20
_GIGABYTE = 10**9
_PRESENT = re.compile(r"^(\w{12,64}): Already exists", re.MULTILINE)
_LAYER = re.compile(r"Copying blob (\S+)|^(\w+): (?:Pulling|Down)", re.MULTILINE)
_FOR_GOOD = re.compile(
    r"manifest unknown|manifest invalid|name unknown|name invalid|repository .{0,300} not found"
    r"|unauthorized|authentication required|resource is not authorized|requested access .{0,40}denied"
    r"|no basic auth credentials|(does|did) not match|digest mismatch|verification failed|invalid checksum"
    r"|invalid character|unsupported (manifest|media)"
    r"|blocked by policy|rejected by policy|(StatusCode:|HTTP) 4(?!08|29)\d\d",
    re.IGNORECASE,
)
"""What a registry says when it will say the same again."""
_TEMPORARY = re.compile(
    r"too ?many ?requests|\b429\b|\b50[0-4]\b|timeout|timed out|connection re(fused|set)|EOF|no such host",
    re.IGNORECASE,
)
_OTHER_MACHINE = re.compile(
    r"no image found in (manifest|image index)|no matching manifest|no child with platform"
)


class Cancelled(Exception):
    """Nobody waits for this image any more."""


class Pulls:
    """Pulls images by one engine's settings. Thread-safe."""

    def __init__(self, home: Path, settings: ImageSettings) -> None:
        self._home = home
        self._settings = settings
        self._failed: set[str] = set()

    def pull(
        self,
        runtime: Runtime,
        reference: ImageReference,
        say: Callable[[str], None],
        cancelled: Callable[[], bool],
    ) -> ImageFacts:
        """Pull an image; what came wholly is kept if that fails. Raises `EngineError` and `Cancelled`.

        After a failure layers come one by one: the runtime keeps those that came in their order, and of
        several at once a later one would come again and again while an earlier one fails.
        """
        image = str(reference)
        say(f"Pulling {image}.")
        said = bytearray()
        told = _Told(image, runtime.layers_here(), self._settings.layers)
        with self._downloads() as downloads:
            command, environment = runtime.pulling(
                reference, self._settings.registries, downloads, one_by_one=image in self._failed
            )
            self._failed.add(image)
            with runtimes.process(command, environment) as running:
                looks = partial(runtime.downloaded, downloads), partial(runtime.worked, running.pid)
                watch = _Watch(*looks, self._settings.stall_seconds)
                while not runtimes.read_output(running, said):
                    if cancelled():
                        raise Cancelled
                    if watch.look(len(said)):
                        say(told.sentence(watch.came, said.decode(errors="replace")))
                    if watch.stalled():
                        words = f"nothing came for {self._settings.stall_seconds:g} seconds"
                        raise EngineError(
                            "IMAGE_PULL_FAILED", f"{image} cannot be pulled: {words}", retryable=True
                        )
                code = running.wait()
        if code != 0:
            raise failure(image, said.decode(errors="replace"))
        self._failed.discard(image)
        facts = runtime.inspect(image)
        if facts is None:
            words = f"{image} was pulled, and {runtime.name} does not find it"
            raise EngineError("IMAGE_PULL_FAILED", words, retryable=True)
        say(f"Pulled {image}: {facts.size / _MIB:.0f} MiB in {watch.seconds:.1f} s.")
        return facts

    @contextmanager
    def _downloads(self) -> Iterator[Path]:
        """A folder for what one pull brings, which goes with it however it ends."""
        every = self._home / runtimes.DOWNLOADS
        every.mkdir(mode=0o700, exist_ok=True)
        path = Path(tempfile.mkdtemp(prefix="pull-", dir=every))
        try:
            yield path
        finally:
            # A process that was killed with its pull may take a moment to end, and write in it.
            deadline = time.monotonic() + _REMOVAL_SECONDS
            shutil.rmtree(path, ignore_errors=True)
            while path.exists() and time.monotonic() < deadline:
                time.sleep(runtimes.LOOK_SECONDS)
                shutil.rmtree(path, ignore_errors=True)


class _Watch:
    """How a pull gets on: bytes that came, what was said, and what was read and written meanwhile.

    While a large layer is unpacked nothing comes and nothing is said, for minutes on a slow disk.
    """

    def __init__(
        self, downloaded: Callable[[], int], worked: Callable[[], int], stall_seconds: float
    ) -> None:
        self._downloaded, self._worked = downloaded, worked
        self._before = downloaded()
        self._stall = stall_seconds
        self._every = min(_PROGRESS_SECONDS, stall_seconds / 4)
        self._begin = self._moved = self._looked = time.monotonic()
        self._seen = (0, 0)
        self._work = 0
        self.came = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def look(self, said_bytes: int) -> bool:
        """Look, if it is time to; whether there is something to tell."""
        now = time.monotonic()
        if now - self._looked < self._every:
            return False
        self._looked = now
        self.came = max(self.came, self._downloaded() - self._before)  # what is unpacked goes from there
        work = self._worked()
        if abs(work - self._work) >= _IDLE_BYTES:  # less than before where a process of it has ended
            self._moved, self._work = now, work
        if (self.came, said_bytes) == self._seen:
            return False
        self._moved, self._seen = now, (self.came, said_bytes)
        return True

    def stalled(self) -> bool:
        return time.monotonic() - self._moved > self._stall


class _Told:
    """Sentences about one pull. How much is to come is asked for meanwhile; not to know it delays nothing."""

    def __init__(
        self, image: str, here: frozenset[str], ask: Callable[[str], Mapping[str, int]] | None
    ) -> None:
        self._image = image
        self._here = set(here)
        self._sizes: Mapping[str, int] = {}
        if ask is not None:
            threading.Thread(target=self._find_out, args=(ask,), name="image-sizes", daemon=True).start()

    def _find_out(self, ask: Callable[[str], Mapping[str, int]]) -> None:
        self._sizes = ask(self._image)

    def sentence(self, came: int, said: str) -> str:
        self._here |= {f"sha256:{short}" for short in _PRESENT.findall(said)}
        total = sum(size for digest, size in self._sizes.items() if not digest.startswith(tuple(self._here)))
        over = "Writing manifest" in said or "Copying config" in said or 0 < total <= came
        if total:
            size = f"{total / 1e9:.3g} GB" if total >= _GIGABYTE else f"{total / 1e6:.3g} MB"
            if over:
                return f"Unpacking {self._image}: all of {size} came."
            return f"Pulling {self._image}: {100 * came // total} % of {size}."
        layers = len(set(_LAYER.findall(said)))
        parts = f" of {layers} layer{'s' if layers != 1 else ''}" if layers else ""
        return f"{'Unpacking' if over else 'Pulling'} {self._image}: {came / _MIB:.0f} MiB{parts} came."


def failure(image: str, said: str) -> EngineError:
    """What a pull that failed with these last words means."""
    words = runtimes.last_words(said)
    if _OTHER_MACHINE.search(said):
        message = f"{image} has nothing for this machine ({SYSTEM}/{machine_architecture()}): {words}"
        return EngineError("IMAGE_UNSUITABLE", message, retryable=False)
    final = bool(_FOR_GOOD.search(words)) and not _TEMPORARY.search(words)
    return EngineError("IMAGE_PULL_FAILED", f"{image} cannot be pulled: {words}", retryable=not final)
