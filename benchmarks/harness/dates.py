"""Photographs of many dates, of which some are bad, drawn for a benchmark."""

import io
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from pipeline.sources.samples import draw_sample

CLASSES = ("circle", "square")
MAX_BAD, MAX_CORRECTED = 10, 10
MIN_DATES = MAX_CORRECTED + 5
"""The dates that are corrected later, one after them, and a bad one of each kind."""


@dataclass(frozen=True)
class Dates:
    """Days that follow one another, each with a folder of photographs."""

    days: list[date]
    bad: Mapping[date, str]
    """What is wrong with the bad dates: a name of BAD."""

    @property
    def good(self) -> list[date]:
        """The days that become a dataset, the oldest first."""
        return [day for day in self.days if day not in self.bad]

    @property
    def corrected(self) -> list[date]:
        """The days that get another photograph later. They follow one another, and none of them is bad."""
        return self.days[-MAX_CORRECTED - 1 : -1]


def plan_dates(first: date, count: int) -> Dates:
    """Return `count` dates. Bad ones are spread over all but the last dates."""
    days = [first + timedelta(days=number) for number in range(count)]
    room = count - MAX_CORRECTED - 1
    bad = min(MAX_BAD, room, max(len(BAD), count // 10))
    names = list(BAD)
    return Dates(days, {days[number * room // bad]: names[number % len(names)] for number in range(bad)})


def draw_dates(source: Path, dates: Dates, images: int) -> None:
    """Draw the photographs of each date, in a folder with its name. No two dates have an equal one."""
    for day in dates.days:
        folder = source / day.isoformat()
        folder.mkdir(parents=True)
        (BAD[dates.bad[day]] if day in dates.bad else _good)(folder, images)


def draw_another(source: Path, day: date, number: int) -> None:
    """Add a photograph to a date."""
    _draw(source / day.isoformat(), CLASSES[0], number)


def _good(folder: Path, images: int) -> None:
    for number in range(images):
        _draw(folder, CLASSES[number % len(CLASSES)], number)


def _one_class(folder: Path, images: int) -> None:
    for number in range(images):
        _draw(folder, CLASSES[0], number)


def _broken(folder: Path, images: int) -> None:
    for number in range(images):
        path = _path(folder, CLASSES[number % len(CLASSES)], number)
        path.write_bytes(random.Random(f"{folder.name}/{number}").randbytes(2000))


def _empty(folder: Path, images: int) -> None:
    """Leave the folder as it is."""


def _without_label(folder: Path, images: int) -> None:
    """Write a Parquet file of photographs, which lacks the column of their labels."""
    contents = [_photograph(folder, CLASSES[number % len(CLASSES)], number) for number in range(images)]
    parquet.write_table(pa.table({"image": contents}), folder / "photographs.parquet")


BAD: Mapping[str, Callable[[Path, int], None]] = {
    "empty folder": _empty,
    "broken images": _broken,
    "one class": _one_class,
    "missing column": _without_label,
}
"""The kinds of bad dates."""


def _draw(folder: Path, name: str, number: int) -> None:
    _path(folder, name, number).write_bytes(_photograph(folder, name, number))


def _photograph(folder: Path, name: str, number: int) -> bytes:
    content = io.BytesIO()
    draw_sample(name, random.Random(f"{folder.name}/{number}")).save(content, "jpeg", quality=90)
    return content.getvalue()


def _path(folder: Path, name: str, number: int) -> Path:
    path = folder / name / f"{number:04}.jpg"
    path.parent.mkdir(exist_ok=True)
    return path
