"""A call of a function in another process: with the allowlists of its caller, and with errors that can travel."""

import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipeline.errors import BadInput, EngineError, TenfoldError, error_from_json, error_to_json

MAX_RETRIES = 2
"""A call that failed is repeated this many times, as in the tasks of Airflow, unless a retry cannot help."""
MAX_CAUSE = 500
"""An error of a cluster is cut to this many characters."""
_OWN_ERROR = re.compile(r"^pipeline\.errors\.(\w+): (.*?)(?: \[while running .*)?$", re.MULTILINE)
"""An error of this project in a traceback, without the words that Beam appends."""
_ANY_ERROR = re.compile(r"^(\w[\w.]*(?:Error|Exception): .*)$", re.MULTILINE)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """A function of this project that is called for one place. A cluster pickles it by its name.

    Attributes:
        function: Gets a place, and returns how many units it has finished, such as images.
        allowlists: The variables of pipeline/allowed.py. If one of them is set on the other machine, that value holds.
    """

    function: Callable[[str], int]
    allowlists: Mapping[str, str]

    def __call__(self, place: str) -> int:
        """Call the function. Its errors are raised unchanged."""
        for name, value in self.allowlists.items():
            os.environ.setdefault(name, value)
        return self.function(place)

    def attempt(self, place: str) -> "Outcome":
        """Call the function, and repeat the call after an error that a retry may repair.

        Returns:
            The count, or the error that no retry can repair. It is not raised, because a cluster would call again.
        """
        for retries_left in range(MAX_RETRIES, -1, -1):
            try:
                return Outcome(self(place))
            except BadInput as error:
                return Outcome(failure=json.dumps(error_to_json(error)))
            except Exception as error:
                if not retries_left:
                    raise
                _log.warning("%s is tried again: %s", place, error)
        raise AssertionError


@dataclass(frozen=True)
class Outcome:
    """The result of one call: a count, or the error that no retry can repair."""

    count: int = 0
    failure: str = ""

    def require_success(self) -> None:
        """Raise the error of the call, if it failed."""
        if self.failure:
            raise error_from_json(**json.loads(self.failure))


def error_of_cluster(error: Exception) -> TenfoldError:
    """Return the error of this project that a library reports as the text of a traceback, or else an EngineError."""
    text = str(error)
    if own := _OWN_ERROR.findall(text):
        return error_from_json(*own[-1])
    others = _ANY_ERROR.findall(text)
    cause = others[-1] if others else " ".join(text.partition("\n\tat ")[0].split())  # without the stack of a JVM
    return EngineError(
        f"the engine failed ({cause[:MAX_CAUSE]}): run the same command to continue; finished shards stay"
    )
