"""No credential leaks into the output of a run: Airflow runs with planted secrets, and all output is searched."""

import base64
import gzip
import io
import json
import os
import sqlite3
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from standins.fake_gcs import FakeGcs
from tests.airflow_database import copy_database
from tests.comet_server import comet_server
from tests.conftest import jpeg
from tests.ports import own_port

ROOT = Path(__file__).parents[1]
ROBOT = "robot@project.iam.gserviceaccount.com"
PLANTED = {
    "the key of Comet": "pLaNtEdCoMeTkEy0123456789",
    "the id of Google's key": "9f1c2e7ab54d4b7c8a06e1d25c3f4b9e",
    "the token of Google": "ya29.pLaNtEdToKeN_0123456789-abcdefgh",
    "the password of a connection of Airflow": "pLaNtEdCoNnEcTiOn77",
    "the password of the proxy": "pLaNtEdPrOxYpAsS42",
}
"""The private key is not in this list, because it is generated for each run."""
TINY = {"epochs": 1, "image_size": 32, "batch_size": 8}


# --- searching --------------------------------------------------------------------------------------------------------


def forms(secret: str) -> Iterator[bytes]:
    """Yield a secret as plain text, and its base64 forms for every offset in a longer text."""
    yield secret.encode()
    for before in range(3):
        encoded = base64.b64encode(b"-" * before + secret.encode())
        yield encoded[4 if before else 0 : -4]


def contents(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield a file and the content of archives in it, recursively."""
    yield name, content
    if content.startswith(b"\x1f\x8b"):
        yield from contents(f"{name}, unpacked", gzip.decompress(content))
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for each in archive.namelist():
                yield from contents(f"{name}: {each}", archive.read(each))


def rows_of(database: Path) -> bytes:
    """Return all rows of a database as text. On disk, a long row is split, and new rows are in the WAL file."""
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        return "\n".join(connection.iterdump()).encode("utf-8", "surrogateescape")


def files_in(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield from contents(str(path.relative_to(folder)), path.read_bytes())
        if path.suffix == ".db":
            yield f"{path.name}, row by row", rows_of(path)


def leaks(written: Iterable[tuple[str, bytes]], secrets: Mapping[str, str]) -> list[str]:
    """Return a sentence for each secret that was found in a file."""
    wanted = [(what, form) for what, secret in secrets.items() for form in forms(secret)]
    return [f"{what} in {name}" for name, content in written for what, form in wanted if form in content]


def test_leaks_finds_secrets_in_all_encodings_and_archives(tmp_path: Path):
    """If a secret in an archive were missed, the other tests would prove nothing."""
    secret = PLANTED["the key of Comet"]
    (tmp_path / "plain").write_text(f"key={secret};")
    (tmp_path / "log.gz").write_bytes(gzip.compress(secret.encode()))
    for before in ("", "a", "ab"):
        (tmp_path / f"header{before}").write_bytes(base64.b64encode(f"{before}{secret}:x".encode()))
    with zipfile.ZipFile(tmp_path / "comet.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("messages.json", secret)
    with closing(sqlite3.connect(tmp_path / "airflow.db")) as connection, connection:
        connection.execute("pragma journal_mode = wal")  # Airflow uses this mode.
        connection.execute("create table rows (cell text)")
        connection.execute("insert into rows values (?)", [f"{'x' * 5000}{secret}{'x' * 5000}"])
    assert {line.rpartition(" in ")[2] for line in leaks(files_in(tmp_path), PLANTED)} >= {
        "plain",
        "log.gz, unpacked",
        "header",
        "headera",
        "headerab",
        "comet.zip: messages.json",
        "airflow.db, row by row",
    }


# --- planting ---------------------------------------------------------------------------------------------------------


class _Tokens(BaseHTTPRequestHandler):
    """Returns a token for every request, as Google does for a service account."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        token = {"access_token": PLANTED["the token of Google"], "expires_in": 3600, "token_type": "Bearer"}
        self.wfile.write(json.dumps(token).encode())

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def token_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Tokens) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/token"
        server.shutdown()


def private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def key_file(path: Path, token_uri: str) -> dict[str, str]:
    """Write a key file of a service account in the format of Google. Return the lines of its key: each is a secret."""
    key = private_key()
    content = {
        "type": "service_account",
        "project_id": "project",
        "private_key_id": PLANTED["the id of Google's key"],
        "private_key": key,
        "client_email": ROBOT,
        "client_id": "1",
        "token_uri": token_uri,
    }
    path.write_text(json.dumps(content))
    return {f"line {number} of Google's key": line for number, line in enumerate(key.splitlines()[1:-1])}


class Planted:
    """A separate Airflow whose environment contains all secrets, with a bucket that requires a token."""

    def __init__(self, folder: Path, gcs: FakeGcs, token_uri: str, comet: str, received: Mapping[str, bytes]) -> None:
        self.written = folder / "written"
        self.gcs, self.received = gcs, received
        self.output = b""
        for name in ("user", "temporary"):
            (self.written / name).mkdir(parents=True)
        copy_database(self.written / "airflow")
        self.secrets = PLANTED | key_file(folder / "key.json", token_uri)
        proxy = f"http://me:{PLANTED['the password of the proxy']}@127.0.0.1:9"
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.written / "user"),
            "TMPDIR": str(self.written / "temporary"),
            "TENFOLD_HOME": str(self.written / "airflow"),
            "TENFOLD_WORKSPACE": str(self.written / "workspace"),
            "TENFOLD_PORT": str(own_port()),
            "API_ENDPOINT_OVERRIDE": gcs.url,  # like STORAGE_EMULATOR_HOST, but with credentials
            "GOOGLE_APPLICATION_CREDENTIALS": str(folder / "key.json"),
            "COMET_API_KEY": PLANTED["the key of Comet"],
            "COMET_URL_OVERRIDE": comet,
            "AIRFLOW_CONN_PLANTED": f"postgres://me:{PLANTED['the password of a connection of Airflow']}@host/base",
            **dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"), proxy),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1"),
        }

    def command(self, *arguments: str) -> tuple[int, str]:
        """Run a command of `scripts.airflow`. Return its exit code and output."""
        command = [sys.executable, "-m", "scripts.airflow", *arguments]
        done = subprocess.run(
            command, env=self.environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        self.output += done.stdout
        return done.returncode, done.stdout.decode()

    def run(self, source: str, **params: object) -> tuple[int, str]:
        """Run image_training to the end. Return the exit code and output."""
        return self.command("run", "--source", source, "--params", json.dumps({**TINY, **params}))

    def leaks(self) -> list[str]:
        """Return all leaks up to now: on disk, in the terminal, in the bucket and in the requests to Comet."""
        of_comet = {name: secret for name, secret in self.secrets.items() if name != "the key of Comet"}
        objects = [
            each
            for name in self.gcs.names("private")
            for each in contents(f"gs://private/{name}", self.gcs.content("private", name))
        ]
        here = [*files_in(self.written), ("output of the commands", self.output), *objects]
        return [*leaks(here, self.secrets), *leaks(self.received.items(), of_comet)]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    folder = tmp_path_factory.mktemp("secrets")
    with FakeGcs() as gcs, token_server() as token_uri, comet_server(accepts=True) as (comet, received):
        gcs.create_bucket("private", "private")
        for number in range(20):
            gcs.put("private", f"raw/{'ab'[number % 2]}/{number}.jpg", jpeg(number))
        planted = Planted(folder, gcs, token_uri, comet, received)
        code, output = planted.command("up")
        try:
            assert code == 0, output
            yield planted
        finally:
            planted.command("down")


def text_of_logs(planted: Planted) -> str:
    return "\n".join(path.read_text() for path in (planted.written / "airflow" / "logs").rglob("*.log"))


# --- running ----------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.timeout(1800)
def test_a_run_writes_no_secret(planted: Planted):
    local = str(planted.written / "local")
    code, output = planted.run("gs://private/raw", publish_uri="gs://private/published", local_folder=local)
    assert code == 0, output
    assert planted.leaks() == []
    # Each secret was used, and the searched files are complete.
    assert any(name.startswith("published/") for name in planted.gcs.names("private"))
    assert b'"loss"' in planted.received["/clientlib/batch/logger/experiment/metric"]
    looked_at = [name for name, _ in files_in(planted.written)]
    for part in ("airflow.db, row by row", "report.html", "record/", "local/shards", "task_id=train", "result.json"):
        assert any(part in name for name in looked_at), part
    assert "image_training" in text_of_logs(planted)


@pytest.mark.core
@pytest.mark.timeout(1800)
def test_an_offline_archive_holds_no_secret(planted: Planted):
    """Comet refuses the key, so the experiment is written to an archive instead."""
    with comet_server(accepts=False) as (url, _):
        environ = {**planted.environ, "COMET_URL_OVERRIDE": url}
        command = [sys.executable, "-m", "pipeline", "run", "--set", "source_uri=gs://private/raw"]
        command += [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
        done = subprocess.run(
            command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    planted.output += done.stdout
    assert done.returncode == 0, done.stdout.decode()
    assert b"an offline archive is written instead" in done.stdout
    assert any(".zip: messages.json" in name for name, _ in files_in(planted.written))
    assert planted.leaks() == []


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("task", "request_", "name"),
    [("extract", "download", "^raw/"), ("copy", "insert|resumable-.*", "denied/.*tfrecord")],
)
def test_a_failed_run_writes_no_secret(planted: Planted, task: str, request_: str, name: str):
    """The refused request carries the token, and the error of the Google client contains the request."""
    fault = planted.gcs.fail("status", request_, name, times=None, code=403)
    workspace = str(planted.written / f"workspace-{task}")  # a workspace without any fetched image
    code, output = planted.run("gs://private/raw", workspace=workspace, publish_uri="gs://private/denied")
    fault.release()
    assert code == 1, output
    assert fault.fired > 0
    assert f"{ROBOT} is not allowed to do this" in output
    assert "is not allowed to do this" in text_of_logs(planted)
    assert planted.leaks() == []
