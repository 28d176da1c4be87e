"""Fixtures of the training tests."""

from pathlib import Path

import pytest

from pipeline.config.settings import settings_from
from pipeline.stages.build import build
from tests.conftest import jpeg


@pytest.fixture(scope="package")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 40 images in two classes. Tests must not change it."""
    return published_in(tmp_path_factory.mktemp("published"), 40)


@pytest.fixture(scope="package")
def tested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 60 images in two classes, some of them for testing. Tests must not change it."""
    return published_in(tmp_path_factory.mktemp("tested"), 60, test_fraction=0.3)


def published_in(root: Path, images: int, **values: object) -> Path:
    """Publish a dataset of this many images in two classes, and return its folder."""
    for number in range(images):
        path = root / "source" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    places = {"source_uri": str(root / "source"), "workspace": str(root / "w")}
    return Path(build(settings_from({**places, **values}))["dataset"])
