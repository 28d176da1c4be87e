"""While an image is read, no earlier large one is in memory."""

import io
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
from PIL import Image

from pipeline.config.settings import Settings
from pipeline.kinds.images.examples import ImageExamples
from pipeline.plan.plan import load_plan
from pipeline.plan.range_plan import load_range
from pipeline.records.tfrecord import RecordWriter
from pipeline.snapshot.raw_example import RawExample
from pipeline.snapshot.raw_reader import BATCH_BYTES, ReadImage
from pipeline.stages.shard import plan_shards
from tests.snapshots import take_snapshot


def large_jpeg(seed: int) -> bytes:
    picture = Image.frombytes("RGB", (256, 256), random.Random(seed).randbytes(256 * 256 * 3))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def test_a_large_image_is_let_go_before_the_next_one_is_read(settings: Settings, tmp_path: Path):
    examples = ImageExamples(load_range(Path(load_plan(plan_shards(settings, take_snapshot(settings))).ranges[0])))
    users: list[int] = []

    def rows() -> Iterator[ReadImage]:
        for number in range(3):
            raw = large_jpeg(number)
            assert len(raw) > BATCH_BYTES
            alone = sys.getrefcount(raw)
            crc32c = google_crc32c.value(raw)
            yield RawExample(f"cats/{number}.jpg", ["cats"], "", len(raw), crc32c, "", [], 0), raw
            users.append(sys.getrefcount(raw) - alone)

    with open(tmp_path / "shard", "wb") as stream:
        examples.write(rows(), RecordWriter(stream.fileno()), examples.sums(), lambda _: None)
    assert users == [0, 0, 0]
