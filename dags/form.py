"""Airflow's forms, from the one configuration."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from airflow.sdk import Param

from pipeline.config import Settings, UsedBy, settings_used_by

_DIALECT = "http://json-schema.org/draft-07/schema#"
"""The dialect of the schemas. The check by the latest dialect takes a third of the import time of a DAG."""


class _SharedSchema(dict[str, Any]):
    """A schema that is never copied. Airflow's copies for each task take half of the import time of a DAG."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "_SharedSchema":
        return self


@cache
def _schemas() -> Mapping[str, Any]:
    schemas: Mapping[str, Any] = Settings.model_json_schema()["properties"]
    return schemas


def settings_of_all() -> list[str]:
    """Return the settings of a run that builds a dataset and trains on it."""
    return settings_used_by(UsedBy.BUILD | UsedBy.TRAIN)


def settings_of_dataset() -> list[str]:
    """Return the settings of a run that builds a dataset."""
    return settings_used_by(UsedBy.BUILD)


def settings_of_training() -> list[str]:
    """Return the settings of a run that trains on published datasets."""
    return settings_used_by(UsedBy.TRAIN | UsedBy.RETRAIN)


def form(defaults: Settings, names: Iterable[str], first: Iterable[str]) -> dict[str, Param]:
    """Return a parameter for each setting, with its default, title, description, range and section of the form.

    Args:
        defaults: The default values.
        names: The settings of the form.
        first: Settings that come first and are in no section, so that Airflow shows them unfolded.
    """
    schemas = _schemas()
    order = [*first, *(name for name in names if name not in set(first))]
    return {name: _param(getattr(defaults, name), schemas[name], name in set(first)) for name in order}


def _param(default: Any, schema: Mapping[str, Any], unfolded: bool) -> Param:
    described = _schema(schema)
    if unfolded:
        described.pop("section", None)
    return Param(default, description=" ".join(schema["description"].split()), schema=_SharedSchema(described))


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a field for the form: one list of types, with null if the field may be empty.

    Airflow sends null for an emptied text field, whatever its type is.
    """
    described = {key: value for key, value in schema.items() if key not in ("default", "description", "anyOf", "type")}
    described["$schema"] = _DIALECT
    choices = schema.get("anyOf", [schema])
    for choice in choices:
        described |= {key: value for key, value in choice.items() if key not in ("default", "description")}
    may_be_empty = len(choices) > 1 or schema.get("default", "") == ""
    described["type"] = [choices[0]["type"], "null"] if may_be_empty else choices[0]["type"]
    return described
