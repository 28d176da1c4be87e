"""What a comparison says in sentences: which model is the best, which run is the fastest, how sure that is, and why."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from pipeline.evaluation.answers import Metric
from pipeline.evaluation.estimates import INTERVAL_PERCENT, RESAMPLES, Estimate
from pipeline.evaluation.metrics import evaluated_class
from pipeline.monitor.diagnosis import three_digits
from pipeline.monitor.limits import OTHERS
from pipeline.monitor.verdict import MIN_STEPS
from pipeline.report.compare import LETTERS, Comparison, Row, names_of, why_unpaired
from pipeline.report.compared_run import MIN_EPOCHS, SPEED, ComparedRun
from pipeline.report.components import text
from pipeline.report.ranking import Ranking, pairs_of
from pipeline.system.wording import counted

PARTS = {"data wait": "input/wait_ms", "compute": "step/compute_ms"}
"""Parts of the time of a step, by their names in a sentence."""
MIN_PART = 0.05
"""A part that explains less than this share of a difference is not named."""
MAX_NAMED = 6
"""Maximum number of runs that a sentence names together."""


def verdict(comparison: Comparison) -> str:
    """Say which model is the best, which run is the fastest, whether that is sure, and why."""
    return " ".join(paragraphs(comparison))


def paragraphs(comparison: Comparison) -> list[str]:
    """Return what the verdict says about the models, about the speed, and about the intervals in both."""
    of_models = quality_sentence(comparison), groups_sentence(comparison)
    of_speed = speed_sentence(comparison), reason(comparison)
    parts = [" ".join(filter(None, sentences)) for sentences in (of_models, of_speed)]
    has_interval = any(ranking and ranking.leads for ranking in (comparison.quality, comparison.speed))
    return [*filter(None, parts), *([_intervals(comparison)] if has_interval else [])]


def _intervals(comparison: Comparison) -> str:
    pairs = [f"those of all {each}" for each in _corrected_pairs(comparison)]
    hold = f" {pairs[0].capitalize()} hold together{''.join(f', as do {each}' for each in pairs[1:])}." if pairs else ""
    return f"Parentheses show {INTERVAL_PERCENT}% intervals.{hold}"


def _corrected_pairs(comparison: Comparison) -> list[str]:
    """Return for how many pairs the intervals of each ranking are corrected; nothing for a single pair."""
    rankings = {
        "models": comparison.quality,
        "groups": comparison.quality_of_groups,
        "speeds": comparison.speed,
    }
    return [
        f"{pairs_of(len(ranking.order))} pairs of {name}"
        for name, ranking in rankings.items()
        if ranking and ranking.leads and len(ranking.order) > 2
    ]


def quality_sentence(comparison: Comparison) -> str:
    """Say which model is the best, and whether that is sure."""
    ranking, metric = comparison.quality, comparison.metric
    if ranking is None or metric is None:
        return _nothing_to_rank(comparison)
    return " ".join(filter(None, (_best_sentence(comparison, ranking, metric), *_apart(comparison))))


def _apart(comparison: Comparison) -> Iterator[str]:
    """Yield which models are not ranked, and why."""
    if others := comparison.unranked:
        they = "They" if len(others) > 1 else "It"
        yield f"{_some(others)} cannot be compared with these models. {they} may be better or worse."
    if others := comparison.of_other_tasks:
        yield f"{_some(others)} {'have models' if len(others) > 1 else 'has a model'} of another task."


def _best_sentence(comparison: Comparison, ranking: Ranking, metric: Metric) -> str:
    best, count, title = LETTERS[ranking.best], len(ranking.order), _metric_title(comparison, metric)
    value = metric.text(comparison.scores[ranking.best])
    if ranking.is_sure:
        nearest = ranking.others[0]
        lead = _model_lead(metric, ranking, nearest)
        if count == 2:
            return f"{best} is surely the better model: its {title} is {value}. {lead}"
        return f"{best} is surely the best of {count} models: its {title} is {value}. {lead}"
    beaten = f" {best} is surely better than {_some(ranking.beaten)}." if ranking.beaten else ""
    return f"{_unsure(comparison, ranking, f'{best} has the best {title}, {value}')}{beaten}"


def _unsure(comparison: Comparison, ranking: Ranking, claim: str) -> str:
    assert comparison.metric is not None
    reasons = []
    if ranking.undecided:
        nearest = ranking.undecided[0]
        lead = _model_lead(comparison.metric, ranking, nearest)
        reasons.append(f"{_some(ranking.undecided)} may be as good. {lead}")
    if ranking.incomparable:
        reasons.append(f"{_some(ranking.incomparable)} cannot be compared with it.")
    return f"{claim}, but that is not sure: {' '.join(reasons)}"


def _model_lead(metric: Metric, ranking: Ranking, other: int) -> str:
    return f"The difference from {LETTERS[other]} is {metric.difference_text(ranking.leads[other])}."


def _some(numbers: Sequence[int]) -> str:
    """Return the names of runs, of many only the first ones."""
    first = ", ".join(LETTERS[number] for number in numbers[:MAX_NAMED])
    return names_of(numbers) if len(numbers) <= MAX_NAMED else f"{first} and {len(numbers) - MAX_NAMED} more"


def _metric_title(comparison: Comparison, metric: Metric) -> str:
    splits = {comparison.runs[number].split for number in comparison.scores}
    return f"test {metric.title}" if splits == {"test"} else metric.title


def _nothing_to_rank(comparison: Comparison) -> str:
    if comparison.scores:
        [only] = comparison.scores
        if others := comparison.of_other_tasks:
            return f"The models of {_some(sorted((only, *others)))} have different tasks, so they are not compared."
        return f"Only the model of {LETTERS[only]} was evaluated, so the models are not compared."
    if simulated := [number for number, run in enumerate(comparison.runs) if run.is_simulated]:
        return f"The steps of {names_of(simulated)} are simulated, so the models are not compared."
    return "No model was evaluated yet, so the models are not compared."


def groups_sentence(comparison: Comparison) -> str:
    """Say which settings are the best over seeds, and whether that is sure; empty without groups to compare."""
    ranking, metric, groups = comparison.quality_of_groups, comparison.metric, comparison.groups
    if ranking is None or metric is None or not ranking.leads:
        return ""
    best, nearest = ranking.best, min(ranking.leads, key=ranking.order.index)
    mean = sum(groups[best].scores) / len(groups[best].scores)
    difference = metric.difference_text(ranking.leads[nearest])
    sure = "surely the best" if ranking.is_sure else "not surely the best"
    return (
        f"Over seeds, the settings of {groups[best].letters} are {sure}: their mean {metric.title} is "
        f"{metric.text(mean)}. The difference from {groups[nearest].letters} is {difference}."
    )


def speed_sentence(comparison: Comparison) -> str:
    """Say which run is the fastest, by how much, and whether that is sure."""
    ranking, runs = comparison.speed, comparison.runs
    few = [number for number in range(len(runs)) if SPEED not in runs[number].measures]
    counts = ", ".join(f"{LETTERS[number]}: {runs[number].steady_steps:,}" for number in few)
    too_few = f"Too few steady steps to compare the speed ({counts}; {MIN_STEPS} are needed)." if few else ""
    if ranking is None:
        return too_few
    best, count = LETTERS[ranking.best], len(ranking.order)
    rate = f"{three_digits(runs[ranking.best].measures[SPEED].value)} examples a second in the steady steps"
    nearest, slowest = ranking.others[0], ranking.order[-1]
    leads = [_speed_lead(ranking, nearest, "" if nearest == slowest else ", the next one")]
    if nearest != slowest:
        leads.append(_speed_lead(ranking, slowest, ", the slowest one"))
    if ranking.is_sure:
        sentence = f"{best} is surely the fast{'er' if count == 2 else 'est'} run: {rate}."
    else:
        unsure = _some(ranking.undecided + ranking.incomparable)
        beaten = f" {best} is surely faster than {_some(ranking.beaten)}." if ranking.beaten else ""
        sentence = f"{best} has the highest speed, {rate}, but that is not sure: {unsure} may be as fast.{beaten}"
    return " ".join(filter(None, (sentence, *leads, too_few)))


def _speed_lead(ranking: Ranking, other: int, which: str) -> str:
    if other not in ranking.leads:
        return ""
    value, low, high = (1 + each for each in ranking.leads[other])
    interval = f"{three_digits(low)} to {three_digits(high)}" if isfinite(high) else "interval unknown"
    return f"It is {three_digits(value)} ({interval}) times as fast as {LETTERS[other]}{which}."


def reason(comparison: Comparison) -> str:
    """Say why the fastest run is faster than the slowest one: what differs in their work comes first."""
    ranking = comparison.speed
    if ranking is None:
        return ""
    fast, slow = ranking.best, ranking.order[-1]
    busy = _busy_by_others(comparison.runs, (fast, slow))
    if slow not in ranking.beaten:
        return f"Other programs kept {busy} busy, which may hide a difference." if busy else ""
    work = {name: values for name, values in comparison.differing_work.items() if values[fast] != values[slow]}
    causes = [*_work(work, fast, slow), *_machines(comparison.runs, fast, slow)]
    if busy:
        effect = "also add to" if causes else "explain"
        causes.append(f"Other programs kept {busy} busy, which may {effect} the difference.")
    return " ".join(causes or _parts(comparison.runs, fast, slow))


def _work(work: Mapping[str, Sequence[Any]], fast: int, slow: int) -> Iterator[str]:
    if work:
        pair = sorted((fast, slow))
        settings = "; ".join(
            f"{name} is " + " and ".join(f"{text(values[number])} in {LETTERS[number]}" for number in pair)
            for name, values in work.items()
        )
        yield f"Their steps do different work, which explains a difference in speed: {settings}."


def _machines(runs: Sequence[ComparedRun], fast: int, slow: int) -> Iterator[str]:
    pair = sorted((fast, slow))
    hardware = {number: (runs[number].usable_cores, runs[number].gpus) for number in pair}
    described = [
        f"{cores:g} usable {'core' if cores == 1 else 'cores'} and {counted(gpus, 'GPU')} in {LETTERS[each]}"
        for each, (cores, gpus) in hardware.items()
    ]
    if len({*hardware.values()}) > 1 and all(cores for cores, _ in hardware.values()):
        yield f"Their machines differ: {' and '.join(described)}."


def _busy_by_others(runs: Sequence[ComparedRun], pair: Sequence[int]) -> str:
    """Return how many cores other programs kept busy; empty if these are too few to slow down a run."""
    chosen = {number: runs[number] for number in sorted(pair)}
    if not any(run.other_cores > OTHERS * run.cores for run in chosen.values() if run.cores):
        return ""
    return " and ".join(
        f"{round(run.other_cores, 1):g} of {run.cores:g} cores during {LETTERS[number]}"
        for number, run in chosen.items()
    )


def _parts(runs: Sequence[ComparedRun], fast: int, slow: int) -> Iterator[str]:
    """Yield where the time of 1,000 examples differs."""
    per_example = [_seconds_of_1000(runs[number]) for number in (fast, slow)]
    saved = {part: per_example[1][part] - per_example[0][part] for part in per_example[0]}
    whole = sum(map(abs, saved.values()))
    shown = sorted((part for part in saved if abs(saved[part]) > MIN_PART * whole), key=lambda part: -abs(saved[part]))
    parts = " and ".join(
        f"{three_digits(abs(saved[part]))} s {'less' if saved[part] > 0 else 'more'} {part}" for part in shown
    )
    if parts:
        yield f"For 1,000 examples, {LETTERS[fast]} takes {parts}."


def _seconds_of_1000(run: ComparedRun) -> dict[str, float]:
    """Return the seconds of 1,000 examples by the parts of a step, from the means of the steady steps."""
    means = {each.over: found.value for each, found in run.measures.items() if not each.under and each.unit == "ms"}
    examples = run.measures[SPEED].value * means["step/time_ms"] / 1000
    seconds = {part: means[column] / examples for part, column in PARTS.items()}
    return {**seconds, "time in the loop": means["step/time_ms"] / examples - sum(seconds.values())}


def note(comparison: Comparison) -> str:
    """Say what the intervals mean, and which models are not compared example by example."""
    noun = "row" if any(evaluated_class(run.evaluation).noun == "row" for run in comparison.runs) else "image"
    corrected = "".join(
        f" Those of all {pairs} are widened (Bonferroni): they hold together in {INTERVAL_PERCENT}% of all comparisons."
        for pairs in _corrected_pairs(comparison)
    )
    over_seeds = (
        " The interval of a group says how much its mean would differ with other seeds (Welch's test)."
        if comparison.quality_of_groups
        else ""
    )
    return (
        f"Each interval covers {INTERVAL_PERCENT}%.{corrected} The interval of a model's figure says how much it would "
        f"differ with other {noun}s.{over_seeds} The interval of a time or a speed comes from {RESAMPLES:,} resamples "
        f"of blocks of neighboring steps, and from the epochs if there are at least {MIN_EPOCHS}. On another day, the "
        f"same settings can give other values.{_unpaired(comparison, noun)}"
    )


def _unpaired(comparison: Comparison, noun: str) -> str:
    """Say which models are not compared with the best one example by example, and why."""
    ranking, runs = comparison.quality, comparison.runs
    if ranking is None:
        return ""
    if why := why_unpaired(runs[ranking.best], runs[ranking.best]):
        return f" The models are not compared {noun} by {noun}: {LETTERS[ranking.best]} {why}."
    others = [number for number in comparison.scores if number != ranking.best]
    whys = {number: why for number in others if (why := why_unpaired(runs[number], runs[ranking.best]))}
    if not whys:
        return ""
    reasons = (
        f"{names_of(sorted(number for number in whys if whys[number] == why))} {why}"
        for why in dict.fromkeys(whys.values())
    )
    return f" Not compared with {LETTERS[ranking.best]} {noun} by {noun}: {'; '.join(reasons)}."


def cells(row: Row) -> tuple[str, ...]:
    """Return name and values as text; of two runs also the difference and its interval. "-" is an unknown value."""

    def shown(value: float | None) -> str:
        return "-" if value is None else row.text_of(value)

    def spread(number: int) -> str:
        return " to ".join(map(row.text_of, row.intervals[number])) if number in row.intervals else "-"

    if len(row.values) == 2:
        return (row.name, *map(shown, row.values), shown(row.difference(1)), spread(1))
    return (row.name, *map(shown, row.values))


def head(count: int) -> tuple[str, ...]:
    """Return the head of the table of all figures."""
    names = LETTERS[:count]
    beside = ("B minus A", f"{INTERVAL_PERCENT}% interval of that") if count == 2 else ()
    return ("figure", *names, *beside)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return what the option --json prints."""
    return {
        "verdict": verdict(comparison),
        "rows": [row.as_json() for row in comparison.rows],
        "differing": {name: list(values) for name, values in comparison.differing.items()},
        "groups": [
            {"runs": [LETTERS[each].lower() for each in group.members], "scores": list(group.scores)}
            for group in comparison.groups
        ],
        "note": note(comparison),
    }


def format_comparison(result: Mapping[str, Any]) -> str:
    """Return the result of `as_json`, with the places of the runs, as lines for a terminal."""
    places = [result[letter.lower()] for letter in LETTERS if letter.lower() in result]
    table = [head(len(places)), *(cells(_row_of(row, len(places))) for row in result["rows"])]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    differing = [f"{name}: {' | '.join(map(str, values))}" for name, values in result["differing"].items()]
    names = " | ".join(LETTERS[: len(places)])
    runs = [f"{letter}  {place}" for letter, place in zip(LETTERS, places, strict=False)]
    shown = [f"what differs, {names}:", *differing, ""] if differing else []
    return "\n".join([result["verdict"], "", *runs, "", *lines, "", *shown, result["comparison"]])


def _row_of(content: Mapping[str, Any], count: int) -> Row:
    values = tuple(content[letter.lower()] for letter in LETTERS[:count])
    low, high = content.get("low"), content.get("high")
    intervals = {} if low is None or high is None else {1: (low, high)}
    return Row(content["name"], content["unit"], values, intervals=intervals, metric=content["metric"])


def lead_text(metric: Metric, lead: Estimate) -> str:
    """Return how much a model differs from the best one, with the interval."""
    return metric.difference_text(Estimate(-lead.value, -lead.high, -lead.low))
