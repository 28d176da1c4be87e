"""Check that a user's own model can be built: `python -m pipeline.training.model.check CLASSES ANSWER < SETTINGS`.

SETTINGS are JSON. The file ANSWER gets JSON, too: {}, or the error as `error_to_json` if the model cannot be built. The
user's code may print to stdout at any time, so stdout is not used.
"""

import json
import sys
from pathlib import Path

from pipeline.config.settings import settings_from
from pipeline.errors import SettingsError, error_to_json
from pipeline.training.model.models import build_model, model_options


def main(classes: int, answer: Path) -> None:
    """Build the model of the settings on stdin and write what is wrong with it."""
    settings = settings_from(json.load(sys.stdin))
    failure = {}
    try:
        build_model(model_options(settings), classes)
    # Any other error ends this process. Its parent then warns, and leaves the check to the training.
    except SettingsError as error:
        failure = error_to_json(error)
    answer.write_text(json.dumps(failure))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
