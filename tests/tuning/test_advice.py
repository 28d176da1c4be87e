"""Advice on settings: each named setting exists, and does not have the advised value already."""

import re

import pytest
import yaml

from pipeline.config.automatic import training_settings
from pipeline.config.example_kinds import TABLE
from pipeline.config.settings import Settings, settings_for
from pipeline.evaluation.estimates import Estimate
from pipeline.monitor.limits import Limit
from pipeline.monitor.load import Load
from pipeline.monitor.verdict import Verdict
from pipeline.tuning.advice import ADVICE, advice, with_advice
from pipeline.tuning.predictions import Prediction

OF_TENSORFLOW = ("py_function", "numpy_function", "mixed_bfloat", "mixed_float")
GPU_IDLE, GPU_BUSY = Load(gpu=40.0), Load(gpu=95.0)
A100, A100_IDLE = (Load(gpu=busy, gpu_capability=8.0) for busy in (95.0, 40.0))
T4 = Load(gpu=95.0, gpu_capability=7.5)


@pytest.mark.parametrize(
    ("limit", "load", "values", "phrase"),
    [
        (
            Limit.DECODING,
            Load(),
            {},
            "resize the images once when the dataset is built (prepare=resize, prepare_size=256)",
        ),
        (Limit.DECODING, Load(), {"image_size": 299}, "prepare_size=342"),
        (Limit.DECODING, Load(), {"prepare": "resize"}, "cache=memory"),
        (Limit.DECODING, Load(), {"prepare": "resize", "cache": "disk"}, "prepare=raw"),
        (Limit.DECODING, Load(), {"prepare": "resize", "crop": "random_resized"}, "prepare=raw"),
        (Limit.DECODING, Load(), {"prepare": "raw", "epochs": 1}, "more cores"),
        (Limit.ONE_CORE, Load(), {}, "py_function"),
        (Limit.SERIAL, Load(), {"balanced": True}, "class_weights=balanced"),
        (Limit.SERIAL, Load(), {}, "num_training_servers"),
        (Limit.WAITING, Load(), {}, "look for what the input waits for"),
        (Limit.LATE_KERNELS, Load(gpu=30.0), {"prepare": "keep"}, "prepare=resize"),
        (Limit.READING, Load(), {}, "cache=memory"),
        (Limit.READING, Load(), {"cache": "memory"}, "local_folder"),
        (Limit.BUFFER, Load(), {}, "prefetch_batches=16"),
        (Limit.HOST, Load(), {}, "batch_size"),
        (Limit.HOST, Load(), {"callbacks": "mine:callbacks"}, "callbacks do less"),
        (Limit.CHECKPOINTS, Load(), {}, "checkpoint_minutes"),
        (Limit.VALIDATION, Load(), {}, "validation_fraction"),
        (Limit.CALLBACKS, Load(), {"callbacks": "mine:callbacks"}, "callbacks do less after each epoch"),
        (Limit.CALLBACKS, Load(), {}, "local_folder"),
        (Limit.OTHER_PROGRAMS, Load(), {}, "stop the other programs"),
        (Limit.CPU_QUOTA, Load(), {}, "raise the CPU limit"),
        (Limit.MEMORY, Load(), {"cache": "memory"}, "cache=disk"),
        (Limit.MEMORY, Load(), {}, "shuffle_megabytes"),
        (Limit.PYTHON, Load(), {}, "tf.py_function"),
        (Limit.COMPUTE, Load(), {}, "a GPU"),
        (Limit.COMPUTE, GPU_IDLE, {}, "xla=true"),
        (Limit.COMPUTE, GPU_BUSY, {}, "precision=mixed_bfloat16"),
        (Limit.COMPUTE, A100, {}, "precision=mixed_bfloat16, for which most GPUs have tensor cores, and xla=true"),
        (Limit.COMPUTE, A100_IDLE, {}, "precision=mixed_bfloat16, for which most GPUs have tensor cores, and xla=true"),
        (
            Limit.COMPUTE,
            A100,
            {"xla": True},
            "mixed_bfloat16, for which most GPUs have tensor cores, and check the loss",
        ),
        (Limit.COMPUTE, A100_IDLE, {"precision": "mixed_bfloat16"}, "batch_size), or set xla=true"),
        (Limit.COMPUTE, A100_IDLE, {"precision": "mixed_bfloat16", "xla": True}, "(a larger batch_size)."),
        (Limit.COMPUTE, T4, {}, "precision=mixed_float16"),
    ],
)
def test_advice_names_an_existing_setting_to_change(limit: Limit, load: Load, values: dict, phrase: str):
    values = {"image_size": 224, **values}
    advice = with_advice(Verdict((limit,), "It is so.", load), training_settings(values), {})
    assert advice.startswith("It is so. Next: ")
    assert phrase in advice
    changes = {name: yaml.safe_load(value) for name, value in re.findall(r"(\w+)=(\w+)", advice)}
    assert training_settings(values | changes) != training_settings(values) or not changes
    assert set(re.findall(r"[a-z]+_[a-z_]+", advice)) <= {*Settings.model_fields, *OF_TENSORFLOW}


@pytest.mark.parametrize("load", [Load(), GPU_IDLE, GPU_BUSY, A100, T4])
@pytest.mark.parametrize("limit", Limit)
def test_advice_for_a_table_names_no_setting_of_images(limit: Limit, load: Load):
    settings = training_settings({"example_kind": "table", "model": "mlp"})
    advice = with_advice(Verdict((limit,), "It is so.", load), settings, {"split_seed": 0})
    names = re.findall(r"[a-z]+_[a-z_]+|cache=|prepare=", advice)
    assert not {"cache=", "prepare="} & set(names)
    assert set(names) - set(OF_TENSORFLOW) <= set(settings_for(TABLE, Settings.model_fields))
    assert "image" not in advice


@pytest.mark.parametrize(
    ("limit", "load", "values"),
    [
        (Limit.UNKNOWN, Load(), {}),
        (Limit.COMPUTE, Load(gpu=95.0, gpu_capability=6.1), {}),  # no tensor cores
        (Limit.COMPUTE, GPU_BUSY, {"precision": "mixed_bfloat16"}),
    ],
)
def test_a_verdict_without_remedy_has_no_advice(limit: Limit, load: Load, values: dict):
    assert with_advice(Verdict((limit,), "It is so.", load), training_settings(values), {}) == "It is so."


def test_advice_depends_on_how_the_dataset_was_prepared():
    """A training may use a dataset that was prepared with other settings than its own."""
    verdict = Verdict((Limit.DECODING,), "It is so.", Load())
    settings = training_settings({"image_size": 224, "epochs": 1})
    assert "prepare=resize" in with_advice(verdict, settings, {"prepare": "keep"})
    assert "prepare=raw" in with_advice(verdict, settings, {"prepare": "resize", "prepare_size": 256})
    assert "more cores" in with_advice(verdict, settings, {"prepare": "raw", "prepare_size": 256})


@pytest.mark.parametrize(
    ("limit", "name", "phrase"),
    [
        (Limit.READING, "cache", "Next: put local_folder"),
        (Limit.BUFFER, "prefetch_batches", "No setting makes it faster: the limit is buffer."),
        (Limit.CHECKPOINTS, "checkpoint_minutes", "Next: put local_folder on a faster disk."),
        (Limit.CHECKPOINTS, "checkpoint_steps", "Next: put local_folder on a faster disk."),
        (Limit.VALIDATION, "validation_fraction", "Next: use a larger batch_size."),
    ],
)
def test_what_would_gain_too_little_is_not_advised(limit: Limit, name: str, phrase: str):
    small = Prediction({name: 1}, Estimate(1.01, 0.9, 1.1), Estimate(1.01, 1.0, 1.02))
    settings = training_settings({"checkpoint_steps": 1})
    assert advice(Verdict((limit,), "It is so.", Load()), settings, {}, [small]).startswith(phrase)


def test_a_larger_batch_of_rows_is_advised_unless_it_would_gain_too_little():
    settings = training_settings({"example_kind": "table", "model": "mlp"})
    decoding, same = Verdict((Limit.DECODING,), "It is so.", Load()), Estimate(1, 1, 1)
    assert "a larger batch_size" in advice(decoding, settings, {})
    small = Prediction({"batch_size": 64}, same, same)
    assert advice(decoding, settings, {}, [small]) == "Next: use more cores for each accelerator."


@pytest.mark.parametrize(
    ("limit", "values"),
    [
        (Limit.BUFFER, {"prefetch_batches": 1024}),
        (Limit.CHECKPOINTS, {"checkpoint_minutes": 0}),
        (Limit.VALIDATION, {"validation_fraction": 0.1}),
    ],
)
def test_a_setting_that_can_give_no_more_is_not_advised(limit: Limit, values: dict):
    [name] = values
    assert name not in advice(Verdict((limit,), "It is so.", Load()), training_settings(values), {})


def test_each_limit_has_its_advice():
    verdict = Verdict((Limit.DECODING, Limit.OTHER_PROGRAMS), "It is so.", Load())
    assert re.search("prepare=resize.*; or stop the other programs", with_advice(verdict, training_settings({}), {}))


def test_every_limit_has_changes_of_which_the_last_one_has_no_condition():
    assert list(ADVICE) == list(Limit)
    assert not any(changes[-1].conditions for changes in ADVICE.values())


def test_no_advice_promises_a_factor_that_nobody_measured():
    assert not any(re.search(r"\btimes\b|\d ?x\b", each.text) for changes in ADVICE.values() for each in changes)
