"""The files of a comparison of inputs: what is measured, and what was measured.

COMPARISON/
  comparison.json      what is compared (`Comparison`)
  measurements/N-NAME/ one measurement of one contender: its record, and `measurement.json`, written last
  result.json          the table, the ratios and the verdict (pipeline/tuning/result.py)
  inputs.html          the page
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.config.allowed import require_folder
from pipeline.config.automatic import TrainingSettings, training_settings
from pipeline.errors import require_format
from pipeline.runs.files import MAX_JSON_BYTES
from pipeline.storage import read_json, write_json
from pipeline.tuning.options import ComparisonOptions

COMPARISON, RESULT, PAGE = "comparison.json", "result.json", "inputs.html"
MEASUREMENTS, MEASUREMENT = "measurements", "measurement.json"
COMPARISON_FORMAT = 3
"""The format of all files of a comparison, which `comparison.json` states."""


@dataclass(frozen=True)
class Comparison:
    """What is compared."""

    settings: Mapping[str, Any]
    """Settings of the trainings."""
    options: ComparisonOptions
    datasets: Mapping[str, str]
    """Place of the dataset for each setting `prepare`."""
    source_root: str
    """Folder that the keys of the raw images are relative to."""
    host: Mapping[str, Any]
    """Facts about this machine and its software: name, cores, system, versions."""
    created: float
    """Unix time in seconds."""

    def training_settings(self) -> TrainingSettings:
        """Return the settings of the trainings. Raises SettingsError if they are not valid."""
        return training_settings(dict(self.settings))


@dataclass(frozen=True)
class Turn:
    """One measurement in the order of a comparison."""

    number: int
    """From 0."""
    round: int
    """From 0."""
    contender: str


@dataclass(frozen=True)
class Measurement:
    """What was measured of a contender in one round."""

    contender: str
    round: int
    examples: int
    """Training examples in an epoch."""
    epoch_s: Sequence[float]
    """Seconds of each epoch. The first one reads from the disk."""
    epoch_wait_s: Sequence[float]
    """Seconds of each epoch in which the training waited for data."""
    cached_fraction: float | None
    """Share of the files that the kernel kept in the page cache when it was asked to forget them, 0 to 1; None if it
    does not tell, because the files belong to another user."""
    kept_fraction: float | None
    """Share of the files in the page cache after the epochs from memory: less than 1 if they do not fit."""
    cold_per_s: float
    """Examples per second of the input alone, from the disk."""
    warm_per_s: float
    """Examples per second of the input alone, from the page cache."""
    step_alone_ms: float
    """Time of a step on one batch that is in memory."""
    other_cores: float | None
    """Cores that other programs kept busy, in the training or beside the input alone, whichever is more."""
    disturbed: bool = False
    """Whether other programs kept too many cores busy, also in the last attempt."""
    repeated: int = 0
    """Number of earlier attempts that were discarded because other programs disturbed them."""


@dataclass(frozen=True)
class Failure:
    """Why a contender could not be measured. If the comparison is started again, it is tried again."""

    contender: str
    why: str


def turns(options: ComparisonOptions) -> list[Turn]:
    """Return the order of all measurements: a b c, then c b a, and so on.

    A slow minute of the machine then meets each contender alike, and no contender always comes after the same one.
    """
    order = [(number, name) for number in range(options.rounds) for name in options.names[:: -1 if number % 2 else 1]]
    return [Turn(place, number, name) for place, (number, name) in enumerate(order)]


def turn_folder(folder: Path, turn: Turn) -> Path:
    """Return the folder of one measurement."""
    return folder / MEASUREMENTS / f"{turn.number:03}-{turn.contender}"


def save_comparison(folder: Path, comparison: Comparison) -> None:
    """Write what is compared."""
    content = {"format": COMPARISON_FORMAT, **asdict(comparison), "options": comparison.options.model_dump()}
    write_json(folder / COMPARISON, content, indent=1)


def load_comparison(folder: Path) -> Comparison:
    """Return what is compared.

    Raises FormatError if another version of Tenfold wrote the comparison, and SettingsError if the administrator does
    not allow its folder.
    """
    require_folder(folder)
    content = read_json(folder / COMPARISON, MAX_JSON_BYTES)
    mend = f"remove {folder} and compare the inputs again"
    require_format(content.pop("format", None), COMPARISON_FORMAT, folder / COMPARISON, mend)
    return Comparison(**{**content, "options": ComparisonOptions.model_validate(content["options"])})


def save_measurement(folder: Path, measured: Measurement | Failure) -> None:
    """Write a measurement into its own folder. From then on, it is not measured again, unless it is a failure."""
    write_json(folder / MEASUREMENT, asdict(measured), indent=1)


def load_measurement(folder: Path) -> Measurement | Failure | None:
    """Return the measurement in a folder of its own; None if it is not complete."""
    try:
        content = read_json(folder / MEASUREMENT)
    except FileNotFoundError:
        return None
    return Failure(**content) if "why" in content else Measurement(**content)


def describe_progress(folder: Path) -> str:
    """Return the verdict of a comparison, or how many of its measurements are complete.

    Raises what `load_comparison` does.
    """
    require_folder(folder)
    if (folder / RESULT).exists():
        return str(read_json(folder / RESULT, MAX_JSON_BYTES)["verdict"])
    total = len(turns(load_comparison(folder).options))
    done = sum(1 for _ in folder.glob(f"{MEASUREMENTS}/*/{MEASUREMENT}"))
    return f"{done} of {total} measurements of the comparison of inputs are complete."
