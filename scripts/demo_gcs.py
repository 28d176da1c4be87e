"""The whole pipeline against a bucket, with no account: `make demo-gcs`.

A fake Google Cloud Storage runs on loopback (standins/fake_gcs). Images are uploaded to one bucket, the workspace is
another; training reads its shards through the local cache. The buckets live in memory, and are gone at the end.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pipeline.config.settings import settings_from
from pipeline.errors import TenfoldError
from pipeline.sources.samples import draw_samples
from pipeline.storage import copy_new, objects, write_whole
from pipeline.storage.bucket_path import BucketPath
from pipeline.system.parallel import ordered_map
from scripts.airflow.settings import layout_from
from standins.fake_gcs import FakeGcs

SOURCE = BucketPath("raw-images", "samples")
WORKSPACE = BucketPath("tenfold", "workspace")
UPLOADS = 16
"""Images that are uploaded at the same time."""


def main() -> int:
    """Carry out the demo; returns the exit code of the run."""
    parser = argparse.ArgumentParser(prog="python -m scripts.demo_gcs", description=__doc__)
    parser.add_argument(
        "--images", type=Path, help="folder of images with one sub-folder for each class (default: sample images)"
    )
    parser.add_argument("--params", default="", help="other settings of the run, as a JSON object")
    parser.add_argument(
        "--latency-ms", type=float, default=5, help="delay of each answer of the server, in ms (default: %(default)s)"
    )
    options = parser.parse_args()
    try:
        settings_from(json.loads(options.params or "{}"))
    except (ValueError, TenfoldError) as error:  # Refused before 900 images are uploaded.
        parser.error(str(error))
    with FakeGcs(latency_s=options.latency_ms / 1000) as server, tempfile.TemporaryDirectory() as folder:
        for place in (SOURCE, WORKSPACE):
            server.create_bucket(place.bucket)
        os.environ["STORAGE_EMULATOR_HOST"] = server.url
        images = options.images or Path(folder) / "samples"
        if not options.images:
            draw_samples(images)
        _upload(images)
        code = _run(Path(folder), options.params)
        print("\n".join(["", f"What is in {WORKSPACE} now:", *_listing(), "", *_kept_pages()]))
    return code


def _upload(images: Path) -> None:
    files = [path for path in sorted(images.rglob("*")) if path.is_file()]
    for _ in ordered_map(lambda path: copy_new(path, SOURCE / path.relative_to(images).as_posix()), files, UPLOADS):
        pass
    print(f"{len(files)} images uploaded to {SOURCE}")


def _run(folder: Path, params: str) -> int:
    settings = {"workspace": str(WORKSPACE), "local_folder": str(folder / "local"), "dataset_name": "samples"}
    conf = json.dumps({**settings, **json.loads(params or "{}")})
    # A separate home, for an Airflow of its own: one that is running already does not know the address of the server.
    home = {"TENFOLD_HOME": str(layout_from(os.environ).home / "demo-gcs")}
    command = [sys.executable, "-m", "scripts.airflow", "run", "--source", str(SOURCE), "--params", conf]
    return subprocess.run(command, env={**os.environ, **home}, check=False).returncode


def _kept_pages() -> Iterator[str]:
    """Copy the pages, because the buckets are removed, and yield a line for each."""
    for key, _ in objects(WORKSPACE):
        if key.endswith(".html"):
            page = layout_from(os.environ).workspace / "demo-gcs" / key.rpartition("/")[2]
            with write_whole(page) as file:
                file.write((WORKSPACE / key).read_bytes())
            yield f"Kept: {page}"


def _listing() -> list[str]:
    """Return the objects and bytes of each folder, two levels deep."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for key, stat in objects(WORKSPACE):
        folder = "/".join(key.split("/")[:3])
        counts[folder] += 1
        sizes[folder] += stat.st_size
    return [f"  {folder:<60} {counts[folder]:>5} objects {sizes[folder] / 1e6:>8.1f} MB" for folder in sorted(counts)]


if __name__ == "__main__":
    sys.exit(main())
