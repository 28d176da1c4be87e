"""`predict` prints any number of predictions without holding them in memory."""

import json
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.gate import new_rows
from pipeline.runs import champion, run

ROWS = 1000


class Prediction(dict):
    """A dictionary that can be counted while it lives."""


@pytest.fixture
def most_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many predictions were in memory at each row. Patches stand for a model, because only the memory counts."""
    from pipeline.training.served import predict

    alive: weakref.WeakValueDictionary[int, Prediction] = weakref.WeakValueDictionary()
    counts: list[int] = []

    def predict_rows(*_: object) -> Iterator[Prediction]:
        for row in range(ROWS):
            prediction = Prediction(file="t.csv", row=row, value=row / 2)
            alive[row] = prediction
            counts.append(len(alive))
            yield prediction

    class NoRows:
        def __init__(self, *_: object) -> None:
            pass

        def changes(self) -> dict[str, object]:
            return {}

    about = {"columns": [], "dataset_version": "v"}
    (tmp_path / run.TABLE_FACTS).write_text("{}")
    monkeypatch.setattr(predict, "predict_rows", predict_rows)
    monkeypatch.setattr(predict, "loaded", lambda folder: nullcontext())
    monkeypatch.setattr(predict, "find_exported_model", lambda model: model)
    monkeypatch.setattr(predict, "load_about", lambda folder: about)
    monkeypatch.setattr(run, "load_about", lambda folder: about)
    monkeypatch.setattr(champion, "find_promoted_model", lambda model: tmp_path)
    monkeypatch.setattr(new_rows, "NewRows", NoRows)
    monkeypatch.setattr(new_rows, "sentences_of", lambda *_: [])
    return counts


@pytest.mark.parametrize("as_json", [True, False])
def test_no_prediction_stays_in_memory(
    most_alive: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool
):
    assert main(["predict", "--model", str(tmp_path), "t.csv", *["--json"] * as_json]) == 0
    printed = capsys.readouterr().out
    assert len(most_alive) == ROWS
    assert max(most_alive) <= 3
    if as_json:
        result = json.loads(printed)
        assert result["ok"] is True
        assert result["predictions"] == [{"file": "t.csv", "row": row, "value": row / 2} for row in range(ROWS)]
        assert result["warnings"] == []
    else:
        lines = printed.splitlines()
        assert (len(lines), lines[0][:11], lines[999][:11]) == (ROWS, "t.csv:0    ", "t.csv:999  ")
