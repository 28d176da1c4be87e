"""Ways to move objects, each as a user would write it from the documentation of what it uses.

A job says: `url` (of the server), `bucket`, `folder` (local; with the files to send, or empty for what comes), `names`
(below it and in the bucket alike), `rows` (what the bucket listed of them, a line each). Imports are inside, so that a
process pays for its own way alone.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.contenders import Job

WORKERS = 32
"""Requests at once, for clients that have such a setting."""
PROCESSES = 8
SHARDS_AT_ONCE = 4


def tenfold_read(job: Job) -> None:
    """Images into memory, as a task reads them that writes shards."""
    from pipeline.snapshot.raw_example import Origin, from_lines
    from pipeline.snapshot.raw_reader import RawReader

    with open(job["rows"], "rb") as lines:
        reader = RawReader(Origin(root=f"gs://{job['bucket']}", remote=True))
        count = sum(raw is not None for _, raw in reader.read_all(from_lines(lines)))  # the reader checks each
    if count != len(job["names"]):
        raise ValueError(f"{count} of {len(job['names'])} images came")


def tenfold_fetch(job: Job) -> None:
    """Images into the cache of the workspace, as the task `extract` brings them."""
    from pipeline.snapshot.raw_example import Origin, from_line
    from pipeline.snapshot.raw_reader import fetch_images

    origin = Origin(root=f"gs://{job['bucket']}", cache=job["folder"], remote=True)
    with open(job["rows"], "rb") as lines:
        fetch_images(map(from_line, lines), origin, count=len(job["names"]), total_bytes=0)


def tenfold_fetch_shards(job: Job) -> None:
    """Shards into files, each by several requests, as the cache for training brings them."""
    from pipeline.storage import BucketPath
    from pipeline.storage.gcs import client

    for name in job["names"]:
        with open(Path(job["folder"], name), "w+b") as file:
            client().fetch(BucketPath(job["bucket"], name), file)


def tenfold_upload(job: Job) -> None:
    """Upload files, create-only."""
    _tenfold_upload(job, WORKERS)


def tenfold_upload_shards(job: Job) -> None:
    """Upload as many at once as the task `upload` does."""
    from pipeline.sharding.publish import COPIERS

    _tenfold_upload(job, COPIERS)


def _tenfold_upload(job: Job, threads: int) -> None:
    from pipeline.storage import BucketPath, copy_new
    from pipeline.system.parallel import ordered_map

    def upload(name: str) -> None:
        copy_new(Path(job["folder"], name), BucketPath(job["bucket"], name))

    for _ in ordered_map(upload, job["names"], threads):
        pass


def loop_download(job: Job) -> None:
    """Google's client, one object after another."""
    bucket = _bucket(job)
    for name in job["names"]:
        bucket.blob(name).download_to_filename(f"{job['folder']}/{name}")


def loop_upload(job: Job) -> None:
    """Upload in the same way."""
    bucket = _bucket(job)
    for name in job["names"]:
        bucket.blob(name).upload_from_filename(f"{job['folder']}/{name}")


def manager_download(job: Job) -> None:
    """Google's transfer manager, threads or processes."""
    from google.cloud.storage import transfer_manager

    transfer_manager.download_many_to_path(
        _bucket(job), job["names"], job["folder"], raise_exception=True, **_workers_of(job, len(job["names"]))
    )


def manager_download_chunks(job: Job) -> None:
    """Download large objects: each in chunks of 32 MiB, some at once."""
    from google.cloud.storage import transfer_manager

    bucket = _bucket(job)
    for name in job["names"]:
        transfer_manager.download_chunks_concurrently(
            bucket.blob(name), f"{job['folder']}/{name}", **_workers_of(job, PROCESSES)
        )


def manager_upload(job: Job) -> None:
    """Upload in the same way."""
    from google.cloud.storage import transfer_manager

    transfer_manager.upload_many_from_filenames(
        _bucket(job), job["names"], job["folder"], raise_exception=True, **_workers_of(job, len(job["names"]))
    )


def gcsfs_download(job: Job) -> None:
    """gcsfs, many files at once."""
    remote, local = _both_ends(job)
    _gcsfs(job).get(remote, local)


def gcsfs_upload(job: Job) -> None:
    """Upload in the same way."""
    remote, local = _both_ends(job)
    _gcsfs(job).put(local, remote)


def curl_download(job: Job) -> None:
    """Measure what the server gives to a client that does nothing else: the limit."""
    target = "{url}/download/storage/v1/b/{bucket}/o/{name}?alt=media"
    _curl(job, (f'url = "{target}"\noutput = "{{file}}"'))


def curl_upload(job: Job) -> None:
    """Upload in the same way."""
    target = "{url}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
    _curl(job, (f'url = "{target}"\nrequest = POST\nupload-file = "{{file}}"\noutput = "/dev/null"'))


def _bucket(job: Job) -> Any:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.storage import Client
    from requests.adapters import HTTPAdapter

    client = Client(project="none", credentials=AnonymousCredentials())  # type: ignore[no-untyped-call]
    client._http.mount("http://", HTTPAdapter(pool_maxsize=WORKERS))  # its default is ten connections
    return client.bucket(job["bucket"])


def _workers_of(job: Job, limit: int) -> dict[str, Any]:
    kind = job["workers"]
    return {"worker_type": kind, "max_workers": min(limit, WORKERS if kind == "thread" else PROCESSES)}


def _gcsfs(job: Job) -> Any:
    # Else it asks for the kind of each bucket by gRPC, which no stand-in speaks, and waits 60 s for each file.
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    from gcsfs import GCSFileSystem

    class FileSystem(GCSFileSystem):
        """Ends the lines of a multipart head and puts chunks as the documentation has it: the server knows no other."""

        async def _call(self, method: str, path: str, *args: Any, data: Any = None, **more: Any) -> Any:
            if more.get("uploadType") == "multipart":
                data = data.replace(b"\n", b"\r\n", 7).removesuffix(b"\n--==0==--") + b"\r\n--==0==--"
            if "upload_id=" in path:
                method = "PUT"
            return await super()._call(method, path, *args, data=data, **more)

    return FileSystem(token="anon", endpoint_url=job["url"])


def _both_ends(job: Job) -> tuple[list[str], list[str]]:
    names = job["names"]
    return [f"{job['bucket']}/{name}" for name in names], [f"{job['folder']}/{name}" for name in names]


def _curl(job: Job, entry: str) -> None:
    files = {name: f"{job['folder']}/{name}" for name in job["names"]}
    entries = [entry.format(name=name.replace("/", "%2F"), file=file, **job) for name, file in files.items()]
    command = ["curl", "--no-progress-meter", "--fail", "--parallel", "--parallel-max", str(WORKERS), "--config", "-"]
    subprocess.run(command, input="\nnext\n".join(entries).encode(), check=True)


TRANSFERS = {
    way.__name__: way
    for way in (
        tenfold_read,
        tenfold_fetch,
        tenfold_fetch_shards,
        tenfold_upload,
        tenfold_upload_shards,
        loop_download,
        loop_upload,
        manager_download,
        manager_download_chunks,
        manager_upload,
        gcsfs_download,
        gcsfs_upload,
        curl_download,
        curl_upload,
    )
}
