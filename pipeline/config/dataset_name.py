"""The default dataset name of a source: the name of the folder that holds the images or the list of images."""

import re
import unicodedata

from pipeline.config.data_date import without_placeholders

LIST_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
"""Suffixes of lists of images, in lower case."""
_ARCHIVE = re.compile(r"(?<=[^/])\.(zip|tar(\.(gz|bz2|xz|zst))?|tgz)$", re.IGNORECASE)
"""The suffix of a container that is named after its content, such as `flowers.zip`."""
PATTERN = "[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
"""A dataset name matches this expression, because it becomes the name of a folder and of objects."""
RULE = "must have at most 100 letters, digits, dots, hyphens and underscores, and begin with a letter or digit"
"""What PATTERN demands, in words."""
_LENGTH = 100
"""A dataset name has at most this many characters, as in PATTERN."""
_FOREIGN = re.compile("[^A-Za-z0-9._-]+")
_NAMELESS = "images"
_TABLE = re.compile(
    r"(?<=[^/])\.(((csv|tsv|txt|jsonl|ndjson)(\.[0-9]+)?(\.(gz|bz2|zst|xz|zip))?)|parquet|pq|arrow|feather|ipc)$",
    re.IGNORECASE,
)
"""The suffix of a table in one file."""


def is_table_file(name: str) -> bool:
    """Return whether a file is a table by its name. Of TFRecord files, the name does not say what they hold."""
    return bool(_TABLE.search(name))


def name_of_table(source_uri: str) -> str:
    """Return the default dataset name of a table, such as "sales" for `/data/sales.csv.gz` and `/data/sales/{date}`."""
    return name_of_source(_TABLE.sub("", source_uri))


def name_of_source(source_uri: str) -> str:
    """Return the default name of a source, such as "flowers" for `/data/flowers/{date}` and `/data/flowers.zip`.

    Accents are removed from letters. A hyphen replaces characters that a name cannot hold. If no folder gives a name,
    the name is "images".
    """
    source_uri = _ARCHIVE.sub("", source_uri)
    parts = source_uri.partition("://")[2] or source_uri
    folders = [part for part in parts.split("/") if part]
    if folders and folders[-1].lower().endswith(LIST_SUFFIXES):
        folders.pop()
    for folder in reversed(folders):
        # NFKD divides a letter with an accent into both, and ASCII then drops the accent.
        plain = unicodedata.normalize("NFKD", without_placeholders(folder)).encode("ascii", "ignore").decode()
        if name := _FOREIGN.sub("-", plain).lstrip("._-")[:_LENGTH].rstrip("._-"):
            return name
    return _NAMELESS
