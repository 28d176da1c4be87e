"""The datasets of `benchmarks.verdicts` and `benchmarks.advice`: drawn examples, built once by the pipeline itself."""

import io
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.harness.images import linked, make_source, photograph, tiny_image
from benchmarks.harness.rounds import ENVIRONMENT, ROOT
from benchmarks.harness.tables import LABEL, table_file

LARGE = (3000, 2000)


@dataclass(frozen=True)
class Data:
    """Images of one kind, and the settings of their preparation."""

    images: int
    image: Callable[[int], bytes]
    """Returns the bytes of the image with a number."""
    copies: int = 1
    """Number of copies of each image. An epoch must be much longer than the start of its validation."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    validation_fraction: float = 0.0
    """Share of the images for validation, of a source that is not split. 0: one image is for validation."""


@dataclass(frozen=True)
class Rows:
    """A table of random values."""

    rows: int
    columns: int
    validation_fraction: float = 0.1


def large_image(seed: int) -> bytes:
    """Return a drawn photograph of 6 megapixels as a JPEG of about 1 MB."""
    return _encoded(seed, LARGE, "JPEG")


def png(seed: int) -> bytes:
    """Return a drawn photograph as a PNG."""
    return _encoded(seed, (500, 375), "PNG")


def _encoded(seed: int, size: tuple[int, int], kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.open(io.BytesIO(photograph(seed))).resize(size).save(buffer, kind)
    return buffer.getvalue()


def _resized(side: int) -> Mapping[str, Any]:
    return {"prepare": "resize", "prepare_size": side}


_PIXELS = {"prepare": "raw", "prepare_size": 73}
DATA: Mapping[str, Data | Rows] = {
    "pixels": Data(3000, tiny_image, settings=_PIXELS),
    "photographs": Data(400, photograph, copies=4),
    "few photographs": Data(400, photograph, validation_fraction=0.2),
    # Each validation takes a second to start. With fewer images, that second would be a large share of an epoch.
    "many photographs": Data(400, photograph, copies=16),
    "small shards": Data(400, photograph, settings={"num_training_servers": 8}),
    # The first steps do not count for the verdict. With fewer shards, the bucket would be read by the time they end.
    "many shards": Data(400, photograph, copies=4, settings={"num_training_servers": 24}),
    "large pixels": Data(400, photograph, settings={"prepare": "raw", "prepare_size": 192, "num_training_servers": 8}),
    "many small photographs": Data(400, photograph, copies=16, settings={"prepare": "resize", "prepare_size": 73}),
    "prepared": Data(400, photograph, copies=8, settings={"prepare": "resize", "prepare_size": 256}),
    "many prepared": Data(400, photograph, copies=32, settings={"prepare": "resize", "prepare_size": 256}),
    "prepared pixels": Data(400, photograph, copies=8, settings={"prepare": "raw", "prepare_size": 256}),
    "large": Data(60, large_image, copies=12),
    "many large": Data(60, large_image, copies=36),
    "png": Data(200, png, copies=12),
    "halved": Data(600, tiny_image, settings=_PIXELS, validation_fraction=0.5),
    "tenth": Data(600, tiny_image, settings=_PIXELS, validation_fraction=0.1),
    # For `benchmarks.advice`: what a change makes of the datasets above.
    "few photographs, resized": Data(400, photograph, settings=_resized(73), validation_fraction=0.2),
    "photographs, resized": Data(400, photograph, copies=4, settings=_resized(73)),
    "photographs, pixels": Data(400, photograph, copies=4, settings=_PIXELS),
    "many photographs, pixels": Data(400, photograph, copies=16, settings=_PIXELS),
    "large, resized": Data(60, large_image, copies=12, settings=_resized(73)),
    "large, pixels": Data(60, large_image, copies=12, settings=_PIXELS),
    "many large, resized": Data(60, large_image, copies=36, settings=_resized(37)),
    "png, resized": Data(200, png, copies=12, settings=_resized(73)),
    # For `benchmarks.exhaustive`.
    "few photographs, pixels": Data(400, photograph, settings=_PIXELS, validation_fraction=0.2),
    "few photographs, tenth": Data(400, photograph, validation_fraction=0.1),
    "many large, pixels": Data(60, large_image, copies=36, settings={"prepare": "raw", "prepare_size": 37}),
    "small shards, pixels": Data(400, photograph, settings={**_PIXELS, "num_training_servers": 8}),
    "small shards, resized": Data(400, photograph, settings={**_resized(73), "num_training_servers": 8}),
    "large photographs": Data(400, photograph, copies=4, settings=_resized(256)),
    "prepared, pixels of 73": Data(400, photograph, copies=8, settings=_PIXELS),
    "many prepared, pixels of 73": Data(400, photograph, copies=32, settings=_PIXELS),
    "rows": Rows(200_000, 20),
    "wide rows": Rows(40_000, 300),
    "half of the rows": Rows(40_000, 20, validation_fraction=0.5),
    "tenth of the rows": Rows(40_000, 20, validation_fraction=0.1),
}


@cache
def built(name: str, folder: Path) -> Path:
    """Return the folder of a dataset below `folder`. Build the dataset if it does not exist."""
    data = DATA[name]
    own = {"workspace": str(folder / "workspace"), "dataset_name": name.replace(" ", "-").replace(",", "")}
    if isinstance(data, Rows):
        table = table_file(folder / "sources", data.rows, data.columns, "parquet")
        of_table = {"source_uri": table, "label_column": LABEL, "validation_fraction": data.validation_fraction}
        return Path(tenfold("build", {**own, **of_table, "example_kind": "table"})["dataset"])
    drawn = folder / "sources" / f"{data.image.__name__}-{data.images}"
    source = make_source(drawn, data.images, data.image)
    if data.copies > 1:
        source = linked(drawn.with_name(f"{drawn.name}-{data.copies}"), data.copies * data.images, source / "train")
    settings = {
        "source_uri": str(source / "train" if data.validation_fraction else source),
        **own,
        "check": "header",
        "on_leak": "continue",  # With copies, the validation image is in training, too.
        **({"validation_fraction": data.validation_fraction} if data.validation_fraction else {}),
        **data.settings,
    }
    return Path(tenfold("build", settings)["dataset"])


def command_of(command: str, settings: Mapping[str, Any]) -> list[str]:
    """Return a command line of Tenfold."""
    sets = (f"{name}={value}" for name, value in settings.items())
    options = (word for each in sets for word in ("--set", each))
    return [sys.executable, "-m", "pipeline", command, "--json", *options]


def tenfold(command: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run a command of Tenfold and return its result. Raises CalledProcessError."""
    run = partial(subprocess.run, cwd=ROOT, env=ENVIRONMENT, check=True, stdout=subprocess.PIPE)
    result: dict[str, Any] = json.loads(run(command_of(command, settings)).stdout.splitlines()[-1])
    return result
