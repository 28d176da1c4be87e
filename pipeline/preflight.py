"""What can be refused before anything is written: nobody should learn of a wrong setting after hours of sharding."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from pipeline.config import Settings
from pipeline.errors import SettingsError
from pipeline.storage import nearest


def preflight(settings: Settings) -> None:
    """Refuse a source that is not there, a workspace that cannot be used, and weights that are no file.

    Raises SettingsError naming the field.
    """
    if not settings.source_uri:
        raise SettingsError("source_uri is empty: name the folder of raw images, or a list of them")
    if settings.dataset:
        raise SettingsError(f"dataset must be empty where one is built from source_uri, got {settings.dataset!r}")
    source = Path(settings.source_uri)
    _require("source_uri", lambda: source.is_dir() or source.is_file(), source, "a folder or list that exists")
    require_weights(settings)
    if settings.label_map:
        _require("label_map", Path(settings.label_map).is_file, Path(settings.label_map), "a file that exists")
    for field, folder in (("workspace", Path(settings.workspace)), ("publish_uri", settings.datasets_folder)):
        _require_outside(field, folder, source)
        _require_writable(field, folder)


def require_weights(settings: Settings) -> None:
    """Refuse weights that are no file.

    Raises SettingsError.
    """
    if settings.weights:
        weights = Path(settings.weights)
        _require("weights", weights.is_file, weights, "a file that exists")


def _require(field: str, check: Callable[[], bool], path: Path, what: str) -> None:
    try:
        if check():
            return
    except (OSError, ValueError) as error:  # a name too long, or with a zero byte
        raise SettingsError(f"{field} must be {what}, got {str(path)!r}: {error}") from error
    raise SettingsError(f"{field} must be {what}, got {str(path)!r}")


def _require_outside(field: str, folder: Path, source: Path) -> None:
    if folder.resolve().is_relative_to(source.resolve()):
        raise SettingsError(f"{field} must lie outside source_uri, got {str(folder)!r} in {str(source)!r}")


def _require_writable(field: str, folder: Path) -> None:
    """The nearest folder that exists must be one we may write to; nothing is made yet."""
    try:
        with tempfile.TemporaryFile(dir=nearest(folder)):  # permissions alone do not tell a read-only file system
            pass
    except (OSError, ValueError) as error:
        raise SettingsError(f"{field} must be a folder that can be written to, got {str(folder)!r}: {error}") from error
