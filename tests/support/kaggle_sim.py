"""Kaggle as it answers over HTTP: what its own package 2.2.5 speaks, with the traps that are known of it.

Kernels really run, as processes of this machine. The traps: an error with status 200, in the body; a page of
HTML; a second version of a name that is there already, which runs too; datasets that take a while; a source
of more than a megabyte; "permission denied" for what is not there; version numbers without their ``v``; files
that are listed later than the session is called complete; a log that comes from its begin each time. The
package itself leaves out what is empty or its default.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import sys
import threading
import time
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.sessions import Session, driver

USER, KEY = "ada", "0123456789abcdef0123456789abcdef"
MOST_SOURCE = 1_000_000
Answer = tuple[int, Any]


@dataclass
class Kernel:
    """A kernel of one version, and its session."""

    slug: str
    request: dict[str, Any]
    session: Session
    state: str = "QUEUED"
    failure: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    listed: bool = True
    versions: int = 1
    ran: float = field(default_factory=time.time)
    earlier: list[Session] = field(default_factory=list)
    """Sessions of its earlier versions, which run on beside the newest."""

    def kill(self) -> None:
        """End the sessions of all versions."""
        for session in (*self.earlier, self.session):
            session.kill()


@dataclass
class Fault:
    """What the next call of a method gets instead of its answer."""

    status: int
    body: bytes = b'{"code": 500, "message": "internal"}'
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})


@dataclass
class Kaggle:
    """Everything at Kaggle. All of it is below ``root``."""

    root: Path
    key: str = KEY
    """Of the user, or the token."""
    url: str = ""
    slow: float | None = 0.0
    """Seconds before anything is answered; ``None``: nothing is."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set in the end: nobody waits for an answer any more."""
    down: Fault | None = None
    """What every call gets, where it is set."""
    calls: Counter[str] = field(default_factory=Counter)
    faults: defaultdict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    lost: Counter[str] = field(default_factory=Counter)
    """Methods whose next calls do their work and are not answered."""
    kernels: dict[str, Kernel] = field(default_factory=dict)
    datasets: dict[str, dict[str, Any]] = field(default_factory=dict)
    blobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    """Slugs of kernels, once for each session that was begun."""
    uploaded: list[str] = field(default_factory=list)
    """Slugs of datasets, once for each time one was made."""
    polls_until_ready: int = 1
    hold: bool = False
    """Whether sessions stay queued until `release`."""
    list_late: bool = False
    """Whether files are listed only after `list_files`."""
    refuse: str = ""
    """What SaveKernel answers as its error."""
    used_hours: float = 2.0
    granted_hours: float = 30.0
    break_upload_at: int | None = None
    """Bytes after which the next upload's connection breaks."""
    gpu: tuple[str | None, int] = ("Tesla T4", 2)
    authorization: set[str] = field(default_factory=set)
    """Headers that signed addresses got."""
    shorten: tuple[str, str] = ("", "")
    """A text in programs that is another one when they run."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    changed: threading.Condition = field(default_factory=threading.Condition)
    """Notified when a session ends."""
    _ending: list[threading.Thread] = field(default_factory=list)
    """Each ends the sessions of one kernel that was deleted."""

    @property
    def writes(self) -> int:
        """Calls that make, change or send something."""
        return sum(self.calls[name] for name in ("SaveKernel", "CreateDataset", "StartBlobUpload", "put"))

    # What happens at Kaggle without being asked for

    def release(self) -> None:
        """Let queued sessions begin."""
        with self.lock:
            self.hold = False
            waiting = [kernel for kernel in self.kernels.values() if kernel.state == "QUEUED"]
        for kernel in waiting:
            self._start(kernel)

    def lose(self, slug: str, *, keep_files: bool = True) -> None:
        """End a session as the loss of its machine does."""
        kernel = self.kernels[slug]
        kernel.failure = "Your notebook was stopped because its session was lost."
        kernel.session.kill()
        with self.lock:
            kernel.state = "ERROR"
            kernel.files = self._written(kernel) if keep_files else {}

    def list_files(self) -> None:
        for kernel in self.kernels.values():
            kernel.listed = True

    def close(self) -> None:
        self.over.set()
        for kernel in list(self.kernels.values()):
            kernel.kill()
        for ending in self._ending:
            ending.join()

    # Calls

    def answer(self, method: str, body: dict[str, Any]) -> Answer:
        handler = getattr(self, f"_{re.sub('(?<!^)(?=[A-Z])', '_', method).lower()}", None)
        if handler is None:
            return 404, {"code": 404, "message": "no such method"}
        with self.lock:
            found: Answer = handler(body)
            return found

    def _introspect_token(self, _body: dict[str, Any]) -> Answer:
        return 200, {"active": True, "username": USER}

    def _list_kernels(self, body: dict[str, Any]) -> Answer:
        with_it = [
            kernel
            for kernel in self.kernels.values()
            if body.get("dataset") in (None, *kernel.request.get("datasetDataSources", []))
        ]
        ran = [(f"{USER}/{kernel.slug}", written(kernel.ran)) for kernel in with_it]
        return 200, {"kernels": [{"ref": ref, "lastRunTime": at} for ref, at in ran]}

    def _get_accelerator_quota_statistics(self, _body: dict[str, Any]) -> Answer:
        gpu = {
            "timeUsed": f"{self.used_hours * 3600:.0f}s",
            "timeReserved": "1800s",
            "totalTimeAllowed": f"{self.granted_hours * 3600:.0f}s",
        }
        return 200, {"quotaRefreshTime": "2099-01-03T00:00:00.000Z", "gpuQuota": gpu}

    def _start_blob_upload(self, body: dict[str, Any]) -> Answer:
        token = f"token-{len(self.blobs)}"
        self.blobs[token] = {"name": body["name"], "size": body["contentLength"], "data": b""}
        return 200, {"token": token, "createUrl": f"{self.url}/signed/put/{token}?signature=sesame"}

    def _create_dataset(self, body: dict[str, Any]) -> Answer:
        slug = body["slug"]
        if not 6 <= len(slug) <= 50 or not 6 <= len(body["title"]) <= 50:
            return 200, {"status": "error", "error": "The dataset slug must be between 6 and 50 characters"}
        if slug in self.datasets:
            return 200, {
                "status": "error",
                "error": f'The requested slug "{slug}" is already in use by a dataset.',
            }
        assert body["isPrivate"] is True, "what people send is for nobody else"
        files = {}
        for file in body["files"]:
            blob = self.blobs[file["token"]]
            if len(blob["data"]) != blob["size"]:
                return 200, {"status": "error", "error": "a file is not there"}
            files[blob["name"]] = blob["data"]
        self.datasets[slug] = {"files": files, "polls": self.polls_until_ready, "made": time.time()}
        self.uploaded.append(slug)
        return 200, {"ref": f"{USER}/{slug}", "status": "ok"}

    def _get_dataset_status(self, body: dict[str, Any]) -> Answer:
        found = self.datasets.get(body["datasetSlug"])
        if found is None:
            return 403, {"code": 403, "message": "Permission 'datasets.get' was denied"}
        if found["polls"] > 0:
            found["polls"] -= 1
            return 200, {"status": "BLOBS_RECEIVED"}
        return 200, {"status": "READY"}

    def _list_datasets(self, body: dict[str, Any]) -> Answer:
        found = [slug for slug in self.datasets if body["search"] in slug]
        page = found[20 * (body["page"] - 1) : 20 * body["page"]]
        made = {slug: written(self.datasets[slug]["made"]) for slug in page}
        return 200, {"datasets": [{"ref": f"{USER}/{s}", "lastUpdated": at} for s, at in made.items()]}

    def _delete_dataset(self, body: dict[str, Any]) -> Answer:
        if self.datasets.pop(body["datasetSlug"], None) is None:
            return 404, {"code": 404, "message": "Not found"}
        return 200, {}

    def _save_kernel(self, body: dict[str, Any]) -> Answer:
        if len(body["text"].encode()) > MOST_SOURCE:
            return 400, {"code": 400, "message": "Source is too large"}
        if self.refuse:
            return 200, {"error": self.refuse}
        assert body["isPrivate"] is True, "what people run is for nobody else"
        owner, _, slug = body["slug"].partition("/")
        assert owner == USER
        assert re.sub(r"[^a-z0-9]+", "-", body["newTitle"].lower()) == slug, (
            "the title decides about the name"
        )
        invalid = [
            ref
            for ref in body.get("datasetDataSources", [])
            if self.datasets.get(ref.partition("/")[2], {"polls": 1})["polls"] > 0
        ]
        before = self.kernels.get(slug)
        versions = before.versions + 1 if before else 1
        earlier = [*before.earlier, before.session] if before else []
        root = self.root / "sessions" / f"{slug}-{versions}"
        kernel = Kernel(slug, body, Session(root, []), versions=versions, earlier=earlier)
        self.kernels[slug] = kernel
        self.started.append(slug)
        if not self.hold:
            self._start(kernel)
        return 200, {
            "ref": f"/code/{USER}/{slug}",
            "url": f"https://www.kaggle.com/code/{USER}/{slug}",
            "versionNumber": versions,
            "error": "",
            "invalidDatasetSources": invalid,
            "kernelId": len(self.started),
        }

    def _get_kernel(self, body: dict[str, Any]) -> Answer:
        kernel = self.kernels.get(body["kernelSlug"])
        if kernel is None or body["userName"] != USER:
            return 403, {"code": 403, "message": "Permission 'kernels.get' was denied"}
        sources = kernel.request.get("datasetDataSources", [])
        return 200, {"metadata": {"ref": f"{USER}/{kernel.slug}", "datasetDataSources": sources}}

    def _version(self, body: dict[str, Any]) -> Kernel | None:
        kernel = self.kernels.get(body["kernelSlug"])
        label = body.get("versionLabel", "v1")
        return kernel if kernel is not None and label == f"v{kernel.versions}" else None

    def _get_kernel_session_status(self, body: dict[str, Any]) -> Answer:
        kernel = self._version(body)
        if kernel is None:
            return 404, {"code": 404, "message": "Not found"}
        said: dict[str, Any] = {} if kernel.state == "QUEUED" else {"status": kernel.state}
        return 200, {**said, **({"failureMessage": kernel.failure} if kernel.failure else {})}

    def _list_kernel_session_output(self, body: dict[str, Any]) -> Answer:
        kernel = self._version(body)
        if kernel is None:
            return 404, {"code": 404, "message": "Not found"}
        names = sorted(kernel.files) if kernel.listed else []
        at, size = int(body.get("pageToken") or 0), min(2, int(body.get("pageSize") or 20))
        page = [
            {
                "fileName": n,
                "url": f"{self.url}/signed/get/{kernel.slug}/{urllib.parse.quote(n)}?signature=sesame",
            }
            for n in names[at : at + size]
        ]
        more = {"nextPageToken": str(at + size)} if at + size < len(names) else {}
        log = json.dumps(kernel.session.entries) if kernel.state in {"COMPLETE", "ERROR"} else ""
        return 200, {"files": page, "log": log, **more}

    def _delete_kernel(self, body: dict[str, Any]) -> Answer:
        kernel = self.kernels.pop(body["kernelSlug"], None)
        if kernel is None:
            return 404, {"code": 404, "message": "Not found"}
        # Its end takes the lock that this call holds.
        self._ending.append(threading.Thread(target=kernel.kill, daemon=True))
        self._ending[-1].start()
        return 200, {}

    # Sessions

    def _start(self, kernel: Kernel) -> None:
        root = kernel.session.root
        shutil.rmtree(root, ignore_errors=True)
        working = root / "kaggle" / "working"
        working.mkdir(parents=True)
        for ref in kernel.request.get("datasetDataSources", []):
            slug = ref.partition("/")[2]
            place = root / "kaggle" / "input" / "datasets" / USER / slug
            place.mkdir(parents=True)
            for name, data in self.datasets.get(slug, {"files": {}})["files"].items():
                (place / name).write_bytes(data)
        name, count = self.gpu if kernel.request.get("enableGpu") else (None, 0)
        driver(root / "bin", name, count)
        text = kernel.request["text"]
        text = text.replace(*self.shorten) if self.shorten[0] else text
        (root / "script.py").write_text(text, encoding="utf-8")
        kernel.session.argv = [sys.executable, "script.py"]
        kernel.session.on_end = lambda code: self._ended(kernel, code)
        kernel.state = "RUNNING"
        kernel.session.start()

    def _ended(self, kernel: Kernel, code: int) -> None:
        with self.lock:
            if kernel.failure:
                return
            kernel.files = self._written(kernel)
            kernel.listed = not self.list_late
            kernel.state = "ERROR" if code else "COMPLETE"
        with self.changed:
            self.changed.notify_all()

    @staticmethod
    def _written(kernel: Kernel) -> dict[str, bytes]:
        top = kernel.session.root / "kaggle" / "working"
        files = [path for path in top.rglob("*") if path.is_file() and not path.is_symlink()]
        return {path.relative_to(top).as_posix(): path.read_bytes() for path in files}


def written(moment: float) -> str:
    """A moment as Kaggle writes it."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class _Handler(BaseHTTPRequestHandler):
    kaggle: Kaggle
    protocol_version = "HTTP/1.1"

    def parse_request(self) -> bool:
        """Take a request in, and wait as long as this Kaggle does before it looks at it."""
        return super().parse_request() and not self.kaggle.over.wait(self.kaggle.slow)

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        method = self.path.rpartition("/")[2]
        self.kaggle.calls[method] += 1
        if not self._allowed():
            self._json(401, {"code": 401, "message": "Unauthenticated"})
            return
        if self.kaggle.down is not None:
            self._send(self.kaggle.down.status, self.kaggle.down.body, self.kaggle.down.headers)
            return
        if self.kaggle.faults[method]:
            fault = self.kaggle.faults[method].pop(0)
            self._send(fault.status, fault.body, fault.headers)
            return
        status, document = self.kaggle.answer(method, body)
        if self.kaggle.lost[method]:
            self.kaggle.lost[method] -= 1
            self.close_connection = True
            return
        self._json(status, document)

    def do_PUT(self) -> None:
        self.kaggle.calls["put"] += 1
        self._signed()
        blob = self.kaggle.blobs[self.path.partition("?")[0].rpartition("/")[2]]
        given = self.headers.get("Content-Range", "")
        length = int(self.headers["Content-Length"])
        if given.startswith("bytes */"):
            reached = {"Range": f"bytes=0-{len(blob['data']) - 1}"} if blob["data"] else {}
            self._send(200 if len(blob["data"]) == blob["size"] else 308, b"", reached)
            return
        start = int(given.removeprefix("bytes ").partition("-")[0]) if given else 0
        assert start == len(blob["data"]) or start == 0
        limit = self.kaggle.break_upload_at
        if limit is not None and length > limit:
            self.kaggle.break_upload_at = None
            blob["data"] = blob["data"][:start] + self.rfile.read(limit)
            self.close_connection = True
            self.connection.close()
            return
        blob["data"] = blob["data"][:start] + self.rfile.read(length)
        self._send(200, b"", {})

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path.startswith("/signed/get/"):
            self._signed()
            _, _, _, slug, name = path.split("/", 4)
            kernel = self.kaggle.kernels.get(slug)
            data = kernel.files.get(urllib.parse.unquote(name)) if kernel else None
            self._send(404 if data is None else 200, data or b"", {})
            return
        self.kaggle.calls["logs"] += 1
        if not self._allowed():
            self._json(401, {"code": 401, "message": "Unauthenticated"})
            return
        if self.kaggle.down is not None:
            self._send(self.kaggle.down.status, self.kaggle.down.body, self.kaggle.down.headers)
            return
        slug = path.rpartition("/")[2]
        labels = dict(urllib.parse.parse_qsl(query))
        kernel = self.kaggle._version({"kernelSlug": slug, **labels})
        if self.kaggle.faults["logs"] or kernel is None or kernel.state == "QUEUED":
            fault = self.kaggle.faults["logs"].pop(0) if self.kaggle.faults["logs"] else Fault(404, b"{}")
            self._send(fault.status, fault.body, fault.headers)
        elif kernel.state == "RUNNING":
            self._follow(kernel)
        else:
            self._json(200, kernel.session.entries)

    def _follow(self, kernel: Kernel) -> None:
        """Everything from the begin, then what comes, until the session ends or nobody listens."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        session, sent, until = kernel.session, 0, time.monotonic() + 60
        try:
            while time.monotonic() < until:
                with session.changed:
                    if len(session.entries) == sent and session.code is None:
                        session.changed.wait(0.5)
                    fresh, over = session.entries[sent:], session.code is not None
                for entry in fresh:
                    self.wfile.write(f"data: {json.dumps(entry)}\n\n".encode())
                self.wfile.flush()
                sent += len(fresh)
                if over and not fresh:
                    self.wfile.write(b"data: END_OF_LOG\n\n")
                    return
        except OSError:
            return

    def _allowed(self) -> bool:
        basic = base64.b64encode(f"{USER}:{self.kaggle.key}".encode()).decode()
        return self.headers.get("Authorization") in {f"Basic {basic}", f"Bearer {self.kaggle.key}"}

    def _signed(self) -> None:
        assert "signature=sesame" in self.path
        if self.headers.get("Authorization"):
            self.kaggle.authorization.add(self.headers["Authorization"])

    def _json(self, status: int, document: Any) -> None:
        self._send(status, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def kaggle(root: Path, key: str = KEY) -> Iterator[Kaggle]:
    """A simulated Kaggle on a loopback port."""
    made = Kaggle(root, key)
    handler = type("Handler", (_Handler,), {"kaggle": made})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.close()
        server.shutdown()
        server.server_close()
        thread.join()
