"""Extract, shard and upload without Airflow."""

from typing import TYPE_CHECKING, Any

from pipeline.config.preflight import preflight_without_source
from pipeline.config.settings import Settings
from pipeline.engines import opened_engine
from pipeline.errors import SettingsError
from pipeline.gate.decide import ask_terminal
from pipeline.plan.options import arrange_of
from pipeline.snapshot.snapshot import load_snapshot
from pipeline.stages.extract import extract
from pipeline.stages.shard import write_shards
from pipeline.stages.upload import publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def build(settings: Settings, for_training: bool = False) -> dict[str, Any]:
    """Build the dataset of the settings, unless it is complete. Return the result that `build --json` prints.

    With `for_training`, settings that a training would refuse raise its errors here, before hours of sharding.
    """
    import pipeline.report.card  # noqa: F401 - as the next line: a missing package is reported before hours of listing

    with opened_engine(settings.engine) as engine:
        if for_training:
            # Imports SciPy, which takes 0.3 s.
            from pipeline.runs.requirements import require_before_listing, require_trainable

            require_before_listing(settings)
        snapshot = extract(settings, engine)
        if for_training:
            require_trainable(settings, snapshot)
        plan = write_shards(settings, snapshot, ask_terminal(), engine)
    return publish(plan, settings, ask_terminal())


def build_dataframe(frame: "DataFrame", settings: Settings) -> dict[str, Any]:
    """Build the dataset of the rows of a Spark DataFrame, as `build` does for a table. Its session writes the shards.

    `label_column` must be set, and `dataset_name`, because a DataFrame has none. The workspace must be a place that all
    executors reach.

    Raises:
        SettingsError: If one of these settings is missing or cannot be used, or the table does not fit them.
    """
    from pipeline.tables.dataframe import list_dataframe

    if not settings.dataset_name:
        raise SettingsError("dataset_name is empty: name the dataset of the DataFrame")
    settings = settings.model_copy(update={"example_kind": "table", "engine": "spark"})
    preflight_without_source(settings)
    snapshot = list_dataframe(frame, settings, arrange_of(settings))
    return publish(write_shards(settings, snapshot, ask_terminal()), settings, ask_terminal())


def build_input(settings: Settings) -> dict[str, str]:
    """Build a dataset for a comparison of inputs, unless it is complete.

    Returns:
        {"prepare", "dataset", "source_root"}: the setting, the place of the dataset, and the folder that the keys of
        the raw images are relative to.

    Raises:
        SettingsError: If the model, or a setting of the training, does not fit the images.
    """
    from pipeline.runs.requirements import require_trainable  # As in `build`.

    settings = settings.model_copy(update={"engine": "local"})  # A comparison measures this machine.
    with opened_engine(settings.engine) as engine:
        snapshot = extract(settings, engine)
        require_trainable(settings, snapshot)
        plan = write_shards(settings, snapshot, ask_terminal(), engine)
    dataset = publish(plan, settings, ask_terminal())["dataset"]
    return {"prepare": settings.prepare, "dataset": dataset, "source_root": load_snapshot(snapshot).origin.root}
