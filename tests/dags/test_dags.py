"""Properties of all DAGs: form, schedule, documentation and retries."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dags.form import form
from dags.form_settings import FORM_SETTINGS
from pipeline.config.declarations import OnlyFor
from pipeline.config.example_kinds import TABLE
from pipeline.config.settings import Settings, declared, settings_from, settings_of_command_line
from pipeline.tuning.options import ComparisonOptions
from tests.conftest import MakeImages
from tests.dags.conftest import RunDag

pytestmark = pytest.mark.filterwarnings("default")  # Airflow itself causes many warnings

ALL = ["image_training", "image_dataset", "retrain", "input_comparison", "tabular_training", "tabular_dataset"]
DATED = ["image_training", "image_dataset", "tabular_training", "tabular_dataset"]


def test_airflow_reads_exactly_the_dag_files(dags: dict[str, Any]):
    assert sorted(dags) == sorted(ALL)
    folder = Path(__file__).parents[2] / "dags"
    ignored = {line for line in (folder / ".airflowignore").read_text().splitlines() if not line.startswith("#")}
    files = {path.name for path in folder.glob("*.py")}
    assert files - ignored == {f"{dag_id}.py" for dag_id in ALL}
    assert ignored - files == set()  # a file that is gone is no longer listed


@pytest.mark.parametrize(
    ("environ", "queue", "config"),
    [
        ({}, "default", {}),
        (
            {"TENFOLD_GPU_QUEUE": "gpu", "TENFOLD_GPU_POD_TEMPLATE": "/etc/gpu.yaml"},
            "gpu",
            {"pod_template_file": "/etc/gpu.yaml"},
        ),
    ],
)
def test_the_environment_decides_where_training_runs(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], queue: str, config: dict[str, str]
):
    from airflow.sdk import DAG

    from dags.wiring import train_and_report

    for name in ("TENFOLD_GPU_QUEUE", "TENFOLD_GPU_POD_TEMPLATE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with DAG("training") as dag:
        train_and_report({}, "")
    for task in map(dag.get_task, ("train", "promote")):  # only these tasks need TensorFlow
        assert (task.queue, task.executor_config) == (queue, config)


def test_every_setting_is_in_its_forms():
    of_tables = {name for name, only in declared(OnlyFor).items() if only.kind == TABLE}
    settings = set(Settings.model_fields) - {"dataset", "example_kind"} - of_tables
    assert set(FORM_SETTINGS["image_training"]) == settings - {"window"}
    assert set(FORM_SETTINGS["image_dataset"]) | set(FORM_SETTINGS["retrain"]) == settings - {"continues"}
    assert of_tables <= set(FORM_SETTINGS["tabular_dataset"]) < set(FORM_SETTINGS["tabular_training"])
    assert set(FORM_SETTINGS["tabular_dataset"]).isdisjoint({"model", "epochs", "window", "prepare", "source_kind"})
    assert set(FORM_SETTINGS["tabular_training"]).isdisjoint({"image_size", "check", "path_column", "flip"})
    assert {"source_uri", "check", "on_drift", "ask_hours", "user_project"} <= set(FORM_SETTINGS["image_dataset"])
    assert {"model", "weights", "comet_project", "cache_gigabytes", "window"} <= set(FORM_SETTINGS["retrain"])
    assert set(FORM_SETTINGS["retrain"]).isdisjoint({"source_uri", "continues"})
    assert {"on_leak", "max_leaked_fraction"} <= set(FORM_SETTINGS["image_dataset"]) & set(FORM_SETTINGS["retrain"])
    assert set(FORM_SETTINGS["image_dataset"]).isdisjoint(
        {"model", "epochs", "weights", "tensorboard", "window", "seed"}
    )
    of_dataset = {"source_uri", "check", "on_drift", "num_shards", "data_date", "split_seed"}
    assert set(FORM_SETTINGS["retrain"]).isdisjoint(of_dataset)


def test_the_documentation_names_the_dags_whose_forms_have_a_setting(dags: dict[str, Any]):
    page = Path("docs/reference/settings.md").read_text("utf-8")
    named = {
        entry.partition("\n")[0]: entry.partition("- DAGs: ")[2].partition("\n")[0] for entry in page.split("### ")[1:]
    }
    assert named.keys() == Settings.model_fields.keys()
    for name, text in named.items():
        assert set(text.strip("`").split("`, `")) & set(ALL) == {dag for dag in ALL if name in dags[dag].params}, name


def test_the_form_of_a_comparison_has_no_setting_without_effect():
    """It measures inputs, so its trainings do not end early, and no model is kept."""
    assert {"patience", "promote", "cache"}.isdisjoint(FORM_SETTINGS["input_comparison"])


def test_the_form_of_a_comparison_says_how_it_waits_for_gpus():
    assert {"gpus_per_server", "server_wait_minutes"} <= set(FORM_SETTINGS["input_comparison"])


def test_only_the_form_of_a_comparison_has_its_options(dags: dict[str, Any]):
    options = ComparisonOptions.model_fields.keys()
    assert {dag_id for dag_id in ALL if options & set(dags[dag_id].params)} == {"input_comparison"}
    form = dags["input_comparison"].params
    assert {name: form[name] for name in options} == ComparisonOptions().model_dump()


@pytest.mark.parametrize("dag_id", ALL)
def test_a_form_has_titles_descriptions_and_valid_defaults(dags: dict[str, Any], dag_id: str):
    params = dags[dag_id].params
    for name in params:
        param = params.get_param(name)
        assert param.description, name
        assert param.schema["title"], name
    unfolded = [name for name in params if "section" not in params.get_param(name).schema]
    assert unfolded == list(params)[: len(unfolded)]  # the settings that users change most often
    # Without these, the whole form would be collapsed. A comparison has the simulated accelerator as well.
    assert 7 <= len(unfolded) <= (10 if dag_id == "input_comparison" else 8)
    params.validate()  # the defaults are valid


def test_a_settings_file_gives_the_defaults_of_the_form(tmp_path: Path):
    (tmp_path / "settings.toml").write_text('source_uri = "/data/{date}"\nepochs = 7\n')
    params = form(settings_of_command_line(tmp_path / "settings.toml", []), FORM_SETTINGS["image_training"], ["epochs"])
    assert (params["source_uri"].value, params["epochs"].value, params["seed"].value) == ("/data/{date}", 7, 0)
    assert next(iter(params)) == "epochs"


def test_the_form_accepts_up_to_a_million_shards():
    from airflow.sdk.exceptions import ParamValidationError

    param = form(Settings(), FORM_SETTINGS["image_training"], [])["num_shards"]
    assert param.resolve(1_000_000) == 1_000_000
    with pytest.raises(ParamValidationError):
        param.resolve(1_000_001)


@pytest.mark.parametrize(("lines", "name"), [([], ""), (['dataset_name = "cars"'], "cars")])
def test_the_form_has_a_default_dataset_name_only_if_it_is_set(
    lines: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "settings.toml").write_text("\n".join(['source_uri = "/data/flowers"', *lines]))
    monkeypatch.setenv("TENFOLD_SETTINGS", str(tmp_path / "settings.toml"))
    from dags.defaults import form_defaults

    assert form_defaults().dataset_name == name


@pytest.mark.parametrize("dag_id", DATED)
def test_tasks_share_the_schema_of_the_form_but_not_its_values(dags: dict[str, Any], dag_id: str):
    of_dag, of_task = (each.params.get_param("split_seed") for each in (dags[dag_id], dags[dag_id].get_task("extract")))
    assert of_dag is not of_task
    assert of_dag.schema is of_task.schema


@pytest.mark.parametrize("dag_id", DATED)
def test_the_schedule_is_off_and_dates_can_be_backfilled(dags: dict[str, Any], dag_id: str):
    from airflow.serialization.serialized_objects import DagSerialization

    dag = DagSerialization.from_dict(DagSerialization.to_dict(dags[dag_id]))
    assert dag.catchup is False
    assert dag.next_dagrun_info(last_automated_run_info=None) is None
    assert "backfills only" in dag.timetable.summary
    days = dag.iter_dagrun_infos_between(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC))
    # The first day of an interval is the data date. The run starts after its end.
    assert [(day.logical_date.day, day.run_after.day) for day in days] == [(1, 2), (2, 3), (3, 4)]


def test_the_environment_sets_the_schedule(monkeypatch: pytest.MonkeyPatch):
    from dags.schedule import schedule_from

    monkeypatch.setenv("SOME_SCHEDULE", "0 * * * *")
    assert schedule_from("SOME_SCHEDULE")["start_date"] == datetime(2020, 1, 1, tzinfo=UTC)
    assert schedule_from("SOME_SCHEDULE")["catchup"] is False
    monkeypatch.setenv("TENFOLD_START_DATE", "2026-02-01")
    monkeypatch.setenv("TENFOLD_CATCHUP", "true")
    assert schedule_from("SOME_SCHEDULE")["start_date"] == datetime(2026, 2, 1, tzinfo=UTC)
    assert schedule_from("SOME_SCHEDULE")["catchup"] is True
    monkeypatch.setenv("TENFOLD_START_DATE", "2026-02-01T00:00+02:00")
    assert schedule_from("SOME_SCHEDULE")["start_date"] == datetime(2026, 1, 31, 22, tzinfo=UTC)
    assert schedule_from("OTHER_SCHEDULE")["catchup"] is False  # a schedule that is off has no catchup
    monkeypatch.setenv("TENFOLD_START_DATE", "2026-02-01")
    monkeypatch.setenv("TENFOLD_TIMEZONE", "Europe/Berlin")
    assert schedule_from("SOME_SCHEDULE")["start_date"] == datetime(2026, 1, 31, 23, tzinfo=UTC)


@pytest.mark.parametrize(("cron", "hour"), [("", None), ("0 3 * * *", 3)])
def test_retrain_follows_new_datasets_and_a_schedule_that_is_set(
    monkeypatch: pytest.MonkeyPatch, cron: str, hour: int | None
):
    """The DAG is read back as the scheduler reads it."""
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization

    from dags.defaults import DATASETS
    from dags.retrain_schedule import VARIABLE, retrain_schedule

    monkeypatch.setenv(VARIABLE, cron)
    with DAG("retrain", **retrain_schedule()) as dag:
        pass
    read = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert read.timetable.asset_condition.name == DATASETS.name
    assert read.catchup is False
    # The runs of a backfill would train beside one another in one folder.
    allowed = {"asset_triggered", "manual", "operator_triggered", "scheduled"}
    assert set(read.allowed_run_types or ["every type"]) == allowed
    following = read.next_dagrun_info(last_automated_run_info=None)
    assert (following and following.run_after.hour) == hour
    # Airflow 3.3 knows only batches of events.
    assert getattr(read.timetable, "batch_asset_events", True) is True


@pytest.mark.parametrize("dag_id", ALL)
def test_every_task_documents_its_cost_and_its_failure(dags: dict[str, Any], dag_id: str):
    dag = dags[dag_id]
    assert "**Cost**" in dag.doc_md
    assert "backfill" in dag.doc_md.lower()
    for task in dag.tasks:
        assert "*Cost*" in task.doc_md, task.task_id
        assert "*A failure*" in task.doc_md, task.task_id
        assert not any(line.startswith("    ") for line in task.doc_md.splitlines())  # Markdown would show it as code


@pytest.mark.parametrize("dag_id", ALL)
def test_retries_of_every_task_depend_on_the_error(dags: dict[str, Any], dag_id: str):
    from airflow.sdk import RetryAction

    from pipeline import errors

    for task in dags[dag_id].tasks:
        is_long = task.task_id in ("train", "measure", "servers") or (dag_id, task.task_id) == ("retrain", "choose")
        assert task.retries == (20 if is_long else 2)
        for hopeless in (errors.SettingsError(), errors.GateError(), errors.AccessError()):
            assert task.retry_policy.evaluate(hopeless, 1, 2).action == RetryAction.FAIL
        for passing in (
            errors.Preempted(),
            errors.OutOfMemory(),
            errors.CacheDamaged(),
            errors.StorageError(),
            errors.ServerLost(),
        ):
            decision = task.retry_policy.evaluate(passing, 1, 2)
            assert (decision.action, decision.retry_delay) == (RetryAction.RETRY, timedelta(0))
        for unknown in (OSError(), errors.TrainingError(), errors.FileSystemError()):  # after a delay
            assert task.retry_policy.evaluate(unknown, 1, 2).action == RetryAction.DEFAULT


class TaskStore(dict[str, Any]):
    """A fake of the store that Airflow keeps for a task between attempts."""

    set = dict.__setitem__


def test_preemptions_do_not_use_up_the_retries_of_a_long_task():
    from dags.defaults import long_task_retries
    from pipeline.errors import Preempted, TrainingError

    policy, context = long_task_retries()["retry_policy"], {"task_state_store": TaskStore()}

    def actions(errors: list[Exception], max_tries: int) -> list[str]:
        return [policy.evaluate(error, 1, max_tries, context).action.value for error in errors]

    errors = [Preempted(), TrainingError(), Preempted(), Preempted(), OSError(), Preempted(), TrainingError()]
    assert actions(errors, 20) == ["retry", "default", "retry", "retry", "default", "retry", "fail"]
    assert actions([OSError()], 27) == ["default"]  # as after a person cleared the task


@pytest.mark.parametrize("dag_id", ALL)
def test_every_task_has_a_timeout(dags: dict[str, Any], dag_id: str):
    for task in dags[dag_id].tasks:
        # A question has the timeout ask_hours. A sensor that reschedules itself has its own timeout.
        limit = task.execution_timeout or timedelta(seconds=getattr(task, "timeout", 0))
        assert limit > timedelta(0) or task.task_id == "upload.approve", task.task_id


def test_only_training_and_its_gate_use_the_gpu_pool(dags: dict[str, Any]):
    pools = {(dag_id, task.task_id): task.pool for dag_id in ALL for task in dags[dag_id].tasks}
    training = ("image_training", "retrain", "tabular_training")
    of_gpus = {(dag_id, task) for dag_id in training for task in ("train", "promote")}
    assert {task for task, pool in pools.items() if pool == "gpu"} == of_gpus | {("input_comparison", "measure")}


def test_gates_have_priority_over_trainings(dags: dict[str, Any]):
    from airflow.task.priority_strategy import validate_and_load_priority_weight_strategy as strategy

    def weight(task: Any) -> int:
        return strategy(task.weight_rule).get_weight(SimpleNamespace(task=task))

    both = [dags[dag_id] for dag_id in ("image_training", "retrain")]
    trainings, gates = ([weight(dag.get_task(name)) for dag in both] for name in ("train", "promote"))
    assert min(gates) > max(trainings)


@pytest.mark.long
def test_an_unchanged_form_uses_the_sample_images(
    run_dag: RunDag, make_images: MakeImages, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TENFOLD_SAMPLES", str(make_images({"cats": 8, "dogs": 8})))
    ran = run_dag("image_dataset", {})
    assert ran.state == "success"
    assert "/datasets/samples/" in ran.returned("upload.commit")["dataset"]


def test_a_late_run_is_logged(caplog: pytest.LogCaptureFixture):
    import asyncio

    from dags.notify import tell_late

    asyncio.run(tell_late(24.0, {"dag_run": {"dag_run_id": "scheduled__1", "dag_id": "image_dataset"}}))
    assert "run scheduled__1 of image_dataset has not ended within 24 hours after" in caplog.text


@pytest.mark.parametrize(
    ("state", "lines"), [("running", ["async_notify late of image_dataset"]), ("failed", []), ("success", [])]
)
def test_each_notifier_hears_of_a_late_run_that_goes_on(
    state: str, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    import asyncio

    from dags.notify import tell_late

    failing = ("tests.dags.notifier.no_such_one", "builtins.dict")
    monkeypatch.setenv("TENFOLD_NOTIFIERS", ",".join([*failing, "tests.dags.notifier.WithTemplate"]))
    monkeypatch.setenv("TENFOLD_TEST_NOTES", str(tmp_path / "notes"))
    run = {"dag_run_id": "late", "dag_id": "image_dataset", "state": state}
    asyncio.run(tell_late(24.0, {"dag_run": run}))
    notes = (tmp_path / "notes").read_text().splitlines() if (tmp_path / "notes").exists() else []
    assert notes == lines
    assert [f"the notifier {name} failed" in caplog.text for name in failing] == 2 * [bool(lines)]


def test_an_empty_field_has_its_default_and_no_field_is_required(dags: dict[str, Any]):
    params = dags["image_training"].params
    assert all("null" in params.get_param(name).schema["type"] for name in params)
    assert settings_from({"epochs": None, "flip": None}) == settings_from({})
