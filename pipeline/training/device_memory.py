"""How many examples a device takes at once, and what follows where its memory is too small for them."""

from pipeline.errors import BadInput, OutOfMemory, TenfoldError
from pipeline.runs.run import Run, load_at_once, save_at_once


def parts_of_batch(run: Run, batch: int) -> int:
    """In how many parts a device takes its `batch` examples of a step: as many as are set, or as a try before left it.

    Servers may differ in it: gradients of parts add up to the same. Raises BadInput where it cannot be so many.
    """
    parts = run.settings.micro_batches
    if batch % parts:
        raise BadInput(
            f"micro_batches must divide {batch}, the examples of each device in a batch of {run.settings.batch_size}, "
            f"got {parts}"
        )
    tried = load_at_once(run.folder)
    return parts if tried is None else fewest_parts(batch, min(tried, batch // parts))


def fewest_parts(batch: int, at_most: int) -> int:
    """The fewest equal parts of a batch that hold no more than so many examples."""
    return next(count for count in range(1, batch + 1) if batch % count == 0 and batch // count <= at_most)


def out_of_memory(run: Run, batch: int, parts: int) -> TenfoldError:
    """What to raise where `batch` examples in so many parts were too much.

    OutOfMemory where the next try takes fewer at once, as is left for it in the folder of the run; BadInput where it
    may not, or cannot.
    """
    at_once = batch // parts
    tried = (
        f"out of memory with {at_once} of {batch} examples at once on each device (batch_size="
        f"{run.settings.batch_size}, micro_batches={parts})"
    )
    if at_once == 1:
        return BadInput(f"{tried}: set a smaller image_size, a smaller model or another precision")
    if run.settings.on_out_of_memory == "fail":
        return BadInput(f"{tried}: set a larger micro_batches, a smaller batch_size, or on_out_of_memory=halve")
    fewer = batch // fewest_parts(batch, at_once // 2)
    save_at_once(run.folder, fewer)
    return OutOfMemory(f"{tried}: the next try goes on from the last checkpoint with {fewer} at once")
