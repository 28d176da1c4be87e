"""The picture of `show` has the pixels that the model sees."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFont

from pipeline.__main__ import main
from pipeline.config.automatic import training_settings
from pipeline.config.settings import Settings
from pipeline.errors import DatasetError
from pipeline.input import training_batches, validation_batches
from pipeline.input.augmentation import jittered, seed_of_batch
from pipeline.input.options import batch_options
from pipeline.records import tfrecord
from pipeline.storage import BucketPath
from pipeline.training import show as shown
from pipeline.training.show import LABEL_HEIGHT, MARGIN, TITLE_HEIGHT, Shown, draw_grid, shortened, show, shown_side
from standins.fake_gcs import FakeGcs
from tests.published import examples, publish, publish_case

ROOT = Path(__file__).resolve().parents[2]
SIZE = 32
WHITE = (255, 255, 255)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 40 two-colored images, with a non-ASCII label and a very long label."""
    root = tmp_path_factory.mktemp("published")
    for number in range(40):
        path = root / "source" / ("Chrysanthème 菊", "a name that is far too long " * 4)[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.new("RGB", (50, 40), (5 * number, 100, 0))
        image.paste((0, 100, 5 * number), (25, 0, 50, 40))
        image.save(path)
    return publish(root / "source", root / "w", num_shards=2, dataset_name="flowers")


def settings_of(**values: object) -> Settings:
    return training_settings({"image_size": SIZE, "batch_size": 8, **values})


def tile(picture: Image.Image, number: int, columns: int, side: int = shown_side(SIZE)) -> Image.Image:
    row, column = divmod(number, columns)
    left, top = MARGIN + column * (side + MARGIN), TITLE_HEIGHT + row * (side + LABEL_HEIGHT)
    return picture.crop((left, top, left + side, top + side))


def label_of(picture: Image.Image, number: int, columns: int, side: int = shown_side(SIZE)) -> Image.Image:
    """Return the strip below an image, including the margin to its right."""
    row, column = divmod(number, columns)
    left, top = MARGIN + column * (side + MARGIN), TITLE_HEIGHT + row * (side + LABEL_HEIGHT) + side
    return picture.crop((left, top, left + side + MARGIN, top + LABEL_HEIGHT))


def is_blank(image: Image.Image) -> bool:
    return image.getcolors() == [(image.width * image.height, WHITE)]


def assert_shows(path: Path, images: Sequence[np.ndarray], columns: int) -> None:
    """Assert that the picture has exactly these images, pixel by pixel, each with a label."""
    with Image.open(path) as picture:
        picture.load()
    for number, image in enumerate(images):
        seen = np.asarray(tile(picture, number, columns).resize((SIZE, SIZE), Image.Resampling.NEAREST))
        assert np.abs(seen.astype(float) - image).max() <= 0.51
        assert not is_blank(label_of(picture, number, columns))
    assert len(images) == columns**2 or is_blank(tile(picture, len(images), columns))


def validated(folder: Path, settings: Settings, split: str = "validation") -> list[np.ndarray]:
    batches = validation_batches(folder, batch_options(settings), split=split)
    return [
        image
        for images, _, weights in batches
        for image, weight in zip(images.numpy(), weights.numpy(), strict=True)
        if weight
    ]


def test_show_draws_validation_images_as_the_model_sees_them(published: Path, tmp_path: Path):
    settings = settings_of()
    images = validated(published, settings)
    path = show(settings, published, tmp_path / "a.png", augmented=False, count=4)
    assert len(images) > 4
    assert_shows(path, images[:4], 2)


def test_show_draws_the_test_images_of_a_dataset_that_has_some(tested: Path, tmp_path: Path):
    settings = settings_of()
    path = show(settings, tested, tmp_path / "a.png", augmented=False, count=4)
    assert_shows(path, validated(tested, settings, "test")[:4], 2)


def test_show_draws_all_images_without_padding_if_there_are_too_few(published: Path, tmp_path: Path):
    settings = settings_of(batch_size=5)
    images = validated(published, settings)
    path = show(settings, published, tmp_path / "a.png", augmented=False, count=256)
    assert_shows(path, images, int(np.ceil(np.sqrt(len(images)))))


@pytest.mark.long
@pytest.mark.parametrize("color_jitter", [0.0, 0.5])
def test_show_draws_training_images_as_the_model_sees_them(published: Path, tmp_path: Path, color_jitter: float):
    settings = settings_of(color_jitter=color_jitter, crop="random", seed=3)
    path = show(settings, published, tmp_path / "a.png", augmented=True, count=16)
    batches = training_batches(published, batch_options(settings)).take(2)
    images = [jittered(batch[0], color_jitter, seed_of_batch(3, step)).numpy() for step, batch in enumerate(batches)]
    assert_shows(path, np.concatenate(images), 4)


@pytest.mark.long
@pytest.mark.parametrize("cache", ["disk", "auto", "memory"])
def test_show_does_not_write_the_image_cache(published: Path, tmp_path: Path, cache: str):
    settings = settings_of(cache=cache, local_folder=str(tmp_path / "local"))
    path = show(settings, published, tmp_path / "a.png", augmented=True, count=4)
    other = show(settings_of(cache="off"), published, tmp_path / "b.png", augmented=True, count=4)
    assert path.read_bytes() == other.read_bytes()
    assert not (tmp_path / "local").exists()


@pytest.mark.long
def test_show_draws_the_same_picture_from_a_bucket(gcs: FakeGcs, published: Path, tmp_path: Path):
    gcs.put_folder("bucket", "published/", published)
    settings = settings_of(local_folder=str(tmp_path / "local"))
    remote = show(settings, BucketPath("bucket", "published"), tmp_path / "a.png", augmented=True, count=9)
    local = show(settings, published, tmp_path / "b.png", augmented=True, count=9)
    assert remote.read_bytes() == local.read_bytes()


def test_chosen_images_are_drawn_in_their_order_with_their_places(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    of_validation = list(examples(published, "validation"))
    names = [each["image/filename"][0].decode() for each in of_validation]
    chosen = [names[3], names[0], names[1]]
    images = validated(published, settings_of())
    arguments = ["show", str(published), "--to", str(tmp_path / "a.png"), "--set", f"image_size={SIZE}"]
    given = [word for name in chosen for word in ("--image", name)]
    assert main([*arguments, *given, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert_shows(tmp_path / "a.png", [images[3], images[0], images[1]], 2)
    assert [each["key"] for each in result["images"]] == chosen
    for each in result["images"]:
        record = list(tfrecord.read_records(published / each["shard"]))[each["record"]]
        assert each["key"].encode() in record
    assert main([*arguments, "--image", chosen[0]]) == 0
    first = result["images"][0]
    assert f"{chosen[0]}: record {first['record']} of {first['shard']}" in capsys.readouterr().out


def one_colored(side: int, *colors: tuple[int, int, int]) -> list[Shown]:
    return [Shown(Image.new("RGB", (side, side), color), [label]) for label, color in enumerate(colors)]


@pytest.mark.parametrize("side", [32, 96, 160, 224, 600])
def test_images_are_drawn_in_rows_with_labels_of_limited_width(side: int):
    colors = [(200, 0, 0), (0, 200, 0), (0, 0, 200)]
    picture = draw_grid(one_colored(side, *colors), ["W" * 200, "b", "c"], "T" * 500, "s" * 500)
    for number, color in enumerate(colors):
        image = tile(picture, number, 2, shown_side(side))
        assert image.getcolors() == [(image.width * image.height, color)]
    assert is_blank(tile(picture, 3, 2, shown_side(side)))
    strip = label_of(picture, 0, 2, shown_side(side))
    assert is_blank(strip.crop((strip.width - MARGIN, 0, *strip.size)))
    assert not is_blank(strip)
    assert is_blank(picture.crop((picture.width - MARGIN, 0, *picture.size)))  # the title is shortened too


def test_each_image_has_its_label():
    seen = one_colored(32, (1, 1, 1), (2, 2, 2))
    picture = draw_grid([seen[0], seen[1], seen[0]], ["daisy", "rose"], "title", "subtitle")
    strips = [label_of(picture, number, 2).tobytes() for number in range(3)]
    assert strips[0] == strips[2] != strips[1]
    renamed = draw_grid([seen[0], seen[1], seen[0]], ["daisy", "tulip"], "title", "subtitle")
    assert label_of(renamed, 0, 2).tobytes() == strips[0]
    assert label_of(renamed, 1, 2).tobytes() != strips[1]


@pytest.mark.parametrize("fonts", [(), ("no such font.ttf",), shown.FONTS])
@pytest.mark.parametrize(
    "name",
    [
        "",
        "漢字",
        "Chrysanthème 菊 🌼",
        "two\nlines\tand \0",
        "\udcff\ud800",
        "שלום",
        "e\u0301",
        "W" * 100_000,
        "漢" * 99,
    ],
)
def test_any_text_can_be_drawn(monkeypatch: pytest.MonkeyPatch, fonts: tuple[str, ...], name: str):
    monkeypatch.setattr(shown, "FONTS", fonts)  # the fonts of other systems
    picture = draw_grid(one_colored(32, (1, 1, 1)), [name], name, name)
    assert not is_blank(label_of(picture, 0, 1))


@pytest.mark.parametrize("width", [0, 10, 50, 51, 52, 53, 200])
def test_a_long_name_is_shortened_to_the_width(width: int):
    font = ImageFont.load_default(14)
    name = "sunflowers of a late summer"
    line = shortened(name, width, font)
    if line != name:
        assert line.endswith("…")
        assert name.startswith(line[:-1])
        assert width < font.getlength("…") or font.getlength(line) <= width
        longer = name[: len(line)] + "…"
        assert name[len(line) - 1] == " " or font.getlength(longer) > width
    else:
        assert font.getlength(name) <= width


def test_several_labels_of_an_image_are_drawn_in_one_line(tmp_path: Path):
    dataset, _ = publish_case("boxes", tmp_path)
    path = show(settings_of(), dataset, tmp_path / "a.png", augmented=False, count=4)
    assert_shows(path, validated(dataset, settings_of()), 2)
    image = Image.new("RGB", (SIZE, SIZE))
    both, one = (draw_grid([Shown(image, labels)], ["daisy", "rose"], "t", "s") for labels in ([0, 1], [0]))
    assert label_of(both, 0, 1).crop((0, 0, 45, LABEL_HEIGHT)) == label_of(one, 0, 1).crop((0, 0, 45, LABEL_HEIGHT))
    assert label_of(both, 0, 1).tobytes() != label_of(one, 0, 1).tobytes()
    many = draw_grid([Shown(image, range(20))], ["a rather long name"] * 20, "t", "s")
    assert is_blank(label_of(many, 0, 1).crop((shown_side(SIZE), 0, shown_side(SIZE) + MARGIN, LABEL_HEIGHT)))


@pytest.mark.long
@pytest.mark.parametrize(
    ("values", "augmented", "title"),
    [
        ({}, True, "training, crop random, flip, 32 x 32 pixels"),
        ({"flip": False, "color_jitter": 0.4}, True, "training, crop random, color jitter 0.4, 32 x 32 pixels"),
        ({"image_size": 40}, False, "validation, crop center, 40 x 40 pixels"),
        ({"crop": "whole", "color_jitter": 0.4}, False, "validation, crop whole, 32 x 32 pixels"),
    ],
)
def test_the_title_describes_the_images(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict, augmented: bool, title: str
):
    titles: list[tuple[str, str]] = []
    # The test cannot read text from a picture.
    monkeypatch.setattr(shown, "draw_grid", lambda *given: titles.append(given[2:]) or draw_grid(*given))
    show(settings_of(**values), published, tmp_path / "a.png", augmented=augmented, count=1)
    assert titles == [(f"flowers {published.name}", title)]


def test_a_damaged_shard_is_reported_and_leaves_no_picture(published: Path, tmp_path: Path):
    dataset = publish(published.parents[3] / "source", tmp_path / "w")
    shard = next(path for path in sorted(dataset.glob("validation-*")) if path.stat().st_size)
    content = bytearray(shard.read_bytes())
    content[40] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DatasetError, match=rf"{shard.name}: the record at byte 0 is damaged"):
        show(settings_of(), dataset, tmp_path / "a.png", augmented=False, count=4)
    assert not list(tmp_path.glob("a.png*"))


@pytest.mark.long
def test_the_show_command_replaces_the_picture_in_the_current_folder(published: Path, tmp_path: Path):
    path = tmp_path / f"flowers-{published.name}-augmented.png"
    path.write_bytes(b"of yesterday")
    command = [sys.executable, "-m", "pipeline", "show", str(published), "--augmented", "--count", "3", "--json"]
    done = subprocess.run(
        [*command, "--set", "image_size=40"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout) == {"picture": path.name}
    assert done.stderr == b"loading TensorFlow\n"
    with Image.open(path) as picture:
        assert picture.format == "PNG"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is not a folder"),
        (["{published}", "--image", "a.png"], "has no image 'a.png': give its path below the source"),
        (["{published}", "--image", "a.png", "--augmented"], "leave out --augmented"),
        (["{published}", *["--image", "a.png"] * 257], "--image can be given 256 times, got 257 images"),
        (["{published}", "--count", "0"], "--count must be from 1 to 256, got 0"),
        (["{published}", "--to", "a.jpg"], "--to must be a local file that ends in .png, got 'a.jpg'"),
        (["{published}", "--to", "gs://bucket/a.png"], "--to must be a local file"),
        (["{published}", "--set", "image_size=1"], "image_size must be greater than or equal to 32, got '1'"),
    ],
)
def test_the_show_command_reports_invalid_arguments_in_one_line(
    published: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
):
    assert main(["show", *(argument.format(published=published) for argument in arguments)]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
