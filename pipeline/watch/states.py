"""The names of a training's states on a page."""

from collections.abc import Mapping

STATE_NAMES: Mapping[str, str] = {
    "trained": "Trained",
    "training": "Training",
    "starting": "Starting",
    "evaluating": "Evaluating",
    "silent": "No sign of life",
    "stopped": "Stopped",
    "failed": "Failed",
    "waiting": "Not started",
    "building": "Building",
    "none": "No training",
    "unknown": "Unknown",
}
