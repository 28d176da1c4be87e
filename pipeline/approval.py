"""What a person is asked, and what they agreed to, where the stages run as tasks that have no terminal."""

import json
from collections.abc import Iterable

from pipeline import storage
from pipeline.config import Settings
from pipeline.plan_files import load_plan
from pipeline.quality.gate import Ask, actions, decide, findings
from pipeline.storage import Place
from pipeline.upload import quality_of

_APPROVED = "approved.json"


def questions(plan_path: Place, settings: Settings) -> list[str]:
    """What a person is to be asked before the data set of a plan is published; nothing that was approved before.

    Raises GateError where the run is stopped anyway, DatasetError where a shard was not written.
    """
    if "ask" not in actions(settings):
        return []
    found = findings(quality_of(load_plan(plan_path)), settings)
    decide([finding for finding in found if finding.action == "fail"], None)
    asking = [finding.sentence for finding in found if finding.action == "ask"]
    return [sentence for sentence in asking if not answers(plan_path)(sentence)]


def approve(plan_path: Place, sentences: Iterable[str]) -> None:
    """Keep what a person agreed to: neither a task that is cleared nor a later run of the same images asks again."""
    with storage.write_whole(plan_path.parent / _APPROVED) as file:
        file.write(json.dumps(sorted(_approved(plan_path).union(sentences)), indent=1).encode())


def answers(plan_path: Place) -> Ask:
    """Answers as the person did who was asked by an earlier task."""
    return _approved(plan_path).__contains__


def _approved(plan_path: Place) -> frozenset[str]:
    try:
        return frozenset(storage.read_json(plan_path.parent / _APPROVED))
    except FileNotFoundError:
        return frozenset()
