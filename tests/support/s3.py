"""Real S3 servers on loopback: SeaweedFS and moto, which share no code. Each dies with the tests."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.waiting import wait_until

ACCESS_KEY = "AKIATRAINSHEDTESTS"
SECRET_KEY = "canary-secret-of-the-s3-store"
REGION = "us-east-1"
BUCKET = "blobs"
"""There is one from the start: SeaweedFS sets whole volumes aside for each."""
KINDS = ("seaweedfs", "moto")
_UP_SECONDS = 60.0
_SOCKETS = Path("/tmp")
"""Where SeaweedFS puts them, whatever it is told."""


class S3Server:
    """A running server with one bucket; ``stop`` removes its data, ``kill`` ends it as a power cut would."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._folder = Path(tempfile.mkdtemp(prefix=f"trainshed-{kind}-"))
        self._ports = _free_ports(12)
        self.port = self._ports[0]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.start()
        self.make_bucket(BUCKET)

    @property
    def environment(self) -> dict[str, str]:
        """The credentials, as a server of ours takes them."""
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}

    def start(self) -> None:
        """Start it, or start it again on what it kept; answers requests when this returns."""
        command = getattr(self, f"_{self.kind}")()
        if program := shutil.which("setpriv"):
            command = [program, "--pdeathsig=KILL", *command]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
        wait_until(self._answers, _UP_SECONDS, f"{self.kind} to answer")

    def make_bucket(self, name: str) -> None:
        client = self.client()
        # SeaweedFS answers before its filer can create anything.
        wait_until(lambda: _created(client, name), _UP_SECONDS, f"the bucket {name}")

    def client(self) -> Any:
        """AWS's own client, to look at what our store left."""
        import boto3  # noqa: PLC0415 - half a second, for the few tests that look
        from botocore.config import Config  # noqa: PLC0415 - as above

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
        )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        # SeaweedFS takes its leave for ten seconds; nothing of it is needed any more.
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        for port in self._ports:
            for socket_file in _SOCKETS.glob(f"seaweedfs-*-{port}.sock"):
                socket_file.unlink(missing_ok=True)

    def _seaweedfs(self) -> list[str]:
        """One process with a port for each of its parts: every one has a default that another may use."""
        names = [
            *("s3.port.grpc", "filer.port", "filer.port.grpc", "master.port", "master.port.grpc"),
            *("volume.port", "volume.port.grpc"),
        ]
        ports = [f"-{name}={port}" for name, port in zip(names, self._ports[1:], strict=False)]
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        access = self._folder / "s3.json"
        access.write_text(json.dumps({"identities": [identity]}))
        (self._folder / "data").mkdir(exist_ok=True)
        return [
            _program("weed"),
            f"-logdir={self._folder}",
            "server",
            f"-dir={self._folder / 'data'}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=512",
            "-volume.max=20",
            "-filer",
            "-s3",
            f"-s3.port={self.port}",
            f"-s3.config={access}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            *ports,
        ]

    def _moto(self) -> list[str]:
        return [_program("moto_server"), "-H", "127.0.0.1", "-p", str(self.port)]

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError((self._folder / "log").read_text(errors="replace")[-4000:])
        try:
            urllib.request.urlopen(self.endpoint, timeout=2).close()
        except urllib.error.HTTPError as refused:
            refused.close()
        except OSError:
            return False
        return True


def _created(client: Any, name: str) -> bool:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - as in `client`

    try:
        client.create_bucket(Bucket=name)
    except (BotoCoreError, ClientError):
        return False
    return True


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, found together so that they differ.

    SeaweedFS adds 10,000 to some of them where it is told nothing else, so none may be above 55,535.
    """
    with ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            probe = stack.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            if (port := probe.getsockname()[1]) < 55_000:
                found.append(port)
        return found
