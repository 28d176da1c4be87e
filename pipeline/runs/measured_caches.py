"""What kept images cost, on the disk and in memory, as `tenfold advise` measured it."""

from dataclasses import asdict, dataclass
from math import isfinite

from pipeline.evaluation.estimates import Estimate
from pipeline.runs.files import CACHES, read_or_empty
from pipeline.runs.measured_steps import estimate_from
from pipeline.storage import Place, write_json


@dataclass(frozen=True)
class MeasuredCaches:
    """What an image costs, in microseconds."""

    write_us: float
    """CPU time to write it to the disk. One thread writes."""
    read_cpu_us: Estimate
    """CPU time to read it from the disk."""
    read_us: float
    """Time until it was read, with all threads that read."""
    fill_us: float
    """Time until it was in the buffer that shuffles the images in memory."""


def save_caches(folder: Place, caches: MeasuredCaches) -> None:
    """Write what was measured into the folder of a training."""
    write_json(folder / CACHES, asdict(caches), indent=1)


def load_caches(folder: Place) -> MeasuredCaches | None:
    """Return what was measured; None if the file is missing, or another user of the folder damaged it."""
    try:
        content = read_or_empty(folder / CACHES)
        read_cpu_us = estimate_from(content["read_cpu_us"])
        times = {name: float(content[name]) for name in ("write_us", "read_us", "fill_us")}
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    is_sound = all(isfinite(each) and each > 0 for each in times.values())
    return MeasuredCaches(read_cpu_us=read_cpu_us, **times) if is_sound else None
