r"""The formats of containers: files that hold many images. Each module is a format, and is named after it.

A format of your own is a file in this folder with two constants, two functions, and nothing else:

    '''idx: the images of an IDX file (MNIST), with the file of their labels beside it.'''

    import io
    import re
    from collections.abc import Iterator
    from typing import IO

    import numpy as np
    from PIL import Image

    from pipeline.sources import SourceOptions
    from pipeline.sources.container_formats import ContainedImage, ContainerFile

    BESIDE = ("train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte")
    NAMES = re.compile(r".*images-idx3-ubyte")

    def holds_images(file: IO[bytes]) -> bool:
        return True

    def images(file: ContainerFile, options: SourceOptions) -> Iterator[ContainedImage]:
        content = file.path.read_bytes()
        pixels = np.frombuffer(content, np.uint8, offset=16).reshape(np.frombuffer(content, ">i4", 3, 4))
        name = file.place.name
        labels = file.beside(name.replace("images-idx3", "labels-idx1"))
        if labels is None:
            raise ValueError("the file of its labels is not beside it")
        split = "test" if name.startswith("t10k") else "train"
        for image, label in zip(pixels, labels[8:], strict=True):
            png = io.BytesIO()
            Image.fromarray(image).save(png, "PNG")
            yield ContainedImage("", png.getvalue(), labels=(str(label),), split=split)

- `BESIDE` are the names of files beside a container that the format reads, too. If one changes, the container is read
  again.
- `NAMES` is the pattern of the whole name of such a file, in lower case.
- `holds_images` says whether an open file of such a name has images. It reads as little as possible, because the file
  may be in a bucket. It is asked for at most three files of a source.
- `images` yields the images of a file, one after another: see `ContainerFile` and `ContainedImage`. For something else
  in the file, it yields a `Skipped` with the name and the reason. If the file states the order of its classes, it
  yields `Classes` first. It may raise ValueError for a file that is damaged, with the reason. If an image has no
  split, the name of the file or of its folder decides, such as `train-00000-of-00012.parquet`.

The file is read once. `pipeline/sources/container_rows.py` then knows the key, the checksum and the place of each
image, so a format decides neither the order nor the keys.

If a format can begin to read at some rows, it may have a third function. Then several tasks read a large file. A row is
what `images` yields one `ContainedImage` or `Skipped` for:

- `bounds(file, options, max_bytes)` returns ascending `Bound`s, which divide an open local file into pieces of about
  `max_bytes`. `images` then yields the rows from `file.first` up to `file.end`: see `tfrecord.py`.

If a file does not tell whether its boxes are two corners, or a corner and the size, `images` yields `BoxForms` last.
The boxes of all files of the source then decide it: see `parquet.py`.

A format is imported even if no source needs it, so it imports large libraries in its functions. The example above
breaks this rule for brevity.

For a format that comes with Tenfold, add an example to `FORMS` in `tests/kinds/containers/examples.py`, and a row to
the table in docs/reference/sources.md.
"""
