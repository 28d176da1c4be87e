"""The numbers of examples of datasets, for the trend of a dataset name."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.config.allowed import require_output
from pipeline.errors import TenfoldError
from pipeline.runs.files import read_optional
from pipeline.storage import BucketPath, Place

if TYPE_CHECKING:
    from pipeline.watch.questions import Questions


class Counts(NamedTuple):
    """Numbers of examples of a dataset."""

    examples: int
    rejected: int
    unit: str = "example"

    @property
    def words(self) -> str:
        """How many examples of the source are in the dataset."""
        listed = self.examples + self.rejected
        rejected = f"; {self.rejected:,} {'was' if self.rejected == 1 else 'were'} rejected" if self.rejected else ""
        source = f"{listed:,} {self.unit}{'' if listed == 1 else 's'} of the source"
        return f"The dataset has {self.examples:,} of the {source}{rejected}."


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
    unit = (content.get("quality") or {}).get("unit")
    return Counts(examples=examples, rejected=int(content["rejected"]["count"]), unit=str(unit or "example"))


def counts_in_time(datasets: Sequence[Place | None], questions: "Questions") -> list[Counts | None]:
    """Return the numbers of examples of datasets. They are missing if their bucket does not answer in time."""
    of_buckets: dict[str, list[Place | None]] = {}
    for place in dict.fromkeys(datasets):
        of_buckets.setdefault(place.bucket if isinstance(place, BucketPath) else "", []).append(place)
    local = of_buckets.pop("", [])
    found = dict(zip(local, counts_of(local), strict=True))
    for bucket, places in of_buckets.items():
        # A silent bucket leaves out only its own numbers.
        with suppress(TenfoldError):
            counts = questions.ask(bucket, ("counts", tuple(places)), partial(counts_of, places))
            found |= dict(zip(places, counts, strict=True))
    return [found.get(place) for place in datasets]
