"""The parser of the command line, with all commands and the list of settings."""

import argparse
import difflib
import textwrap
from collections.abc import Sequence

from pipeline import __version__
from pipeline.commands import advise, build, clean, datasets, dates, models, pages, training
from pipeline.commands.command import program
from pipeline.config.settings import Settings

COMMANDS = (
    training.run,
    build.build,
    build.extract,
    build.shard,
    build.write,
    build.upload,
    build.window,
    build.partition,
    dates.dates,
    datasets.labels,
    training.train,
    advise.advise,
    training.apply,
    pages.compare_inputs,
    datasets.verify,
    datasets.index,
    datasets.shuffle_quality,
    pages.report,
    pages.report_compare,
    training.comet_recover,
    models.champion,
    models.promote,
    models.rollback,
    datasets.show,
    models.predict,
    clean.clean,
    build.samples,
)
"""All commands, in the order of the help."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of one command, which is their `command`."""
    # Otherwise, argparse would take `compare` of the command `report compare` as the argument of `report`.
    names = [command.name for command in COMMANDS]
    if (name := " ".join(arguments[:2])) in names:
        arguments = [name, *arguments[2:]]
    parser = command_line()
    first = " ".join(arguments[:1])
    if first not in names and (offered := [name for name in names if name.startswith(f"{first} ")]):
        parser.error(f"`{first}` must be followed by another word. The commands are: {', '.join(offered)}")
    if first and first not in names and not first.startswith("-"):
        parser.error(_unknown_command(first, names))
    # Unknown options are collected, because many are settings without --set, for which the error has a hint.
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{_set_hint(unknown, arguments)}")
    return options


def _unknown_command(word: str, names: Sequence[str]) -> str:
    if close := difflib.get_close_matches(word, names, n=1):
        return f"`{word}` is not a command: did you mean {close[0]}?"
    return f"`{word}` is not a command. The commands are: {', '.join(names)}"


def _set_hint(unknown: Sequence[str], arguments: Sequence[str]) -> str:
    """Return how to write the unknown options that are settings; empty if none is a setting."""
    assignments = []
    for option in unknown:
        name, _, value = option.removeprefix("--").partition("=")
        field = name.replace("-", "_")
        if (option.startswith("--") or value) and field in Settings.model_fields:
            # The value is looked up in all arguments, because argparse may have taken it for something else.
            following = arguments[list(arguments).index(option) + 1 :][:1]
            given = [value] if value else [each for each in following if not each.startswith("--")]
            assignments.append(f"--set {field}={given[0] if given else 'VALUE'}")
    return f": write {' '.join(assignments)}" if assignments else ""


def overview() -> str:
    """Return the help of all commands without the list of settings, which takes several screens."""
    parser = command_line()
    parser.epilog = (
        f"first steps:\n  {parser.prog} samples shapes\n  {parser.prog} run --set source_uri=shapes\n\n"
        f"`{parser.prog} COMMAND --help` explains a command, and `{parser.prog} --help` lists all settings."
    )
    return parser.format_help()


def command_line() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog=program(),
        description="Turn raw images or a table into a trained model, with one command or stage by stage.",
        epilog=_settings_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tenfold {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_to(commands)
    return parser


def _settings_help() -> str:
    """Return all settings by their room in the form, with choices and defaults."""
    schemas = Settings.model_json_schema()["properties"]
    rooms: dict[str, list[str]] = {}
    for name, schema in schemas.items():
        default = Settings.model_fields[name].get_default(call_default_factory=True)
        description = " ".join(schema["description"].split())
        if "enum" in schema:
            description += f" One of {', '.join(schema['enum'])}."
        if default not in (None, ""):
            description += f" [{str(default).lower() if isinstance(default, bool) else default}]"
        text = textwrap.fill(f"{name:21}  {description}", 110, initial_indent="  ", subsequent_indent=" " * 25)
        rooms.setdefault(schema.get("section", "Settings (--set FIELD=VALUE)"), []).append(text)
    return "\n\n".join(f"{room}:\n" + "\n".join(lines) for room, lines in rooms.items())
