"""How the members of a Ray task talk: lines of JSON between each of them and the head. Standard library only.

The head listens on its own address at the gang's meeting port. Whoever connects first shows the task's
token; nobody without it is heard. One line is one message, a JSON object with ``say``:

===========  ==================  ========================================================================
``say``      from, to            meaning
===========  ==================  ========================================================================
``hello``    all, head           ``token``, ``role``, ``rank``, ``machine``, ``address``
``start``    head, worker        it is this worker's turn on its machine; ``gcs`` is the cluster's address
``joined``   worker, head        its node is alive; ``node`` says where it keeps its files
``ready``    head, submitter     all nodes are alive; ``dashboard`` (URL or empty), ``driver`` (word list)
``run``      submitter, head     run the driver beside the head: there is no job server (C7); ``listen``
``ended``    submitter, head     the driver ended with ``code``; ``job`` is Ray's own id of it
``end``      head, workers       the task is over, or this worker is let go (C51): hand in your logs and exit
                                 0; ``job`` as above
``end``      submitter, head     it was stopped: the cluster is not to be kept any longer (C50)
``bye``      head, submitter     the cluster is gone and its logs are written
===========  ==================  ========================================================================
"""

from __future__ import annotations

import hmac
import json
import socket
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

MOST_BYTES = 1 << 20
"""Of one message."""
CONFIG, COMMAND = "ray.json", "cmd"
"""In the folder of ours in the work directory: what a member is to do, and the user's command as it is."""
CLUSTER, ENVIRONMENT = "cluster.json", "environment.json"
"""Likewise, on a shared cluster: what it is (``gcs``, ``dashboard``, ``node``, ``group``, ``logs``, ``env``,
``hidden``), and the variables that the head leaves for the driver."""
FOLDER = ".trainshed"
LACKS_RAY = 78
"""Exit code of a head whose image has no Ray (EX_CONFIG)."""
STDOUT, STDERR, EXIT_CODE = 1, 2, 3
"""Kinds of pieces that a driver sends to the submitter."""
PIECE = struct.Struct("<BI")


class Gone(Exception):
    """The other end is no longer there, or never was."""


class Line:
    """One connection between two members."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")

    def send(self, say: str, **content: object) -> None:
        """Raises `Gone`."""
        try:
            self._connection.sendall(json.dumps({"say": say, **content}).encode() + b"\n")
        except OSError as error:
            raise Gone(str(error)) from error

    def receive(self) -> Json:
        """The next message; waits for it. Raises `Gone`."""
        try:
            line = self._lines.readline(MOST_BYTES)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError) as error:
            raise Gone(str(error)) from error
        if not isinstance(message, dict):
            raise Gone("the connection was closed")
        return message

    def expect(self, say: str) -> Json:
        """The next message, which must be this one. Raises `Gone`."""
        message = self.receive()
        if message.get("say") != say:
            raise Gone(f"{message.get('say')!r} came where {say!r} was due")
        return message

    def close(self) -> None:
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._connection.close()


def connect(address: str, port: int, seconds: float) -> Line:
    """Connect, trying again until it is there. Raises `Gone` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=5)
        except OSError as error:
            if time.monotonic() >= deadline:
                raise Gone(f"nobody answered at {address}:{port} in {seconds:g} s: {error}") from error
            time.sleep(0.1)
            continue
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return Line(connection)


def meet_head(config: Json) -> Line:
    """Connect to the head and say who we are. Raises `Gone`."""
    line = connect(config["head"], config["port"], config["start_seconds"])
    names = ("token", "role", "rank", "machine", "address")
    line.send("hello", **{name: config[name] for name in names})
    return line


def knows(token: str, given: object) -> bool:
    """Whether what was given is the token; takes as long for a wrong one."""
    return isinstance(given, str) and hmac.compare_digest(token.encode(), given.encode())


def listen(address: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one. Raises `OSError`."""
    listening = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address, port))
        listening.listen(128)
    except OSError:
        listening.close()
        raise
    return listening


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses on any address: Ray binds several of its own on all of them."""
    held = [listen("0.0.0.0", 0) for _ in range(count)]  # noqa: S104 - closed before anybody can connect
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def exactly(connection: socket.socket, count: int) -> bytes:
    """That many bytes. Raises `Gone` if the other end closes before."""
    data = b""
    while len(data) < count:
        try:
            more = connection.recv(count - len(data))
        except OSError as error:
            raise Gone(str(error)) from error
        if not more:
            raise Gone("the connection was closed")
        data += more
    return data


def tell(text: str) -> None:
    """A line of ours in this member's log."""
    sys.stderr.write(f"trainshed: {text}\n")
    sys.stderr.flush()
