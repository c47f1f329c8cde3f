"""Which process is at the other end of a connection, by /proc and where there is none (c.7, P13)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from trainshed.control.scripts import peers
from trainshed.control.scripts.peers import ByPsutil, peer_of

CLIENT = """
import socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.recv(1)
"""


@pytest.fixture(params=["proc", "psutil"])
def looking(request, monkeypatch, tmp_path):
    """Both ways of looking, on a machine that has both."""
    if request.param == "psutil":
        monkeypatch.setattr(peers, "_ByProc", ByPsutil)
    return request.param


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield opened


def connected(listener, env):
    """A process that connects, and the ends of its connection."""
    words = [sys.executable, "-c", CLIENT, str(listener.getsockname()[1])]
    process = subprocess.Popen(words, env={"PATH": os.environ["PATH"], **env})
    accepted, client = listener.accept()
    return process, accepted, client


@pytest.mark.usefixtures("looking")
def test_P13_the_process_and_its_ancestors_are_found(listener):
    process, accepted, client = connected(listener, {})
    with accepted:
        peer = peer_of(client, accepted.getsockname())
        [chain] = peer.chains
        assert [each.pid for each in chain[:2]] == [process.pid, os.getpid()]
        assert (peer.here, peer.unreadable, chain[0].env["PATH"]) == (True, False, os.environ["PATH"])
    process.wait(30)


@pytest.mark.usefixtures("looking")
@pytest.mark.parametrize("marker", peers.MARKERS)
def test_P13_a_marker_in_its_environment_shows_an_agent(listener, marker):
    process, accepted, client = connected(listener, {marker: "1"})
    with accepted:
        assert marker in peer_of(client, accepted.getsockname()).agent
    process.wait(30)


@pytest.mark.usefixtures("looking")
def test_P13_an_agent_is_known_by_its_name_too(listener, tmp_path):
    named = tmp_path / "claude"
    named.write_text(CLIENT)
    words = [sys.executable, str(named), str(listener.getsockname()[1])]
    process = subprocess.Popen(words, env={"PATH": os.environ["PATH"]})
    accepted, client = listener.accept()
    with accepted:
        assert "`claude`" in peer_of(client, accepted.getsockname()).agent
    process.wait(30)


def test_a_connection_that_nobody_here_holds_is_from_elsewhere_or_unreadable(listener):
    here = listener.getsockname()
    assert not peer_of(("192.0.2.7", 4711), here).here
    gone = peer_of(("127.0.0.1", 1), here)
    assert (gone.here, gone.unreadable, gone.terminal()) == (True, True, None)
    assert peer_of(None, here).unreadable
    assert peer_of(("testclient", 5), here).unreadable
