"""Extract in several tasks: the same snapshot, and what happens if one task fails, or if the source changes."""

import json
import logging
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import google_crc32c
import psutil
import pytest

from pipeline.config.settings import Settings
from pipeline.engines import local, opened_engine
from pipeline.errors import FileSystemError, SettingsError, SourceError
from pipeline.plan.plan import load_plan
from pipeline.snapshot import checksums, listing
from pipeline.snapshot.extract import join_listings, list_range
from pipeline.snapshot.listing import load_listing
from pipeline.snapshot.options import extract_options
from pipeline.snapshot.part import rows_of
from pipeline.snapshot.raw_example import CheckedFile, LocalImages
from pipeline.snapshot.snapshot import Snapshot, load_snapshot, skipped_path
from pipeline.sources.key_range import KeyRange
from pipeline.stages.extract import DIVISIONS_KEPT_NS, describe_range, divide, extract, join, list_range_file
from pipeline.stages.shard import write_shards
from tests.conftest import jpeg
from tests.published import changed
from tests.snapshots import take_snapshot
from tests.waiting import until


@pytest.fixture
def divided(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of 24 images and 2 skipped files, which several tasks list."""
    monkeypatch.setenv("TENFOLD_RANGE_IMAGES", "5")
    for name in ("cats/notes.txt", "dogs/.hidden"):
        (Path(settings.source_uri) / name).write_text("text")
    return settings


def content_of(snapshot: Snapshot) -> tuple[object, ...]:
    return snapshot.fingerprint, list(rows_of(snapshot.parts)), snapshot.classes, snapshot.skipped, snapshot.bytes


def listed(paths: list[str]) -> None:
    for path in paths:
        list_range_file(path)


def test_several_processes_make_the_snapshot_of_one(divided: Settings):
    path = extract(divided)
    joined, skipped = load_snapshot(path), skipped_path(path).read_bytes()
    assert len(joined.parts) >= 3
    assert take_snapshot(divided) == path
    alone = load_snapshot(path)
    assert len(alone.parts) == 1
    assert content_of(joined) == content_of(alone)
    assert skipped == skipped_path(path).read_bytes()
    assert skipped.count(b"\n") == 2


def test_a_process_that_lists_images_takes_little_memory(
    divided: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(local, "usable_cores", lambda: 4)
    monkeypatch.setattr(local, "available_memory", lambda: 700_000_000)
    extract(divided)
    assert "3 worker processes instead of 4, because 700 MB of memory are free, and each may take 200 MB" in caplog.text


def test_a_range_parses_no_listing_of_its_run_and_of_earlier_ones(divided: Settings, monkeypatch: pytest.MonkeyPatch):
    """Before, five runs of 8 ranges parsed 28, 92, 156, 220 and 284 listings in their ranges."""
    parsed: list[str] = []
    real = listing.load_listing
    monkeypatch.setattr(listing, "load_listing", lambda path: parsed.append(str(path)) or real(path))
    for _ in range(3):
        paths = divide(divided)
        listed(paths)
        join(divided, paths)
    assert parsed == []


def test_the_names_of_skipped_files_are_not_in_the_listings(divided: Settings):
    paths = divide(divided)
    listed(paths)
    assert all(b"notes.txt" not in path.read_bytes() for path in Path(paths[0]).parent.glob("*.listing"))
    assert b"notes.txt" in skipped_path(join(divided, paths)).read_bytes()


def test_divisions_of_last_week_are_removed(divided: Settings, monkeypatch: pytest.MonkeyPatch):
    folder = Path(divide(divided)[0]).parent
    started_ns, _, of_source = folder.name.partition("-")
    old = folder.with_name(f"{int(started_ns) - DIVISIONS_KEPT_NS - 10**9}-{of_source}")
    other = folder.with_name(f"{int(started_ns) - DIVISIONS_KEPT_NS - 10**9}-of-another-source")
    for made in (old, other):
        shutil.copytree(folder, made)
    divide(divided)
    assert folder.is_dir()
    assert other.is_dir()
    assert not old.exists()


def test_processes_of_this_machine_list_smaller_ranges(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.kinds.images.lister.MIN_IMAGES_OF_PROCESS", 5)
    assert divide(settings) == []
    for cores, ranges in ((1, 4), (64, 4)):
        monkeypatch.setattr("pipeline.kinds.images.lister.usable_cores", lambda cores=cores: cores)
        with opened_engine("local") as engine:
            assert len(divide(settings, engine)) == ranges


def test_a_small_source_is_not_divided(settings: Settings):
    assert divide(settings) == []


def test_a_range_that_fails_is_listed_again_alone(divided: Settings, monkeypatch: pytest.MonkeyPatch):
    """The growth of a file is simulated, because a real writer cannot be timed between listing and reading."""
    paths = divide(divided)
    real = LocalImages.check

    def check(files: LocalImages, key: str, max_bytes: int, follows_link: bool) -> CheckedFile:
        found = real(files, key, max_bytes, follows_link)
        return found._replace(read=found.read + 1) if key == "dogs/004.jpg" else found

    with monkeypatch.context() as growing:
        growing.setattr(LocalImages, "check", check)
        with pytest.raises(SourceError, match=r"004\.jpg changed while it was being listed"):
            listed(paths)
    with pytest.raises(FileSystemError, match="was not listed"):  # Nothing is skipped silently.
        join(divided, paths)
    written = {path: path.stat().st_mtime_ns for path in Path(paths[0]).parent.glob("*.listing")}
    assert written
    listed(paths)
    assert written == {path: path.stat().st_mtime_ns for path in written}
    joined = content_of(load_snapshot(join(divided, paths)))
    assert joined == content_of(load_snapshot(take_snapshot(divided)))


def test_killed_tasks_are_done_again(divided: Settings):
    """Each kill hits a worker process while the source is listed."""
    expected = content_of(load_snapshot(take_snapshot(divided)))
    with_kills = changed(divided, workspace=f"{divided.workspace}-killed")
    child = os.fork()
    if not child:
        try:
            extract(with_kills)
        finally:
            os._exit(0)
    killed: set[int] = set()

    def kill_a_worker() -> set[int]:
        for worker in psutil.Process(child).children():
            with suppress(psutil.NoSuchProcess):
                if len(killed) < 2 and "spawn_main" in " ".join(worker.cmdline()):
                    worker.send_signal(signal.SIGKILL)
                    killed.add(worker.pid)
        return killed

    until(kill_a_worker, pause=0.2, is_expected=lambda pids: len(pids) == 2)
    os.waitpid(child, 0)
    [path] = Path(with_kills.workspace).glob("work/*/snapshots/*.json")
    assert content_of(load_snapshot(path)) == expected


def test_a_source_that_gets_another_layout_meanwhile_is_refused(divided: Settings):
    paths = divide(divided)
    listed(paths[:2])
    source = Path(divided.source_uri)
    (source / "train").mkdir()
    for name in ("cats", "dogs", "eels"):
        (source / name).rename(source / "train" / name)
    listed(paths[2:])
    with pytest.raises(SourceError, match="the source changed while it was being listed"):
        join(divided, paths)


@pytest.mark.parametrize("is_joined", [True, False], ids=["last snapshot", "killed extract"])
def test_no_checksum_is_computed_twice(divided: Settings, monkeypatch: pytest.MonkeyPatch, is_joined: bool):
    monkeypatch.setattr(checksums, "CLOCK_SLACK_NS", 0)  # A real wait would take seconds.
    newest = max(path.stat().st_ctime_ns for path in Path(divided.source_uri).rglob("*"))
    until(lambda: time.time_ns() > newest, pause=0.001)
    first = divide(divided)
    listed(first)
    if is_joined:
        join(divided, first)
    monkeypatch.setattr(LocalImages, "check", lambda *_: pytest.fail("an unchanged file was read again"))
    again = divide(divided)
    assert again != first
    listed(again)
    assert load_snapshot(join(divided, again)).listed == 24


def test_only_the_range_of_a_torn_listing_is_read_again(
    divided: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(checksums, "CLOCK_SLACK_NS", 0)  # A real wait would take seconds.
    newest = max(path.stat().st_ctime_ns for path in Path(divided.source_uri).rglob("*"))
    until(lambda: time.time_ns() > newest, pause=0.001)
    killed = divide(divided)
    listed(killed)
    torn = Path(killed[1]).with_suffix(".listing")
    expected = [row.key for row in rows_of(load_listing(torn).parts)]
    torn.write_bytes(torn.read_bytes()[:-9])
    read: list[str] = []
    real = LocalImages.check
    monkeypatch.setattr(LocalImages, "check", lambda files, key, *how: read.append(key) or real(files, key, *how))
    list_range_file(divide(divided)[1])
    assert read == expected
    assert caplog.text.count(f"{torn} cannot be used") == 1


def test_an_error_names_a_torn_file_of_a_range(divided: Settings):
    torn = Path(divide(divided)[1])
    torn.write_bytes(torn.read_bytes()[:-9])
    with pytest.raises(FileSystemError, match=f"{torn} is missing or damaged: run `extract` again"):
        list_range_file(str(torn))


def test_a_changed_file_is_read_again_whatever_was_listed_before(divided: Settings, monkeypatch: pytest.MonkeyPatch):
    """The last snapshot and a killed `extract` know two different versions of the file."""
    monkeypatch.setattr(checksums, "CLOCK_SLACK_NS", -(10**18))  # Nothing counts as new.
    changed_file = Path(divided.source_uri) / "cats" / "001.jpg"
    for number in range(3):
        changed_file.write_bytes(jpeg(700 + number))
        paths = divide(divided)
        listed(paths)
        if number != 1:
            path = join(divided, paths)
    [row] = [row for row in rows_of(load_snapshot(path).parts) if row.key == "cats/001.jpg"]
    assert row.crc32c == google_crc32c.value(changed_file.read_bytes())


@pytest.mark.parametrize("suffixes", [[".columns"], [".jsonl"], [".jsonl", ".columns", ".labels"]])
def test_a_part_that_was_lost_is_made_again(settings: Settings, suffixes: list[str]):
    path = take_snapshot(settings)
    expected = content_of(load_snapshot(path))
    [part] = load_snapshot(path).parts
    for suffix in suffixes:
        Path(part.rows).with_suffix(suffix).unlink()
    assert content_of(load_snapshot(take_snapshot(settings))) == expected


def test_ranges_that_overlap_are_refused(divided: Settings):
    """Only a wrong kind of source can have them. An image would be in two records."""
    options = extract_options(divided)
    one, other = (list_range(options, KeyRange(*keys), 1) for keys in (("", "dogs/3"), ("dogs/001.jpg", "")))
    with pytest.raises(SourceError, match=r"two ranges of the source have the key 'dogs/001\.jpg'"):
        join_listings(options, 1, [one, other])


def test_a_plan_of_ranges_has_the_version_of_one_listing(divided: Settings):
    one, other = (changed(divided, workspace=f"{divided.workspace}-{name}") for name in ("one", "other"))
    plans = [
        load_plan(write_shards(settings, make(settings))) for settings, make in ((one, take_snapshot), (other, extract))
    ]
    assert plans[0].version == plans[1].version
    shards = [{path.name: path.read_bytes() for path in Path(plan.written).glob("*.tfrecord")} for plan in plans]
    assert shards[0] == shards[1] != {}


def test_ranges_are_named_for_people(divided: Settings):
    paths = divide(divided)
    assert describe_range(paths[0]) == f"1 of {len(paths)}"
    assert describe_range(paths[1]).startswith(f"2 of {len(paths)}, from 'cats/")


def test_the_name_of_a_range_fits_into_the_database_of_airflow(divided: Settings):
    path = Path(divide(divided)[1])
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "content": [300 * "x", ""]}))
    assert len(describe_range(str(path))) < 150


@pytest.mark.parametrize("value", ["0", "-3", "many"])
def test_a_wrong_number_of_images_is_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv("TENFOLD_RANGE_IMAGES", value)
    with pytest.raises(SettingsError, match=rf"TENFOLD_RANGE_IMAGES must be a number above 0, got '{value}'"):
        divide(settings)
