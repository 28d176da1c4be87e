"""Checks before anything is written, so that nobody learns of a wrong setting after hours of sharding."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.config.allowed import require_allowed, require_outputs
from pipeline.config.example_kinds import data_of
from pipeline.config.settings import Settings
from pipeline.errors import SettingsError, SourceError, TenfoldError
from pipeline.storage import BucketPath, Place, is_inside, place_of
from pipeline.storage.file_system import why_unsafe
from pipeline.storage.local import nearest
from pipeline.system.os_errors import retried


def preflight(settings: Settings) -> None:
    """Refuse settings with which a run cannot succeed: a missing source, a workspace that is not writable, and so on.

    Raises:
        SettingsError: It names the field. Also for places that the administrator does not allow.
        SourceError: The bucket has no object with this prefix.
    """
    # This comes first, because no check may show whether a file exists outside of the allowed places.
    require_allowed(settings)
    if not settings.source_uri:
        raise SettingsError(without_source(settings.example_kind))
    source, written = settings.source, _written(settings)
    require_buckets({"source_uri": source, **written})
    kind, one = settings.example_kind, data_of(settings.example_kind).source_file
    if not isinstance(source, BucketPath):
        _require("source_uri", lambda: source.is_dir() or source.is_file(), source, f"a folder or {one} that exists")
    elif not source.exists():  # A bucket has no empty folders.
        raise SourceError(f"no {kind} under source_uri '{source}': the bucket has no object with this name or prefix")
    with suppress(OSError):  # The listing says why a file cannot be read.
        if reason := data_of(kind).why_other_kind(source):
            raise SettingsError(f"source_uri '{source}' {reason}")
    # The next run would list the files of such a workspace as part of the source.
    for field, place in written.items():
        if _lies_in(place, source):
            raise SettingsError(f"{field} must be outside source_uri, got '{place}' in '{source}'")
    _require_rest(settings)


def without_source(kind: str) -> str:
    """Return what is wrong if a run of a kind of examples has no source."""
    return f"source_uri is empty: set it to {data_of(kind).source}"


def preflight_without_source(settings: Settings) -> None:
    """Refuse settings with which a run cannot succeed if its examples come from the caller, not from `source_uri`.

    Raises:
        SettingsError: It names the field. Also for places that the administrator does not allow.
    """
    require_allowed(settings)
    require_buckets(_written(settings))
    _require_rest(settings)


def _written(settings: Settings) -> dict[str, Place]:
    """Return the places that a run writes to, by field."""
    return {"workspace": place_of(settings.workspace), "publish_uri": settings.datasets_folder}


def _require_rest(settings: Settings) -> None:
    """Check the settings that are not about the source. The buckets exist."""
    if settings.dataset:
        raise SettingsError(f"dataset must be empty if a run builds a dataset, got {settings.dataset!r}")
    require_weights(settings)
    if settings.label_map:
        _require("label_map", Path(settings.label_map).is_file, Path(settings.label_map), "a file that exists")
    written = _written(settings)
    require_outputs(written.values())  # Another user of the workspace may have made a link in place of `datasets`.
    for field, place in written.items():
        _require_writable(field, place)


def require_buckets(places: Mapping[str, Place]) -> None:
    """Check that each bucket exists. There are no long retries as during a run, because a wrong name is no outage."""
    checked = set()
    for field, place in places.items():
        # Several settings often name one bucket, which needs one request.
        if isinstance(place, BucketPath) and place.bucket not in checked:
            checked.add(place.bucket)
            with _naming(field):
                place.require_bucket()


@contextmanager
def _naming(field: str) -> Iterator[None]:
    """Put the name of the field before the message of an error."""
    try:
        yield
    except TenfoldError as error:
        raise type(error)(f"{field}: {error}") from error


def require_weights(settings: Settings) -> None:
    """Raise SettingsError if `weights` is not a file."""
    if settings.weights:
        weights = Path(settings.weights)
        _require("weights", weights.is_file, weights, "a file that exists")


def _require(field: str, check: Callable[[], bool], path: Place, what: str) -> None:
    try:
        if retried(check, path):
            return
    except (OSError, ValueError) as error:  # The name may be too long, or have a zero byte.
        raise SettingsError(f"{field} must be {what}, got '{path}': {error}") from error
    raise SettingsError(f"{field} must be {what}, got '{path}'")


def _lies_in(folder: Place, source: Place) -> bool:
    if isinstance(folder, Path) and isinstance(source, Path):
        # A link may lead into the source.
        return folder.resolve().is_relative_to(source.resolve())
    return is_inside(folder, source)


def _require_writable(field: str, folder: Place) -> None:
    """Raise SettingsError if the nearest existing folder is not writable. Leaves no file there."""
    if isinstance(folder, BucketPath):
        with _naming(field):
            folder.require_writable()
        return
    try:
        # A file, because permissions do not show a read-only file system.
        retried(lambda: tempfile.TemporaryFile(dir=nearest(folder)).close(), folder)
        reason = retried(lambda: why_unsafe(nearest(folder)), folder)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{field} must be a folder that can be written to, got '{folder}': {error}") from error
    if reason:
        raise SettingsError(f"{field} must be a folder that several tasks can share, got '{folder}': {reason}")
