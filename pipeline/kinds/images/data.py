"""Images as a kind of examples."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.dataset.manifest import Dataset
from pipeline.images.codecs import codec_versions
from pipeline.images.examine import Rules
from pipeline.images.header import JPEG_MAGIC, PNG_MAGIC, read_header
from pipeline.plan.example_kind import ExampleKind, ListerClass
from pipeline.plan.examples import Examples
from pipeline.plan.range_plan import RangePlan
from pipeline.records import example
from pipeline.records.format import RecordedImage, RecordFormat, read_image

if TYPE_CHECKING:
    from pipeline.dataset.verify import Check

_MAGIC = {"JPEG": JPEG_MAGIC, "PNG": PNG_MAGIC}
"""The first bytes of an image, by the format that its record states."""


class ImageKind(ExampleKind):
    """Images. Their records describe themselves."""

    noun = "image"
    source = "the folder of raw images, to a list of images, or to a file that holds images"
    source_file = "list"
    is_model_checked = True
    has_pictures = True
    has_files = True
    few_examples = 1000

    @property
    def lister(self) -> ListerClass:
        """Ranges of keys."""
        from pipeline.kinds.images.lister import ImageLister  # Imports the sources. Only `extract` needs them.

        return ImageLister

    def check_of(self, dataset: Dataset) -> "Check":
        """Return a check of the labels, and of the format and size of the images. No image is decoded."""
        return partial(_problem_of_image, dataset)

    def examples(self, range_plan: RangePlan) -> Examples:
        """Return the images of a plan file."""
        from pipeline.kinds.images.examples import ImageExamples  # Imports the decoders. Only a writer needs them.

        return ImageExamples(range_plan)

    def codecs(self, *, gzip: bool, perceptual_hash: bool) -> dict[str, str]:
        """Return the versions of the decoders and encoders of images."""
        return codec_versions(gzip=gzip, perceptual_hash=perceptual_hash)

    def features(self, records: RecordFormat, facts: Mapping[str, Any]) -> dict[str, str]:
        """Return the features of the format."""
        return records.features()

    def key_reader(self, dataset: Dataset) -> Callable[[bytes], str]:
        """Return what reads the key of an image."""
        return partial(_key_of_image, dataset.records.keys.filename)

    def rules(self, of_images: Rules) -> Rules:
        """Return the rules for images."""
        return of_images


def _key_of_image(feature: str, record: bytes) -> str:
    try:
        [name] = example.decode(record)[feature]
        return str(name, "utf-8", "surrogateescape")
    except (ValueError, KeyError, TypeError):
        return ""


def _problem_of_image(dataset: Dataset, record: bytes, counted: Counter[int]) -> str:
    try:
        image = read_image(record, dataset.records)
    except ValueError as error:
        return str(error)
    counted.update(set(image.labels))
    for label in image.labels:
        if not 0 <= label < len(dataset.labels):
            first = dataset.records.label_offset
            return f"has label {label + first}, outside {first} to {len(dataset.labels) - 1 + first}"
    return _problem_of_content(image)


def _problem_of_content(image: RecordedImage) -> str:
    if image.format == "RAW":
        is_whole = len(image.encoded) == image.height * image.width * 3
        return "" if is_whole else f"holds {len(image.encoded)} bytes, not {image.height} x {image.width} x 3 pixels"
    if image.format not in _MAGIC:
        return f"has the unknown format {image.format!r}"
    if not image.encoded.startswith(_MAGIC[image.format]):
        return f"does not hold a {image.format} file, but begins with {image.encoded[:8]!r}"
    header = read_header(image.encoded)
    if header and (header.height, header.width) != (image.height, image.width):
        return f"states {image.height} x {image.width} pixels, but its image has {header.height} x {header.width}"
    return ""


KIND = ImageKind()
