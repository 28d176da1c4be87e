"""What to change where something else than the accelerator limits a training: in the names of the settings."""

from __future__ import annotations

from pipeline.config import Settings
from pipeline.monitor.verdict import Limit, Verdict

PREPARED = 8 / 7
"""Side of an image that is prepared over that of the window which training crops from it (pipeline/input)."""
IDLE_GPU = 60.0
"""Percent below which a GPU that computes all the time is given too little at once."""


def advice(verdict: Verdict, settings: Settings) -> str:
    """The next thing to do, in a sentence; empty where there is nothing to say."""
    words = _ADVICE[verdict.limit](verdict, settings)
    return f"Next: {words}." if words else ""


def advised(verdict: Verdict, settings: Settings) -> str:
    """The verdict, and the next thing to do."""
    return f"{verdict.sentence} {advice(verdict, settings)}".strip()


def _decoding(verdict: Verdict, settings: Settings) -> str:
    if settings.prepare == "keep":
        size = round(settings.image_size * PREPARED)
        return (
            f"resize at sharding (prepare=resize, prepare_size={size}), for an input that is 2 to 3 times faster where "
            "images are photographs"
        )
    if _decodes_each_epoch(settings):
        return "keep decoded images for the epochs after the first (cache=memory, or cache=disk)"
    if settings.prepare == "resize":
        return "store pixels at sharding (prepare=raw): nothing is decoded then, on more disk"
    return "more cores for each accelerator, or a smaller image_size"


def _decodes_each_epoch(settings: Settings) -> bool:
    can_keep = settings.crop != "random_resized" and not settings.balanced and settings.epochs > 1
    return can_keep and settings.cache in ("off", "auto")


def _one_core(verdict: Verdict, settings: Settings) -> str:
    return "look for Python code in the input (a py_function, a generator): it runs on one core, whatever there are"


def _reading(verdict: Verdict, settings: Settings) -> str:
    if settings.read_shards == "direct":
        return "copy the shards to this machine once (read_shards=cache)"
    if _decodes_each_epoch(settings):
        return "keep decoded images for the epochs after the first (cache=memory), or put local_folder on a faster disk"
    return "put local_folder, or a workspace that is no bucket, on a faster disk"


def _buffer(verdict: Verdict, settings: Settings) -> str:
    return f"keep more batches ready (prefetch_batches={4 * settings.prefetch_batches})"


def _host(verdict: Verdict, settings: Settings) -> str:
    if settings.callbacks:
        return "let your callbacks do less with each batch"
    return "a larger batch_size, for fewer steps, or fewer checkpoints (checkpoint_minutes, checkpoint_steps)"


def _compute(verdict: Verdict, settings: Settings) -> str:
    if verdict.load.gpu is None:
        return "a GPU, or a smaller image_size or model"
    if verdict.load.gpu < IDLE_GPU:
        return "give the GPU more at once: a larger batch_size, or xla=true"
    if settings.precision == "float32":
        return "precision=mixed_bfloat16 computes faster on GPUs from 2020 on"
    return ""


def _unknown(verdict: Verdict, settings: Settings) -> str:
    return ""


_ADVICE = {
    Limit.UNKNOWN: _unknown,
    Limit.COMPUTE: _compute,
    Limit.DECODING: _decoding,
    Limit.ONE_CORE: _one_core,
    Limit.READING: _reading,
    Limit.BUFFER: _buffer,
    Limit.HOST: _host,
}
