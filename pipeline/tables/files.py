"""Which files are a table, and what the names of files and folders say about the rows in them."""

import csv
import io
import os
import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple
from urllib.parse import unquote

from pipeline import storage
from pipeline.config.allowed import require_source
from pipeline.errors import SourceError
from pipeline.snapshot.skipped import NOT_A_TABLE
from pipeline.sources import Skipped
from pipeline.sources.compression import compression_of
from pipeline.sources.folder import HIDDEN, LEADS_OUTSIDE, NOT_BY_NAME, require_no_log, walk, why_no_image
from pipeline.sources.split_names import split_of_path, split_of_word
from pipeline.sources.suffixes import suffix_of
from pipeline.sources.text_delimiter import delimiter_of_text
from pipeline.storage import Place
from pipeline.system.os_errors import retried
from pipeline.system.parallel import ordered_map
from pipeline.system.wording import first_of
from pipeline.tables.tfrecords import COMPRESSED_SUFFIXES, starts_with_record

PARQUET, JSON_LINES, ARROW, RECORDS = ".parquet", ".jsonl", ".arrow", ".tfrecord"
TEXT_SUFFIX = ".txt"
"""The suffix of a file whose first lines decide whether it is a table."""
_CANONICAL = {".ndjson": JSON_LINES, ".pq": PARQUET, ".feather": ARROW, ".ipc": ARROW}
"""Suffixes with the same meaning as another one."""
_TEXT_NAME = re.compile(r"(\.(?:csv|tsv|txt|jsonl|ndjson))(\.[0-9]+)?(\.(gz|bz2|zst|xz|zip))?$")
_BINARY_NAME = re.compile(r"(\.(?:parquet|pq|arrow|feather|ipc))$")
_RECORDS_NAME = re.compile(r"\.tfrecords?(-[0-9]+-of-[0-9]+)?$")
"""Matches the lower-case name of a TFRecord file, without the suffix of its compression."""
_PART_NAME = re.compile(r"(^|/)(part-[^./]*|[^/]*-[0-9]+-of-[0-9]+)$")
"""Matches a name without suffix that may be that of a TFRecord file: part-r-00000, train-00000-of-00010."""
_KNOWN = (
    ".csv, .tsv, .txt or .jsonl (each also with .gz, .bz2, .zst, .xz or .zip), .parquet, .arrow, .feather or .tfrecord "
    "(also with .gz or .deflate), or TFRecord files named like part-r-00000 or train-00000-of-00010"
)
_SPREADSHEETS = (".xls", ".xlsx", ".xlsm", ".xlsb", ".ods", ".numbers")
_OF_OTHER_PROGRAMS = (".orc", ".avro", ".sas7bdat", ".xpt", ".sav", ".por", ".dta", ".rds", ".dbf", ".arff", ".mdb")
_UNREAD = frozenset({*_SPREADSHEETS, *_OF_OTHER_PROGRAMS})
"""Suffixes of tables that Tenfold does not read, in lower case. Without an error, their rows would be left out."""
_UNREAD_COMPRESSION = re.compile(
    r"\.(csv|tsv|txt|jsonl|ndjson)(\.[0-9]+)?\.(lz4|lzo|lzma|br|7z|sz|snappy|z|rar|tar(\.[a-z0-9]+)?|tgz)$"
    r"|\.(parquet|pq|arrow|feather|ipc)\.(gz|bz2|zst|xz|zip|lz4|lzo|lzma|br|7z|sz|snappy|z|rar|tar|tgz)$"
)
"""Matches the lower-case name of a table that must be decompressed first."""
_COMPRESSED_JSON_NAME = re.compile(r"\.json\.(gz|bz2|zst|xz|zip)$")
_JSON_ROWS = re.compile(rb"\s*(\[\s*\{|\{[^\n]*\}\s*\n\s*\{)")
"""Matches the start of a list of rows, or of JSON lines. Other JSON may describe the table beside it."""
_FORMAT_NAMES = {
    **dict.fromkeys((".csv", ".tsv", TEXT_SUFFIX), "CSV"),
    PARQUET: "Parquet",
    JSON_LINES: "JSON lines",
    ARROW: "Arrow",
}
"""The formats that a name shows. All other files of a table are TFRecord files."""
_MAX_SHOWN = 3
_NO_ROWS = "its first two lines are not rows of a table with several columns"
_PROBED_BYTES = 1 << 16, 1 << 20
"""The first two lines of a file are in this many bytes, or at least in that many."""
_READERS = 16
"""The first lines of this many files are read at once."""
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The name that Hive, Spark and others give to the folder of rows without a value."""


class TableFiles(NamedTuple):
    """The files of a table, sorted by path, and the files of its folder that do not belong to it."""

    files: list[Place]
    skipped: list[Skipped]


class FileFacts(NamedTuple):
    """What the path of a file, relative to the table, says about its rows."""

    split: str
    """Empty if the files of the table do not state their splits."""
    values: Mapping[str, str | None]
    """The value of each column that the names of folders state, such as `country=de/`. None is a missing value."""


def table_files(place: Place) -> list[Place]:
    """Return the files of a table. Raises what `find_files` raises."""
    return find_files(place).files


def find_files(place: Place) -> TableFiles:
    """Return the files of a table: `place` itself, or all files below it.

    Names that begin with a dot or an underscore (such as `_SUCCESS`) and `.crc` files are skipped, and so are the
    folders with such names. A file such as `part-r-00000`, whose name has no suffix of a format, is one of a table if
    it, or another file, is a TFRecord file. A `.txt` file is one if its first lines are rows, with the columns of the
    other files.

    Raises:
        SourceError: There is no file of a table, there are files of two formats (CSV and TSV count as one), or a file
            is a table in a format that is not read.
    """
    if retried(place.is_file, place):
        require_source(place)
        _require_readable_format(place)
        if suffix_of(place.name) == ".json":
            raise _no_json_lines(place)
        if format_of(place.name) == TEXT_SUFFIX and not _first_lines_of_rows(place):
            raise SourceError(f"{place} is not a table: {_NO_ROWS}")
        if not format_of(place.name) and not _is_record_file(place):
            raise SourceError(f"{place} is not a table: use a file whose name ends in {_KNOWN}")
        return TableFiles([place], [])
    if not retried(place.is_dir, place):
        raise SourceError(f"{place} does not exist: name a table file, or a folder of them")
    keys, skipped = _candidates(place)
    parts = [key for key in keys if _is_part(key)]
    # An empty or damaged part has no checksum to show its format, but belongs to the same table as the other parts.
    has_records = any(format_of(key) == RECORDS for key in keys) or any(_is_record_file(place / key) for key in parts)
    not_rows = _texts_without_rows(place, keys, has_records=has_records)
    tables = []
    for key in keys:
        if key in not_rows:
            skipped.append(Skipped(key, f"not a table: {not_rows[key]}"))
        elif format_of(key) or (has_records and _is_part(key)):
            tables.append(key)
        else:
            skipped.append(Skipped(key, NOT_A_TABLE))
    if not tables:
        found = f"{place / keys[0]} is not one" if keys else "the folder is empty"
        raise SourceError(f"{place} has no table file ({found}): add files whose names end in {_KNOWN}")
    by_format = {_FORMAT_NAMES.get(format_of(key), "TFRecord"): key for key in tables}
    if len(by_format) > 1:
        (one, first), (other, second), *_ = sorted(by_format.items(), reverse=True)
        raise SourceError(
            f"{place} has {one} files ({first}) and {other} files ({second}): keep one of the formats, or name one file"
        )
    return TableFiles([place / key for key in tables], skipped)


def _candidates(place: Place) -> tuple[list[str], list[Skipped]]:
    """Return the keys of the files in a folder that may be tables, and the others.

    Raises:
        SourceError: A table file or a linked folder cannot be read, or is a table in a format that is not read.
    """
    keys: list[str] = []
    skipped: list[Skipped] = []
    for item in walk(place):
        key = item.key
        require_no_log(place, key)
        if _is_ignored(key):
            skipped.append(Skipped(key, HIDDEN))
            continue
        _require_readable_format(place / key)
        # A part without a suffix is always skipped as an image.
        if isinstance(item, Skipped) and item.reason != NOT_BY_NAME:
            if format_of(key) or _is_part(key) or item.reason == LEADS_OUTSIDE:
                raise SourceError(f"{place / key} cannot be read ({item.reason}): replace the file, or remove it")
            skipped.append(item)
            continue
        # Programs write JSON about a table, such as dataset_info.json, into its folder.
        if key.lower().endswith(".json") and _JSON_ROWS.match(_first_bytes(place / key)):
            raise _no_json_lines(place / key)
        keys.append(key)
    return keys, skipped


def _is_ignored(key: str) -> bool:
    is_of_program = any(part.startswith((".", "_", "~$")) for part in key.split("/"))
    return is_of_program or key.endswith(".crc") or why_no_image(key) == HIDDEN


def _require_readable_format(place: Place) -> None:
    """Raise SourceError if the name of a file is that of a table that is not read."""
    name = place.name.lower()
    if suffix_of(place.name) in _UNREAD:
        raise SourceError(f"{place} is a table in a format that Tenfold does not read: save it as CSV or Parquet")
    if _UNREAD_COMPRESSION.search(name):
        raise SourceError(f"{place} is a table that is compressed in a way that Tenfold does not read: decompress it")
    if _COMPRESSED_JSON_NAME.search(name):
        raise _no_json_lines(place)


def _no_json_lines(place: Place) -> SourceError:
    return SourceError(f"{place} is no file of JSON lines: save it with one row in each line, and the suffix .jsonl")


def format_of(name: str) -> str:
    """Return ".csv", ".tsv", ".txt", ".jsonl", ".parquet", ".arrow" or ".tfrecord" by the name of a file.

    Empty if a name does not show that of a table file.
    """
    lower = name.lower()
    if match := _TEXT_NAME.search(lower) or _BINARY_NAME.search(lower):
        return _CANONICAL.get(match[1], match[1])
    return RECORDS if _RECORDS_NAME.search(_without_compression(lower)) else ""


def is_of_records(files: Sequence[Place]) -> bool:
    """Whether a table consists of TFRecord files."""
    return format_of(files[0].name) in (RECORDS, "")


def _first_lines_of_rows(place: Place) -> list[str]:
    """Return the first two lines of a `.txt` file. Empty if they are not rows. A compressed file has no lines here."""
    begin = _first_bytes(place)
    if compression_of(begin):  # It is data, because nobody compresses a README.
        return [""]
    lines = list(islice(io.StringIO(begin.decode("latin-1")), 2))
    return lines if delimiter_of_text(lines) else []


def _texts_without_rows(place: Place, keys: Sequence[str], *, has_records: bool) -> dict[str, str]:
    """Return the keys of the `.txt` files that are not a part of the table, with the reason."""
    texts = [key for key in keys if format_of(key) == TEXT_SUFFIX]
    if not texts:
        return {}
    others = [key for key in keys if format_of(key) not in ("", TEXT_SUFFIX)]
    csv_file = next((key for key in others if _FORMAT_NAMES.get(format_of(key)) == "CSV"), None)
    expected = _names_of_csv(place / csv_file) if csv_file else None
    found = {}
    first_lines = ordered_map(_first_lines_of_rows, [place / key for key in texts], _READERS)
    for key, lines in zip(texts, first_lines, strict=True):
        if not lines:
            found[key] = _NO_ROWS
        elif not lines[0]:  # The content is compressed.
            continue
        elif csv_file is None and (others or has_records):
            found[key] = "the table has files of another format"
        elif expected and expected != _names_of(lines, delimiter_of_text(lines)):
            found[key] = f"its columns are not those of {csv_file}"
    return found


def _names_of_csv(place: Place) -> set[str]:
    """Return the names of the columns of a CSV or TSV file. Empty if it is compressed."""
    begin = _first_bytes(place)
    if compression_of(begin):
        return set()
    return _names_of(io.StringIO(begin.decode("latin-1")), "\t" if format_of(place.name) == ".tsv" else ",")


def _names_of(lines: Iterable[str], delimiter: str | None) -> set[str]:
    """Return the names of the columns of some lines."""
    try:
        return set(next((row for row in csv.reader(lines, delimiter=delimiter or ",") if row), []))
    except csv.Error:
        return set()


def _first_bytes(place: Place) -> bytes:
    """Return the first bytes of a file, with its first two lines. A byte order mark is left out."""
    begin = b""
    for length in _PROBED_BYTES:
        begin = _read(place, length)
        if len(begin) < length or begin.count(b"\n") > 1:
            break
    return begin.removeprefix(BOM_UTF8)


def _read(place: Place, length: int) -> bytes:
    """Return the first bytes of a file."""

    def read() -> bytes:
        # A bucket answers a range of an empty object with an error.
        size = min(place.stat().st_size, length)
        return storage.read_range(place, 0, size) if size else b""

    try:
        return retried(read, place)
    except OSError as error:
        raise _unreadable(place, error) from error


def _is_part(key: str) -> bool:
    """Whether a name without a suffix of a format may be that of a TFRecord file."""
    return not format_of(key) and bool(_PART_NAME.search(_without_compression(key.lower())))


def _without_compression(name: str) -> str:
    return next((name.removesuffix(suffix) for suffix in COMPRESSED_SUFFIXES if name.endswith(suffix)), name)


def _is_record_file(place: Place) -> bool:
    """Whether a file begins with a record, by its checksum."""
    try:
        return retried(lambda: starts_with_record(place), place)
    except OSError as error:
        raise _unreadable(place, error) from error


def _unreadable(place: Place, error: OSError) -> SourceError:
    return SourceError(f"{place} cannot be read ({error.strerror or error}): repair it, or remove it")


def _all(_: str) -> bool:
    return True


def facts_of_files(
    keys: Sequence[str], split_column: str = "", is_read: Callable[[str], bool] = _all
) -> list[FileFacts]:
    """Return what each path of a table says. The paths are relative to the table.

    The splits count if each path states one, if there is a training split beside another one, and if no column decides
    the split. A folder such as `split=train/` is then no column, because it would be constant in training and unknown
    afterwards.

    Raises:
        SourceError: A path states a column that is read, and that another one does not state.
    """
    splits = _splits_of(keys) if not split_column else [""] * len(keys)
    facts = [FileFacts(split, _values_of(key, keep_split=not split)) for key, split in zip(keys, splits, strict=True)]
    for key, each in zip(keys, facts, strict=True):
        if differing := sorted(filter(is_read, each.values.keys() ^ facts[0].values.keys())):
            name = differing[0]
            one, other = (key, keys[0]) if name in each.values else (keys[0], key)
            raise SourceError(
                f"{one} has a column {name!r}, which its folder states, but {other} has none: move the file into a "
                f"folder such as {name}={_NO_VALUE}, because all files of a table must have the same columns, or leave "
                "the column out with drop_columns"
            )
    return facts


def _splits_of(keys: Sequence[str]) -> list[str]:
    """Return the split that each path states. All are empty unless they count, as `facts_of_files` describes."""
    splits = list(map(split_of_path, keys))
    do_count = "" not in splits and "train" in splits and len(set(splits)) > 1
    return splits if do_count else [""] * len(keys)


class SplitNote(NamedTuple):
    """What the log says about the splits that the names of files state."""

    text: str
    are_used: bool


def note_on_splits(keys: Sequence[str], split_column: str) -> SplitNote | None:
    """Say whether the splits that the names of files state are used. None if no name states one but training."""
    stated = [(split, key) for key in keys if (split := split_of_path(key))]
    counts = Counter(split for split, _ in stated)
    shown = ", ".join(f"{counts[split]} {split}" for split in sorted(counts))
    if split_column:
        text = f"the names of files state splits ({shown}), but split_column decides"
        return SplitNote(text, are_used=False) if len(counts) > 1 else None
    if _splits_of(keys)[0]:
        return SplitNote(f"the names of the files state their splits: {shown}", are_used=True)
    if set(counts) <= {"train"}:
        return None
    names = first_of([key for _, key in stated], _MAX_SHOWN)
    without = next((key for key in keys if not split_of_path(key)), "")
    reason = f"{without} states none" if without else "none is for training"
    is_one = len(stated) == 1
    stating = f"name of {names} states a split that is" if is_one else f"names of {names} state splits that are"
    return SplitNote(
        f"the {stating} not used, because {reason}: to keep the splits, name each file or its folder after one (train, "
        "validation, test)",
        are_used=False,
    )


def _values_of(key: str, *, keep_split: bool) -> dict[str, str | None]:
    """Return the columns that the folders of a path state, such as `country=de/`, without %-escapes.

    `keep_split` says whether a folder such as `split=train/` is a column.
    """
    folders = [folder for folder in key.split("/")[:-1] if keep_split or not split_of_word(folder)]
    pairs = [os.fsencode(folder).decode("utf-8", "replace").partition("=") for folder in folders]
    return {unquote(name): None if text == _NO_VALUE else unquote(text) for name, sign, text in pairs if name and sign}


def keys_of(files: Sequence[Place], place: Place | None = None) -> list[str]:
    """Return the paths of the files of a table relative to its folder, or to the folder that holds all of them."""
    if not place or list(files) == [place]:
        parents = [str(file.parent).split("/") for file in files]
        common = next(n for n in range(len(parents[0]), -1, -1) if all(each[:n] == parents[0][:n] for each in parents))
        root = "/".join(parents[0][:common])
    else:
        root = str(place)
    return [str(file).removeprefix(f"{root.rstrip('/')}/") for file in files]
