"""The JSON API: from a request to what is carried out on the buckets, and to the answer. Knows nothing of sockets."""

import base64
import gzip
import json
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import repeat
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from standins.fake_gcs.objects import (
    METAGENERATION,
    Access,
    ApiError,
    Bucket,
    Content,
    Preconditions,
    StoredObject,
    check_hashes,
    check_name,
)

CHUNK = 256 * 1024
"""Every chunk of a resumable upload but its last is a multiple of it."""

_BUCKET = r"/storage/v1/b/([^/]+)"
_OBJECT = _BUCKET + r"/o/([^/]+)"
ROUTES = [
    ("GET", _BUCKET, "bucket-get"),
    ("GET", _BUCKET + "/o", "list"),
    ("GET", "(?:/download)?" + _OBJECT, "get"),
    ("DELETE", _OBJECT, "delete"),
    ("POST", _OBJECT + "/rewriteTo/b/([^/]+)/o/([^/]+)", "rewrite"),
    ("POST", "/upload" + _BUCKET + "/o", "insert"),
    ("PUT", "/upload" + _BUCKET + "/o", "resumable-chunk"),
]


@dataclass(frozen=True)
class Call:
    """One request, understood."""

    operation: str
    parts: tuple[str, ...]  # bucket, object, and where it goes, as far as the path names them
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    metadata: dict[str, Any]  # of the object, as the client sent it
    body: bytes
    name: str  # of the object; of a list: its prefix

    @property
    def generation(self) -> int | None:
        return int(self.query["generation"]) if "generation" in self.query else None

    @property
    def conditions(self) -> Preconditions:
        return Preconditions.of(self.query)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: Content
    start: int
    end: int


@dataclass
class Session:
    """A resumable upload under way."""

    call: Call
    chunks: list[bytes] = field(default_factory=list)
    received: int = 0
    created: StoredObject | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Api:
    """The buckets, and the operations on them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.buckets: dict[str, Bucket] = {}
        self.page_sizes: Iterator[int] = repeat(1000)
        """Maximum number of items of each next page. A bucket may return fewer than requested, and even none."""
        self._sessions: dict[str, Session] = {}
        self._operations: dict[str, Callable[[Call], Answer]] = {
            "bucket-get": self._bucket_get,
            "list": self._list,
            "get": self._get,
            "download": self._download,
            "delete": self._delete,
            "rewrite": self._rewrite,
            "insert": self._insert,
            "resumable-start": self._resumable_start,
            "resumable-chunk": self._resumable_chunk,
            "resumable-status": self._resumable_chunk,
        }

    def create_bucket(self, name: str, access: Access, requester_pays: bool) -> Bucket:
        if name in self.buckets:
            raise ApiError(409, "conflict", "Your previous request to create the named bucket succeeded.")
        self.buckets[name] = Bucket(name, access, requester_pays)
        return self.buckets[name]

    def understand(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Call:
        path, _, query_text = target.partition("?")
        query = dict(parse_qsl(query_text, keep_blank_values=True))
        operation, parts = route(method, path)
        operation = variant(operation, query, headers)
        metadata, content = read_body(operation, headers, body)
        metadata = {"contentType": headers.get("x-upload-content-type") or metadata.get("contentType"), **metadata}
        call = Call(operation, parts, query, headers, metadata, content, "")
        return Call(operation, parts, query, headers, metadata, content, self._name(call))

    def carry_out(self, call: Call) -> Answer:
        for bucket in call.parts[::2]:
            self._admit(self._bucket(bucket), call)
        return self._operations[call.operation](call)

    def _name(self, call: Call) -> str:
        if "upload_id" in call.query:
            session = self._sessions.get(call.query["upload_id"])
            return session.call.name if session else ""
        if call.operation == "list":
            return call.query.get("prefix", "")
        return call.parts[1] if len(call.parts) > 1 else str(call.query.get("name") or call.metadata.get("name") or "")

    def _bucket(self, name: str) -> Bucket:
        if name not in self.buckets:
            raise ApiError(404, "notFound", "The specified bucket does not exist.")
        return self.buckets[name]

    def _admit(self, bucket: Bucket, call: Call) -> None:
        if bucket.access == "private" and "authorization" not in call.headers:
            raise ApiError(401, "required", denied("Anonymous caller", bucket, call))
        if bucket.access == "forbidden":
            raise ApiError(403, "forbidden", denied("The caller", bucket, call))
        if bucket.requester_pays and not call.query.get("userProject"):
            raise ApiError(400, "required", "Bucket is a requester pays bucket but no user project provided.")

    def _bucket_get(self, call: Call) -> Answer:
        return in_json(bucket_resource(self._bucket(call.parts[0])))

    def _list(self, call: Call) -> Answer:
        limit = min(int(call.query.get("maxResults", 1000)), next(self.page_sizes))
        after = name_of(call.query["pageToken"]) if "pageToken" in call.query else ""
        if not limit:
            return in_json({"kind": "storage#objects", "nextPageToken": page_token(after)})
        page = self._bucket(call.parts[0]).page(
            prefix=call.query.get("prefix", ""),
            delimiter=call.query.get("delimiter", ""),
            start=call.query.get("startOffset", ""),
            end=call.query.get("endOffset", ""),
            after=after,
            limit=limit,
        )
        listing: dict[str, object] = {"kind": "storage#objects"}
        if page.items:
            listing["items"] = [self._resource(item) for item in page.items]
        if page.prefixes:
            listing["prefixes"] = page.prefixes
        if page.last is not None:
            listing["nextPageToken"] = page_token(page.last)
        return in_json(listing)

    def _live(self, call: Call) -> StoredObject:
        bucket, name = call.parts
        return self._bucket(bucket).find(name, call.generation, call.conditions, reading=True)

    def _get(self, call: Call) -> Answer:
        return in_json(self._resource(self._live(call)))

    def _download(self, call: Call) -> Answer:
        live = self._live(call)
        require_no_key(live)
        size, headers = live.content.size, object_headers(live)
        if live.properties.get("contentEncoding") == "gzip" and "gzip" not in call.headers.get("accept-encoding", ""):
            # The server decompresses the object, and ignores a range: cloud.google.com/storage/docs/transcoding.
            content = Content(gzip.decompress(live.content.read(0, size)))
            return Answer(200, [each for each in headers if each[0] != "Content-Encoding"], content, 0, content.size)
        if "range" not in call.headers:
            return Answer(200, headers, live.content, 0, size)
        start, end = byte_range(call.headers["range"], size)
        return Answer(206, [*headers, ("Content-Range", f"bytes {start}-{end - 1}/{size}")], live.content, start, end)

    def _delete(self, call: Call) -> Answer:
        bucket, name = call.parts
        self._bucket(bucket).delete(name, call.generation, call.conditions)
        return Answer(204, [], Content(b""), 0, 0)

    def _rewrite(self, call: Call) -> Answer:
        copy = self._copied(call)
        done = {"totalBytesRewritten": str(copy.content.size), "objectSize": str(copy.content.size), "done": True}
        return in_json({"kind": "storage#rewriteResponse", **done, "resource": self._resource(copy)})

    def _copied(self, call: Call) -> StoredObject:
        from_bucket, from_name, to_bucket, to_name = call.parts
        pinned = int(call.query["sourceGeneration"]) if "sourceGeneration" in call.query else None
        source = self._bucket(from_bucket).find(from_name, pinned, Preconditions.of(call.query, "ifSource"))
        require_no_key(source)
        properties = {**source.properties, **settable(call.metadata)}
        target = self._bucket(to_bucket)
        return target.create(to_name, source.content, properties, call.conditions, source.components)

    def _insert(self, call: Call) -> Answer:
        return in_json(self._resource(self._create(call, call.body, call.headers.get("x-goog-hash", ""))))

    def _create(self, call: Call, body: bytes, sent_hash: str) -> StoredObject:
        content = Content(body)
        check_hashes(content, hashes_of_header(sent_hash))
        check_hashes(content, call.metadata)
        return self._bucket(call.parts[0]).create(call.name, content, settable(call.metadata), call.conditions)

    def _resumable_start(self, call: Call) -> Answer:
        bucket = self._bucket(call.parts[0])
        check_name(call.name)
        call.conditions.check(bucket.objects.get(call.name))
        upload_id = secrets.token_hex(16)
        self._sessions[upload_id] = Session(call)
        place = f"{self.url}/upload/storage/v1/b/{quote(bucket.name)}/o?uploadType=resumable&upload_id={upload_id}"
        return Answer(200, [("Location", place), ("X-GUploader-UploadID", upload_id)], Content(b""), 0, 0)

    def _resumable_chunk(self, call: Call) -> Answer:
        session = self._sessions.get(call.query.get("upload_id", ""))
        if session is None:
            raise ApiError(404, "notFound", "Upload session not found.")
        with session.lock:
            return self._received(session, call)

    def keep_part(self, call: Call, count: int) -> None:
        """Keep what arrived of a chunk whose request fails in the middle: whole pieces, as a bucket does."""
        session = self._sessions[call.query["upload_id"]]
        start = int(re.match(r"bytes (\d+)-", call.headers["content-range"])[1])  # type: ignore[index]
        part = call.body[: count - count % CHUNK]
        headers = {"content-range": f"bytes {start}-{start + len(part) - 1}/*"}
        with session.lock:
            take_chunk(session, replace(call, headers=headers, body=part))

    def _received(self, session: Session, call: Call) -> Answer:
        if session.created is None:
            total = take_chunk(session, call)
            if session.received != total:
                received = [("Range", f"bytes=0-{session.received - 1}")] if session.received else []
                return Answer(308, received, Content(b""), 0, 0)
            # Asked again after the end, a session answers with what it made: a lost answer costs nothing.
            session.created = self._create(session.call, b"".join(session.chunks), call.headers.get("x-goog-hash", ""))
            session.chunks.clear()
        return in_json(self._resource(session.created))

    def _resource(self, item: StoredObject) -> dict[str, object]:
        path = f"/storage/v1/b/{quote(item.bucket)}/o/{quote(item.name, safe='')}"
        resource: dict[str, object] = {
            "kind": "storage#object",
            "id": f"{item.bucket}/{item.name}/{item.generation}",
            "selfLink": f"{self.url}{path}",
            "mediaLink": f"{self.url}/download{path}?generation={item.generation}&alt=media",
            "name": item.name,
            "bucket": item.bucket,
            "generation": str(item.generation),
            "metageneration": str(METAGENERATION),
            "storageClass": "STANDARD",
            "size": str(item.content.size),
            "etag": item.etag,
            "timeCreated": moment(item.generation),
            "updated": moment(item.generation),
        }
        if item.components:
            resource["componentCount"] = item.components
        return resource | item.hashes | dict(item.properties)


def route(method: str, path: str) -> tuple[str, tuple[str, ...]]:
    for methods, pattern, operation in ROUTES:
        match = re.fullmatch(pattern, path)
        if match and re.fullmatch(methods, method):
            return operation, tuple(unquote(part) for part in match.groups())
    raise ApiError(501, "notImplemented", f"The fake server does not know {method} {path}: teach it, in api.py.")


def variant(operation: str, query: Mapping[str, str], headers: Mapping[str, str]) -> str:
    """The operation behind one path: metadata or media, begin or go on."""
    if operation == "get" and query.get("alt") == "media":
        return "download"
    if operation == "insert" and query.get("uploadType") == "resumable":
        return "resumable-start"
    if operation == "resumable-chunk" and headers.get("content-range", "").startswith("bytes */"):
        return "resumable-status"
    return operation


def read_body(operation: str, headers: Mapping[str, str], body: bytes) -> tuple[dict[str, Any], bytes]:
    """The object's metadata and its bytes."""
    kind = headers.get("content-type", "")
    if operation == "insert" and kind.startswith("multipart/") and body:
        return read_multipart(kind, body)
    if operation == "insert":
        return {"contentType": kind}, body
    if operation in ("resumable-start", "rewrite") and body:
        return json.loads(body), b""
    return {}, body


def read_multipart(kind: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    match = re.search(r'boundary="?([^";]+)"?', kind)
    if not match:
        raise ApiError(400, "badRequest", "Multipart request without a boundary.")
    boundary = b"--" + match[1].encode()
    # Searched from its two ends only: the media itself is never looked at, and is copied once.
    properties_at = body.index(b"\r\n\r\n") + 4
    media_head_at = body.index(b"\r\n" + boundary, properties_at)
    media_at = body.index(b"\r\n\r\n", media_head_at) + 4
    properties = json.loads(body[properties_at:media_head_at])
    content_type = re.search(rb"(?i)content-type: *(\S[^\r\n]*)", body[media_head_at:media_at])
    if content_type:
        properties.setdefault("contentType", content_type[1].decode())
    return properties, body[media_at : body.rindex(b"\r\n" + boundary + b"--")]


def take_chunk(session: Session, call: Call) -> int | None:
    """Takes the bytes not yet received; the upload's total size, None while the client does not say."""
    match = re.fullmatch(r"bytes (?:\*|(\d+)-(\d+))/(?:\*|(\d+))", call.headers.get("content-range", ""))
    total = int(match[3]) if match and match[3] else (len(call.body) if not call.headers.get("content-range") else None)
    start = int(match[1]) if match and match[1] else session.received if match else 0
    if start > session.received:
        message = f"the upload offset is {start} byte(s), which exceeds already uploaded size of {session.received}"
        raise ApiError(503, "backendError", f"Invalid request. According to the Content-Range header, {message}.")
    new = call.body[session.received - start :]
    if total != session.received + len(new) and len(new) % CHUNK:
        raise ApiError(400, "badRequest", f"A chunk that is not the last must be a multiple of {CHUNK} bytes.")
    session.chunks.append(new)
    session.received += len(new)
    return total


def byte_range(header: str, size: int) -> tuple[int, int]:
    """First byte and end (excluded); raises 416 where no byte is left."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header.strip())
    first, last = match.groups() if match else ("", "")
    start = int(first) if first else max(0, size - int(last or 0))
    end = min(size, int(last) + 1) if first and last else size
    if start >= end:
        raise ApiError(416, "requestedRangeNotSatisfiable", f"Request range not satisfiable: {header} of {size} bytes")
    return start, end


def hashes_of_header(header: str) -> dict[str, str]:
    pairs = (part.strip().partition("=") for part in header.split(",") if part)
    return {{"md5": "md5Hash"}.get(kind, kind): value for kind, _, value in pairs}


def page_token(after: str) -> str:
    """Never empty, not even before the first name."""
    return base64.urlsafe_b64encode(b"\n" + after.encode()).decode()


def name_of(token: str) -> str:
    return base64.urlsafe_b64decode(token)[1:].decode()


def require_no_key(item: StoredObject) -> None:
    """Refuse to read an object whose key only its owner has."""
    if "customerEncryption" in item.properties:
        reason = "resourceIsEncryptedWithCustomerEncryptionKey"
        raise ApiError(400, reason, "The target object is encrypted by a customer-supplied encryption key.")


def settable(metadata: Mapping[str, Any]) -> dict[str, object]:
    keys = ("contentType", "contentEncoding", "contentDisposition", "contentLanguage", "cacheControl", "metadata")
    return {key: metadata[key] for key in keys if metadata.get(key) is not None}


def moment(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def object_headers(item: StoredObject) -> list[tuple[str, str]]:
    hashes = [("x-goog-hash", f"{kind.removesuffix('Hash')}={value}") for kind, value in item.hashes.items()]
    encoding = str(item.properties.get("contentEncoding", ""))
    return [
        ("Content-Type", str(item.properties.get("contentType", "application/octet-stream"))),
        ("ETag", item.etag),
        ("x-goog-generation", str(item.generation)),
        ("x-goog-metageneration", str(METAGENERATION)),
        ("x-goog-stored-content-encoding", encoding or "identity"),
        *([("Content-Encoding", encoding)] if encoding else []),
        ("x-goog-stored-content-length", str(item.content.size)),
        *hashes,
    ]


def bucket_resource(bucket: Bucket) -> dict[str, object]:
    return {
        "kind": "storage#bucket",
        "id": bucket.name,
        "name": bucket.name,
        "metageneration": "1",
        "location": "US",
        "storageClass": "STANDARD",
        "billing": {"requesterPays": bucket.requester_pays},
    }


def denied(caller: str, bucket: Bucket, call: Call) -> str:
    permission = f"storage.{'buckets' if call.operation.startswith('bucket') else 'objects'}.{call.operation}"
    place = f"the Google Cloud Storage bucket {bucket.name}"
    return (
        f"{caller} does not have {permission} access to {place}. "
        f"Permission '{permission}' denied (or it may not exist)."
    )


def in_json(resource: Mapping[str, object], status: int = 200) -> Answer:
    body = json.dumps(resource).encode()
    return Answer(status, [("Content-Type", "application/json; charset=UTF-8")], Content(body), 0, len(body))


def refusal(error: ApiError, as_text: bool) -> Answer:
    """The answer to a call that failed: plain text for a refused download, otherwise JSON."""
    if error.status == 304:
        return Answer(304, [], Content(b""), 0, 0)
    if as_text:
        body = error.message.encode()
        return Answer(error.status, [("Content-Type", "text/html; charset=UTF-8")], Content(body), 0, len(body))
    detail = {"message": error.message, "domain": "global", "reason": error.reason}
    if error.status == 412:
        detail |= {"locationType": "header", "location": "If-Match"}
    return in_json({"error": {"code": error.status, "message": error.message, "errors": [detail]}}, error.status)
