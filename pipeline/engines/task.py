"""A call of a function in another process: with the allowlists of its caller, and with errors that can travel."""

import base64
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Lock

from pipeline.errors import BadInput, EngineError, TenfoldError, error_from_json, error_to_json
from pipeline.system.environment import environment_with

MAX_RETRIES = 2
"""A call is repeated this many times after an error that may pass."""
MAX_CAUSE = 500
"""An error of a cluster is cut to this many characters."""
_ONE_CALL = Lock()
"""Pillow's limit of pixels and the environment belong to a whole process, and a worker may have several threads."""
_REPORTED = re.compile(r"\(tenfold-error ([\w-]+=*)\)")
_ANY_ERROR = re.compile(r"^(\w[\w.]*(?:Error|Exception): .*)$", re.MULTILINE)
_log = logging.getLogger(__name__)


def reported(error: TenfoldError) -> Exception:
    """Return an exception that carries an error of this project through a cluster, which keeps only texts."""
    # Base64, because libraries quote, indent and cut the lines of a text.
    encoded = base64.urlsafe_b64encode(json.dumps(error_to_json(error)).encode())
    return RuntimeError(f"{error} (tenfold-error {encoded.decode()})")


@dataclass(frozen=True)
class Outcome:
    """The result of calls for some places, mostly of one: their count, or the error that no retry can repair."""

    places: tuple[str, ...]
    count: int = 0
    failure: str = ""

    def require_success(self) -> None:
        """Raise the error of the call, if it failed."""
        if self.failure:
            raise error_from_json(**json.loads(self.failure))


@dataclass(frozen=True)
class Task:
    """A function of this project that is called for one place. A cluster pickles it by its name.

    Attributes:
        function: Gets a place, and returns how many units it has finished, such as images.
        environment: Variables for the calls on a cluster. If one of them is set on the other machine, that value holds.
        memory: About how many bytes a process takes that makes such calls. A cluster has settings of its own for that.
            The default is for shards, with room to spare: a process that writes them takes 50 to 100 MB. A single image
            of 50 megapixels can take 700 MB.
    """

    function: Callable[[str], int]
    environment: Mapping[str, str]
    memory: int = 200_000_000

    def call(self, place: str) -> Outcome:
        """Call the function, and repeat the call after an error that may pass."""
        for _ in range(MAX_RETRIES):
            try:
                return Outcome((place,), self.function(place))
            except BadInput:
                raise
            except TenfoldError as error:
                _log.warning("%s is tried again: %s", place, error)
        return Outcome((place,), self.function(place))

    def attempt(self, place: str) -> Outcome:
        """Call the function on a cluster, as `call` does. A process makes one call at a time.

        Returns:
            The count, or the error that no retry can repair. It is not raised, because a cluster would call again.

        Raises:
            RuntimeError: Any other error of this project, as `error_of_cluster` reads it.
        """
        with _ONE_CALL, default_environment(self.environment):
            try:
                return self.call(place)
            except BadInput as error:
                return Outcome((place,), failure=json.dumps(error_to_json(error)))
            except TenfoldError as error:
                raise reported(error) from error


def default_environment(environment: Mapping[str, str]) -> AbstractContextManager[None]:
    """Set variables that are not set. Afterwards, remove them: the next task in this process may have others."""
    return environment_with({name: value for name, value in environment.items() if name not in os.environ})


def error_of_cluster(error: Exception) -> TenfoldError:
    """Return the error of this project that a library reports as the text of a traceback, or else an EngineError.

    An error of this project is returned unchanged.
    """
    if isinstance(error, TenfoldError):
        return error
    text = str(error)
    if found := _REPORTED.findall(text):
        return error_from_json(**json.loads(base64.urlsafe_b64decode(found[-1])))
    others = _ANY_ERROR.findall(text)
    cause = others[-1] if others else " ".join(text.partition("\n\tat ")[0].split())  # without the stack of a JVM
    return EngineError(
        f"the engine failed ({cause[:MAX_CAUSE]}): correct the cause, then run the same command to continue from here"
    )
