"""Readers of packages that have an environment of their own, written as their documentation recommends.

Each is a pipeline as those of `benchmarks.contenders.readers`, which lists them. All show random-resized crops of 8 to
100% of the area, mirror half of them, and give uint8. With the crop "whole", they show whole images.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.contenders import Job
from benchmarks.contenders.batches import WORKERS, Batch, Batches, part_of

AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def read_dali(job: Job) -> Batches:
    """NVIDIA DALI on the CPU, as in its ImageNet examples: crops while it decodes, from this project's shards."""
    import numpy as np
    import nvidia.dali.tfrecord as tfrec
    from nvidia.dali import fn, pipeline_def

    folder = Path(job["folder"])
    shards = sorted(folder.glob("train-*.tfrecord"))
    features = {
        "image/encoded": tfrec.FixedLenFeature((), tfrec.string, ""),
        "image/class/label": tfrec.FixedLenFeature([1], tfrec.int64, -1),
    }

    @pipeline_def(batch_size=job["batch_size"], num_threads=WORKERS, device_id=None, prefetch_queue_depth=2)
    def training() -> Any:
        read = fn.readers.tfrecord(
            path=[str(shard) for shard in shards],
            index_path=[str(folder / "index" / f"{shard.stem}.idx") for shard in shards],
            features=features,
            random_shuffle=True,
            initial_fill=1024,
            name="reader",
        )
        encoded = read["image/encoded"]
        if job.get("crop") == "whole":
            images = fn.decoders.image(encoded, device="cpu")
        else:
            images = fn.decoders.image_random_crop(
                encoded, device="cpu", random_area=list(AREA), random_aspect_ratio=list(RATIO), num_attempts=100
            )
        images = fn.resize(images, resize_x=job["image_size"], resize_y=job["image_size"], antialias=True)
        return fn.flip(images, horizontal=fn.random.coin_flip(probability=0.5)), read["image/class/label"]

    running = training()
    running.build()

    def batches(epochs: int) -> Iterator[Batch]:
        wanted = epochs * job["images"]
        while wanted > 0:
            images, labels = running.run()
            arrays = np.asarray(images.as_tensor()), np.asarray(labels.as_tensor())
            count = min(len(arrays[0]), wanted)  # a batch may reach into the next epoch
            wanted -= count
            yield Batch(count, *arrays)

    return batches


def read_torchvision(job: Job) -> Batches:
    """Read files with torchvision: `decode_jpeg` and its transforms in a DataLoader's worker processes."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

    paths = sorted(Path(job["folder"]).glob("*/*.jpg"))
    classes = sorted({path.parent.name for path in paths})
    transform = _torchvision_transform(job)

    class Files(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> tuple[Any, int]:
            path = paths[index]
            image = decode_jpeg(read_file(str(path)), mode=ImageReadMode.RGB)
            return transform(image), classes.index(path.parent.name)

    loader = torch.utils.data.DataLoader(
        Files(), batch_size=job["batch_size"], shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    return _epochs_of(loader)


def read_litdata(job: Job) -> Batches:
    """LitData's chunks, which keep the bytes of a JPEG; torchvision decodes and transforms in worker processes."""
    from litdata import StreamingDataLoader, StreamingDataset

    transform = _torchvision_transform(job)

    class Samples(StreamingDataset):
        def __getitem__(self, index: Any) -> tuple[Any, int]:
            image, label = super().__getitem__(index)
            return transform(image), int(label)

    loader = StreamingDataLoader(
        Samples(job["folder"], shuffle=True),
        batch_size=job["batch_size"],
        num_workers=WORKERS,
        persistent_workers=True,
    )
    return _epochs_of(loader)


def read_ray(job: Job) -> Batches:
    """Ray Data over JPEG files: Pillow decodes them in `read_images`, and a map crops and resizes them."""
    import os

    import ray

    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="error")
    folder, crop, size = Path(job["folder"]), job.get("crop", "random_resized"), job["image_size"]
    classes = sorted(path.name for path in folder.iterdir())

    def image_and_label(row: dict[str, Any]) -> dict[str, Any]:
        return {
            "image": _cut_by_pillow(row["image"], crop, size),
            "label": classes.index(Path(row["path"]).parent.name),
        }

    samples = ray.data.read_images(str(folder), mode="RGB", include_paths=True, shuffle="files").map(image_and_label)

    def batches(epochs: int) -> Iterator[Batch]:
        for _ in range(epochs):
            for batch in samples.iter_batches(batch_size=job["batch_size"], prefetch_batches=2, batch_format="numpy"):
                yield Batch(len(batch["image"]), batch["image"], batch["label"])

    return batches


def _cut_by_pillow(pixels: Any, crop: str, size: int) -> Any:
    import numpy as np
    from PIL import Image

    image = Image.fromarray(pixels)
    small = image.resize((size, size), Image.Resampling.BILINEAR, box=part_of(*image.size, crop))
    return np.array(small.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else small)


def read_spdl(job: Job) -> Batches:
    """SPDL: threads of a `PipelineBuilder` decode, crop, resize and mirror with FFmpeg."""
    _find_ffmpeg()
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    paths = sorted(Path(job["folder"]).glob("*/*.jpg"))
    classes = sorted({path.parent.name for path in paths})
    size, crop = job["image_size"], job.get("crop", "random_resized")

    def decoded(path: Path) -> tuple[Any, int]:
        packets = spdl.io.demux_image(path.read_bytes())
        left, top, right, bottom = part_of(packets.codec.width, packets.codec.height, crop)
        flip = ",hflip" if random.random() < 0.5 else ""
        steps = (
            f"crop={right - left}:{bottom - top}:{left}:{top}:exact=1,"
            f"scale={size}:{size}:flags=bilinear{flip},format=pix_fmts=rgb24"
        )
        return spdl.io.decode_packets(packets, filter_desc=steps), classes.index(path.parent.name)

    def batch(samples: list[tuple[Any, int]]) -> tuple[Any, list[int]]:
        frames = [image for image, _ in samples]
        return spdl.io.to_numpy(spdl.io.convert_frames(frames)), [label for _, label in samples]

    def batches(epochs: int) -> Iterator[Batch]:
        for _ in range(epochs):
            pipeline = (
                PipelineBuilder()
                .add_source(random.sample(paths, len(paths)))
                .pipe(decoded, concurrency=WORKERS)
                .aggregate(job["batch_size"])
                .pipe(batch)
                .add_sink(2)
                .build(num_threads=WORKERS)
            )
            with pipeline.auto_stop():
                for images, labels in pipeline:
                    yield Batch(len(labels), images, labels)

    return batches


def _find_ffmpeg() -> None:
    """Let SPDL load the FFmpeg inside PyAV, whose files have other names. Their libraries are loaded already."""
    import av
    import spdl

    theirs = Path(next(iter(spdl.__path__)), "io", "lib")
    for library in Path(av.__file__).parents[1].glob("av.libs/lib*-*.so.*"):
        name, _, rest = library.name.partition("-")
        link = theirs / f"{name}.so.{rest.split('.so.')[1].split('.')[0]}"
        if not link.exists():
            link.symlink_to(library)


def read_ffcv(job: Job) -> Batches:
    """FFCV: compiled loops in threads, from its own file of JPEGs or of pixels."""
    import numpy as np
    from ffcv.fields import RGBImageField
    from ffcv.fields.decoders import CenterCropRGBImageDecoder, IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip

    size = (job["image_size"], job["image_size"])
    crop = (
        CenterCropRGBImageDecoder(size, ratio=1)
        if job.get("crop") == "whole"
        else RandomResizedCropRGBImageDecoder(size, scale=AREA, ratio=RATIO)
    )
    loader = Loader(
        str(Path(job["folder"], "images.beton")),
        batch_size=job["batch_size"],
        num_workers=WORKERS,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        # The file may be of a field that keeps bytes: see `rival_writers.write_ffcv`.
        custom_fields={"image": RGBImageField},
        pipelines={"image": [crop, RandomHorizontalFlip()], "label": [IntDecoder()]},
    )

    def batches(epochs: int) -> Iterator[Batch]:
        for _ in range(epochs):
            for images, labels in loader:
                yield Batch(len(images), np.asarray(images), labels)

    return batches


def _torchvision_transform(job: Job) -> Any:
    import torch
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    size = [job["image_size"], job["image_size"]]
    if job.get("crop") == "whole":
        return v2.Resize(size, antialias=True)
    return v2.Compose(
        [v2.RandomResizedCrop(size, scale=AREA, ratio=RATIO, antialias=True), v2.RandomHorizontalFlip(0.5)]
    )


def _epochs_of(loader: Any) -> Batches:
    def batches(epochs: int) -> Iterator[Batch]:
        for _ in range(epochs):
            for images, labels in loader:
                yield Batch(len(images), images, labels)

    return batches


RIVALS = (read_dali, read_torchvision, read_litdata, read_ray, read_spdl, read_ffcv)
