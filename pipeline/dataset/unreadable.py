"""Names a record that cannot be read: its shard, its number and its key."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pipeline.errors import DatasetError
from pipeline.storage import Place

if TYPE_CHECKING:  # It imports this module.
    from pipeline.dataset.manifest import Dataset

_Content = TypeVar("_Content")


def place_of_record(path: Place, number: int, key: str = "") -> str:
    """Return the place of a record in words: its shard, its number there (from 0), and its key if that is known."""
    return f"{path}: record {number} (from 0)" + (f", key {key!r}" if key else "")


def unreadable_record(dataset: "Dataset", path: Place, number: int, reason: str, key: str = "") -> DatasetError:
    """Return the error for a record that cannot be read. `number` is its number in the shard `path`, from 0."""
    # With the same check, a build would accept the same image again.
    strict = " with check=strict" if dataset.settings.get("check") == "header" else ""
    return DatasetError(
        f"{place_of_record(path, number, key)}: {reason}. `python -m pipeline verify --decode {path.parent}` lists all "
        f"records that cannot be read. Remove that folder, and build the dataset again{strict}"
    )


def read_record(
    read: Callable[[bytes], _Content], record: bytes, *, dataset: "Dataset", path: Place, number: int
) -> _Content:
    """Return what `read` returns for a record, which has this number (from 0) in the shard `path`.

    Raises:
        DatasetError: `read` raises ValueError.
    """
    try:
        return read(record)
    except ValueError as error:
        raise unreadable_record(dataset, path, number, str(error)) from error
