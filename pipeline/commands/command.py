"""How a command is declared, and how its result is printed."""

import argparse
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from operator import methodcaller
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from pipeline.errors import SettingsError

RUN_ID = "manual"
"""All runs of the command line have this id, so that the same settings continue the same training."""

PACKAGES = {"training": "tensorflow", "report": "bokeh"}
"""A package of each extra of pyproject.toml. If it is installed, so is the rest."""

Result = dict[str, Any]
"""What --json prints. A value may be `Spooled`. The exit code is 1 if its value `ok` is false."""

Printer = Callable[[Result], str | Iterable[str]]
"""Returns the text of a result, or its lines if there may be very many."""

argument = partial(methodcaller, "add_argument")
"""Declare an argument of a command. Takes the same as `ArgumentParser.add_argument`."""


def program() -> str:
    """Return the name of this program as a person can type it."""
    typed = sys.argv[0]
    if Path(typed).name != "tenfold":
        return "python -m pipeline"
    # Without an activated environment, a shell finds `.venv/bin/tenfold` only by its path.
    return "tenfold" if shutil.which("tenfold") else typed


def format_result(result: Result) -> str:
    """Return a result as one line per value."""
    return "\n".join(f"{name.replace('_', ' '):>16}  {_format_value(value)}" for name, value in result.items())


def printer_at(name: str) -> Printer:
    """Return a printer that calls `package.module:function`, whose module is imported when it prints."""
    return lambda result: resolve_name(name)(result)


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in value.items())
    if isinstance(value, list):
        return f"\n{'':18}".join(value) or "none"
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def require_extra(extra: str, what: str) -> None:
    """Raise SettingsError if an extra of pyproject.toml is not installed. `what` is the command that needs it."""
    # `find_spec` does not import the package, which takes seconds.
    if find_spec(package := PACKAGES[extra]) is None:
        raise SettingsError(
            f"`{what}` needs {package}, which is not installed: install tenfold[{extra}], or run `make env`"
        )


@dataclass(frozen=True)
class Command:
    """One command of the command line.

    Args:
        run: Does the work, with the parsed options. Its docstring is the help text.
        name: What a person types.
        example: Arguments that the help shows.
        arguments: Its arguments, besides those of all commands.
        printer: Returns what is printed without --json.
        extra: The extra of pyproject.toml that it needs. Without one, it needs the base package alone.
        warns_if_open: Whether it warns of variables of the environment that allow everything.
    """

    run: Callable[[argparse.Namespace], Result]
    name: str
    example: str
    arguments: tuple[Callable[[Any], Any], ...] = ()
    printer: Printer = format_result
    extra: str = ""
    warns_if_open: bool = False

    def add_to(self, commands: Any) -> None:
        """Add the parser of this command to the parsers of other commands."""
        text = " ".join((self.run.__doc__ or "").split())
        parser = commands.add_parser(
            self.name, help=text, description=text, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.epilog = f"example:\n  {parser.prog} {self.example}"
        parser.add_argument("--config", type=Path, metavar="FILE", help="read settings from a TOML or JSON file")
        parser.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="FIELD=VALUE",
            help="set one setting, instead of the value in the file; can be repeated",
        )
        parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
        for add in self.arguments:
            add(parser)
        parser.set_defaults(command=self)


def command(
    name: str, example: str, *arguments: Callable[[Any], Any], **options: Any
) -> Callable[[Callable[[argparse.Namespace], Result]], Command]:
    """Make a function a command. See `Command` for the options."""
    return lambda run: Command(run, name, example, arguments, **options)
