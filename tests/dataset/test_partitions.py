"""Each date points to its last built version."""

import json
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from pipeline import storage
from pipeline.__main__ import main
from pipeline.config.settings import Settings, settings_from
from pipeline.config.workspace import name_folder
from pipeline.dataset.partitions import (
    Partition,
    last_listed,
    listed_dates,
    newest_partitions,
    save_listed,
    save_partition,
    saving_refusal,
    withdraw_partition,
)
from pipeline.errors import DatasetError, GateError
from pipeline.plan.plan import load_plan
from pipeline.sharding.publish import copy_range
from pipeline.sharding.write import write_range
from pipeline.stages.shard import plan_shards
from pipeline.storage import Place
from tests.conftest import MakeImages, jpeg
from tests.published import commit, newest_dataset, publish
from tests.snapshots import take_snapshot
from tests.writes import writes

A, B, C = "a" * 16, "b" * 16, "c" * 16


@pytest.fixture(params=["disk", "bucket"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    if request.param == "bucket":
        request.getfixturevalue("gcs")
    workspace = {"disk": str(tmp_path / "w"), "bucket": "gs://bucket/w"}[request.param]
    return settings_from({"workspace": workspace, "dataset_name": "birds"})


@pytest.mark.parametrize(
    ("saved", "count", "newest"),
    [
        ([], 3, {}),
        ([("latest", A)], 3, {"latest": A}),
        ([("latest", A), ("latest", B)], 1, {"latest": B}),
        ([("2026-01-02", A), ("2026-01-10", B), ("2025-12-31", C)], 2, {"2026-01-10": B, "2026-01-02": A}),
        ([("2026-01-02", A), ("2026-01-03", A), ("2026-01-02", B)], 7, {"2026-01-03": A, "2026-01-02": B}),
        ([("2026-01-02T07:00", A), ("2026-01-02T23:15", B)], 1, {"2026-01-02T23:15": B}),
        ([("latest", A), ("2026-01-02", B)], 9, {"2026-01-02": B}),
    ],
)
def test_the_newest_partitions_come_first(
    settings: Settings, saved: list[tuple[str, str]], count: int, newest: dict[str, str]
):
    for number, (name, version) in enumerate(saved):
        save(settings, name, version, number)
    assert list(newest_partitions(name_folder(settings), count).items()) == list(newest.items())


def test_an_unchanged_partition_is_not_written_again(settings: Settings):
    path = pointer(settings, "2026-01-02")
    save(settings, "2026-01-02", A, 5)
    first = writes([path])
    save(settings, "2026-01-02", A, 5)
    assert writes([path]) == first
    save(settings, "2026-01-02", B, 6)
    assert json.loads(path.read_bytes()) == {
        "format": 1,
        "partition": "2026-01-02",
        "version": B,
        "listed_ns": 6,
    }


@pytest.mark.parametrize("other", ["other/2026-01-01", "2026-01-02"])
def test_a_date_that_moves_to_another_source_is_reported(
    make_images: MakeImages, tmp_path: Path, caplog: pytest.LogCaptureFixture, other: str
):
    counts = {"2026-01-01": 4, other: 5}
    source = make_images({f"{day}/{label}": count for day, count in counts.items() for label in ("cats", "dogs")})
    first = publish(source / "2026-01-01", tmp_path).name
    second = publish(source / other, tmp_path).name
    warning = f"had version {first} of another source, {source}/2026-01-01, and now has version {second} of {source}/"
    assert (warning in caplog.text) is (other != "2026-01-02")


@pytest.mark.parametrize("latest_is_first", [True, False])
def test_a_name_with_dates_and_without_is_reported(
    make_images: MakeImages, tmp_path: Path, caplog: pytest.LogCaptureFixture, latest_is_first: bool
):
    source = make_images({"2026-01-01/cats": 4, "2026-01-01/dogs": 4})
    sources = [(source / "2026-01-01", ""), (source / "{date}", "2026-01-01")]
    (first, first_date), (second, second_date) = sources if latest_is_first else reversed(sources)
    publish(first, tmp_path, data_date=first_date)
    warning = "Windows and trainings ignore 'latest': set another dataset_name"
    assert warning not in caplog.text
    publish(second, tmp_path, data_date=second_date)
    assert warning in caplog.text
    caplog.clear()
    newest_dataset(settings_from({"workspace": str(tmp_path), "dataset_name": "images"}))
    assert warning in caplog.text


@pytest.mark.parametrize("listed_ns", [4, 5])
def test_an_older_listing_does_not_change_a_partition_and_is_logged(
    settings: Settings, listed_ns: int, caplog: pytest.LogCaptureFixture
):
    save(settings, "2026-01-02", B, 5)
    save(settings, "2026-01-02", A, listed_ns)
    assert newest_partitions(name_folder(settings), 1) == {"2026-01-02": B}
    assert f"partition 2026-01-02 stays at version {B}" in caplog.text
    assert f"`python -m pipeline partition 2026-01-02 {A}`" in caplog.text


def test_the_newest_listing_of_concurrent_commits_wins(settings: Settings):
    listings = [Partition("2026-01-02", f"{number:016x}", number) for number in range(1, 25)]
    random.Random(0).shuffle(listings)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda made: save(settings, made.partition, made.version, made.listed_ns), listings))
    assert newest_partitions(name_folder(settings), 1) == {"2026-01-02": f"{24:016x}"}


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_the_reason_of_the_newest_listing_is_kept(settings: Settings, order: tuple[int, int]):
    work = name_folder(settings) / "work"
    save_listed(work, "2026-01-02", 2, "folder/of/it")
    for listed_ns in order:
        with pytest.raises(GateError), saving_refusal(work, "2026-01-02", listed_ns):
            raise GateError(f"refused after listing {listed_ns}")
    assert listed_dates(work)["2026-01-02"].refused == "refused after listing 2"


def save(settings: Settings, name: str, version: str, listed_ns: int) -> None:
    """Save a partition as a commit does, if none of its versions was listed again."""
    save_partition(name_folder(settings), Partition(name, version, listed_ns), lambda _: 0)


def pointer(settings: Settings, name: str) -> Place:
    """The file of a partition."""
    return name_folder(settings) / "partitions" / f"{name}.json"


@pytest.mark.parametrize(
    "name", ["2026-01-03 (copy).json", "2026-01-03.json.bak", ".2026-01-03.json.h.1.0.tmp", "x.json"]
)
def test_foreign_files_are_not_partitions(tmp_path: Path, name: str):
    settings = settings_from({"workspace": str(tmp_path), "dataset_name": "images"})
    save(settings, "2026-01-02", A, 1)
    (tmp_path / "datasets" / "images" / "partitions" / name).write_bytes(b"{}")
    assert newest_partitions(name_folder(settings), 1) == {"2026-01-02": A}


@pytest.mark.parametrize("content", [b"", b'{"format": 1}', b"[]", b"1", b"\xff"])
def test_a_damaged_partition_is_named(tmp_path: Path, content: bytes):
    settings = settings_from({"workspace": str(tmp_path), "dataset_name": "images"})
    save(settings, "2026-01-02", A, 1)
    (tmp_path / "datasets" / "images" / "partitions" / "2026-01-02.json").write_bytes(content)
    message = r"partitions/2026-01-02\.json does not name a version .*build its partition again"
    with pytest.raises(DatasetError, match=message):
        newest_partitions(name_folder(settings), 1)
    with pytest.raises(DatasetError, match=message):
        save(settings, "2026-01-02", B, 2)


@pytest.mark.parametrize("held", ['{"partition": "2026-01-02", "version": "1", "listed_ns": 9}', '{"format": 0}'])
def test_a_partition_of_another_version_of_tenfold_moves_when_it_is_built_again(settings: Settings, held: str):
    path = pointer(settings, "2026-01-02")
    with storage.write_whole(path) as file:
        file.write(held.encode())
    save(settings, "2026-01-02", B, 2)
    assert newest_partitions(name_folder(settings), 1) == {"2026-01-02": B}


def built(source: Path, settings: Settings, day: int) -> str:
    """Build and return the version of a day in January."""
    dated = {"data_date": f"2026-01-{day:02d}", "dataset_name": settings.dataset_name}
    return publish(source / "{date}", settings.workspace, **dated).name


@pytest.mark.core
def test_each_date_points_to_its_last_built_version(make_images: MakeImages, settings: Settings):
    source = make_images({f"2026-01-{day:02d}/{label}": 4 for day in (1, 2) for label in ("cats", "dogs")})
    first, second = built(source, settings, 1), built(source, settings, 2)
    assert newest_partitions(name_folder(settings), 5) == {"2026-01-02": second, "2026-01-01": first}
    assert built(source, settings, 1) == first  # found complete
    (source / "2026-01-01" / "cats" / "new.jpg").write_bytes(jpeg(1))
    again = built(source, settings, 1)
    assert newest_partitions(name_folder(settings), 5) == {"2026-01-02": second, "2026-01-01": again}
    (source / "2026-01-01" / "cats" / "new.jpg").unlink()
    assert built(source, settings, 1) == first  # It is complete already, and the newest state of the date again.
    assert newest_partitions(name_folder(settings), 5) == {"2026-01-02": second, "2026-01-01": first}


def test_a_commit_of_an_old_run_does_not_revert_its_date(
    make_images: MakeImages, settings: Settings, caplog: pytest.LogCaptureFixture
):
    source = make_images({"2026-01-01/cats": 4, "2026-01-01/dogs": 4})
    first = built(source, settings, 1)
    dates = {"source_uri": str(source / "{date}"), "data_date": "2026-01-01"}
    dated = settings_from({**settings.model_dump(), **dates}).dated()
    old_plan = plan_shards(dated, take_snapshot(dated))  # It is complete already, as in the old run.
    (source / "2026-01-01" / "cats" / "new.jpg").write_bytes(jpeg(1))
    corrected = built(source, settings, 1)
    held = pointer(settings, "2026-01-01").read_bytes()
    assert commit(old_plan, dated).version == first  # The run's own result does not change.
    assert newest_partitions(name_folder(settings), 1) == {"2026-01-01": corrected}
    assert pointer(settings, "2026-01-01").read_bytes() == held
    assert f"partition 2026-01-01 stays at version {corrected}" in caplog.text
    (source / "2026-01-01" / "cats" / "new.jpg").unlink()
    assert built(source, settings, 1) == first  # A new listing makes the old images current.
    assert newest_partitions(name_folder(settings), 1) == {"2026-01-01": first}


def test_the_newest_listing_of_a_version_counts(tmp_path: Path):
    for listed_ns in (1, 5, 3):
        save_listed(tmp_path, "2026-01-01", listed_ns, f"datasets/birds/{A}")
    assert last_listed(tmp_path, "2026-01-01") == 5


def test_a_listing_of_another_date_with_the_same_images_changes_no_partition(make_images: MakeImages, tmp_path: Path):
    source, settings = (
        make_images({"2026-01-01/cats": 4, "2026-01-01/dogs": 4}),
        settings_from({"workspace": str(tmp_path), "dataset_name": "images"}),
    )
    shutil.copytree(source / "2026-01-01", source / "2026-01-02")
    dates = {"source_uri": str(source / "{date}"), "data_date": "2026-01-01"}
    dated = settings_from({**settings.model_dump(), **dates}).dated()
    first = built(source, settings, 1)
    old_plan = plan_shards(dated, take_snapshot(dated))
    (source / "2026-01-01" / "cats" / "new.jpg").write_bytes(jpeg(1))
    corrected = built(source, settings, 1)
    assert built(source, settings, 2) == first
    commit(old_plan, dated)
    assert newest_partitions(name_folder(settings), 2) == {"2026-01-02": first, "2026-01-01": corrected}


def test_a_run_with_a_complete_version_counts_as_a_newer_listing_without_a_write(
    make_images: MakeImages, settings: Settings
):
    source = make_images({"2026-01-01/cats": 4, "2026-01-01/dogs": 4})
    dates = {"source_uri": str(source / "{date}"), "data_date": "2026-01-01"}
    dated = settings_from({**settings.model_dump(), **dates}).dated()
    first = built(source, settings, 1)
    (source / "2026-01-01" / "cats" / "new.jpg").write_bytes(jpeg(1))
    waiting = plan_shards(dated, take_snapshot(dated))  # This run then waits for an answer.
    for path in map(storage.place_of, load_plan(waiting).ranges):
        write_range(path, lambda *_: None)
        copy_range(path, lambda *_: None)
    (source / "2026-01-01" / "cats" / "new.jpg").unlink()
    before = writes([pointer(settings, "2026-01-01")])
    assert built(source, settings, 1) == first  # found complete
    assert commit(waiting, dated).version != first
    assert newest_partitions(name_folder(settings), 1) == {"2026-01-01": first}
    assert writes([pointer(settings, "2026-01-01")]) == before


def test_the_partition_command_sets_the_version_of_a_partition(
    make_images: MakeImages, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source, settings = (
        make_images({"a": 4, "b": 4}),
        settings_from({"workspace": str(tmp_path / "w"), "dataset_name": "images"}),
    )
    first = publish(source, tmp_path / "w").name
    (source / "a" / "new.jpg").write_bytes(jpeg(1))
    second = publish(source, tmp_path / "w").name
    place = ["--set", f"workspace={tmp_path / 'w'}"]
    assert main(["partition", "latest", first, *place, "--json"]) == 0
    moved = json.loads(capsys.readouterr().out)
    assert moved == {"partition": "latest", "version": first, "file": str(pointer(settings, "latest"))}
    assert newest_partitions(name_folder(settings), 1) == {"latest": first}
    save(settings, "latest", second, 1)  # a commit from before the command
    assert newest_partitions(name_folder(settings), 1) == {"latest": first}
    assert publish(source, tmp_path / "w").name == second  # a new listing
    assert newest_partitions(name_folder(settings), 1) == {"latest": second}
    for partition, version, message in (
        ("latest", "f" * 16, "version 'ffffffffffffffff' is not a committed dataset"),
        ("latest", "../images", "version '../images' is not a committed dataset"),
        ("2026-01-31", first, "has no partition '2026-01-31'. It has latest: name one of them"),
    ):
        assert main(["partition", partition, version, *place]) == 1
        assert message in capsys.readouterr().err
    assert newest_partitions(name_folder(settings), 1) == {"latest": second}


@pytest.mark.parametrize(
    ("withdrawn", "count", "newest"),
    [
        (["2026-01-03"], 1, ["2026-01-02"]),
        (["2026-01-03", "2026-01-02"], 1, ["2026-01-01"]),
        (["2026-01-02"], 2, ["2026-01-03", "2026-01-01"]),
        (["2026-01-02"], 9, ["2026-01-03", "2026-01-01"]),
        (["2026-01-01", "2026-01-02", "2026-01-03"], 9, []),
    ],
)
def test_older_partitions_take_the_places_of_withdrawn_ones(
    settings: Settings, withdrawn: list[str], count: int, newest: list[str]
):
    for name in ("2026-01-01", "2026-01-02", "2026-01-03"):
        save(settings, name, A, 1)
    for name in withdrawn:
        withdraw_partition(name_folder(settings), name)
    assert list(newest_partitions(name_folder(settings), count)) == newest


@pytest.mark.parametrize(
    ("version", "listed_ns", "is_back"),
    [
        (A, 2**63, False),  # The withdrawn version, found again.
        (B, 5, False),  # A run that listed the source before the withdrawal.
        (B, 2**63, True),
    ],
)
def test_a_withdrawn_partition_comes_back_with_another_version(
    settings: Settings, version: str, listed_ns: int, is_back: bool, caplog: pytest.LogCaptureFixture
):
    save(settings, "2026-01-02", A, 1)
    assert withdraw_partition(name_folder(settings), "2026-01-02").version == A
    save(settings, "2026-01-02", version, listed_ns)
    assert newest_partitions(name_folder(settings), 1) == ({"2026-01-02": version} if is_back else {})
    assert ("partition 2026-01-02 stays withdrawn" in caplog.text) is not is_back


def test_the_partition_command_withdraws_a_partition_and_brings_it_back(
    make_images: MakeImages, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    version = publish(make_images({"a": 4, "b": 4}), tmp_path / "w").name
    settings = settings_from({"workspace": str(tmp_path / "w"), "dataset_name": "images"})
    place = ["--set", f"workspace={tmp_path / 'w'}"]
    assert main(["partition", "latest", "--withdraw", *place, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"partition": "latest", "withdrawn": version}
    assert newest_partitions(name_folder(settings), 1) == {}
    assert main(["partition", "latest", version, *place]) == 0
    assert newest_partitions(name_folder(settings), 1) == {"latest": version}
    for arguments, message in (
        (["latest"], "give either a version of latest or --withdraw"),
        (["latest", version, "--withdraw"], "give either a version of latest or --withdraw"),
        (["2026-01-31", "--withdraw"], "has no partition '2026-01-31'. It has latest: name one of them"),
    ):
        assert main(["partition", *arguments, *place]) == 1
        assert message in capsys.readouterr().err


def test_a_version_that_the_gate_stops_is_no_partition(make_images: MakeImages, tmp_path: Path):
    source = make_images({"cats": 6, "dogs": 6})
    (source / "cats" / "broken.jpg").write_bytes(b"no image")
    settings = settings_from({"workspace": str(tmp_path / "w"), "dataset_name": "images"})
    for gate, partitions in (("fail", 0), ("continue", 1), ("fail", 0)):
        with pytest.raises(GateError) if gate == "fail" else nullcontext():
            publish(source, tmp_path / "w", max_rejected_fraction=0.0, on_rejected=gate)
        assert len(newest_partitions(name_folder(settings), 1)) == partitions
        shutil.rmtree(name_folder(settings) / "partitions", ignore_errors=True)
