"""Write the pages and tables of the reference that are generated from the code: `python -m docs.generate`.

A test fails if a page contradicts the code. The pages are committed, because readers of the repository follow links to
them.
"""

import argparse
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dags.form_settings import FORM_SETTINGS
from pipeline.commands.parser import command_line
from pipeline.config.automatic import training_settings
from pipeline.config.data_gate import CHECKS
from pipeline.config.declarations import AllowedBy, Decides, OnlyFor
from pipeline.config.example_kinds import KINDS
from pipeline.config.settings import Settings, declared
from pipeline.monitor.limits import Limit
from pipeline.monitor.verdict import words_of
from pipeline.tuning.advice import ADVICE, Change

REFERENCE = Path(__file__).parent / "reference"
SCHEMA = REFERENCE / "dataset.schema.json"
FIRST_SECTION = "The settings that matter"

SETTINGS = """\
# Settings

All settings of a run. They are the same in Airflow's form, in `PARAMS` of `make run`, in a settings file (TOML or
JSON), and on the command line (`--set field=value`). `settings.example.toml` lists them with their defaults.

"Another value changes" says what a new value of a setting leads to. A new version of the dataset means that its shards
are written again. A new identity of the training means that a new training starts in its own folder, and that the
checkpoints of the old one are not used.
"""

COMMANDS = """\
# Command line

`tenfold COMMAND` and `python -m pipeline COMMAND` are the same. Progress and messages go to stderr. With `--json`, the
last line of stdout is one JSON object.

Every command takes settings: from a file with `--config FILE`, and one by one with `--set field=value`, which wins over
the file.
"""

ADVICE_PAGE = """\
# Advice

A [verdict](../explanation/verdict.md) ends with the next change to make. If a change of a setting is [predicted to
gain](../how-to/advise.md), the best one of these is the advice, with its factor and its price. Otherwise, the advice is
the first row of the table whose conditions hold, for each limit that the verdict names. A row is skipped if the gain of
one of its settings was predicted, and is too small. So two rows can have the same condition. Seven limits cannot be
removed by a setting: other programs, the CPU quota, memory, one core, waiting, Python code, and callbacks. Their rows
are given in addition to the best change.

The first column has the words of the verdict that name the limit, such as "Compute-bound", or "decoding" in
"Input-bound (decoding)", and the value in `result.json`. Numbers follow from the settings of the training. Here, they
are those of the default settings.

| words of the verdict | if | next |
|---|---|---|
"""

DATASET_JSON = """\
# dataset.json

`dataset.json` describes a published dataset. The dataset exists once this file exists. Its JSON schema is
[dataset.schema.json](dataset.schema.json), and a test compares it with the files that Tenfold writes.
"""

CHECKS_HEAD = """\
| what is limited | threshold | action | examples |
|---|---|---|---|
"""

CHANGES = {
    Decides.NOTHING: "nothing that exists",
    Decides.DATASET: "the version of the dataset",
    Decides.TRAINING: "the identity of the training",
    Decides.DATASET | Decides.TRAINING: "the version of the dataset, and the identity of the training",
}


def generated_pages() -> dict[str, str]:
    """Return the text of each generated page by its file name."""
    return {
        "settings.md": settings_page(),
        "gate.md": gate_page(),
        "commands.md": commands_page(),
        "dataset-json.md": dataset_json_page(),
        "advice.md": advice_page(),
    }


# --- settings ---------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """Return a section for each group of the form, and in it an entry for each setting."""
    sections: dict[str, list[str]] = {}
    for name, schema in Settings.model_json_schema()["properties"].items():
        sections.setdefault(schema.get("section", FIRST_SECTION), []).append(_setting(name, schema))
    return SETTINGS + "".join(f"\n## {section}\n\n" + "\n".join(entries) for section, entries in sections.items())


def gate_page() -> str:
    """Return the page of the data gate, which is written by hand, with a row for each check in its table."""
    before, head, after = (REFERENCE / "gate.md").read_text("utf-8").partition(CHECKS_HEAD)
    rows = [
        f"| {Settings.model_fields[check.threshold.name].description} "
        f"| {_with_default(check.threshold.name, check.thresholds)} "
        f"| {_with_default(check.action.name)} | {_examples(check.threshold.name)} |\n"
        for check in CHECKS
    ]
    rest = dropwhile(lambda line: line.startswith("|"), after.splitlines(keepends=True))
    return "".join([before, head, *rows, *rest])


def _with_default(name: str, thresholds: Mapping[str, float] = MappingProxyType({})) -> str:
    by_kind = [f"`{value}` ({kind})" for kind, value in thresholds.items()]
    default = ", ".join(by_kind) or _code(Settings.model_fields[name].default)
    return f"[`{name}`](settings.md#{name}) {default}"


def _examples(name: str) -> str:
    """Return the kinds of examples that use a setting."""
    only = declared(OnlyFor).get(name)
    return only.kind if only else ", ".join(KINDS)


def _code(value: Any) -> str:
    return f"`{json.dumps(value).strip(chr(34))}`"


def _setting(name: str, schema: dict[str, Any]) -> str:
    field, dags = Settings.model_fields[name], [dag for dag, names in FORM_SETTINGS.items() if name in names]
    default = field.get_default(call_default_factory=True)
    facts = {
        "In the form": schema["title"] if dags else "",
        "Default": "empty" if default in (None, "", [], {}) else _code(default),
        "Values": _values(schema),
        "Another value changes": CHANGES[_marker(field.metadata, Decides)],
        "DAGs": ", ".join(f"`{dag}`" for dag in dags) or "none, only the command line",
        "Allowed by": _allowed_by(field.metadata),
    }
    lines = [f"- {fact}: {text}" for fact, text in facts.items() if text]
    return f"### {name}\n\n{_markdown(schema['description'])}\n\n" + "\n".join(lines) + "\n"


def _values(schema: dict[str, Any]) -> str:
    """Return the choices or the range of a setting; empty if any text may be given."""
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    types = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    limits = types[0]
    bounds = [
        f"{words} {limits[key]:,}"
        for key, words in {
            "minimum": "at least",
            "exclusiveMinimum": "more than",
            "maximum": "at most",
            "exclusiveMaximum": "less than",
        }.items()
        if key in limits
    ]
    kinds = {"integer": "integer", "number": "number", "boolean": "`true`, `false`"}
    kinds |= {"array": "list of texts", "object": "object of texts"}
    kind = kinds.get(limits.get("type", ""), "")
    return ", ".join([kind, *bounds]) if kind else ""


def _marker(metadata: list[Any], kind: type[Any]) -> Any:
    return next((marker for marker in metadata if isinstance(marker, kind)), None)


def _allowed_by(metadata: list[Any]) -> str:
    allowed = _marker(metadata, AllowedBy)
    return " or ".join(f"`TENFOLD_ALLOWED_{each.name}`" for each in allowed) if allowed else ""


# --- command line -----------------------------------------------------------------------------------------------------


def commands_page() -> str:
    """Return an entry for each command: what it does, its arguments and its options."""
    return COMMANDS + "".join(_command(name, parser) for name, parser in commands(command_line()).items())


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command by its name, such as `comet recover`."""
    [subparsers] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(subparsers.choices)


def _command(name: str, parser: argparse.ArgumentParser) -> str:
    # Wrapped here, because argparse wraps by the width of the terminal.
    words = " ".join(parser.format_usage().removeprefix("usage: ").split()).replace(parser.prog, f"tenfold {name}")
    usage = textwrap.fill(words, 100, subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False)
    rows = [
        f"| `{', '.join(action.option_strings) or action.metavar or action.dest}` | {_cell(_help(parser, action))} |"
        for action in sorted(parser._actions, key=lambda action: bool(action.option_strings))
        if not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS
    ]
    description = _markdown(parser.description or "")
    table = "\n".join(["| argument | meaning |", "|---|---|", *rows])
    example = f"```bash\n.venv/bin/tenfold {name} {parser.get_default('command').example}\n```"
    return f"\n## {name}\n\n{description}\n\n{example}\n\n```text\n{usage}\n```\n\n{table}\n"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


# --- dataset.json -----------------------------------------------------------------------------------------------------


def dataset_json_page() -> str:
    """Return a table for each object of `dataset.json`, from its JSON schema."""
    schema = json.loads(SCHEMA.read_text("utf-8"))
    return DATASET_JSON + "".join(_object(name, each) for name, each in _objects("dataset.json", schema))


def _objects(name: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    if schema.get("properties"):
        yield name, schema
    for key, each in schema.get("properties", {}).items():
        inner = each.get("items") or each.get("additionalProperties") or each
        if isinstance(inner, dict):
            yield from _objects(key if name == "dataset.json" else f"{name}.{key}", inner)
    for key, each in schema.get("$defs", {}).items():
        yield from _objects(key, each)


def _object(name: str, schema: dict[str, Any]) -> str:
    rows = [
        f"| `{key}` | {_type(each)} | {_cell(each.get('description', ''))} |"
        for key, each in schema["properties"].items()
    ]
    table = "\n".join(["| field | type | meaning |", "|---|---|---|", *rows])
    return f"\n## `{name}`\n\n{_markdown(schema.get('description', ''))}\n\n{table}\n"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(choice)}`" for choice in schema["enum"])
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


# --- advice -----------------------------------------------------------------------------------------------------------


def advice_page() -> str:
    """Return a table of the advice for each limit, in the order in which it is considered."""
    rows = [_change(limit, change, changes) for limit, changes in ADVICE.items() for change in changes]
    return ADVICE_PAGE + "".join(rows)


def _change(limit: Limit, change: Change, changes: Sequence[Change]) -> str:
    otherwise = "otherwise" if len(changes) > 1 else ""
    conditions = ", and ".join(each.words for each in change.conditions) or otherwise
    words = f"{words_of(limit)} (`{limit.value}`)"
    return f"| {words} | {_coded(conditions)} | {_coded(change.described(training_settings({}))) or 'nothing'} |\n"


def _coded(text: str) -> str:
    """Return text with names of settings and functions as code."""
    return re.sub(r"[\w.]+=\w+|[a-z.]+(?:_[a-z]+)+", r"`\g<0>`", text)


def _cell(text: str) -> str:
    return _markdown(text).replace("|", "\\|").replace("\n", " ")


def _markdown(text: str) -> str:
    """Return text of the code as Markdown: placeholders such as {date} and <name> are no markup there."""
    return re.sub(r"(?<!`)(\{\w+\}|<\w+>)(?!`)", r"`\1`", " ".join(text.split()))


if __name__ == "__main__":
    for page, content in generated_pages().items():
        (REFERENCE / page).write_text(content, "utf-8")
