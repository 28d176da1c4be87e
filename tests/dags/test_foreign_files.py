"""Files of a workspace, and XComs, that another hand changed: the tasks read and write nothing outside of the lists."""

import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dags import input_comparison, tasks
from dags.engines import write_with_engine
from dags.operators import ApproveOperator
from pipeline.config.allowed import MODELS, PUBLISH, SOURCES, WORKSPACES, allowlists
from pipeline.config.settings import Settings
from pipeline.engines.task import Task
from pipeline.errors import SettingsError, TenfoldError
from pipeline.runs.launch import TrainingProcess, prepare_run
from pipeline.sharding.write import write_plan_file, write_range
from pipeline.stages.extract import divide, list_range_file
from pipeline.stages.shard import write_planned
from tests.dags.planned_run import PlannedRun
from tests.foreign_plans import EDITS, OUTSIDE, Edit, copy_images, edit_json, move_behind_link
from tests.published import build_in_stages, no_progress, planned, write_and_copy
from tests.snapshots import take_snapshot

pytestmark = pytest.mark.filterwarnings("default")  # Airflow itself causes many warnings
OPENED: deque[str] = deque(maxlen=10_000)
"""The last paths that this process opened. The hook stays for all tests of the process, so their number is limited."""
sys.addaudithook(lambda event, arguments: OPENED.append(_path(arguments[0])) if event == "open" else None)


def _path(opened: Any) -> str:
    return os.fsdecode(opened) if isinstance(opened, str | bytes | os.PathLike) else ""


@pytest.fixture
def settings(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings whose places the administrator allows, and no others."""
    monkeypatch.setenv(SOURCES, settings.source_uri)
    monkeypatch.setenv(WORKSPACES, settings.workspace)
    monkeypatch.setenv(PUBLISH, str(tmp_path / "published"))
    monkeypatch.setenv(MODELS, "")
    monkeypatch.setenv("TENFOLD_WORKSPACE", settings.workspace)
    monkeypatch.setenv("TENFOLD_LOCAL_FOLDER", str(tmp_path / "local"))
    for module in (tasks, input_comparison):
        monkeypatch.setattr(module, "get_current_context", dict)  # A task of a running DAG names itself there.
    return settings.model_copy(
        update={"publish_uri": str(tmp_path / "published"), "num_shards": 2, "local_folder": str(tmp_path / "local")}
    )


@pytest.fixture
def outside(settings: Settings, tmp_path: Path) -> Iterator[Path]:
    """A folder outside of the lists, with the images of the source. At the end of the test, it must be untouched."""
    folder = tmp_path / OUTSIDE
    copy_images(settings, folder)
    before = _files(folder)
    OPENED.clear()
    yield folder
    assert [path for path in OPENED if os.path.realpath(path).startswith(str(folder))] == []
    assert _files(folder) == before


def _files(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def _with_airflow(settings: Settings, plan: Path, plan_files: list[Path]) -> None:
    for path in plan_files:
        tasks.write.function(str(path), settings.model_dump())


def _with_local_engine(settings: Settings, plan: Path, plan_files: list[Path]) -> None:
    write_planned(plan, settings)


def _as_call_of_an_engine(settings: Settings, plan: Path, plan_files: list[Path]) -> None:
    for path in plan_files:
        Task(write_plan_file, allowlists()).attempt(str(path)).require_success()


@pytest.mark.parametrize("write", [_with_airflow, _with_local_engine, _as_call_of_an_engine])
@pytest.mark.parametrize("edit", EDITS)
def test_a_plan_file_of_another_hand_is_refused_by_every_writer(
    edit: str, write: Callable[..., None], settings: Settings, outside: Path, tmp_path: Path
):
    plan, plan_files = planned(settings)
    EDITS[edit](settings, plan_files[0], outside)  # type: ignore[arg-type]
    OPENED.clear()
    with pytest.raises(TenfoldError, match=r"is outside what TENFOLD_ALLOWED_|never gives a shard the name"):
        write(settings, plan, plan_files)
    assert list(tmp_path.rglob("*.tfrecord")) == []


@pytest.mark.parametrize("write", [_with_airflow, _with_local_engine, _as_call_of_an_engine])
def test_an_unchanged_plan_is_written(write: Callable[..., None], settings: Settings, outside: Path, tmp_path: Path):
    plan, plan_files = planned(settings)
    write(settings, plan, plan_files)
    assert len(list(tmp_path.rglob("*.tfrecord"))) == 3


# --- after the shards are written ------------------------------------------------------------------------------------


def _copy(settings: Settings, plan: Path, plan_file: Path) -> None:
    tasks.copy.function(str(plan_file), settings.model_dump())


def _copy_for_engine(settings: Settings, plan: Path, plan_file: Path) -> None:
    tasks.copy.function(str(plan), {**settings.model_dump(), "engine": "spark"})


def _commit(settings: Settings, plan: Path, plan_file: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "get_current_context", lambda: {"ti": PlannedRun(plan)})
        tasks.commit.function(settings.model_dump())


def _approve(settings: Settings, plan: Path, plan_file: Path) -> None:
    values = {**settings.model_dump(), "on_drift": "ask"}
    operator = ApproveOperator(task_id="approve", settings=values)
    event = {"chosen_options": ["Approve"], "params_input": {}, "responded_at": SimpleNamespace(isoformat=str)}
    run = PlannedRun(plan, ["a question"])
    operator.execute_complete({"ti": run}, {**event, "responded_by_user": None})


def _plan_names(name: str) -> Edit:
    """Return an edit after which a field of the plan names the folder outside, or a file there."""
    value: Callable[[Path], Any] = (lambda outside: [str(outside / "a")]) if name == "ranges" else str
    return lambda _, plan_file, outside: edit_json(
        plan_file.parents[1] / "plan.json", lambda plan: plan.update({name: value(outside)})
    )


def _link(pattern: str) -> Edit:
    """Return an edit that moves the first match in the workspace outside, and leaves a link."""
    return lambda settings, _, outside: move_behind_link(
        next(path for path in sorted(Path(settings.workspace).rglob(pattern)) if path.exists()), outside
    )


def _link_partitions(settings: Settings, _: Path, outside: Path) -> None:
    folder = Path(settings.publish_uri, settings.dataset_name, "partitions")
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(outside)


def _parts_outside(settings: Settings, plan_file: Path, outside: Path) -> None:
    [snapshot] = Path(settings.workspace).rglob("snapshots/*.json")
    edit_json(snapshot, lambda content: content["parts"][0].update(rows=str(outside / "a.jsonl")))


AFTER: dict[str, tuple[Callable[..., None], Edit]] = {
    "copy: published folder": (_copy, EDITS["published folder"]),
    "copy: folder of shards": (_copy, EDITS["folder to write"]),
    "copy: name of a shard": (_copy, EDITS["name of a shard"]),
    "copy: linked plan file": (_copy, EDITS["linked plan file"]),
    "copy: linked shard": (_copy, _link("shards/train-*.tfrecord")),
    "copy: linked result": (_copy, _link("results/train-*.json")),
    "copy for an engine: folder of shards": (_copy_for_engine, EDITS["folder to write"]),
    "copy for an engine: linked shard": (_copy_for_engine, _link("shards/train-*.tfrecord")),
    "copy for an engine: plan files": (_copy_for_engine, _plan_names("ranges")),
    "approve: linked plan": (_approve, _link("plan.json")),
    "approve: dataset": (_approve, _plan_names("dataset")),
    "commit: dataset": (_commit, _plan_names("dataset")),
    "commit: folder of shards": (_commit, _plan_names("written")),
    "commit: snapshot": (_commit, _plan_names("snapshot")),
    "commit: plan files": (_commit, _plan_names("ranges")),
    "commit: parts of the snapshot": (_commit, _parts_outside),
    "commit: linked list of duplicates": (_commit, _link("duplicates.jsonl")),
    "commit: linked list of skipped files": (_commit, _link("*.skipped")),
    "commit: linked partitions": (_commit, _link_partitions),
}
"""The task that runs, and what another hand does before."""


@pytest.mark.parametrize("case", AFTER)
def test_a_plan_of_another_hand_is_not_published(case: str, settings: Settings, outside: Path, tmp_path: Path):
    stage, edit = AFTER[case]
    plan, plan_files = planned(settings)
    for path in plan_files:
        write_range(path, no_progress)
    edit(settings, plan_files[0], outside)  # type: ignore[arg-type]
    before = _files(tmp_path / "published")
    OPENED.clear()
    with pytest.raises(TenfoldError, match=r"is outside what TENFOLD_ALLOWED_|never gives a shard the name"):
        stage(settings, plan, plan_files[0])
    assert _files(tmp_path / "published") == before


def test_a_commit_with_settings_of_another_hand_is_refused(settings: Settings, outside: Path):
    plan, plan_files = planned(settings)
    write_and_copy(plan_files)
    with pytest.raises(SettingsError, match=r"workspace '.*' is outside what TENFOLD_ALLOWED_WORKSPACES allows"):
        _commit(settings.model_copy(update={"workspace": str(outside)}), plan, plan_files[0])


def test_an_engine_gets_no_plan_file_that_is_an_option(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dags.engines.RUNNERS", {"beam": lambda *_: pytest.fail("the engine was started")})
    with pytest.raises(SettingsError, match="is outside what"):
        write_with_engine("--config=/etc/settings", {**settings.model_dump(), "engine": "beam"})


# --- ranges, snapshots and runs --------------------------------------------------------------------------------------


@pytest.fixture
def ranges(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("TENFOLD_RANGE_IMAGES", "8")
    return divide(settings)


def _move_range_file(path: Path, outside: Path) -> None:
    move_behind_link(path, outside)


def _name_workspace(path: Path, outside: Path) -> None:
    edit_json(path, lambda content: content["settings"].update(workspace=str(outside)))


@pytest.mark.parametrize("edit", [_move_range_file, _name_workspace])
def test_a_range_of_another_hand_is_not_listed(edit: Callable[..., None], ranges: list[str], outside: Path):
    edit(Path(ranges[0]), outside)
    OPENED.clear()
    with pytest.raises(SettingsError, match="is outside what TENFOLD_ALLOWED_WORKSPACES allows"):
        tasks.extract_range.function(ranges[0])


def test_a_listing_of_another_hand_is_not_planned(ranges: list[str], settings: Settings, outside: Path):
    for path in ranges:
        list_range_file(path)
    edit_json(
        Path(ranges[0]).with_suffix(".listing"), lambda content: content["parts"][0].update(rows=str(outside / "a"))
    )
    with pytest.raises(SettingsError, match="is outside what TENFOLD_ALLOWED_WORKSPACES allows"):
        tasks.plan.function(settings.model_dump(), "", ranges, False)


def test_a_snapshot_of_another_hand_is_not_planned(settings: Settings, outside: Path):
    snapshot = take_snapshot(settings)
    edit_json(Path(str(snapshot)), lambda content: content["parts"][0].update(rows=str(outside / "a.jsonl")))
    with pytest.raises(SettingsError, match="is outside what TENFOLD_ALLOWED_WORKSPACES allows"):
        tasks.plan.function(settings.model_dump(), str(snapshot), [], False)


def test_a_place_from_an_xcom_is_not_read(settings: Settings, outside: Path):
    shutil.copytree(build_in_stages(settings), outside.parent / f"{outside.name}-dataset")
    for use in (
        lambda place: tasks.servers.function(settings.model_dump(), place),
        lambda place: tasks.report.function([place]),
        lambda place: tasks.promote.function(settings.model_dump(), [place]),
        lambda place: input_comparison.page.function(place),
        lambda place: input_comparison.measure.function(
            settings.model_dump(), {}, [{"prepare": "keep", "dataset": place, "source_root": settings.source_uri}]
        ),
    ):
        OPENED.clear()
        with pytest.raises(SettingsError, match="is outside what TENFOLD_ALLOWED_WORKSPACES"):
            use(f"{outside}-dataset")


def test_a_dataset_with_a_link_that_leads_outside_is_not_read(settings: Settings, outside: Path):
    dataset = build_in_stages(settings)
    move_behind_link(next(dataset.glob("train-*.tfrecord")), outside)  # type: ignore[arg-type,union-attr]
    OPENED.clear()
    with pytest.raises(SettingsError, match=r"train-.*\.tfrecord' is outside what TENFOLD_ALLOWED_WORKSPACES"):
        tasks.servers.function(settings.model_dump(), str(dataset))


def test_a_training_does_not_begin_in_a_folder_that_leads_outside(settings: Settings, outside: Path):
    dataset = build_in_stages(settings)
    (Path(settings.workspace) / "runs").symlink_to(outside)
    with pytest.raises(SettingsError, match="is outside what TENFOLD_ALLOWED_WORKSPACES"):
        prepare_run(settings, dataset, "run")


def test_the_report_and_the_promotion_follow_no_link_of_another_hand(settings: Settings, outside: Path):
    run = prepare_run(settings, build_in_stages(settings), "run")
    (run.folder / "evaluation.json").symlink_to(outside / "000.jpg")
    for use in (tasks.report.function, lambda runs: tasks.promote.function(settings.model_dump(), runs)):
        OPENED.clear()
        with pytest.raises(SettingsError, match=r"evaluation\.json' is outside what TENFOLD_ALLOWED_WORKSPACES"):
            use([str(run.folder)])


def test_a_run_json_of_another_hand_starts_no_training(settings: Settings, outside: Path):
    """Its model is a function of a package that is not allowed."""
    run = prepare_run(settings, build_in_stages(settings), "run")
    edit_json(run.folder / "run.json", lambda content: content["settings"].update(model="not_allowed:make"))
    with open(os.devnull, "wb") as nowhere, pytest.raises(SettingsError, match=r"outside what TENFOLD_ALLOWED_MODELS"):
        TrainingProcess(run, nowhere.fileno()).wait()
