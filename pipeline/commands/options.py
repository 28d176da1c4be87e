"""The settings and places that the options of a command name."""

import argparse

from pipeline.config.preflight import require_buckets
from pipeline.config.settings import Settings, settings_of_command_line
from pipeline.config.workspace import with_dataset_name
from pipeline.errors import SettingsError
from pipeline.storage import Place, place_of


def settings_of(options: argparse.Namespace) -> Settings:
    """Return the settings of --config and --set."""
    return settings_of_command_line(options.config, options.set).dated()


def published_settings(options: argparse.Namespace) -> Settings:
    """Return the settings of a command that works on one published dataset name. A bucket must be reachable."""
    settings = settings_of(options)
    require_buckets({"publish_uri": settings.datasets_folder})
    return with_dataset_name(settings)


def reachable(what: str, uri: str) -> Place:
    """Return the place of a URI. A bucket must answer within seconds, without the long retries of a run."""
    try:
        place = place_of(uri)
    except ValueError as error:
        raise SettingsError(f"{what} {error}, got {uri!r}") from error
    require_buckets({what: place})
    return place


def file_at(what: str, uri: str) -> Place:
    """Return the place of a file that a previous stage returned."""
    place = reachable(what, uri)
    if not place.is_file():
        raise SettingsError(f"{what} {uri} is not a file: give the path that the previous stage returned")
    return place
