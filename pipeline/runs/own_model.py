"""Refuse a model of the user's own that cannot be built, before an image is sharded."""

import json
import logging
import subprocess
import sys
from importlib.util import find_spec
from tempfile import NamedTemporaryFile

from pipeline.config.settings import Settings
from pipeline.errors import OwnCodeError, error_from_json
from pipeline.system.process import environment_of_tensorflow

MAX_S = 300.0
"""Time limit of the check in seconds. After that, the training itself makes the check."""
_log = logging.getLogger(__name__)


def require_own_model(settings: Settings, classes: int, can_build: bool = True) -> None:
    """Build the model that `settings.model` names if it is a function, in a separate process without a GPU.

    Does nothing for other models, on workers without TensorFlow, which do not train, and with `can_build=False`, if the
    model needs facts that are not known yet. The training then makes the check.

    If the module or the function fails, it only warns: the worker that trains may have other packages, and a GPU.

    Raises:
        SettingsError: If the module has no such function, or if the function does not take an image size and a number
            of classes, or returns a model that cannot be used.
    """
    if ":" not in settings.model or not can_build or not find_spec("tensorflow"):
        return
    _log.info("checking the model %s: building it in a separate process", settings.model)
    # The weights are not read: only the model is checked.
    given = settings.model_copy(update={"weights": "", "freeze_epochs": 0})
    try:
        # A file, because the user's code may print to stdout.
        with NamedTemporaryFile() as answer:
            subprocess.run(
                [sys.executable, "-m", "pipeline.training.model.check", str(classes), answer.name],
                input=given.model_dump_json().encode(),
                capture_output=True,
                timeout=MAX_S,
                # TensorFlow would take the memory of a GPU that is in use.
                env={**environment_of_tensorflow(), "CUDA_VISIBLE_DEVICES": "-1"},
                check=True,
            )
            content = json.load(answer)  # An empty file, which raises, if the user's code ended the process.
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        _log.warning("could not check the model %s (%s): the training will check it", settings.model, error)
        return
    failure = error_from_json(**content) if content else None
    if isinstance(failure, OwnCodeError):
        _log.warning(
            "%s. The training will check the model again, because its worker may have a GPU and other packages", failure
        )
    elif failure:
        raise failure
