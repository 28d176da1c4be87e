"""Buckets and objects as Cloud Storage keeps them: generations, preconditions, checksums, pages of names."""

import base64
import hashlib
import socket
import threading
import time
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import google_crc32c

Access = Literal["public", "private", "forbidden"]

BLOCK = 1 << 20
MAX_PAGE = 1000
MAX_NAME_BYTES = 1024
METAGENERATION = 1
"""Of every object, because no request changes the metadata of an object."""


class ApiError(Exception):
    """An answer other than success: HTTP status, reason as the JSON API spells it, message for a person."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


class Content:
    """The bytes of an object: in memory, or in a file that is read only on request."""

    def __init__(self, source: bytes | Path) -> None:
        self.source = source
        self.size = len(source) if isinstance(source, bytes) else source.stat().st_size

    def read(self, start: int, end: int) -> bytes:
        if isinstance(self.source, bytes):
            return self.source[start:end]
        with self.source.open("rb") as file:
            file.seek(start)
            return file.read(end - start)

    def send(self, connection: socket.socket, start: int, end: int) -> None:
        if isinstance(self.source, bytes):
            connection.sendall(memoryview(self.source)[start:end])
        elif start < end:
            with self.source.open("rb") as file:
                connection.sendfile(file, start, end - start)

    def blocks(self) -> Iterator[bytes]:
        return (self.read(start, start + BLOCK) for start in range(0, self.size, BLOCK))

    @cached_property
    def crc32c(self) -> str:
        # Block by block, because one call over all of it would keep every other thread waiting.
        checksum = google_crc32c.Checksum()
        for block in self.blocks():
            checksum.update(block)
        return base64.b64encode(checksum.digest()).decode()

    @cached_property
    def md5(self) -> str:
        digest = hashlib.md5(usedforsecurity=False)
        for block in self.blocks():
            digest.update(block)
        return base64.b64encode(digest.digest()).decode()


@dataclass(frozen=True)
class StoredObject:
    """One generation of one object."""

    bucket: str
    name: str
    content: Content
    generation: int
    properties: Mapping[str, object]  # what the client may set: contentType, metadata, cacheControl, ...
    components: int = 0  # how many objects it was composed of; 0: it was uploaded

    @property
    def etag(self) -> str:
        return base64.b64encode(f"{self.generation}/{METAGENERATION}".encode()).decode()

    @property
    def hashes(self) -> dict[str, str]:
        """A composed object has no MD5, and one with a key of the customer's own neither of both."""
        if "customerEncryption" in self.properties:
            return {}
        crc32c = {"crc32c": self.content.crc32c}
        return crc32c if self.components else crc32c | {"md5Hash": self.content.md5}


@dataclass(frozen=True)
class Preconditions:
    """What must hold of the live object; a missing object counts as generation 0."""

    generation: int | None = None
    generation_not: int | None = None
    metageneration: int | None = None
    metageneration_not: int | None = None

    @classmethod
    def of(cls, query: Mapping[str, str], prefix: str = "if") -> "Preconditions":
        def number(key: str) -> int | None:
            return int(query[prefix + key]) if prefix + key in query else None

        return cls(
            number("GenerationMatch"),
            number("GenerationNotMatch"),
            number("MetagenerationMatch"),
            number("MetagenerationNotMatch"),
        )

    def check(self, live: StoredObject | None, reading: bool = False) -> None:
        """Raises 412, or 304 where a reader asks for anything but what it has."""
        generation, metageneration = (live.generation, METAGENERATION) if live else (0, 0)
        if self.generation not in (None, generation) or self.metageneration not in (None, metageneration):
            raise failed_precondition()
        if generation == self.generation_not or (live and metageneration == self.metageneration_not):
            raise ApiError(304, "notModified", "") if reading else failed_precondition()


ALWAYS = Preconditions()


@dataclass(frozen=True)
class Page:
    items: list[StoredObject]
    prefixes: list[str]
    last: str | None  # name or prefix after which the next page begins; None: there is none


@dataclass
class Bucket:
    """The live objects of one bucket. Every change is one step under one lock."""

    name: str
    access: Access = "public"
    requester_pays: bool = False
    objects: dict[str, StoredObject] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)  # sorted; by code point, which is the order of UTF-8 bytes
    lock: threading.RLock = field(default_factory=threading.RLock)
    last_generation: int = 0
    creations: int = 0  # how often an object was made or replaced

    def find(
        self, name: str, generation: int | None = None, conditions: Preconditions = ALWAYS, reading: bool = False
    ) -> StoredObject:
        """The live object, if it is the requested generation; raises 404, 412, 304."""
        with self.lock:
            live = self.objects.get(name)
            if live is None or generation not in (None, live.generation):
                raise ApiError(404, "notFound", f"No such object: {self.name}/{name}")
            conditions.check(live, reading)
            return live

    def create(
        self,
        name: str,
        content: Content,
        properties: Mapping[str, object],
        conditions: Preconditions = ALWAYS,
        components: int = 0,
    ) -> StoredObject:
        """A new live generation; of racing creations with generation 0 exactly one wins."""
        check_name(name)
        # Hashed before the lock is taken: others need not wait for it.
        _ = content.crc32c if components else (content.crc32c, content.md5)
        with self.lock:
            conditions.check(self.objects.get(name))
            created = self._created(name, content, properties, components)
            if name not in self.objects:
                insort(self.names, name)
            self.objects[name] = created
            return created

    def adopt(self, name: str, content: Content) -> StoredObject:
        """Like `create`, but the content is hashed on the first request, and stays where it is."""
        with self.lock:
            if name not in self.objects:
                insort(self.names, name)
            self.objects[name] = self._created(name, content, {}, 0)
            return self.objects[name]

    def delete(self, name: str, generation: int | None, conditions: Preconditions) -> None:
        with self.lock:
            self.find(name, generation, conditions)
            del self.objects[name]
            del self.names[bisect_left(self.names, name)]

    def page(self, prefix: str, delimiter: str, start: str, end: str, after: str, limit: int) -> Page:
        """Up to `limit` names and prefixes from `start` (included), behind `after`, before `end`."""
        found: list[str | StoredObject] = []
        with self.lock:
            for entry in self._entries(prefix, delimiter, start, end, after):
                if len(found) == min(limit, MAX_PAGE):
                    last = found[-1]
                    return page_of(found, last if isinstance(last, str) else last.name)
                found.append(entry)
        return page_of(found, None)

    def _entries(self, prefix: str, delimiter: str, start: str, end: str, after: str) -> Iterator[str | StoredObject]:
        folder = after if delimiter and after.endswith(delimiter) else None
        for index in range(bisect_left(self.names, max(prefix, start, after)), len(self.names)):
            name = self.names[index]
            if not name.startswith(prefix) or (end and name >= end):
                return
            if name == after or (folder and name.startswith(folder)):
                continue
            cut = name.find(delimiter, len(prefix)) if delimiter else -1
            folder = name[: cut + len(delimiter)] if cut >= 0 else None
            yield folder or self.objects[name]

    def _created(self, name: str, content: Content, properties: Mapping[str, object], components: int) -> StoredObject:
        self.creations += 1
        self.last_generation = max(self.last_generation + 1, time.time_ns() // 1000)
        return StoredObject(self.name, name, content, self.last_generation, properties, components)


def page_of(found: list[str | StoredObject], last: str | None) -> Page:
    return Page([e for e in found if not isinstance(e, str)], [e for e in found if isinstance(e, str)], last)


def failed_precondition() -> ApiError:
    return ApiError(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")


def check_name(name: str) -> None:
    length = len(name.encode())
    if not 1 <= length <= MAX_NAME_BYTES:
        raise ApiError(400, "invalid", f"The maximum object length is 1024 characters, but got a name with {length}.")


def check_hashes(content: Content, expected: Mapping[str, str]) -> None:
    """Refuses bytes that are not those the client meant to send. `expected`: "crc32c", "md5Hash" -> base64."""
    if expected.get("crc32c") not in (None, content.crc32c):
        raise ApiError(
            400,
            "invalid",
            f'Provided CRC32C "{expected["crc32c"]}" doesn\'t match calculated CRC32C "{content.crc32c}".',
        )
    if expected.get("md5Hash") not in (None, content.md5):
        raise ApiError(
            400,
            "invalid",
            f'Provided MD5 hash "{expected["md5Hash"]}" doesn\'t match calculated MD5 hash "{content.md5}".',
        )
