"""The words that name a split: in lists, in columns of tables, and as names of folders and files."""

import re
from collections.abc import Mapping
from typing import Literal

Split = Literal["train", "validation", "test"]

_SPLITS: Mapping[str, Split] = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "eval": "validation",
    "evaluation": "validation",
    "test": "test",
    "testing": "test",
}
_PREFIX = re.compile(r"split[-=]")
"""TFX writes the folders Split-train/ and Split-eval/. Engines write folders such as split=train/."""


def split_of_word(word: str) -> Split | None:
    """Return the split that a word names, in any case and with blanks around it; None if it names none.

    For example, `val`, ` Dev ` and `Split-eval` name the validation split.
    """
    return _SPLITS.get(_PREFIX.sub("", word.strip().lower(), count=1))


def known_words() -> str:
    """Return the words that name a split, for an error message."""
    words = {split: [word for word, named in _SPLITS.items() if named == split] for split in _SPLITS.values()}
    return ", ".join(f"{split} (also {', '.join(word for word in of if word != split)})" for split, of in words.items())
