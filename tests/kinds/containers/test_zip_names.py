"""The names in a zip file, of which only newer programs say that they are UTF-8."""

import struct
import zipfile
import zlib
from pathlib import Path

import pytest

from tests.conftest import jpeg
from tests.kinds.containers.examples import Found, write_zip

NAME = "Café/0.jpg"


def write_plain(path: Path, raw: bytes, extra: bytes, compression: int) -> Path:
    """Write an archive with a name as these bytes, without the flag of UTF-8."""
    info = zipfile.ZipInfo("@" * len(raw))
    info.extra = extra
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(info, jpeg(0), compression)
        archive.writestr("z/1.jpg", jpeg(1))
    path.write_bytes(path.read_bytes().replace(b"@" * len(raw), raw))
    return path


def unicode_path(raw: bytes, version: int = 1) -> bytes:
    content = struct.pack("<BL", version, zlib.crc32(raw)) + NAME.encode()
    # Another part is before it, such as the time of the file.
    return struct.pack("<HHL", 0x5455, 4, 7) + struct.pack("<HH", 0x7075, len(content)) + content


NAMES: dict[str, tuple[bytes, bytes, str]] = {
    "utf-8": (NAME.encode(), b"", NAME),
    "cp437": (NAME.encode("cp437"), b"", NAME),
    "other letters in utf-8": ("花/0.jpg".encode(), b"", "花/0.jpg"),
    "unicode path": (b"Caf?/0.jpg", unicode_path(b"Caf?/0.jpg"), NAME),
    "unicode path of an older name": (b"Tea/0.jpg", unicode_path(b"Caf?/0.jpg"), "Tea/0.jpg"),
    "unicode path of an unknown version": (b"Tea/0.jpg", unicode_path(b"Tea/0.jpg", version=2), "Tea/0.jpg"),
}


def test_backslashes_in_a_name_without_a_slash_separate_folders(tmp_path: Path):
    images = {
        r"train\cats\0.jpg": jpeg(0),
        r"train\dogs\1.jpg": jpeg(1),
        "train\\cats\\": b"",
        r"val/dogs/a\b.jpg": jpeg(2),
    }
    found = Found(write_zip(tmp_path / "a.zip", images), str(tmp_path / "copies"))
    assert found.labels == {
        "train/cats/0.jpg": ("cats",),
        "train/dogs/1.jpg": ("dogs",),
        r"val/dogs/a\b.jpg": ("dogs",),
    }
    assert not found.skipped


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_name_without_the_flag_of_utf_8_is_read(name: str, compression: int, tmp_path: Path):
    raw, extra, expected = NAMES[name]
    found = Found(write_plain(tmp_path / "a.zip", raw, extra, compression), str(tmp_path / "copies"))
    assert found.labels == {expected: (expected.split("/")[0],), "z/1.jpg": ("z",)}
