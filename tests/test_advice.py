"""What to change: the settings that it names exist, and are not already as it wants them."""

import re

import pytest

from pipeline.advice import advised
from pipeline.config import Settings, settings_from
from pipeline.monitor.load import Load
from pipeline.monitor.verdict import Limit, Verdict

GPU_IDLE, GPU_BUSY = Load(gpu=40.0), Load(gpu=95.0)


@pytest.mark.parametrize(
    ("limit", "load", "values", "words"),
    [
        (Limit.DECODING, Load(), {}, "resize at sharding (prepare=resize, prepare_size=256)"),
        (Limit.DECODING, Load(), {"image_size": 299}, "prepare_size=342"),
        (Limit.DECODING, Load(), {"prepare": "resize"}, "cache=memory"),
        (Limit.DECODING, Load(), {"prepare": "resize", "cache": "disk"}, "prepare=raw"),
        (Limit.DECODING, Load(), {"prepare": "resize", "crop": "random_resized"}, "prepare=raw"),
        (Limit.DECODING, Load(), {"prepare": "raw", "epochs": 1}, "more cores"),
        (Limit.ONE_CORE, Load(), {}, "py_function"),
        (Limit.READING, Load(), {"read_shards": "direct"}, "read_shards=cache"),
        (Limit.READING, Load(), {}, "cache=memory"),
        (Limit.READING, Load(), {"cache": "memory"}, "local_folder"),
        (Limit.BUFFER, Load(), {}, "prefetch_batches=16"),
        (Limit.HOST, Load(), {}, "batch_size"),
        (Limit.HOST, Load(), {"callbacks": "mine:callbacks"}, "callbacks do less"),
        (Limit.COMPUTE, Load(), {}, "a GPU"),
        (Limit.COMPUTE, GPU_IDLE, {}, "xla=true"),
        (Limit.COMPUTE, GPU_BUSY, {}, "precision=mixed_bfloat16"),
    ],
)
def test_the_next_thing_to_do(limit: Limit, load: Load, values: dict, words: str):
    advice = advised(Verdict(limit, "It is so.", load), settings_from({"image_size": 224, **values}))
    assert advice.startswith("It is so. Next: ")
    assert words in advice
    assert set(re.findall(r"(\w+)=", advice)) <= set(Settings.model_fields)


@pytest.mark.parametrize(
    ("limit", "load", "values"),
    [
        (Limit.UNKNOWN, Load(), {}),
        (Limit.COMPUTE, GPU_BUSY, {"precision": "mixed_bfloat16"}),
    ],
)
def test_nothing_to_do(limit: Limit, load: Load, values: dict):
    assert advised(Verdict(limit, "It is so.", load), settings_from(values)) == "It is so."
