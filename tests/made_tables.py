"""Datasets of a table for tests: records of `tf.train.Example` and a `dataset.json`, without a build."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.dataset.manifest import Dataset, Split, save
from pipeline.dataset.shard_lists import Shard
from pipeline.kinds.table.quantiles import MAX_CODED, quantiles_of
from pipeline.records import tfrecord
from pipeline.records.format import RecordFormat
from pipeline.storage import crc32c_of
from pipeline.tables.schema import Column, Schema, Task

Row = Mapping[str, Any]
"""The values of a row by column. None is a missing value."""


def make_table(
    folder: Path, columns: Sequence[Column], splits: Mapping[str, Sequence[Row]], task: Task, shards: int = 4
) -> Path:
    """Publish a dataset of a table in `folder`, and return it. Each split is divided into `shards` files."""
    folder.mkdir(parents=True)
    label = next(column for column in columns if column.role == "label")
    train = splits["train"]
    labels: tuple[str, ...] = ()
    if task == "classification":
        labels = tuple(sorted({str(row[label.name]) for rows in splits.values() for row in rows}))
    preprocessing = {
        column.name: facts_of(column, [row[column.name] for row in train])
        for column in columns
        if column.role == "feature" or (column == label and task == "regression")
    }
    schema = Schema(columns, sum(map(len, splits.values())), task).to_json()
    dataset = Dataset(
        name="table",
        version="1" * 16,
        labels=labels,
        texts={},
        records=RecordFormat(),
        features={},
        splits={name: _write(folder, name, rows, columns, label, labels, shards) for name, rows in splits.items()},
        rejected={"count": 0, **_list(folder, "rejected.jsonl")},
        duplicates=_list(folder, "duplicates.jsonl"),
        source={"uri": "made", "listed": schema["rows"]},
        quality={"unit": "row"},
        settings={},
        software={},
        table={**schema, "preprocessing": preprocessing},
        kind="table",
    )
    save(folder, dataset, {"rejected.jsonl": b"", "duplicates.jsonl": b""})
    return folder


def facts_of(column: Column, values: Sequence[Any]) -> dict[str, Any]:
    """Return what `preprocessing` says of a column."""
    known = [value for value in values if value is not None]
    if column.length:
        vectors = np.array(known, np.float64)
        mean, deviation = vectors.mean(axis=0).tolist(), vectors.std(axis=0).tolist()
        return {"count": len(known), "mean": mean, "deviation": deviation}
    flat = [each for value in known for each in value] if column.is_list else known
    if column.type == "bool" or (column.is_list and column.type != "string"):
        return {}
    if column.type == "string":
        ordered = sorted(Counter(flat).items(), key=lambda pair: (-pair[1], pair[0]))
        return {"vocabulary": [value for value, _ in ordered]}
    if not flat:
        return {"count": 0, "mean": None, "deviation": None}
    numbers = np.array(flat, np.float64)
    facts = {"count": len(flat), "mean": float(np.mean(flat)), "deviation": float(np.std(flat))}
    facts["sampled"] = len(numbers)
    facts["quantiles"] = quantiles_of(numbers, np.ones(len(numbers))).tolist()
    if column.type == "int" and len(set(flat)) <= MAX_CODED:
        facts["values"] = sorted(set(flat))
    return facts


def encoded(row: Row, columns: Sequence[Column]) -> bytes:
    """Return the record of a row."""
    features = {}
    for column in columns:
        if (value := row[column.name]) is not None:
            features[column.name] = _feature(column, value if column.is_list else [value])
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def _feature(column: Column, values: Sequence[Any]) -> tf.train.Feature:
    if column.type == "string":
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode() for value in values]))
    if column.type == "float":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _write(
    folder: Path,
    split: str,
    rows: Sequence[Row],
    columns: Sequence[Column],
    label: Column,
    labels: Sequence[str],
    shards: int,
) -> Split:
    size = math.ceil(len(rows) / shards)
    written = []
    for number in range(shards):
        path = folder / f"{split}-{number:05d}-of-{shards:05d}.tfrecord"
        part = rows[number * size : (number + 1) * size]
        path.write_bytes(b"".join(tfrecord.frame(encoded(row, columns)) for row in part))
        ends = tfrecord.ends_of(path).hex()
        written.append(Shard(path.name, len(part), path.stat().st_size, f"{crc32c_of(path):08x}", ends))
    classes = Counter(str(row[label.name]) for row in rows) if labels else {}
    return Split(len(rows), sum(shard.bytes for shard in written), dict(classes), tuple(written))


def _list(folder: Path, name: str) -> dict[str, Any]:
    return {"file": name, "bytes": 0, "crc32c": "00000000"}
