"""What a search of the list means."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from plugins.training_monitor.search import COLUMNS, SearchError, parse

SETTINGS = ("epochs", "batch_size", "learning_rate", "prepare", "cache_shards")


@dataclass
class Row:
    """A row with some values."""

    values: dict[str, Any] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    """The sentence beside a value."""

    def text(self) -> str:
        return " ".join(map(str, self.values.values())).casefold()

    def cell(self, name: str) -> str:
        return " ".join(filter(None, (str(self.values.get(name, "")), self.words.get(name))))

    def value(self, name: str) -> Any:
        assert name in COLUMNS + SETTINGS
        return self.values.get(name)


FLOWERS = Row(
    {
        "run": "my best manual__2026-01-01T00:00:00+00:00",
        "dataset": "My Flowers",
        "accuracy": 0.54,
        "wait": 0.04,
        "error": 1234.5,
        "speed": 812.5,
        "started": "2026-01-31 23:15:00",
        "epochs": 10,
        "batch_size": 32,
        "learning_rate": 0.001,
        "prepare": "resize",
        "cache_shards": True,
        "state": "Failed",
    },
    words={"state": "Task train failed: no slot."},
)


@pytest.mark.parametrize(
    "search",
    [
        *("", "flowers", "FLOWERS best", '"my flowers"', "manual__2026-01-01T00:00:00+00:00", "23:15"),
        *("dataset:flowers", 'dataset="my flowers"', "dataset!=birds", "Dataset:FLOW", "run:best", "model!=resnet50"),
        *("accuracy>0.5", "accuracy>50", "accuracy>=54%", "accuracy=54%", "accuracy:0.54", "wait<5", "wait<=4%"),
        *("epochs>=10", "epochs=10", "epochs:10", "epochs!=11", "batch_size=32.0", "learning_rate<=1e-3", "speed>800"),
        *("prepare=resize", "cache_shards=true", "started>2026-01-30", "started>=2026-01-31", "started<2027"),
        *("state=failed", "state:slot", "accuracy=54", "accuracy!=53.9%", "speed=812.5", "error<2e3"),
        *("error=1234", "error=1,234", "error:1235", "error!=1,236"),
        *("started=2026-01-31", "started=2026-01", "started!=2026-02", 'started>="2026-01-31 23:15"', "started:23:15"),
        *("dataset:flowers accuracy>0.5 wait<5 epochs>=10 batch_size=32", "best epochs<11"),
    ],
)
def test_a_search_finds_a_row(search: str):
    assert parse(search, SETTINGS).finds(FLOWERS)


@pytest.mark.parametrize(
    "search",
    [
        *("birds", "flowers birds", '"flowers my"', "dataset:birds", "dataset=flowers", 'dataset!="my flowers"'),
        *("accuracy>0.54", "accuracy<54%", "accuracy=0.5", "wait>=5", "epochs>10", "epochs:1", "batch_size!=32"),
        *("cache_shards=false", "started>2026-01-31", "started<2026", "flowers epochs>10", "model=resnet50"),
        *("state!=failed", "started=2026-01-30", "started!=2026-01", "accuracy=54.1%", "accuracy=53%", "wait=0.05"),
        *("model:resnet", "progress>0", "progress<=1", "prepare>3"),
    ],
)
def test_a_search_leaves_out_a_row(search: str):
    """A value that is missing fulfills no condition but that it differs."""
    assert not parse(search, SETTINGS).finds(FLOWERS)


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("accurac>0.5", "No column and no setting is named accurac. Did you mean accuracy?"),
        ("batchsize=32", "Did you mean batch_size?"),
        ("gs://bucket", 'To search for the text itself, put it in quotes: "gs://bucket".'),
        ("flowers accuracy>", "The filter accuracy> has no value. Write, for example, accuracy>0.5."),
        ("dataset:", "The filter dataset: has no value. Write, for example, dataset:flowers."),
        ("accuracy>high", "accuracy is compared with a number, and 'high' is no number."),
        ("accuracy=nan", "accuracy is compared with a number, and 'nan' is no number."),
        ("epochs<many", "epochs is compared with a number, and 'many' is no number."),
        (
            "started>yesterday",
            "started is compared with a time, and 'yesterday' is none. Write, for example",
        ),
        ("started=2026-1-3", "started is compared with a time"),
        ("error<", "The filter error< has no value. Write, for example, error<100."),
        ("speed:50%", "speed is compared with a number, and '50%' is no number."),
        ("error:timeout", 'To search for the text itself, put it in quotes: "error:timeout".'),
        ("dataset>a", "dataset is a text. Write dataset:a for texts that contain a, or dataset=a."),
    ],
)
def test_a_filter_that_is_not_understood_gets_a_sentence(search: str, message: str):
    with pytest.raises(SearchError) as error:
        parse(search, SETTINGS)
    assert message in str(error.value)


def test_a_share_is_compared_as_precisely_as_it_is_written():
    row = Row({"accuracy": 0.5417})
    found = [search for search in ("54%", "54", "0.54", "54.2%", "0.542", "54.1%", "55%", "0.5")
             if parse(f"accuracy={search}", ()).finds(row)]  # fmt: skip
    assert found == ["54%", "54", "0.54", "54.2%", "0.542"]


def test_a_filter_says_how_it_is_understood():
    found = parse("dataset:Flowers accuracy>50 wait<0.05 epochs!=3 speed<=9", SETTINGS).filters
    assert [*map(str, found)] == [
        "dataset contains flowers", "accuracy > 50%", "wait < 5%", "epochs is not 3", "speed <= 9",
    ]  # fmt: skip
