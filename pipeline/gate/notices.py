"""What the data gate reports without a threshold: each is a sentence for the log and the dataset card."""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

from pipeline.dataset.manifest import COMMIT, SKIPPED
from pipeline.snapshot.skipped import suffix_counts
from pipeline.system.wording import MAX_EXAMPLES, counted, first_of, share, shortened, such_as

MANY_SKIPPED = 0.1
"""If more than this share of the files was skipped because of their suffix, a warning appears."""

MAX_COLUMN_NOTES = 20
"""At most this many facts about columns are reported."""
MAX_COLUMNS = 20
"""A sentence names at most this many columns."""
MAX_TYPE = 60
"""The type of a column is cut to this many characters."""

FEW_KEYS = 0.1
"""A key column with at most this many different values per row probably does not identify a row."""
MAX_SHARE_DIFFERENCE = 0.05
"""If the share of a split differs from its setting by more than this, and values repeat, a warning appears."""
CHANCE_DEVIATIONS = 3
"""The difference must also be more than this many standard deviations of the share of as many independent rows."""


def notices(quality: Mapping[str, Any]) -> list[str]:
    """Return facts about the examples that have no threshold, one sentence each."""
    unit = str(quality["unit"])
    an_example = f"an {unit}" if unit == "image" else f"a {unit}"
    sentences = (
        _duplicates(quality.get("duplicates"), "equal to another one", unit),
        _duplicates(quality.get("near_duplicates"), "almost the same as another one", unit),
        _shared(quality.get("shared"), unit),
        _near_leaks(quality.get("near_duplicates") or {}),
        _left_out(quality.get("columns_left_out") or {}),
        _repeated_key(quality.get("split_values")),
        *(_share(quality["split_values"], split) for split in (quality.get("split_values") or {}).get("shares", ())),
        _skipped_by_name(quality.get("skipped_by_name") or {}, unit),
        *_column_notes(quality.get("column_notes") or ()),
        _images(quality.get("misnamed", 0), "in another format than the file name says (read anyway)"),
        _images(
            quality.get("profiles", {}).get("ignored", 0),
            "stored without conversion to sRGB, because the color profile is damaged or does not match the image",
        ),
        _classes(quality.get("classes_new"), "new and got the next ids"),
        _classes(
            quality.get("classes_gone"),
            f"without {unit}s in this version, with unchanged ids",
            f". If these are completely different {unit}s, choose another dataset_name",
        ),
        _classes(
            quality.get("classes_unused"),
            f"in the label map, but without {an_example} in this version",
            ". If a failed build left them, `python -m pipeline labels --release` removes them, but only before a "
            "dataset with them is committed",
        ),
        _classes(
            quality.get("classes_without_training"),
            f"without training {unit}s, so no model can learn them (the split never moves {an_example} to change this)",
        ),
        _classes(
            quality.get("classes_without_validation"), f"without validation {unit}s, so the scores do not cover them"
        ),
        _classes(quality.get("classes_without_test"), f"without test {unit}s, so the final scores do not cover them"),
    )
    return [sentence for sentence in sentences if sentence]


def _duplicates(duplicates: Mapping[str, Any] | None, what: str, unit: str) -> str:
    if not duplicates or not duplicates["images"]:
        return ""
    return f"{_units(duplicates['images'], unit)} {what} ({counted(duplicates['groups'], 'group')})"


def _shared(shared: Mapping[str, Any] | None, unit: str) -> str:
    if not shared or not shared["images"]:
        return ""
    return (
        f"{_units(shared['images'], unit)} in several dates of the window. This accounts for {shared['examples']} of "
        f"its {shared['of']} examples, because each {unit} counts once per date: set window=1 if each date also "
        f"contains all {unit}s of the dates before it"
    )


def _left_out(types: Mapping[str, str]) -> str:
    if not types:
        return ""
    shown = first_of((f"{name!r} ({shortened(kind, MAX_TYPE)})" for name, kind in types.items()), MAX_COLUMNS)
    is_one = len(types) == 1
    return (
        f"{counted(len(types), 'column')} {'is' if is_one else 'are'} left out, because "
        f"{'the type is' if is_one else 'the types are'} not supported: {shown}. To use such a column, write its parts "
        "as columns of their own (text, numbers, dates, times, or lists of these)"
    )


def _repeated_key(split_values: Mapping[str, Any] | None) -> str:
    if not split_values or split_values["setting"] != "key_column":
        return ""
    values, rows = split_values["values"], split_values["rows"]
    if values > FEW_KEYS * rows:
        return ""
    return (
        f"the key column {split_values['column']!r} has only {counted(values, 'different value')} in {rows} rows, and "
        "all rows with one value are in the same split: did you mean another key_column?"
    )


def _share(split_values: Mapping[str, Any], split: str) -> str:
    found, wanted = split_values["shares"][split]
    # Chance alone explains a smaller difference, and if all values differ, any.
    by_chance = CHANCE_DEVIATIONS * sqrt(wanted * (1 - wanted) / max(1, split_values["rows"]))
    if abs(found - wanted) <= max(MAX_SHARE_DIFFERENCE, by_chance) or split_values["values"] >= split_values["rows"]:
        return ""
    column, setting = split_values["column"], split_values["setting"]
    unit = f"rows with one value of {column!r}" if column else "equal rows"
    return (
        f"the {split} split has {found:.1%} of the rows instead of {wanted:.1%} ({split}_fraction), because all {unit} "
        f"are in the same split, and they have only {counted(split_values['values'], 'different value')}"
        + (f": did you mean another {setting}?" if setting else "")
    )


def _near_leaks(near: Mapping[str, Any]) -> str:
    leaks = near.get("leaks") or {}
    if not leaks.get("images"):
        return ""
    return (
        f"{share(leaks['images'], leaks['of'])} validation and test images look like a training image"
        f"{such_as(leaks.get('names', []))}"
    )


def _skipped_by_name(skipped: Mapping[str, Any], unit: str) -> str:
    files, of = skipped.get("files", 0), skipped.get("of", 0)
    if unit == "row" and files:  # A table may have few files, and each may have many rows.
        return (
            f"{counted(files, 'file')} in the folder of the table {'was' if files == 1 else 'were'} skipped because of "
            f"the suffix ({suffix_counts(skipped['suffixes'])}); {SKIPPED} lists them"
        )
    if files <= MANY_SKIPPED * of:
        return ""
    return (
        f"{share(files, of)} files were skipped because their suffix is not that of an image format "
        f"({suffix_counts(skipped['suffixes'])}): if they are images, convert them to JPEG or PNG; {SKIPPED} lists them"
    )


def _column_notes(found: Sequence[str]) -> list[str]:
    more = len(found) - MAX_COLUMN_NOTES
    return [
        *found[:MAX_COLUMN_NOTES],
        *([f"{counted(more, 'more note')} about columns: see column_notes in {COMMIT}"] if more > 0 else []),
    ]


def _images(count: int, what: str) -> str:
    return f"{_units(count, 'image')} {what}" if count else ""


def _classes(labels: Sequence[str] | None, what: str, advice: str = "") -> str:
    if not labels:
        return ""
    shown = first_of(map(repr, labels), MAX_EXAMPLES)
    return f"{counted(len(labels), 'class', 'classes')} {what}: {shown}{advice}"


def _units(count: int, unit: str) -> str:
    return f"1 {unit} is" if count == 1 else f"{count} {unit}s are"
