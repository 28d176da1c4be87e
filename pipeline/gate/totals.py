"""The totals of a dataset, from the results of its shards.

A result has thousands of counts, and a dataset can have a million shards. So the results are added one after another,
and only the list of the shards grows with their number. With it, `commit` needs 0.7 kB of memory for each shard.
"""

import logging
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from pipeline.dataset.manifest import Split
from pipeline.dataset.partitions import LATEST
from pipeline.dataset.shard_lists import Shard
from pipeline.errors import DatasetError, SourceError
from pipeline.gate.statistics import Statistics
from pipeline.plan.example_kind import kind_of
from pipeline.plan.results import ShardResult
from pipeline.snapshot.part import SPLITS, TEST, TRAIN, VALIDATION
from pipeline.snapshot.snapshot import Snapshot
from pipeline.system.wording import kind_of_reason

_log = logging.getLogger(__name__)


class SplitTotals:
    """The totals of one split."""

    def __init__(self) -> None:
        self.examples = self.bytes = 0
        self.classes: Counter[str] = Counter()
        self.shards: list[Shard] = []
        self.hashes_crc32c = array("I")
        """CRC32C of the file of content hashes of each shard."""

    def add(self, result: ShardResult) -> None:
        """Add the result of a shard of this split."""
        self.examples += result.examples
        self.bytes += result.bytes
        self.classes.update(result.classes)
        self.shards.append(
            Shard(
                name=result.name,
                examples=result.examples,
                bytes=result.bytes,
                crc32c=result.crc32c,
                ends=result.ends,
                index_bytes=result.index_bytes,
                index_crc32c=result.index_crc32c,
            )
        )
        self.hashes_crc32c.append(int(result.hashes_crc32c, 16))

    def as_split(self) -> Split:
        """Return the split for `dataset.json`."""
        return Split(self.examples, self.bytes, dict(sorted(self.classes.items())), tuple(self.shards))


class Totals:
    """The totals of all splits. The splits are in the order of SPLITS, and the shards in the order of the plan."""

    def __init__(self, add_rejected: Callable[[Mapping[str, str]], None]) -> None:
        """Begin with no shard. `add_rejected` gets each rejected example. The totals only count them."""
        self._add_rejected = add_rejected
        self.splits = {split: SplitTotals() for split in SPLITS}
        self.statistics = Statistics()
        self.rejected = self.misnamed = 0
        self.profiles: Counter[str] = Counter()
        self.perceptual_hashes: list[tuple[str, int, str]] = []
        """Key, hash and split of each image. Empty if near-duplicates are not looked for."""

    def add(self, result: ShardResult) -> None:
        """Add the result of a shard."""
        self.splits[result.split].add(result)
        self.statistics.merge(Statistics.from_json(result.statistics))
        self.misnamed += result.misnamed
        self.profiles.update(result.profiles)
        self.perceptual_hashes.extend((key, value, result.split) for key, value in result.perceptual_hashes)
        self.rejected += len(result.rejected)
        for row in result.rejected:
            self._add_rejected(row)

    @property
    def examples(self) -> int:
        """Number of examples in all splits."""
        return sum(split.examples for split in self.splits.values())


def require_all(snapshot: Snapshot, totals: Totals) -> None:
    """Raise DatasetError unless every listed example is in one record, or is rejected with a reason."""
    if totals.examples + totals.rejected != snapshot.listed:
        raise DatasetError(
            f"{snapshot.listed} examples were listed, but {totals.examples} were written and {totals.rejected} "
            "rejected: run the shard stage again"
        )


def require_examples(snapshot: Snapshot, totals: Totals, rejected: Iterable[Mapping[str, str]], partition: str) -> None:
    """Raise SourceError if no example of a split that must have some was written. It says why most were not.

    These are training and validation, and test if examples were planned for it. A date may lack test examples, with a
    warning. Otherwise, a date of few examples would fail for a single damaged one.
    """
    for split in (TRAIN, VALIDATION, *([TEST] if totals.splits[TEST].shards else [])):
        if totals.splits[split].examples:
            continue
        kind = kind_of(snapshot)
        frequent = Counter(kind_of_reason(row["reason"]) for row in rejected).most_common(1)
        of_reason = f", {frequent[0][1]} of them because {frequent[0][0]!r}" if frequent else ""
        has_none = (
            f"no usable {split} {kind.noun} in {snapshot.source_uri!r}: {totals.rejected} of {snapshot.listed} "
            f"{kind.nouns} were rejected{of_reason}"
        )
        if split == TEST and partition != LATEST:
            # A window of many dates has the test examples of the others.
            _log.warning(
                "%s. So a training on %s alone is judged on validation %s. `retrain` needs a window with usable test "
                "%s of other dates, unless test_fraction selected them",
                has_none,
                partition,
                kind.nouns,
                kind.nouns,
            )
            continue
        are_all_rejected = split == TEST or totals.rejected == snapshot.listed
        advice = "repair or replace them" if are_all_rejected else f"add {kind.nouns} or set validation_fraction"
        raise SourceError(f"{has_none}; {advice}")
