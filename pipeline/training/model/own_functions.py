"""Functions of the user's own, which settings name as package.module:function."""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from pipeline.errors import OwnCodeError, SettingsError, TenfoldError
from pipeline.runs.own_code import missing_function_error


def import_function(what: str, name: str) -> Callable[..., Any]:
    """Import the function of a name like package.module:function, which error messages call `what`.

    Raises:
        OwnCodeError: If its module cannot be imported.
        SettingsError: If the module has no such function.
    """
    module_name, _, function = name.partition(":")
    try:
        module = import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        # If another module is missing, the user's module was found, and one of its own imports fails.
        is_absent = missing is not None and f"{module_name}.".startswith(f"{missing}.")
        why = "install its package, or put it on PYTHONPATH, on every worker" if is_absent else "correct its module"
        # A syntax error is the same on every worker. Any other error may be due to the packages of this worker.
        kind = SettingsError if isinstance(error, SyntaxError) else OwnCodeError
        raise kind(f"{what} cannot be imported: {why} ({type_and_message(error)})") from error
    own: Callable[..., Any] | None = getattr(module, function, None)
    if own is None:
        functions = [each for each, value in vars(module).items() if callable(value)]
        raise missing_function_error(what, function, module.__file__ or module_name, functions)
    return own


def require_arguments(what: str, function: Callable[..., Any], *arguments: Any, described: str) -> None:
    """Raise SettingsError if a function does not take these arguments, which `described` names in words."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # A function that is not written in Python has none.
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise SettingsError(f"{what} must take {described}, but has the arguments {signature} ({error})") from error


@contextmanager
def explain_errors(what: str, kind: type[SettingsError] = SettingsError) -> Iterator[None]:
    """Turn any error of the user's own code in the block into an error of this kind, in one sentence.

    An error of Tenfold itself already is one.
    """
    try:
        yield
    except TenfoldError:
        raise
    except Exception as error:
        raise kind(f"{what} ({type_and_message(error)})") from error


def type_and_message(error: Exception) -> str:
    """Return the class and the message of an error in one line. Keras prints parts of its messages in bold."""
    plain = re.sub(r"\x1b\[\d+m", "", str(error))
    return f"{type(error).__name__}: {textwrap.shorten(plain, 300)}"
