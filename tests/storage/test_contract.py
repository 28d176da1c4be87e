"""The contract of every kind of storage, tested on a disk and on a fake server of Google Cloud Storage."""

import threading
from contextlib import suppress
from pathlib import Path

import google_crc32c
import pytest

from pipeline import storage
from pipeline.errors import ConflictError, SizeError
from pipeline.storage import Place
from standins.fake_gcs import FakeGcs


@pytest.fixture(params=["disk", "bucket"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, gcs: FakeGcs) -> Place:
    """An empty folder."""
    return tmp_path / "folder" if request.param == "disk" else storage.place_of("gs://bucket/folder")


def put(place: Place, content: bytes = b"content") -> Place:
    with storage.write_new(place) as file:
        file.write(content)
    return place


class TestStorage:
    @pytest.mark.parametrize("write", [storage.write_new, storage.write_whole])
    def test_a_file_appears_whole(self, folder: Place, write):
        with write(folder / "deep" / "file") as file:
            file.write(b"half")
            assert not (folder / "deep" / "file").exists()
            file.write(b" and half")
        assert (folder / "deep" / "file").read_bytes() == b"half and half"

    @pytest.mark.parametrize("write", [storage.write_new, storage.write_whole])
    def test_an_error_leaves_no_file(self, folder: Place, write):
        with pytest.raises(ZeroDivisionError), write(folder / "file") as file:
            file.write(b"half" * (1 // 0))
        assert not (folder / "file").exists()

    def test_write_new_keeps_an_existing_file_and_accepts_equal_content(self, folder: Place):
        place = put(folder / "file", b"first")
        put(place, b"first")
        for other in (b"other", b"longer than the first"):
            with pytest.raises(ConflictError, match=r"file already exists with other content and was left untouched"):
                put(place, other)
        assert place.read_bytes() == b"first"

    def test_write_whole_replaces_an_existing_file(self, folder: Place):
        for content in (b"old", b"new", b"new"):
            with storage.write_whole(folder / "file") as file:
                file.write(content)
        assert (folder / "file").read_bytes() == b"new"

    @pytest.mark.parametrize(
        ("there", "before"), [(None, b"old"), (b"new", b"old"), (b"new", None), (b"old", b"old and more")]
    )
    def test_swap_refuses_a_file_changed_meanwhile(self, folder: Place, there: bytes | None, before: bytes | None):
        place = folder / "deep" / "file" if there is None else put(folder / "deep" / "file", there)
        with pytest.raises(ConflictError, match=r"another program changed .*deep/file in the meantime"):
            storage.swap(place, before, b"mine")
        assert (place.read_bytes() if place.exists() else None) == there

    def test_concurrent_swaps_each_succeed_once(self, folder: Place):
        place = folder / "deep" / "file"

        def append(letter: str) -> None:
            while True:
                before = place.read_bytes() if place.exists() else None
                with suppress(ConflictError):
                    storage.swap(place, before, (before or b"") + letter.encode())
                    return

        threads = [threading.Thread(target=append, args=(letter,)) for letter in "abcdef"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(place.read_text()) == list("abcdef")

    def test_one_of_many_concurrent_creations_wins(self, folder: Place):
        outcomes: list[str] = []

        def create(number: int) -> None:
            try:
                put(folder / "file", f"by {number}".encode())
                outcomes.append("won")
            except ConflictError:
                outcomes.append("lost")

        threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["lost"] * 7 + ["won"]

    def test_size_checksum_and_content_of_a_file(self, folder: Place):
        content = bytes(range(256)) * 4
        place = put(folder / "file", content)
        assert place.stat().st_size == len(content)
        assert storage.crc32c_of(place) == google_crc32c.value(content)
        with place.open("rb") as file:
            file.seek(1000)
            assert file.read() == content[1000:]
            assert file.fileno() > 0  # A real file can be mapped, and read at any offset.
        with storage.local_copy(place) as copy:
            assert copy.read_bytes() == content
            assert copy.name == "file"

    def test_the_parts_of_a_large_file_are_read_in_order(self, folder: Place, monkeypatch: pytest.MonkeyPatch):
        from pipeline.storage import gcs

        monkeypatch.setattr(gcs, "PART_BYTES", 256 << 10)
        content = b"".join(number.to_bytes(8, "big") for number in range(200_000))
        place = put(folder / "large", content)
        with place.open("rb") as file:
            assert file.read() == content

    def test_a_file_over_a_limit_is_not_read(self, folder: Place, gcs: FakeGcs):
        place = put(folder / "file", b"7" * 100)
        assert storage.read_limited(place, 100) == b"7" * 100
        downloads = gcs.requests["download"]
        for read in (storage.read_limited, storage.read_json):
            with pytest.raises(SizeError, match=r"file has 0 MB, more than the 0 MB that Tenfold reads of such a file"):
                read(place, 99)
        assert gcs.requests["download"] == downloads
        with pytest.raises(FileNotFoundError):
            storage.read_limited(folder / "missing", 100)

    def test_an_empty_file_is_a_file(self, folder: Place):
        place = put(folder / "empty", b"")
        assert place.is_file()
        assert place.stat().st_size == 0
        assert place.read_bytes() == b""
        with place.open("rb") as file:
            assert file.read() == b""

    def test_a_missing_file_raises_file_not_found(self, folder: Place):
        put(folder / "there")
        missing = folder / "missing"
        assert not missing.exists()
        assert not missing.is_dir()
        for look in (missing.stat, missing.read_bytes, lambda: missing.open("rb"), missing.unlink):
            with pytest.raises(FileNotFoundError):
                look()
        missing.unlink(missing_ok=True)

    def test_a_folder_can_be_listed_and_globbed(self, folder: Place):
        for name in ("b.json", "a/x.json", "a/y.txt", "c/deep/z.json", "ä #?%.json"):
            put(folder / name)
        assert sorted(child.name for child in folder.iterdir()) == ["a", "b.json", "c", "ä #?%.json"]
        assert sorted(child.name for child in storage.folders(folder)) == ["a", "c"]
        assert sorted(child.name for child in folder.glob("*.json")) == ["b.json", "ä #?%.json"]
        assert [str(child) for child in folder.glob("*/x.json")] == [str(folder / "a" / "x.json")]
        assert (folder / "a").is_dir()
        assert (folder / "a").exists()
        assert not (folder / "a").is_file()
        assert (folder / "b.json").is_file()

    def test_a_copy_is_whole_and_replaces_nothing(self, folder: Place, tmp_path: Path):
        source = put(folder / "source", b"first")
        for target in (folder / "near" / "copy", tmp_path / "copy", storage.place_of("gs://bucket/far/copy")):
            storage.copy_new(source, target)
            storage.copy_new(source, target)
            assert target.read_bytes() == b"first"
        put(folder / "other", b"other")
        with pytest.raises(ConflictError, match="left untouched"):
            storage.copy_new(folder / "other", folder / "near" / "copy")

    def test_move_whole_replaces_the_target_file(self, folder: Place):
        for content in (b"old", b"new"):
            with storage.temporary_for(folder / "file") as temporary:
                temporary.write_bytes(content)
                storage.move_whole(temporary, folder / "file")
        assert (folder / "file").read_bytes() == b"new"
        assert [child.name for child in folder.iterdir()] == ["file"]

    def test_a_removed_file_no_longer_exists(self, folder: Place):
        put(folder / "file").unlink()
        assert not (folder / "file").exists()

    def test_names_of_places(self, folder: Place):
        place = folder / "a.b" / "train-00000.tar.gz"
        assert (place.name, place.stem, place.suffix, place.parent) == (
            "train-00000.tar.gz",
            "train-00000.tar",
            ".gz",
            folder / "a.b",
        )
        assert place.with_suffix(".x") == folder / "a.b" / "train-00000.tar.x"
        assert place.with_name("y") == folder / "a.b" / "y"
        assert folder / "a.b" / "" == folder / "a.b"
        assert storage.is_inside(place, folder)
        assert not storage.is_inside(folder.with_name("folder-2"), folder)
        assert not storage.is_inside(folder, place)
        assert storage.place_of(str(place)) == place
