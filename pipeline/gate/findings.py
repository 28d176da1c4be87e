"""What exceeds a threshold of the data gate. The checks themselves are in pipeline/config/data_gate.py."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.config.data_gate import CHECKS, Action
from pipeline.config.settings import Settings


@dataclass(frozen=True)
class Finding:
    """Facts that exceed a threshold, as a sentence, and the action that `setting` chooses."""

    setting: str
    sentence: str
    action: Action


@dataclass(frozen=True)
class GateOptions:
    """The action and the threshold of each check, by the name of its setting."""

    actions: Mapping[str, Action]
    thresholds: Mapping[str, float]


def gate_options(settings: Settings) -> GateOptions:
    """Return the options of the gate that the settings ask for. A stage makes them once, when it begins."""
    return GateOptions(
        actions={check.action.name: getattr(settings, check.action.name) for check in CHECKS},
        thresholds={
            check.threshold.name: check.threshold_of(getattr(settings, check.threshold.name), settings.example_kind)
            for check in CHECKS
        },
    )


def findings(quality: Mapping[str, Any], options: GateOptions) -> list[Finding]:
    """Return all known facts that exceed their threshold."""
    return [
        Finding(check.action.name, sentence, options.actions[check.action.name])
        for check in CHECKS
        if (sentence := check.sentence(quality, options.thresholds[check.threshold.name]))
    ]
