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
_PREFIX = re.compile(r"split[-=]|partial-")
"""TFX writes the folders Split-train/ and Split-eval/. Engines write folders such as split=train/. The Hugging Face Hub
writes the first part of a large split as Parquet to partial-train/."""


def split_of_word(word: str) -> Split | None:
    """Return the split that a word names, in any case and with blanks around it; None if it names none.

    For example, `val`, ` Dev ` and `Split-eval` name the validation split.
    """
    return _SPLITS.get(_PREFIX.sub("", word.strip().lower(), count=1))


def split_of_path(key: str) -> str:
    """Return the split that a path names, by a folder or by one word in the name of the file; empty if it names none.

    For example, data/train/0.csv, Split-eval/0.csv, mnist_test.csv and flowers-1.0-train-3.tar state a split.
    """
    *folders, name = key.split("/")
    of_folders = [split for folder in folders if (split := split_of_word(folder))]
    words = re.split(r"[^a-z]+", name.lower())
    return next(iter(of_folders or [split for word in words if (split := split_of_word(word))]), "")


def known_words() -> str:
    """Return the words that name a split, for an error message."""
    words = {split: [word for word, named in _SPLITS.items() if named == split] for split in _SPLITS.values()}
    return ", ".join(f"{split} (also {', '.join(word for word in of if word != split)})" for split, of in words.items())
