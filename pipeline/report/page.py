"""From a run to the page: tables, pictures and figures put into page.html.j2, where everything is escaped."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import pandas
from bokeh.resources import INLINE
from PIL import ImageOps

from pipeline.monitor.diagnosis import Summary, parts, percent, spread, summarize, verdict
from pipeline.report import evaluation, figures
from pipeline.report.parts import Table, environment, fact_tables, pictures, size
from pipeline.report.run import Run

THUMBNAIL = 128  # pixels
MOST_PICTURES = 60
MOST_CLASSES = 30  # rows; the largest are listed, the rest is summed up


def render(run: Run, samples: Sequence[tuple[str, bytes]], most_wrong: Sequence[tuple[str, bytes]]) -> str:
    """The page as one HTML text that loads nothing from anywhere."""
    summary = summarize(run.batches)
    evaluated = evaluation.view(run.evaluation, most_wrong)
    drawn = [
        figures.learning(run.epochs),
        figures.utilization(run.samples, run.epochs),
        figures.batch_times(run.batches),
    ]
    templates = environment()
    templates.policies["json.dumps_kwargs"] = {"sort_keys": False}  # Bokeh reads an object before it is referred to
    return templates.get_template("page.html.j2").render(
        title=str(run.dataset.get("name") or "Training run"),
        run_id=str(run.description.get("run_id", "")),
        verdict=verdict(summary),
        tiles=tiles(run, summary),
        evaluation=evaluated,
        promotion=str(run.promotion.get("verdict", "")),
        figures=drawn,
        items=_items([evaluated.reliability, *drawn] if evaluated else drawn),
        timing=timing(run, summary),
        classes=classes(run.dataset),
        dataset_words=dataset_words(run.dataset),
        pictures=pictures(samples[:MOST_PICTURES], THUMBNAIL, ImageOps.fit),
        facts=facts(run),
        bokeh="\n".join(INLINE.js_raw[:1]),
        nonce=secrets.token_urlsafe(16),  # scripts without it do not run, whatever a name or label smuggles in
    )


def _items(drawn: Sequence[figures.Figure]) -> dict[str, Any]:
    """What Bokeh embeds, by the id of its place on the page."""
    return {f"{figure.name}-{i}": item for figure in drawn for i, item in enumerate(figure.items)}


def tiles(run: Run, summary: Summary) -> list[tuple[str, str]]:
    """(words, number) to be seen first; what is not known is left out."""
    found: list[tuple[str, str]] = []
    if "val_accuracy" in run.epochs and run.epochs["val_accuracy"].notna().any():
        found.append(("best validation accuracy", f"{run.epochs['val_accuracy'].max():.1%}"))
    if len(run.epochs):
        found.append(("epochs", f"{len(run.epochs):,}"))
    if summary.time_ms:
        found.append(("median step", f"{summary.time_ms.median:.3g} ms"))
        found.append(("examples a second", f"{_throughput(run.batches):,.0f}"))
    if summary.wait_fraction is not None:
        found.append(("waiting for data", percent(summary.wait_fraction)))
    if splits := run.dataset.get("splits"):
        found.append(("examples", f"{sum(split.get('examples', 0) for split in splits.values()):,}"))
    return found


def _throughput(batches: pandas.DataFrame) -> float:
    steady = batches[parts(batches)[0]]
    seconds = steady["step/time_ms"].sum() / 1000
    return float(steady["input/examples"].sum() / seconds) if seconds > 0 else 0.0


def timing(run: Run, summary: Summary) -> Table:
    """Mean, median, standard deviation and 95th percentile of the times of steps and epochs."""
    rows = [
        _spread_row(words, values, "ms")
        for words, values in (
            ("Step", summary.time_ms),
            ("Wait for data in it", summary.wait_ms),
            ("Compute in it", summary.compute_ms),
        )
    ]
    epochs = spread(run.epochs["epoch/time_s"].to_numpy(dtype=float)) if "epoch/time_s" in run.epochs else None
    rows.append(_spread_row("Epoch", epochs, "s"))
    return Table(("", "mean", "median", "std", "p95"), rows, _apart(summary))


def _spread_row(words: str, values: Any, unit: str) -> tuple[str, ...]:
    if values is None:
        return (words, *["-"] * 4)
    return (words, *(f"{_three(v)} {unit}" for v in (values.mean, values.median, values.std, values.p95)))


def _three(value: float) -> str:
    """Three digits, but never 1.23e+03."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _apart(summary: Summary) -> str:
    words = [f"Over {summary.steps:,} steady steps"]
    if summary.first_step_ms is not None:
        words.append(f"apart from them the first step of the process took {_three(summary.first_step_ms)} ms (tracing)")
    if summary.first_batch_wait_ms is not None:
        words.append(f"the first batch of a further epoch was waited for {_three(summary.first_batch_wait_ms)} ms")
    return "; ".join(words) + "."


def classes(dataset: Mapping[str, Any]) -> Table | None:
    """Examples by class and split, the largest classes first; None where there is no data set to read."""
    splits: Mapping[str, Any] = dataset.get("splits") or {}
    counts = {name: split.get("classes") or {} for name, split in splits.items()}
    sums = {label: sum(count.get(label, 0) for count in counts.values()) for label in dataset.get("labels") or []}
    if not sums:
        return None
    listed = sorted(sums, key=lambda label: -sums[label])[:MOST_CLASSES]
    rows = [_counts_row(label, [count.get(label, 0) for count in counts.values()]) for label in listed]
    rows.append(_counts_row("all classes", [split.get("examples", 0) for split in splits.values()]))
    hidden = len(sums) - len(listed)
    note = f"The {hidden:,} smaller classes, down to {min(sums.values()):,} examples, are not listed." if hidden else ""
    return Table(("class", *splits, "together", "share"), _with_shares(rows), note)


def _counts_row(label: str, counts: list[int]) -> tuple[str, ...]:
    return (label, *(f"{count:,}" for count in counts), f"{sum(counts):,}")


def _with_shares(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    whole = int(rows[-1][-1].replace(",", "")) or 1
    return [(*row, f"{int(row[-1].replace(',', '')) / whole:.1%}") for row in rows]


def dataset_words(dataset: Mapping[str, Any]) -> str:
    """Where the data set came from, how much of it there is and what was left out, in a sentence or two."""
    if not dataset:
        return "The data set's dataset.json was not found."
    splits = dataset.get("splits") or {}
    made = ", ".join(
        f"{name} holds {split.get('examples', 0):,} in {len(split.get('shards') or []):,} shards of "
        f"{size(split.get('bytes', 0))} together"
        for name, split in splits.items()
    )
    source, rejected = dataset.get("source") or {}, dataset.get("rejected") or {}
    skipped = ", ".join(f"{reason}: {count:,}" for reason, count in (source.get("skipped") or {}).items())
    where = f" (listed in {rejected['file']})" if rejected.get("count") and rejected.get("file") else ""
    return (
        f"{source.get('listed', 0):,} images were found at {source.get('uri', 'an unknown place')}; {made}. "
        f"Rejected: {rejected.get('count', 0):,}{where}. Skipped: {skipped or 'none'}."
    )


def facts(run: Run) -> list[tuple[str, Table]]:
    """What ran: tables of name and value, by title."""
    what = {
        "run": run.description.get("run_id"),
        "data set": run.description.get("dataset"),
        "data set version": run.description.get("dataset_version"),
        "model": run.result.get("model"),
        "Comet": run.result.get("comet"),
    }
    groups = {
        "What ran": {name: value for name, value in what.items() if value},
        "Result": run.result.get("metrics"),
        "Settings": run.description.get("settings"),
        "Host": run.description.get("host"),
        "Software": run.description.get("software"),
    }
    return fact_tables(groups)
