"""The jobs of `benchmarks.verdicts`: trainings with a known limit, which each job makes on purpose.

Most are trainings of `python -m pipeline train` on a simulated accelerator, which waits instead of computing. The jobs
of `benchmarks.known_limits.own_inputs` have an input that Tenfold's settings cannot make.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.monitor.limits import Limit

EACH_EPOCH = "benchmarks.known_limits.own_models:"


@dataclass(frozen=True)
class Job:
    """A training and what limits it."""

    name: str
    limits: frozenset[Limit]
    """The limits that the verdict must name: one of them, or all if `names_all`."""
    data: str = "pixels"
    """The dataset (`benchmarks.known_limits.datasets`)."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the training, in addition to `COMMON`."""
    own_input: str = ""
    """An input of `benchmarks.known_limits.own_inputs` instead of a dataset."""
    steps: int = 100
    """Steps of a training on an own input."""
    prefetched: int = 2
    """Batches that an own input keeps ready."""
    also: frozenset[Limit] = frozenset()
    """Limits that the verdict may name in addition."""
    names_all: bool = False
    needs_cores: bool = False
    """Whether other programs on all cores slow the job down. They are then its limit."""
    around: str = ""
    """Name of its surroundings (`SURROUNDINGS` of `benchmarks.verdicts`)."""

    def is_named_by(self, named: frozenset[Limit], beside_others: bool) -> bool:
        """Whether a verdict names the limit of this job, and no other."""
        if beside_others and self.needs_cores:
            return Limit.OTHER_PROGRAMS in named and named <= self.limits | self.also | {Limit.OTHER_PROGRAMS}
        if not named <= self.limits | self.also:
            return False
        return self.limits <= named if self.names_all else bool(self.limits & named)


COMMON = {
    "batch_size": 16,
    "image_size": 64,
    "crop": "random",
    "cache": "off",
    "promote": "never",
    # A larger buffer would hold all of these small datasets before the first step, and no step would wait.
    "shuffle_megabytes": 2,
}
COMMON_OF_ROWS = {"batch_size": 64, "promote": "never", "shuffle_megabytes": 2}


def simulated(step_ms: float, **settings: Any) -> dict[str, Any]:
    """Return the settings of a simulated accelerator."""
    return {"simulated_step_ms": step_ms, **settings}


def _only(*limits: Limit) -> frozenset[Limit]:
    return frozenset(limits)


_COMPUTE = (
    Job("steps of 40 ms", _only(Limit.COMPUTE), settings=simulated(40, epochs=1)),
    Job("steps of 100 ms beside decoding", _only(Limit.COMPUTE), "photographs", simulated(100, epochs=1)),
    Job("steps of 10 ms", _only(Limit.COMPUTE), settings=simulated(10, epochs=4)),
    Job(
        "decoded images in memory",
        _only(Limit.COMPUTE),
        "photographs",
        simulated(60, epochs=2, cache="memory"),
    ),
    Job("small CNN on the cores", _only(Limit.COMPUTE), settings={"epochs": 3}, needs_cores=True),
    Job("small CNN with XLA", _only(Limit.COMPUTE), settings={"epochs": 1, "xla": True}, needs_cores=True),
)
_DECODING = (
    Job("photographs", _only(Limit.DECODING), "many photographs", simulated(2, epochs=1), needs_cores=True),
    Job(
        "photographs, random-resized crop",
        _only(Limit.DECODING),
        "many photographs",
        simulated(2, epochs=1, crop="random_resized"),
        needs_cores=True,
    ),
    Job(
        "photographs, steps of two thirds of the decoding",
        _only(Limit.DECODING),
        "many photographs",
        simulated(8, epochs=1),
        needs_cores=True,
    ),
    Job("images of 6 megapixels", _only(Limit.DECODING), "large", simulated(2, epochs=3), needs_cores=True),
    Job("PNG", _only(Limit.DECODING), "png", simulated(2, epochs=1), needs_cores=True),
    Job("images of 256 pixels", _only(Limit.DECODING), "many prepared", simulated(1, epochs=2), needs_cores=True),
    Job(
        "images of 256 pixels, large random-resized crop",
        _only(Limit.DECODING),
        "prepared",
        simulated(2, epochs=2, crop="random_resized", image_size=224),
        needs_cores=True,
    ),
    Job(
        "small CNN beside decoding",
        _only(Limit.DECODING),
        "many large",
        {"epochs": 1, "image_size": 32},
        also=_only(Limit.COMPUTE),
        needs_cores=True,
    ),
    Job(
        "half a core for decoding",
        _only(Limit.CPU_QUOTA),
        "photographs",
        simulated(2, epochs=1),
        also=_only(Limit.DECODING, Limit.OTHER_PROGRAMS),
        around="half a core",
    ),
    Job(
        "half a core for a small CNN",
        _only(Limit.CPU_QUOTA),
        settings={"epochs": 1},
        also=_only(Limit.COMPUTE, Limit.OTHER_PROGRAMS),
        around="half a core",
    ),
)
# The bucket is on this machine, so its bytes do not come over the network.
_BUCKET = _only(Limit.READING, Limit.WAITING)
_READING = (
    Job(
        "slow disk, photographs",
        _only(Limit.READING),
        "small shards",
        simulated(5, epochs=1),
        around="slow disk",
    ),
    Job("slow disk, pixels", _only(Limit.READING), "large pixels", simulated(2, epochs=1), around="slow disk"),
    Job(
        "slow bucket",
        _BUCKET,
        "many shards",
        simulated(5, epochs=1),
        around="slow bucket",
    ),
    Job(
        "bucket that pauses",
        _BUCKET,
        "many shards",
        simulated(5, epochs=1),
        around="bucket that pauses",
    ),
    Job("server that answers late", _only(Limit.WAITING), own_input="asking"),
    Job("server that pauses", _only(Limit.WAITING), own_input="stuttering"),
    Job(
        "memory for a quarter of a mapped file",
        _only(Limit.MEMORY),
        own_input="mapped",
        also=_only(Limit.READING),
        around="little memory",
    ),
)
# Python code in the input is a serial stage, too.
_ONE_BY_ONE = _only(Limit.ONE_CORE, Limit.SERIAL)
_PYTHON = (
    Job("py_function that computes", _ONE_BY_ONE, own_input="searching", needs_cores=True),
    Job("Python generator", _ONE_BY_ONE, own_input="generated", needs_cores=True),
    Job("serial map", _only(Limit.SERIAL), own_input="serial", also=_ONE_BY_ONE, steps=20, needs_cores=True),
    Job(
        "model that calls Python",
        _only(Limit.PYTHON),
        settings={"epochs": 2, "model": f"{EACH_EPOCH}through_python"},
        also=_ONE_BY_ONE,
        needs_cores=True,
    ),
)
_BUFFER = (Job("pauses that a buffer bridges", _only(Limit.BUFFER), own_input="pausing", steps=300),)
_OUTSIDE_STEPS = (
    Job(
        "callback that waits after each batch",
        _only(Limit.HOST),
        settings=simulated(20, epochs=1, callbacks=f"{EACH_EPOCH}pause_after_batches"),
    ),
    Job(
        "callback that computes after each batch",
        _only(Limit.HOST),
        settings=simulated(20, epochs=1, callbacks=f"{EACH_EPOCH}compute_after_batches"),
    ),
    Job(
        "callback that waits after each epoch",
        _only(Limit.CALLBACKS),
        settings=simulated(10, epochs=3, callbacks=f"{EACH_EPOCH}pause_after_epochs"),
    ),
    Job(
        "callback that computes after each epoch",
        _only(Limit.CALLBACKS),
        settings=simulated(10, epochs=3, callbacks=f"{EACH_EPOCH}compute_after_epochs"),
    ),
    Job(
        "checkpoint after each step",
        _only(Limit.CHECKPOINTS),
        settings=simulated(20, epochs=1, checkpoint_steps=1, model=f"{EACH_EPOCH}heavy"),
    ),
    Job("half of the images for validation", _only(Limit.VALIDATION), "halved", simulated(40, epochs=5)),
    Job(
        "two limits: a slow callback and a slow disk",
        _only(Limit.HOST, Limit.READING),
        "small shards",
        simulated(5, epochs=1, callbacks=f"{EACH_EPOCH}long_pause_after_batches"),
        names_all=True,
        around="slow disk",
    ),
)
JOBS = (*_COMPUTE, *_DECODING, *_READING, *_PYTHON, *_BUFFER, *_OUTSIDE_STEPS)


@dataclass(frozen=True)
class Change:
    """An advice: the settings or the dataset that it changes."""

    job: str
    """The job whose verdict gives the advice."""
    advice: str
    data: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    prefetched: int = 2


CHANGES = (
    Change("photographs", "prepare=resize, prepare_size=73", data="many small photographs"),
    Change("images of 256 pixels", "cache=memory", settings={"cache": "memory"}),
    Change("images of 256 pixels, large random-resized crop", "prepare=raw", data="prepared pixels"),
    Change("pauses that a buffer bridges", "prefetch_batches=8", prefetched=8),
    Change("checkpoint after each step", "checkpoint_steps=0", settings={"checkpoint_steps": 0}),
    Change("half of the images for validation", "validation_fraction=0.1", data="tenth"),
)
