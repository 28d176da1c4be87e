"""What `pipeline/` uses of Google's libraries beyond their documented interface, and the variables that switch them.

Seen in google-cloud-storage 3.17.1, google-auth 2.62.2 and google-api-core 2.44.0.
`tests/storage/test_gcs_internals.py` fails if an upgrade changes any of it. Nothing else in `pipeline/` may touch
undocumented parts of these libraries.
"""

import os

import google.auth
from google.auth.credentials import Credentials
from google.auth.transport.requests import AuthorizedSession
from google.cloud.storage import Client
from google.cloud.storage.retry import DEFAULT_RETRY


def emulator_url() -> str:
    """Return the address of the server that stands in for Google Cloud Storage; empty if it is Google's own.

    The client reads this variable whenever it is made.
    """
    return os.environ.get("STORAGE_EMULATOR_HOST", "")


def default_credentials() -> Credentials:
    """Return the application default credentials.

    google-auth looks for a metadata server three times, which takes longer than a first error may. It reads the number
    of attempts when it first imports `google.auth.compute_engine`, which is in this call.

    Raises:
        google.auth.exceptions.DefaultCredentialsError: There are none, or their file cannot be used.
    """
    os.environ.setdefault("GCE_METADATA_DETECT_RETRIES", "1")
    credentials: Credentials
    credentials, _ = google.auth.default(scopes=Client.SCOPE)
    return credentials


def client_of(session: AuthorizedSession, credentials: Credentials) -> Client:
    """Return a client that sends its requests over a session.

    Its parameter for the session is documented as private. Without the variable, the client would also ask for each
    bucket in a thread of its own, for its traces. That takes a right that readers of objects need not have.
    """
    os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    return Client(project="none", credentials=credentials, _http=session)


def is_transient(error: BaseException) -> bool:
    """Return whether the client retries a request by itself after this error."""
    return bool(DEFAULT_RETRY._predicate(error))
