"""The contract of every kind of source, tested with a small example of each kind."""

import inspect
import os
import sys
import textwrap
from pathlib import Path

import google_crc32c
import pytest

from pipeline import sources
from pipeline.config.settings import source_kinds
from pipeline.errors import SourceError
from pipeline.sources import MISSING, UNMEASURED, Classes, Found, Listed, Skipped
from pipeline.sources.detection import find_source, images_of
from tests.sources.examples import EXAMPLES, options_of


def as_bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def entries_of(place: Path, kind: str = "auto") -> list[Found]:
    return list(images_of(place, options_of(kind)))


def test_every_kind_has_an_example():
    assert source_kinds() == sorted(EXAMPLES), "each kind needs an example in tests/sources/examples.py"


@pytest.mark.parametrize("kind", EXAMPLES)
class TestContract:
    def test_auto_detects_the_kind(self, kind: str, tmp_path: Path):
        assert find_source(EXAMPLES[kind](tmp_path), "auto").__name__ == f"pipeline.sources.{kind}"

    def test_its_docstring_has_a_summary_line(self, kind: str, tmp_path: Path):
        first_line = (find_source(EXAMPLES[kind](tmp_path), kind).__doc__ or "").split("\n")[0]
        assert 40 < len(first_line) < 120

    def test_keys_are_unique_and_sorted_by_their_bytes(self, kind: str, tmp_path: Path):
        entries = entries_of(EXAMPLES[kind](tmp_path))
        images = [as_bytes(item.key) for item in entries if isinstance(item, Listed)]
        everything = [as_bytes(item.key) for item in entries if not isinstance(item, Classes)]
        assert len(images) > 2
        assert images == sorted(set(images))
        assert everything == sorted(everything)

    def test_size_and_generation_match_the_files(self, kind: str, tmp_path: Path):
        place = EXAMPLES[kind](tmp_path)
        for path in tmp_path.rglob("*.[jJ]*"):
            os.utime(path, ns=(1, 1))  # Users can set this time, so it must not be the generation.
        for item in entries_of(place):
            if isinstance(item, Listed):
                path = tmp_path / (item.extent.file if item.extent else item.key)
                status = path.stat() if path.exists() else None
                here = (status.st_size, status.st_ctime_ns) if status else (MISSING, 0)
                if item.extent:  # The generation is that of the container.
                    content = path.read_bytes()[item.extent.offset :][: item.size]
                    assert (google_crc32c.value(content), item.generation) == (item.crc32c, here[1])
                else:
                    assert (item.size, item.generation) in (here, (UNMEASURED, 0))

    def test_every_image_has_labels_and_every_skipped_file_a_reason(self, kind: str, tmp_path: Path):
        entries = entries_of(EXAMPLES[kind](tmp_path))
        assert all(item.labels and all(item.labels) for item in entries if isinstance(item, Listed))
        assert all(item.split in ("", "train", "validation", "test") for item in entries if isinstance(item, Listed))
        assert all(item.reason for item in entries if isinstance(item, Skipped))
        assert any(isinstance(item, Skipped) for item in entries)

    def test_classes_come_first_if_present_and_hold_every_label(self, kind: str, tmp_path: Path):
        first, *others = entries_of(EXAMPLES[kind](tmp_path))
        assert not any(isinstance(item, Classes) for item in others)
        if isinstance(first, Classes):
            labels = {label for item in others if isinstance(item, Listed) for label in item.labels}
            assert labels <= set(first.names)
            assert first.texts.keys() <= set(first.names)

    def test_listing_twice_gives_the_same_result(self, kind: str, tmp_path: Path):
        place = EXAMPLES[kind](tmp_path)
        assert entries_of(place) == entries_of(place)

    def test_a_missing_place_is_refused(self, kind: str, tmp_path: Path):
        with pytest.raises(SourceError, match=r"nothing\.csv cannot be read"):
            entries_of(tmp_path / "nothing.csv", kind)

    @pytest.mark.parametrize("name", ["list.txt", "pipe.csv", "loop.csv", "folder.csv"])
    def test_an_unsuitable_place_is_refused(self, kind: str, name: str, tmp_path: Path):
        (tmp_path / "list.txt").write_text("path,label\n")
        os.mkfifo(tmp_path / "pipe.csv")
        (tmp_path / "loop.csv").symlink_to("loop.csv")
        (tmp_path / "folder.csv").mkdir()
        if (kind, name) == ("folder", "folder.csv"):
            assert entries_of(tmp_path / name, kind) == []  # The extract step reports that there are no images.
        else:
            with pytest.raises(SourceError, match=rf"source_uri .*{name} (is not what|cannot be read)"):
                entries_of(tmp_path / name, kind)


def test_a_kind_that_does_not_fit_describes_what_it_expects(tmp_path: Path):
    with pytest.raises(SourceError, match=r"'stanford_cars' looks for \(stanford_cars: Stanford Cars: cars_train/"):
        find_source(tmp_path, "stanford_cars")


def test_the_error_for_an_unrecognized_source_names_every_kind(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(SourceError) as refused:
        find_source(tmp_path / "notes.txt", "auto")
    assert all(f"{kind}: " in str(refused.value) for kind in source_kinds())


def example_of_the_documentation() -> str:
    """Return the indented lines in the docstring of pipeline/sources, which define a custom source."""
    lines = inspect.getdoc(sources).split("\n")
    return textwrap.dedent("\n".join(line for line in lines if line.startswith("    ") or not line))


@pytest.fixture
def own_kind(tmp_path: Path):
    """Add a module to the package pipeline/sources, as a user does for a custom source."""

    def put(code: str | bytes, file: str = "mine.py") -> None:
        path = tmp_path / "own" / file
        path.parent.mkdir(parents=True)
        path.write_bytes(code.encode() if isinstance(code, str) else code)
        sources.__path__.append(str(tmp_path / "own"))

    yield put
    if str(tmp_path / "own") in sources.__path__:
        sources.__path__.remove(str(tmp_path / "own"))
    sys.modules.pop("pipeline.sources.mine", None)


HEAD = """'A folder of a test.'
from collections.abc import Iterator
from pathlib import Path

from pipeline.sources import Found, Listed, SourceOptions, measure
"""


def test_the_example_of_the_documentation_works_as_written(own_kind, tmp_path: Path):
    own_kind(example_of_the_documentation())
    place = tmp_path / "place"
    EXAMPLES["folder"](place)
    (place / "index.txt").write_text("val/cats/d.jpg\tcat\ntrain/cats/b.jpg\tsmall dog\n")
    assert "mine" in source_kinds()
    entries = entries_of(place)
    assert [(item.key, item.labels) for item in entries] == [
        ("train/cats/b.jpg", ("small dog",)),
        ("val/cats/d.jpg", ("cat",)),
    ]
    assert [item.size for item in entries] == [(place / item.key).stat().st_size for item in entries]


@pytest.mark.parametrize(
    ("code", "file"),
    [
        ("from elsewhere import list_images, recognizes\n", "mine.py"),
        ("# coding: latin-1\nNAME = 'é'\n".encode("latin-1"), "mine.py"),
        ("def list_images(place, options): ...\n", "mine/__init__.py"),
    ],
)
def test_a_kind_can_be_any_module_that_python_imports(code: str | bytes, file: str, own_kind):
    own_kind(code, file)
    assert "mine" in source_kinds()


def test_backup_and_lock_files_of_an_editor_are_not_kinds(own_kind, tmp_path: Path):
    own_kind("", "mine.py")
    (tmp_path / "own" / ".#mine.py").symlink_to("nobody@nowhere")
    (tmp_path / "own" / "mine.orig.py").touch()
    assert [kind for kind in source_kinds() if "mine" in kind] == ["mine"]


@pytest.mark.parametrize("keys", [("b", "a"), ("a", "a"), ("é", "z")])
def test_a_kind_that_lists_out_of_order_is_named(keys: tuple[str, str], own_kind, tmp_path: Path):
    own_kind(
        HEAD + "def recognizes(place): return True\n"
        f"def list_images(place, options): yield from (Listed(key, ('x',), '', 1, 1) for key in {keys})\n"
    )
    with pytest.raises(
        SourceError, match=rf"mine\.py lists '{keys[1]}' after '{keys[0]}': .*order of the keys as bytes"
    ):
        entries_of(tmp_path, "mine")
