"""The changes that a training under way offers, each with what the advice promises of it."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from pipeline.runs.files import OFFERS, read_or_empty
from pipeline.storage import Place, write_json


@dataclass(frozen=True)
class Offer:
    """A change that a training can make at its next epoch."""

    change: Mapping[str, Any]
    """Settings and their new values."""
    words: str
    """What it gains, and what it costs."""
    promised: tuple[float, ...]
    """How many times faster the training would be, with the ends of the interval."""


def save_offers(folder: Place, offers: Iterable[Offer]) -> None:
    """Write the offers of a training, in place of those before."""
    write_json(folder / OFFERS, {"offers": [asdict(offer) for offer in offers]})


def load_offers(folder: Place) -> list[Offer]:
    """Return the offers of a training; none if the file is missing, or another user of the folder damaged it."""
    try:
        return [
            Offer(dict(each["change"]), str(each["words"]), _promise_of(each["promised"]))
            for each in read_or_empty(folder / OFFERS)["offers"]
        ]
    except (KeyError, TypeError, ValueError, OverflowError):
        return []


def _promise_of(numbers: Iterable[Any]) -> tuple[float, ...]:
    """Return a promise. Raises ValueError if it is none, because its request would make an unreadable line."""
    promised = tuple(map(float, numbers))
    if len(promised) != 3 or not all(map(isfinite, promised)):
        raise ValueError(f"{promised} is no promise")
    return promised


def promised_of(folder: Place, field: str, value: Any) -> tuple[float, ...]:
    """Return what a training promises of a change of one setting; nothing if it does not offer it."""
    return next((offer.promised for offer in load_offers(folder) if dict(offer.change) == {field: value}), ())
