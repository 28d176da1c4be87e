"""All changes of a job that `tenfold advise` may propose, for the search of `benchmarks.exhaustive`."""

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.known_limits.datasets import DATA, Rows
from benchmarks.known_limits.jobs import COMMON, COMMON_OF_ROWS, Job
from benchmarks.known_limits.pairs import PAIRS, Pair
from pipeline.config.settings import Settings
from pipeline.tuning.predictions import LOWEST_VALIDATION, MORE_PREFETCHED

SEARCHED = (
    "photographs",
    "short epochs",
    "photographs, steps of 14 ms",
    "images of 6 megapixels",
    "small CNN beside decoding",
    "images of 256 pixels",
    "half a core for decoding",
    "slow disk, photographs",
    "half of the images for validation",
    "checkpoint after each step",
    "callback that waits after each batch",
    "rows, half of them for validation, steps of 10 ms",
)
"""The jobs that are searched, one or more of each limit that a setting removes."""
PREPARED: Mapping[str, Mapping[str, str]] = {
    "many photographs": {"resize": "many small photographs", "raw": "many photographs, pixels"},
    "photographs": {"resize": "photographs, resized", "raw": "photographs, pixels"},
    "few photographs": {"resize": "few photographs, resized", "raw": "few photographs, pixels"},
    "large": {"resize": "large, resized", "raw": "large, pixels"},
    "many large": {"resize": "many large, resized", "raw": "many large, pixels"},
    "many prepared": {"raw": "many prepared, pixels of 73"},
    "small shards": {"resize": "small shards, resized", "raw": "small shards, pixels"},
}
"""The datasets that hold the same images, prepared in another way."""
LESS_VALIDATION = {
    "halved": "tenth",
    "few photographs": "few photographs, tenth",
    "half of the rows": "tenth of the rows",
}
"""The datasets that hold the same examples, with fewer of them for validation."""


def searched_jobs() -> list[Job]:
    """Return the jobs that are searched."""
    jobs = {pair.job.name: pair.job for pair in PAIRS}
    return [jobs[name] for name in SEARCHED]


def alone(job: Job) -> Iterator[Pair]:
    """Yield all changes of a single setting, whatever limits the job."""
    is_table = isinstance(DATA[job.data], Rows)
    settings = {**(COMMON_OF_ROWS if is_table else COMMON), **job.settings}
    for prepare, data in PREPARED.get(job.data, {}).items():
        yield Pair(job, {"prepare": prepare}, data)
    if not is_table and settings["crop"] != "random_resized":
        more = {"epochs": max(2, settings["epochs"])}  # The epochs after the first read what it kept.
        yield from (Pair(job, {"cache": cache}, settings=more) for cache in ("memory", "disk"))
    yield Pair(job, {"prefetch_batches": MORE_PREFETCHED * Settings.model_fields["prefetch_batches"].default})
    if job.data in LESS_VALIDATION:
        yield Pair(job, {"validation_fraction": LOWEST_VALIDATION}, LESS_VALIDATION[job.data])
    if not settings.get("simulated_step_ms"):
        yield Pair(job, {"xla": True})
    if "checkpoint_steps" in settings:
        yield Pair(job, {"checkpoint_steps": 0})
    # A real accelerator takes longer for more examples, too.
    step_ms = settings.get("simulated_step_ms")
    yield Pair(
        job,
        {"batch_size": 2 * settings["batch_size"]},
        settings={"simulated_step_ms": 2 * step_ms} if step_ms else {},
    )


def together(best: Pair, others: Sequence[Pair]) -> list[Pair]:
    """Return the best change together with each change of another setting."""
    return [
        Pair(
            best.job,
            {**best.change, **other.change},
            best.data or other.data,
            settings={**best.settings, **other.settings},
        )
        for other in others
        if not best.change.keys() & other.change.keys() and not (best.data and other.data)
    ]
