"""Questions of the data gate and the answers of a person, if the stages run as tasks without a terminal."""

from collections.abc import Iterable

from pipeline import storage
from pipeline.config.allowed import require_folder
from pipeline.config.settings import Settings
from pipeline.errors import GateError
from pipeline.gate.decide import Ask, act_on
from pipeline.gate.findings import findings, gate_options
from pipeline.plan.plan import load_plan
from pipeline.sharding.finished_shards import quality_of
from pipeline.storage import Place

_APPROVED = "approved.json"
"""This file beside the plan holds the sentences that a person approved."""


def questions_about(plan_path: Place, settings: Settings) -> list[str]:
    """Return what to ask a person before the dataset of a plan is published, without what was approved before.

    Raises GateError if the run must stop anyway, FileSystemError if a shard was not written.
    """
    options = gate_options(settings)
    if "ask" not in options.actions.values():
        return []
    all_findings = findings(quality_of(load_plan(plan_path)), options)
    # A run that must stop anyway should not ask a person first.
    act_on([finding for finding in all_findings if finding.action == "fail"], None)
    approved = _approved(plan_path)
    return [
        finding.sentence for finding in all_findings if finding.action == "ask" and finding.sentence not in approved
    ]


def approve(plan_path: Place, sentences: Iterable[str]) -> None:
    """Save what a person approved, so that neither a cleared task nor a later run of the same examples asks again.

    Raises SettingsError if the administrator does not allow the folder of the plan.
    """
    require_folder(plan_path.parent)
    approved = sorted(_approved(plan_path).union(sentences))
    storage.write_json(plan_path.parent / _APPROVED, approved, indent=1, synced=True)
    storage.sync_folder(plan_path.parent)


def answers(plan_path: Place) -> Ask:
    """Return a function that gives the answers of an earlier task. It raises GateError for a question that is new."""

    def answer(sentence: str) -> bool:
        approved = _approved(plan_path)
        if sentence not in approved:
            raise new_question_error([sentence], approved)
        return True

    return answer


def new_question_error(sentences: Iterable[str], approved: Iterable[str]) -> GateError:
    """Return the error for new questions, which arise if the examples are now compared with another version."""
    before = "; ".join(sorted(approved))
    return GateError(
        f"nobody was asked about this: {'; '.join(sentences)}. "
        f"{f'A person approved: {before}. ' if before else ''}"
        "The comparison changed after the examples were compared, because another run committed a version of this "
        "dataset name: trigger this DAG again with the same settings. It keeps the shards and asks the new question"
    )


def _approved(plan_path: Place) -> frozenset[str]:
    try:
        return frozenset(storage.read_json(plan_path.parent / _APPROVED))
    except (FileNotFoundError, ValueError):  # Of a file that a power loss tore, nothing counts as approved.
        return frozenset()
