"""The decision whether a model is promoted, and how `promotion.json` stores it. Light, because the pages import it."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

Outcome = Literal["promoted", "kept", "asked", "rolled_back"]
BADGES: Mapping[str, str] = {
    "promoted": "Promoted",
    "kept": "Champion kept",
    "asked": "Decision needed",
    "rolled_back": "Rolled back",
}
"""What a badge says of each outcome."""
_WORDS: Mapping[str, str] = {
    "promoted": "promoted",
    "kept": "not promoted",
    "asked": "a person must decide",
    "rolled_back": "rolled back",
}
"""How a sentence begins."""


class Decision(NamedTuple):
    """Whether a model takes the place of the champion, and why."""

    outcome: Outcome
    """`asked`: the champion stays until a person promotes the model by hand. `rolled_back`: the model was the champion
    until a person took its promotion back."""
    reason: str
    """The reason, as one sentence without a period at its end."""

    @property
    def is_promoted(self) -> bool:
        """Whether the model becomes the champion."""
        return self.outcome == "promoted"

    @property
    def badge(self) -> str:
        """The outcome in one or two words, for a page."""
        return BADGES[self.outcome]

    @property
    def sentence(self) -> str:
        """The outcome and the reason."""
        return f"{_WORDS[self.outcome]}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """Return the decision as `promotion.json` has it."""
        return {"promoted": self.is_promoted, "decision": self.outcome, "why": self.sentence}


def decision_in(promotion: Mapping[str, Any]) -> Decision | None:
    """Return the decision in the content of a `promotion.json`; None if there is none yet."""
    outcome = str(promotion.get("decision"))
    if outcome not in BADGES:
        return None
    return Decision(cast(Outcome, outcome), str(promotion.get("why", "")).removeprefix(f"{_WORDS[outcome]}: "))
