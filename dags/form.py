"""Airflow's form, made from the one configuration."""

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Param

from pipeline.config import Settings

_MUST_BE_FILLED = frozenset({"source_uri"})
_NOT_IN_THE_FORM = frozenset({"dataset"})  # the DAG makes its own data set
_FILLED = {"type": "string", "minLength": 1}


def form(defaults: Settings) -> dict[str, Param]:
    """A parameter for each setting, with its default, title, description, range and room in the form."""
    schemas = Settings.model_json_schema()["properties"]
    return {
        name: Param(
            getattr(defaults, name),
            description=" ".join((field.description or "").split()),
            schema=_schema(schemas[name]) | (_FILLED if name in _MUST_BE_FILLED else {}),
        )
        for name, field in Settings.model_fields.items()
        if name not in _NOT_IN_THE_FORM
    }


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A field's JSON schema as the form wants it: one list of types, with null where the field may be left empty.

    Airflow sends null for a text field that was emptied, whatever its type says.
    """
    described = {key: value for key, value in schema.items() if key not in ("default", "description", "anyOf", "type")}
    choices = schema.get("anyOf", [schema])
    for choice in choices:
        described |= {key: value for key, value in choice.items() if key not in ("default", "description")}
    may_be_empty = len(choices) > 1 or schema.get("default", "") == ""
    described["type"] = [choices[0]["type"], "null"] if may_be_empty else choices[0]["type"]
    return described
