"""The champion of a dataset name: the one model that is promoted, and the history of all champions. No TensorFlow.

`models/NAME/champion.json` in the workspace is the pointer. It holds the champion and every promotion and rollback that
led to it, oldest first. It names each run and each model relative to the workspace, which may be moved or copied. The
file is replaced as a whole, and only if it is still as it was read: if two runs promote at the same time, the second
looks again. A rollback takes back the last promotion that stands. It is an entry of its own, and no entry is ever
removed.
"""

import getpass
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pipeline import storage
from pipeline.config.allowed import require_folder
from pipeline.config.workspace import champion_folder
from pipeline.errors import PromotionError, require_format
from pipeline.runs.run import ABOUT, find_exported_model
from pipeline.storage import Place, place_of

POINTER = "champion.json"
POINTER_FORMAT = 3
PROMOTE: Final = "promote"
ROLLBACK: Final = "rollback"
BY_HAND = "by hand"
"""Why a model was promoted that a person chose."""


@dataclass(frozen=True)
class Entry:
    """One move of the pointer, to the model of `run`."""

    action: Literal["promote", "rollback"]
    run: str
    """Folder of the training."""
    export: str
    """Folder of its exported model."""
    dataset_version: str
    metrics: Mapping[str, float]
    score: float | None
    """Score of the model on the examples that judged its run; None if it is unknown."""
    why: str
    at: str
    """Time of the move in UTC, in ISO 8601."""
    by: str

    @property
    def is_there(self) -> bool:
        """Whether the model has not been removed."""
        return (place_of(self.export) / ABOUT).is_file()


class Rollback(NamedTuple):
    """What a rollback did."""

    champion: Entry
    """The promotion that stands again."""
    taken_back: Entry


@dataclass(frozen=True)
class Pointer:
    """The pointer as it was read. `content` is the content of its file, None if there was none."""

    place: Place
    content: bytes | None
    history: tuple[Entry, ...]
    """Oldest first."""

    @property
    def champion(self) -> Entry | None:
        """The promotion that stands, if there is one."""
        return next(reversed(effective_promotions(self.history)), None)

    def best_first(self, lower_is_better: bool) -> list[Entry]:
        """Return the promotions that stand and have a score, the best first. Of equal ones, the newest comes first.

        They begin with the last one by hand: the person who chose that model knew those before it.
        """
        standing = effective_promotions(self.history)
        first = max((index for index, each in enumerate(standing) if each.why == BY_HAND), default=0)
        scored = [(each.score, each) for each in reversed(standing[first:]) if each.score is not None]
        return [entry for _, entry in sorted(scored, key=lambda pair: pair[0] if lower_is_better else -pair[0])]

    def promotion_of(self, run: str) -> Entry | None:
        """Return the newest promotion of a run, whether it stands or not."""
        return next((each for each in reversed(self.history) if (each.action, each.run) == (PROMOTE, run)), None)


def effective_promotions(history: Sequence[Entry]) -> list[Entry]:
    """Return the promotions that were not taken back, the champion last."""
    stack: list[Entry] = []
    for entry in history:
        if entry.action == ROLLBACK:
            stack.pop()
        else:
            stack.append(entry)
    return stack


def pointer_of(workspace: Place, dataset_name: str) -> Pointer:
    """Return the pointer of a dataset name. Raises what `load_pointer` does."""
    return load_pointer(champion_folder(workspace, dataset_name) / POINTER)


def load_pointer(place: Place) -> Pointer:
    """Read `champion.json`. If there is no such file, nothing is promoted.

    Raises:
        PromotionError: If the file is damaged.
        FormatError: If another version of Tenfold wrote it.
    """
    try:
        content = place.read_bytes()
    # A person may name a file, in which no pointer can be.
    except (FileNotFoundError, NotADirectoryError):
        return Pointer(place, None, ())
    try:
        fields = json.loads(content)
        require_format(fields.get("format"), POINTER_FORMAT, place, "move it away and promote a run by hand")
        history = tuple(_entry_in(_workspace_of(place), entry) for entry in fields["history"])
        # Rollbacks without a promotion before them raise IndexError here, and not later in each reader.
        effective_promotions(history)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise PromotionError(
            f"{place} cannot be read ({error}): restore a copy of it, or move it away and promote a run by hand"
        ) from error
    return Pointer(place, content, history)


def roll_back(pointer: Pointer) -> Rollback:
    """Move the pointer back to the model before the champion.

    Raises:
        PromotionError: If there is none, or its files are gone.
        SettingsError: If the administrator does not allow its place.
        ConflictError: If the pointer was moved since it was read.
    """
    promotions = effective_promotions(pointer.history)
    if len(promotions) < 2:
        raise PromotionError(
            f"there is no model to roll back to: {pointer.place} lists {len(promotions)} promotions that have not been "
            "rolled back"
        )
    target, taken_back = promotions[-2:]
    require_folder(place_of(target.export))
    # Before the pointer moves: programs that follow it would find no model.
    if not target.is_there:
        raise PromotionError(
            f"the model to roll back to is missing: {target.export}. Restore it, or promote another run: `python -m "
            "pipeline promote RUN`"
        )
    why = f"rolled back the promotion of {taken_back.run}"
    move(pointer, replace(target, action=ROLLBACK, why=why, at=now(), by=user()))
    return Rollback(target, taken_back)


def move(pointer: Pointer, entry: Entry) -> None:
    """Add an entry to the history. Raises ConflictError if another run has moved the pointer since it was read."""
    history = (*pointer.history, entry)
    workspace = _workspace_of(pointer.place)
    champion = _stored(effective_promotions(history)[-1], workspace)
    content = {
        "format": POINTER_FORMAT,
        # For programs that follow the pointer and need no history.
        "champion": {name: champion[name] for name in ("run", "export", "dataset_version", "metrics")},
        "history": [_stored(each, workspace) for each in history],
    }
    storage.swap(pointer.place, pointer.content, json.dumps(content, indent=1).encode())


def _workspace_of(pointer: Place) -> Place:
    """Return the workspace of a pointer's file. Links are resolved, as in the folder of a run that is promoted."""
    workspace = pointer.parent.parent.parent
    return workspace.resolve() if isinstance(workspace, Path) else workspace


def _entry_in(workspace: Place, stored: Mapping[str, Any]) -> Entry:
    entry = Entry(**stored)
    return replace(entry, run=str(workspace / entry.run), export=str(workspace / entry.export))


def _stored(entry: Entry, workspace: Place) -> dict[str, Any]:
    """Return what the file has of an entry."""
    inside = {name: getattr(entry, name).removeprefix(f"{workspace}/") for name in ("run", "export")}
    return asdict(entry) | inside


def find_promoted_model(place: Place) -> Place:
    """Return the exported model of a run, of an `export/` folder, or of the champion whose pointer is in `place`.

    Raises:
        SourceError: If there is none.
    """
    champion = load_pointer(place / POINTER).champion
    return find_exported_model(place_of(champion.export) if champion else place)


def now() -> str:
    """Return the time in UTC, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def user() -> str:
    """Return the name of the user and of the machine."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # The user id of a container often has no name.
        name = "unknown"
    return f"{name}@{platform.node()}"
