"""The dataset card: one HTML page about the content of a dataset, drawn from its `dataset.json`.

It opens without a network, a script or a server, and the same dataset gives the same bytes. Names and labels come from
outside, so all of them are escaped. Characters that a screen cannot show become backslash escapes.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pipeline.dataset.manifest import CARD, Dataset, sample_images, to_json
from pipeline.gate.notices import notices
from pipeline.plan.example_kind import kind_of
from pipeline.report.components import Table, environment, fact_tables, pictures
from pipeline.report.table_columns import columns_of
from pipeline.storage import Place, write_whole
from pipeline.system.wording import counted, format_size, kind_of_reason, range_text

SAMPLES = 48
"""Maximum number of sample images."""
THUMBNAIL = 160
"""Side of a thumbnail, in pixels."""
MAX_ROWS = 50
"""Limit for each table. The files beside the card have all rows."""
MAX_CLASSES = 40
"""If there are more classes, the largest and the smallest are shown, with the others folded away below them."""
LARGEST_CLASSES, SMALLEST_CLASSES, FOLDED_CLASSES = 15, 10, 5000
"""This many classes are shown at both ends and in the folded middle."""

TESTED = (
    "The validation split chooses the best epoch of a training, and the test split judges its model. No training sees "
    "the examples of either."
)
"""What the splits are for, if there is a test split."""
_DRIFTED = ((0.25, "much"), (0.1, "some"), (0.0, "little"))


@dataclass(frozen=True)
class Bars:
    """A table of bars."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]
    """A label, and for each of the other columns of `head` a count and the length of its bar, in percent."""


def write_card(
    folder: Place,
    dataset: Dataset,
    rejected: Iterable[Mapping[str, Any]],
    duplicates: Iterable[Mapping[str, Any]],
    skipped: Iterable[Mapping[str, Any]] = (),
) -> None:
    """Write the card of a dataset into its folder, which need not be committed. It implements `WriteCard`."""
    samples = sample_images(folder, dataset, SAMPLES) if kind_of(dataset).has_pictures else []
    with write_whole(folder / CARD) as file:
        file.write(card_html(json.loads(to_json(dataset)), samples, rejected, duplicates, skipped).encode("utf-8"))


def card_html(
    dataset: Mapping[str, Any],
    samples: Sequence[tuple[str, bytes]],
    rejected: Iterable[Mapping[str, str]] = (),
    duplicates: Iterable[Mapping[str, Any]] = (),
    skipped: Iterable[Mapping[str, str]] = (),
) -> str:
    """Return the page as text that any encoding can hold.

    `dataset` is the content of `dataset.json`. `samples` are (label, JPEG or PNG) of images to show. The others are the
    rows of the dataset's files with these names, and may be iterated over several times.
    """
    quality = dataset["quality"]
    shown = pictures(samples, THUMBNAIL)
    return (
        environment()
        .get_template("card.html.j2")
        .render(
            name=dataset["name"],
            version=dataset["version"],
            source=dataset["source"]["uri"],
            unit=unit_of(dataset),
            columns=columns_of(dataset),
            tiles=tiles(dataset, quality),
            dates=dates(dataset),
            essentials=essentials(dataset, rejected),
            rejected_rows=first_rows(
                {unit_of(dataset): "path", "reason": "reason", "what you can do": "advice"}, rejected, "rejected.jsonl"
            ),
            skipped_rows=first_rows({"file": "path", "reason": "reason"}, skipped, "skipped.jsonl"),
            skipped_suffixes=skipped_suffixes(quality),
            duplicates=duplicate_tables(duplicates, unit_of(dataset)),
            leaks=leak_tables(quality),
            drift=drift(quality),
            pictures=shown,
            more_pictures=len(samples) - len(shown),
            facts=fact_tables({name.title(): dataset[name] for name in ("settings", "software", "features")}),
        )
    )


def essentials(dataset: Mapping[str, Any], rejected: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """Return what dataset.html.j2 shows on the card and in the report of a run.

    `dataset` is the content of `dataset.json`, and `rejected` has the rows of the file of rejected images.
    """
    quality = dataset["quality"]
    unit = unit_of(dataset)
    return {
        "unit": unit,
        "is_regression": is_regression(dataset),
        "notices": [*(quality.get("findings") or ()), *notices(quality)],
        "splits": splits(dataset),
        "skipped": skipped(dataset["source"], unit),
        "balance": balance(dataset),
        "class_parts": class_parts(dataset),
        "histograms": histograms(quality),
        "sides": sides(quality),
        "rejected": dataset["rejected"],
        "reasons": reasons(rejected, unit),
    }


def unit_of(dataset: Mapping[str, Any]) -> str:
    """Return what one example is called: "image" or "row"."""
    return str(dataset["quality"]["unit"])


def is_regression(dataset: Mapping[str, Any]) -> bool:
    """Return whether numbers are learned, so that there are no classes."""
    return bool((dataset.get("table") or {}).get("task") == "regression")


def tiles(dataset: Mapping[str, Any], quality: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (text, number) of the most important numbers."""
    numbers = [(f"{name} examples", f"{split['examples']:,}") for name, split in dataset["splits"].items()]
    if table := dataset.get("table"):
        numbers.append(("columns", f"{len(table['columns']):,}"))
    if not is_regression(dataset):
        numbers.append(("classes", f"{len(dataset['labels']):,}"))
    numbers.append(("rejected", f"{dataset['rejected']['count']:,}"))
    if duplicates := quality.get("duplicates"):
        numbers.append(("duplicates", f"{duplicates['images']:,}"))
    if (contradictions := quality.get("contradictions")) and contradictions["images"]:
        numbers.append(("contradictory labels", f"{contradictions['images']:,}"))
    if leaks := quality.get("leaks"):
        numbers.append(("leaks", f"{leaks['images']:,}"))
    return numbers


def splits(dataset: Mapping[str, Any]) -> Table:
    """Return examples, bytes and shards of each split as a table."""
    together = sum(split["examples"] for split in dataset["splits"].values())
    rows = [
        (
            name,
            f"{split['examples']:,}",
            f"{split['examples'] / (together or 1):.1%}",
            format_size(split["bytes"]),
            *_shards(split),
        )
        for name, split in dataset["splits"].items()
    ]
    is_tested = bool(dataset["splits"].get("test", {}).get("examples"))
    note = TESTED if is_tested else ""
    return Table(("split", "examples", "share", "size", "shards", "size of a shard"), rows, note)


def _shards(split: Mapping[str, Any]) -> tuple[str, str]:
    """Return the number of shards and the range of their sizes."""
    # The lists of a large split state the figures of their shards.
    lists = split.get("shard_lists")
    parts = (
        [(each["shards"], each["min_bytes"], each["max_bytes"]) for each in lists]
        if lists
        else [(1, shard["bytes"], shard["bytes"]) for shard in split["shards"]]
    )
    if not parts:
        return "0", "none"
    counts, smallest, largest = zip(*parts, strict=True)
    sizes = [format_size(size) for size in (min(smallest), max(largest))]
    return f"{sum(counts):,}", sizes[0] if sizes[0] == sizes[1] else " to ".join(sizes)


def dates(dataset: Mapping[str, Any]) -> Table | None:
    """Return the dates of a window, each with its version and the examples of that version; None if it is no window.

    A split whose shards are not in `dataset.json` is left out.
    """
    if not dataset.get("window"):
        return None
    listed = {name: split for name, split in dataset["splits"].items() if "shards" in split}
    examples: Counter[tuple[str, str]] = Counter()
    for name, split in listed.items():
        for shard in split["shards"]:
            # In a window, the name of a shard leads through the folder of its version.
            examples[shard["name"].split("/")[-2], name] += shard["examples"]
    rows = [
        (date, version, *(f"{examples[version, split]:,}" for split in listed))
        for date, version in dataset["window"].items()
    ]
    note = "Dates with the same version count once." if len(set(dataset["window"].values())) < len(rows) else ""
    return Table(("date", "version", *(f"{split} examples" for split in listed)), rows, note)


def skipped(source: Mapping[str, Any], unit: str = "image") -> str:
    """Say how many examples were listed, and how many files were skipped, by reason."""
    reasons_of = source.get("skipped") or {}
    reasons = ", ".join(f"{count:,} ({reason})" for reason, count in sorted(reasons_of.items()))
    if unit == "row":  # Rows are never skipped. A row that cannot be used is rejected.
        files = f" Files that were not read: {reasons}." if reasons else ""
        return f"{source.get('listed', 0):,} rows were read.{files}"
    return (
        f"{source.get('listed', 0):,} images were listed. Skipped, because they are not images of a class: "
        f"{reasons or 'none'}."
    )


def balance(dataset: Mapping[str, Any]) -> str:
    """Say how much larger the largest class is than the smallest."""
    counts, unit = _counts(dataset, "train"), unit_of(dataset)
    present = {label: count for label, count in counts.items() if count}
    if len(present) < 2:
        return f"Fewer than two classes have training {unit}s, so there is nothing to compare."
    largest, smallest = max(present, key=lambda label: present[label]), min(present, key=lambda label: present[label])
    if present[largest] == present[smallest]:
        return f"All classes have the same number of training {unit}s."
    times = present[largest] / present[smallest]
    without = len(counts) - len(present)
    return (
        f"The largest class, {largest!r}, has {times:.3g} times the training {unit}s of the smallest, {smallest!r}."
        + (f" Labels without training {unit}s: {without:,}." if without else "")
        + " In each column, the longest bar is the largest class of that column."
    )


def _counts(dataset: Mapping[str, Any], split: str) -> dict[str, int]:
    """Return the number of examples of every label of the dataset in one split, which may be 0."""
    classes = (dataset["splits"].get(split) or {}).get("classes") or {}
    return {label: classes.get(label, 0) for label in dataset["labels"]}


def class_parts(dataset: Mapping[str, Any]) -> list[tuple[str, Bars, bool]]:
    """Return (caption, bars, folded) of classes, largest in training first; of many, both ends and then the middle."""
    columns = {name: _counts(dataset, name) for name in dataset["splits"]}
    order = sorted(dataset["labels"], key=lambda label: [-counts[label] for counts in columns.values()])
    bars = _bars(("class", *columns), order, [[counts[label] for label in order] for counts in columns.values()])
    if len(bars.rows) <= MAX_CLASSES:
        return [("Examples by class and split", bars, False)]
    middle = bars.rows[LARGEST_CLASSES:-SMALLEST_CLASSES]
    left_out = max(0, len(middle) - FOLDED_CLASSES)
    others = f"The other {len(middle):,} classes"
    others += f", without the {left_out:,} smallest, whose counts are in dataset.json" if left_out else ""
    return [
        (f"The {LARGEST_CLASSES} largest classes", Bars(bars.head, bars.rows[:LARGEST_CLASSES]), False),
        (f"The {SMALLEST_CLASSES} smallest classes", Bars(bars.head, bars.rows[-SMALLEST_CLASSES:]), False),
        (others, Bars(bars.head, middle[:FOLDED_CLASSES]), True),
    ]


def _bars(head: tuple[str, ...], labels: Sequence[str], columns: Sequence[Sequence[int]]) -> Bars:
    """Return bars of counts. Each column has the scale of its largest count."""
    cells_of = []
    for counts in columns:
        largest = max(counts, default=0) or 1
        cells_of.append([(f"{count:,}", 100 * count / largest) for count in counts])
    return Bars(head, [(label, list(cells)) for label, *cells in zip(labels, *cells_of, strict=True)])


_HISTOGRAMS: Mapping[str, tuple[str, str, Callable[[float], str]]] = {
    "sizes": ("Shorter side", "pixels", "{:,g}".format),
    "aspect": ("Width over height", "ratio", "{:g}".format),
    "bytes": ("File size of an image", "bytes", format_size),
    "brightness": ("Brightness (mean of the pixels)", "0 to 255", "{:g}".format),
}


def histograms(quality: Mapping[str, Any]) -> list[tuple[str, Bars]]:
    """Return (title, bars) of each histogram, without the empty bins at both ends."""
    counted = (quality.get("statistics") or {}).get("histograms") or {}
    return [
        (title, _histogram(counted[name], unit, format_edge))
        for name, (title, unit, format_edge) in _HISTOGRAMS.items()
        if name in counted and any(counted[name]["counts"])
    ]


def _histogram(histogram: Mapping[str, Any], unit: str, format_edge: Callable[[float], str]) -> Bars:
    counts, edges = histogram["counts"], [format_edge(edge) for edge in histogram["edges"]]
    between = [f"{low} to {high}" for low, high in pairwise(edges)]
    labels = [f"below {edges[0]}", *between, f"{edges[-1]} and more"]
    filled = [index for index, count in enumerate(counts) if count]
    shown = slice(filled[0], filled[-1] + 1)
    return _bars((unit, "images"), labels[shown], [counts[shown]])


def sides(quality: Mapping[str, Any]) -> str:
    """Say the range of heights and widths; return an empty text if there are no statistics."""
    statistics = quality.get("statistics") or {}
    if not statistics.get("images"):
        return ""
    facts = [
        f"{name} {range_text(*map('{:,}'.format, (side['min'], side['max'])))} pixels, {side['mean']:,.0f} on average"
        for name in ("height", "width")
        if (side := statistics[name])
    ]
    mean = format_size(statistics["bytes"] / statistics["images"])
    return f"Of {statistics['images']:,} images: {'; '.join(facts)}; {mean} each on average."


def reasons(rejected: Iterable[Mapping[str, str]], unit: str = "image") -> Bars | None:
    """Return the rejected examples by kind of reason, the most frequent first, and the number of the others."""
    all_kinds = Counter(kind_of_reason(row["reason"]) for row in rejected).most_common()
    kinds = all_kinds[:MAX_ROWS]
    if others := all_kinds[MAX_ROWS:]:
        kinds.append((counted(len(others), "other reason"), sum(count for _, count in others)))
    labels, counts = [kind for kind, _ in kinds], [count for _, count in kinds]
    return _bars(("reason", f"{unit}s"), labels, [counts]) if kinds else None


def first_rows(columns: Mapping[str, str], items: Iterable[Mapping[str, str]], file: str) -> Table:
    """Return the first items of a file of the dataset. `columns` has the key of each column, by its title."""
    first = _First(items)
    rows = [tuple(item.get(key, "") for key in columns.values()) for item in first.rows]
    return Table(tuple(columns), rows, first.note(file))


class _First:
    """The first MAX_ROWS items of a stream. The others are only counted, because there can be millions of them."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self.rows: list[Any] = []
        self._count = 0
        for item in items:
            self.add(item)

    def add(self, item: Any) -> None:
        self._count += 1
        if len(self.rows) < MAX_ROWS:
            self.rows.append(item)

    def note(self, file: str) -> str:
        """Say how many items there are, and that a file has all of them; return an empty text if all are shown."""
        shown = f"The first {MAX_ROWS} of {self._count:,}. The file {file} lists all."
        return shown if self._count > MAX_ROWS else ""


def skipped_suffixes(quality: Mapping[str, Any]) -> Bars | None:
    """Return the number of files that were skipped because of their suffix, by suffix; None if there are none."""
    suffixes = (quality.get("skipped_by_name") or {}).get("suffixes")
    return _bars(("suffix", "files"), list(suffixes), [list(suffixes.values())]) if suffixes else None


def duplicate_tables(duplicates: Iterable[Mapping[str, Any]], unit: str = "image") -> list[tuple[str, Table]]:
    """Return (caption, first groups) for equal examples with different labels, for equal and for similar ones."""
    contradictory, equal, alike = _First(), _First(), _First()
    has_values = False
    for row in duplicates:
        group = row["images"]
        has_values |= "values" in row
        (equal if row["kind"] == "equal" else alike).add(group)
        if row["kind"] == "equal" and len({frozenset(each["labels"]) for each in group}) > 1:
            contradictory.add(group)
    tables = (
        (f"Equal {unit}s with different labels", contradictory, "equal to it"),
        (f"Equal {unit}s", equal, "equal to it"),
        ("Images that look alike", alike, "similar to it"),
    )
    # A card may be shared. The values of rows may be personal data.
    note = "A row without a key is named by a hash. The file duplicates.jsonl has its values. " if has_values else ""
    return [(caption, _group_table(groups, unit, column, note)) for caption, groups, column in tables if groups.rows]


def _group_table(groups: _First, unit: str, column: str, note: str) -> Table:
    rows = [(_named(group[0]), ", ".join(map(_named, group[1:]))) for group in groups.rows]
    return Table((unit, column), rows, (note + groups.note("duplicates.jsonl")).strip())


def _named(example: Mapping[str, Any]) -> str:
    """Return the path of an example, with its labels if they are known, and how many equal rows have them."""
    labels, rows = example.get("labels"), example.get("rows", 1)
    name = f"{example['path']} ({', '.join(labels)})" if labels else str(example["path"])
    return f"{name}, {rows:,} times" if rows > 1 else name


def leak_tables(quality: Mapping[str, Any]) -> list[tuple[str, Table]]:
    """Return (caption, pairs of keys) of images on both sides of the split: equal ones, and ones that look alike."""
    near = (quality.get("near_duplicates") or {}).get("leaks")
    unit = quality.get("unit", "image")
    of_group = f", or {unit}s of one group," if (quality.get("leaks") or {}).get("only_by_group") else ""
    both = (
        (f"Equal {unit}s{of_group} on both sides", quality.get("leaks")),
        ("Images that look alike on both sides", near),
    )
    tables = []
    for caption, leaks in both:
        if leaks and leaks["images"]:
            rows = [(train, other) for train, other in leaks["names"][:MAX_ROWS]]
            note = f"{leaks['images']:,} of {leaks['of']:,} validation and test {unit}s. Pairs listed: {len(rows):,}."
            tables.append((caption, Table(("in training", "in validation or test"), rows, note)))
    return tables


def drift(quality: Mapping[str, Any]) -> Table | None:
    """Return how far the images differ from those of the version before, largest first; None if there was none."""
    numbers = dict(quality.get("drift") or {})
    against = numbers.pop("against", None)
    if against is None or not numbers:
        return None
    rows = [
        (name, f"{number:.2f}", next(level for threshold, level in _DRIFTED if number >= threshold))
        for name, number in sorted(numbers.items(), key=lambda item: -item[1])
    ]
    note = (
        f"Compared with version {against}: the population stability index, minus the value that chance alone would "
        "give."
    )
    return Table(("of", "drift", "which is"), rows, note)
