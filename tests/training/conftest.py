"""Fixtures of the training tests."""

from pathlib import Path

import pytest

from pipeline.config.settings import settings_from
from pipeline.stages.build import build
from tests.conftest import jpeg


@pytest.fixture(scope="package")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 40 images in two classes. Tests must not change it."""
    root = tmp_path_factory.mktemp("published")
    for number in range(40):
        path = root / "source" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    return Path(build(settings_from({"source_uri": str(root / "source"), "workspace": str(root / "w")}))["dataset"])
