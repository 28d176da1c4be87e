"""What ran, and where to read more about it: the settings of a run, and links."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from pipeline.config.automatic import AUTOMATIC, with_automatic_values
from pipeline.config.example_kinds import IMAGES
from pipeline.config.settings import settings_for, settings_from
from pipeline.dataset.manifest import CARD
from pipeline.errors import SettingsError
from pipeline.report.components import Table, text
from pipeline.runs.files import RunFiles
from pipeline.storage import Place, place_of

_COMET = "https://"


@dataclass(frozen=True)
class Link:
    """A link to another page about the run."""

    text: str
    address: str
    """Where it leads if the report is opened as a file; empty if that is not known."""
    in_airflow: str = ""
    """Where it leads if Airflow shows the report, relative to it; empty if it leads nowhere there."""


def links_of(files: RunFiles) -> list[Link]:
    """Return the links to the dataset card, the shards, the run in Airflow, and Comet, if they are known."""
    links = []
    run = {"dag_id": str(files.run.get("dag") or ""), "run_id": str(files.run.get("run_id") or "")}
    in_airflow = all(run.values())
    if dataset := files.run.get("dataset"):
        place = place_of(str(dataset))
        links.append(Link("Dataset card", _address(place / CARD), f"card?{urlencode(run)}" if in_airflow else ""))
        links.append(
            Link("Shards", _address(place, is_folder=True), "" if isinstance(place, Path) else _console(place))
        )
    if in_airflow:
        # Relative, because Airflow may be served below any path.
        page = f"../dags/{quote(run['dag_id'], safe='')}/runs/{quote(run['run_id'], safe='')}"
        links += [Link("Training in Airflow", "", f"{page}/plugin/training"), Link("Tasks and logs", "", page)]
    comet = str(files.result.get("comet") or "")
    if comet.startswith(_COMET):
        links.append(Link("Comet", comet, comet))
    return links


def _address(place: Place, is_folder: bool = False) -> str:
    if isinstance(place, Path):
        return place.absolute().as_uri()
    return _console(place) if is_folder else f"https://storage.cloud.google.com/{place.bucket}/{quote(place.key)}"


def _console(place: Any) -> str:
    """Return the page of a folder in a bucket."""
    return f"https://console.cloud.google.com/storage/browser/{place.bucket}/{quote(place.key)}"


@dataclass(frozen=True)
class SettingsOfRun:
    """The settings of a run that have an effect on its kind of examples."""

    changed: Table
    """Those that differ from their defaults."""
    unchanged: Table


def settings_of(settings: Mapping[str, Any], training_examples: int) -> SettingsOfRun | None:
    """Return the settings in `run.json`; None if there are none."""
    if not settings:
        return None
    defaults = _defaults(settings, training_examples)
    changed, unchanged = [], []
    for name in settings_for(settings.get("example_kind", IMAGES), settings):
        value, default = settings[name], defaults.get(name)
        if value == default:
            unchanged.append((name, _shown(value)))
        else:
            changed.append((name, _shown(value), _shown(default)))
    return SettingsOfRun(Table(("setting", "value", "default"), changed), Table(("setting", "value"), unchanged))


def _defaults(settings: Mapping[str, Any], training_examples: int) -> dict[str, Any]:
    """Return the default of each setting, with the values that Tenfold chooses beside the other settings."""
    # The DAG and the dataset decide the kind of the examples.
    defaults = settings_from({}).model_dump(mode="json") | {"example_kind": settings.get("example_kind", IMAGES)}
    try:
        given = settings_from({name: value for name, value in settings.items() if name not in AUTOMATIC})
        chosen = with_automatic_values(given, training_examples)
    # This machine may lack a kind of source or a model that the run used.
    except SettingsError:
        return defaults
    return defaults | {name: getattr(chosen, name) for name in AUTOMATIC}


def _shown(value: Any) -> str:
    return "empty" if value in (None, "") else text(value)
