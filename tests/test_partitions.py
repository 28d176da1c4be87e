"""Each date points to the version that was built of it last."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from pipeline.config import Settings, settings_from
from pipeline.errors import DatasetError, GateError
from pipeline.partitions import newest_partitions, save_partition
from pipeline.workspace import name_folder
from tests.conftest import MakeImages, jpeg
from tests.published import publish
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
def test_the_newest_come_first(settings: Settings, saved: list[tuple[str, str]], count: int, newest: dict[str, str]):
    for name, version in saved:
        save_partition(name_folder(settings), name, version)
    assert list(newest_partitions(settings, count).items()) == list(newest.items())


def test_the_same_is_not_written_again(settings: Settings):
    path = name_folder(settings) / "partitions" / "2026-01-02.json"
    save_partition(name_folder(settings), "2026-01-02", A)
    first = writes([path])
    save_partition(name_folder(settings), "2026-01-02", A)
    assert writes([path]) == first
    save_partition(name_folder(settings), "2026-01-02", B)
    assert json.loads(path.read_bytes()) == {"partition": "2026-01-02", "version": B}


@pytest.mark.parametrize(
    "name", ["2026-01-03 (copy).json", "2026-01-03.json.bak", ".2026-01-03.json.h.1.0.tmp", "x.json"]
)
def test_what_others_put_there_is_no_partition(tmp_path: Path, name: str):
    settings = settings_from({"workspace": str(tmp_path)})
    save_partition(name_folder(settings), "2026-01-02", A)
    (tmp_path / "datasets" / "images" / "partitions" / name).write_bytes(b"{}")
    assert newest_partitions(settings, 1) == {"2026-01-02": A}


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"1", b"\xff"])
def test_a_damaged_one_is_named(tmp_path: Path, content: bytes):
    settings = settings_from({"workspace": str(tmp_path)})
    save_partition(name_folder(settings), "2026-01-02", A)
    (tmp_path / "datasets" / "images" / "partitions" / "2026-01-02.json").write_bytes(content)
    with pytest.raises(DatasetError, match=r"partitions/2026-01-02\.json names no version .*build its partition again"):
        newest_partitions(settings, 1)


def built(source: Path, settings: Settings, day: int) -> str:
    """The version of a day of January."""
    dated = {"data_date": f"2026-01-{day:02d}", "dataset_name": settings.dataset_name}
    return publish(source / "{date}", settings.workspace, **dated).name


def test_each_date_points_to_what_was_built_of_it_last(make_images: MakeImages, settings: Settings):
    source = make_images({f"2026-01-{day:02d}/{label}": 4 for day in (1, 2) for label in ("cats", "dogs")})
    first, second = built(source, settings, 1), built(source, settings, 2)
    pointer = name_folder(settings) / "partitions" / "2026-01-01.json"
    assert newest_partitions(settings, 5) == {"2026-01-02": second, "2026-01-01": first}
    before = writes([pointer])
    assert built(source, settings, 1) == first  # found complete
    assert writes([pointer]) == before
    (source / "2026-01-01" / "cats" / "new.jpg").write_bytes(jpeg(1))
    again = built(source, settings, 1)
    assert newest_partitions(settings, 5) == {"2026-01-02": second, "2026-01-01": again}
    (source / "2026-01-01" / "cats" / "new.jpg").unlink()
    assert built(source, settings, 1) == first  # found complete, and the newest state of the date once more
    assert newest_partitions(settings, 5) == {"2026-01-02": second, "2026-01-01": first}


def test_what_the_gate_stops_is_no_partition(make_images: MakeImages, tmp_path: Path):
    source = make_images({"cats": 6, "dogs": 6})
    (source / "cats" / "broken.jpg").write_bytes(b"no image")
    settings = settings_from({"workspace": str(tmp_path / "w")})
    for gate, partitions in (("fail", 0), ("continue", 1), ("fail", 0)):
        with pytest.raises(GateError) if gate == "fail" else nullcontext():
            publish(source, tmp_path / "w", max_rejected_fraction=0.0, on_rejected=gate)
        assert len(newest_partitions(settings, 1)) == partitions
        shutil.rmtree(name_folder(settings) / "partitions", ignore_errors=True)
