"""What to change if something other than the accelerator limits a training, by the names of the settings.

If the gain of a change was predicted, the best of these changes is the advice. Otherwise, `ADVICE` has a change for
each limit. docs/reference/advice.md is generated from it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config.automatic import TrainingSettings
from pipeline.config.example_kinds import IMAGES, TABLE
from pipeline.config.kept_images import can_keep
from pipeline.config.settings import MAX_PREFETCHED
from pipeline.monitor.limits import IDLE_GPU, Limit
from pipeline.monitor.verdict import Verdict
from pipeline.runs.measured_steps import BFLOAT16_CAPABILITY, FLOAT16_CAPABILITY, faster_precision, step_changes
from pipeline.tuning.contenders import prepared_size
from pipeline.tuning.predictions import LOWEST_VALIDATION, Prediction, more_prefetched, with_dataset


@dataclass(frozen=True)
class Condition:
    """A condition of a change."""

    words: str
    holds: Callable[[Verdict, TrainingSettings], bool]


@dataclass(frozen=True)
class Change:
    """A change, and all conditions under which it is the next one to make."""

    text: str
    """What to do; empty if there is nothing to do. {prepare_size} and {prefetch_batches} follow from the settings, and
    {precision} from the GPU."""
    conditions: Sequence[Condition] = ()
    settings: Collection[str] = ()
    """The settings that it changes whose gain can be predicted. It is left out if a gain was, and is too small."""

    def described(self, settings: TrainingSettings, gpu_capability: float | None = None) -> str:
        """Return what to do with these settings."""
        size, batches = prepared_size(settings.image_size), more_prefetched(settings)
        precision = faster_precision(gpu_capability)
        return self.text.format(prepare_size=size, prefetch_batches=batches, precision=precision)


def advice(
    verdict: Verdict, settings: TrainingSettings, dataset: Mapping[str, Any], found: Sequence[Prediction] = ()
) -> str:
    """Return the next thing to do, in a sentence; empty if there is nothing to do.

    If the verdict names several limits, the advice is about each of them. `dataset` has the settings in the
    `dataset.json` that the training reads. `found` are the predictions for the training, the best one first.
    """
    effective = with_dataset(settings, dataset)
    gains = [each for each in found if each.is_gain and not each.is_hardware]
    is_small = {name for each in found if not each.is_gain for name in each.change}
    changes = [
        next(
            each
            for each in ADVICE[limit]
            if is_small.isdisjoint(each.settings) and all(one.holds(verdict, effective) for one in each.conditions)
        )
        for limit in verdict.limits
        if not gains or limit in _WITHOUT_SETTINGS
    ]
    # Two limits can have the same advice, which is then given once.
    pieces = dict.fromkeys(_hinted(change, effective, verdict) for change in changes if change.text)
    best = [f"{gains[0].action}: {gains[0].words()}"] if gains else []
    if pieces or best:
        return f"Next: {'; or '.join([*best, *pieces])}."
    return f"No setting makes it faster: the limit is {verdict.limit.value}." if found else ""


def _hinted(change: Change, settings: TrainingSettings, verdict: Verdict) -> str:
    """Return what to do, and if its gain can be predicted once more is measured, how."""
    is_predictable = verdict.examples_per_s and settings.num_training_servers == 1
    names = {*change.settings} & (_OF_STAGES | {name for each in step_changes(verdict, settings) for name in each})
    hint = " (`tenfold advise` predicts how much faster)" if is_predictable and names else ""
    return f"{change.described(settings, verdict.load.gpu_capability)}{hint}"


def with_advice(
    verdict: Verdict, settings: TrainingSettings, dataset: Mapping[str, Any], found: Sequence[Prediction] = ()
) -> str:
    """Return the sentence of the verdict, with the next thing to do."""
    return f"{verdict.sentence} {advice(verdict, settings, dataset, found)}".strip()


_WITHOUT_SETTINGS = {
    *(Limit.OTHER_PROGRAMS, Limit.CPU_QUOTA, Limit.MEMORY, Limit.ONE_CORE, Limit.WAITING, Limit.PYTHON),
    Limit.CALLBACKS,
}
"""Limits that something else than a setting removes, so that the best setting is not the only thing to do."""
_OF_STAGES = {"prepare", "cache", "batch_size"}
"""Settings whose gain can be predicted only if the stages of the input were measured."""


def _is_prepared(settings: TrainingSettings, prepare: str) -> bool:
    return settings.example_kind == IMAGES and settings.prepare == prepare


_TABLE = Condition("the examples are rows of a table", lambda _, settings: settings.example_kind == TABLE)
_KEPT = Condition("images, prepare=keep", lambda _, settings: _is_prepared(settings, "keep"))
_RESIZED = Condition("images, prepare=resize", lambda _, settings: _is_prepared(settings, "resize"))
_DECODED_AGAIN = Condition(
    "images, cache=auto or cache=off, with several epochs, balanced=false, and another crop than crop=random_resized",
    lambda _, settings: can_keep(settings) and settings.epochs > 1 and settings.cache in ("off", "auto"),
)
_BALANCED = Condition("balanced=true", lambda _, settings: settings.balanced)
_CACHED = Condition("cache=memory", lambda _, settings: settings.cache == "memory")
_MAY_PREFETCH_MORE = Condition(
    f"prefetch_batches is less than {MAX_PREFETCHED}", lambda _, settings: settings.prefetch_batches < MAX_PREFETCHED
)
_CHECKPOINTS_WITHIN = Condition(
    "checkpoint_minutes or checkpoint_steps is set",
    lambda _, settings: bool(settings.checkpoint_minutes or settings.checkpoint_steps),
)
_MUCH_VALIDATION = Condition(
    f"validation_fraction is more than {LOWEST_VALIDATION}",
    lambda _, settings: settings.validation_fraction > LOWEST_VALIDATION,
)
_CALLBACKS = Condition("callbacks are set", lambda _, settings: bool(settings.callbacks))
_SIMULATED = Condition("simulated_step_ms is set", lambda _, settings: bool(settings.simulated_step_ms))
_FLOAT32 = Condition("precision=float32", lambda _, settings: settings.precision == "float32")
_TENSOR_CORES = Condition(
    f"no GPU has a compute capability below {FLOAT16_CAPABILITY:g} (below {BFLOAT16_CAPABILITY:g}: "
    "precision=mixed_float16)",
    lambda verdict, _: bool(faster_precision(verdict.load.gpu_capability)),
)
_UNCOMPILED = Condition("xla=false", lambda _, settings: not settings.xla)
_NO_GPU = Condition("there is no GPU", lambda verdict, _: not verdict.load.has_gpu)
_IDLE_GPU = Condition(
    f"the GPU is less than {IDLE_GPU:.0f}% busy while the training computes",
    lambda verdict, _: verdict.load.gpu is not None and verdict.load.gpu < IDLE_GPU,
)

_LESS_DECODING = (
    # Rows of a larger batch are cheaper to parse.
    Change("use more cores for each accelerator, or a larger batch_size", [_TABLE], settings=["batch_size"]),
    Change("use more cores for each accelerator", [_TABLE]),
    Change(
        "resize the images once when the dataset is built (prepare=resize, prepare_size={prepare_size}), so that each "
        "epoch decodes fewer pixels",
        [_KEPT],
        settings=["prepare"],
    ),
    Change(
        "keep decoded images for the epochs after the first (cache=memory, or cache=disk)",
        [_DECODED_AGAIN],
        settings=["cache"],
    ),
    Change(
        "store pixels when the dataset is built (prepare=raw), so that nothing is decoded; this takes more disk space",
        [_RESIZED],
        settings=["prepare"],
    ),
    Change("use more cores for each accelerator, or a smaller image_size"),
)

ADVICE: Mapping[Limit, Sequence[Change]] = {
    Limit.UNKNOWN: [Change("")],
    Limit.COMPUTE: [
        Change("", [_SIMULATED]),
        Change("use a GPU, a larger batch_size or a smaller model", [_NO_GPU, _TABLE]),
        Change("use a GPU, a smaller image_size or a smaller model", [_NO_GPU]),
        Change(
            "set precision={precision}, for which most GPUs have tensor cores, and xla=true, and check the loss",
            [_TENSOR_CORES, _FLOAT32, _UNCOMPILED],
            settings=["precision", "xla"],
        ),
        Change(
            "set precision={precision}, for which most GPUs have tensor cores, and check the loss",
            [_TENSOR_CORES, _FLOAT32],
            settings=["precision"],
        ),
        Change("give the GPU more work (a larger batch_size), or set xla=true", [_IDLE_GPU, _UNCOMPILED], ["xla"]),
        Change("give the GPU more work in each step (a larger batch_size)", [_IDLE_GPU]),
        Change(""),
    ],
    Limit.DECODING: _LESS_DECODING,
    Limit.ONE_CORE: [
        Change("look for Python code in the input (a py_function, a generator), which runs on one core only")
    ],
    Limit.SERIAL: [
        Change(
            "set balanced=false and class_weights=balanced: balancing handles one image after another, on one core",
            [_BALANCED],
        ),
        Change("use a larger batch_size, or train on more servers (num_training_servers)", [_TABLE]),
        Change(
            "use a smaller image_size, or train on more servers (num_training_servers): more cores do not help a stage "
            "that handles one image after another"
        ),
    ],
    Limit.WAITING: [Change("look for what the input waits for: a slow server, a lock, or a pause in code of yours")],
    Limit.READING: [
        Change(
            "keep decoded images for the epochs after the first (cache=memory), or put local_folder on a faster disk",
            [_DECODED_AGAIN],
            settings=["cache"],
        ),
        Change("put local_folder (or the workspace, if it is not a bucket) on a faster disk"),
    ],
    Limit.BUFFER: [
        Change(
            "keep more batches ready (prefetch_batches={prefetch_batches})",
            [_MAY_PREFETCH_MORE],
            settings=["prefetch_batches"],
        ),
        Change(""),
    ],
    Limit.HOST: [
        Change("let your callbacks do less with each batch", [_CALLBACKS]),
        Change(
            "use a larger batch_size, for fewer steps, or write fewer checkpoints (checkpoint_minutes, "
            "checkpoint_steps)"
        ),
    ],
    Limit.CHECKPOINTS: [
        Change(
            "write fewer checkpoints (checkpoint_minutes, checkpoint_steps), or put local_folder on a faster disk",
            [_CHECKPOINTS_WITHIN],
            settings=["checkpoint_minutes", "checkpoint_steps"],
        ),
        Change("put local_folder on a faster disk"),
    ],
    Limit.VALIDATION: [
        Change(
            "use fewer validation examples (validation_fraction), or a larger batch_size",
            [_MUCH_VALIDATION],
            settings=["validation_fraction"],
        ),
        Change("use a larger batch_size"),
    ],
    Limit.CALLBACKS: [
        Change("let your callbacks do less after each epoch", [_CALLBACKS]),
        Change(
            "look at the log: without callbacks of yours, hardly any time should pass here (a slow local_folder, "
            "perhaps)"
        ),
    ],
    Limit.BETWEEN_EPOCHS: [Change("put local_folder on a faster disk, or train longer epochs")],
    Limit.OTHER_PROGRAMS: [
        Change("stop the other programs, or give this training cores of its own, before you change anything else")
    ],
    Limit.CPU_QUOTA: [Change("raise the CPU limit of the container")],
    Limit.MEMORY: [
        Change("give the container more memory, or keep decoded images on a disk (cache=disk)", [_CACHED]),
        Change("give the container more memory, or use less (shuffle_megabytes, prefetch_batches)"),
    ],
    Limit.PYTHON: [
        Change("replace the Python code in the model (tf.py_function, tf.numpy_function) with TensorFlow operations")
    ],
    # Decoding takes the cores from the thread that starts the kernels.
    Limit.LATE_KERNELS: _LESS_DECODING,
}
"""The changes for each limit. The first one whose conditions hold is the next one to make; the last one has none."""
