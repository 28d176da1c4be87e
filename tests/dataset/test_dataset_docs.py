"""The pages about a dataset: their example readers run as written, and their table has all features of a record."""

import json
import re
import subprocess
import sys
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from pipeline.dataset.manifest import list_shards, load, save
from pipeline.records.format import RecordFormat
from tests.published import LABELS, files_of, publish_case
from tests.readers_environment import run_with_readers

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference" / "dataset.md").read_text("utf-8")
GUIDE = (DOCS / "how-to" / "read-shards.md").read_text("utf-8")
OPENING, *READERS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
READ = [
    ("from pipeline.dataset.shards import Shards", "label_offset", r"\(\d+, \d+, 3\) LABEL"),
    ("import tensorflow as tf", "label_offset", r"\(\d+, \d+, 3\) LABEL"),
    ('compression_type="GZIP"', "gzip", r"\(\d+, \d+, 3\) LABEL"),
    ("image/object/bbox/", "boxes", r"\(\d+, \d+, 3\) LABEL( LABEL)* \([012], 4\)"),
    ('np.asarray(Image.open(io.BytesIO(features["image/encoded"])', "label_offset", r"\(\d+, \d+, 3\) LABEL"),
    ("shard=(worker, workers)", "few shards", "[01] LABEL"),
    ("import tensorflow_datasets", "label_offset", r"\(\d+, \d+, 3\) LABEL"),
]
"""For each reader, in the order of the page: words that only it contains, its dataset, a line of its output."""


@pytest.mark.parametrize(("phrase", "name", "line"), READ, ids=[phrase for phrase, _, _ in READ])
def test_a_reader_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, phrase: str, name: str, line: str
):
    [reader] = [code for (other, *_), code in zip(READ, READERS, strict=True) if other == phrase]
    assert phrase in reader
    folder = publish_case(name, tmp_path)[0]
    monkeypatch.setenv("DATASET", str(folder))
    run(OPENING + reader)
    check_printed(capfd.readouterr().out.splitlines(), folder, line)


@pytest.mark.long
@pytest.mark.parametrize("reader", ["dali", "grain"])
def test_a_reader_of_another_environment_runs_as_written(reader: str, tmp_path: Path):
    [code] = re.findall(rf"```{{code-block}} python\n:class: {reader}\n\n(.*?)```", GUIDE, re.DOTALL)
    folder = publish_case("label_offset", tmp_path)[0]
    printed = run_with_readers(OPENING + code, DATASET=str(folder)).decode().splitlines()
    check_printed(printed, folder, r"\(\d+, \d+, 3\) LABEL")


def check_printed(printed: list[str], folder: Path, line: str) -> None:
    """Compare what a reader printed with the training split: a line of this form for each example."""
    label = f"({'|'.join(map(re.escape, LABELS))})"
    assert [text for text in printed if not re.fullmatch(line.replace("LABEL", label), text)] == []
    train = load(folder).splits["train"]
    assert len(printed) == sum(shard.examples for shard in train.shards)
    assert Counter(re.findall(label, "\n".join(printed))) == train.classes


def test_the_opening_of_the_readers_finds_shards_in_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = publish_case("keep", tmp_path)[0]
    dataset = load(folder)
    (folder / "dataset.json").unlink()
    save(folder, list_shards(folder, dataset, max_listed=4), {})
    monkeypatch.setenv("DATASET", str(folder))
    names: dict[str, Any] = {}
    exec(OPENING, names)
    assert names["shards"] == [str(folder / shard.name) for shard in dataset.splits["train"].shards]


def run(code: str) -> None:
    """Run code in this process, which imports TensorFlow once. The snippet for `tfrecord` needs its own process."""
    if "from tfrecord" in code:
        subprocess.run([sys.executable, "-c", code], check=True)
    else:
        exec(compile(code, "docs/how-to/read-shards.md", "exec"), {"__name__": "snippet"})


def test_the_checksum_is_computed_as_the_page_says(tmp_path: Path):
    [formula] = re.findall(r"`(google_crc32c\.value\(.*?\))`", PAGE)
    described = json.loads((publish_case("boxes", tmp_path)[0] / "dataset.json").read_text())
    checksum = described.pop("checksum")
    names = {"google_crc32c": google_crc32c, "json": json, "described": described}
    assert f"{eval(formula, names):08x}" == checksum


@pytest.mark.parametrize(("feature_keys", "column"), [("model_garden", 0), ("plain", 1)])
def test_the_table_has_all_features_of_a_record(feature_keys: str, column: int):
    rows = [
        [cell.strip(" `") for cell in row.split("|")[1:4]] for row in PAGE.splitlines() if row.startswith("| `image/")
    ]
    features = RecordFormat(feature_keys=feature_keys, boxes=True, synsets=True).features()
    assert {row[column]: row[2] for row in rows} == features


@pytest.mark.parametrize("name", ["keep", "gzip", "boxes"])
def test_the_list_of_files_is_complete(name: str, tmp_path: Path):
    patterns = re.findall(r"`(?:index/)?([^`/ ]*\.[^`/ ]+)`", PAGE.partition("## How shards are written")[0])
    names = files_of(publish_case(name, tmp_path)[0])
    alike = {re.sub(r"^[a-z]+-\d+-of-\d+", "train-00000-of-00010", name).removesuffix(".gz") for name in names}
    assert [name for name in alike if not any(fnmatch(name, pattern) for pattern in patterns)] == []
