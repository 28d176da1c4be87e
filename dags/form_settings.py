"""The settings in the form of each DAG. This file does not import Airflow, because the documentation imports it."""

from pipeline.config.declarations import UsedBy
from pipeline.config.example_kinds import IMAGES, TABLE
from pipeline.config.settings import settings_for, settings_with

_OF_BUILD = settings_with(UsedBy.BUILD)
_OF_ALL = settings_with(UsedBy.BUILD | UsedBy.TRAIN)
_WITHOUT_EFFECT = frozenset(
    {"num_training_servers", "learning_rate", "patience", "promote", "max_worse"}
    | {"comet_project", "cache", "prepare", "prepare_size", "engine", "continues"}
)
"""Settings without an effect on a comparison: there is one server and one machine, no training ends early or continues
another one, the model is not kept, and contenders set `cache`, `prepare` and `prepare_size`."""

FORM_SETTINGS = {
    "image_training": settings_for(IMAGES, _OF_ALL),
    "tabular_training": settings_for(TABLE, _OF_ALL),
    "image_dataset": settings_for(IMAGES, _OF_BUILD),
    "tabular_dataset": settings_for(TABLE, _OF_BUILD),
    "retrain": [name for name in settings_with(UsedBy.TRAIN | UsedBy.RETRAIN) if name != "continues"],
    "input_comparison": [name for name in settings_for(IMAGES, _OF_ALL) if name not in _WITHOUT_EFFECT],
}
