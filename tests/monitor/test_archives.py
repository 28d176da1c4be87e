"""Archives of Comet: each is whole or absent, and the files of an attempt are packed once."""

import fcntl
import io
import json
import os
import zipfile
from pathlib import Path

import pytest

from pipeline.monitor.archives import ADDED_WITHIN_S, Attempt, archives, recover, upload_command
from tests.writes import writes

KEY = "c0ffee" * 6
LINES = b'{"type": "metric_msg", "payload": {"a": 1}}\n{"type": "metric_msg", "payload": {"a": 2}}\n'


def killed(folder: Path, messages: bytes = LINES) -> Path:
    """Return the folder of an attempt that wrote messages and an image, and was killed."""
    attempt = Attempt(folder, KEY, "project", None)
    attempt._lock.close()  # as the system does for a killed process
    (attempt.open / "tmp1").mkdir()
    (attempt.open / "tmp1" / "messages.json").write_bytes(messages)
    (attempt.open / "tmp1" / "image.jpg").write_bytes(b"image")
    (attempt.open / f"{KEY}-abc.zip").write_bytes(packed({}))  # Comet creates this archive at the start.
    return attempt.open


def packed(parts: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file.getvalue()


def content(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as file:
        assert file.testzip() is None
        return {name: file.read(name) for name in file.namelist()}


def test_attempts_have_separate_folders(tmp_path: Path):
    attempts = [Attempt(tmp_path / "comet", KEY, "project", None) for _ in range(3)]
    assert [each.open.parent.name for each in attempts] == ["try-1", "try-2", "try-3"]
    for each in attempts:
        each.discard()
    assert list((tmp_path / "comet").iterdir()) == []


def test_files_of_a_killed_attempt_are_packed_once(tmp_path: Path):
    opened = killed(tmp_path)
    archive = tmp_path / "try-1" / f"{KEY}.zip"
    assert recover(tmp_path) == [archive]
    files = content(archive)
    about = json.loads(files.pop("experiment.json"))
    assert files == {"messages.json": LINES, "image.jpg": b"image"}
    assert (about["offline_id"], about["resume_strategy"], about["project_name"]) == (KEY, "get_or_create", "project")
    assert about["start_time"] <= about["stop_time"]
    assert not opened.exists()
    before = writes([archive])
    assert recover(tmp_path) == []
    assert writes([archive]) == before
    assert archives(tmp_path) == [archive]


@pytest.mark.parametrize("torn", [b'{"type": "metr', b'{"type": "metric_msg", "payload": {"a": 3}}', b"\0\0\0\0\n"])
def test_a_torn_line_of_messages_is_dropped(torn: bytes, tmp_path: Path):
    killed(tmp_path, LINES + torn)
    [archive] = recover(tmp_path)
    assert content(archive)["messages.json"] == LINES


def test_an_archive_packed_by_comet_is_used_with_a_new_description(tmp_path: Path):
    """The attempt was killed after Comet packed its files. After an outage, Comet describes a new experiment."""
    opened = killed(tmp_path, LINES[:44])
    about = b'{"resume_strategy": "create"}'
    (opened / f"{KEY}-whole.zip").write_bytes(packed({"messages.json": LINES, "experiment.json": about, "a.jpg": b"a"}))
    [archive] = recover(tmp_path)
    files = content(archive)
    assert json.loads(files.pop("experiment.json"))["resume_strategy"] == "get_or_create"
    assert files == {"messages.json": LINES, "a.jpg": b"a"}


def test_a_truncated_archive_of_comet_is_ignored(tmp_path: Path):
    opened = killed(tmp_path)
    (opened / f"{KEY}-torn.zip").write_bytes(packed({"messages.json": LINES * 9})[:-30])
    [archive] = recover(tmp_path)
    assert content(archive)["messages.json"] == LINES


def test_an_archive_of_comet_damaged_by_a_power_loss_is_ignored(tmp_path: Path):
    opened = killed(tmp_path)
    torn = bytearray(packed({"messages.json": LINES * 9}, zipfile.ZIP_DEFLATED))
    torn[30 + len("messages.json")] = 0xFF  # a block type unknown to zlib, after the header
    (opened / f"{KEY}-torn.zip").write_bytes(torn)
    [archive] = recover(tmp_path)
    assert content(archive)["messages.json"] == LINES


def test_an_attempt_killed_after_packing_keeps_its_archive(tmp_path: Path):
    opened = killed(tmp_path)
    archive = opened.parent / f"{KEY}.zip"
    archive.write_bytes(packed({"messages.json": LINES}))
    before = archive.read_bytes()
    assert recover(tmp_path) == [archive]
    assert archive.read_bytes() == before
    assert not opened.exists()


def left_by_comet(attempt: Attempt, number: int, file: str) -> None:
    (attempt.open / "tmp1").mkdir()
    (attempt.open / "tmp1" / "messages.json").write_bytes(b'{"number": %d}\n' % number)
    (attempt.open / "tmp1" / file).write_bytes(b"of %d" % number)


def test_an_addition_becomes_part_of_the_newest_archive(tmp_path: Path):
    training, results, decision = (Attempt(tmp_path, KEY, "project", None) for _ in range(3))
    left_by_comet(training, 1, "a.jpg")
    left_by_comet(results, 2, "b.jpg")
    archive = training.close(extends=True)
    assert archive is not None
    assert archive == tmp_path / "try-1" / f"{KEY}.zip" == results.close(extends=True)
    assert decision.close(extends=True) is None  # Comet left nothing.
    files = content(archive)
    assert json.loads(files.pop("experiment.json"))["resume_strategy"] == "get_or_create"
    assert files == {"messages.json": b'{"number": 1}\n{"number": 2}\n', "a.jpg": b"of 1", "b.jpg": b"of 2"}
    assert [path.name for path in tmp_path.iterdir()] == ["try-1"]


def test_nothing_is_added_to_an_archive_that_a_person_may_have_uploaded(tmp_path: Path):
    killed(tmp_path)
    [earlier] = recover(tmp_path)
    before = earlier.read_bytes()
    old = earlier.stat().st_mtime - 2 * ADDED_WITHIN_S
    os.utime(earlier, (old, old))
    decision = Attempt(tmp_path, KEY, "project", None)
    left_by_comet(decision, 2, "b.jpg")
    assert decision.close(extends=True) == tmp_path / "try-2" / f"{KEY}.zip"
    assert earlier.read_bytes() == before


@pytest.mark.parametrize("reason", ["same file", "damaged archive"])
def test_an_addition_that_the_newest_archive_cannot_take_has_its_own(reason: str, tmp_path: Path):
    training, results = (Attempt(tmp_path, KEY, "project", None) for _ in range(2))
    left_by_comet(training, 1, "a.jpg")
    left_by_comet(results, 2, "a.jpg" if reason == "same file" else "b.jpg")
    archive = training.close()
    assert archive is not None
    if reason == "damaged archive":
        archive.write_bytes(archive.read_bytes()[:-30])
    before = archive.read_bytes()
    own = results.close(extends=True)
    assert own == tmp_path / "try-2" / f"{KEY}.zip"
    assert content(own)["messages.json"] == b'{"number": 2}\n'
    assert archive.read_bytes() == before


def test_an_attempt_without_messages_is_removed(tmp_path: Path):
    killed(tmp_path, b"")
    assert recover(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_running_attempt_is_not_recovered(tmp_path: Path):
    opened = killed(tmp_path)
    with (opened / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert recover(tmp_path) == []
        assert (opened / "tmp1" / "messages.json").exists()
    assert len(recover(tmp_path)) == 1


def test_recovery_on_a_full_disk_keeps_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    opened = killed(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "open", full)
        with pytest.raises(OSError, match="No space"):
            recover(tmp_path)
    assert archives(tmp_path) == []
    assert [path.name for path in opened.parent.iterdir()] == [opened.name]
    [archive] = recover(tmp_path)
    assert content(archive)["messages.json"] == LINES


def test_archives_are_in_the_order_of_attempts_and_the_upload_command_is_quoted(tmp_path: Path):
    folder = tmp_path / "a run"
    for number in (10, 2, 1):
        (folder / f"try-{number}").mkdir(parents=True)
        (folder / f"try-{number}" / f"{KEY}.zip").write_bytes(packed({}))
    in_order = archives(folder)
    assert [path.parent.name for path in in_order] == ["try-1", "try-2", "try-10"]
    assert upload_command(in_order[:1]).endswith(f"comet upload '{in_order[0]}'")
