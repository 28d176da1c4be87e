"""The undocumented parts of urllib3 and `requests` that this project uses are still as in 2.8.0 and 2.34.2."""

import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from urllib3.connection import HTTPConnection
from urllib3.util.ssltransport import SSLTransport

from pipeline.storage.urllib3_internals import ReportingAdapter, shut_down
from tests.waiting import until


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a self-signed certificate for this host and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    path.write_bytes(
        signed.public_bytes(pem)
        + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return path


def server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


class Handler(BaseHTTPRequestHandler):
    """Answers at once, except for a path that ends with `/never`, which is never answered."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.endswith("/never"):
            self.rfile.read(1)  # until the client hangs up
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(params=["http", "https", "proxy"])
def address(request: pytest.FixtureRequest, certificate: Path) -> Iterator[str]:
    """The address of a server that also answers requests as a proxy."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scheme = "https" if request.param == "https" else "http"
    if scheme == "https":
        server.socket = server_context(certificate).wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"{scheme}://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def reported() -> list[tuple[int, HTTPConnection]]:
    """The thread and the connection of each report."""
    return []


@pytest.fixture
def session(
    request: pytest.FixtureRequest, address: str, certificate: Path, reported: list[tuple[int, HTTPConnection]]
) -> Iterator[requests.Session]:
    adapter = ReportingAdapter(lambda connection: reported.append((threading.get_ident(), connection)), pool_maxsize=2)
    with requests.Session() as session:
        session.trust_env, session.verify = False, str(certificate)
        for scheme in ("http://", "https://"):
            session.mount(scheme, adapter)
        if request.node.callspec.params["address"] == "proxy":
            session.proxies = {"http": address}
        yield session


def test_the_connection_of_each_request_is_reported_by_its_thread(
    session: requests.Session, address: str, reported: list[tuple[int, HTTPConnection]]
):
    for _ in range(2):
        assert session.get(address, timeout=300).status_code == 200
    other = threading.Thread(target=session.get, args=(address,), kwargs={"timeout": 60})
    other.start()
    other.join()
    here = threading.get_ident()
    assert [thread == here for thread, _ in reported] == [True, True, False]
    assert len({connection for _, connection in reported}) == 1  # It goes back to its pool.


def test_a_request_ends_when_another_thread_shuts_down_its_connection(
    session: requests.Session, address: str, reported: list[tuple[int, HTTPConnection]]
):
    failed: list[Exception] = []

    def get() -> None:
        try:
            session.get(f"{address}/never", timeout=300)
        except requests.ConnectionError as error:
            failed.append(error)

    session.get(address, timeout=300)  # The connection has its socket from now on.
    assert len(reported) == 1
    thread = threading.Thread(target=get)
    thread.start()
    until(lambda: len(reported) == 2)
    assert isinstance(reported[1][1].sock, socket.socket)
    shut_down(reported[1][1])
    thread.join()
    assert len(failed) == 1


def test_shut_down_ends_tls_through_tls_at_the_underlying_socket(certificate: Path):
    """urllib3 uses TLS through TLS if both the proxy and the server use TLS."""
    context, contexts = ssl.create_default_context(cafile=certificate), server_context(certificate)
    near, far = socket.socketpair()
    thread = threading.Thread(target=serve_tls, args=(far, contexts))
    thread.start()
    connection = HTTPConnection("127.0.0.1")
    connection.sock = SSLTransport(near, context, server_hostname="127.0.0.1")
    shut_down(connection)
    thread.join()
    connection.close()
    near.close()


def serve_tls(sock: socket.socket, context: ssl.SSLContext) -> None:
    """Accept a client and wait until it hangs up."""
    with context.wrap_socket(sock, server_side=True, suppress_ragged_eofs=True) as secure:
        assert secure.recv(1) == b""


def test_shut_down_ignores_a_closed_connection():
    connection = HTTPConnection("127.0.0.1")
    assert connection.sock is None
    shut_down(connection)
