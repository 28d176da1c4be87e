"""The splits that a column of a table states, by the words that `pipeline/sources/split_names.py` knows."""

from collections.abc import Iterable

import pyarrow as pa
from pyarrow import compute

from pipeline.errors import SourceError
from pipeline.sources.split_names import known_words, split_of_word
from pipeline.system.wording import shortened
from pipeline.tables.source import RawBatch
from pipeline.tables.values import is_list

_MAX_SHOWN = 80
"""An error shows at most this many characters of a value."""


def require_splits(raw: RawBatch, name: str) -> None:
    """Raise SourceError if a value of the column `name` is not the word of a split. An empty value is none."""
    column = raw.batch.column(name)
    if is_list(column.type):  # It is refused by its type.
        return
    texts = compute.cast(column, pa.string())
    known = _splits_of(texts.drop_null().unique().to_pylist())
    if unknown := next((word for word, split in known.items() if split is None), ""):
        row = compute.index(texts, unknown).as_py()
        raise SourceError(
            f"{raw.place_of(row)} has {shortened(unknown, _MAX_SHOWN)!r} in the column {name!r} (split_column), which "
            f"is no split: write {known_words()}, or leave the field empty"
        )


def splits_of(texts: Iterable[str]) -> list[str]:
    """Return the split that each text of a column names; empty if the text is empty."""
    listed = list(texts)
    known = _splits_of(set(listed))
    return [known[text] or "" for text in listed]


def _splits_of(words: Iterable[str]) -> dict[str, str | None]:
    """Return the split of each word: empty for a word without characters, None for an unknown one."""
    return {word: split_of_word(word) if word.strip() else "" for word in words}
