"""What is measured of tables: writers of shards, input pipelines, trainings, and the tasks of a build.

A job says `table` (a file) and `columns`, and, depending on the work: `settings` and `folder` (of a build), `dataset`
(the folder of a published dataset), `rows` (in an epoch), `batch_size`, `steps` (of an epoch of a training), and
`shards`. Every contender reads the columns of `benchmarks.harness.tables`. Imports are inside the functions, so that a
process pays for its own contender alone.

Input pipelines of tf.data, this project's and others, are opened once and repeat the rows without an end, as the guide
of tf.data and `make_csv_dataset` have it. A measured epoch takes a fixed number of their batches, so none of them
starts with empty buffers and new threads in each epoch.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from benchmarks.contenders import Job

Batches = Callable[[], Iterator[int]]
"""An epoch: the number of rows of each batch, as it arrives."""
SHUFFLE = 10_000
"""Rows in a shuffle buffer. This is the default of make_csv_dataset."""
WORKERS = 2
MANY = 1_000_000
"""More epochs than any measurement takes."""


# --- into shards ------------------------------------------------------------------------------------------------------


def table_build(job: Job) -> None:
    """Build the dataset of a table, up to the commit, by the command that a person runs."""
    from pipeline.__main__ import main

    if main(["build", *(part for name, value in job["settings"].items() for part in ("--set", f"{name}={value}"))]):
        raise RuntimeError("the build failed: see the log")


def table_stages(job: Job) -> dict[str, float]:
    """Return the seconds of each stage of the same build. The schema is also a part of `extract`."""
    begin = time.perf_counter()
    from pipeline.config.allowed import open_unless_set

    open_unless_set()
    from pipeline.config.settings import settings_from
    from pipeline.plan.options import arrange_of
    from pipeline.stages.extract import extract
    from pipeline.stages.shard import plan_shards, write_planned
    from pipeline.stages.upload import publish
    from pipeline.tables.files import table_files
    from pipeline.tables.infer import infer_schema
    from pipeline.tables.options import table_options
    from pipeline.tables.source import read_table

    seconds = {"imports": time.perf_counter() - begin}
    settings = settings_from(job["settings"])
    seconds["read"], _ = _timed(lambda: sum(raw.batch.num_rows for raw in read_table(table_files(settings.source))))
    columns = table_options(settings, arrange_of(settings)).columns
    seconds["schema"], _ = _timed(lambda: infer_schema(read_table(table_files(settings.source)), columns))
    seconds["extract"], snapshot = _timed(lambda: extract(settings))
    one_each = settings.model_copy(update={"shards_per_task": 1})
    seconds["plan"], plan = _timed(lambda: plan_shards(one_each, snapshot))
    seconds["write"], _ = _timed(lambda: write_planned(plan, settings))
    seconds["publish"], _ = _timed(lambda: publish(plan, settings))
    return seconds


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    made = work()
    return time.perf_counter() - begin, made


def table_pandas_writer(job: Job) -> None:
    """Write as tutorials do, but without their slowest parts: pandas, tf.train.Example and tf.io.TFRecordWriter."""
    import pandas as pd
    import tensorflow as tf

    path = job["table"]
    frame = pd.read_csv(path) if path.endswith(".csv") else pd.read_parquet(path)
    features = [_feature_function(tf, name) for name in frame.columns]
    writers = [tf.io.TFRecordWriter(f"{job['folder']}/{number}.tfrecord") for number in range(job["shards"])]
    columns = [_without_missing(frame[name]) for name in frame.columns]
    # `iterrows`, which tutorials call, would make a Series of each row.
    for number, row in enumerate(zip(*columns, strict=True)):
        entries = {
            name: feature(value)
            for name, feature, value in zip(frame.columns, features, row, strict=True)
            if value is not None
        }
        example = tf.train.Example(features=tf.train.Features(feature=entries))
        writers[number % len(writers)].write(example.SerializeToString())
    for writer in writers:
        writer.close()


def _without_missing(series: Any) -> list[Any]:
    """Return the values of a column of pandas; None for a missing one."""
    return series.astype(object).where(series.notna(), None).tolist()  # type: ignore[no-any-return]


def _feature_function(tf: Any, name: str) -> Callable[[Any], Any]:
    """Return what makes a feature of a value of this column."""
    if "_float" in name:
        return lambda value: tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
    if "_text" in name or name == "label":
        return lambda value: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode()]))
    return lambda value: tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def table_tfds_writer(job: Job) -> None:
    """Write with the writer under the builders of TensorFlow Datasets. Missing values become NaN and empty texts."""
    import numpy as np
    import tensorflow_datasets as tfds
    from pyarrow import csv, parquet
    from tensorflow_datasets.core import example_serializer, file_adapters, naming
    from tensorflow_datasets.core import writer as writers
    from tensorflow_datasets.core.utils import shard_utils

    path = job["table"]
    table = csv.read_csv(path) if path.endswith(".csv") else parquet.read_table(path)
    kinds = {name: _kind(name) for name in table.column_names}
    dtypes = {"float": np.float32, "int": np.int64}
    features = tfds.features.FeaturesDict(
        {
            name: tfds.features.Text() if kind == "text" else tfds.features.Scalar(dtypes[kind])
            for name, kind in kinds.items()
        }
    )
    template = naming.ShardedFileTemplate(
        data_dir=Path(job["folder"]), dataset_name="table", split="train", filetype_suffix="tfrecord"
    )
    writer = writers.Writer(
        example_serializer.ExampleSerializer(features.get_serialized_info()),
        template,
        hash_salt="train",
        disable_shuffling=False,
        example_writer=writers.ExampleWriter(file_adapters.FileFormat.TFRECORD),
        shard_config=shard_utils.ShardConfig(num_shards=job["shards"]),
    )
    missing = {"float": float("nan"), "text": "", "int": 0}
    for row in table.to_pylist():
        filled = {name: missing[kinds[name]] if value is None else value for name, value in row.items()}
        writer.write(filled["id"], features.encode_example(filled))
    writer.finalize()


def _kind(name: str) -> str:
    """Return float, int or text for the name of a column."""
    return "float" if "_float" in name else "text" if "_text" in name or name == "label" else "int"


# --- out of shards ----------------------------------------------------------------------------------------------------


def read_tenfold_rows(job: Job) -> Batches:
    """This project's batches, which are one dataset for all epochs; each is filled up with rows of no weight."""
    import numpy as np

    from pipeline.input import one_ahead
    from pipeline.system.malloc import keep_large_blocks

    keep_large_blocks()  # As a training does: otherwise, malloc returns the memory of each batch to the system.
    batches = iter(one_ahead(tenfold_dataset(job)))
    return lambda: (int(np.count_nonzero(weights)) for _, _, weights in islice(batches, _steps(job)))


def _steps(job: Job) -> int:
    """Return the number of batches that hold an epoch."""
    return -(-job["rows"] // job["batch_size"])  # type: ignore[no-any-return]


def tenfold_dataset(job: Job) -> Any:
    """Return the training batches of more epochs than any measurement takes."""
    from pipeline.input import BatchOptions, training_batches

    options = BatchOptions(image_size=64, batch_size=job["batch_size"])
    return training_batches(Path(job["dataset"]), options, epochs=MANY)


def read_single_examples(job: Job) -> Batches:
    """Return the same shards, one record parsed at a time."""
    return _in_epochs(single_example_dataset(job), job)


def _in_epochs(dataset: Any, job: Job) -> Batches:
    """Return epochs of a dataset without an end, whose batches are all full: up to a batch more than the rows."""
    batches = iter(dataset)
    return lambda: (int(labels.shape[0]) for _, labels in islice(batches, _steps(job)))


def single_example_dataset(job: Job) -> Any:
    """Return batches of the records of our shards without an end, as the guide of tf.data parses them."""
    import tensorflow as tf

    dtypes = {"float": tf.float32, "int": tf.int64, "text": tf.string}
    missing = {"float": float("nan"), "int": 0, "text": ""}
    spec = {
        name: tf.io.FixedLenFeature([], dtypes[_kind(name)], missing[_kind(name)])
        for name in [*job["features"], "label"]
    }

    def parse(serialized: Any) -> tuple[Any, Any]:
        features = tf.io.parse_single_example(serialized, spec)
        return features, features.pop("label")

    paths = sorted(str(path) for path in Path(job["dataset"]).glob("train-*.tfrecord"))
    records = tf.data.TFRecordDataset(paths, num_parallel_reads=tf.data.AUTOTUNE).shuffle(SHUFFLE)
    # After `shuffle`, so that each epoch has every row, and before `batch`, so that no batch is smaller.
    parsed = records.repeat().map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return parsed.batch(job["batch_size"]).prefetch(tf.data.AUTOTUNE)


def read_csv_dataset(job: Job) -> Batches:
    """Return `tf.data.experimental.make_csv_dataset`."""
    return _in_epochs(csv_dataset(job), job)


def csv_dataset(job: Job) -> Any:
    """Return batches of the CSV file without an end, with NaN and empty texts for missing values."""
    import tensorflow as tf

    missing: Mapping[str, Any] = {"float": float("nan"), "int": tf.int64, "text": ""}
    names = [*job["features"], "label"]
    return tf.data.experimental.make_csv_dataset(
        job["table"],
        job["batch_size"],
        label_name="label",
        select_columns=names,
        column_defaults=[missing[_kind(name)] for name in names],
        num_epochs=None,
        shuffle_buffer_size=SHUFFLE,
        num_parallel_reads=WORKERS,
        prefetch_buffer_size=tf.data.AUTOTUNE,
    )


def read_pandas(job: Job) -> Batches:
    """Return slices of a frame in memory, shuffled for each epoch, as arrays of NumPy."""
    import numpy as np
    import pandas as pd

    frame = pd.read_csv(job["table"]).drop(columns="id")
    size = job["batch_size"]

    def batches() -> Iterator[int]:
        shuffled = frame.iloc[np.random.default_rng(0).permutation(len(frame))]
        for start in range(0, len(shuffled), size):
            batch = shuffled.iloc[start : start + size]
            arrays = {name: batch[name].to_numpy() for name in batch.columns}
            yield len(arrays["label"])

    return batches


def read_pytorch_rows(job: Job) -> Batches:
    """Return batches of a DataLoader with workers that take rows from a Parquet file in memory, a batch at a time.

    The workers are persistent. A loop over a DataLoader is an epoch, so each epoch begins with empty queues.
    """
    import torch
    from pyarrow import parquet
    from torch.utils.data import DataLoader, Dataset

    table = parquet.read_table(job["table"].replace(".csv", ".parquet")).drop_columns(["id"]).combine_chunks()

    class Rows(Dataset):
        def __len__(self) -> int:
            return table.num_rows  # type: ignore[no-any-return]

        def __getitems__(self, indices: Sequence[int]) -> dict[str, Any]:
            return {name: _column_for_torch(torch, column) for name, column in _columns(table.take(indices))}

    loader = DataLoader(
        Rows(), job["batch_size"], shuffle=True, num_workers=WORKERS, collate_fn=_same, persistent_workers=True
    )
    return lambda: (len(batch["label"]) for batch in loader)


def _columns(table: Any) -> Iterator[tuple[str, Any]]:
    return zip(table.column_names, table.columns, strict=True)


def _column_for_torch(torch: Any, column: Any) -> Any:
    """Return a tensor of a column of numbers, and a list of a column of texts, of which PyTorch has no tensors."""
    import pyarrow as pa

    return column.to_pylist() if pa.types.is_string(column.type) else torch.from_numpy(column.to_numpy().copy())


def _same(batch: Any) -> Any:
    return batch


def _one_epoch(pipeline: Callable[[Job], Batches], job: Job) -> None:
    """Take every batch of an epoch; timed from outside."""
    if "opened" not in job:
        job["opened"] = pipeline(job)
    _require_rows(sum(job["opened"]()), job)


def _require_rows(rows: int, job: Job) -> None:
    """Raise ValueError if an epoch has fewer than `rows` rows, or more than the last batch is filled up with."""
    if not job["rows"] <= rows < job["rows"] + job["batch_size"]:
        raise ValueError(f"gave {rows} of {job['rows']} rows")


# --- trainings --------------------------------------------------------------------------------------------------------


class Source(NamedTuple):
    """What a model trains on."""

    batches: Any
    """A dataset without an end."""
    steps: int
    """Steps of an epoch."""


def fit_on_tenfold(job: Job) -> Source:
    """Return the batches of this project as they are.

    An epoch has all training rows. The other sources take only as many as fill whole batches.
    """
    from pipeline.dataset.manifest import load
    from pipeline.input import steps_per_epoch

    return Source(tenfold_dataset(job), steps_per_epoch(load(Path(job["dataset"])), job["batch_size"]))


def fit_on_single_examples(job: Job) -> Source:
    """Return the records of the same shards, parsed one by one, in the form that the model takes."""
    return Source(_as_the_model_takes(job, single_example_dataset(job)), job["steps"])


def fit_on_csv(job: Job) -> Source:
    """Return the rows of the CSV file in the form that the model takes."""
    return Source(_as_the_model_takes(job, csv_dataset(job)), job["steps"])


def _as_the_model_takes(job: Job, batches: Any) -> Any:
    """Add the masks of missing values, and make ids of the labels."""
    import tensorflow as tf

    with_mask = [name for name in job["features"] if name.endswith("missing")]

    def prepared(features: dict[str, Any], label: Any) -> tuple[Any, ...]:
        features = dict(features)
        for name in with_mask:
            value = features[name]
            is_present = value != "" if "_text" in name else ~tf.math.is_nan(value)
            features[name] = value if "_text" in name else tf.where(is_present, value, 0.0)
            features[f"{name}_is_present"] = tf.cast(is_present, tf.float32)
        return features, tf.cast(label == "yes", tf.int32), tf.ones_like(label == "yes", tf.float32)

    return batches.map(prepared, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _fit_one_epoch(open_source: Callable[[Job], Source], job: Job) -> None:
    """Train the project's model of tables for one epoch; timed from outside."""
    if "next_epoch" not in job:
        job["next_epoch"] = _endless_fit(_model(job), open_source(job))
    _require_rows(job["next_epoch"](), job)


def _endless_fit(model: Any, source: Source) -> Callable[[], int]:
    """Return a function that has a `Model.fit` train its next epoch, and returns the number of rows.

    Each call of `Model.fit` opens its dataset again. So there is one call for all epochs, in a thread. It waits before
    each epoch.
    """
    import keras

    begin: SimpleQueue[None] = SimpleQueue()
    ended: SimpleQueue[int | Exception] = SimpleQueue()
    waiting = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: begin.get(), on_epoch_end=lambda epoch, logs: ended.put(int(logs["rows"]))
    )

    def fit() -> None:
        try:
            model.fit(source.batches, epochs=MANY, steps_per_epoch=source.steps, verbose=0, callbacks=[waiting])
        except Exception as error:  # noqa: BLE001 - the other thread raises it
            ended.put(error)

    def next_epoch() -> int:
        begin.put(None)
        rows = ended.get()
        if isinstance(rows, Exception):
            raise rows
        return rows

    Thread(target=fit, daemon=True).start()
    return next_epoch


def _model(job: Job) -> Any:
    import keras

    from pipeline.dataset.manifest import load
    from pipeline.training.model.models import ModelOptions
    from pipeline.training.model.table_model import build_table_model

    model = build_table_model(ModelOptions("mlp"), load(Path(job["dataset"])))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    class Rows(keras.metrics.Metric):
        """Number of rows, without padding."""

        def __init__(self) -> None:
            super().__init__(name="rows")
            self._rows = self.add_weight(initializer="zeros")

        def update_state(self, labels: Any, logits: Any, sample_weight: Any) -> None:
            self._rows.assign_add(keras.ops.sum(sample_weight))

        def result(self) -> Any:
            return self._rows.value

    model.compile(keras.optimizers.Adam(1e-3), loss, weighted_metrics=[Rows()], jit_compile=False)
    return model


# --- the tasks of a build ---------------------------------------------------------------------------------------------


def table_task(job: Job) -> None:
    """Do one task of a build in this process, as Airflow does. Its name is in `task`.

    `extract` divides a large table, and lists a small one. `extract_range` lists the first range of a large table.
    `other_ranges` lists the others in several processes. `plan` makes the plan, and `write` writes the first shard.
    """
    from pipeline.config.allowed import open_unless_set

    open_unless_set()
    from pipeline.config.settings import settings_from

    settings, folder = settings_from(job["settings"]), Path(job["folder"])
    _TASKS[job["task"]](settings, folder)


def _extract(settings: Any, folder: Path) -> None:
    from pipeline.stages.extract import divide, list_all

    ranges = divide(settings)
    (folder / "ranges").write_text("\n".join(ranges))
    if not ranges:
        (folder / "snapshot").write_text(str(list_all(settings)))


def _extract_range(settings: Any, folder: Path) -> None:
    from pipeline.stages.extract import list_range_file

    for path in _ranges(folder)[:1]:
        list_range_file(path)


def _other_ranges(settings: Any, folder: Path) -> None:
    from pipeline.config.allowed import allowlists
    from pipeline.engines import engine_named
    from pipeline.engines.task import Task
    from pipeline.stages.extract import join, list_range_file

    if ranges := _ranges(folder):
        engine_named(settings.engine)(Task(list_range_file, allowlists()), ranges[1:], lambda *_: None)
        (folder / "snapshot").write_text(str(join(settings, ranges)))


def _ranges(folder: Path) -> list[str]:
    return (folder / "ranges").read_text().split()


def _plan(settings: Any, folder: Path) -> None:
    from pipeline.stages.shard import plan_shards

    (folder / "plan").write_text(str(plan_shards(settings, Path((folder / "snapshot").read_text()))))


def _write(settings: Any, folder: Path) -> None:
    from pipeline.plan.plan import load_plan
    from pipeline.sharding.write import write_plan_file

    write_plan_file(load_plan(Path((folder / "plan").read_text())).ranges[0])


_TASKS: Mapping[str, Callable[[Any, Path], None]] = {
    "extract": _extract,
    "extract_range": _extract_range,
    "other_ranges": _other_ranges,
    "plan": _plan,
    "write": _write,
}


TABLES: dict[str, Callable[[Job], Any]] = {
    **{work.__name__: work for work in (table_build, table_stages, table_pandas_writer, table_tfds_writer, table_task)},
    **{
        pipeline.__name__: partial(_one_epoch, pipeline)
        for pipeline in (read_tenfold_rows, read_single_examples, read_csv_dataset, read_pandas, read_pytorch_rows)
    },
    **{
        source.__name__: partial(_fit_one_epoch, source)
        for source in (fit_on_tenfold, fit_on_single_examples, fit_on_csv)
    },
}
