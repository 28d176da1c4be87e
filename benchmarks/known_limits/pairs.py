"""The pairs of `benchmarks.advice`: a training with a known limit, and the change whose gain is predicted."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.known_limits.jobs import EACH_EPOCH, JOBS, Job, simulated

DISK_GBPS = 0.006
"""The disk of twice the speed of a slow one, in gigabytes per second."""
Change = Mapping[str, Any]


@dataclass(frozen=True)
class Pair:
    """A job, and what is changed. The new values of the settings are those of the prediction."""

    job: Job
    change: Change
    """The settings that the prediction must change, with their values; `cores` and `gigabytes_per_second` are hardware.
    """
    data: str = ""
    """The dataset after the change."""
    around: str | None = None
    """The surroundings after the change."""
    prefetched: int = 0
    """Batches that an own input keeps ready after the change."""
    settings: Change = field(default_factory=dict)
    """Settings of the changed training, if they are others than `change`."""

    @property
    def name(self) -> str:
        """The job and the change."""
        return f"{self.job.name}: {', '.join(f'{name}={value}' for name, value in self.change.items())}"

    @property
    def is_hardware(self) -> bool:
        """Whether the change is one of the hardware."""
        return bool({"cores", "gigabytes_per_second"} & self.change.keys())

    @property
    def changed(self) -> Job:
        """The job after the change."""
        of_data = {"prepare", "prepare_size", "validation_fraction"}
        own = {} if self.is_hardware else {k: v for k, v in self.change.items() if k not in of_data}
        return replace(
            self.job,
            name=self.name,
            data=self.data or self.job.data,
            settings={**self.job.settings, **own, **self.settings},
            around=self.job.around if self.around is None else self.around,
            prefetched=self.prefetched or self.job.prefetched,
        )


_JOBS = {job.name: job for job in JOBS}
_NONE = frozenset[Any]()


def _job(name: str, data: str, around: str = "", **settings: Any) -> Job:
    return Job(name, _NONE, data, settings, around=around)


_FAST, _MANY = "photographs, steps of 2 ms", "many photographs"
_RESIZE, _RAW = {"prepare": "resize"}, {"prepare": "raw"}
_RANDOM = _JOBS["photographs, random-resized crop"]
_SHORT = _job("short epochs", "few photographs", **simulated(5, epochs=100))
"""Epochs of 20 steps. As much time passes between two of them as in their steps, once the input is fast."""
_PREPARE = (
    Pair(_JOBS["photographs"], _RESIZE, "many small photographs"),
    Pair(_SHORT, _RESIZE, "few photographs, resized"),
    Pair(_RANDOM, _RESIZE, "many small photographs"),
    Pair(_RANDOM, _RAW, "many photographs, pixels"),
    Pair(_JOBS["photographs, steps of two thirds of the decoding"], _RESIZE, "many small photographs"),
    Pair(_job("photographs, steps of 14 ms", _MANY, **simulated(14, epochs=1)), _RESIZE, "many small photographs"),
    Pair(_JOBS["images of 6 megapixels"], _RESIZE, "large, resized"),
    Pair(_JOBS["images of 6 megapixels"], _RAW, "large, pixels"),
    Pair(_JOBS["PNG"], _RESIZE, "png, resized"),
    Pair(_JOBS["small CNN beside decoding"], _RESIZE, "many large, resized"),
    Pair(_job("small CNN, photographs", _MANY, epochs=1), _RESIZE, "many small photographs"),
    Pair(_JOBS["images of 256 pixels"], _RAW, "many prepared, pixels of 73"),
    Pair(_JOBS["images of 256 pixels, large random-resized crop"], _RAW, "prepared pixels"),
    Pair(_JOBS["half a core for decoding"], _RESIZE, "photographs, resized"),
    Pair(_JOBS["slow disk, photographs"], _RESIZE, "small shards, resized"),
)
_MEMORY, _DISK = {"cache": "memory"}, {"cache": "disk"}
_CACHE = (
    Pair(_JOBS["images of 256 pixels"], _MEMORY),
    Pair(_JOBS["images of 256 pixels"], _DISK),
    Pair(_SHORT, _DISK),
    Pair(_JOBS["images of 6 megapixels"], _MEMORY),
    Pair(_job("photographs, 4 epochs, steps of 8 ms", "photographs", **simulated(8, epochs=4)), _MEMORY),
)
_HARDWARE = (
    Pair(_JOBS["half a core for decoding"], {"cores": 1}, around="one core"),
    Pair(_job("one core, photographs", "photographs", "one core", **simulated(2, epochs=2)), {"cores": 2}, around=""),
    Pair(_JOBS["half a core for a small CNN"], {"cores": 1}, around="one core"),
    Pair(_JOBS["slow disk, photographs"], {"gigabytes_per_second": DISK_GBPS}, around="disk of twice the speed"),
    Pair(_JOBS["slow disk, pixels"], {"gigabytes_per_second": DISK_GBPS}, around="disk of twice the speed"),
)
_TENTH = {"validation_fraction": 0.1}
_OTHER = (
    Pair(_JOBS["pauses that a buffer bridges"], {"prefetch_batches": 8}, prefetched=8),
    Pair(_JOBS["half of the images for validation"], _TENTH, "tenth"),
    Pair(_job("small CNN, half of the images for validation", "halved", epochs=20), _TENTH, "tenth"),
    Pair(_JOBS["checkpoint after each step"], {"checkpoint_steps": 0}),
    Pair(_JOBS["callback that waits after each batch"], {"batch_size": 32}, settings=simulated(40, batch_size=32)),
)
_HALF, _CALLBACKS = "half of the rows", {"callbacks": f"{EACH_EPOCH}pause_after_batches"}
_ROWS = (
    Pair(
        _job("rows, half of them for validation, steps of 10 ms", _HALF, **simulated(10, epochs=2)),
        _TENTH,
        "tenth of the rows",
    ),
    Pair(_job("rows, half of them for validation", _HALF, epochs=4), _TENTH, "tenth of the rows"),
    Pair(
        _job("rows, checkpoint after each step", _HALF, **simulated(20, epochs=1, checkpoint_steps=1)),
        {"checkpoint_steps": 0},
    ),
    Pair(
        _job("rows, checkpoint after 5 steps", _HALF, **simulated(10, epochs=1, checkpoint_steps=5)),
        {"checkpoint_steps": 0},
    ),
    Pair(
        _job("rows, callback after each batch", _HALF, **simulated(20, epochs=1), **_CALLBACKS),
        {"batch_size": 128},
        settings=simulated(40, batch_size=128),
    ),
    Pair(_job("rows, half a core", "rows", "half a core", epochs=1), {"cores": 1}, around="one core"),
    Pair(_job("rows, one core", "rows", "one core", epochs=1), {"cores": 2}, around=""),
    Pair(
        _job("wide rows, steps of 1 ms, half a core", "wide rows", "half a core", **simulated(1, epochs=2)),
        {"cores": 1},
        around="one core",
    ),
    Pair(
        _job("wide rows, steps of 1 ms, one core", "wide rows", "one core", **simulated(1, epochs=3)),
        {"cores": 2},
        around="",
    ),
    Pair(
        _job("wide rows, slow disk", "wide rows", "slow disk", **simulated(2, epochs=1)),
        {"gigabytes_per_second": DISK_GBPS},
        around="disk of twice the speed",
    ),
)
PAIRS = (*_PREPARE, *_CACHE, *_HARDWARE, *_OTHER, *_ROWS)
