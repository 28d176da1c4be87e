"""Objects of Google Cloud Storage: created once, replaced only in the generation that was seen, verified by CRC32C.

Every request that writes has a precondition, so that it may be repeated: the answer to a request that succeeded may be
lost. The repetition then fails with status 412, and a comparison of checksums shows whether the first one succeeded.
"""

import base64
import io
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import IO, Any

import google_crc32c
import requests
from google.api_core.exceptions import GoogleAPICallError, PreconditionFailed, RetryError
from google.api_core.retry import Retry
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.auth.transport.requests import AuthorizedSession
from google.cloud.storage import Blob
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

from pipeline.errors import AccessError, StorageError
from pipeline.storage import crc32c
from pipeline.storage.bucket_path import BucketPath, FirstPage, ListedNames, ObjectStat
from pipeline.storage.deadlines import RequestWatch, TooSlow
from pipeline.storage.gcs_internals import client_of, default_credentials, emulator_url, is_transient
from pipeline.storage.local import FULL, changed_meanwhile, crc32c_of_open_file, full_disk_explained, other_content
from pipeline.storage.urllib3_internals import ReportingAdapter
from pipeline.system.os_errors import unless_missing
from pipeline.system.parallel import ordered_map, within
from pipeline.system.proxies import require_proxies

DEADLINE_S = 120.0
"""A request is retried for this many seconds before the task fails."""
FIRST_WAIT_S = 0.5
"""The first retry comes after at most this many seconds. The maximum doubles with each retry."""
MAX_REQUEST_S = 600.0
"""A request and all of its retries may take this many seconds, plus the time of its bytes at the slowest rate."""
SLOWEST_BYTES_PER_S = 100_000
"""A large object may move this slowly before its request is given up."""
FIRST_ANSWER_S = 6.0
"""A bucket must answer the first request within this many seconds. The search for credentials may take 3 s more.

The preflight must report a bucket that cannot be used within 10 s.
"""
FIRST_TRIES_S = 4.0
"""The first request is retried for this many seconds. A transient error must not end a command that just began."""
TIMEOUT_S = (5.0, 60.0)
"""The client waits this many seconds for a connection, and this many for the next bytes."""
CONNECTIONS = 32
"""A process keeps this many connections open. As many threads can use one client without new connections."""
PART_BYTES = 16 << 20
"""Objects with more bytes are fetched in parts and uploaded in chunks of this size.

Each thread holds one part in memory.
"""
PART_READERS = 4
"""This many parts of one object are fetched at the same time."""
REPLACE_ATTEMPTS = 10
"""An object that others replace at the same time is read or replaced in at most this many attempts."""
SESSION_ATTEMPTS = 3
"""An upload whose session the server forgets is tried this many times."""
_FIELDS = "items(name,size,crc32c,md5Hash,generation,updated),prefixes,nextPageToken"
_FIELDS_OF_NAMES = "items(name),prefixes,nextPageToken"
_FIELDS_OF_SIZES = "items(name,size),prefixes,nextPageToken"
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 401, 403, 404
_MAX_MESSAGE_LETTERS = 300
"""The message of a server is cut to this length in an error."""
_OF_CLIENT = (
    *(GoogleAPICallError, InvalidResponse, GoogleAuthError, DataCorruption),
    *(requests.RequestException, ConnectionError, TimeoutError),
)
"""The client raises these errors and RetryError."""
_MD5_OF_NOTHING = "1B2M2Y8AsgTpgAmY7PhCfg=="
_log = logging.getLogger(__name__)


def client() -> "Gcs":
    """Return the one client of this process: it holds the connections."""
    # A forked process needs a client of its own: it has the connections of its parent, but not the thread of the
    # deadlines.
    return _client(emulator_url(), os.getpid())


@lru_cache(1)
def _client(_host: str, _pid: int) -> "Gcs":
    credentials = _credentials()
    try:
        return Gcs(credentials)
    # The constructor of the client asks the metadata server for its universe domain, several times.
    except TransportError as error:
        raise StorageError(
            f"gs://: {_principal(credentials)} cannot get an access token ({_reason(error)}): check the network, then "
            "run again"
        ) from error


class Gcs:
    """Google Cloud Storage with the permissions of one principal. It is thread-safe."""

    def __init__(self, credentials: Credentials) -> None:
        session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
        self._watch = RequestWatch()
        for scheme in ("https://", "http://"):
            # By default, ten connections are kept, and the eleventh thread would make a new one for each request.
            adapter = ReportingAdapter(self._watch.set_connection, pool_connections=4, pool_maxsize=CONNECTIONS)
            session.mount(scheme, adapter)
        # The JSON API sends no redirect. One of a proxy or of a wrong server could lead anywhere in the network.
        session.max_redirects = 0
        self._client = client_of(session, credentials)
        _fix_environment(session, self._client.api_endpoint)
        self.principal = _principal(credentials)
        self._buckets: set[str] = set()
        """Buckets that are known to exist."""

    @contextmanager
    def within(self, path: BucketPath, seconds: float) -> Iterator[None]:
        """Give all requests that this thread sends in the block one deadline, in seconds, with all of their retries.

        Raises StorageError after it, which names `path`.
        """
        with self._explained(path), self._watch.within(seconds):
            yield

    def stat(self, path: BucketPath, generation: int | None = None) -> ObjectStat:
        """Return the metadata of an object: the newest, or `generation`. Raises FileNotFoundError."""
        # A source may be a whole bucket. The client would fail with a ValueError for an object without a name.
        if not path.key:
            raise FileNotFoundError(2, "no such object", str(path))
        blob = self._blob(path, generation)
        with self._request(path):
            blob.reload(timeout=TIMEOUT_S, retry=self._retry(path))
        return _stat(blob)

    def objects(
        self, path: BucketPath, limit: int | None = None, first: str = "", end: str = ""
    ) -> Iterator[tuple[BucketPath, ObjectStat]]:
        """Yield the objects below a place, in the order of their names' bytes.

        `first` and `end` (not included) are names relative to the place. An empty `end` is no end.
        """
        with self._explained(path):
            for blob in self._each(self._list(path, None, limit, self._retry(path), first=first, end=end)):
                yield BucketPath(path.bucket, blob.name, path.user_project), _stat(blob)

    def children(self, path: BucketPath, only_folders: bool = False) -> Iterator[BucketPath]:
        """Yield the objects and folders that a folder with this name contains; if `only_folders`, only the folders.

        An object and a folder may have the same name. It is then yielded twice.
        """
        with self._explained(path):
            listing = self._list(path, "/", None, self._retry(path))
            for blob in self._each(listing):
                # Consoles create an empty object with a slash at its end for a folder, which is yielded below.
                if not only_folders and not blob.name.endswith("/"):
                    yield BucketPath(path.bucket, blob.name, path.user_project)
            # The prefixes of a listing are complete only after its last page.
            for prefix in sorted(listing.prefixes):
                yield BucketPath(path.bucket, prefix.rstrip("/"), path.user_project)

    def names(self, path: BucketPath, limit: int, first: str = "", end: str = "") -> ListedNames:
        """Return at most `limit` names below a place, at least one if there is any. They are not divided into folders.

        `first` and `end` are as in `objects`.
        """
        listing = self._list(path, None, limit, self._retry(path), first=first, end=end, fields=_FIELDS_OF_NAMES)
        with self._explained(path):
            names = _relative(path, (blob.name for blob in self._each(listing)))
        return ListedNames(names, (), is_last=listing.next_page_token is None)

    def level(self, path: BucketPath, folder: str, max_folders: int) -> ListedNames:
        """Return names and folders in a folder below a place.

        The listing ends with a page that has no folders, or when it has more than `max_folders`.
        """
        listing = self._list(path, "/", None, self._retry(path), below=folder, fields=_FIELDS_OF_NAMES)
        names: list[str] = []
        with self._explained(path):
            folders = 0
            for page in self._pages(listing):
                found = [blob.name for blob in page]
                names += found
                # The pages of millions of files without a folder would take minutes. A bucket may send an empty page.
                if (found and len(listing.prefixes) == folders) or len(listing.prefixes) > max_folders:
                    break
                folders = len(listing.prefixes)
        found_folders = _relative(path, sorted(listing.prefixes))
        return ListedNames(_relative(path, names), found_folders, is_last=listing.next_page_token is None)

    def first_page(self, path: BucketPath, seconds: float, delimiter: str | None, start: str) -> FirstPage:
        """Return what the first page of a listing has, of the names that begin with `start`. There is no retry."""
        listing = self._list(path, delimiter, None, None, below=start, fields=_FIELDS_OF_SIZES)
        with self._explained(path, is_first=True), self._watch.within(seconds):
            blobs = list(next(listing.pages, ()))
        names = _relative(path, (blob.name for blob in blobs))
        sizes = {name: int(blob.size or 0) for name, blob in zip(names, blobs, strict=True)}
        return FirstPage(sizes, _relative(path, sorted(listing.prefixes)), listing.next_page_token is None)

    def read(self, path: BucketPath, generation: int | None = None) -> bytes:
        """Return a whole object, verified with the checksum that the bucket sends with it.

        Raises FileNotFoundError; StorageError if it arrives damaged twice.
        """
        blob = self._blob(path, generation)
        with self._request(path):
            try:
                return self._download(path, blob)
            except DataCorruption:
                _log.warning("%s arrived damaged: fetching it again", path)
                return self._download(path, blob)

    def read_range(self, path: BucketPath, start: int, length: int, generation: int | None = None) -> bytes:
        """Return `length` bytes of an object from `start`. They are not verified: a bucket has no CRC32C of a part."""
        # An empty range cannot be written in HTTP: the end is inclusive.
        if not length:
            return b""
        with self._request(path, length):
            part: bytes = self._blob(path, generation).download_as_bytes(
                start=start,
                end=start + length - 1,
                raw_download=True,
                single_shot_download=True,
                checksum=None,
                timeout=TIMEOUT_S,
                retry=self._retry(path),
            )
        return part

    def open(self, path: BucketPath) -> IO[bytes]:
        """Return a verified copy of the object in an open file without a name, which no kill can leave behind."""
        file = tempfile.TemporaryFile(prefix="tenfold-")  # noqa: SIM115 - the caller closes it
        try:
            with _room_for(path):
                self.fetch(path, file)
        except BaseException:
            file.close()
            raise
        return file

    def fetch(self, path: BucketPath, file: IO[bytes], stat: ObjectStat | None = None) -> ObjectStat:
        """Write one generation of an object, or the newest, into an empty `file`, and return its metadata.

        The whole content is verified. The file is then at its start. Raises FileNotFoundError; StorageError if the
        object arrives damaged twice.
        """
        if stat:
            return self._fetch_generation(path, file, stat)
        for _ in range(REPLACE_ATTEMPTS):
            newest = self.stat(path)
            # A bucket keeps no old generation: if the object was replaced after `stat`, that generation is gone.
            with suppress(FileNotFoundError):
                return self._fetch_generation(path, file, newest)
        raise StorageError(
            f"other programs replaced {path} {REPLACE_ATTEMPTS} times while it was being read: run again"
        )

    def _fetch_generation(self, path: BucketPath, file: IO[bytes], stat: ObjectStat) -> ObjectStat:
        for _ in range(2):
            if self._fetch_parts(path, file, stat) == stat.crc32c:
                file.seek(0)
                return stat
            _log.warning("%s arrived damaged", path)
        raise StorageError(_damaged(path))

    @contextmanager
    def write(self, path: BucketPath, replaces: bool) -> Iterator[IO[bytes]]:
        """Give a file that `replace` or `create` uploads if the block ends without an error."""
        with _room_for(path), tempfile.TemporaryFile(prefix="tenfold-") as file:
            with full_disk_explained(file):
                yield file
            if replaces:
                self.replace(path, file)
            else:
                self.create(path, file)

    def create(self, path: BucketPath, file: IO[bytes]) -> None:
        """Upload a file as a new object. Raises ConflictError if an object with other content exists."""
        try:
            self._upload(path, file, 0)
        except PreconditionFailed as error:
            # An equal object is a success: another attempt of the task wrote it, or the answer to our upload was lost.
            if not self._holds(path, file):
                raise other_content(path) from error

    def swap(self, path: BucketPath, before: bytes | None, after: bytes) -> None:
        """Replace an object with content `before`, or create it if `before` is None. Raises ConflictError otherwise."""
        generation, file = self._generation(path), io.BytesIO(after)
        try:
            if (self.read(path, generation) if generation else None) != before:
                raise changed_meanwhile(path)
            self._upload(path, file, generation)
        # Somebody replaced or removed the object after `_generation`, or the answer to our own upload was lost.
        except (PreconditionFailed, FileNotFoundError) as error:
            if not self._holds(path, file):
                raise changed_meanwhile(path) from error

    def copy_new(self, source: BucketPath, target: BucketPath) -> None:
        """Copy an object within Google Cloud Storage. Raises ConflictError if the target exists with other content."""
        stat = self.stat(source)
        try:
            with self._request(target, stat.st_size):
                self._rewrite(self._blob(source, stat.generation), self._blob(target))
        except PreconditionFailed as error:
            try:
                # The status 412 does not say which precondition failed: the target exists, or the source was replaced.
                existing = self.stat(target)
            except FileNotFoundError:
                raise StorageError(f"another program replaced {source} while it was being copied: run again") from error
            if (existing.st_size, existing.crc32c) != (stat.st_size, stat.crc32c):
                raise other_content(target) from error
        except FileNotFoundError:
            now = self.stat(source)
            if now.generation == stat.generation or (now.st_size, now.crc32c) != (stat.st_size, stat.crc32c):
                raise
            # Another attempt of the same task replaced the source with an equal object.
            self.copy_new(source, target)

    def delete(self, path: BucketPath, missing_ok: bool) -> None:
        """Delete the current generation of an object, and no newer one. Raises FileNotFoundError."""
        try:
            generation = self.stat(path).generation
            with suppress(PreconditionFailed), self._request(path):
                self._blob(path).delete(if_generation_match=generation, timeout=TIMEOUT_S, retry=self._retry(path))
        # The second request may raise this, too: if the answer to its first attempt is lost, the retry finds nothing.
        except FileNotFoundError:
            if not missing_ok:
                raise

    def require_bucket(self, path: BucketPath) -> None:
        """Request the bucket, for FIRST_ANSWER_S at most. Raises AccessError or StorageError with one sentence."""
        with self._explained(path, is_first=True):
            # The timeouts of the client hold for each address of a host name, and not for the lookup of the name.
            within(FIRST_ANSWER_S, lambda: next(iter(self._list(path, None, 1, _first_retry(path))), None))

    def require_writable(self, path: BucketPath) -> None:
        """Create the empty object `.writable` below `path` and delete it. Raises the errors of `require_bucket`.

        A request for the permissions would not do: it returns those of the bucket, and some hold for a prefix only.
        """
        blob, retry = self._blob(path / ".writable"), _first_retry(path)
        # Status 412 means that another run tests the place now, or that a run was killed here. It is writable.
        with suppress(PreconditionFailed), self._explained(path, is_first=True):
            # The outer retry is for an answer that was cut: see `_upload`.
            put = retry(blob.upload_from_string)
            within(FIRST_ANSWER_S, lambda: put(b"", if_generation_match=0, retry=retry))
        with suppress(FileNotFoundError), self._explained(path, is_first=True):
            within(FIRST_ANSWER_S, lambda: blob.delete(timeout=TIMEOUT_S, retry=retry))

    def _each(self, listing: Any) -> Iterator[Blob]:
        """Yield all objects of a listing."""
        for page in self._pages(listing):
            yield from page

    def _pages(self, listing: Any) -> Iterator[Iterable[Blob]]:
        """Yield the pages of a listing. Each page has a deadline: the whole may take hours."""
        pages = listing.pages
        while True:
            with self._watch.within(MAX_REQUEST_S):
                page = next(pages, None)
            if page is None:
                return
            yield page

    def _list(
        self,
        path: BucketPath,
        delimiter: str | None,
        limit: int | None,
        retry: Retry | None,
        *,
        first: str = "",
        end: str = "",
        below: str = "",
        fields: str = _FIELDS,
    ) -> Any:
        prefix = path.key + "/" if path.key else ""
        return self._client.list_blobs(
            self._bucket(path),
            prefix=prefix + below or None,
            delimiter=delimiter,
            max_results=limit,
            # The offsets of a bucket are whole names, with the prefix.
            start_offset=prefix + first if first else None,
            end_offset=prefix + end if end else None,
            fields=fields,
            timeout=TIMEOUT_S,
            retry=retry,
        )

    def _download(self, path: BucketPath, blob: Blob) -> bytes:
        content: bytes = blob.download_as_bytes(
            # The size and the CRC32C of a bucket are those of the stored bytes. Without this, the client would
            # decompress an object that is stored with gzip.
            raw_download=True,
            # The body is read at once, since it is in memory anyway. Otherwise, the client would read 8 KiB at a time.
            single_shot_download=True,
            checksum="crc32c",
            timeout=TIMEOUT_S,
            retry=self._retry(_uri(blob)),
        )
        # The client continues a broken download, but its checksum covers only the bytes of the last request.
        crc32c = _crc32c_of(blob) if blob.crc32c else self.stat(path, blob.generation).crc32c
        if google_crc32c.value(content) != crc32c:
            raise DataCorruption(None)
        return content

    def _fetch_parts(self, path: BucketPath, file: IO[bytes], stat: ObjectStat) -> int:
        """Write an object into a file, several parts at once. Return the CRC32C of the whole."""
        # The file gets its size first, because parts arrive in any order. A second attempt overwrites the first one.
        file.truncate(stat.st_size)
        descriptor = file.fileno()

        def fetch_part(start: int) -> tuple[int, int]:
            part = self.read_range(path, start, min(PART_BYTES, stat.st_size - start), stat.generation)
            rest = memoryview(part)
            # A disk that is nearly full writes a part of the bytes without an error. The next call raises the error.
            while rest:
                rest = rest[os.pwrite(descriptor, rest, start + len(part) - len(rest)) :]
            return google_crc32c.value(part), len(part)

        whole = 0
        with full_disk_explained(file, stat.st_size):
            for crc, length in ordered_map(fetch_part, range(0, stat.st_size, PART_BYTES), PART_READERS, PART_READERS):
                # The checksum of the whole follows from those of the parts, so the file is not read again.
                whole, _ = crc32c.combine(whole, 0, crc, length)
        return whole

    def replace(self, path: BucketPath, file: IO[bytes]) -> None:
        """Replace an object. The last writer wins. A repeated request never replaces a newer object."""
        # Without a precondition, a retry whose first attempt had succeeded could replace what another writer wrote
        # since.
        for _ in range(REPLACE_ATTEMPTS):
            try:
                self._upload(path, file, self._generation(path))
                return
            except PreconditionFailed:
                if self._holds(path, file):
                    return
        raise StorageError(
            f"other programs replaced {path} {REPLACE_ATTEMPTS} times while it was being written: run again"
        )

    def _generation(self, path: BucketPath) -> int:
        stat = unless_missing(partial(self.stat, path))
        return stat.generation if stat else 0

    def _upload(self, path: BucketPath, file: IO[bytes], generation: int) -> None:
        size = file.seek(0, os.SEEK_END)
        for attempts_left in reversed(range(SESSION_ATTEMPTS)):
            # In a resumable upload, a failure repeats one chunk instead of the whole file.
            blob = self._bucket(path).blob(path.key, chunk_size=PART_BYTES if size > PART_BYTES else None)
            try:
                with self._request(path, size):
                    # The client parses the answer outside of its own retry, so an answer that was cut needs this one.
                    self._retry(path)(blob.upload_from_file)(
                        file,
                        rewind=True,
                        size=size,
                        content_type="application/octet-stream",
                        if_generation_match=generation,
                        checksum="crc32c",
                        timeout=TIMEOUT_S,
                        retry=self._retry(path),
                    )
                return
            # The server has forgotten the resumable session (404 or 410). The client does not start another one.
            except FileNotFoundError as error:
                if not attempts_left:
                    raise StorageError(
                        f"{path}: the bucket ended {SESSION_ATTEMPTS} upload sessions early: run again"
                    ) from error
                _log.warning("the bucket ended the upload session of %s early: starting the upload again", path)

    def _holds(self, path: BucketPath, file: IO[bytes]) -> bool:
        """Whether the object has the content of the file. Another writer wrote it, or an earlier attempt."""
        stat = unless_missing(partial(self.stat, path))
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        return stat is not None and stat.st_size == size and stat.crc32c == crc32c_of_open_file(file)

    def _rewrite(self, source: Blob, target: Blob) -> None:
        token = None
        # The server copies a large object in several requests. Each answer but the last one has a token for the next.
        while True:
            token, _, _ = target.rewrite(
                source,
                token=token,
                if_generation_match=0,
                if_source_generation_match=source.generation,
                timeout=TIMEOUT_S,
                retry=self._retry(_uri(target)),
            )
            if token is None:
                return

    def _blob(self, path: BucketPath, generation: int | None = None) -> Blob:
        return self._bucket(path).blob(path.key, generation=generation)

    def _bucket(self, path: BucketPath) -> Any:
        try:
            return self._client.bucket(path.bucket, user_project=path.user_project or None)
        except ValueError as error:
            raise AccessError(f"gs://{path.bucket} is not a valid bucket name ({error}): check the name") from error

    def _retry(self, what: object) -> Retry:
        """Return the retry policy of a run under way. Its token was valid before, so status 401 may be transient."""

        def is_worth_it(error: BaseException) -> bool:
            return not self._watch.is_over() and (_may_pass(error) or _status_of(error) == _UNAUTHORIZED)

        # A pause between two attempts must not exceed the deadline of `within`, which only ends requests.
        seconds = min(DEADLINE_S, self._watch.seconds_left())
        return _retry_policy(what, is_worth_it, longest_wait_s=15.0, seconds=seconds)

    @contextmanager
    def _request(self, path: BucketPath, size: int = 0) -> Iterator[None]:
        """Explain the errors of a request that moves at most `size` bytes, and give the whole request a deadline."""
        with self._explained(path), self._watch.within(MAX_REQUEST_S + size / SLOWEST_BYTES_PER_S):
            yield

    @contextmanager
    def _explained(self, path: BucketPath, is_first: bool = False) -> Iterator[None]:
        """Turn the errors of the client into errors that a person can act on. The caller handles status 412.

        If the first request of a command fails, the last error says more than the time of the retries.
        """
        try:
            yield
        except PreconditionFailed:
            raise
        except RetryError as error:
            if is_first and error.cause:
                raise self._meaning(path, error.cause) from error
            reason, seconds = _reason(error.cause or error), min(DEADLINE_S, self._watch.limit_s())
            raise StorageError(
                f"{path}: the bucket did not answer within {seconds:g} s ({reason}): run again"
            ) from error
        except _OF_CLIENT as error:
            raise self._meaning(path, error) from error

    def _meaning(self, path: BucketPath, error: BaseException) -> Exception:
        if isinstance(error, GoogleAPICallError | InvalidResponse):
            return self._error_of_status(path, _status_of(error), error)
        if isinstance(error, GoogleAuthError):
            return self._error_of_login(path, error)
        if isinstance(error, DataCorruption):
            return StorageError(_damaged(path))
        if isinstance(error, TooSlow):
            return StorageError(
                f"{path}: Google Cloud Storage or the network is too slow ({error}): check the network, then run again"
            )
        return StorageError(
            f"{path}: Google Cloud Storage gave {self.principal} no answer ({_reason(error)}): "
            "check the network, then run again"
        )

    def _error_of_login(self, path: BucketPath, error: GoogleAuthError) -> Exception:
        if _is_passing_login(error):
            return StorageError(
                f"gs://{path.bucket}: {self.principal} cannot get an access token ({_reason(error)}): check the "
                "network, then run again"
            )
        return AccessError(
            f"gs://{path.bucket}: {self.principal} cannot log in ({_reason(error)}): "
            "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file"
        )

    def _error_of_status(self, path: BucketPath, status: int, error: BaseException) -> Exception:
        if status in (_UNAUTHORIZED, _FORBIDDEN):
            return AccessError(
                f"gs://{path.bucket}: {self.principal} is not allowed to do this with {path} ({status}): "
                f"give it the role Storage Object User on the bucket, or use other credentials{_server_message(error)}"
            )
        if status in (404, 410):
            if not self._has_bucket(path):
                return AccessError(f"gs://{path.bucket} does not exist (seen as {self.principal}): check its name")
            return FileNotFoundError(2, "no such object", str(path))
        if status == 400 and "customer-supplied" in str(error):
            return _has_own_key(str(path))
        if status == 400 and "requester pays" in str(error):
            return AccessError(
                f"gs://{path.bucket} makes the requester pay: set user_project to the project that pays. This works "
                "only for reading images: a workspace or dataset must be in a bucket that pays for itself"
            )
        return StorageError(
            f"{path}: the bucket answered {status} ({_reason(error)}): run again{_server_message(error)}"
        )

    def _has_bucket(self, path: BucketPath) -> bool:
        """Whether the bucket exists. A missing object and a missing bucket have the same status.

        A listing fails with this status only if there is no bucket. Each bucket is requested once.
        """
        if path.bucket not in self._buckets:
            try:
                next(iter(self._list(BucketPath(path.bucket, "", path.user_project), None, 1, None)), None)
            except (*_OF_CLIENT, RetryError) as error:
                return _status_of(error) != _NOT_FOUND
            self._buckets.add(path.bucket)
        return True


def _first_retry(what: object) -> Retry:
    """Return the retry policy of the first requests of a command."""
    return _retry_policy(what, _may_pass, longest_wait_s=1.0, seconds=FIRST_TRIES_S)


def _retry_policy(
    what: object, predicate: Callable[[BaseException], bool], longest_wait_s: float, seconds: float
) -> Retry:
    """Return a policy that retries a request after the errors for which `predicate` is true.

    It logs the reason of each retry: a slow task with silent retries looks like one that hangs.
    """

    def warn(error: Exception) -> None:
        _log.warning("%s: trying again after %s", what, _reason(error))

    return Retry(predicate=predicate, initial=FIRST_WAIT_S, maximum=longest_wait_s, timeout=seconds, on_error=warn)


def _may_pass(error: BaseException) -> bool:
    """Whether another attempt of the request may succeed after this error."""
    if isinstance(error, GoogleAuthError):
        return _is_passing_login(error)
    # JSON that cannot be parsed is an answer that was cut. The client's own list of transient errors lacks it.
    return isinstance(error, requests.JSONDecodeError) or is_transient(error)


def _server_message(error: BaseException) -> str:
    """Return why a server refuses: for example a retention policy, disabled billing, or a perimeter. It may be empty.

    URLs are removed: anyone who has the URL of an upload session can write there.
    """
    response = getattr(error, "response", None)
    if response is None:
        return ""
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):  # A proxy answers with text or other JSON.
        message = response.text
    plain = " ".join(re.sub(r"https?://\S+", "", str(message)).split())[:_MAX_MESSAGE_LETTERS]
    return f"; the server says {plain!r}" if plain else ""


@contextmanager
def _room_for(path: BucketPath) -> Iterator[None]:
    """Raise StorageError if the disk has no room for the temporary file of an object."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise StorageError(
            f"{path} does not fit into {tempfile.gettempdir()} ({error.strerror}): free some space, or set TMPDIR to a "
            "folder with more space"
        ) from error


def _is_passing_login(error: GoogleAuthError) -> bool:
    """Whether a token server or metadata server may give a token later.

    The credentials of a metadata server wrap an error of the network in a RefreshError that is not retryable.
    """
    return error.retryable or any(isinstance(each, TransportError) for each in (error, error.__cause__))


def _fix_environment(session: requests.Session, url: str) -> None:
    """Read proxies and certificates from the environment once. By default, `requests` reads them for each request."""
    require_proxies()
    environment = session.merge_environment_settings(url, {}, None, None, None)
    session.proxies, session.verify, session.cert = (environment[name] for name in ("proxies", "verify", "cert"))
    session.trust_env = False


def _credentials() -> Credentials:
    """Return the application default credentials, or anonymous ones, which read public buckets."""
    if emulator_url():
        return AnonymousCredentials()  # type: ignore[no-untyped-call]
    try:
        return default_credentials()
    except DefaultCredentialsError as error:
        if file := os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            raise AccessError(f"GOOGLE_APPLICATION_CREDENTIALS names {file}, which cannot be used: {error}") from error
        return AnonymousCredentials()  # type: ignore[no-untyped-call]


def _principal(credentials: Credentials) -> str:
    if isinstance(credentials, AnonymousCredentials):
        return "an anonymous reader (no credentials were found)"
    name = getattr(credentials, "service_account_email", "") or getattr(credentials, "account", "")
    return str(name or "the application default credentials")


def _relative(path: BucketPath, names: Iterable[str]) -> list[str]:
    """Return the names of objects relative to a place that they are below."""
    return [name[len(path.key) + 1 if path.key else 0 :] for name in names]


def _uri(blob: Blob) -> str:
    return f"gs://{blob.bucket.name}/{blob.name}"


def _stat(blob: Blob) -> ObjectStat:
    updated = blob.updated
    # Google's own test server leaves out the size of an empty object, which its MD5 identifies.
    size = 0 if blob.size is None and blob.md5_hash == _MD5_OF_NOTHING else blob.size
    if blob.crc32c is None or size is None:
        raise _has_own_key(_uri(blob))
    return ObjectStat(
        st_size=int(size),
        st_mtime_ns=int(updated.timestamp() * 1e9) if updated else 0,
        generation=int(blob.generation),
        crc32c=_crc32c_of(blob),
        md5=base64.b64decode(blob.md5_hash).hex() if blob.md5_hash else "",
    )


def _has_own_key(uri: str) -> AccessError:
    return AccessError(
        f"{uri}: the bucket states no CRC32C or no size for this object, as for all objects with a customer-supplied "
        "key: copy it without such a key, or move it away"
    )


def _crc32c_of(blob: Blob) -> int:
    return int.from_bytes(base64.b64decode(blob.crc32c), "big")


def _damaged(path: BucketPath) -> str:
    return f"{path} arrived damaged twice (wrong CRC32C): check the network, then run again"


def _status_of(error: BaseException | None) -> int:
    if isinstance(error, InvalidResponse):
        return int(error.response.status_code)
    return int(error.code or 0) if isinstance(error, GoogleAPICallError) else 0


def _reason(error: BaseException) -> str:
    """Return the reason in one line, without the upload URLs and the whole answers that the client quotes.

    Anyone who has an upload URL can write there.
    """
    status = _status_of(error)
    if status:
        return f"{type(error).__name__} {status}"
    root = error
    # The innermost error is that of the system, such as "Connection refused".
    while inner := root.__cause__ or root.__context__:
        root = inner
    return f"{type(root).__name__}: {str(root).partition(chr(10))[0][:200]}"
