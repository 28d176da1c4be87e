"""The decision of the data gate: log a finding and continue, ask a person, or stop the run.

The gate runs once after planning, before anything is written, and once before the commit. All facts about the examples
are in one mapping, `quality` in `dataset.json`, which grows in between.
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.errors import GateError
from pipeline.gate.findings import Finding, GateOptions, findings
from pipeline.gate.notices import notices

Ask = Callable[[str], bool]
"""Asks a person whether to continue in spite of a finding. Takes its sentence, and returns the answer."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Gate:
    """The data gate of a run. The methods take `quality` of `dataset.json`, as far as it is known."""

    options: GateOptions
    ask: Ask | None
    """Asks a person about a finding; None if there is no terminal and no task that can ask."""

    def report(self, quality: Mapping[str, Any], planned: Mapping[str, Any] | None = None) -> None:
        """Log the notices about `quality`. The plan has already logged those about the facts `planned`."""
        reported = notices(planned) if planned else []
        for notice in notices(quality):
            if notice not in reported:
                _log.warning(notice)

    def decide(self, quality: Mapping[str, Any], planned: Mapping[str, Any] | None = None) -> list[str]:
        """Decide about the findings, and return the sentences of all.

        A finding that the plan already reported about the facts `planned` is decided again only if it stops the run.
        """
        found, reported = findings(quality, self.options), findings(planned or {}, self.options)
        act_on([each for each in found if each.action == "fail" or each not in reported], self.ask)
        return [finding.sentence for finding in found]


def act_on(found: Sequence[Finding], ask: Ask | None) -> None:
    """Log each finding, and continue or stop as its action says. `ask` asks a person, and returns their answer.

    Raises GateError with all sentences that stop the run, and the settings that would let it continue.
    """
    for finding in found:
        if finding.action == "continue":  # The others are in the error or in the question.
            _log.warning("%s", finding.sentence)
    # This comes before any question, because the run stops whatever the answer is.
    if failing := [finding for finding in found if finding.action == "fail"]:
        raise GateError(_stopped(failing))
    asking = [finding for finding in found if finding.action == "ask"]
    if asking and ask is None:
        raise GateError(f"{_stopped(asking)}, or run this in a terminal or in Airflow, where a person can be asked")
    for finding in asking:
        if ask is not None and not ask(finding.sentence):
            raise GateError(f"a person answered no: {_stopped([finding])}")


def ask_terminal() -> Ask | None:
    """Return a function that asks the person at the terminal; None if there is no terminal."""
    return _ask if sys.stdin.isatty() and sys.stderr.isatty() else None


def ask_later(sentence: str) -> bool:
    """Continue for now. In a DAG, a person is asked once, by a task before anything is published."""
    _log.warning("%s. A person is asked about this when the shards are written", sentence)
    return True


def _ask(sentence: str) -> bool:
    """Ask on stderr, because the last line of stdout is for programs. An empty line or no line means no."""
    sys.stderr.write(f"{sentence}\nContinue? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _stopped(findings: Sequence[Finding]) -> str:
    settings = " ".join(f"{finding.setting}=continue" for finding in findings)
    return f"{'; '.join(finding.sentence for finding in findings)}. To continue, set {settings}"
