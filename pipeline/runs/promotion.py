"""Promotion: decides whether the model of a run takes the place of the champion. No TensorFlow here.

The two models are compared on the same validation images, those of the run, pair by pair. The run is refused if it is
certainly worse: if the whole interval of the difference in accuracy (95%, bootstrap) is below `-max_worse`. If an image
may have several labels, the mean average precision is compared. A model without a measurable difference is promoted,
because it has seen newer data.

Models for tables are compared by their error on the same rows: by the log loss if rows have classes, and by the mean
absolute error in a regression. An error can be of any size, so `max_worse` is then a share of the champion's error.
"""

import logging
import os
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline import storage
from pipeline.config.allowed import require_folder, require_output
from pipeline.config.settings import Settings
from pipeline.config.workspace import champion_folder, workspace_of
from pipeline.errors import ConflictError, PromotionError, SourceError, TrainingError
from pipeline.evaluation.answers import Answers, Metric
from pipeline.evaluation.estimates import Estimate
from pipeline.evaluation.metrics import EVALUATION, difference, load_predictions
from pipeline.runs import champion
from pipeline.runs.champion import Entry, Pointer, pointer_of
from pipeline.runs.files import PROMOTION, RUN, read_or_empty, read_required, require_run_format
from pipeline.runs.run import find_exported_model, load_about, load_result, take_failure
from pipeline.storage import Place, place_of
from pipeline.system.process import command_of, environment_of_tensorflow

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Rules:
    """When a model is promoted: the settings of the same names."""

    promote: str
    max_worse: float
    seed: int


class Decision(NamedTuple):
    """Whether a model is to be promoted, and why or why not, in one sentence."""

    is_promoted: bool
    sentence: str


@dataclass(frozen=True)
class Candidate:
    """A complete training that asks to be promoted."""

    run: Place
    export: Place
    dataset: Place
    about: Mapping[str, Any]
    result: Mapping[str, Any]
    is_simulated: bool
    """Whether its steps computed nothing (`simulated_step_ms`)."""

    def pointer(self) -> Pointer:
        """Return what names the champion of its dataset name, as it is now.

        Raises SettingsError if the administrator does not allow its place, or that of the champion.
        """
        workspace, name = workspace_of(self.run), self.about["dataset"]
        require_folder(champion_folder(workspace, name))
        pointer = pointer_of(workspace, name)
        if pointer.champion:
            require_folder(place_of(pointer.champion.run))
            require_folder(place_of(pointer.champion.export))
        return pointer


def promote_if_better(run: Place, settings: Settings, output: int) -> dict[str, Any]:
    """Promote the model of a training if `settings` allow it and it is not worse than the champion.

    Returns {"promoted", "why", "champion", "pointer"}, and writes them to `promotion.json` of the run. For a run
    that was promoted before, the result is the same, and the pointer does not move. If two runs are promoted at the
    same time, the second is compared with the first.

    `output` is the file descriptor that gets the output of a process that evaluates the champion. Of `settings`,
    `promote` says whether to promote at all, and `max_worse` how much worse a model may be.

    Raises:
        SourceError: The training is not complete, or its predictions are missing.
        PromotionError: The pointer is damaged.
        DatasetError, TrainingError: The champion must be evaluated, and cannot be.
    """
    candidate = load_candidate(run)
    rules = _Rules(settings.promote, settings.max_worse, settings.seed)
    decision = _decided(candidate, rules, output)
    _log.log(logging.INFO if decision.is_promoted else logging.WARNING, "%s", decision.sentence)
    content = _content(candidate, decision)
    storage.write_json(candidate.run / PROMOTION, content, indent=1)
    return content


def promote_by_hand(run: Place) -> dict[str, Any]:
    """Promote the model of a training, whatever a comparison would say.

    Returns and raises what `promote_if_better` does.
    """
    candidate = load_candidate(run)
    if candidate.is_simulated:
        raise PromotionError(
            f"{candidate.run} was trained with simulated_step_ms, so its model learned nothing: train again without it"
        )
    pointer = candidate.pointer()
    if pointer.champion and pointer.champion.run == str(candidate.run):
        return _content(candidate, Decision(True, "it is the champion already"))
    decision = Decision(True, "promoted: by hand")
    _promote(pointer, candidate, decision)
    return _content(candidate, decision)


def load_candidate(run: Place) -> Candidate:
    """Return the training in `run`.

    Raises SourceError if none is complete there, and SettingsError if the administrator does not allow it or its
    dataset.
    """
    # Absolute, because the pointer names it for programs in other folders.
    place = run.resolve() if isinstance(run, Path) else run
    require_folder(place)
    export, result = find_exported_model(place), load_result(place)
    if result is None:
        raise SourceError(f"{place} has no complete training: there is no result.json")
    run_json = read_required(place / RUN)
    require_run_format(run_json, place)
    dataset = place_of(run_json["dataset"])
    require_output(dataset)
    return Candidate(
        run=place,
        export=export,
        dataset=dataset,
        about=load_about(export),
        result=result,
        is_simulated=bool(run_json["settings"]["simulated_step_ms"]),
    )


def _decided(candidate: Candidate, rules: _Rules, output: int) -> Decision:
    while True:
        pointer = candidate.pointer()
        # A cleared task must not promote an older model over the champion that came after it.
        if before := pointer.promotion_of(str(candidate.run)):
            return Decision(True, before.why + _since(pointer, before))
        decision = _decide(candidate, pointer.champion, rules, output)
        if not decision.is_promoted:
            return decision
        with suppress(ConflictError):  # Another run was promoted first. Compare with that one.
            _promote(pointer, candidate, decision)
            return decision


def _since(pointer: Pointer, before: Entry) -> str:
    """Return a note if the run is no longer the champion. Clearing its task does not promote it again."""
    champion = pointer.champion
    if champion is None or champion.run == before.run:
        return ""
    return f" (decided on {before.at}; by now {short_name(champion.run)} is the champion, and stays it)"


def _promote(pointer: Pointer, candidate: Candidate, decision: Decision) -> None:
    version, metrics = candidate.about["dataset_version"], candidate.result["metrics"]
    champion.promote(pointer, str(candidate.run), str(candidate.export), version, metrics, decision.sentence)


def _content(candidate: Candidate, decision: Decision) -> dict[str, Any]:
    pointer = candidate.pointer()
    return {
        "promoted": decision.is_promoted,
        "why": decision.sentence,
        "champion": pointer.champion.run if pointer.champion else "",
        "pointer": str(pointer.place),
    }


# --- the decision -----------------------------------------------------------------------------------------------------


def _decide(candidate: Candidate, champion: Entry | None, rules: _Rules, output: int) -> Decision:
    if candidate.is_simulated:
        return Decision(False, "not promoted: the model was trained with simulated_step_ms, so it learned nothing")
    if rules.promote == "never":
        return Decision(False, "not promoted: promote=never")
    if rules.promote == "always":
        return Decision(True, "promoted without a comparison: promote=always")
    if champion is None:
        return Decision(True, f"promoted: the first model of {candidate.about['dataset']!r}")
    if not champion.is_there:
        return Decision(True, f"promoted without a comparison: the champion's model {champion.export} is missing")
    about = load_about(place_of(champion.export))
    if difference := _difference(candidate.about, about, short_name(champion.run)):
        advice = f"To promote it anyway, run `python -m pipeline promote {candidate.run}`"
        return Decision(False, f"not promoted: {difference}. {advice}")
    theirs, ours = _on_the_same_images(candidate, champion, output)
    split = str(read_or_empty(candidate.run / EVALUATION).get("split", "validation"))
    return compare_answers(ours, theirs, short_name(champion.run), rules.max_worse, rules.seed, split)


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any], champion: str) -> str:
    """Return why the champion's model cannot be compared, from about.json of both models; empty if it can."""
    apart = "so they cannot be compared"
    if bool(ours["labels"]) != bool(theirs["labels"]):
        learned = "class" if theirs["labels"] else "number"
        return f"the champion {champion} predicts a {learned}, and this model does not, {apart}"
    # Label maps only grow, so the shorter list must be the beginning of the longer one.
    if any(label != other for label, other in zip(ours["labels"], theirs["labels"], strict=False)):
        return (
            f"some ids have other labels than in the champion {champion}, which can break programs that use the "
            "champion"
        )
    if ("columns" in ours) != ("columns" in theirs):
        takes = ["images", "the rows of a table"]
        one, other = takes if "columns" in ours else reversed(takes)
        return f"the champion {champion} takes {one}, and this model takes {other}, {apart}"
    # A model takes all features of its table, so these are the columns of the rows of the comparison.
    known = {column["name"]: column for column in ours.get("columns", ())}
    for column in theirs.get("columns", ()):
        name, here = column["name"], known.get(column["name"])
        if here is None:
            is_other = "which is no input of this model"
        elif (here["type"], here["is_list"]) != (column["type"], column["is_list"]):
            is_other = f"which holds {_words_of(here)} values in this model's table"
        else:
            continue
        return f"the champion {champion} takes the {_words_of(column)} column {name!r}, {is_other}, {apart}"
    return ""


def _words_of(column: Mapping[str, Any]) -> str:
    return f"list of {column['type']}" if column["is_list"] else str(column["type"])


def compare_answers(
    ours: Answers, theirs: Answers, champion: str, max_worse: float, seed: int, split: str = "validation"
) -> Decision:
    """Return the decision on the same examples, those of `split`; `champion` is the name of the other model."""
    estimate, metric = difference(ours, theirs, seed), ours.scored_by
    comparison = (
        f"{metric.title} {metric.text(ours.score)} against {metric.text(theirs.score)} of {champion} on the same "
        f"{len(ours.label):,} {split} {ours.noun}s, a difference of {difference_text(metric, estimate)}"
    )
    if not isfinite(estimate.value):
        return Decision(False, f"not promoted: {comparison}, which is no number")
    is_error = metric.lower_is_better
    gain, least_loss = (-estimate.value, estimate.low) if is_error else (estimate.value, -estimate.high)
    # An error can be of any size, so the limit is a share of it.
    if least_loss > max_worse * (theirs.score if is_error else 1):
        allowed = f", by more than max_worse={max_worse:g} allows" if max_worse else ""
        return Decision(False, f"not promoted: {comparison}. The model is worse over the whole interval{allowed}")
    chance = ". It is worse, but this may be chance" if gain < 0 else ""
    return Decision(True, f"promoted: {comparison}{chance}")


def difference_text(metric: Metric, estimate: Estimate) -> str:
    """Return a difference of scores and its interval: of shares, in percentage points."""
    return metric.difference_text(estimate)


def short_name(run: str) -> str:
    """Return a training as people find it: its run and its own folder."""
    place = place_of(run)
    return f"{place.parent.name}/{place.name}"


# --- what both say of the same images ---------------------------------------------------------------------------------


def _on_the_same_images(candidate: Candidate, champion: Entry, output: int) -> tuple[Answers, Answers]:
    """Return what the champion and the candidate say of the images that judge the candidate."""
    try:
        ours, theirs = load_predictions(candidate.run), None
    except FileNotFoundError as error:
        raise SourceError(
            f"{candidate.run} has no predictions.npz, so its model cannot be compared with the champion: remove this "
            "folder and train again"
        ) from error
    if champion.dataset_version == candidate.about["dataset_version"]:
        with suppress(FileNotFoundError):  # A person may have kept only the exported model of the champion's run.
            theirs = load_predictions(place_of(champion.run))
    # Stored predictions only count if they are about the same examples in the same order.
    if theirs is None or not np.array_equal(theirs.label, ours.label):
        theirs = _evaluated(place_of(champion.export), candidate.dataset, output)
    return theirs, ours


def _evaluated(export: Place, dataset: Place, output: int) -> Answers:
    """Return the answers of an exported model to the images of `judged_split`, at the model's own image size.

    The model runs in a separate process, because TensorFlow frees a GPU only when its process ends.
    """
    _log.info("evaluating %s on the examples of %s", export, dataset)
    with tempfile.TemporaryDirectory(prefix="tenfold-") as name:
        folder = Path(name)
        # In the group of this process: a signal to all of a stopped task ends it too, and it has nothing to save.
        code = subprocess.run(
            command_of("pipeline.training.served.exported", str(export), str(dataset), name, str(os.getpid())),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment_of_tensorflow(),
            check=False,
        ).returncode
        if code:
            raise take_failure(folder) or TrainingError(
                f"the evaluation of {export} ended with exit code {code}; its last lines are above"
            )
        return load_predictions(folder)
