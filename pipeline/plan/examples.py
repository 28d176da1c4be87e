"""How rows of a plan file become records of a shard: what a kind of examples (example_kind.py) gives to a writer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import google_crc32c

from pipeline.images.rejection import Rejection
from pipeline.plan.range_plan import RangePlan, ShardSpec
from pipeline.plan.results import ShardResult
from pipeline.records.tfrecord import Writer
from pipeline.system.progress import Advance

Item = TypeVar("Item")


def in_blocks(items: Iterable[Item], size_of: Callable[[Item], int], max_bytes: int) -> Iterator[list[Item]]:
    """Yield items, many at a time: a block ends with the item that fills it up to `max_bytes`.

    Blocks depend on the sizes alone, so that gzip always gives the same bytes.
    """
    block: list[Item] = []
    size = 0
    for item in items:
        block.append(item)
        size += size_of(item)
        del item  # It may be large, and would stay in memory until the next one is there.
        if size >= max_bytes:
            yield block
            block, size = [], 0
    if block:
        yield block


class Sums(ABC):
    """Hashes and rejected rows of one shard. Each kind adds its own counts."""

    def __init__(self) -> None:
        self.hashes = bytearray()
        """The hashes of each example (pipeline/dataset/content_hashes.py), in the order of the records."""
        self._rejected: list[dict[str, str]] = []

    def reject(self, name: str, rejection: Rejection) -> None:
        """Count a row that is in no record. `name` is what a person looks for."""
        self._rejected.append({"path": name, "reason": rejection.reason, "advice": rejection.advice})

    def result(self, spec: ShardSpec, records: Writer) -> ShardResult:
        """Return the result of the shard, whose writer is closed."""
        return ShardResult(
            name=spec.name,
            split=spec.split,
            bytes=records.size,
            crc32c=f"{records.crc32c:08x}",
            ends=records.ends.hex(),
            hashes_crc32c=f"{google_crc32c.value(bytes(self.hashes)):08x}",
            rejected=self._rejected,
            **self.facts(),
        )

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return the fields of `ShardResult` that depend on the kind."""


class Examples(Protocol):
    """The examples of one plan file."""

    def __init__(self, range_plan: RangePlan) -> None: ...

    def read(self, lines: Iterable[bytes]) -> Iterator[Any]:
        """Yield the rows of some lines, with what is needed to write them. They may be read ahead."""

    def sums(self) -> Any:
        """Return the sums of a new shard: a `Sums`."""

    def write(self, rows: Iterable[Any], records: Writer, sums: Any, advance: Advance) -> None:
        """Write rows that `read` yielded as records, or count them as rejected. Calls `advance` for every row."""
