"""What listing, planning, writing and publishing do in another way for images than for the rows of a table.

This module is light to import, like all modules of a shard task. Only the kind of the plan is imported.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, cast

from pipeline.config.example_kinds import data_of
from pipeline.dataset.manifest import Dataset
from pipeline.images.examine import Rules
from pipeline.plan.examples import Examples
from pipeline.plan.range_plan import RangePlan
from pipeline.records.format import RecordFormat
from pipeline.snapshot.raw_example import RawExample
from pipeline.storage import Place

if TYPE_CHECKING:  # They import NumPy and Pydantic.
    from pipeline.config.settings import Settings
    from pipeline.dataset.verify import Check
    from pipeline.plan.order import Order
    from pipeline.snapshot.listing import ExamineEach, Listing
    from pipeline.snapshot.snapshot import Snapshot
    from pipeline.system.progress import Show


class FittingValues(NamedTuple):
    """The values of a setting that fit some examples."""

    examples: str
    """The examples in words."""
    values: Sequence[Any]
    why: str
    """Why no other value fits."""


class Conflict(NamedTuple):
    """Why two versions cannot be one dataset."""

    first: int
    second: int
    """The positions of the versions."""
    difference: str


class Lister(Protocol):
    """How the source of a kind of examples is listed. It is made with settings that were checked.

    All methods but `describe` raise SourceError if the source cannot be read, has no example that can be used, or
    changes meanwhile.
    """

    examines: ClassVar[str]
    """What `examine` reads, in a word that shows its progress."""
    memory: ClassVar[int]
    """About how many bytes a process takes that lists a range, with room to spare."""

    def divide(
        self, folder: Place, max_ranges: int, examine_each: "ExamineEach | None" = None, starts_quickly: bool = False
    ) -> list[Any]:
        """Return the ranges of a large source, as JSON; at most one if it is small.

        Args:
            folder: Where they may write a file for all ranges.
            max_ranges: At most this many ranges are returned.
            examine_each: Calls `examine` for each of some contents, in several processes. None: there are none.
            starts_quickly: Whether small ranges pay, because processes of this machine list them.
        """

    def examine(self, content: Any) -> Any:
        """Return what `divide` must know of a part of the source, as JSON. It is called only by `examine_each`."""

    def list_all(self) -> Place:
        """List the whole source in this process, and return the file of the snapshot."""

    def list_range(self, content: Any, started_ns: int, show: "Show") -> "Listing":
        """List one range, which `divide` returned. The source was divided at `started_ns`, in Unix nanoseconds."""

    def join(self, started_ns: int, contents: Sequence[Any], listings: "Iterable[Listing]") -> Place:
        """Write the snapshot that consists of all ranges, in their order, and return its file. No row is read."""

    def describe(self, content: Any) -> str:
        """Return the start of a range in words. The result is empty for the first range."""


ListerClass = Callable[["Settings"], Lister]
"""Makes the lister of some settings, which were checked."""


class ExampleKind(ABC):
    """A kind of examples.

    The facts of a kind are the field `table` of a plan and of `dataset.json`. A kind whose records describe themselves
    has none, so the methods about facts return nothing unless a kind overrides them.
    """

    noun: ClassVar[str]
    """What one example is called in messages."""
    source: ClassVar[str]
    """What `source_uri` names, in words."""
    source_file: ClassVar[str]
    """What a source that is a file is called."""
    is_model_checked: ClassVar[bool]
    """Whether a user's own model can be built before the shards are planned."""
    has_pictures: ClassVar[bool]
    """Whether an example is a picture, which cards and reports can show."""
    has_files: ClassVar[bool]
    """Whether the rows of a plan name files of the source. Others carry their content."""
    few_examples: ClassVar[int]
    """One core checks and writes this many usual examples in one to two seconds, without `prepare`."""

    @property
    def nouns(self) -> str:
        """What several examples are called in messages."""
        return f"{self.noun}s"

    def why_other_kind(self, source: Place) -> str:
        """Return why a source has examples of another kind, with what to set; empty if it may have some of this kind.

        Parquet and TFRecord files may hold images, or the rows of a table.
        """
        from pipeline.sources.containers import first_format  # Only a check of settings needs it.

        found = first_format(source)
        if self.has_pictures:
            is_other = found == ("tfrecord", False)
            return "holds no images: set TABLE and LABEL instead of SOURCE (example_kind=table)" if is_other else ""
        is_other = found.holds_images and found.name in ("parquet", "tfrecord")
        return "holds images: set SOURCE instead of TABLE (example_kind=images)" if is_other else ""

    @property
    @abstractmethod
    def lister(self) -> ListerClass:
        """The class that lists a source."""

    @abstractmethod
    def check_of(self, dataset: Dataset) -> "Check":
        """Return the check of a record of a dataset."""

    @abstractmethod
    def examples(self, range_plan: RangePlan) -> Examples:
        """Return the examples of a plan file."""

    @abstractmethod
    def codecs(self, *, gzip: bool, perceptual_hash: bool) -> dict[str, str]:
        """Return the versions of all decoders and encoders whose change could change a dataset, by name."""

    @abstractmethod
    def features(self, records: RecordFormat, facts: Mapping[str, Any]) -> dict[str, str]:
        """Return the type of each feature of a record."""

    @abstractmethod
    def key_reader(self, dataset: Dataset) -> Callable[[bytes], str] | None:
        """Return what reads the key of an example from its record; None if no record of the dataset has a key.

        A key is empty if the example has none, or if its record cannot be read.
        """

    def key_of(self, dataset: Dataset, record: bytes) -> str:
        """Return the key of an example from its record; empty if it has none, or if the record cannot be read."""
        read = self.key_reader(dataset)
        return read(record) if read else ""

    def values_of(self, row: RawExample, snapshot: "Snapshot") -> str:
        """Return the values of an example without a key of its own, in words. They may be personal data."""
        return ""

    def split_unit(self, snapshot: "Snapshot") -> str:
        """Return which examples are always in the same split, in words."""
        return f"{self.nouns} of a group"

    def quality(self, snapshot: "Snapshot", order: "Order") -> dict[str, Any]:
        """Return what else is known of a plan, for `quality` in `dataset.json`."""
        return {}

    def fitting_values(self, facts: Mapping[str, Any]) -> Mapping[str, FittingValues]:
        """Return the values that fit examples with these facts, by the name of the setting of a training."""
        return {}

    def rules(self, of_images: Rules) -> Rules:
        """Return the rules by which each example is checked and prepared, from those for images."""
        return Rules()

    def fingerprinted(self, snapshot: "Snapshot") -> dict[str, Any]:
        """Return what else decides the bytes, apart from settings, codecs and the fingerprint of the snapshot."""
        return {}

    def facts_of_writer(self, snapshot: "Snapshot") -> dict[str, Any]:
        """Return the facts that a plan file needs."""
        return {}

    def facts(self, snapshot: "Snapshot", order: "Order") -> dict[str, Any]:
        """Return the facts of a version."""
        return {}

    def changes(self, facts: Mapping[str, Any], before: Dataset | None, training_examples: int) -> dict[str, Any]:
        """Return how the facts differ from those of the last version, for `quality` in `dataset.json`."""
        return {}

    def find_conflict(self, versions: Sequence[Dataset]) -> Conflict | None:
        """Return the first difference in the facts that keeps versions from being one window; None if there is none."""
        return None

    def union_of(self, versions: Sequence[Dataset], training_examples: int) -> dict[str, Any]:
        """Return the facts of a window of versions that have no conflict."""
        return {}


class _OfKind(Protocol):
    @property
    def kind(self) -> str: ...


def kind_of(content: _OfKind) -> ExampleKind:
    """Return the kind of a snapshot, a plan, a plan file or a dataset."""
    return kind_named(content.kind)


def kind_named(name: str) -> ExampleKind:
    """Return the kind of a value of `example_kind`."""
    return cast(ExampleKind, data_of(name))
