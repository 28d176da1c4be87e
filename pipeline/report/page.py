"""The page of a run: sentences, tables and figures for page.html.j2, which escapes everything."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bokeh.resources import INLINE

from pipeline.config.automatic import training_settings
from pipeline.errors import SettingsError
from pipeline.evaluation.answers import Answers
from pipeline.evaluation.best_epoch import best_epoch
from pipeline.evaluation.metrics import headline_in
from pipeline.monitor.diagnosis import Spread, Summary, percent, spread, summarize, three_digits
from pipeline.monitor.verdict import Verdict, diagnose_server
from pipeline.report import card, figures, mistakes, utilization
from pipeline.report import evaluation_section as evaluation
from pipeline.report.about_run import links_of, settings_of
from pipeline.report.components import Table, environment, fact_tables
from pipeline.report.drawing import Figure, embedded
from pipeline.report.input_stages import InputStages
from pipeline.report.timeline import timeline as timeline_of
from pipeline.runs.changes import load_changes, newest_settings
from pipeline.runs.files import FREE_MEMORY
from pipeline.runs.promises import machine_of, promises_on
from pipeline.runs.recorded_run import RecordedRun, load_recorded_run
from pipeline.tuning.advice import advice
from pipeline.tuning.predictions import facts_of, predictions, since_change


@dataclass(frozen=True)
class Headline:
    """One of the two sentences at the top of the page."""

    topic: str
    number: str
    """The most important number; empty if it is not known."""
    text: str


def load(folder: Path) -> RecordedRun:
    """Read the folder of a run, with the columns of its record that a page shows."""
    return load_recorded_run(folder, utilization.is_drawn)


def render(
    run: RecordedRun,
    answers: Answers | None = None,
    pictures: Sequence[tuple[str, str]] = (),
    rows: Sequence[Mapping[str, str]] = (),
    has_csv: bool = False,
    stages: InputStages | None = None,
) -> str:
    """Return the page as HTML that loads nothing from anywhere.

    Args:
        run: The run.
        answers: The answers of the model to the examples that judge it.
        pictures: Key and data URI of each image of `shown_positions` of the answers.
        rows: For a table, the values of each row of `shown_positions`, by column.
        has_csv: Whether `mistakes.csv` is beside the page.
        stages: What the stages of the input cost, if that was measured.
    """
    summary, diagnosis = summarize(run.judged), diagnose(run)
    evaluated = evaluation.view(run.evaluation)
    timeline, machine = timeline_of(run.steps[0], run.epochs, run.servers[0])
    if len(run.servers) > 1:
        timeline = replace(timeline, sentence=f"{timeline.sentence} {_which_server(run)}")
    drawn = {
        "learning": figures.learning(run.epochs),
        "timeline": timeline,
        "stages": stages.figure() if stages else None,
        "machine": machine,
        "servers": utilization.servers(run.servers, run.epochs) if len(run.servers) > 1 else None,
        "times": figures.times(run.judged, run.epochs),
    }
    return page_of(
        "page.html.j2",
        [each for each in (evaluated and evaluated.figure, *drawn.values()) if each],
        title=str(run.dataset.get("name") or "Training run"),
        run_id=str(run.files.run.get("run_id", "")),
        links=links_of(run.files),
        headlines=[quality(run), speed(run, summary, diagnosis)],
        verdict=diagnosis.sentence,
        tiles=tiles(run, summary),
        evaluation=evaluated,
        is_simulated=run.files.is_simulated,
        promotion=run.files.decision,
        **drawn,
        timing=timing(run, summary),
        mistakes=mistakes.view(run.evaluation, answers, pictures, rows) if answers is not None and evaluated else None,
        csv=mistakes.FILE if has_csv else "",
        dataset=card.essentials(run.dataset, run.rejected) if run.dataset else None,
        dataset_sentence=dataset_sentence(run.dataset) if run.dataset else "",
        settings=settings_of(run.files.settings, training_examples(run.dataset)),
        changes=run.changes,
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


def _which_server(run: RecordedRun) -> str:
    """Say whose times the figure shows, and whose the numbers are. Each has one place on the page."""
    if run.slowest:
        return f"The figure shows server 0. The numbers above are those of server {run.slowest}, which waits most."
    return "The figure and the numbers above are those of server 0, which waits most."


def diagnose(run: RecordedRun) -> Verdict:
    """Return the verdict on the training server that waits most."""
    return diagnose_server(run.slowest, run.steps, run.servers[run.slowest].rows, run.epochs)


def quality(run: RecordedRun) -> Headline:
    """Say how good the model is, how sure that is, and how good a model without any input is."""
    figure, best = headline_in(run.evaluation), best_epoch(run.epochs)
    if figure:
        examples = f"{run.evaluation['examples']:,} {run.evaluation['split']} examples"
        return Headline(
            "Quality",
            f"{figure.metric.title} {figure.value_text}",
            f"({run.evaluation['intervals']['percent']}% interval {figure.interval_text}) on {examples}. The baseline "
            f"is {figure.baseline_text}.",
        )
    if best:
        return Headline("Quality", f"{best.title} {best.text}", f"in epoch {best.epoch}. The model was not evaluated.")
    if run.files.is_simulated:
        return Headline("Quality", "", "The steps were simulated, so the model learned nothing.")
    return Headline("Quality", "", "No epoch was completed, and the model was not evaluated.")


def speed(run: RecordedRun, summary: Summary, diagnosis: Verdict) -> Headline:
    """Say how fast the training is, what limits it, and what to change if the settings are valid here."""
    first_fact = f"{diagnosis.sentence.partition('; ')[0].rstrip('.')}."
    prepared, splits = run.dataset.get("settings") or {}, run.dataset.get("splits") or {}
    examples = {name: int(split.get("examples", 0)) for name, split in splits.items()}
    memory = run.files.host.get(FREE_MEMORY, 0)
    try:
        changes = load_changes(run.folder)
        settings = newest_settings(training_settings(run.files.settings), changes)
        kept = promises_on(run.folder, machine_of(run.files.host))
        facts = facts_of(
            diagnosis,
            settings,
            prepared,
            examples,
            folder=run.folder,
            memory_bytes=memory,
            kept=kept,
        )
        # The next thing to do follows from the steps with the newest settings.
        facts = since_change(facts, run.folder, changes)
        change = advice(facts.verdict, settings, prepared, predictions(facts))
    # This machine may lack a kind of source that the run used. Its verdict still holds.
    except SettingsError:
        change = ""
    rate = f"{three_digits(summary.examples_per_s)} examples per second." if summary.examples_per_s else ""
    return Headline("Speed", rate, f"{first_fact} {change}".rstrip())


def training_examples(dataset: Mapping[str, Any]) -> int:
    """Return the number of training examples in the content of `dataset.json`; 0 if it is not known."""
    return int((dataset.get("splits") or {}).get("train", {}).get("examples", 0))


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
    return Table(("time", "mean", "median", "std", "p95"), rows, "; ".join(notes) + ".")


def dataset_sentence(dataset: Mapping[str, Any]) -> str:
    """Say in a sentence where the dataset came from, and its version."""
    source = dataset["source"]["uri"]
    return (
        f"{dataset['name']}, version {dataset['version']}, made from {source}. The file card.html in its folder shows "
        "more."
    )


def facts(run: RecordedRun) -> list[tuple[str, Table]]:
    """Return (title, table of names and values) of what ran, and where, without the settings."""
    what_ran = {
        "run": run.files.run.get("run_id"),
        "dataset": run.files.run.get("dataset"),
        "dataset version": run.files.run.get("dataset_version"),
        "model": run.files.result.get("model"),
        "Comet": run.files.result.get("comet"),
    }
    groups = {
        "What ran": {name: value for name, value in what_ran.items() if value},
        "Result": run.files.result.get("metrics"),
        "Host": run.files.host,
        "Software": run.files.run.get("software"),
    }
    return fact_tables(groups)


def spread_cells(values: Spread | None, unit: str) -> tuple[str, ...]:
    """Return mean, median, standard deviation and 95th percentile as text; "-" for each if there are no values."""
    if values is None:
        return ("-",) * 4
    return tuple(f"{three_digits(each)} {unit}" for each in (values.mean, values.median, values.std, values.p95))
