"""settings.example.toml lists every setting with its default."""

import re
import tomllib
from pathlib import Path

import pytest

from pipeline.config.settings import Settings, settings_from
from scripts.settings_example import WITHOUT_DEFAULT, example

FILE = Path(__file__).parents[2] / "settings.example.toml"


def test_the_file_is_up_to_date():
    assert FILE.read_text("utf-8") == example(), "run: python -m scripts.settings_example > settings.example.toml"


def test_every_setting_can_be_uncommented(monkeypatch: pytest.MonkeyPatch):
    for variable in ("TENFOLD_WORKSPACE", "TENFOLD_LOCAL_FOLDER"):
        monkeypatch.delenv(variable, raising=False)
    assignments = re.findall(r"^# (\w+ = .*)$", FILE.read_text("utf-8"), re.MULTILINE)
    values = tomllib.loads("\n".join(assignments))
    assert list(values) == list(Settings.model_fields)
    defaults = {name: field.get_default(call_default_factory=True) for name, field in Settings.model_fields.items()}
    assert {name: value for name, value in values.items() if value != defaults[name]} == WITHOUT_DEFAULT
    settings_from(values)
