"""Hooks of pytest, and fixtures that many tests use."""

import gc
import hashlib
import io
import os
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pipeline.config.allowed import open_unless_set
from pipeline.config.settings import Settings, settings_from
from standins.fake_gcs import FakeGcs
from tests.distribution import ByGroup, group_of, rank
from tests.failures_at_once import FailuresAtOnce
from tests.namespaces import disk_of

open_unless_set()  # As the command line does. Airflow and other processes of the tests inherit the environment.
MakeImages = Callable[[Mapping[str, int]], Path]


@pytest.hookimpl(trylast=True)  # after the reporter, which only the process has that distributes the tests
def pytest_configure(config: pytest.Config) -> None:
    """Print failures at once."""
    if reporter := config.pluginmanager.get_plugin("terminalreporter"):
        config.pluginmanager.register(FailuresAtOnce(reporter))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest groups first."""
    items.sort(key=lambda item: rank(group_of(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup | None:
    """Distribute tests by our groups if `--dist loadfile` is given."""
    return ByGroup(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip on CI into a failure. A skip would hide that nothing was tested."""
    report = yield
    if report.skipped and os.environ.get("CI"):
        _, _, reason = report.longrepr
        report.outcome, report.longrepr = "failed", f"{item.nodeid} may not be skipped on CI. {reason}"
    return report


def jpeg(seed: int, size: tuple[int, int] = (24, 16)) -> bytes:
    """Return a small RGB JPEG. Each seed gives a different picture."""
    colors = hashlib.blake2b(str(seed).encode(), digest_size=12).digest()
    picture = Image.frombytes("RGB", (2, 2), colors).resize(size, Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


@pytest.fixture
def make_images(tmp_path: Path) -> MakeImages:
    """Makes a source: `make_images({"cats": 3, "train/dogs": 2})` writes 3 and 2 JPEGs into two folders."""

    def make(folders: Mapping[str, int]) -> Path:
        source = tmp_path / "source"
        for name, count in folders.items():
            folder = source / name
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                (folder / f"{number:03d}.jpg").write_bytes(jpeg(1000 * hash_of(name) + number))
        return source

    return make


def hash_of(name: str) -> int:
    """Return a small number for a name. The number of `hash` would differ between processes."""
    return sum(name.encode())


@pytest.fixture
def settings(make_images: MakeImages, tmp_path: Path) -> Settings:
    """Settings of a source of 24 images in three classes, and an empty workspace."""
    source = make_images({"cats": 8, "dogs": 8, "eels": 8})
    places = {"source_uri": str(source), "workspace": str(tmp_path / "workspace")}
    return settings_from({**places, "dataset_name": "images"}).dated()


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGcs]:
    """A fake Cloud Storage with an empty bucket "bucket". Every client that is created afterwards connects to it."""
    # When the client retries a refused download, it leaves the first connection to the garbage collector.
    warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning)
    # Otherwise the client requests the bucket in a separate thread, which outlives the test.
    monkeypatch.setenv("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    gc.freeze()  # Otherwise each collection visits all objects of TensorFlow, for half a second per test.
    with FakeGcs() as server:
        server.create_bucket("bucket")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server
    gc.collect()  # Here the ResourceWarning is ignored. In a later test it would fail the test.
    gc.unfreeze()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    with disk_of("64k", tmp_path / "disk") as disk:
        yield disk
