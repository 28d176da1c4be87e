"""Airflow's forms, from the one configuration."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from airflow.sdk import Param
from pydantic import BaseModel

from pipeline.config.settings import Settings

_DIALECT = "http://json-schema.org/draft-07/schema#"
"""The dialect of the schemas. The check by the latest dialect takes a third of the import time of a DAG."""


class _SharedSchema(dict[str, Any]):
    """A schema that is never copied. Airflow's copies for each task take half of the import time of a DAG."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "_SharedSchema":
        return self


@cache
def _schemas(model: type[BaseModel]) -> Mapping[str, Any]:
    schemas: Mapping[str, Any] = model.model_json_schema()["properties"]
    return schemas


def form(
    defaults: Settings, names: Iterable[str], first: Iterable[str], options: BaseModel | None = None
) -> dict[str, Param]:
    """Return a parameter for each setting, with its default, title, description, range and section of the form.

    Args:
        defaults: The default values.
        names: The settings of the form.
        first: Settings that come first and are in no section, so that Airflow shows them unfolded.
        options: Default values of the options that only this DAG has. They come after the first settings.
    """
    order = [*first, *(name for name in names if name not in set(first))]
    settings = {name: _param("Setting", defaults, name, name in set(first)) for name in order}
    own = {name: _param("Option", options, name, False) for name, _ in options} if options else {}
    return {name: settings[name] for name in first} | own | settings


def _param(kind: str, defaults: BaseModel, name: str, unfolded: bool) -> Param:
    schema = _schemas(type(defaults))[name]
    described = _schema(schema)
    if unfolded:
        described.pop("section", None)
    # The name leads from the form to the command line and to the documentation, which do not show the title.
    description = f"{' '.join(schema['description'].split())} {kind}: `{name}`."
    return Param(getattr(defaults, name), description=description, schema=_SharedSchema(described))


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a field for the form, with null as a second type.

    Airflow sends null for an emptied field. The setting then has its default. Without null, Airflow would mark the
    field as required.
    """
    described = {key: value for key, value in schema.items() if key not in ("default", "description", "anyOf", "type")}
    described["$schema"] = _DIALECT
    choices = schema.get("anyOf", [schema])
    for choice in choices:
        described |= {key: value for key, value in choice.items() if key not in ("default", "description")}
    described["type"] = [choices[0]["type"], "null"]
    return described
