"""What a training on a new dataset requests of the training that it continues, and what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands import training
from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import load
from pipeline.errors import BadInput, DatasetError, SettingsError
from pipeline.runs.changes import BUILD, DATASET, announce_dataset, load_changes, replace_changes, withdraw_dataset
from pipeline.runs.continuation import (
    announce_continuation,
    continued_settings,
    end_of,
    request_continuation,
    save_measured,
)
from pipeline.runs.files import OFFERS, RESULT, RUN
from pipeline.runs.launch import prepare_run
from pipeline.runs.run import Run, checkpoint_name, save_run
from tests.conftest import MakeImages, jpeg
from tests.published import publish
from tests.runs.one_change import request_change

OFFER = {"change": {"prepare": "resize", "prepare_size": 36}, "words": "1.6 times faster", "promised": [1.6, 1.5, 1.7]}


@pytest.fixture
def source(make_images: MakeImages) -> Path:
    return make_images({"a": 12, "b": 12})


@pytest.fixture
def run(source: Path, tmp_path: Path) -> Run:
    """A training under way, without its process."""
    settings = settings_from(
        {"workspace": str(tmp_path), "source_uri": str(source), "image_size": 32, "batch_size": 4, "epochs": 5}
    )
    return prepare_run(settings, publish(source, tmp_path), "run")


def requested(run: Run, source: Path, by: str = "Ada", **values: Any) -> Any:
    settings = continued_settings(run.folder, values)
    return request_continuation(settings, load(built(settings, source)), by)


def built(settings: Settings, source: Path) -> Path:
    names = ("prepare", "prepare_size", "compression", "validation_fraction")
    return publish(source, Path(settings.workspace), **{name: getattr(settings, name) for name in names})


def test_a_continued_training_has_the_settings_of_the_other_one_but_for_its_dataset(run: Run, source: Path):
    settings = continued_settings(run.folder, {"prepare": "resize", "prepare_size": "36", "prefetch_batches": "9"})
    same = run.settings.model_dump()
    changed = {name: value for name, value in settings.model_dump().items() if value != same[name]}
    assert changed == {
        "prepare": "resize",
        "prepare_size": 36,
        "prefetch_batches": 9,
        "continues": str(run.folder),
    }
    later = prepare_run(settings, built(settings, source), "later")
    assert later.settings.source_uri == str(source)
    assert later.continued_folder == run.folder


def test_the_training_may_be_named_by_a_relative_path(run: Run, source: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(run.folder.parent)
    settings = continued_settings(Path(run.folder.name), {"compression": "gzip"})
    assert settings.continues == str(run.folder)
    assert request_continuation(settings, load(built(settings, source)), "Ada").is_requested


def test_a_training_without_it_keeps_its_folder(run: Run, source: Path, tmp_path: Path):
    """The folder is named by the identity, which had no `continues` before this setting existed."""
    settings = continued_settings(run.folder, {"compression": "gzip"})
    plain = settings.model_copy(update={"continues": ""})
    dataset = built(settings, source)
    folders = {prepare_run(each, dataset, "run").folder for each in (settings, plain)}
    assert len(folders) == 2


def test_an_offer_comes_whole_with_its_promise(run: Run, source: Path):
    (run.folder / OFFERS).write_text(json.dumps({"offers": [OFFER]}))
    change = requested(run, source, prepare="resize")
    assert str(change) == "from the next epoch on: prepare=resize, prepare_size=36 on a new dataset, requested by Ada"
    assert change.promised == (1.6, 1.5, 1.7)
    # The training may offer something else when the command runs again.
    (run.folder / OFFERS).unlink()
    assert continued_settings(run.folder, {"prepare": "resize"}).prepare_size == 36


def test_the_promise_is_that_of_the_moment_at_which_the_build_began(run: Run, source: Path):
    """The build may use the cores of the training, which then offers something else."""
    (run.folder / OFFERS).write_text(json.dumps({"offers": [OFFER]}))
    settings = continued_settings(run.folder, {"prepare": "resize"})
    announce_continuation(settings, "Ada")
    [build] = load_changes(run.folder)
    assert str(build) == "once it is built: prepare=resize, prepare_size=36 on a new dataset, requested by Ada"
    (run.folder / OFFERS).write_text(json.dumps({"offers": [{**OFFER, "promised": [9.0, 8.0, 10.0]}]}))
    announce_continuation(settings, "Ben")  # Again, after a kill.
    [again] = load_changes(run.folder)
    assert again == replace(build, at=again.at, by="Ben")
    assert continued_settings(run.folder, {"prepare": "resize"}).prepare_size == 36
    change = requested(run, source, prepare="resize")
    assert (change.promised, change.begun) == ((1.6, 1.5, 1.7), again.at)
    announce_continuation(settings, "Ada")
    assert load_changes(run.folder) == [change]


def test_only_a_run_that_continues_a_training_of_its_workspace_announces_a_dataset(run: Run, tmp_path: Path):
    settings = continued_settings(run.folder, {"compression": "gzip"})
    announce_continuation(settings.model_copy(update={"continues": ""}), "Ada")
    with pytest.raises(SettingsError, match="continues must name a training of the workspace"):
        announce_continuation(settings.model_copy(update={"workspace": str(tmp_path / "other")}), "Ada")
    assert load_changes(run.folder) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"advice": "off"}, "has advice=off, so it takes no changes"),
        ({"callbacks": "mine:callback"}, "has callbacks, whose state a new training would not have"),
    ],
)
def test_no_dataset_is_built_for_a_training_that_cannot_be_continued(run: Run, changed: dict[str, str], words: str):
    settings = continued_settings(run.folder, {"compression": "gzip"})
    content = json.loads((run.folder / RUN).read_text())
    (run.folder / RUN).write_text(json.dumps({**content, "settings": {**content["settings"], **changed}}))
    with pytest.raises(BadInput, match=words):
        announce_continuation(settings, "Ada")
    assert load_changes(run.folder) == []


def test_no_dataset_is_built_for_a_complete_training(run: Run):
    settings = continued_settings(run.folder, {"compression": "gzip"})
    (run.folder / RESULT).write_text('{"run": "x"}')
    with pytest.raises(BadInput, match="is complete, so nothing can change in it"):
        announce_continuation(settings, "Ada")
    announce_dataset(run.folder, {"compression": "gzip"}, "Ada")  # It may have ended in this moment.
    assert load_changes(run.folder) == []


def test_a_run_is_repeated_without_the_dataset_of_the_training_before(run: Run, source: Path):
    settings = continued_settings(run.folder, {"compression": "gzip"})
    request = requested(run, source, compression="gzip")
    shutil.rmtree(run.dataset)
    (run.folder / RESULT).write_text('{"run": "x"}')
    announce_continuation(settings, "Ada")
    assert load_changes(run.folder) == [request]


def test_the_command_announces_the_dataset_before_it_is_built(run: Run, monkeypatch: pytest.MonkeyPatch):
    def build(settings: Settings, for_training: bool) -> None:
        announced = load_changes(run.folder)[-1]
        assert (announced.field, announced.refused) == (BUILD, "")
        raise BadInput("no build")

    monkeypatch.setattr("pipeline.stages.build.build", build)
    with pytest.raises(BadInput, match="no build"):
        training._continued(run.folder, {"compression": "gzip"}, "Ada")
    [build_line] = load_changes(run.folder)
    assert str(build_line) == (
        "compression=gzip on a new dataset, requested by Ada, was refused: the build of its dataset has failed"
    )
    assert 0 < build_line.begun <= build_line.at
    with pytest.raises(BadInput, match="no build"):
        training._continued(run.folder, {"compression": "gzip"}, "Ada")
    assert [bool(change.refused) for change in load_changes(run.folder)] == [True, True]


def test_a_build_withdraws_no_later_announcement_of_the_same_dataset(run: Run):
    settings = continued_settings(run.folder, {"compression": "gzip"})
    first = announce_continuation(settings, "Ada")
    assert first is not None
    again = replace(first, at=first.at + 9)
    replace_changes(run.folder, {first: again})
    withdraw_dataset(run.folder, first.at, "why")
    assert load_changes(run.folder) == [again]


def test_a_failure_to_withdraw_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "changes.jsonl").mkdir()
    withdraw_dataset(tmp_path, 1.0, "why")
    assert "goes on saying that a dataset is being built" in caplog.text


def test_the_promise_is_another_one_if_the_training_changes_during_the_build(run: Run, source: Path):
    (run.folder / OFFERS).write_text(json.dumps({"offers": [OFFER]}))
    settings = continued_settings(run.folder, {"prepare": "resize"})
    announce_continuation(settings, "Ada")
    taken = request_change(run.folder, "prefetch_batches", 9, by="Ada")
    replace_changes(run.folder, {taken: replace(taken, epoch=2)})
    (run.folder / OFFERS).write_text(json.dumps({"offers": [{**OFFER, "promised": [1.2, 1.1, 1.3]}]}))
    change = request_continuation(settings, load(built(settings, source)), "Ada")
    assert change.promised == (1.2, 1.1, 1.3)
    assert change.begun > 0


def test_what_was_offered_comes_before_what_a_person_chose_to_build(run: Run, source: Path):
    (run.folder / OFFERS).write_text(json.dumps({"offers": [OFFER]}))
    chosen = continued_settings(run.folder, {"prepare": "resize", "prepare_size": 64})
    announce_continuation(chosen, "Ada")  # It was killed.
    offered = continued_settings(run.folder, {"prepare": "resize"})
    assert offered.prepare_size == 36
    announce_continuation(offered, "Ada")
    announce_continuation(chosen, "Ben")
    # The build may have slowed the training down, which then offers something else.
    other = {**OFFER, "change": {"prepare": "resize", "prepare_size": 48}}
    (run.folder / OFFERS).write_text(json.dumps({"offers": [other]}))
    assert continued_settings(run.folder, {"prepare": "resize"}).prepare_size == 36
    request_continuation(offered, load(built(offered, source)), "Ada")
    assert continued_settings(run.folder, {"prepare": "resize"}).prepare_size == 36


def test_what_is_requested_comes_before_what_is_built(run: Run, source: Path):
    (run.folder / OFFERS).write_text(json.dumps({"offers": [OFFER]}))
    first = continued_settings(run.folder, {"prepare": "resize"})
    later = {**OFFER, "change": {"prepare": "resize", "prepare_size": 48}}
    (run.folder / OFFERS).write_text(json.dumps({"offers": [later]}))
    second = continued_settings(run.folder, {"prepare": "resize"})
    announce_continuation(second, "Ben")
    request_continuation(first, load(built(first, source)), "Ada")
    assert (second.prepare_size, continued_settings(run.folder, {"prepare": "resize"}).prepare_size) == (48, 36)


@pytest.mark.parametrize("also", [{}, {"prepare_size": 256}, {"cache": "auto", "prefetch_batches": 4}])
def test_a_promise_counts_if_the_new_run_has_all_its_values(run: Run, source: Path, also: dict[str, Any]):
    """It may name values that the training has already."""
    offer = {**OFFER, "change": {"prepare": "resize", **also}}
    (run.folder / OFFERS).write_text(json.dumps({"offers": [{**OFFER, "change": {"cache": "off"}}, offer]}))
    settings = continued_settings(run.folder, {"prepare": "resize"})
    assert request_continuation(settings, load(built(settings, source)), "Ada").promised == (1.6, 1.5, 1.7)


def test_what_belongs_to_an_offer_changes_no_other_setting(run: Run, source: Path, tmp_path: Path):
    """Another user of the workspace may have written the file."""
    crafted = {"source_uri": "/etc", "publish_uri": "/tmp", "model": "os:system", "workspace": "/", "epochs": 9}
    offer = {**OFFER, "change": {**OFFER["change"], **crafted}}
    (run.folder / OFFERS).write_text(json.dumps({"offers": [offer]}))
    settings = continued_settings(run.folder, {"prepare": "resize"})
    assert (settings.prepare_size, settings.source_uri, settings.workspace) == (36, str(source), str(tmp_path))
    assert (settings.publish_uri, settings.model, settings.epochs) == ("", run.settings.model, 5)


@pytest.mark.parametrize("name", ["checkpoints", ".changes.jsonl.lock", "changes.jsonl"])
def test_a_link_to_a_place_that_is_not_allowed_is_refused(
    run: Run, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    settings = continued_settings(run.folder, {"compression": "gzip"})
    dataset = load(built(settings, source))
    (secret := tmp_path / "secret").write_text("s")
    (run.folder / name).symlink_to(secret)
    monkeypatch.setenv("TENFOLD_ALLOWED_WORKSPACES", str(run.folder.parents[2] / "runs"))
    monkeypatch.setenv("TENFOLD_ALLOWED_PUBLISH", str(tmp_path / "datasets"))
    later = replace(run, settings=run.settings.model_copy(update={"continues": str(run.folder)}))
    for use in (
        lambda: continued_settings(run.folder, {"compression": "gzip"}),
        lambda: request_continuation(settings, dataset, "Ada"),
        lambda: end_of(run.folder),
        replace(later, folder=tmp_path / "runs" / "later" / "x").require_allowed,
    ):
        with pytest.raises(SettingsError, match=f"the place '.*{name}' is outside what"):
            use()
    assert secret.read_text() == "s"


def test_the_same_request_is_stored_once_and_another_dataset_is_refused(run: Run, source: Path):
    first = requested(run, source, compression="gzip")
    assert requested(run, source, by="Ben", compression="gzip") == first
    before = (run.folder / "changes.jsonl").stat().st_mtime_ns
    assert requested(run, source, compression="gzip") == first
    assert (run.folder / "changes.jsonl").stat().st_mtime_ns == before
    assert load_changes(run.folder) == [first]
    with pytest.raises(BadInput, match=r"already ends for another dataset: .*compression=gzip on a new dataset"):
        requested(run, source, prepare="resize")
    assert load_changes(run.folder) == [first]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"epochs": "9"}, "epochs cannot change in a training: the settings that can are prepare, prepare_size, "),
        ({"validation_fraction": "0.1"}, "validation_fraction cannot change in a training"),
        ({"prepare": "shrink"}, "prepare must be 'keep', 'resize' or 'raw', got 'shrink'"),
        ({"prepare": "keep"}, "prepare=keep is what the training .* has: nothing changes"),
        ({"prepare": "resize", "cache": "all"}, "cache must be"),
    ],
)
def test_what_cannot_change_is_refused(run: Run, values: dict[str, str], words: str):
    with pytest.raises(SettingsError, match=words):
        continued_settings(run.folder, values)


def test_a_size_alone_changes_nothing_of_images_that_are_kept(run: Run, source: Path):
    with pytest.raises(BadInput, match="has the same settings: nothing changes"):
        requested(run, source, prepare_size="128")
    assert load_changes(run.folder) == []


def test_a_source_that_changed_meanwhile_is_refused(run: Run, source: Path):
    (source / "a" / "new.jpg").write_bytes(jpeg(99))
    with pytest.raises(BadInput, match=r"has other examples than .*: the source has changed\. Train"):
        requested(run, source, compression="gzip")
    assert load_changes(run.folder) == []


def test_a_source_with_another_image_instead_of_one_is_refused(run: Run, source: Path):
    """The numbers of examples are the same."""
    next((source / "a").iterdir()).write_bytes(jpeg(99))
    with pytest.raises(BadInput, match=r"has other examples than .*: the source has changed\. Train"):
        requested(run, source, compression="gzip")
    assert load_changes(run.folder) == []


@pytest.mark.parametrize(("name", "value"), [("split_seed", 7), ("test_fraction", 0.1)])
def test_another_setting_of_the_dataset_is_refused(run: Run, source: Path, name: str, value: float):
    settings = continued_settings(run.folder, {"compression": "gzip"})
    dataset = load(publish(source, Path(settings.workspace), compression="gzip", **{name: value}))
    with pytest.raises(SettingsError, match=f"{name} must be .* as in the training that is continued, got {value}"):
        request_continuation(settings, dataset, "Ada")
    assert load_changes(run.folder) == []


def test_a_training_with_callbacks_is_refused(source: Path, tmp_path: Path):
    values = {"workspace": str(tmp_path), "source_uri": str(source), "image_size": 32, "callbacks": "mine:callback"}
    run = prepare_run(settings_from(values), publish(source, tmp_path), "run")
    settings = settings_from({**values, "continues": str(run.folder), "compression": "gzip"})
    with pytest.raises(BadInput, match="has callbacks, whose state a new training would not have"):
        continued_settings(run.folder, {"compression": "gzip"})
    with pytest.raises(BadInput, match="has callbacks, whose state a new training would not have"):
        request_continuation(settings, load(built(settings, source)), "Ada")


def test_the_workspace_may_have_been_moved(run: Run, source: Path, tmp_path: Path):
    moved = tmp_path.parent / f"{tmp_path.name}-moved"
    tmp_path.rename(moved)
    folder = moved / run.folder.relative_to(tmp_path)
    settings = continued_settings(folder, {"compression": "gzip"})
    assert (settings.workspace, settings.continues) == (str(moved), str(folder))
    moved.rename(tmp_path)


def test_other_settings_of_the_training_are_refused(run: Run, source: Path):
    settings = continued_settings(run.folder, {"compression": "gzip"}).model_copy(update={"learning_rate": 0.5})
    with pytest.raises(SettingsError, match=r"learning_rate must be 0\.001 as in the training that is continued, got"):
        request_continuation(settings, load(built(settings, source)), "Ada")


def test_a_training_does_not_end_for_one_that_cannot_start(run: Run, source: Path):
    settings = continued_settings(run.folder, {"compression": "gzip"})
    dataset = built(settings, source)
    next(dataset.glob("*.tfrecord*")).unlink()
    with pytest.raises(DatasetError, match="is missing"):
        training._end_continued(settings, dataset, "Ada")
    assert load_changes(run.folder) == []


@pytest.mark.parametrize(
    ("dag", "words"), [("", "run it again with its own command"), ("d", "clear its task `train` in Airflow")]
)
def test_nobody_waits_for_a_training_that_is_not_running(
    run: Run, source: Path, monkeypatch: pytest.MonkeyPatch, dag: str, words: str
):
    monkeypatch.setattr(training, "STARTS_IN_S", 0.0)
    save_run(replace(run, dag=dag))
    settings = continued_settings(run.folder, {"compression": "gzip"})
    dataset = built(settings, source)
    with pytest.raises(BadInput, match=f"is not running on this machine, so it does not end its epoch: {words}"):
        training._end_continued(settings, dataset, "Ada")
    # It ends as soon as it runs. This one is complete already, and needs it no more.
    (prepare_run(settings, dataset, training.RUN_ID).folder / RESULT).write_text('{"run": "x"}')
    training._end_continued(settings, dataset, "Ada")


def test_a_training_of_another_workspace_is_refused(run: Run, source: Path, tmp_path: Path):
    settings = continued_settings(run.folder, {"compression": "gzip"})
    settings = settings.model_copy(update={"workspace": str(tmp_path / "other")})
    with pytest.raises(SettingsError, match="continues must name a training of the workspace"):
        request_continuation(settings, load(built(settings, source)), "Ada")


def test_a_training_that_takes_no_changes_is_refused(source: Path, tmp_path: Path):
    settings = settings_from({"workspace": str(tmp_path), "advice": "off", "image_size": 32})
    run = prepare_run(settings, publish(source, tmp_path), "off")
    with pytest.raises(BadInput, match="has advice=off, so it takes no changes"):
        requested(run, source, compression="gzip")


def test_a_training_that_was_over_before_leaves_nothing(run: Run, source: Path):
    assert end_of(run.folder) is None
    (run.folder / RESULT).write_text('{"run": "x"}')
    with pytest.raises(BadInput, match="was over before it could be continued: nothing is left to train"):
        end_of(run.folder)
    with pytest.raises(BadInput, match="is complete, so nothing can change in it"):
        requested(run, source, compression="gzip")


def test_a_training_has_ended_with_its_last_checkpoint(run: Run, source: Path):
    change = requested(run, source, compression="gzip")
    answer = change.__class__(**{**change.__dict__, "epoch": 3})
    replace_changes(run.folder, {change: answer})
    (run.folder / RESULT).write_text('{"run": "x"}')
    with pytest.raises(BadInput, match=r"has ended, but .*/checkpoint-000002-\d+\.npz is missing: train"):
        end_of(run.folder)
    checkpoint = run.folder / "checkpoints" / checkpoint_name(2, 2 * run.steps_per_epoch)
    checkpoint.parent.mkdir()
    checkpoint.touch()
    end = end_of(run.folder)
    assert end is not None
    assert (end.change, end.checkpoint) == (answer, checkpoint)
    # The command that is repeated after a kill finds the same request.
    assert requested(run, source, compression="gzip") == answer
    save_measured(run.folder, change.__class__(**{**answer.__dict__, "measured": 1.5}))
    assert [each.measured for each in load_changes(run.folder)] == [1.5]
    (run.folder / RUN).unlink()
    with pytest.raises(DatasetError, match="is not the folder of a training"):
        end_of(run.folder)


def test_changes_at_an_epoch_are_kept(run: Run):
    request_change(run.folder, "prefetch_batches", 9, by="Ada")
    [change] = load_changes(run.folder)
    replace_changes(run.folder, {change: change.__class__(**{**change.__dict__, "epoch": 2})})
    assert continued_settings(run.folder, {"compression": "gzip"}).prefetch_batches == 9


def test_the_field_is_no_setting_that_changes_at_an_epoch(run: Run):
    with pytest.raises(SettingsError, match="dataset cannot change in a training"):
        request_change(run.folder, DATASET, "prepare=resize", by="Ada")
