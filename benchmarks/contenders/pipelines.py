"""The input pipelines that `benchmarks.input` compares: what each reads, and what it does with an image."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FILES, KEEP, RESIZE, RAW = "files", "keep", "resize", "raw"
WRITTEN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "webdataset": ("webdataset", "peers", {}),
    "mosaicml_streaming": ("mosaicml_streaming", "peers", {}),
    "array_record": ("array_record", "peers", {"options": "group_size:1,uncompressed"}),
    "litdata": ("write_litdata", "litdata", {}),
    "ffcv_jpeg": ("write_ffcv", "ffcv", {"mode": "jpg"}),
    "ffcv_pixels": ("write_ffcv", "ffcv", {"mode": "raw", "max_side": 341}),
}
"""Files of other packages: the writer, its environment and its options. FFCV limits the longer side: 341 pixels are
256 on the shorter side of a photograph of 4:3."""
ORIGINAL = {FILES, KEEP, "webdataset", "mosaicml_streaming", "array_record", "litdata", "ffcv_jpeg"}
"""Data that holds the original bytes of the images."""

RANDOM_RESIZED, INCEPTION, WHOLE, PLAIN, MIDDLE = (
    "random-resized",
    "inception-style",
    "whole image",
    "random, of the prepared image",
    "middle of the prepared image",
)
YES, MEAN, NO, NOT_RESIZED = "yes", "yes, mean of an area", "no", "not resized"


@dataclass(frozen=True)
class Pipeline:
    """An input pipeline of `benchmarks.contenders.readers`, what it reads, and what it does with an image."""

    title: str
    reader: str
    data: str
    crop: str
    antialiased: str
    limit: str = ""
    """Title of what no pipeline with the same decoding can be faster than."""
    environment: str = ""
    """Name in `benchmarks.harness.environments`, or nothing for the environment of this project."""
    dtype: str = "uint8"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Options of the reader."""
    epochs: int = 4
    """In a round: as many as take about three seconds with 1,000 photographs."""
    flip: bool = True
    whole_mean: bool = True
    """Whether the reader can show whole images, so that the mean of its pixels can be compared closely."""
    pixel_range: tuple[float, float] = (0, 255)

    @property
    def equal_work(self) -> bool:
        """Whether it does the work that the second table compares."""
        same = self.crop == RANDOM_RESIZED and self.dtype == "uint8" and self.flip
        return same and self.data in ORIGINAL and self.antialiased in (YES, MEAN)


DECODING, DECODING_PREPARED, COPYING = (
    "limit: libjpeg-turbo alone",
    "limit: libjpeg-turbo alone, prepared JPEG",
    "limit: memory copy of pixels",
)
SHARDS_AS_THEY_ARE = Pipeline(
    "**tenfold**, shards as they are",
    "read_tenfold",
    KEEP,
    RANDOM_RESIZED,
    MEAN,
    DECODING,
    parameters={"crop": "random_resized", "min_crop_area": 0.08},
    epochs=4,
)
OURS = (
    SHARDS_AS_THEY_ARE,
    Pipeline("**tenfold**, prepared JPEG", "read_tenfold", RESIZE, PLAIN, NOT_RESIZED, DECODING_PREPARED, epochs=8),
    Pipeline("**tenfold**, prepared pixels", "read_tenfold", RAW, PLAIN, NOT_RESIZED, COPYING, epochs=15),
)
IN_MEMORY = Pipeline(
    "**tenfold**, cached in memory",
    "read_tenfold_cached",
    RESIZE,
    PLAIN,
    NOT_RESIZED,
    COPYING,
    parameters={"cache": "memory"},
    epochs=50,
)
RAW_FILES = Pipeline(
    "article: raw JPEG files",
    "read_raw_files",
    FILES,
    WHOLE,
    NO,
    DECODING,
    dtype="float32",
    epochs=2,
    flip=False,
    pixel_range=(0, 1),
)
COMPARED_FILES = (
    Pipeline("raw files in turn", "read_files_in_turn", KEEP, "random", MEAN, DECODING, epochs=2, flip=False),
    Pipeline("raw files in parallel", "read_files_in_parallel", KEEP, "random", MEAN, DECODING, flip=False),
)
"""As `tenfold compare-inputs` reads them."""
ARTICLE_TFRECORD = Pipeline(
    "article: TFRecord",
    "read_article_tfrecord",
    KEEP,
    WHOLE,
    NO,
    DECODING,
    dtype="float32",
    flip=False,
    pixel_range=(0, 1),
)
BEST_CROP = Pipeline("best plain tf.data, random-resized crop", "read_tfdata_crop", KEEP, RANDOM_RESIZED, NO, DECODING)
PLAIN_TENSORFLOW = (
    RAW_FILES,
    ARTICLE_TFRECORD,
    Pipeline(
        "keras_imagenet",
        "read_keras_imagenet",
        KEEP,
        INCEPTION,
        NO,
        DECODING,
        dtype="float32",
        pixel_range=(-1, 1),
    ),
    Pipeline("best plain tf.data, whole image", "read_tfdata_whole", KEEP, WHOLE, NO, DECODING, flip=False),
    BEST_CROP,
    Pipeline(
        "best plain tf.data, antialiased",
        "read_tfdata_crop",
        KEEP,
        RANDOM_RESIZED,
        YES,
        DECODING,
        parameters={"antialias": True},
        epochs=2,
    ),
    Pipeline(
        "best plain tf.data, mean of an area",
        "read_tfdata_crop",
        KEEP,
        RANDOM_RESIZED,
        MEAN,
        DECODING,
        parameters={"method": "area"},
    ),
)
TFDS = Pipeline("TFDS", "read_tfds", KEEP, WHOLE, NO, DECODING, "peers", flip=False)
LOADERS = tuple(
    Pipeline(
        f"{name}, {words}",
        reader,
        data,
        RANDOM_RESIZED,
        YES,
        DECODING,
        "peers",
        parameters={"decoder": decoder},
        epochs=2,
    )
    for name, reader, data in (
        ("PyTorch DataLoader, 2 workers", "read_pytorch", FILES),
        ("WebDataset, 2 workers", "read_webdataset", "webdataset"),
        ("MosaicML Streaming, 2 workers", "read_mosaicml", "mosaicml_streaming"),
        ("grain, 2 threads", "read_grain", "array_record"),
        ("grain, 2 processes", "read_grain_processes", "array_record"),
    )
    for decoder, words in (("pillow", "Pillow"), ("simplejpeg", "simplejpeg"))
)
RIVALS = tuple(
    Pipeline(
        title,
        reader,
        data,
        RANDOM_RESIZED,
        antialiased,
        DECODING if data in ORIGINAL else COPYING,
        environment,
        epochs=epochs,
        whole_mean=whole,
    )
    for title, reader, data, antialiased, environment, epochs, whole in (
        ("NVIDIA DALI, CPU, 2 threads", "read_dali", KEEP, YES, "dali", 2, True),
        ("SPDL, 2 threads", "read_spdl", FILES, YES, "spdl", 2, True),
        ("torchvision in a PyTorch DataLoader, 2 workers", "read_torchvision", FILES, YES, "peers", 2, True),
        ("LitData, 2 workers", "read_litdata", "litdata", YES, "litdata", 2, True),
        ("Ray Data, 2 CPUs", "read_ray", FILES, YES, "ray", 2, True),
        ("FFCV, JPEG, 2 threads", "read_ffcv", "ffcv_jpeg", MEAN, "ffcv", 2, False),
        ("FFCV, pixels of 256 px, 2 threads", "read_ffcv", "ffcv_pixels", MEAN, "ffcv", 15, False),
    )
)
LIMITS = (
    Pipeline(DECODING, "limit_of_decoding", KEEP, "", "", DECODING, "peers"),
    Pipeline(DECODING_PREPARED, "limit_of_decoding", RESIZE, "", "", DECODING_PREPARED, "peers", epochs=8),
    Pipeline(COPYING, "limit_of_copying", RAW, MIDDLE, NOT_RESIZED, COPYING, parameters={"pixels": "raw"}, epochs=50),
)
ALL = (*OURS, IN_MEMORY, *COMPARED_FILES, *PLAIN_TENSORFLOW, TFDS, *LOADERS, *RIVALS, *LIMITS)
