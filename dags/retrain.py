"""The DAG `retrain`: new datasets become one training on the newest state of all of them."""

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue, dag, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

from dags.defaults import DATASETS, dag_defaults, form_defaults, long_task_retries
from dags.document import document
from dags.retrain_schedule import retrain_schedule
from dags.tasks import or_sample_images, settings_of_run
from dags.under_way import forms_under_way
from dags.wiring import train_and_report
from pipeline.config.allowed import require_allowed
from pipeline.config.settings import Settings, settings_from
from pipeline.errors import BadInput, SettingsError
from pipeline.storage import Place, place_of
from pipeline.system.wording import first_of

if TYPE_CHECKING:
    from pipeline.runs.choices import Choice

MAKERS = {"image_dataset": "images", "tabular_dataset": "table"}
"""The DAGs that make the datasets, each with its kind of examples."""
POLL_S = float(os.environ.get("TENFOLD_RETRAIN_POLL_SECONDS") or 15)
"""A waiting run looks again after this many seconds. It holds no worker in between."""
WAIT = timedelta(hours=float(os.environ.get("TENFOLD_RETRAIN_WAIT_HOURS") or 12))
"""How long a run waits for runs that make its dataset. Without a limit, it would never train while they overlap."""
CLOCKS = timedelta(minutes=2)
"""The clocks of the workers and of the server may differ by this much."""
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


@task.sensor(
    mode="reschedule",
    poke_interval=POLL_S,
    timeout=(WAIT + timedelta(days=1)).total_seconds(),
    **long_task_retries(),
)
def choose() -> PokeReturnValue:
    """Wait until no run makes this dataset, then take the newest partitions as one dataset.

    The DAGs `image_dataset` and `tabular_dataset` make datasets. A backfill of 30 dates announces 30 datasets. The
    first run of this DAG waits for the last date, even if that date fails, and trains once. The runs behind it are
    skipped, because their datasets are part of that training. No run waits for runs of other dataset names. After
    `TENFOLD_RETRAIN_WAIT_HOURS` (12), a run trains on the newest partitions that exist by then.

    Airflow may lose the event of a dataset. So the next run also trains if the newest partitions changed since the last
    training. `TENFOLD_RETRAIN_SCHEDULE` starts such a run at fixed times.

    *Cost*: none while it waits. *A failure*: no dataset of this name (the message names the folder), or leaks between
    dates above `max_leaked_fraction` (the message names some).
    """
    settings = settings_of_run()
    require_allowed(settings)  # Before the first file of the workspace is read.
    settings = _with_name(settings)
    _skip_if_served(settings)
    if _should_wait(settings):
        return PokeReturnValue(is_done=False)
    chosen = _newest(settings)
    for key, value in chosen.items():
        get_current_context()["ti"].xcom_push(key=key, value=value)
    return PokeReturnValue(is_done=True, xcom_value=chosen["dataset"])


def _with_name(settings: Settings) -> Settings:
    """Return the settings, with the name of the new dataset if they have no dataset name.

    Skips the run if only datasets with other names or in other places are new, or if other runs serve all of them. A
    run that a person or the schedule started has no events.
    """
    from pipeline.config.workspace import with_dataset_name

    names = sorted({str(event.extra.get("dataset_name")) for event in _events(settings)})
    folders = [_folder_of(event) for event in _all_events()]
    if not names and folders and None not in folders:
        elsewhere = sorted({str(folder) for folder in folders})
        raise AirflowSkipException(
            f"the new datasets are in {', '.join(elsewhere)}, but this DAG trains only on those in "
            f"{settings.datasets_folder}: to train on them, trigger it with their workspace or publish_uri"
        )
    if not names:
        return _with_scheduled_name(settings) if _is_scheduled() else with_dataset_name(settings)
    if not settings.dataset_name and len(names) > 1:
        names = _unserved(settings, names)
    if not settings.dataset_name and len(names) > 1:
        raise SettingsError(
            f"there are new datasets of several names ({', '.join(names)}), but one run trains on one dataset: set "
            "dataset_name in the file that TENFOLD_SETTINGS names, or trigger one run for each name"
        )
    if settings.dataset_name not in ("", *names):
        raise AirflowSkipException(
            f"the new datasets are of {names}, but this DAG trains only on {settings.dataset_name!r}"
        )
    return settings.model_copy(update={"dataset_name": settings.dataset_name or names[0]})


def _with_scheduled_name(settings: Settings) -> Settings:
    """Return the settings of a scheduled run, with the dataset name that it looks at. Skips the run if there is none.

    If several names are published, and the settings have none, the run takes a name that this DAG has trained on
    before, and a warning names the others. Names whose partitions changed since then come first. Among equals, the name
    that was checked longest ago comes first. A name whose files are damaged does not stop the others.
    """
    from pipeline.config.workspace import MAX_LISTED, published_names
    from pipeline.runs.choices import last_choice

    folder = settings.datasets_folder
    names = [name for name in published_names(folder) if settings.dataset_name in ("", name)]
    if not names:
        what = f"dataset {settings.dataset_name!r}" if settings.dataset_name else "dataset"
        raise AirflowSkipException(f"no {what} is published in {folder} yet")
    all_named = [settings.model_copy(update={"dataset_name": name}) for name in names]
    if len(names) == 1:
        return all_named[0]
    choices = [(choice, named) for named in all_named if (choice := last_choice(named.workspace, _training(named)))]
    if not choices:
        raise SettingsError(
            f"{folder} has datasets of several names ({first_of(names, MAX_LISTED)}), and no new dataset has started a "
            "training yet, so a scheduled run cannot choose: set dataset_name in the file that TENFOLD_SETTINGS names"
        )
    if _is_first_look():
        _warn_of_others(folder, {*names} - {named.dataset_name for _, named in choices})
    return _next_of(choices)


def _warn_of_others(folder: Place, names: Iterable[str]) -> None:
    """Log a warning if dates of some names are published, although no new dataset has started a training on them.

    Airflow may have lost the event of the first dataset. The run does not train on these names by itself, because
    another DAG may train on them.
    """
    from pipeline.config.workspace import MAX_LISTED
    from pipeline.dataset.partitions import dated_partitions

    if dated := [name for name in sorted(names) if dated_partitions(folder / name)]:
        _log.warning(
            "dates of %s are published, but no new dataset has started a training on them, so scheduled runs leave "
            "these names out: if Airflow lost the event, trigger this DAG once for each name, with dataset_name",
            first_of(dated, MAX_LISTED),
        )


def _next_of(choices: Iterable[tuple["Choice", Settings]]) -> Settings:
    """Return the settings whose partitions changed since their last choice, or else those with the oldest choice."""
    readable = []
    in_order = sorted(choices, key=lambda each: each[0].at)
    for choice, settings in in_order:
        try:
            # A waiting run comes here at each look, so no more partitions are read than necessary.
            if _differs(settings, choice):
                return settings
            readable.append(settings)
        except BadInput as error:
            if _is_first_look():
                _log.warning("this run does not look at %s: %s", settings.dataset_name, error)
    return (readable or [settings for _, settings in in_order])[0]


def _is_first_look() -> bool:
    """Return whether this run has not waited yet. A warning at each look would fill the log."""
    return not get_current_context().get("task_reschedule_count")


def _is_scheduled() -> bool:
    return bool(get_current_context()["dag_run"].run_type == "scheduled")


def _unserved(settings: Settings, names: Sequence[str]) -> list[str]:
    """Return the dataset names whose events no other run serves. Skips the run if there is none.

    Airflow may hand the event of a dataset to two runs, the second time beside the event of another dataset. It may
    also hand an event only to a later run: see `_is_chosen`.
    """
    of_names = {name: settings.model_copy(update={"dataset_name": name}) for name in names}
    unserved = [name for name, own in of_names.items() if not _server_of(own) and not _is_chosen(own)]
    # Of several names whose events were lost, one is enough: a later run finds the others.
    unserved = unserved or [name for name, own in of_names.items() if _has_changed(own)][:1]
    if not unserved:
        raise AirflowSkipException(f"other runs already train on the new datasets of {', '.join(names)}")
    return unserved


def _events(settings: Settings, name: str = "") -> list[Any]:
    """Return the asset events that triggered this run, of datasets in the folder of these settings.

    Another team may publish elsewhere. A run that a person or the schedule started has no events. If `name` is given,
    only events of this dataset name are returned.
    """
    events = [event for event in _all_events() if name in ("", event.extra.get("dataset_name"))]
    return [event for event in events if _folder_of(event) == _resolved(settings.datasets_folder)]


def _all_events() -> list[Any]:
    events: list[Any] = get_current_context()["triggering_asset_events"].get(DATASETS, [])
    return events


def _folder_of(event: Any) -> Place | None:
    """Return the folder of the datasets among which the new one is; None if a person made the event, without one."""
    dataset = event.extra.get("dataset")
    if not (isinstance(dataset, str) and dataset):
        return None
    try:
        return _resolved(place_of(dataset).parent.parent)
    except ValueError:  # The address names no bucket.
        return None


def _resolved(folder: Place) -> Place:
    """Return a local folder without links: after a move, a link may lead from its old place to the new one."""
    return folder.resolve() if isinstance(folder, Path) else folder


def _training(settings: Settings) -> str:
    return f"{get_current_context()['ti'].dag_id}-{settings.dataset_name}"


def _skip_if_served(settings: Settings) -> None:
    """Skip this run if another one serves its events. Otherwise, each run would repeat a failed training.

    Airflow may lose the event of a dataset that was published after that run looked. So a run with older events, which
    that run serves, goes on if there is such a dataset.
    """
    if (run := _server_of(settings)) and not _has_changed(settings):
        raise AirflowSkipException(f"the run {run} trains on this dataset too: it chose the newest partitions later")


def _server_of(settings: Settings) -> str:
    """Return the id of the run that serves the events of this dataset name; empty if there is none.

    That run had the same events, or it looked for the newest partitions after them.
    """
    from pipeline.runs.choices import last_choice

    event_times = [event.timestamp for event in _events(settings, settings.dataset_name)]
    choice = last_choice(settings.workspace, _training(settings))
    if not event_times or choice is None or choice.run == get_current_context()["run_id"]:
        return ""
    newest = max(event_times)
    # Event times are compared by one clock, that of Airflow's database. The time of the choice is by the clock of a
    # worker.
    is_served = newest.timestamp() <= choice.newest_event or newest + CLOCKS < datetime.fromtimestamp(choice.at, UTC)
    return choice.run if is_served else ""


def _has_changed(settings: Settings) -> bool:
    """Return whether the newest partitions of a dataset name are others than those of the last choice.

    They also change if a person withdraws or moves a partition, or chooses another window.
    """
    from pipeline.runs.choices import last_choice

    choice = last_choice(settings.workspace, _training(settings))
    return choice is None or _differs(settings, choice)


def _differs(settings: Settings, choice: "Choice") -> bool:
    from pipeline.config.workspace import allowed_name_folder
    from pipeline.dataset.partitions import newest_partitions

    return newest_partitions(allowed_name_folder(settings), settings.window) != choice.partitions


def _is_chosen(settings: Settings) -> bool:
    """Return whether the last choice has all versions that the events announce, apart from those of older dates.

    Airflow hands a run no event that came between the first event and the creation of the run. It hands such an event
    to the next run, maybe beside the event of another dataset name. If these events are alone, the run goes on: it may
    have other settings than the run that chose.
    """
    from pipeline.dataset.partitions import LATEST
    from pipeline.runs.choices import last_choice

    choice = last_choice(settings.workspace, _training(settings))
    if choice is None or choice.run == get_current_context()["run_id"]:
        return False
    in_order = sorted(_events(settings, settings.dataset_name), key=lambda event: event.timestamp)
    announced = {event.extra.get("data_date") or LATEST: event.extra.get("version") for event in in_order}
    oldest = min(choice.partitions) if len(choice.partitions) == settings.window else ""
    return {name: made for name, made in announced.items() if name >= oldest}.items() <= choice.partitions.items()


def _should_wait(settings: Settings) -> bool:
    """Return whether a run that makes this dataset is under way, and WAIT is not over."""
    defaults = form_defaults().model_dump()
    concerns = (_concern(maker, form, defaults, settings) for maker in MAKERS for form in forms_under_way(maker))
    concern = next(filter(None, concerns), "")
    if not concern:
        return False
    run = get_current_context()["dag_run"]
    if datetime.now(UTC) - (run.start_date or run.run_after) > WAIT:
        _log.warning("%s; this run has waited for %s and now trains on the newest partitions", concern, WAIT)
        return False
    _log.info("%s: waiting until it ends", concern)
    return True


def _concern(maker: str, form: Mapping[str, Any] | None, defaults: Mapping[str, Any], settings: Settings) -> str:
    """Return why this run waits for a run of the DAG `maker`; empty if that run makes another dataset."""
    if form is None:
        return f"a run of {maker} without a date is running, and a task cannot read its form"
    try:
        made = or_sample_images(settings_from({**defaults, **form, "example_kind": MAKERS[maker]}))
    except SettingsError:
        return ""  # Its first task refuses it.
    if (made.datasets_folder, made.dataset_name) != (settings.datasets_folder, settings.dataset_name):
        return ""
    return f"a run of {maker} that makes {settings.dataset_name!r} is running"


def _newest(settings: Settings) -> dict[str, Any]:
    """Return what `train` needs.

    Skips the run if the same partitions were trained with the same settings before, or if all are withdrawn.
    """
    from pipeline.config.workspace import allowed_name_folder
    from pipeline.dataset.partitions import newest_partitions, partition_names
    from pipeline.runs.launch import load_trained_result
    from pipeline.stages.upload import dataset_of_partitions

    # The time before the look: a dataset that is published during the look may be missed, so its event is not served.
    begin, training = time.time(), _training(settings)
    folder = allowed_name_folder(settings)
    partitions = newest_partitions(folder, settings.window)
    # The choice is saved before all checks: the run also serves its events if it has nothing new to train on. Airflow
    # may hand them to another run, which must not train on them beside the events of another dataset name. And later
    # scheduled runs turn to other dataset names, even if these partitions cannot be one dataset.
    _save_choice(settings, begin, partitions)
    if not partitions and partition_names(folder):
        raise AirflowSkipException(f"all partitions of {settings.dataset_name!r} are withdrawn")
    dataset = dataset_of_partitions(settings, partitions)
    if result := load_trained_result(settings, dataset, training):
        newest = f"the newest partitions of {settings.dataset_name!r} (window={settings.window})"
        raise AirflowSkipException(
            f"{result['run']} was already trained on {newest} with the same settings"
            f"{_how_to_promote(settings, dataset, result['run'])}"
        )
    return {"settings": settings.model_dump(), "dataset": str(dataset), "training": training}


def _how_to_promote(settings: Settings, dataset: Place, run: str) -> str:
    """Return how a person promotes an earlier run on this dataset; empty if the champion was trained on it, too.

    If a person withdraws a date, the newest partitions may be those of an earlier training. Nothing then replaces the
    champion, which was trained on the withdrawn date.
    """
    from pipeline.runs.champion import pointer_of

    champion = pointer_of(place_of(settings.workspace), settings.dataset_name).champion
    if champion is None or champion.dataset_version == dataset.name:
        return ""
    return (
        f". The champion is another run, {champion.run}, which was trained on version {champion.dataset_version}. To "
        f"make the earlier run the champion, run `tenfold promote {run}`"
    )


def _save_choice(settings: Settings, begin: float, partitions: Mapping[str, str]) -> None:
    """Store that this run looked at `begin`, unless a person started it, maybe with other settings than other runs."""
    from pipeline.runs.choices import Choice, last_choice, save_choice

    event_times = [event.timestamp.timestamp() for event in _events(settings, settings.dataset_name)]
    if not event_times and not _is_scheduled():
        return
    training = _training(settings)
    if before := last_choice(settings.workspace, training):
        # A scheduled run has no events of its own. It also serves the events that the run before it served.
        event_times.append(before.newest_event)
    choice = Choice(get_current_context()["run_id"], begin, max(event_times, default=0.0), partitions)
    save_choice(settings.workspace, training, choice)


@dag(
    **retrain_schedule(),
    **dag_defaults("retrain", FIRST, deadline_hours=7 * 24),
    # One at a time: two would train on the same datasets beside one another.
    max_active_runs=1,
    tags=["images", "table", "training"],
)
def retrain() -> None:
    """New datasets of `image_dataset` or `tabular_dataset` → one training on the newest state of them.

    - `choose` waits until no run of these DAGs makes this dataset, and takes the newest `window` partitions as one
      dataset, without copying a shard. If a model was already trained on the same versions with the same settings, the
      other tasks are skipped.
    - `train`, `promote` and `report` are those of `image_training`. If the new model is not promoted, the run succeeds
      and the champion stays. If a person must decide, the run succeeds too, and calls the administrator's notifiers. No
      later run waits for the answer.

    **Cost**: one training for a whole backfill. **Backfill**: that of the DAG that makes the datasets is enough; this
    DAG follows their asset. Airflow refuses a backfill of this DAG. It can also be triggered by hand.

    **By schedule**: `TENFOLD_RETRAIN_SCHEDULE` (a cron expression or `@daily`) also starts it at fixed times. Such a
    run finds datasets whose event Airflow lost. If nothing is new, it is skipped, unless the last training failed. Of
    several dataset names, it looks at those that this DAG has trained on, and its log names the others.

    It trains on the dataset that is new. If the form or the settings file (`TENFOLD_SETTINGS`) sets `dataset_name`, it
    trains only on the dataset of that name.
    """
    chosen = choose()
    train_and_report(chosen["settings"], chosen["dataset"], chosen["training"])


document(retrain())
