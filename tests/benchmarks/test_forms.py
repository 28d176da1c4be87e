"""The forms of a source that `benchmarks.forms` measures hold the same images, all of which differ."""

import io
import tarfile
import zipfile

from PIL import Image
from pyarrow import parquet

from benchmarks import forms


def test_all_images_differ_and_can_be_decoded():
    images = dict(forms.images(1200))
    assert len(images) == len(set(images.values())) == 1200
    first, again = "0000/0000000.jpg", "0500/0000500.jpg"  # Drawn once, with another comment.
    assert Image.open(io.BytesIO(images[first])).size == (forms.PIXELS, forms.PIXELS)
    assert Image.open(io.BytesIO(images[first])).tobytes() == Image.open(io.BytesIO(images[again])).tobytes()


def test_each_form_holds_the_same_images(tmp_path):
    count = 30
    for form, write in forms.WRITERS.items():
        (tmp_path / form).mkdir()
        write(tmp_path / form, count)
    expected = dict(forms.images(count))
    files = {str(path.relative_to(tmp_path / forms.FILES)): path for path in (tmp_path / forms.FILES).rglob("*.jpg")}
    assert {name: path.read_bytes() for name, path in files.items()} == expected
    with tarfile.open(tmp_path / "tar" / "00000.tar") as tar:
        assert {name: tar.extractfile(name).read() for name in tar.getnames()} == expected
    with zipfile.ZipFile(tmp_path / "zip" / "00000.zip") as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == expected
    rows = parquet.read_table(tmp_path / "parquet" / "00000.parquet").to_pylist()
    assert {row["image"]["path"]: row["image"]["bytes"] for row in rows} == expected
    assert all(row["image"]["path"].startswith(f"{row['label']}/") for row in rows)
