"""The DAG `retrain`: new data sets become one training on the newest state of all of them."""

import logging
import os
from datetime import timedelta
from typing import Any

from airflow.sdk import PokeReturnValue, dag, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

from dags import stages
from dags.defaults import DATASETS, form_defaults, ownership, task_defaults
from dags.document import document
from dags.form import form, settings_of_training
from dags.notify import deadline
from pipeline.config import Settings
from pipeline.errors import SettingsError

MAKER = "image_dataset"
POLL_S = float(os.environ.get("TENFOLD_RETRAIN_POLL_SECONDS") or 15)
FIRST = (
    "dataset_name",
    "window",
    "num_training_servers",
    "model",
    "epochs",
    "batch_size",
    "learning_rate",
    "image_size",
)
_log = logging.getLogger(__name__)


@task.sensor(mode="reschedule", poke_interval=POLL_S, timeout=timedelta(days=2).total_seconds())
def choose() -> PokeReturnValue:
    """
    Wait until no run of `image_dataset` is under way, then take the newest partitions as one data set.

    A backfill of 30 dates tells of 30 data sets. Whoever finds more to come leaves the work to the run behind it, if
    there is one by then, and looks again otherwise: so the last one trains, also where the last date fails. Skips the
    rest, and says so, where that leaves nothing to do, or where the same versions were trained with the same settings.

    *Cost*: none while it waits. *A failure*: no data set of this name (the message names the folder), leaks between
    dates above `max_leaked_fraction` (the message names some), or `image_dataset` has been busy for two days.
    """
    settings = _with_name(stages.settings_of_run())
    if not _at_rest():
        return PokeReturnValue(is_done=False)
    chosen = _newest(settings)
    for key, value in chosen.items():
        get_current_context()["ti"].xcom_push(key=key, value=value)
    return PokeReturnValue(is_done=True, xcom_value=chosen["dataset"])


def _with_name(settings: Settings) -> Settings:
    """Return the settings, with the name of the new dataset if they have no dataset name.

    Skips the run if only datasets with other names are new. A run that a person triggers has no events.
    """
    from pipeline.workspace import named

    events = get_current_context()["triggering_asset_events"].get(DATASETS, [])
    names = sorted({str(event.extra.get("dataset_name")) for event in events})
    if not names:
        return named(settings)
    if not settings.dataset_name and len(names) > 1:
        raise SettingsError(
            f"datasets of several names are new, {', '.join(names)}, and one run trains on one dataset: set "
            "dataset_name in the file that TENFOLD_SETTINGS names, or trigger one run for each name"
        )
    if settings.dataset_name not in ("", *names):
        raise AirflowSkipException(f"new data sets of {names}: this DAG serves {settings.dataset_name!r}")
    return settings.model_copy(update={"dataset_name": settings.dataset_name or names[0]})


def _at_rest() -> bool:
    """Whether no run of `image_dataset` is under way. Skips where another run of this DAG will look again."""
    ti = get_current_context()["ti"]
    coming = ti.get_dr_count(dag_id=MAKER, states=["queued", "running"])
    if coming and ti.get_dr_count(dag_id=ti.dag_id, states=["queued"]):
        raise AirflowSkipException(f"{coming} runs of {MAKER} are under way: left to the {ti.dag_id} behind this one")
    if coming:
        _log.info("waiting for %d runs of %s", coming, MAKER)
    return not coming


def _newest(settings: Settings) -> dict[str, Any]:
    """What `train` needs. Skips where it was done before."""
    from pipeline.train import trained
    from pipeline.window import newest_dataset

    dataset = newest_dataset(settings)
    training = f"{get_current_context()['ti'].dag_id}-{settings.dataset_name}"
    if result := trained(settings, dataset, training):
        newest = f"the newest partitions of {settings.dataset_name!r} (window={settings.window})"
        raise AirflowSkipException(f"{newest} were trained with the same settings before: {result['run']}")
    return {"settings": settings.model_dump(), "dataset": str(dataset), "training": training}


@dag(
    schedule=DATASETS,
    catchup=False,
    **ownership(),
    # One at a time: two would train on the same data sets beside one another.
    max_active_runs=1,
    params=form(form_defaults(), settings_of_training(), FIRST),
    default_args=task_defaults(),
    deadline=deadline(default_hours=7 * 24),
    tags=["images", "training"],
)
def retrain() -> None:
    """
    New data sets of `image_dataset` → one training on the newest state of them.

    - `choose` waits until no run of `image_dataset` is under way, and takes the newest `window` partitions as one data
      set, without copying a shard. Where the same versions were trained with the same settings, the rest is skipped.
    - `train`, `promote` and `report` are those of `image_training`.

    **Cost**: one training for a whole backfill. **Backfill**: that of `image_dataset` is enough; this DAG follows its
    asset. It can also be triggered by hand.

    It trains on the dataset that is new. If the form or the settings file (`TENFOLD_SETTINGS`) sets `dataset_name`, it
    trains only on the dataset of that name.
    """
    chosen = choose()
    stages.train_and_report(chosen["settings"], chosen["dataset"], chosen["training"])


document(retrain())
