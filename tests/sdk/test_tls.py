"""Servers with https: believed where their authority is, refused at once and with a way out where not."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from trainshed import Client
from trainshed.sdk import ConfigurationError


def make_certificate(folder: Path) -> Path:
    """A certificate of 127.0.0.1 that signs itself, and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    place = folder / "server.pem"
    encoding = serialization.Encoding.PEM
    place.write_bytes(
        certificate.public_bytes(encoding)
        + key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return place


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(HTTPServer):
    connections = 0

    def get_request(self):
        self.connections += 1
        return super().get_request()

    def handle_error(self, *_: object) -> None:
        """A client that hangs up while it shakes hands is what some tests want."""


@pytest.fixture
def certificate(tmp_path) -> Path:
    return make_certificate(tmp_path)


@pytest.fixture
def server(certificate) -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with Server(("127.0.0.1", 0), Handler) as found:
        found.socket = context.wrap_socket(found.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=found.serve_forever, daemon=True)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def test_an_untrusted_certificate_is_refused_at_once_and_says_how_it_is_trusted(server, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with (
        Client(f"https://127.0.0.1:{server.server_port}", "key") as client,
        pytest.raises(ConfigurationError, match="not trusted here: self-signed certificate") as refused,
    ):
        client.me()
    assert "SSL_CERT_FILE" in refused.value.hint
    assert server.connections == 1


def test_an_authority_of_ones_own_is_trusted_where_it_is_named(server, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with Client(f"https://127.0.0.1:{server.server_port}", "key") as client:
        assert client.me() == {}
