"""No image is lost silently because of a suffix, a size, a transient error or a missing permission."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline import storage
from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import load
from pipeline.errors import BadInput, FileSystemError, GateError, SourceError
from pipeline.gate.notices import notices
from pipeline.snapshot import raw_example as raw
from pipeline.snapshot.part import rows_of
from pipeline.snapshot.snapshot import load_snapshot
from pipeline.sources import Found, Listed, Skipped, SourceOptions, folder
from pipeline.sources.key_range import EVERYTHING
from pipeline.stages.build import build
from pipeline.system import os_errors
from tests.conftest import MakeImages, jpeg
from tests.published import changed
from tests.snapshots import take_snapshot

ROOT = Path(__file__).parents[1]


OF_CHECKSUM_0 = b"\xab\x9b\xe0\x9b"
"""The CRC32C of these bytes is 0."""


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os_errors, "PAUSES_S", (0.0, 0.0))


def rejected(settings: Settings) -> dict[str, tuple[str, str]]:
    folder = Path(build(settings)["dataset"])
    rows = map(json.loads, (folder / "rejected.jsonl").read_text().splitlines())
    return {row["path"]: (row["reason"], row["advice"]) for row in rows}


# --- suffixes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".jfif", ".jpe", ".mpo", ".JPG", ""])
def test_a_jpeg_with_any_suffix_is_accepted(settings: Settings, suffix: str):
    path = Path(settings.source_uri) / "cats" / f"other{suffix}"
    path.write_bytes(jpeg(77))
    assert load_snapshot(take_snapshot(settings)).listed == 25
    assert rejected(settings) == {}


@pytest.mark.parametrize("suffix", [".heic", ".JXL", ".jp2", ".tga", ".svg", ".cr2", ".nef", ".dng"])
def test_content_decides_and_not_the_suffix(settings: Settings, suffix: str):
    (Path(settings.source_uri) / "cats" / f"photo{suffix}").write_bytes(jpeg(77))
    folder = Path(build(settings)["dataset"])
    dataset = load(folder)
    assert (dataset.rejected["count"], sum(split.examples for split in dataset.splits.values())) == (0, 25)
    assert dataset.quality["misnamed"] == 1


@pytest.mark.parametrize("suffix", [".JXL", ".jp2", ".tga", ".svg", ".cr2", ".nef", ".dng"])
def test_content_without_a_known_format_is_rejected_by_its_suffix(settings: Settings, suffix: str):
    (Path(settings.source_uri) / "cats" / f"photo{suffix}").write_bytes(b"anything")
    reason = f"{suffix.lower()} images are not supported"
    assert rejected(settings) == {f"cats/photo{suffix}": (reason, "convert it to JPEG or PNG")}
    with pytest.raises(GateError, match=r"1 of 25 \(4%\) images were rejected"):
        build(changed(settings, max_rejected_fraction=0))


@pytest.mark.parametrize("megabytes", [256, 0.01], ids=["empty", "too large"])
def test_files_without_content_to_compare_form_no_group(settings: Settings, megabytes: float):
    """Empty files, or files that are not read. If they formed one group, all of them would be in the same split."""
    for number in range(30):
        (Path(settings.source_uri) / "cats" / f"x{number}.jpg").write_bytes(bytes(0 if megabytes == 256 else 20_000))
    [part] = load_snapshot(take_snapshot(changed(settings, max_file_megabytes=megabytes))).parts
    assert len(set(part.columns()["group"].tolist())) == 54


def test_a_checksum_of_0_is_that_of_a_file(settings: Settings):
    """If 0 counted as no checksum, the copy of a file could be in another split."""
    for name in ("cats/zero.jpg", "dogs/zero.jpg"):
        (Path(settings.source_uri) / name).write_bytes(OF_CHECKSUM_0)
    snapshot = load_snapshot(take_snapshot(settings))
    assert [row.crc32c for row in rows_of(snapshot.parts) if row.key.endswith("zero.jpg")] == [0, 0]
    assert len(set(snapshot.parts[0].columns()["group"].tolist())) == 25
    reason = f"not an image: it starts with {OF_CHECKSUM_0!r}"
    assert {why for why, _ in rejected(settings).values()} == {reason}


def test_a_source_with_only_unsupported_images_is_refused_with_the_reason(make_images: MakeImages, settings: Settings):
    for number, path in enumerate(Path(settings.source_uri).rglob("*.jpg")):
        path.rename(path.with_suffix(".jxl")).write_bytes(b"\xff\x0a" + bytes(number))
    with pytest.raises(
        SourceError,
        match=r"24 of 24 images were rejected, 24 of them because 'JPEG XL is not supported'; repair",
    ):
        build(settings)


def test_skipped_files_are_listed_and_counted_by_suffix(settings: Settings):
    for number in range(5):
        (Path(settings.source_uri) / "cats" / f"{number}.txt").write_bytes(b"words")
    (Path(settings.source_uri) / "cats" / "README").write_bytes(b"words")
    (Path(settings.source_uri) / "cats" / ".hidden").write_bytes(b"words")
    folder = Path(build(settings)["dataset"])
    quality = load(folder).quality
    assert quality["skipped_by_name"] == {"files": 6, "of": 30, "suffixes": {".txt": 5, "no suffix": 1}}
    sentences = [sentence for sentence in notices(quality) if "skipped" in sentence]
    assert sentences == [
        "6 of 30 (20%) files were skipped because their suffix is not that of an image format (.txt 5, no suffix 1): "
        "if they are images, convert them to JPEG or PNG; skipped.jsonl lists them"
    ]
    rows = list(map(json.loads, (folder / "skipped.jsonl").read_text().splitlines()))
    assert len(rows) == 7
    assert {"path": "cats/0.txt", "reason": "not an image by its name"} in rows
    card = (folder / "card.html").read_text()
    assert "Skipped files" in card
    assert "cats/0.txt" in card


def test_additional_skipped_files_create_a_warning_but_no_new_version(
    settings: Settings, caplog: pytest.LogCaptureFixture
):
    first = build(settings)
    caplog.clear()
    for number in range(12):
        (Path(settings.source_uri) / "cats" / f"{number}.txt").write_bytes(b"words")
    again = build(settings)
    assert (again["version"], again["already_complete"]) == (first["version"], True)
    assert "12 of 36 (33.3%) files were skipped because their suffix" in caplog.text


def test_a_few_skipped_files_create_no_warning(settings: Settings):
    (Path(settings.source_uri) / "cats" / "notes.txt").write_bytes(b"words")
    assert not [sentence for sentence in notices(load(Path(build(settings)["dataset"])).quality) if "skip" in sentence]


def test_a_source_of_text_files_is_refused_with_their_suffix(tmp_path: Path):
    (tmp_path / "source/a").mkdir(parents=True)
    for number in range(26):
        (tmp_path / "source/a" / f"{number}.txt").write_bytes(b"words")
    settings = settings_from({"source_uri": str(tmp_path / "source"), "workspace": str(tmp_path / "workspace")})
    with pytest.raises(SourceError, match=r"26 not an image by its name: \.txt 26"):
        build(settings)


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_a_file_over_the_size_limit_is_rejected(settings: Settings):
    path = Path(settings.source_uri) / "cats" / "huge.jpg"
    with path.open("wb") as file:
        file.truncate(3_000_000_000)  # a sparse file; reading it would take minutes
    reason = "the file has 3,000.0 MB, more than 256 MB"
    assert rejected(settings) == {"cats/huge.jpg": (reason, "shrink it, or raise max_file_megabytes")}


def test_a_higher_size_limit_accepts_a_rejected_file(settings: Settings):
    path = Path(settings.source_uri) / "cats" / "large.jpg"
    path.write_bytes(jpeg(1) + bytes(50_000))
    small = changed(settings, max_file_megabytes=0.01)
    assert list(rejected(small)) == ["cats/large.jpg"]
    assert rejected(settings) == {}


def test_partial_reads_do_not_change_the_dataset(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    """Linux reads at most 2 GiB per call. A test with such a large file would be too slow."""
    whole = os.read
    expected = build(settings)["version"]
    monkeypatch.setattr(raw.os, "read", lambda descriptor, size: whole(descriptor, min(size, 100)))
    again = changed(settings, workspace=f"{settings.workspace}2")
    assert build(again)["version"] == expected
    assert rejected(again) == {}


# --- errors of the file system ----------------------------------------------------------------------------------------

Fail = Callable[[str], int]
"""Returns the error number for a call on a path, or 0 if the call succeeds."""


@pytest.fixture
def failing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Callable[[Fail], None]:
    """Makes calls on some paths fail. No local file system has stale handles or denies access to root."""
    source = Path(settings.source_uri)

    def install(number_of: Fail) -> None:
        def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
            def failing_call(path: Any, *arguments: Any, **named: Any) -> Any:
                # The path of an image may be relative to the source.
                if number := number_of(str(source / path) if not isinstance(path, int) else ""):
                    raise OSError(number, os.strerror(number), str(path))
                return call(path, *arguments, **named)

            return failing_call

        for name in ("scandir", "stat", "open"):
            monkeypatch.setattr(os, name, wrapped(getattr(os, name)))

    return install


def once_each(number: int, ending: str) -> Fail:
    """Fail the first call on each path with this ending."""
    seen: set[str] = set()

    def number_of(path: str) -> int:
        if not path.endswith(ending) or path in seen:
            return 0
        seen.add(path)
        return number

    return number_of


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EMFILE])
@pytest.mark.parametrize("ending", ["/dogs", "/dogs/003.jpg"])
def test_a_transient_error_is_retried_and_loses_no_image(
    settings: Settings, failing: Callable[[Fail], None], number: int, ending: str
):
    failing(once_each(number, ending))
    snapshot = load_snapshot(take_snapshot(settings))
    assert (snapshot.listed, snapshot.skipped) == (24, {})


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
@pytest.mark.parametrize("ending", ["/dogs", "/dogs/003.jpg"])
def test_a_permanent_error_fails_the_task_so_that_airflow_retries_it(
    settings: Settings, failing: Callable[[Fail], None], number: int, ending: str
):
    failing(lambda path: number if path.endswith(ending) else 0)
    with pytest.raises(FileSystemError, match=rf"{ending} could not be used in 3 attempts") as caught:
        take_snapshot(settings)
    assert not isinstance(caught.value, BadInput)


@pytest.mark.parametrize("ending", ["/dogs", "/dogs/003.jpg"])
def test_a_missing_permission_is_an_error_that_names_the_path(
    settings: Settings, failing: Callable[[Fail], None], ending: str
):
    failing(lambda path: errno.EACCES if path.endswith(ending) else 0)
    with pytest.raises(SourceError, match=rf"{ending} .*cannot be read \(Permission denied\)"):
        take_snapshot(settings)


def test_a_permanent_error_of_a_listed_file_fails_the_task(
    settings: Settings, tmp_path: Path, failing: Callable[[Fail], None]
):
    listed = listing(settings, tmp_path)
    failing(lambda path: errno.EIO if path.endswith("/dogs/003.jpg") else 0)
    with pytest.raises(FileSystemError, match=r"003\.jpg could not be used"):
        take_snapshot(changed(settings, source_uri=str(listed)))


def listing(settings: Settings, folder: Path) -> Path:
    paths = sorted(Path(settings.source_uri).rglob("*.jpg"))
    rows = "".join(f"{path.relative_to(folder)},{path.parent.name}\n" for path in paths)
    (folder / "list.csv").write_text(f"path,label\n{rows}")
    return folder / "list.csv"


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Remove all permissions of a folder, and restore them at the end so that the folder can be removed."""
    path.chmod(0)
    try:
        yield
    finally:
        path.chmod(0o700)


def listed_without_permissions(source: Path) -> str:
    """Return the output of listing a source in a process that respects permissions, as root by itself does not."""
    code = (
        "import sys; from pathlib import Path\n"
        "from pipeline.sources import SourceOptions, folder\n"
        "from pipeline.sources.key_range import EVERYTHING\n"
        "print(*folder.list_range(Path(sys.argv[1]), SourceOptions(), EVERYTHING), sep='\\n')"
    )
    # Another user could not enter the folders above, which each start of pytest closes to others.
    limited = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*limited, sys.executable, "-c", code, str(source)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return ended.stdout + ended.stderr


def test_an_unreadable_folder_is_reported_to_a_user_other_than_root(settings: Settings):
    dogs = Path(settings.source_uri) / "dogs"
    with unreadable(dogs):
        printed = listed_without_permissions(Path(settings.source_uri))
    assert f"{dogs} cannot be read (Permission denied)" in printed


@pytest.mark.parametrize("name", ["lost+found", ".Trash-0"])
def test_an_unreadable_system_folder_is_skipped(settings: Settings, name: str):
    hidden = Path(settings.source_uri) / name
    hidden.mkdir()
    with unreadable(hidden):
        printed = listed_without_permissions(Path(settings.source_uri))
    assert f"Skipped(key='{name}', reason='hidden')" in printed
    assert printed.count("Listed(") == 24


def list_while(source: Path, key: str, change: Callable[[], object]) -> list[Found]:
    """List a folder, and call `change` after `key` was listed."""
    found = []
    for each in folder.list_range(source, SourceOptions(), EVERYTHING):
        found.append(each)
        if each.key == key:
            change()
    return found


@pytest.mark.parametrize(("key", "name"), [("cats/000.jpg", "dogs"), ("dogs/000", "dogs/003")])
def test_a_file_or_folder_removed_during_listing_is_an_error_that_airflow_retries(
    settings: Settings, key: str, name: str
):
    source = Path(settings.source_uri)
    for path in (source / "dogs").iterdir():
        path.rename(path.with_suffix(""))
    with pytest.raises(FileSystemError, match=rf"/{name} vanished while it was being listed .*: run again") as caught:
        list_while(source, key, lambda: (source / name).rename(source.parent / "elsewhere"))
    assert not isinstance(caught.value, BadInput)


def test_an_image_removed_before_it_is_read_is_an_error_that_airflow_retries(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    """The removal comes with the first read, because a real one cannot be timed between listing and reading."""
    real, removed = raw.LocalImages.check, Path(settings.source_uri) / "dogs" / "003.jpg"

    def check(files: raw.LocalImages, key: str, max_bytes: int, follows_link: bool) -> raw.CheckedFile:
        removed.unlink(missing_ok=True)
        return real(files, key, max_bytes, follows_link)

    monkeypatch.setattr(raw.LocalImages, "check", check)
    with pytest.raises(FileSystemError, match=r"/dogs/003\.jpg vanished while it was being listed .*: run again"):
        take_snapshot(settings)


def test_a_temporary_file_removed_during_listing_is_skipped(settings: Settings):
    source = Path(settings.source_uri)
    temporary = source / "dogs" / "004.jpg.part"
    temporary.touch()
    found = list_while(source, "dogs/000.jpg", temporary.unlink)
    assert sum(isinstance(each, Listed) for each in found) == 24
    assert Skipped("dogs/004.jpg.part", "not an image by its name") in found


def test_the_folder_of_the_file_system_check_is_not_a_split(settings: Settings, tmp_path: Path):
    source = tmp_path / "disk"
    source.mkdir()
    (source / "lost+found").mkdir()
    Path(settings.source_uri).rename(source / "train")
    classes = load_snapshot(take_snapshot(changed(settings, source_uri=str(source)))).classes
    assert classes == {"cats": 8, "dogs": 8, "eels": 8}


# --- lists ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), FileSystemError),
        (OSError(errno.EIO, os.strerror(errno.EIO)), FileSystemError),
        (pa.ArrowMemoryError("malloc of size 64 failed"), MemoryError),
        (pa.ArrowInvalid("CSV parse error"), SourceError),
    ],
)
def test_only_an_invalid_list_is_reported_as_bad_input(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception, raised: type[Exception]
):
    """When a list is copied from a bucket, the local disk may be full, and Arrow may run out of memory."""

    def failing_copy(place: Path, generation: int | None = None) -> Path:
        raise failure

    listed = listing(settings, tmp_path)
    monkeypatch.setattr(storage, "local_copy", failing_copy)
    with pytest.raises(raised):
        take_snapshot(changed(settings, source_uri=str(listed)))


def test_a_list_without_an_existing_file_is_refused_with_the_reason(settings: Settings, tmp_path: Path):
    listed = tmp_path / "list.csv"
    listed.write_text("path,label\n" + "".join(f"gone/{n:04d}.jpg,{'ab'[n % 2]}\n" for n in range(1000)))
    with pytest.raises(SourceError, match=r"none of the 1000 files .* exists under .*; the first is 'gone/0000.jpg'"):
        build(changed(settings, source_uri=str(listed)))


@pytest.mark.parametrize(
    ("line", "quoted"),
    [
        (5, '"cats/004.jpg,cats'),  # Without the check, the field would extend to the next quote.
        (5, 'cats/004.jpg,"cats'),
        (5, 'cats/004.jpg,ca"ts'),
        (5, '"cats/004.jpg"x,cats'),
    ],
)
@pytest.mark.parametrize("later", ["", '"dogs/001.jpg","dogs"\n', 'dogs/001.jpg,"dogs"\n'])
def test_a_stray_quote_in_a_list_is_refused_with_its_line(
    settings: Settings, tmp_path: Path, line: int, quoted: str, later: str
):
    rows = [f"cats/{number:03d}.jpg,cats" for number in range(8)]
    rows[line - 2] = quoted
    path = Path(settings.source_uri) / "list.csv"
    path.write_text("path,label\n" + "\n".join(rows) + "\ndogs/000.jpg,dogs\n" + later)
    with pytest.raises(SourceError, match=rf"line {line} has a quote that does not belong to a quoted field"):
        take_snapshot(changed(settings, source_uri=str(path)))


def test_a_quoted_field_can_contain_commas_quotes_and_line_breaks(settings: Settings):
    odd = Path(settings.source_uri) / 'cats/a, "b"\nc.jpg'
    odd.write_bytes(jpeg(5))
    path = Path(settings.source_uri) / "list.csv"
    rows = 'path,label\r\n"cats/a, ""b""\nc.jpg","cats"\r\ndogs/000.jpg,dogs\r\n"",\r\n'
    path.write_bytes(rows.encode())
    snapshot = load_snapshot(take_snapshot(changed(settings, source_uri=str(path))))
    assert (snapshot.listed, snapshot.classes) == (2, {"cats": 1, "dogs": 1})


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
def test_all_common_line_endings_are_accepted(settings: Settings, end: str):
    path = Path(settings.source_uri) / "list.csv"
    path.write_bytes(end.join(["path,label", '"cats/000.jpg","cats"', '"dogs/000.jpg",dogs', ""]).encode())
    assert load_snapshot(take_snapshot(changed(settings, source_uri=str(path)))).listed == 2
    path.write_bytes(end.join(["path,label", 'cats/000.jpg,"cats', 'dogs/000.jpg,"dogs', ""]).encode())
    with pytest.raises(SourceError, match=r"line 2 has a quote"):
        take_snapshot(changed(settings, source_uri=str(path)))


def test_a_label_in_another_encoding_is_refused_unless_the_encoding_is_set(settings: Settings):
    path = Path(settings.source_uri) / "list.csv"
    path.write_bytes("path,label\ncats/000.jpg,Löwe\ndogs/000.jpg,dogs\n".encode("latin-1"))
    latin = changed(settings, source_uri=str(path))
    with pytest.raises(SourceError, match=r"lists 'cats/000\.jpg' with label b'L\\xf6we', which is not UTF-8.*latin-1"):
        take_snapshot(latin)
    snapshot = load_snapshot(take_snapshot(changed(latin, list_encoding="latin-1")))
    assert snapshot.classes == {"Löwe": 1, "dogs": 1}


def test_a_byte_order_mark_before_a_quoted_header_is_accepted(settings: Settings):
    path = Path(settings.source_uri) / "list.csv"
    path.write_text('"path","label"\n"cats/000.jpg","cats"\ndogs/000.jpg,dogs\n', encoding="utf-8-sig")
    assert load_snapshot(take_snapshot(changed(settings, source_uri=str(path)))).listed == 2


@pytest.mark.parametrize("encoding", ["utf-16", "cp1252"])
def test_a_list_in_the_configured_encoding_is_read(settings: Settings, encoding: str):
    path = Path(settings.source_uri) / "list.csv"
    path.write_bytes('path,label\n"cats/000.jpg",é\ndogs/000.jpg,dogs\n'.encode(encoding))
    snapshot = load_snapshot(take_snapshot(changed(settings, source_uri=str(path), list_encoding=encoding)))
    assert snapshot.classes == {"é": 1, "dogs": 1}
