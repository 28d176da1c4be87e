"""Numbers in the environment of this process."""

import os

from pipeline.errors import SettingsError


def whole_number(name: str, default: int) -> int:
    """Return the number in a variable, or `default` if it is not set. Raises SettingsError unless it is above 0."""
    value = os.environ.get(name) or str(default)
    if not value.isdecimal() or not int(value):
        raise SettingsError(f"{name} must be a number above 0, got {value!r}")
    return int(value)
