"""The run of a retraining that last chose the newest partitions. Its training serves all runs triggered before that."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pipeline import storage
from pipeline.config.allowed import require_output
from pipeline.config.workspace import run_folder
from pipeline.storage import Place


@dataclass(frozen=True)
class Choice:
    """The last choice of a training."""

    run: str
    """Id of the run that chose."""
    at: float
    """Time at which the run looked for the newest partitions, in Unix seconds."""
    newest_event: float
    """Time of the newest event that runs have served, in Unix seconds, by the clock of Airflow's database."""
    partitions: Mapping[str, str]
    """The versions that the run chose, by partition."""


def last_choice(workspace: str, training: str) -> Choice | None:
    """Return the last choice of a training; None if there is none, or its file is damaged."""
    try:
        return Choice(**storage.read_json(_place(workspace, training)))
    # A damaged file costs at most one training more: the run then chooses by itself.
    except (FileNotFoundError, ValueError, TypeError):
        return None


def save_choice(workspace: str, training: str, choice: Choice) -> None:
    """Store which run chose the newest partitions."""
    storage.write_json(_place(workspace, training), asdict(choice))


def _place(workspace: str, training: str) -> Place:
    """Return the file of the choice. Raises SettingsError if it is a link to a place that is not allowed."""
    place = run_folder(workspace, training) / "choice.json"
    require_output(place)
    return place
