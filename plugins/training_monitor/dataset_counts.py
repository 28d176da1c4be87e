"""The numbers of examples of datasets, for the trend of a dataset name."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from pipeline.config.allowed import require_output
from pipeline.errors import TenfoldError
from pipeline.runs.files import read_optional
from pipeline.storage import Place


class Counts(NamedTuple):
    """Numbers of examples of a dataset."""

    examples: int
    rejected: int


def counts_of(datasets: Iterable[Place | None]) -> list[Counts | None]:
    """Return the numbers of examples of datasets; None of a dataset that cannot be read."""
    return [None if place is None else _counts(place) for place in datasets]


def _counts(dataset: Place) -> Counts | None:
    try:
        return _read_counts(dataset)
    # ValueError, KeyError, TypeError and AttributeError: somebody changed the file.
    except (TenfoldError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


@lru_cache(maxsize=2000)
def _read_counts(dataset: Place) -> Counts:
    """Return the numbers of examples of a dataset. It never changes."""
    from pipeline.dataset.manifest import COMMIT

    require_output(dataset / COMMIT)
    content: Mapping[str, Any] = read_optional(dataset / COMMIT)
    examples = sum(int(split["examples"]) for split in content["splits"].values())
    return Counts(examples, int(content["rejected"]["count"]))
