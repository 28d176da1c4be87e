"""Print settings.example.toml: all settings with their defaults, as comments to be removed one by one.

`python -m scripts.settings_example > settings.example.toml` writes the file again.
"""

import json
import textwrap
from collections.abc import Iterator, Mapping

from pipeline.config.settings import Settings

HEAD = """\
# All settings of Tenfold with their defaults. Copy this file, remove the `# ` in front of a setting that you change,
# and name the copy: `.venv/bin/tenfold run --config settings.toml`, or TENFOLD_SETTINGS for the forms of Airflow.
"""
FROM_ENVIRONMENT = {"workspace": "workspace", "local_folder": "~/.cache/tenfold"}
"""Settings whose default an environment variable may replace, with the default if it is not set."""

WITHOUT_DEFAULT: Mapping[str, float] = {
    "num_shards": 20,
    "shards_per_task": 5,
    "label_offset": 1,
    "max_rejected_fraction": 0.1,
    "epochs": 10,
    "batch_size": 32,
    "learning_rate": 0.001,
    "patience": 5,
    "weight_decay": 0.05,
}
"""Examples of settings that are empty by default. TOML has no empty number."""


def example() -> str:
    """Return the text of the file."""
    return HEAD + "".join(_lines())


def _lines() -> Iterator[str]:
    section = ""
    for name, schema in Settings.model_json_schema()["properties"].items():
        if schema.get("section", "") != section:
            section = schema["section"]
            yield f"\n\n# {f' {section} '.center(116, '-')}\n"
        default = Settings.model_fields[name].get_default(call_default_factory=True)
        value = {**FROM_ENVIRONMENT, **WITHOUT_DEFAULT}.get(name, default)
        description = " ".join(schema["description"].split())
        yield "\n" + textwrap.fill(description, 118, initial_indent="# ", subsequent_indent="# ") + "\n"
        yield f"# {name} = {json.dumps(value)}\n"


if __name__ == "__main__":
    print(example(), end="")
