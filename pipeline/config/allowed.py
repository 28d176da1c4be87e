"""The places and packages that the administrator allows, in environment variables.

Anyone who can start a run could otherwise read the worker's disk or run code of their choice. Each variable lists
prefixes with commas between them, and `*` allows everything. A variable that is empty or not set allows nothing, so an
Airflow is closed until its administrator opens it. A person who runs a command on their own machine is the
administrator: see `open_unless_set`. A place is allowed if it is a prefix or is below one, after `..` and symbolic
links are resolved.

Whoever can write to a workspace can change the plans, parts, lists and runs in it, and whoever may call Airflow's API
can change an XCom. So every reader of such a file or value checks the places that it names, before it uses them:

- `require_output`, `require_outputs` and `Outputs`: a place that a run writes, or that a run wrote before.
- `require_source` and `Sources`: a file of a source.
- `require_folder`: a folder of a run, with all symbolic links in it.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipeline.config.default_folders import default_local_folder, default_workspace
from pipeline.errors import SettingsError, SourceError
from pipeline.storage import BucketPath, Place, is_bucket, is_inside, place_of

if TYPE_CHECKING:
    from pipeline.config.settings import Settings

SOURCES = "TENFOLD_ALLOWED_SOURCES"
WORKSPACES = "TENFOLD_ALLOWED_WORKSPACES"
PUBLISH = "TENFOLD_ALLOWED_PUBLISH"
MODELS = "TENFOLD_ALLOWED_MODELS"
OF_PLACES = (SOURCES, WORKSPACES, PUBLISH)
ALL = (*OF_PLACES, MODELS)
EVERYTHING = "*"
MAX_FOLDERS = 10_000
"""At most this many resolved folders are remembered. A source may have millions."""


class AllowedPlaces(NamedTuple):
    """The prefixes that a variable lists; None if it allows everything."""

    setting: str
    prefixes: tuple[Place, ...] | None
    is_set: bool = True

    def allows(self, place: Place) -> bool:
        """Return whether a place is allowed. Reads no file, and follows the links of the path.

        Raises:
            ValueError: The path has a zero byte.
        """
        if self.prefixes is None:
            return True
        real = _real(place)
        # Each reader may resolve a part `..` in the name of an object in another way.
        has_parent_part = isinstance(real, BucketPath) and ".." in real.key.split("/")
        return not has_parent_part and any(is_inside(real, prefix) for prefix in self.prefixes)

    def __str__(self) -> str:
        return f"{self.setting} allows ({', '.join(map(str, self.prefixes or ())) or 'nothing'})"


def open_unless_set() -> None:
    """Allow everything for each variable that is not set. For commands that a person runs on their own machine."""
    for setting in ALL:
        os.environ.setdefault(setting, EVERYTHING)


def open_warning() -> str:
    """Return a sentence with the variables that allow everything; empty if none does."""
    names = [setting for setting in ALL if EVERYTHING in _entries(os.environ.get(setting, ""))]
    if not names:
        return ""
    listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return (
        f"{listed} {'allow' if len(names) > 1 else 'allows'} everything: a run can access everything that this user can"
    )


def allowed_places(setting: str, environ: Mapping[str, str] = os.environ) -> AllowedPlaces:
    """Return the places that a variable of the environment allows.

    Raises:
        SettingsError: An entry is neither an absolute path nor gs://bucket/prefix.
    """
    text = environ.get(setting)
    return AllowedPlaces(setting, _prefixes(setting, text or ""), is_set=text is not None)


def require_allowed(settings: "Settings") -> None:
    """Refuse places and functions that the administrator does not allow, before any of them is read.

    The error does not show whether a file exists.

    Raises:
        SettingsError: It names the field and the variable.
    """
    for sentence in refusals(settings).values():
        raise SettingsError(sentence)


def refusals(settings: "Settings") -> dict[str, str]:
    """Return why the administrator does not allow the value of a field, in a sentence for each such field.

    Raises:
        SettingsError: A variable has an entry that is no place.
    """
    # Imported here, because the tasks that write shards import this file and need no settings: 12 MB and 0.1 s less.
    from pipeline.config.declarations import AllowedBy
    from pipeline.config.settings import declared

    by_field = {
        field: [f"TENFOLD_ALLOWED_{each.name}" for each in permissions]
        for field, permissions in declared(AllowedBy).items()
    }
    found = {}
    # Sources come first, functions last.
    for field, variables in sorted(by_field.items(), key=lambda item: ALL.index(item[1][-1])):
        value = getattr(settings, field)
        if MODELS in variables:
            sentence = _refusal_of_function(field, value)
        else:
            allowed = [_with_own(allowed_places(variable)) for variable in variables]
            is_refused = value and not _uri_is_allowed(allowed, value)
            sentence = _refusal(f"{field} {value!r}", *allowed) if is_refused else ""
        if sentence:
            found[field] = sentence
    return found


def allowlists() -> dict[str, str]:
    """Return the variables of this process that allow places, for processes on other machines."""
    # Imported here: see `require_allowed`.
    from pipeline.config.settings import settings_from

    defaults = settings_from({})
    own = {"TENFOLD_WORKSPACE": defaults.workspace, "TENFOLD_LOCAL_FOLDER": defaults.local_folder}
    return {**own, **{setting: os.environ[setting] for setting in ALL if setting in os.environ}}


def require_output(place: Place) -> None:
    """Refuse a place of a run that this machine allows neither as a workspace nor for publishing.

    Raises:
        SettingsError: It names the variables.
    """
    require_outputs([place])


def require_outputs(places: Iterable[Place | str]) -> None:
    """Refuse places as `require_output` does. Many files of few folders take a microsecond each."""
    outputs = Outputs()
    for place in places:
        outputs.require(place)


def require_folder(folder: Place) -> None:
    """Refuse a folder of a run, as `require_output` does, also if a symbolic link below it leads to a refused place.

    Another user of the folder may have made the link. Raises SettingsError.
    """
    outputs = Outputs()
    if outputs.are_all_allowed:  # Do not walk through the folder.
        return
    for place in _with_links(folder):
        outputs.require(place)


def may_read(place: Place) -> bool:
    """Return whether a file or folder of a source may be read. A link in a source may lead anywhere."""
    return allowed_places(SOURCES).allows(place)


def require_source(place: Place) -> None:
    """Refuse an image or list that a source names, before it is read.

    Raises:
        SourceError: TENFOLD_ALLOWED_SOURCES does not allow the place.
    """
    allowed = allowed_places(SOURCES)
    if not allowed.allows(place):
        raise SourceError(_refusal(f"the source names '{place}', which", allowed))


class _ManyPlaces:
    """Decides about many places. Only the folder of a local file is resolved, once, unless the file is a link.

    If somebody changes a symbolic link after this check, before the file is used, nothing notices it.
    """

    def __init__(self, *allowed: AllowedPlaces) -> None:
        self._allowed = allowed
        self.are_all_allowed = any(each.prefixes is None for each in allowed)
        self._known: dict[str, bool] = {}

    @property
    def allowed(self) -> tuple[AllowedPlaces, ...]:
        """The lists. They change only if the environment of this process does."""
        return self._allowed

    def _allows(self, place: Place | str) -> bool:
        """Return whether one of the lists allows a place. A text is a local path."""
        if self.are_all_allowed:
            return True
        if isinstance(place, BucketPath):
            return _is_allowed(self._allowed, place)
        path = str(place)
        folder, slash, name = path.rpartition("/")
        if name in ("", ".", "..") or os.path.islink(path):  # noqa: PTH114 - this runs for every image
            return _is_allowed(self._allowed, Path(path))
        if folder not in self._known:
            if len(self._known) >= MAX_FOLDERS:
                self._known.clear()
            self._known[folder] = _is_allowed(self._allowed, Path(folder or slash))
        # A list may name a single file.
        return self._known[folder] or _is_allowed(self._allowed, Path(path))


class Outputs(_ManyPlaces):
    """The places that a run may write, for many places.

    `own` is a folder that is allowed in addition to the lists, because the caller chose it.
    """

    def __init__(self, own: Place | None = None) -> None:
        self._lists = [_with_own(allowed_places(setting)) for setting in (WORKSPACES, PUBLISH)]
        super().__init__(*self._lists, *([AllowedPlaces("", (_real(own),))] if own else []))

    def require(self, place: Place | str) -> None:
        """Refuse a place that is not allowed, before it is used. A text is a local path. Raises SettingsError."""
        if not self._allows(place):
            raise SettingsError(_refusal(f"the place '{place}'", *self._lists))


class Sources(_ManyPlaces):
    """The files of sources that a run may read, for millions of files."""

    def __init__(self) -> None:
        super().__init__(allowed_places(SOURCES))

    def require(self, place: Place | str) -> None:
        """Refuse a file that is not allowed, before it is read. A text is a local path. Raises SourceError."""
        if not self._allows(place):
            raise SourceError(_refusal(f"the source names '{place}', which", *self._allowed))


def _with_links(folder: Place) -> Iterator[Place | str]:
    """Yield a folder, and all symbolic links below it. Links are not followed."""
    yield folder
    below = [str(folder)] if isinstance(folder, Path) and folder.is_dir() else []
    while below:
        # A training that goes on removes folders, and a folder that cannot be listed cannot be read either.
        with suppress(OSError), os.scandir(below.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    yield entry.path
                elif entry.is_dir():
                    below.append(entry.path)


def _refusal_of_function(field: str, name: str) -> str:
    """Return why a function of a package may not run; empty if it may. Nothing is imported: an import runs its code."""
    text = os.environ.get(MODELS)
    entries = _entries(text or "")
    module, function, _ = name.partition(":")
    # The dot at the end keeps the package `models` from allowing `models_of_others`.
    if not function or EVERYTHING in entries or any(f"{module}.".startswith(f"{each}.") for each in entries):
        return ""
    otherwise = "choose a model by its name" if field == "model" else "leave it empty"
    unset = () if text is not None else (MODELS,)
    return (
        f"{field} {name!r} is outside what {MODELS} allows ({text or 'nothing'}): {otherwise}, or ask the "
        f"administrator to {_remedy('the package', unset)}"
    )


def _refusal(what: str, *allowed: AllowedPlaces) -> str:
    unset = [each.setting for each in allowed if not each.is_set]
    return (
        f"{what} is outside what {' and '.join(map(str, allowed))}: name a place inside, or ask the administrator to "
        f"{_remedy('this place', unset)}"
    )


def _remedy(what: str, unset: Sequence[str]) -> str:
    """Return what the administrator must do. For a setting that is not set, this includes where to set it."""
    if not unset:
        return f"add {what} to this variable"
    return (
        f"set {' or '.join(unset)} in the environment of Airflow's workers and of its API server to {what} (separate "
        "several with commas), or to * for everything"
    )


def _uri_is_allowed(allowed: Sequence[AllowedPlaces], uri: str) -> bool:
    """Return whether one of the lists allows the place that a path or a gs:// address names."""
    try:
        return _is_allowed(allowed, place_of(uri))
    except ValueError:  # The URI names no bucket.
        return False


def _is_allowed(allowed: Sequence[AllowedPlaces], place: Place) -> bool:
    try:
        return any(each.allows(place) for each in allowed)
    except ValueError:  # No place has such a name.
        return False


def _with_own(allowed: AllowedPlaces) -> AllowedPlaces:
    """Return allowed workspaces, with the default folders. A form with its defaults must always run."""
    if allowed.setting != WORKSPACES or allowed.prefixes is None:
        return allowed
    own = [place_of(os.path.expanduser(uri)) for uri in (default_workspace(), default_local_folder()) if uri]  # noqa: PTH111
    return allowed._replace(prefixes=(*allowed.prefixes, *map(_real, own)))


@lru_cache  # Each row of a list asks for the same text.
def _prefixes(setting: str, text: str) -> tuple[Place, ...] | None:
    if EVERYTHING in _entries(text):
        return None
    return tuple(_prefix(setting, entry) for entry in _entries(text))


def _entries(text: str) -> list[str]:
    return [entry for part in text.split(",") if (entry := part.strip())]


def _prefix(setting: str, entry: str) -> Place:
    try:
        if is_bucket(entry) or entry.startswith("/"):
            return _real(place_of(entry))
    except ValueError:  # gs:// without a bucket
        pass
    raise SettingsError(
        f"{setting} must list absolute paths and gs://bucket/prefix with commas between them, got {entry!r}: correct "
        "it in the environment of Airflow's workers and of its API server"
    )


def _real(place: Place) -> Place:
    # A bucket has no links.
    return place if isinstance(place, BucketPath) else Path(os.path.realpath(place))
