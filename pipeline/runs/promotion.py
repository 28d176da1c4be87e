"""Promotion: decides whether the model of a run takes the place of the champion. No TensorFlow here.

The model is compared with the champion, and with the best champion so far if that is another one. Both answer the same
examples as the model: those by which its run was evaluated. `promotion_rule.py` says when the model is promoted.
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
from typing import Any
from zipfile import BadZipFile

import numpy as np

from pipeline import storage
from pipeline.config.allowed import require_folder, require_output
from pipeline.config.settings import Settings
from pipeline.config.workspace import champion_folder, workspace_of
from pipeline.errors import (
    ConflictError,
    DatasetError,
    FormatError,
    PromotionError,
    SettingsError,
    SourceError,
    TenfoldError,
    TrainingError,
)
from pipeline.evaluation.answers import Answers
from pipeline.evaluation.metrics import EVALUATION, load_predictions
from pipeline.runs import champion
from pipeline.runs.champion import Entry, Pointer, Rollback, effective_promotions, pointer_of
from pipeline.runs.decision import Decision
from pipeline.runs.files import (
    COMET_LOGGED,
    PROMOTION,
    RUN,
    read_or_empty,
    read_required,
    require_run_format,
    with_moved_dataset,
)
from pipeline.runs.promotion_rule import Rules, compare, judge_first, why_incomparable
from pipeline.runs.run import find_exported_model, load_about, load_result, take_failure
from pipeline.storage import Place, place_of
from pipeline.system.process import command_of, environment_of_tensorflow

_log = logging.getLogger(__name__)


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
    """Promote the model of a training if `settings` allow it and it passes the comparison.

    Returns {"promoted", "decision", "why", "champion", "pointer"}, and writes them to `promotion.json` of the run. If
    its results are logged to Comet, the decision is logged there, too. For a run that was promoted before, the result
    is the same, and the pointer does not move. If two runs are promoted at the same time, the second is compared with
    the first.

    `output` is the file descriptor that gets the output of the processes that evaluate champions or log to Comet. Of
    `settings`, `promote` names the rule, and `max_worse` says how much worse a model may be.

    Raises:
        SourceError: The training is not complete, or its predictions are missing.
        PromotionError: The pointer is damaged.
        DatasetError, TrainingError: A champion must be evaluated, and cannot be.
    """
    candidate = load_candidate(run)
    rules = Rules(settings.promote, settings.max_worse, settings.seed)
    decision = _decided(candidate, rules, output)
    _log.log(logging.INFO if decision.is_promoted else logging.WARNING, "%s", decision.sentence)
    return _saved(candidate, decision, output)


def promote_by_hand(run: Place, output: int) -> dict[str, Any]:
    """Promote the model of a training, whatever a comparison would say.

    Takes, returns and raises what `promote_if_better` does.
    """
    candidate = load_candidate(run)
    if candidate.is_simulated:
        raise PromotionError(
            f"{candidate.run} was trained with simulated_step_ms, so its model learned nothing: train again without it"
        )
    pointer = candidate.pointer()
    if pointer.champion and pointer.champion.run == str(candidate.run):
        # A process that was killed may have left no `promotion.json`.
        return _saved(candidate, Decision("promoted", pointer.champion.why), output)
    decision = Decision("promoted", champion.BY_HAND)
    _promote(pointer, candidate, decision)
    return _saved(candidate, decision, output)


def roll_back(pointer: Pointer, output: int) -> Rollback:
    """Make the champion before the last one the champion again.

    `promotion.json` of the run that is taken back says so, if its files are still there. `output` is that of
    `promote_if_better`.

    Raises what `champion.roll_back` does.
    """
    rollback = champion.roll_back(pointer)
    try:
        candidate = load_candidate(place_of(rollback.taken_back.run))
    except TenfoldError as error:
        _log.warning("%s cannot be marked as rolled back: %s", rollback.taken_back.run, error)
    else:
        moved = candidate.pointer()
        if before := moved.promotion_of(str(candidate.run)):
            _saved(candidate, _since(before, moved), output)
    return rollback


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
    dataset = place_of(with_moved_dataset(run_json, place)["dataset"])
    require_output(dataset)
    return Candidate(
        run=place,
        export=export,
        dataset=dataset,
        about=load_about(export),
        result=result,
        is_simulated=bool(run_json["settings"]["simulated_step_ms"]),
    )


def _decided(candidate: Candidate, rules: Rules, output: int) -> Decision:
    while True:
        pointer = candidate.pointer()
        # A cleared task must not promote an older model over the champion that came after it.
        if before := pointer.promotion_of(str(candidate.run)):
            return _since(before, pointer)
        decision = _decide(candidate, pointer, rules, output)
        if not decision.is_promoted and candidate.pointer().content != pointer.content:
            continue  # Another model became the champion meanwhile.
        if decision.outcome == "asked":
            advice = f"To promote it anyway, run `python -m pipeline promote {candidate.run}`"
            return Decision("asked", f"{decision.reason}. {advice}")
        if not decision.is_promoted:
            return decision
        with suppress(ConflictError):  # Another run was promoted first. Compare with that one.
            _promote(pointer, candidate, decision)
            return decision


def _since(before: Entry, pointer: Pointer) -> Decision:
    """Return what became of the last promotion of a run. Clearing its task does not promote it again."""
    standing = effective_promotions(pointer.history)
    name = short_name(standing[-1].run)
    if all(each is not before for each in standing):
        return Decision("rolled_back", f"its promotion of {before.at} was taken back, and {name} is the champion")
    if standing[-1].run == before.run:
        return Decision("promoted", before.why)
    note = f"decided on {before.at}; by now {name} is the champion, and stays it"
    return Decision("promoted", f"{before.why} ({note})")


def _promote(pointer: Pointer, candidate: Candidate, decision: Decision) -> None:
    entry = Entry(
        action=champion.PROMOTE,
        run=str(candidate.run),
        export=str(candidate.export),
        dataset_version=candidate.about["dataset_version"],
        metrics=candidate.result["metrics"],
        score=_score(candidate.run),
        why=decision.reason,
        at=champion.now(),
        by=champion.user(),
    )
    champion.move(pointer, entry)


def _score(run: Place) -> float | None:
    """Return the score of a run on its own examples; None if they are unknown, or if it is no number."""
    try:
        score = load_predictions(run).score
    except (FileNotFoundError, ValueError, BadZipFile):  # A person may promote a run that has lost its predictions.
        return None
    return score if isfinite(score) else None


def _saved(candidate: Candidate, decision: Decision, output: int) -> dict[str, Any]:
    """Write `promotion.json`, log the decision to Comet, and return the content."""
    pointer = candidate.pointer()
    content = {
        **decision.to_json(),
        "champion": pointer.champion.run if pointer.champion else "",
        "pointer": str(pointer.place),
    }
    storage.write_json(candidate.run / PROMOTION, content, indent=1)
    # A retry does not log the decision again, and a training that was not logged has no experiment to add it to.
    logged = read_or_empty(candidate.run / COMET_LOGGED)
    if logged and logged.get("promotion") != decision.sentence:
        # In a process of its own, because comet_ml changes its process. It says itself if it fails.
        _run("pipeline.training.log.promoted", str(candidate.run), str(os.getpid()), output=output)
    return content


def _decide(candidate: Candidate, pointer: Pointer, rules: Rules, output: int) -> Decision:
    if candidate.is_simulated:
        return Decision("kept", "the model was trained with simulated_step_ms, so it learned nothing")
    if rules.promote == "never":
        return Decision("kept", "promote=never")
    if rules.promote == "always":
        return Decision("promoted", "without a comparison, because promote=always")
    champion = pointer.champion
    if champion and champion.is_there and (reason := _why_incomparable(candidate, champion)):
        return Decision("asked", reason)
    ours = _answers_of(candidate.run)
    split = str(read_or_empty(candidate.run / EVALUATION).get("split", "validation"))
    reasons = []
    for other, entry in _references(candidate, pointer, rules, ours).items():
        try:
            theirs = _answers_of_champion(entry, candidate, ours, output)
        except (DatasetError, TrainingError) as error:
            if entry is champion:
                raise
            _log.warning("%s is left out of the comparison: %s", short_name(entry.run), error)
            continue
        decision = compare(ours, theirs, other, rules, split)
        if not decision.is_promoted:
            return decision
        reasons.append(decision.reason)
    if champion and champion.is_there:
        return Decision("promoted", "; ".join(reasons))
    first = f"the first model of {candidate.about['dataset']!r}"
    what = f"the model in place of the missing champion {champion.export}" if champion else first
    decision = judge_first(ours, what, rules, split)
    return decision._replace(reason="; ".join([*reasons, decision.reason])) if decision.is_promoted else decision


def _references(candidate: Candidate, pointer: Pointer, rules: Rules, ours: Answers) -> dict[str, Entry]:
    """Return the champions with which a model is compared, by how a sentence calls them.

    They are the champion, and the best champion so far if that is another one: the one with the best score on the
    examples of its own run. That score only chooses the model. What counts is its score on the candidate's examples.
    Models that are missing, or that cannot be compared with the candidate, are left out.
    """
    champion = pointer.champion
    found = {short_name(champion.run): champion} if champion and champion.is_there else {}
    if rules.needs_proof:
        return found
    for entry in pointer.best_first(ours.scored_by.lower_is_better):
        if champion and found and entry.run == champion.run:
            break
        # An older version of Tenfold exported the model, its place is not allowed any more, or its files are damaged.
        with suppress(FormatError, SettingsError, ValueError, KeyError):
            require_folder(place_of(entry.run))
            require_folder(place_of(entry.export))
            if entry.is_there and not _why_incomparable(candidate, entry):
                return {**found, f"{short_name(entry.run)}, the best champion so far,": entry}
    return found


def _why_incomparable(candidate: Candidate, champion: Entry) -> str:
    about = load_about(place_of(champion.export))
    return why_incomparable(candidate.about, about, short_name(champion.run))


def short_name(run: str) -> str:
    """Return a training as people find it: its run and its own folder."""
    place = place_of(run)
    return f"{place.parent.name}/{place.name}"


def _answers_of(run: Place) -> Answers:
    try:
        return load_predictions(run)
    except FileNotFoundError as error:
        raise SourceError(
            f"{run} has no predictions.npz, so its model cannot be compared with others: remove this folder and train "
            "again"
        ) from error


def _answers_of_champion(champion: Entry, candidate: Candidate, ours: Answers, output: int) -> Answers:
    """Return the answers of a champion to the examples of the candidate, whose answers are `ours`."""
    if champion.dataset_version == candidate.about["dataset_version"]:
        # A person may have kept only the exported model of the champion's run.
        with suppress(FileNotFoundError, ValueError, BadZipFile):
            stored = load_predictions(place_of(champion.run))
            # Stored predictions only count if they are about the same examples in the same order.
            if np.array_equal(stored.label, ours.label):
                return stored
    return _evaluated(place_of(champion.export), candidate.dataset, output)


def _evaluated(export: Place, dataset: Place, output: int) -> Answers:
    """Return the answers of an exported model to the images of `judged_split`, at the model's own image size.

    The model runs in a separate process, because TensorFlow frees a GPU only when its process ends.
    """
    _log.info("evaluating %s on the examples of %s", export, dataset)
    with tempfile.TemporaryDirectory(prefix="tenfold-") as name:
        folder = Path(name)
        exported = ("pipeline.training.served.exported", str(export), str(dataset), name, str(os.getpid()))
        if code := _run(*exported, output=output):
            raise take_failure(folder) or TrainingError(
                f"the evaluation of {export} ended with exit code {code}; its last lines are above"
            )
        return load_predictions(folder)


def _run(module: str, *arguments: str, output: int) -> int:
    """Run a module of this project to its end, and return its exit code."""
    # In the group of this process: a signal to all of a stopped task ends it too, and it has nothing to save.
    return subprocess.run(
        command_of(module, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environment_of_tensorflow(),
        check=False,
    ).returncode
