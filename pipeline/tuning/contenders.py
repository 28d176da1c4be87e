"""The inputs that a comparison measures, from raw files that are read one after another to the fastest."""

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.config.example_kinds import IMAGES
from pipeline.config.kept_images import PREPARED_PER_CROP
from pipeline.config.settings import Settings
from pipeline.errors import SettingsError


@dataclass(frozen=True)
class Accelerator:
    """An accelerator that trains one model, in steps of a known time."""

    title: str
    model: str
    batch: int
    """Images in a step."""
    batch_ms: float
    """Time of a step of `batch` images."""
    source: str
    """Where the time comes from, for the page."""
    min_utilization: float = 0.9
    """A host is fast enough if the accelerator computes at least this share of the time: the limit of MLPerf Storage
    for ResNet-50."""

    def step_ms(self, batch_size: int) -> float:
        """Return the time of a step of `batch_size` images, in ms."""
        return self.batch_ms * batch_size / self.batch

    @property
    def per_s(self) -> float:
        """Images per second that keep it busy."""
        return 1000 * self.batch / self.batch_ms


_MLPERF = "MLPerf Storage simulates it"
_VIT = "NVIDIA's nvSubquadratic measured it with ViT-5-Small, 224 pixels, bfloat16"
ACCELERATORS = {
    # The workload files resnet50_h100 and resnet50_a100: images of 114,660 bytes on average.
    "h100": Accelerator("H100", "ResNet-50", 400, 224.0, _MLPERF),
    "a100": Accelerator("A100", "ResNet-50", 400, 435.0, _MLPERF),
    # The workload file retinanet_b200 of version 3.0: JPEG files of 322,957 bytes.
    "b200_retinanet": Accelerator("B200", "RetinaNet", 24, 47.55, _MLPERF, min_utilization=0.85),
    # nvidia-bionemo.github.io/nvSubquadratic/benchmarks.html: one GPU without any input, and the share of one GPU in
    # a training on eight.
    "h100_vit_small": Accelerator("H100", "ViT-Small without input", 256, 33.2, _VIT),
    "h100_vit_small_training": Accelerator("H100", "ViT-Small in a training on 8 GPUs", 256, 79.0, _VIT),
}
"""Accelerators by the option `accelerator`."""


@dataclass(frozen=True)
class Contender:
    """One way to bring images to the accelerator."""

    name: str
    title: str
    what: str
    """What an image goes through, for the page."""
    prepare: str
    """The setting `prepare` of the dataset that it needs. Raw files take only the list of examples from it."""
    reads_files: bool = False
    """Whether it reads the raw images of the source, instead of shards."""
    parallel: bool = True
    """Whether images are read and decoded in parallel, and batches are prefetched."""
    cache: str = "off"
    """The setting `cache`."""

    @property
    def choice(self) -> str:
        """What a user sets to train from this input; empty for raw files, from which no training reads."""
        if self.reads_files:
            return ""
        return f"cache={self.cache}" if self.cache != "off" else f"prepare={self.prepare}"


CONTENDERS = {
    each.name: each
    for each in (
        Contender(
            "files",
            "raw files",
            "read, decode the whole image, crop, resize, batch: one image after another, as in tutorials with Python "
            "functions",
            "keep",
            reads_files=True,
            parallel=False,
        ),
        Contender(
            "files_parallel",
            "raw files in parallel",
            "read, decode the whole image, crop, resize, batch: with a parallel map and prefetched batches, as in "
            "TensorFlow's performance guide",
            "keep",
            reads_files=True,
        ),
        Contender(
            "shards",
            "shards",
            "images as they are, read from several shards in turn; only the crop is decoded, and no larger than needed",
            "keep",
        ),
        Contender("resized", "resized images", "shards of JPEG images near the training size", "resize"),
        Contender("pixels", "pixels", "shards of pixels near the training size: nothing is decoded", "raw"),
        Contender("cached", "cached images", "as shards; decoded images stay in memory", "keep", cache="memory"),
    )
}
"""All contenders by name, the cheaper ones first."""


def prepared_size(image_size: int) -> int:
    """Return the side of prepared images from which training can cut its crops without resampling."""
    return round(image_size * PREPARED_PER_CROP)


def dataset_settings(settings: Settings, contenders: Iterable[str]) -> dict[str, Settings]:
    """Return the settings of each dataset that the contenders of these names need, by the setting `prepare`.

    All of them have dataset names of their own (`flowers-inputs-resize`), so that the versions, partitions and label
    map of the user's dataset stay as they are.
    """
    datasets = {}
    for prepare in dict.fromkeys(CONTENDERS[name].prepare for name in contenders):
        name = f"{settings.dataset_name[:80]}-inputs-{prepare}"
        sizes = {} if prepare == "keep" else {"prepare_size": prepared_size(settings.image_size)}
        datasets[prepare] = settings.model_copy(update={"prepare": prepare, "dataset_name": name, **sizes})
    return datasets


def require_comparable(settings: Settings, accelerator: str) -> None:
    """Raise SettingsError for settings that not all contenders can follow."""
    if settings.example_kind != IMAGES:
        raise SettingsError(
            f"example_kind must be images for a comparison of inputs, got {settings.example_kind}: the comparison is "
            "about reading and decoding image files. The verdict of a training says whether its input is fast enough"
        )
    if accelerator != "own" and settings.simulated_step_ms:
        raise SettingsError(
            f"simulated_step_ms must be 0 with accelerator {accelerator}, which sets the time of a step, got "
            f"{settings.simulated_step_ms:g}"
        )
    if settings.crop == "random_resized":
        raise SettingsError(
            "crop must be random or whole for a comparison of inputs, got 'random_resized': cached images cannot"
            " follow it"
        )
    if settings.balanced:
        raise SettingsError(
            "balanced must be false for a comparison of inputs, got true: raw files are read once an epoch"
        )
    if settings.freeze_epochs:
        raise SettingsError(
            f"freeze_epochs must be 0 for a comparison of inputs, got {settings.freeze_epochs}: only the first "
            "contender would train with a frozen base"
        )
    if settings.num_training_servers != 1:
        raise SettingsError(
            f"num_training_servers must be 1 for a comparison of inputs, got {settings.num_training_servers}"
        )
