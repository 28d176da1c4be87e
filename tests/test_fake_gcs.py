"""The fake Cloud Storage, driven by the real client."""

import io
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from urllib.request import urlopen

import google_crc32c
import pytest

from tests.fake_gcs import FakeGcs

with warnings.catch_warnings():
    # The client asks for grpcio-status when it is first imported, and needs it for gRPC alone.
    warnings.simplefilter("ignore", ImportWarning)
    import requests
    from google.api_core import exceptions
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage
    from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
    from google.cloud.storage.retry import DEFAULT_RETRY

CHUNK = 256 * 1024
AWKWARD = [
    "grüße/菊.jpg",
    "a#b?c%20d%2F.jpg",
    "two\nlines\r",
    "a//b/",
    " space + plus&=",
    "x" * 900,
    "//",
    "%",
    "a/../b",
]
QUICK = DEFAULT_RETRY.with_delay(initial=0.01, maximum=0.02).with_timeout(5)


@pytest.fixture
def client(gcs: FakeGcs) -> Iterator[storage.Client]:
    with storage.Client(credentials=AnonymousCredentials(), project="test") as client:
        yield client


@pytest.fixture
def bucket(client: storage.Client) -> storage.Bucket:
    return client.bucket("bucket")


@pytest.mark.parametrize("name", AWKWARD)
def test_an_object_comes_back_under_any_name(gcs: FakeGcs, bucket: storage.Bucket, name: str):
    bucket.blob(name).upload_from_string(b"content")
    assert gcs.names("bucket") == [blob.name for blob in bucket.list_blobs()] == [name]
    assert bucket.get_blob(name).download_as_bytes() == gcs.content("bucket", name) == b"content"
    bucket.blob(name).delete()
    assert gcs.names("bucket") == []


def test_what_the_client_learns_of_an_object(gcs: FakeGcs, bucket: storage.Bucket):
    blob = bucket.blob("a/b.txt")
    blob.metadata = {"made": "by hand"}
    blob.upload_from_string("hello", content_type="text/plain")
    read = bucket.get_blob("a/b.txt")
    assert (read.size, read.content_type, read.metadata) == (5, "text/plain", {"made": "by hand"})
    assert (read.crc32c, read.md5_hash) == ("mnG7TA==", "XUFAKrxLKna5cZ2REBfFkg==")
    assert (read.generation, read.metageneration) == (gcs.generation("bucket", "a/b.txt"), 1)
    assert read.time_created == read.updated
    assert read.etag


def test_a_bucket_is_made_once_and_found(client: storage.Client):
    client.create_bucket("new", project="test")
    assert client.get_bucket("new").name == "new"
    with pytest.raises(exceptions.NotFound):
        client.get_bucket("unknown")
    with pytest.raises(exceptions.NotFound):
        client.bucket("unknown").blob("a").upload_from_string(b"")
    with pytest.raises(exceptions.Conflict):
        client.create_bucket("new", project="test")
