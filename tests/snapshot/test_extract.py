"""Snapshots: which files are read, which are read again, and which images form a group."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, get_ident

import google_crc32c
import numpy as np
import pytest

from pipeline.config.settings import Settings, settings_from
from pipeline.errors import FileSystemError, SettingsError, SourceError
from pipeline.snapshot import checksums, raw_example
from pipeline.snapshot.extract import sweep
from pipeline.snapshot.options import extract_options
from pipeline.snapshot.part import Part, PartLimits
from pipeline.snapshot.part import rows_of as rows_of_parts
from pipeline.snapshot.raw_example import CheckedFile, LocalImages, from_lines
from pipeline.snapshot.raw_reader import unfinished_copies
from pipeline.snapshot.snapshot import Snapshot, load_snapshot
from tests.conftest import MakeImages, jpeg
from tests.damage import half, zeroed
from tests.snapshots import take_snapshot
from tests.waiting import until
from tests.writes import writes


def rows_of(snapshot: Snapshot) -> list:
    return [row for rows in from_lines(lines_of(snapshot)) for row in rows]


def lines_of(snapshot: Snapshot) -> list[bytes]:
    return [line for part in snapshot.parts for line in Path(part.rows).read_bytes().splitlines(keepends=True)]


def columns_of(snapshot: Snapshot) -> np.ndarray:
    return np.concatenate([part.columns() for part in snapshot.parts])


def snapshot_of(settings: Settings) -> Snapshot:
    return load_snapshot(take_snapshot(settings))


@pytest.fixture
def at_rest(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings whose files count as old. The clock slack is 0, because a real wait would take seconds."""
    monkeypatch.setattr(checksums, "CLOCK_SLACK_NS", 0)
    newest = max(path.stat().st_ctime_ns for path in Path(settings.source_uri).rglob("*"))
    until(lambda: time.time_ns() > newest, pause=0.001)
    return settings


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that are read. A patch records them, because a read leaves no other trace."""
    keys: list[str] = []
    real = LocalImages.check
    monkeypatch.setattr(LocalImages, "check", lambda files, key, *how: keys.append(key) or real(files, key, *how))
    return keys


def test_a_first_extract_reads_each_file_once(settings: Settings, read: list[str]):
    rows = rows_of(snapshot_of(settings))
    assert sorted(read) == [row.key for row in rows]
    assert len(read) == 24


@pytest.mark.parametrize("waits", [0, 2])
def test_threads_read_the_files_of_a_slow_file_system(settings: Settings, waits: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checksums, "CHUNK", 4)
    monkeypatch.setattr(checksums, "MANY_WAITS", 8)
    real, readers, never = LocalImages.check, [], Event()

    def check(files: LocalImages, key: str, max_bytes: int, follows_link: bool) -> CheckedFile:
        readers.append(get_ident())
        for _ in range(waits):
            never.wait(0.001)  # As for a file of a network file system.
        return real(files, key, max_bytes, follows_link)

    monkeypatch.setattr(LocalImages, "check", check)
    rows = rows_of(snapshot_of(settings))
    assert [row.key for row in rows] == sorted(row.key for row in rows)
    assert len(rows) == len(readers) == 24
    by_this_thread = readers.count(get_ident())
    assert by_this_thread == (4 if waits else 24)


def test_an_unchanged_file_is_not_read_again(at_rest: Settings, read: list[str]):
    before = take_snapshot(at_rest)
    read.clear()
    assert take_snapshot(at_rest) == before
    assert read == []


def test_only_changed_files_are_read_again(at_rest: Settings, read: list[str]):
    before = snapshot_of(at_rest)
    read.clear()
    source = Path(at_rest.source_uri)
    (source / "aaa").mkdir()
    (source / "aaa" / "new.jpg").write_bytes(jpeg(501))
    (source / "dogs" / "003.jpg").unlink()
    changed = source / "eels" / "005.jpg"
    status = changed.stat()
    changed.write_bytes(bytes(status.st_size))  # The size stays the same, and the time is set back.
    os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = snapshot_of(at_rest)
    assert sorted(read) == ["aaa/new.jpg", "eels/005.jpg"]
    assert after.fingerprint != before.fingerprint
    old, new = ({row.key: row.crc32c for row in rows_of(each)} for each in (before, after))
    assert {key for key in old if old[key] != new.get(key)} == {"dogs/003.jpg", "eels/005.jpg"}


def test_a_recently_written_file_is_read_again(settings: Settings, read: list[str]):
    """It can change again within the same clock tick, which would leave its time unchanged."""
    take_snapshot(settings)
    read.clear()
    take_snapshot(settings)
    assert len(read) == 24


def with_other_checksum(rows: bytes) -> bytes:
    """Rows that can be parsed, the first of which has a wrong checksum."""
    crc32c = json.loads(rows.splitlines()[0])[4]
    return rows.replace(b",%d," % crc32c, b",%d," % (crc32c ^ 1), 1)


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [(".jsonl", half), (".jsonl", zeroed), (".jsonl", with_other_checksum), (".columns", half), (".columns", zeroed)],
)
def test_only_the_images_of_a_damaged_part_are_read_again(
    at_rest: Settings,
    read: list[str],
    caplog: pytest.LogCaptureFixture,
    suffix: str,
    damage: Callable[[bytes], bytes],
):
    limits = PartLimits(rows=8)
    path = take_snapshot(at_rest, limits=limits)
    part = load_snapshot(path).parts[1]
    damaged = part.beside(suffix)
    content = damaged.read_bytes()
    damaged.write_bytes(damage(content))
    read.clear()
    assert take_snapshot(at_rest, limits=limits) == path
    assert len(read) == 8
    assert (part.first, part.last) == (min(read), max(read))
    assert caplog.text.count(f"the images from {part.first!r} to {part.last!r} are read again") == 1
    assert damaged.read_bytes() == content


@pytest.mark.parametrize(
    ("suffix", "use"),
    [
        (".jsonl", lambda part: list(rows_of_parts([part]))),
        (".columns", lambda part: list(rows_of_parts([part]))),
        (".labels", Part.labels),
        (".jsonl", lambda part: part.row(part.listed - 1)),
        (".columns", lambda part: part.row(part.listed - 1)),
    ],
)
@pytest.mark.parametrize("damage", [half, zeroed, None])
def test_an_error_names_the_damaged_file_of_a_part(
    settings: Settings, suffix: str, use: Callable[[Part], object], damage: Callable[[bytes], bytes] | None
):
    [part] = snapshot_of(settings).parts
    file = part.beside(suffix)
    content = file.read_bytes()
    file.unlink()
    if damage:
        file.write_bytes(damage(content))
    with pytest.raises(FileSystemError, match=f"{Path(part.rows).stem}.*: run `extract` again"):
        use(part)


def test_a_snapshot_of_another_release_is_ignored(at_rest: Settings, read: list[str], caplog: pytest.LogCaptureFixture):
    path = take_snapshot(at_rest)
    path.write_text('{"rows": "nothing"}')
    read.clear()
    assert take_snapshot(at_rest) == path
    assert len(read) == 24
    assert caplog.text.count(f"{path} cannot be used") == 1
    path.write_text("[]")
    with pytest.raises(SettingsError, match="does not contain a snapshot"):
        load_snapshot(path)


def test_rows_state_what_the_files_are(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(raw_example, "PIECE_BYTES", 300)  # Smaller than the images.
    source = Path(settings.source_uri)
    (source / "cats" / "empty.jpg").touch()
    for path in source.rglob("*.jpg"):
        os.utime(path, ns=(1, 1))  # Users can set this time, so it must not be the generation.
    rows = rows_of(snapshot_of(settings))
    assert len(rows) == 25
    for row in rows:
        path = source / row.key
        crc32c = google_crc32c.value(path.read_bytes())
        assert (row.size, row.generation, row.crc32c) == (path.stat().st_size, path.stat().st_ctime_ns, crc32c)


def test_a_listing_of_an_unchanged_source_replaces_only_damaged_files(settings: Settings):
    """Another host may have mapped the files of a part. A file server removes the pages of a file that is replaced."""
    snapshot = snapshot_of(settings)
    files = [
        Path(part.rows).with_suffix(suffix) for part in snapshot.parts for suffix in (".jsonl", ".columns", ".labels")
    ]
    before = writes(files)
    assert len(before) == len(files)
    assert snapshot_of(settings).parts == snapshot.parts
    assert writes(files) == before
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content[:2] + bytes([content[2] ^ 1]) + content[3:])
    assert snapshot_of(settings).parts == snapshot.parts
    assert [file.read_bytes() for file in files] == contents


def test_columns_match_the_rows(settings: Settings):
    snapshot = snapshot_of(settings)
    rows, columns = rows_of(snapshot), columns_of(snapshot)
    [part] = snapshot.parts
    assert [row.size for row in rows] == columns["size"].tolist()
    assert [row.crc32c for row in rows] == columns["crc32c"].tolist()
    assert [row.labels[0] for row in rows] == [part.labels()[label] for label in columns["label"]]
    assert [part.row(number).example for number in (23, 0, 7)] == [rows[23], rows[0], rows[7]]
    assert [part.row(number).columns.tolist() for number in (23, 0)] == [[columns[23].item()], [columns[0].item()]]


@pytest.mark.parametrize(
    ("pattern", "groups"),
    [
        ("", ["", "", ""]),
        (r"^(.+?)_\d+$", ["ann", "ann", ""]),
        (r"^[a-z]+", ["ann", "ann", "bob"]),
        (r"^ann(x)?", ["", "", ""]),
    ],
)
def test_groups_are_extracted_from_file_names(make_images: MakeImages, tmp_path: Path, pattern: str, groups: list[str]):
    source = make_images({"a": 0, "b": 0})
    for number, name in enumerate(("a/ann_1.jpg", "b/ann_2.jpg", "b/bob.jpg")):
        (source / name).write_bytes(jpeg(number))
    snapshot = snapshot_of(
        settings_from({"source_uri": str(source), "workspace": str(tmp_path / "w"), "group_pattern": pattern})
    )
    assert [row.group for row in rows_of(snapshot)] == groups
    columns = columns_of(snapshot)
    assert len(set(columns["group"].tolist())) == len({group or str(number) for number, group in enumerate(groups)})


def test_a_pattern_that_takes_forever_is_refused(
    make_images: MakeImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """There are 2 to the power of 60 ways to split the letters, and none of them matches."""
    monkeypatch.setattr("pipeline.snapshot.groups.MATCH_S", 1.0)
    source = make_images({"a": 1, "b": 0})
    (source / "b" / f"{60 * 'a'}!.jpg").write_bytes(jpeg(1))
    places = {"source_uri": str(source), "workspace": str(tmp_path / "w"), "group_pattern": "^(a+)+$"}
    with pytest.raises(SettingsError, match=r"group_pattern must match .*'\^\(a\+\)\+\$', which takes longer"):
        take_snapshot(settings_from(places))
    assert not list((tmp_path / "w").rglob("*.jsonl"))


def test_names_that_are_not_valid_utf_8_have_groups_too(make_images: MakeImages, tmp_path: Path):
    source = make_images({"a": 0, "b": 0})
    for number, name in enumerate((b"a/\xff_1.jpg", b"b/\xff_2.jpg")):
        Path(os.fsdecode(os.fsencode(source) + b"/" + name)).write_bytes(jpeg(number))
    places = {"source_uri": str(source), "workspace": str(tmp_path / "w"), "group_pattern": r"^(.+?)_\d+$"}
    groups = [row.group for row in rows_of(snapshot_of(settings_from(places)))]
    assert len({*groups}) == 1


def test_equal_files_share_a_group(make_images: MakeImages, settings: Settings):
    source = Path(settings.source_uri)
    (source / "eels" / "copy.jpg").write_bytes((source / "cats" / "000.jpg").read_bytes())
    snapshot = snapshot_of(settings)
    by_key = dict(zip([row.key for row in rows_of(snapshot)], columns_of(snapshot)["group"].tolist(), strict=True))
    assert by_key["eels/copy.jpg"] == by_key["cats/000.jpg"]
    assert len(set(by_key.values())) == 24


def test_a_file_that_grows_while_it_is_listed_stops_the_snapshot(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    """The growth is simulated, because a real writer cannot be timed between listing and reading."""
    real = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: real(descriptor, size) + b"more")
    with pytest.raises(SourceError, match="changed while it was being listed"):
        take_snapshot(settings)
    assert not list(Path(settings.workspace).rglob("*.jsonl"))


def test_the_copies_of_a_bucket_are_not_searched_for_temporary_files(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    """A workspace may have ten million copies."""
    options = extract_options(settings)
    copies = Path(options.origin.cache)
    for folder in (copies / "ab", unfinished_copies(copies)):
        folder.mkdir(parents=True)
    seen: list[str] = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path=".": seen.append(str(path)) or real(path))
    sweep(options)
    assert str(unfinished_copies(copies)) in seen
    assert not {str(copies), str(copies / "ab")} & {*seen}
