"""Variables in the environment of this process."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pipeline.errors import SettingsError


def whole_number(name: str, default: int) -> int:
    """Return the number in a variable, or `default` if it is not set. Raises SettingsError unless it is above 0."""
    value = os.environ.get(name) or str(default)
    if not value.isdecimal() or not int(value):
        raise SettingsError(f"{name} must be a number above 0, got {value!r}")
    return int(value)


@contextmanager
def environment_with(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables. Processes that start meanwhile inherit them. Afterwards, restore what was there before."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
