"""Functions of the user's own, which a setting names as package.module:function."""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from pipeline.errors import OwnCodeError, SettingsError
from pipeline.runs.own_model import not_there


def own_function(what: str, name: str) -> Callable[..., Any]:
    """The function of a `name`; `what` is said of it.

    Raises OwnCodeError if its module cannot be imported, SettingsError if the module has no such function.
    """
    module_name, _, function = name.partition(":")
    try:
        module = import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        is_absent = missing is not None and f"{module_name}.".startswith(f"{missing}.")
        why = "install its package, or put it on PYTHONPATH, on every worker" if is_absent else "mend its module"
        kind = SettingsError if isinstance(error, SyntaxError) else OwnCodeError
        raise kind(f"{what} cannot be imported: {why} ({in_words(error)})") from error
    found: Callable[..., Any] | None = getattr(module, function, None)
    if found is None:
        functions = [each for each, value in vars(module).items() if callable(value)]
        raise not_there(what, function, module.__file__ or module_name, functions)
    return found


def require_arguments(what: str, function: Callable[..., Any], *arguments: Any) -> None:
    """Raise SettingsError if a function does not take these arguments."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # one that is not written in Python says nothing
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise SettingsError(f"{what} must take {arguments}, but has the arguments {signature} ({error})") from error


@contextmanager
def explained(what: str, kind: type[SettingsError] = SettingsError) -> Iterator[None]:
    """Turn whatever code of the user's own raises into one sentence, of an error of this kind."""
    try:
        yield
    except Exception as error:
        raise kind(f"{what} ({in_words(error)})") from error


def in_words(error: Exception) -> str:
    """What kind of error it is and what it says, in one line."""
    return f"{type(error).__name__}: {textwrap.shorten(str(error), 300)}"
