"""Functions of the user's own, which a setting names as package.module:function."""

import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from pipeline.errors import SettingsError


def own_function(what: str, name: str) -> Callable[..., Any]:
    """The function of a `name`; `what` is said of it. Raises SettingsError where it cannot be imported."""
    module, _, function = name.partition(":")
    with explained(f"{what} cannot be imported: install its package, or put it on PYTHONPATH, on every worker"):
        found: Callable[..., Any] = getattr(import_module(module), function)
    return found


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn whatever code of the user's own raises into one sentence, of a SettingsError."""
    try:
        yield
    except Exception as error:
        raise SettingsError(f"{what} ({in_words(error)})") from error


def in_words(error: Exception) -> str:
    """What kind of error it is and what it says, in one line."""
    return f"{type(error).__name__}: {textwrap.shorten(str(error), 300)}"
