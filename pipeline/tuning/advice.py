"""What to change if something other than the accelerator limits a training, by the names of the settings."""

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.config import Settings
from pipeline.monitor.limits import IDLE_GPU, Limit
from pipeline.monitor.verdict import Verdict
from pipeline.tuning.contenders import PREPARED_PER_CROP

_OF_THE_DATASET = ("prepare", "prepare_size")
"""These settings are read from the dataset, because a training may have other values than its dataset was made with."""


def advice(verdict: Verdict, settings: Settings, dataset: Mapping[str, Any]) -> str:
    """Return the next thing to do, in a sentence; empty if there is nothing to do.

    If the verdict names several limits, the advice is about each of them.

    Args:
        verdict: What limits the training.
        settings: Settings of the training.
        dataset: Settings in the `dataset.json` that the training reads.
    """
    prepared = {name: dataset[name] for name in _OF_THE_DATASET if name in dataset}
    effective = settings.model_copy(update=prepared)
    entries = [_ADVICE[limit] for limit in verdict.limits]
    texts = [each if isinstance(each, str) else each(verdict, effective) for each in entries]
    # Two limits can have the same advice, which is then given once.
    pieces = dict.fromkeys(filter(None, texts))
    return f"Next: {'; or '.join(pieces)}." if pieces else ""


def with_advice(verdict: Verdict, settings: Settings, dataset: Mapping[str, Any]) -> str:
    """Return the sentence of the verdict, with the next thing to do."""
    return f"{verdict.sentence} {advice(verdict, settings, dataset)}".strip()


def _decoding(verdict: Verdict, settings: Settings) -> str:
    if settings.example_kind == "table":
        # A step of a small model takes less time than the input needs for its rows.
        return "use more cores for each accelerator, or a larger batch_size"
    if settings.prepare == "keep":
        size = round(settings.image_size * PREPARED_PER_CROP)
        return (
            f"resize the images once when the dataset is built (prepare=resize, prepare_size={size}), which makes the "
            "input of photographs 2 to 3 times faster"
        )
    if _decodes_each_epoch(settings):
        return "keep decoded images for the epochs after the first (cache=memory, or cache=disk)"
    if settings.prepare == "resize":
        return (
            "store pixels when the dataset is built (prepare=raw), so that nothing is decoded; this takes more disk "
            "space"
        )
    return "use more cores for each accelerator, or a smaller image_size"


def _decodes_each_epoch(settings: Settings) -> bool:
    # The conditions under which `pipeline/input/cache.py` keeps images at all.
    can_keep = settings.crop != "random_resized" and not settings.balanced and settings.epochs > 1
    return can_keep and settings.cache in ("off", "auto")


def _reading(verdict: Verdict, settings: Settings) -> str:
    if settings.read_shards == "direct":
        return "copy the shards to this machine once (read_shards=cache)"
    if settings.example_kind == "images" and _decodes_each_epoch(settings):
        return "keep decoded images for the epochs after the first (cache=memory), or put local_folder on a faster disk"
    return "put local_folder (or the workspace, if it is not a bucket) on a faster disk"


def _buffer(verdict: Verdict, settings: Settings) -> str:
    return f"keep more batches ready (prefetch_batches={4 * settings.prefetch_batches})"


def _host(verdict: Verdict, settings: Settings) -> str:
    if settings.callbacks:
        return "let your callbacks do less with each batch"
    return "use a larger batch_size, for fewer steps, or write fewer checkpoints (checkpoint_minutes, checkpoint_steps)"


def _compute(verdict: Verdict, settings: Settings) -> str:
    if settings.simulated_step_ms:
        return ""
    if verdict.load.gpu is None:
        if settings.example_kind == "table":
            return "use a GPU, a larger batch_size or a smaller model"
        return "use a GPU, a smaller image_size or a smaller model"
    if verdict.load.gpu < IDLE_GPU and settings.example_kind == "table":
        # XLA does not know strings, which most tables have.
        return "give the GPU more work in each step (a larger batch_size)"
    if verdict.load.gpu < IDLE_GPU:
        return "give the GPU more work in each step (a larger batch_size), or set xla=true"
    if settings.precision == "float32":
        return "set precision=mixed_bfloat16, which is faster on GPUs from 2020 on"
    return ""


def _callbacks(verdict: Verdict, settings: Settings) -> str:
    if settings.callbacks:
        return "let your callbacks do less after each epoch"
    return (
        "look at the log: without callbacks of yours, hardly any time should pass here (a slow local_folder, perhaps)"
    )


def _validation(verdict: Verdict, settings: Settings) -> str:
    examples = "rows" if settings.example_kind == "table" else "images"
    return f"use fewer validation {examples} (validation_fraction), or a larger batch_size"


def _memory(verdict: Verdict, settings: Settings) -> str:
    if settings.cache == "memory":
        return "give the container more memory, or keep decoded images on a disk (cache=disk)"
    return "give the container more memory, or use less (shuffle_megabytes, prefetch_batches)"


_ADVICE: Mapping[Limit, str | Callable[[Verdict, Settings], str]] = {
    Limit.UNKNOWN: "",
    Limit.COMPUTE: _compute,
    Limit.DECODING: _decoding,
    Limit.ONE_CORE: ("look for Python code in the input (a py_function, a generator), which runs on one core only"),
    Limit.READING: _reading,
    Limit.BUFFER: _buffer,
    Limit.HOST: _host,
    Limit.CHECKPOINTS: (
        "write fewer checkpoints (checkpoint_minutes, checkpoint_steps), or put local_folder on a faster disk"
    ),
    Limit.VALIDATION: _validation,
    Limit.CALLBACKS: _callbacks,
    Limit.OTHER_PROGRAMS: (
        "stop the other programs, or give this training cores of its own, before you change anything else"
    ),
    Limit.CPU_QUOTA: "raise the CPU limit of the container",
    Limit.MEMORY: _memory,
    Limit.PYTHON: "replace the Python code in the model (tf.py_function, tf.numpy_function) with TensorFlow operations",
}
"""The advice on each limit, or the function that returns it. It is empty if there is nothing to do.

The tables of docs/explanation/verdict.md have the same advice in the column "Next".
"""
