"""The columns of lists and containers by their roles, and their cells as texts and labels."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import SourceError
from pipeline.sources import Box

NAMES: Mapping[str, Sequence[str]] = {
    "path": ("path", "image", "file", "filename", "file_name", "image_path", "uri"),
    "label": ("label", "class", "category", "labels", "cls"),
    "split": ("split",),
    "group": ("group",),
}
"""The usual names of a column, by its role. A setting (`path_column` and so on) can name another column."""

CORNERS = Box._fields[:4]
"""The columns of a box of an image, by its corners."""

_WITH_HEADER = (".csv", ".tsv")


def choose_column(role: str, names: Sequence[str], place: object, wanted: str) -> str:
    """Return the column of a role, or an empty text if there is none. `wanted` is the setting that names it.

    Raises:
        SourceError: There is no such column, and a setting names it, or an image needs it.
    """
    usual = [wanted] if wanted else NAMES[role]
    chosen = next((name for name in usual if name in names), "")
    if not chosen and (wanted or role in ("path", "label")):
        raise SourceError(
            f"{place} has no column {' or '.join(usual)}. Its columns are {', '.join(map(repr, names))}: "
            f"{_advice_on(names, role, has_header=str(place).lower().endswith(_WITH_HEADER))}"
        )
    return chosen


def _advice_on(names: Sequence[str], role: str, has_header: bool) -> str:
    # A list with another delimiter looks like a list with one column.
    if len(names) == 1 and (other := next((each for each in ";\t|" if each in names[0]), "")):
        return f"separate the columns with a comma (.csv) or a tab (.tsv), not with {other!r}"
    table = ". If each row is an example itself, set TABLE and LABEL instead of SOURCE" if role == "path" else ""
    header = "; the first line of the list names the columns" if has_header else ""
    return f"name the column that holds the {role} in {role}_column{header}{table}"


def labels_of(cell: Any) -> tuple[str, ...]:
    """Return the distinct labels of a cell in their order. A cell is a list, or a text with | between labels."""
    texts = map(text_of, cell) if isinstance(cell, list) else text_of(cell).split("|")
    return tuple(dict.fromkeys(label for text in texts if (label := text.strip())))


def text_of(cell: Any) -> str:
    """Return a cell as text, empty if the cell is empty. 3.0 becomes "3": pandas makes floats of integers with gaps."""
    if cell is None or cell != cell:  # Only NaN differs from itself.
        return ""
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "surrogateescape")
    return str(int(cell) if isinstance(cell, float) and cell.is_integer() else cell)
