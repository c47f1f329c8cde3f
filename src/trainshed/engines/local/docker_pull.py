"""A program that has docker's daemon pull an image, and tells how many bytes came: the command line does not.

    python -I -S docker_pull.py SOCKET REPOSITORY DIGEST FILE

What a layer gets to is printed as ``docker pull`` prints it, ``FILE`` holds the number of bytes that came.
Where it fails it ends with status 1 and the daemon's words. Whoever kills it ends the pull.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PAUSE = 0.25
"""Seconds between two notes of how far it is."""


class Pull:
    """What the daemon has said of one pull."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._came: dict[str, int] = {}
        self._said: dict[str, str] = {}
        self._noted = 0.0

    def hear(self, news: Mapping[str, Any]) -> None:
        """Take one message. Exits if the pull has failed."""
        if error := news.get("error"):
            sys.exit(f"Error response from daemon: {error}")
        layer, status = str(news.get("id", "")), str(news.get("status", ""))
        now = time.monotonic()
        moved = int((news.get("progressDetail") or {}).get("current") or 0)
        if status == "Downloading":
            self._came[layer] = max(moved, self._came.get(layer, 0))
        if self._said.get(layer) != status:
            self._said[layer] = status
            _say(f"{layer}: {status}" if layer else status)
        elif now - self._noted < _PAUSE:
            return
        elif status == "Extracting":  # nothing comes meanwhile, but something happens
            _say(f"{layer}: {status} {moved}")
        self._noted = now
        temporary = self._file.with_suffix(".new")
        temporary.write_text(str(sum(self._came.values())), encoding="ascii")
        temporary.replace(self._file)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class _Connection(http.client.HTTPConnection):
    """HTTP over the daemon's socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.host)


def main() -> None:
    place, repository, digest, file = sys.argv[1:]
    pull = Pull(Path(file))
    connection = _Connection(place)
    query = urllib.parse.urlencode({"fromImage": repository, "tag": digest})
    try:
        connection.request("POST", f"/images/create?{query}", headers={"Host": "docker"})
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            sys.exit(f"Error response from daemon: {json.loads(answer.read())['message']}")
        for line in answer:
            pull.hear(json.loads(line))
    except (OSError, http.client.HTTPException, ValueError) as error:
        sys.exit(f"docker does not answer: {error}")


if __name__ == "__main__":
    main()
