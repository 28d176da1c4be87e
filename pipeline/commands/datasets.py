"""Commands on published datasets: their labels, checks, and pictures."""

import argparse
from dataclasses import asdict
from pathlib import Path

from pipeline.commands.command import Result, argument, command, format_result, printer_at, require_extra
from pipeline.commands.options import published_settings, reachable, settings_of
from pipeline.errors import DatasetError, SettingsError
from pipeline.storage import is_bucket
from pipeline.training.tensorflow_start import tensorflow_on_the_cpu

MAX_SHOWN = 256
"""`show` draws at most this many images."""

_DATASET = argument("dataset", help="folder of the dataset version, local or gs://")


def _format_labels(result: Result) -> str:
    lines = [
        f"{each['id']:>6}  {each['label']}  {'permanent' if each['is_permanent'] else 'reserved by ' + each['held_by']}"
        for each in result["labels"]
    ]
    return format_result({"label_map": result["label_map"], "labels": lines, "released": result["released"]})


@command(
    "labels",
    "--set dataset_name=flowers",
    argument(
        "--release",
        action="store_true",
        help="remove the reserved labels, which no published dataset uses. The next build can use their ids again. A "
        "build that reserved these labels must start again with `shard`",
    ),
    printer=_format_labels,
)
def labels(options: argparse.Namespace) -> Result:
    """List the labels of a dataset name with their ids.

    Each is permanent, or reserved by the build that is shown.
    """
    from pipeline.config.workspace import allowed_name_folder, require_name
    from pipeline.dataset.labels import label_uses, release_labels

    settings = published_settings(options)
    require_name(settings)
    folder = allowed_name_folder(settings)
    released = release_labels(folder) if options.release else []
    uses = [asdict(each) for each in label_uses(folder)]
    return {"label_map": str(folder / "labels"), "labels": uses, "released": released}


@command(
    "verify",
    "workspace/datasets/flowers/4766e75c17183005 --decode",
    _DATASET,
    argument(
        "--decode",
        action="store_true",
        help="also decode every image, or parse every row, as a training does. This needs TensorFlow, and takes about "
        "as long as an epoch",
    ),
)
def verify(options: argparse.Namespace) -> Result:
    """Check every byte and record of a dataset."""
    from pipeline.dataset.manifest import load
    from pipeline.dataset.verify import verify

    folder = reachable("dataset", options.dataset)
    if not options.decode:
        return verify(folder)
    require_extra("training", "verify --decode")
    dataset = load(folder)  # A missing dataset is reported before TensorFlow is loaded.
    with tensorflow_on_the_cpu():
        from pipeline.input.read_whole import read_whole
    return verify(folder, read_whole(dataset))


@command("index", "workspace/datasets/flowers/4766e75c17183005", _DATASET)
def index(options: argparse.Namespace) -> Result:
    """Write each missing or damaged index of a shard again, for readers that read single records."""
    from pipeline.dataset.index_files import write_indexes
    from pipeline.dataset.manifest import load

    folder = reachable("dataset", options.dataset)
    return {"dataset": str(folder), **write_indexes(folder, load(folder).shards)}


@command(
    "shuffle-quality",
    "workspace/datasets/flowers/4766e75c17183005",
    _DATASET,
    printer=printer_at("pipeline.input.shuffle_quality:format_shuffle_quality"),
    extra="training",
)
def shuffle_quality(options: argparse.Namespace) -> Result:
    """Measure how close the training order is to a perfect shuffle, and how shuffle_megabytes would change that."""
    from pipeline.dataset.manifest import load

    settings, folder = settings_of(options), reachable("dataset", options.dataset)
    load(folder)
    with tensorflow_on_the_cpu():
        from pipeline.input.shuffle_quality import shuffle_quality
    return shuffle_quality(folder, settings)


def _format_show(result: Result) -> str:
    places = [f"{each['key']}: record {each['record']} of {each['shard']}" for each in result.get("images", [])]
    return format_result(result | ({"images": places} if places else {}))


@command(
    "show",
    "workspace/datasets/flowers/4766e75c17183005 --augmented",
    _DATASET,
    argument(
        "--augmented",
        action="store_true",
        help="show training images as the training sees them: cropped, flipped and colored. By default, show the "
        "test images, or validation images if there is no test split, as the evaluation sees them",
    ),
    argument("--count", type=int, default=16, help="number of images (default: %(default)s)"),
    argument(
        "--image",
        action="append",
        default=[],
        metavar="KEY",
        help="show the image with this key, its path below the source, and print where its record is; can be repeated",
    ),
    argument(
        "--to", metavar="FILE", help="PNG file to write (default: NAME-VERSION.png, -augmented.png or -images.png)"
    ),
    printer=_format_show,
    extra="training",
)
def show(options: argparse.Namespace) -> Result:
    """Draw images of a dataset with their labels, as the model sees them, into a PNG file."""
    from pipeline.dataset.keys import find_images
    from pipeline.dataset.manifest import CARD, load
    from pipeline.plan.example_kind import kind_of

    settings, folder = settings_of(options), reachable("dataset", options.dataset)
    if not 1 <= options.count <= MAX_SHOWN:
        raise SettingsError(f"--count must be from 1 to {MAX_SHOWN}, got {options.count}")
    if options.image and options.augmented:
        raise SettingsError("--image shows an image as the evaluation sees it: leave out --augmented")
    if len(options.image) > MAX_SHOWN:
        raise SettingsError(f"--image can be given {MAX_SHOWN} times, got {len(options.image)} images")
    if options.to and (is_bucket(options.to) or not options.to.endswith(".png")):
        raise SettingsError(f"--to must be a local file that ends in .png, got {options.to!r}")
    # This is reported before TensorFlow is loaded, and so is a missing dataset or image.
    dataset = load(folder)
    if not kind_of(dataset).has_pictures:
        raise DatasetError(
            f"{folder} is a dataset of a {dataset.kind}, which has no images to draw: see its columns in "
            f"{folder / CARD}, and the rows of the most wrong predictions in the report of a run"
        )
    path = Path(options.to) if options.to else None
    found = find_images(folder, dataset, list(dict.fromkeys(options.image))) if options.image else []
    with tensorflow_on_the_cpu():
        from pipeline.training.show import show, show_found
    if not found:
        return {"picture": str(show(settings, folder, path, augmented=options.augmented, count=options.count))}
    return {
        "picture": str(show_found(settings, folder, found, path)),
        "images": [
            {"key": each.key, "split": each.split, "shard": each.shard, "record": each.number} for each in found
        ],
    }
