"""Refuse a model or a loss of the user's own that cannot be used, before an image is sharded."""

import ast
import json
import logging
import subprocess
import sys
from collections.abc import Collection
from difflib import get_close_matches
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile

from pipeline.config.settings import Settings
from pipeline.errors import OwnCodeError, SettingsError, error_from_json
from pipeline.system.process import environment_of_tensorflow

MAX_S = 300.0
"""Time limit of the check in seconds. After that, the training itself makes the check."""
_BOUND_IN_OTHER_WAYS = frozenset({"*", "__getattr__", "globals", "vars", "setattr", "exec"})
"""If the source has one of these names, the module may have more functions than the source shows."""
_log = logging.getLogger(__name__)


def require_own_code(settings: Settings, classes: int, *, multi_label: bool = False, can_build: bool = True) -> None:
    """Build the model, and trace a training step of it, if `settings.model` or `settings.loss` names a function.

    This takes a separate process without a GPU.

    Does nothing if neither is a function. Only looks for the functions on workers without TensorFlow, which do not
    train, and with `can_build=False`, if the model needs facts that are not known yet.

    If a module or the function of a model fails, it only warns: the worker that trains may have other packages, and a
    GPU. If the training step fails, it raises: the packages were there to build the model, and tracing a step needs no
    GPU.

    Raises:
        SettingsError: If a module has no such function, or if a function does not take what it gets, or returns a model
            or losses that cannot be used or trained.
    """
    functions = {name: value for name in ("model", "loss") if ":" in (value := getattr(settings, name))}
    if not functions:
        return
    if not can_build or not find_spec("tensorflow"):
        for what, function in functions.items():
            _require_function(what, function)
        return
    checked = " and ".join(f"the {what} {function}" for what, function in functions.items())
    _log.info("checking %s: building the model and tracing a training step in a separate process", checked)
    # The weights are not read: only the model is checked.
    given = settings.model_copy(update={"weights": "", "freeze_epochs": 0})
    labels = "several" if multi_label else "one"
    try:
        # A file, because the user's code may print to stdout.
        with NamedTemporaryFile() as answer:
            subprocess.run(
                [sys.executable, "-m", "pipeline.training.check", str(classes), labels, answer.name],
                input=given.model_dump_json().encode(),
                capture_output=True,
                timeout=MAX_S,
                # TensorFlow would take the memory of a GPU that is in use.
                env={**environment_of_tensorflow(), "CUDA_VISIBLE_DEVICES": "-1"},
                check=True,
            )
            content = json.load(answer)  # An empty file, which raises, if the user's code ended the process.
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        _log.warning("could not check %s (%s): the training will check it", checked, error)
        return
    failure = error_from_json(**content) if content else None
    if isinstance(failure, OwnCodeError):
        _log.warning(
            "%s. The training will check this again, because its worker may have a GPU and other packages", failure
        )
    elif failure:
        raise failure


def missing_function_error(what: str, function: str, module: str, functions: Collection[str]) -> SettingsError:
    """Return the error for a function that a module lacks. `functions` are the functions that the module has.

    `what` is the function in words, and `module` the name or the file of the module.
    """
    close = get_close_matches(function, functions, n=1)
    advice = f"did you mean {close[0]!r}?" if close else "name a function of this module"
    return SettingsError(f"{what} does not exist, because {module} has no {function!r}: {advice}")


def _require_function(what: str, name: str) -> None:
    """Look for a function in the source of its module, without importing the module: it would need TensorFlow.

    Says nothing if this worker does not have the source, or if the source does not show all names of the module.
    """
    module, _, function = name.partition(":")
    spec = _spec_of(module)
    source = Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None
    if source is None:
        _log.info(
            "the module of the %s %s is not installed on this worker: the training will check the %s", what, name, what
        )
        return
    try:
        nodes = [*ast.walk(ast.parse(source.read_bytes()))]
    except (SyntaxError, ValueError) as error:
        raise SettingsError(f"{what} {name!r} cannot be imported: {source} is not valid Python ({error})") from error
    # All names, those within functions too: a function is only refused if its name cannot be meant by anything.
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    imported = {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    named = {node.id for node in nodes if isinstance(node, ast.Name)}
    names = functions | imported | named
    if function not in names and not names & _BOUND_IN_OTHER_WAYS:
        raise missing_function_error(f"{what} {name!r}", function, str(source), functions | imported)


def _spec_of(module: str) -> ModuleSpec | None:
    """Return the spec of a module. `importlib.util.find_spec` would import the packages that contain it."""
    package, _, _ = module.rpartition(".")
    if not package:
        return PathFinder.find_spec(module)
    around = _spec_of(package)
    if around is None or around.submodule_search_locations is None:
        return None
    return PathFinder.find_spec(module, around.submodule_search_locations)
