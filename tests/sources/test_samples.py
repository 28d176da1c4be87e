import hashlib
import random
from pathlib import Path

import pytest
from PIL import Image

from pipeline.sources import samples
from pipeline.sources.samples import SHAPES, draw_sample, draw_samples


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*.jpg")
    }


def test_equal_seeds_give_equal_bytes_and_other_seeds_other_bytes(tmp_path: Path) -> None:
    draw_samples(tmp_path / "a", count=12)
    draw_samples(tmp_path / "b", count=12)
    draw_samples(tmp_path / "c", count=12, seed=1)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert not set(contents(tmp_path / "a").values()) & set(contents(tmp_path / "c").values())


def test_each_class_is_a_folder_with_equally_many_jpeg_files(tmp_path: Path) -> None:
    draw_samples(tmp_path / "s", count=18)
    assert {folder.name: len(list(folder.glob("*.jpg"))) for folder in (tmp_path / "s").iterdir()} == dict.fromkeys(
        SHAPES, 3
    )
    with Image.open(next((tmp_path / "s" / "star").iterdir())) as image:
        assert (image.format, image.mode) == ("JPEG", "RGB")


def test_sizes_vary_within_their_range() -> None:
    sizes = [draw_sample("star", random.Random(seed)).size for seed in range(20)]
    assert all(80 <= side <= 240 for size in sizes for side in size)
    assert len(set(sizes)) > 15
    assert any(width != height for width, height in sizes)


def test_an_interrupted_drawing_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str, rng: random.Random) -> Image.Image:
        if name == "cross":
            raise KeyboardInterrupt
        return draw_sample(name, rng)

    monkeypatch.setattr(samples, "draw_sample", interrupted)
    with pytest.raises(KeyboardInterrupt):
        draw_samples(tmp_path / "s", count=6)
    assert list(tmp_path.iterdir()) == []


def test_the_mean_color_does_not_reveal_the_class() -> None:
    names = list(SHAPES)
    means = [
        (name, draw_sample(name, random.Random(f"{name}{number}")).resize((1, 1)).getpixel((0, 0)))
        for number in range(20)
        for name in names
    ]
    known, queries = means[:60], means[60:]
    hits = sum(min(known, key=lambda row: _distance(row[1], mean))[0] == name for name, mean in queries)
    # Chance is 10 of 60; the nearest color must not do much better.
    assert hits < 25


def _distance(a: object, b: object) -> int:
    assert isinstance(a, tuple)
    assert isinstance(b, tuple)
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
