"""The options of a comparison of inputs: what they accept, and their sentences."""

import pytest

from pipeline.config.settings import validated
from pipeline.errors import SettingsError
from pipeline.tuning.contenders import CONTENDERS
from pipeline.tuning.options import ComparisonOptions


def test_all_contenders_are_compared_unless_a_person_names_some():
    assert ComparisonOptions().names == list(CONTENDERS)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("files", "contenders must list at least two contenders, each once, got 'files'"),
        ("shards,shards", "each once"),
        ("shards,webdataset", "'webdataset' is none of them"),
        ("", "'' is none of them"),
    ],
)
def test_a_list_that_cannot_be_compared_is_refused(value: str, message: str):
    with pytest.raises(SettingsError, match=message):
        validated(ComparisonOptions, {"contenders": value})


def test_contenders_come_in_one_order_because_the_first_is_the_base():
    assert validated(ComparisonOptions, {"contenders": "cached, shards,files"}).contenders == "files,shards,cached"


def test_texts_of_the_command_line_are_read_as_numbers():
    options = validated(ComparisonOptions, {"rounds": "5", "measure_seconds": None}, strict=False)
    assert (options.rounds, options.measure_seconds) == (5, 2.0)
    with pytest.raises(SettingsError, match="rounds must be greater than or equal to 2, got '1'"):
        validated(ComparisonOptions, {"rounds": "1"}, strict=False)
