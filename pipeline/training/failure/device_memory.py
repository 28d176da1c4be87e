"""How many examples a device takes at once, and what follows if its memory is too small for them."""

from pipeline.config.automatic import TrainingSettings
from pipeline.errors import BadInput, OutOfMemory, TenfoldError
from pipeline.runs.run import Run, load_micro_batch_limit, save_micro_batch_limit


def micro_batches_of(run: Run, batch: int) -> int:
    """Return in how many micro-batches a device takes its `batch` examples of a step.

    As many as are set, or more if an earlier attempt ran out of memory. Servers may differ in this, because the
    gradients of micro-batches add up to the same. Raises BadInput if the setting does not divide the batch.
    """
    micro_batches = run.settings.micro_batches
    require_divisible(run.settings, batch)
    # The setting may have been changed since, and the smaller part of both fits into the memory.
    limit = load_micro_batch_limit(run.folder)
    return micro_batches if limit is None else min_micro_batches(batch, min(limit, batch // micro_batches))


def require_divisible(settings: TrainingSettings, batch: int) -> None:
    """Raise BadInput if the micro-batches do not divide the `batch` examples of a device."""
    if batch % settings.micro_batches:
        raise BadInput(
            f"micro_batches must divide {batch}, the examples of each device in a batch of {settings.batch_size}, "
            f"got {settings.micro_batches}"
        )


def min_micro_batches(batch: int, at_most: int) -> int:
    """Return the least number of micro-batches, each of `at_most` examples, that a batch can be divided into."""
    return next(count for count in range(1, batch + 1) if batch % count == 0 and batch // count <= at_most)


def out_of_memory_error(run: Run, batch: int, micro_batches: int) -> TenfoldError:
    """Return the error to raise if `batch` examples in so many micro-batches took more memory than there is.

    OutOfMemory if the next attempt takes fewer examples at once, which is stored in the folder of the run; BadInput if
    it cannot.
    """
    at_once = batch // micro_batches
    tried = (
        f"out of memory with {at_once} of {batch} examples at once on each device (batch_size="
        f"{run.settings.batch_size}, micro_batches={micro_batches})"
    )
    # Nothing is left to divide, so no retry can help.
    if at_once == 1:
        return BadInput(f"{tried}: set a smaller image_size, a smaller model or another precision")
    fewer = batch // min_micro_batches(batch, at_once // 2)
    # As examples, not parts: the next attempt may have another number of GPUs.
    save_micro_batch_limit(run.folder, fewer)
    return OutOfMemory(f"{tried}: the next attempt continues from the last checkpoint with {fewer} examples at once")
