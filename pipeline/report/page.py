"""The page of a run: tables, pictures and figures for page.html.j2, which escapes everything."""

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bokeh.resources import INLINE
from PIL import ImageOps

from pipeline.config.automatic import training_settings
from pipeline.config.example_kinds import IMAGES
from pipeline.config.settings import settings_for
from pipeline.errors import SettingsError
from pipeline.evaluation.best_epoch import best_epoch
from pipeline.monitor.diagnosis import Spread, Summary, percent, spread, summarize, three_digits
from pipeline.monitor.verdict import diagnose_server
from pipeline.report import card, figures, utilization
from pipeline.report import evaluation_section as evaluation
from pipeline.report.components import Table, environment, fact_tables, pictures
from pipeline.report.drawing import Figure, embedded
from pipeline.runs.recorded_run import RecordedRun, load_recorded_run
from pipeline.tuning.advice import with_advice


def load(folder: Path) -> RecordedRun:
    """Read the folder of a run, with the columns of its record that a page shows."""
    return load_recorded_run(folder, utilization.is_drawn)


def render(
    run: RecordedRun,
    samples: Sequence[tuple[str, bytes]],
    confident_mistakes: Sequence[tuple[str, bytes]],
    wrong_rows: Sequence[Mapping[str, str]] = (),
) -> str:
    """Return the page as HTML that loads nothing from anywhere."""
    summary = summarize(run.judged)
    evaluated = evaluation.view(run.evaluation, confident_mistakes, wrong_rows)
    drawn = [
        figures.learning(run.epochs),
        figures.time_spent(run.steps[0], run.epochs),
        utilization.utilization(run.servers[0], run.epochs),
        *([utilization.servers(run.servers, run.epochs)] if len(run.servers) > 1 else []),
        figures.times(run.judged, run.epochs),
    ]
    return page_of(
        "page.html.j2",
        [evaluated.figure, *drawn] if evaluated else drawn,
        title=str(run.dataset.get("name") or "Training run"),
        run_id=str(run.files.run.get("run_id", "")),
        verdict=verdict(run),
        tiles=tiles(run, summary),
        evaluation=evaluated,
        is_simulated=run.files.is_simulated,
        promotion=run.files.decision,
        figures=drawn,
        timing=timing(run, summary),
        dataset=card.essentials(run.dataset, run.rejected) if run.dataset else None,
        dataset_sentence=dataset_sentence(run.dataset) if run.dataset else "",
        pictures=pictures(samples, evaluation.THUMBNAIL, ImageOps.fit),
        facts=facts(run),
    )


def page_of(template: str, drawn: Sequence[Figure], **content: Any) -> str:
    """Return the page of a template whose content has these figures."""
    templates = environment()
    templates.policies["json.dumps_kwargs"] = {"sort_keys": False}  # Bokeh must read an object before references to it.
    return templates.get_template(template).render(
        **content,
        embedded=embedded(drawn),
        # The first script is BokehJS itself. The others, for widgets and tables, would only make the page larger.
        bokeh="\n".join(INLINE.js_raw[:1]),
        nonce=secrets.token_urlsafe(16),  # Scripts without it do not run, whatever a name or label contains.
    )


def verdict(run: RecordedRun) -> str:
    """Return the verdict, with advice if the settings are valid here."""
    samples = run.servers[run.slowest].rows
    diagnosis = diagnose_server(run.slowest, run.steps, samples, run.epochs)
    try:
        settings = training_settings(run.files.settings)
        return with_advice(diagnosis, settings, run.dataset.get("settings") or {})
    # This machine may lack a kind of source that the run used. Its verdict still holds.
    except SettingsError:
        return diagnosis.sentence


def tiles(run: RecordedRun, summary: Summary) -> list[tuple[str, str]]:
    """Return (text, number) of the most important numbers that are known."""
    numbers = [("accelerator", "simulated")] if run.files.is_simulated else []
    if best := best_epoch(run.epochs):
        numbers.append((best.title, best.text))
        numbers += run.files.judged(best.metric)
    if len(run.epochs):
        numbers.append(("epochs", f"{len(run.epochs):,}"))
    if summary.time_ms:
        numbers.append(("step time", f"{three_digits(summary.time_ms.mean)} ms"))
    if summary.examples_per_s:
        numbers.append(("examples per second", three_digits(summary.examples_per_s)))
    if summary.wait_fraction is not None:
        numbers.append(("data wait", percent(summary.wait_fraction)))
    if splits := run.dataset.get("splits"):
        numbers.append(("examples", f"{sum(split.get('examples', 0) for split in splits.values()):,}"))
    return numbers


def timing(run: RecordedRun, summary: Summary) -> Table:
    """Return mean, median, standard deviation and 95th percentile of the times of steps and epochs."""
    rows = [
        ("Step", *spread_cells(summary.time_ms, "ms")),
        ("Data wait of a step", *spread_cells(summary.wait_ms, "ms")),
        ("Compute of a step", *spread_cells(summary.compute_ms, "ms")),
    ]
    for label, name in (("Epoch", "epoch/time_s"), ("Validation after an epoch", "epoch/validation_s")):
        values = spread(run.epochs[name].to_numpy(dtype=float)) if name in run.epochs else None
        rows.append((label, *spread_cells(values, "s")))
    notes = [f"Times of {summary.steps:,} steady steps"]
    if summary.first_step_ms is not None:
        notes.append(
            f"not included: the first step of the process, which took {three_digits(summary.first_step_ms)} ms "
            "(tracing)"
        )
    if summary.first_batch_wait_ms is not None:
        notes.append(
            f"the wait for the first batch of a later epoch was {three_digits(summary.first_batch_wait_ms)} ms"
        )
    return Table(("", "mean", "median", "std", "p95"), rows, "; ".join(notes) + ".")


def dataset_sentence(dataset: Mapping[str, Any]) -> str:
    """Say in a sentence where the dataset came from, and its version."""
    source = dataset["source"]["uri"]
    return (
        f"{dataset['name']}, version {dataset['version']}, made from {source}. The file card.html in its folder shows "
        "more."
    )


def facts(run: RecordedRun) -> list[tuple[str, Table]]:
    """Return (title, table of names and values) of what ran, and where."""
    what_ran = {
        "run": run.files.run.get("run_id"),
        "dataset": run.files.run.get("dataset"),
        "dataset version": run.files.run.get("dataset_version"),
        "model": run.files.result.get("model"),
        "Comet": run.files.result.get("comet"),
    }
    settings = run.files.settings
    # The page leaves out settings that have no effect on this kind of examples.
    used = settings_for(settings.get("example_kind", IMAGES), settings) if settings else ()
    groups = {
        "What ran": {name: value for name, value in what_ran.items() if value},
        "Result": run.files.result.get("metrics"),
        "Settings": {name: settings[name] for name in used},
        "Host": run.files.host,
        "Software": run.files.run.get("software"),
    }
    return fact_tables(groups)


def spread_cells(values: Spread | None, unit: str) -> tuple[str, ...]:
    """Return mean, median, standard deviation and 95th percentile as text; "-" for each if there are no values."""
    if values is None:
        return ("-",) * 4
    return tuple(f"{three_digits(each)} {unit}" for each in (values.mean, values.median, values.std, values.p95))
