"""Permissions: every field and every kind of source reaches only what the administrator allows."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.allowed import (
    MAX_FOLDERS,
    MODELS,
    PUBLISH,
    SOURCES,
    WORKSPACES,
    Sources,
    require_allowed,
    require_folder,
    require_output,
)
from pipeline.config.preflight import preflight
from pipeline.config.settings import Settings, settings_from
from pipeline.config.workspace import allowed_name_folder, name_folder, require_allowed_folders, require_name
from pipeline.dataset.partitions import move_partition, newest_partitions
from pipeline.errors import SettingsError, SourceError
from pipeline.runs.launch import load_trained_result, prepare_run
from pipeline.sources import Found, Listed, Skipped, SourceOptions
from pipeline.sources.detection import images_of
from pipeline.sources.folder import LEADS_OUTSIDE
from pipeline.storage import place_of
from standins.fake_gcs import FakeGcs
from tests.conftest import MakeImages, jpeg
from tests.snapshots import take_snapshot
from tests.sources.examples import imagenet, options_of, stanford_cars, write_annotations, write_images

ALLOW = Callable[..., None]


@pytest.fixture
def allow(monkeypatch: pytest.MonkeyPatch) -> ALLOW:
    def allow(setting: str, *prefixes: object) -> None:
        monkeypatch.setenv(setting, ",".join(map(str, prefixes)))

    return allow


def refused(**values: Any) -> str:
    """Return the error message, or an empty string if the settings are allowed."""
    try:
        require_allowed(settings_from(values))
    except SettingsError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("prefixes", "uri", "allowed"),
    [
        ("/data", "/data", True),
        ("/data/", "/data/a/b", True),
        ("/data", "/database", False),
        ("/data", "/data/../etc", False),
        ("/data", "/", False),
        ("/", "/etc", True),
        ("/", "gs://bucket/a", False),
        (" /other , /data ,", "/data/a", True),
        ("", "/data", False),
        (" , ", "/data", False),
        ("gs://bucket/photos", "gs://bucket/photos/2026", True),
        ("gs://bucket/photos/", "gs://bucket/photos", True),
        ("gs://bucket/photos", "gs://bucket/photos2", False),
        ("gs://bucket/photos", "gs://bucket", False),
        ("gs://bucket/photos", "gs://bucket/photos/../secret", False),
        ("gs://bucket", "gs://bucket/any/thing", True),
        ("gs://bucket", "gs://bucket/../other", False),
        ("gs://bucket", "gs://bucket2/a", False),
        ("gs://bucket", "/bucket", False),
        ("/data", "/data/\0", False),
    ],
)
def test_an_allowed_prefix_covers_its_folder_and_everything_below(prefixes: str, uri: str, allowed: bool, allow: ALLOW):
    allow(SOURCES, prefixes)
    assert (refused(source_uri=uri) == "") is allowed


def test_allowed_prefixes_and_paths_are_compared_after_resolving_links(tmp_path: Path, allow: ALLOW):
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real")
    (tmp_path / "real" / "way_out").symlink_to("/etc")
    (tmp_path / "real" / "loop").symlink_to("loop")
    allow(SOURCES, tmp_path / "alias")
    assert not refused(source_uri=str(tmp_path / "real" / "a"))
    assert not refused(source_uri=str(tmp_path / "alias" / "loop"))
    assert "source_uri" in refused(source_uri=str(tmp_path / "alias" / "way_out" / "passwd"))


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("source_uri", [SOURCES]),
        ("label_map", [SOURCES]),
        ("weights", [SOURCES]),
        ("workspace", [WORKSPACES]),
        ("local_folder", [WORKSPACES]),
        ("publish_uri", [PUBLISH]),
        ("dataset", [WORKSPACES, PUBLISH]),
    ],
)
def test_each_field_is_governed_by_its_setting_and_a_star_allows_everything(
    field: str, settings: list[str], allow: ALLOW
):
    value = {field: "/etc/a.keras"}
    for setting in settings:
        allow(setting, "*")
    assert not refused(**value)
    for other in {SOURCES, WORKSPACES, PUBLISH} - set(settings):
        allow(other)
    assert not refused(**value)
    for setting in settings:
        allow(setting, "/data", "gs://photos/a")
    assert refused(**value).startswith(f"{field} '/etc/a.keras' is outside what {settings[0]} allows (/data, gs://ph")
    assert all(f"{setting} allows (/data, gs://photos/a" in refused(**value) for setting in settings)


@pytest.mark.parametrize(
    ("values", "settings"),
    [
        ({"source_uri": "/data"}, [SOURCES]),
        ({"source_uri": "gs://photos/a"}, [SOURCES]),
        ({"label_map": "/etc/passwd"}, [SOURCES]),
        ({"weights": "/etc/a.keras"}, [SOURCES]),
        ({"workspace": "/etc"}, [WORKSPACES]),
        ({"local_folder": "/etc"}, [WORKSPACES]),
        ({"publish_uri": "/etc"}, [PUBLISH]),
        ({"dataset": "/etc"}, [WORKSPACES, PUBLISH]),
        ({"model": "mine:make"}, [MODELS]),
        ({"callbacks": "mine:make"}, [MODELS]),
    ],
)
def test_an_unset_permission_allows_nothing_and_the_error_names_it(
    values: dict[str, str], settings: list[str], monkeypatch: pytest.MonkeyPatch
):
    for setting in (SOURCES, WORKSPACES, PUBLISH, MODELS):
        monkeypatch.delenv(setting, raising=False)
    monkeypatch.setenv("TENFOLD_WORKSPACE", "/srv/tenfold")
    assert not refused()
    message = refused(**values)
    assert message.startswith(
        f"{next(iter(values))} '{next(iter(values.values()))}' is outside what {settings[0]} allow"
    )
    assert f"set {' or '.join(settings)} in the environment of Airflow's workers" in message
    assert "or to * for everything" in message


def test_the_command_line_allows_everything_by_default_and_reports_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for setting in (SOURCES, PUBLISH, MODELS):
        monkeypatch.delenv(setting, raising=False)
    monkeypatch.setenv(WORKSPACES, settings.workspace)
    options = [f"--set={name}={getattr(settings, name)}" for name in ("source_uri", "workspace", "dataset_name")]
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "extract", *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{SOURCES}, {PUBLISH} and {MODELS} allow everything" in done.stderr
    assert WORKSPACES not in done.stderr


def test_a_dataset_is_allowed_in_workspaces_and_publish_locations(allow: ALLOW):
    allow(WORKSPACES, "/w")
    allow(PUBLISH, "gs://published")
    assert not refused(dataset="/w/datasets/a", workspace="/w")
    assert not refused(dataset="gs://published/a", workspace="/w")
    assert refused(dataset="/data/a", workspace="/w")


def test_the_workspace_of_the_environment_is_allowed(allow: ALLOW, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENFOLD_WORKSPACE", "/srv/tenfold")
    allow(WORKSPACES)
    assert not refused()
    assert not refused(workspace="/srv/tenfold/team")
    assert "TENFOLD_ALLOWED_WORKSPACES allows (/srv/tenfold, " in refused(workspace="/srv/other")


@pytest.mark.parametrize("entry", ["data", "~/data", "gs://", "gs:///photos", "s3://photos"])
def test_an_invalid_entry_of_an_allow_list_is_refused(entry: str, allow: ALLOW):
    allow(SOURCES, "/data", entry)
    assert refused(source_uri="/data").startswith(f"{SOURCES} must list absolute paths and gs://bucket/prefix")


@pytest.mark.parametrize(
    ("packages", "model", "allowed"),
    [
        ("", "small_cnn", True),
        ("", "MobileNetV2", True),
        ("", "os:kill", False),
        ("mine", "mine:make", True),
        ("mine", "mine.vision.models:make", True),
        ("mine.vision", "mine.vision:make", True),
        ("mine.vision", "mine:make", False),
        ("mine.vision", "mine.vision2:make", False),
        ("mine.vision", "mine.other:make", False),
        (" other , mine ", "mine:make", True),
        ("mine.", "mine2:make", False),
    ],
)
def test_an_allowed_package_includes_its_submodules(packages: str, model: str, allowed: bool, allow: ALLOW):
    assert not refused(model=model)
    allow(MODELS, packages)
    message = refused(model=model)
    assert (message == "") is allowed
    assert allowed or f"model {model!r} is outside what {MODELS} allows ({packages or 'nothing'})" in message


def test_callbacks_must_come_from_an_allowed_package(allow: ALLOW):
    allow(MODELS, "mine")
    assert not refused(callbacks="mine.callbacks:make")
    assert "callbacks 'os:kill' is outside what TENFOLD_ALLOWED_MODELS allows (mine)" in refused(callbacks="os:kill")


def test_a_forbidden_package_is_not_imported(
    settings: Settings, tmp_path: Path, allow: ALLOW, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "not_allowed.py").write_text(f"open({str(tmp_path / 'it_ran')!r}, 'w').close()")
    allow(MODELS, "mine")
    settings = settings.model_copy(update={"model": "not_allowed:make"})
    assert MODELS in sentence(settings)
    with pytest.raises(SettingsError, match=MODELS):
        prepare_run(settings, tmp_path / "nothing", "run")
    assert not (tmp_path / "it_ran").exists()


def sentence(settings: Settings) -> str:
    with pytest.raises(SettingsError) as caught:
        preflight(settings)
    return str(caught.value)


@pytest.mark.parametrize("field", ["source_uri", "label_map", "weights"])
def test_the_error_for_a_forbidden_path_does_not_reveal_whether_the_file_exists(
    field: str, settings: Settings, tmp_path: Path, allow: ALLOW
):
    """Both names end in h5, because Settings refuses other suffixes for weights."""
    (tmp_path / "here.h5").touch()
    allow(SOURCES, settings.source_uri)
    here, gone = (
        sentence(settings.model_copy(update={field: str(tmp_path / name)})) for name in ("here.h5", "gone.h5")
    )
    assert here.replace("here.h5", "gone.h5") == gone
    assert SOURCES in here


def test_a_forbidden_bucket_receives_no_request(settings: Settings, gcs: FakeGcs, allow: ALLOW):
    allow(SOURCES, settings.source_uri)
    allow(PUBLISH, "gs://bucket/published")
    for field in ("source_uri", "publish_uri"):
        assert field in sentence(settings.model_copy(update={field: "gs://bucket/other"}))
    assert not gcs.requests


@pytest.mark.parametrize(
    "first",
    [
        take_snapshot,
        lambda settings: newest_partitions(allowed_name_folder(settings), 1),
        lambda settings: move_partition(allowed_name_folder(settings), "latest", "0" * 16),
        lambda settings: load_trained_result(settings, Path("/nothing"), "run"),
        lambda settings: prepare_run(settings, Path("/nothing"), "run"),
    ],
    ids=["extract", "window", "partition", "trained before", "train"],
)
def test_each_entry_point_checks_permissions_before_it_reads(
    first: Callable[[Settings], Any], settings: Settings, allow: ALLOW
):
    allow(WORKSPACES, "/w")
    with pytest.raises(SettingsError, match=r"workspace '.*' is outside what TENFOLD_ALLOWED_WORKSPACES"):
        first(settings)
    assert not Path(settings.workspace).exists()


def test_a_refused_place_does_not_reveal_its_datasets(settings: Settings, tmp_path: Path, allow: ALLOW):
    (settings.datasets_folder / "secret" / "partitions").mkdir(parents=True)  # type: ignore[union-attr]
    allow(WORKSPACES, tmp_path / "other")
    with pytest.raises(SettingsError) as refusal:
        require_name(settings.model_copy(update={"dataset_name": "mistyped"}))
    assert "secret" not in str(refusal.value)


def test_training_checks_the_permission_of_a_dataset_argument(settings: Settings, allow: ALLOW):
    """The dataset of an asset event is an example: it comes from no field."""
    allow(WORKSPACES, settings.workspace)
    allow(PUBLISH)
    with pytest.raises(SettingsError, match=r"dataset '/etc' is outside what TENFOLD_ALLOWED_WORKSPACES"):
        prepare_run(settings, place_of("/etc"), "run")


# --- what a file of the workspace names -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("data/a.jpg", True),
        ("data/sub/../a.jpg", True),
        ("data/inner/a.jpg", True),  # a link to a folder that is allowed
        ("one.jpg", True),  # the list names the file itself
        ("other.jpg", False),
        ("data/../other.jpg", False),
        ("data/..", False),
        ("data/sub/..", True),
        ("data/out/a.jpg", False),
        ("data/out.jpg", False),
        ("data/missing/a.jpg", True),
        ("database/a.jpg", False),
        ("data/\0/a.jpg", False),
    ],
)
def test_many_files_are_checked_as_each_of_them_alone(path: str, allowed: bool, tmp_path: Path, allow: ALLOW):
    (tmp_path / "data" / "sub").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "data" / "inner").symlink_to("sub")
    (tmp_path / "data" / "out").symlink_to(tmp_path / "outside")
    (tmp_path / "data" / "out.jpg").symlink_to(tmp_path / "outside" / "a.jpg")
    allow(SOURCES, tmp_path / "data", tmp_path / "one.jpg")
    sources = Sources()
    for _ in range(2):  # The second time, the folder is known.
        for place in (f"{tmp_path}/{path}", Path(f"{tmp_path}/{path}")):
            if allowed:
                sources.require(place)
            else:
                with pytest.raises(SourceError, match="is outside what TENFOLD_ALLOWED_SOURCES allows"):
                    sources.require(place)


def test_known_folders_take_little_memory(allow: ALLOW):
    allow(SOURCES, "/data")
    sources = Sources()
    for number in range(MAX_FOLDERS + 10):
        sources.require(f"/data/{number}/a.jpg")
    assert len(sources._known) <= MAX_FOLDERS


def test_places_of_a_bucket_need_no_request(gcs: FakeGcs, allow: ALLOW):
    allow(SOURCES, "gs://bucket/photos")
    Sources().require(place_of("gs://bucket/photos/a.jpg"))
    for uri in ("gs://bucket/photos2/a.jpg", "gs://bucket/photos/../a.jpg", "gs://other/photos/a.jpg"):
        with pytest.raises(SourceError):
            Sources().require(place_of(uri))
    assert not gcs.requests


def test_the_folder_of_a_run_has_no_link_that_leads_outside(tmp_path: Path, allow: ALLOW):
    allow(WORKSPACES, tmp_path / "run", tmp_path / "shared")
    allow(PUBLISH)
    (tmp_path / "run" / "a" / "b").mkdir(parents=True)
    (tmp_path / "run" / "a" / "inside").symlink_to(tmp_path / "shared")
    (tmp_path / "run" / "loop").symlink_to(tmp_path / "run")
    require_folder(tmp_path / "run")
    require_folder(tmp_path / "run" / "missing")
    (tmp_path / "run" / "a" / "b" / "out").symlink_to("/etc")
    with pytest.raises(SettingsError, match=r"the place '.*/run/a/b/out' is outside what TENFOLD_ALLOWED_WORKSPACES"):
        require_folder(tmp_path / "run")


@pytest.mark.parametrize("name", ["labels", "partitions", "windows"])
def test_a_linked_folder_of_a_dataset_name_is_refused(name: str, settings: Settings, tmp_path: Path, allow: ALLOW):
    allow(WORKSPACES, settings.workspace)
    allow(PUBLISH)
    allow(SOURCES, settings.source_uri)
    require_allowed_folders(settings)
    folder = name_folder(settings)
    folder.mkdir(parents=True)  # type: ignore[union-attr]
    (folder / name).symlink_to(tmp_path)  # type: ignore[union-attr]
    with pytest.raises(SettingsError, match=rf"/{name}' is outside what TENFOLD_ALLOWED_WORKSPACES"):
        require_allowed_folders(settings)


def test_the_default_folders_are_allowed_everywhere(tmp_path: Path, allow: ALLOW, monkeypatch: pytest.MonkeyPatch):
    allow(WORKSPACES)
    allow(PUBLISH)
    monkeypatch.delenv("TENFOLD_WORKSPACE", raising=False)
    monkeypatch.delenv("TENFOLD_LOCAL_FOLDER", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    require_output(tmp_path / "workspace" / "runs")
    require_output(tmp_path / "home" / ".cache" / "tenfold" / "runs")
    with pytest.raises(SettingsError, match=r"the place '/etc/a' is outside what"):
        require_output(Path("/etc/a"))


# --- what a source holds ----------------------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder with an image that is not allowed."""
    write_images(tmp_path, "outside/a.jpg")
    return tmp_path / "outside"


def entries_of(place: Path) -> list[Found]:
    return list(images_of(place, options_of()))


@pytest.mark.parametrize("name", ["a.jpg", "gone.jpg"])
@pytest.mark.parametrize("row", ["{outside}/{name}", "../outside/{name}", "file://{outside}/{name}", "link/{name}"])
def test_a_list_row_outside_the_allowed_source_stops_the_run(
    row: str, name: str, outside: Path, tmp_path: Path, allow: ALLOW
):
    write_images(tmp_path, "source/b.jpg")
    (tmp_path / "source" / "link").symlink_to(outside)
    place = tmp_path / "source" / "list.csv"
    place.write_text(f"path,label\nb.jpg,cat\n{row.format(outside=outside, name=name)},dog\n")
    assert sum(isinstance(item, Listed) for item in entries_of(place)) == 2
    allow(SOURCES, tmp_path / "source")
    with pytest.raises(SourceError, match=rf"names '.*{name}', which is outside what TENFOLD_ALLOWED_SOURCES allows"):
        entries_of(place)
    allow(SOURCES, tmp_path / "source", outside)
    assert sum(isinstance(item, Listed) for item in entries_of(place)) == 2


@pytest.mark.parametrize("row", ["gs://bucket/other/a.jpg", "../other/a.jpg", "gs://bucket/raw/../other/a.jpg"])
def test_an_object_outside_the_allowed_source_is_not_requested(row: str, tmp_path: Path, gcs: FakeGcs, allow: ALLOW):
    gcs.put("bucket", "other/a.jpg", jpeg(1))
    gcs.put("bucket", "raw/list.csv", f"path,label\n{row},dog\n".encode())
    allow(SOURCES, "gs://bucket/raw")
    requests = gcs.fail("stall", "get", "other", times=None, seconds=0)  # This fault only counts requests.
    with pytest.raises(SourceError, match="which is outside what TENFOLD_ALLOWED_SOURCES allows"):
        list(images_of(place_of("gs://bucket/raw/list.csv"), options_of()))
    assert requests.fired == 0


def test_a_list_linked_from_outside_the_allowed_source_is_refused(outside: Path, tmp_path: Path, allow: ALLOW):
    (outside / "list.csv").write_text("path,label\na.jpg,cat\n")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "list.csv").symlink_to(outside / "list.csv")
    allow(SOURCES, tmp_path / "source")
    assert "source_uri" in refused(source_uri=str(tmp_path / "source" / "list.csv"))


def test_links_out_of_the_allowed_source_are_skipped(outside: Path, make_images: MakeImages, allow: ALLOW):
    source = make_images({"train/cats": 1, "train/dogs": 1})
    (source / "train" / "dogs" / "within.jpg").symlink_to(source / "train" / "cats" / "000.jpg")
    (source / "train" / "dogs" / "out.jpg").symlink_to(outside / "a.jpg")
    (source / "train" / "dogs" / "gone.jpg").symlink_to(outside / "gone.jpg")  # must not be reported as missing
    (source / "train" / "eels").symlink_to(outside)
    (source / "test").symlink_to(outside.parent)  # would be another split if it were read
    allow(SOURCES, source)
    found = entries_of(source)
    assert [item.key for item in found if isinstance(item, Listed)] == [
        "train/cats/000.jpg",
        "train/dogs/000.jpg",
        "train/dogs/within.jpg",
    ]
    assert {item.key: item.reason for item in found if isinstance(item, Skipped)} == dict.fromkeys(
        ["test", "train/dogs/gone.jpg", "train/dogs/out.jpg", "train/eels"], LEADS_OUTSIDE
    )


@pytest.mark.parametrize("held", ["cats/a.jpg", "a.jpg"])
def test_the_content_of_a_linked_forbidden_folder_is_not_revealed(
    held: str, outside: Path, tmp_path: Path, allow: ALLOW
):
    """If the folder were read, "cats/a.jpg" would make it a split next to a class, which is an error."""
    write_images(outside, held)
    write_images(tmp_path, "source/car/b.jpg")
    (tmp_path / "source" / "train").symlink_to(outside)
    allow(SOURCES, tmp_path / "source")
    found = entries_of(tmp_path / "source")
    assert [item.key for item in found] == ["car/b.jpg", "train"]
    assert found[-1] == Skipped("train", LEADS_OUTSIDE)


def moved(path: Path, folder: Path) -> None:
    """Move `path` into a folder, and leave a link in its place."""
    folder.mkdir(exist_ok=True)
    path.symlink_to(path.rename(folder / path.name))


@pytest.mark.parametrize("name", ["imagenet_2012_validation_synset_labels.txt", "imagenet_metadata.txt"])
def test_imagenet_lists_linked_from_outside_are_refused(name: str, outside: Path, tmp_path: Path, allow: ALLOW):
    place = imagenet(tmp_path / "source")
    moved(place / name, outside)
    assert entries_of(place)
    allow(SOURCES, place)
    with pytest.raises(SourceError, match=rf"names '.*{name}', which is outside what TENFOLD_ALLOWED_SOURCES"):
        entries_of(place)


def test_imagenet_folders_linked_from_outside_are_skipped(outside: Path, tmp_path: Path, allow: ALLOW):
    place = imagenet(tmp_path / "source")
    moved(place / "val", outside)
    moved(place / "train" / "n01443537", outside)
    allow(SOURCES, place)
    found = entries_of(place)
    assert [item.key for item in found if isinstance(item, Listed)] == ["train/n01440764/n01440764_1.JPEG"]
    assert {Skipped("val", LEADS_OUTSIDE), Skipped("train/n01443537", LEADS_OUTSIDE)} <= {
        item for item in found if isinstance(item, Skipped)
    }
    moved(place / "train", outside)
    with pytest.raises(SourceError, match="is not what source_kind 'imagenet' looks for"):
        list(images_of(place, SourceOptions(kind="imagenet")))


def test_stanford_cars_annotations_with_a_path_outside_are_refused(outside: Path, tmp_path: Path, allow: ALLOW):
    place = stanford_cars(tmp_path / "source")
    write_annotations(place / "devkit/cars_train_annos.mat", [(1, 1, 24, 16, 1, "../../outside/a.jpg")])
    assert any(isinstance(item, Listed) for item in entries_of(place))
    allow(SOURCES, place)
    with pytest.raises(SourceError, match=r"names '.*outside/a\.jpg', which is outside what TENFOLD_ALLOWED_SOURCES"):
        entries_of(place)


def test_stanford_cars_annotations_linked_from_outside_are_refused(outside: Path, tmp_path: Path, allow: ALLOW):
    place = stanford_cars(tmp_path / "source")
    moved(place / "devkit", outside)
    allow(SOURCES, place)
    with pytest.raises(SourceError, match=r"names '.*cars_meta\.mat', which is outside what TENFOLD_ALLOWED_SOURCES"):
        entries_of(place)


def test_a_list_row_with_an_invalid_path_is_listed_as_missing(tmp_path: Path, allow: ALLOW):
    """It is not refused, because the path cannot exist."""
    (tmp_path / "list.jsonl").write_text('{"path": "zero\\u0000byte", "label": "cat"}\n')
    os.mkfifo(tmp_path / "pipe")
    allow(SOURCES, tmp_path)
    assert [item.size for item in entries_of(tmp_path / "list.jsonl") if isinstance(item, Listed)] == [-1]
