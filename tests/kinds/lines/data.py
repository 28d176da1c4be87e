"""Lines of text as a kind of examples: a label, a tab, and a text. It proves that a kind is one folder."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pipeline.config.settings import Settings
from pipeline.config.workspace import snapshots_folder
from pipeline.dataset.manifest import Dataset
from pipeline.dataset.verify import Check
from pipeline.kinds.table.examples import RowExamples
from pipeline.plan.example_kind import ExampleKind
from pipeline.plan.examples import Examples
from pipeline.plan.range_plan import RangePlan
from pipeline.records.example import decode, encode
from pipeline.records.format import RecordFormat
from pipeline.records.tfrecord import frame
from pipeline.snapshot.listing import Listing, write_snapshot
from pipeline.snapshot.part import PART_LIMITS, blocks_of, write_parts
from pipeline.snapshot.raw_example import Origin, RawExample
from pipeline.storage import Place
from pipeline.system.progress import Show


class Lister:
    """Lists a file in one range."""

    examines: ClassVar[str] = "lines"
    memory: ClassVar[int] = 200_000_000

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def divide(
        self, folder: Place, max_ranges: int, examine_each: Any = None, starts_quickly: bool = False
    ) -> list[Any]:
        return []

    def examine(self, content: Any) -> Any:
        raise NotImplementedError("one task lists a file of lines")

    def list_all(self) -> Place:
        settings = self.settings
        folder, listing = snapshots_folder(settings), Listing("")
        rows = list(map(row_of, enumerate(settings.source.read_bytes().decode().splitlines())))
        listing.add(rows)
        listing.parts += write_parts(blocks_of(rows), folder, PART_LIMITS)
        return write_snapshot(
            listing,
            folder,
            source_uri=settings.source_uri,
            origin=Origin(str(settings.source.parent)),
            kind="lines",
            source_kind="lines",
            started_ns=time.time_ns(),
        )

    def list_range(self, content: Any, started_ns: int, show: Show) -> Listing:
        raise NotImplementedError("one task lists a file of lines")

    def join(self, started_ns: int, contents: Sequence[Any], listings: Iterable[Listing]) -> Place:
        raise NotImplementedError("one task lists a file of lines")

    def describe(self, content: Any) -> str:
        raise NotImplementedError("one task lists a file of lines")


def row_of(numbered: tuple[int, str]) -> RawExample:
    number, line = numbered
    label, _, text = line.partition("\t")
    record = frame(encode({"label": label.encode(), "text": text.encode()}))
    return RawExample(f"line {number:06d}", [label], "", len(record), None, "", [], 0, content=record)


class Lines(ExampleKind):
    """Lines of text."""

    noun = "line"
    source = "a text file"
    source_file = "text"
    is_model_checked = False
    has_pictures = False
    has_files = False
    lister = Lister

    def check_of(self, dataset: Dataset) -> Check:
        def problem_of(record: bytes, counted: Counter[int]) -> str:
            counted[dataset.labels.index(decode(record)["label"][0].decode())] += 1
            return ""

        return problem_of

    def examples(self, range_plan: RangePlan) -> Examples:
        return RowExamples(range_plan)

    def codecs(self, *, gzip: bool, perceptual_hash: bool) -> dict[str, str]:
        return {}

    def features(self, records: RecordFormat, facts: Mapping[str, Any]) -> dict[str, str]:
        return {"label": "bytes", "text": "bytes"}

    def key_reader(self, dataset: Dataset) -> None:
        return None


KIND = Lines()
