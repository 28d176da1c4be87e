"""Writers of packages that have an environment of their own, written as their documentation recommends.

Each is a writer as those of `benchmarks.contenders.writers`. Most of them work in further processes.
"""

from pathlib import Path
from typing import Any

from benchmarks.contenders import Job


def write_litdata(job: Job) -> None:
    """Write chunks as `litdata.optimize` does. A Pillow image of a JPEG file is stored by the bytes of that file."""
    from litdata import optimize

    rows = [(f"{job['root']}/{path}", label) for path, label, _ in job["images"]]
    optimize(
        fn=_image_and_label,
        inputs=rows,
        output_dir=job["folder"],
        chunk_bytes="16MB",
        num_workers=1,
        verbose=False,
    )


def _image_and_label(row: tuple[str, int]) -> tuple[Any, int]:
    from PIL import Image

    return Image.open(row[0]), row[1]


def write_ray(job: Job) -> None:
    """Ray Data: tasks read the bytes of each file, and `write_tfrecords` writes a file for each block."""
    import os

    import ray

    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    rows = [
        {"path": f"{job['root']}/{path}", "image/class/label": label, "image/class/text": text}
        for path, label, text in job["images"]
    ]
    samples = ray.data.from_items(rows, override_num_blocks=job["shards"]).map(_with_bytes)
    samples.write_tfrecords(job["folder"], min_rows_per_file=len(rows) // job["shards"])


def _with_bytes(row: dict[str, Any]) -> dict[str, Any]:
    encoded = Path(row.pop("path")).read_bytes()
    return {**row, "image/encoded": encoded}


def write_img2dataset(job: Job) -> None:
    """Write tar files with img2dataset, which keeps the bytes of a JPEG, but decodes it for its size."""
    import os

    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # Otherwise, each of its processes asks a server for a newer version.
    from img2dataset import download

    listed = Path(job["folder"]).with_name("list.csv")
    lines = [f"file://{job['root']}/{path},{label}" for path, label, _ in job["images"]]
    listed.write_text("\n".join(["url,label", *lines, ""]))
    download(
        url_list=str(listed),
        input_format="csv",
        output_folder=job["folder"],
        output_format="webdataset",
        save_additional_columns=["label"],
        number_sample_per_shard=-(-len(lines) // job["shards"]),
        resize_mode="no",
        skip_reencode=True,
        processes_count=job["processes"],
        thread_count=job["threads"],
    )


def write_ffcv(job: Job) -> None:
    """Write FFCV's file: of the JPEGs' own bytes, or of pixels whose longer side is at most `max_side`."""
    import numpy as np
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.rgb_image import IMAGE_MODES
    from ffcv.writer import DatasetWriter
    from PIL import Image

    class OwnBytes(RGBImageField):
        """A field of JPEGs as they are. FFCV's own encodes them again."""

        def encode(self, destination: Any, image: Any, malloc: Any) -> None:
            encoded = np.fromfile(image, np.uint8)
            destination["mode"] = IMAGE_MODES["jpg"]
            destination["width"], destination["height"] = Image.open(image).size
            destination["data_ptr"], storage = malloc(encoded.nbytes)
            storage[:] = encoded

    class Rows:
        def __len__(self) -> int:
            return len(job["images"])

        def __getitem__(self, number: int) -> tuple[Any, int]:
            path, label, _ = job["images"][number]
            whole = f"{job['root']}/{path}"
            return (Image.open(whole).convert("RGB") if job["mode"] == "raw" else whole), label

    field = RGBImageField("raw", max_resolution=job["max_side"]) if job["mode"] == "raw" else OwnBytes()
    writer = DatasetWriter(f"{job['folder']}/images.beton", {"image": field, "label": IntField()}, num_workers=1)
    writer.from_indexed_dataset(Rows())


RIVAL_WRITERS = {writer.__name__: writer for writer in (write_litdata, write_ray, write_img2dataset, write_ffcv)}
