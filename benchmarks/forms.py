"""Many small images from listing to commit, in each form that a source can have: files, Parquet, tar and zip.

    make bench-forms
    python -m benchmarks.forms [--images N] [--forms FORM ...] [--rounds N] [--beside CHECKOUT] [--peer] [--cold]
                               [--json FILE]

Each round builds a dataset with `python -m pipeline build`, with `check: header`, from each form in alternating order,
in a process of its own. `--beside` builds from files with the code of another checkout, too, such as the one before a
change, and `--peer` writes the same files with TFDS. With `--cold`, nothing of the images is in memory when a build
begins, as in the first build of a large collection. The memory is that of the largest process. The images are drawn
once, have 40 x 40 pixels and 1,000 classes, and stay in .bench/forms.
"""

import argparse
import io
import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

from benchmarks.harness.machine import (
    HOME,
    PEERS_PYTHON,
    OtherLoad,
    job_file,
    logs,
    machine_line,
    measure_sections,
    new_folder,
    say,
)
from benchmarks.harness.rounds import ENVIRONMENT, ROOT, turned
from benchmarks.harness.usage import Usage, usage_of

IMAGES, CLASSES, DRAWN, PIXELS = 100_000, 1000, 500, 40
FILE_ROWS = 10_000
"""Images in each container."""
FILES = "files"
SHARDS = 10


@dataclass(frozen=True)
class Work:
    """One build: its title, the folder of the code, its command, and the folder that it makes."""

    title: str
    code: Path
    command: Sequence[str]
    makes: Path


def main() -> None:
    """Measure, and print Markdown."""
    options = parse(sys.argv[1:])
    measure_sections([machine_line("pyarrow")], {"forms": measure}, options)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forms", description="Forms of many small images.")
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--forms", nargs="+", default=FORMS, choices=FORMS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=Path, help="folder of another checkout, such as the one before a change")
    parser.add_argument("--peer", action="store_true", help="also write the files with TFDS, in .bench/peers")
    parser.add_argument("--cold", action="store_true", help="empty the page cache before each build, as root")
    parser.add_argument("--json", type=Path, help="file for every figure")
    options = parser.parse_args(arguments)
    if options.cold and os.geteuid() != 0:
        parser.error("--cold empties the page cache, which only root may do: run it as root, or leave --cold out")
    return options


def measure(options: argparse.Namespace) -> Mapping[str, list[dict[str, float]]]:
    """Build from each form in alternating rounds, and print a table."""
    works = [build_of(form, form, ROOT, source(form, options.images)) for form in options.forms]
    if options.beside:
        title = f"{FILES}, {options.beside.name}"
        works.append(build_of(title, FILES, options.beside.resolve(), source(FILES, options.images)))
    if options.peer:
        works.append(peer_of(source(FILES, options.images)))
    found: dict[str, list[Usage]] = {work.title: [] for work in works}
    with OtherLoad() as load:
        for number in range(options.rounds):
            for work in turned(works, number):
                if options.cold:
                    empty_page_cache()
                found[work.title].append(measured(work))
                say(f"round {number + 1}: {work.title}: {found[work.title][-1]}")
    print("", load.sentence(), "", *table(options.images, found), sep="\n")
    return {title: [vars(each) for each in rounds] for title, rounds in found.items()}


def table(images: int, found: Mapping[str, Sequence[Usage]]) -> Iterator[str]:
    """Yield a table in Markdown. The ratios are those of each round."""
    first = next(iter(found))
    head = (
        f"{images:,} images of {PIXELS} pixels",
        "s",
        "images/s",
        f"{first} by this",
        "CPU, s",
        "largest process, MB",
    )
    yield f"| {' | '.join(head)} |"
    yield "|---" * 6 + "|"
    for title, rounds in found.items():
        seconds = median(each.seconds for each in rounds)
        ratios = [one.seconds / each.seconds for one, each in zip(found[first], rounds, strict=True)]
        share = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        cpu, peak = median(each.cpu_s for each in rounds), max(each.peak_mb for each in rounds)
        yield f"| {title} | {seconds:.1f} | {images / seconds:,.0f} | {share} | {cpu:.1f} | {peak:.0f} |"


def build_of(title: str, form: str, code: Path, place: Path) -> Work:
    """Return the build of a form with the code of a checkout."""
    workspace = new_folder("workspace")
    values = {"source_uri": place, "workspace": workspace, "check": "header", "dataset_name": form}
    settings = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    return Work(title, code, [sys.executable, "-m", "pipeline", "build", "--json", *settings], workspace)


def peer_of(place: Path) -> Work:
    """Return the work of TFDS with the same files."""
    folder = new_folder("tfds")
    rows = [[str(path.relative_to(place)), int(path.parent.name), path.parent.name] for path in place.glob("*/*.jpg")]
    job = job_file({"root": str(place), "images": rows, "folder": str(folder), "shards": SHARDS})
    return Work("files, TFDS", ROOT, [str(PEERS_PYTHON), "-m", "benchmarks.harness.worker", "tfds", str(job)], folder)


def empty_page_cache() -> None:
    """Let the kernel forget all files, folders and their names."""
    os.sync()  # Only what is on the disk can be forgotten.
    Path("/proc/sys/vm/drop_caches").write_text("3")


def measured(work: Work) -> Usage:
    """Do a work once, and remove what it made."""
    work.makes.mkdir(parents=True)
    with open(logs() / "forms.log", "ab") as log:
        usage = usage_of(work.command, work.code, ENVIRONMENT | {"PYTHONPATH": str(work.code)}, log)
    shutil.rmtree(work.makes)
    if usage.exit_code:
        raise SystemExit(f"{work.title} failed: see {logs() / 'forms.log'}")
    return usage


# --- images -----------------------------------------------------------------------------------------------------------


def source(form: str, count: int) -> Path:
    """Return the images in a form, written once, whole or absent."""
    place = HOME / "forms" / f"{form}-{count}"
    if not place.exists():
        say(f"draw {count:,} images as {form}")
        part = place.with_name(f".{place.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        WRITERS[form](part, count)
        part.rename(place)
    return place


def images(count: int) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each image. All differ: a comment in each file holds its number."""
    drawn = [_drawn(number) for number in range(DRAWN)]
    for number in range(count):
        comment = f"{number:010}".encode()
        encoded = drawn[number % DRAWN]
        # A comment is a marker, its length with the two bytes of the length itself, and a text (ITU T.81, B.2.4.5).
        changed = encoded[:2] + b"\xff\xfe" + (2 + len(comment)).to_bytes(2, "big") + comment + encoded[2:]
        yield f"{number % CLASSES:04}/{number:07}.jpg", changed


def _drawn(seed: int) -> bytes:
    low = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(low).resize((PIXELS, PIXELS), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def _write_files(folder: Path, count: int) -> None:
    for number in range(min(count, CLASSES)):
        (folder / f"{number:04}").mkdir()
    for name, encoded in images(count):
        with open(f"{folder}/{name}", "wb") as file:
            file.write(encoded)


def _write_containers(folder: Path, count: int, suffix: str, write: Callable[..., None]) -> None:
    rows = images(count)
    for number in range(-(-count // FILE_ROWS)):
        write(folder / f"{number:05}.{suffix}", list(islice(rows, FILE_ROWS)))


def _write_parquet(path: Path, rows: Sequence[tuple[str, bytes]]) -> None:
    """Write a file as `datasets` does: a struct of bytes and path, and the class as a text."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = {
        "image": [{"bytes": encoded, "path": name} for name, encoded in rows],
        "label": [name.split("/")[0] for name, _ in rows],
    }
    parquet.write_table(pa.table(columns), path, row_group_size=1000)


def _write_tar(path: Path, rows: Sequence[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as file:
        for name, encoded in rows:
            member = tarfile.TarInfo(name)
            member.size = len(encoded)
            file.addfile(member, io.BytesIO(encoded))


def _write_zip(path: Path, rows: Sequence[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name, encoded in rows:
            file.writestr(name, encoded)


WRITERS: Mapping[str, Callable[[Path, int], None]] = {
    FILES: _write_files,
    "parquet": partial(_write_containers, suffix="parquet", write=_write_parquet),
    "tar": partial(_write_containers, suffix="tar", write=_write_tar),
    "zip": partial(_write_containers, suffix="zip", write=_write_zip),
}
FORMS = tuple(WRITERS)


if __name__ == "__main__":
    main()
