"""A model of the sample table, against a model of scikit-learn on the same rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import load
from pipeline.evaluation.metrics import load_predictions
from pipeline.records.tfrecord import read_records
from pipeline.report import report_run
from pipeline.runs.launch import prepare_run
from pipeline.stages.build import build
from pipeline.storage import read_json
from pipeline.tables.read import read_row
from pipeline.tables.samples import write_sample_table
from pipeline.tables.schema import Schema
from pipeline.training.job import run_job
from tests.report.test_report import Page

NUMBERS = ["age", "income", "visits", "active", "joined", "last_seen", "balance"]
TEXTS = ["city", "plan"]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("sample")
    write_sample_table(folder / "customers.csv", 20_000)
    values = {
        "example_kind": "table",
        "source_uri": str(folder / "customers.csv"),
        "label_column": "churn",
        "key_column": "customer",
        "workspace": str(folder / "workspace"),
        "batch_size": 256,
        "epochs": 12,
        "learning_rate": 0.003,
    }
    return settings_from(values)


def rows_of(dataset: Path, split: str) -> pd.DataFrame:
    """Return the rows of a split, as its records hold them."""
    content = load(dataset)
    schema = Schema.from_json(content.table)
    shards = [dataset / shard.name for shard in content.splits[split].shards]
    rows = [read_row(record, schema) for shard in shards for record in read_records(shard)]
    table = pd.DataFrame([{name: value for name, [value] in row.items()} for row in rows])
    table["churn"] = table["churn"] == b"yes"
    return table


def models() -> dict[str, Any]:
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    texts = make_pipeline(SimpleImputer(strategy="constant", fill_value=b""), OneHotEncoder())
    columns = ColumnTransformer([("numbers", numbers, NUMBERS), ("texts", texts, TEXTS)], sparse_threshold=0)
    return {
        "logistic regression": make_pipeline(columns, LogisticRegression(max_iter=1000)),
        "gradient boosting": make_pipeline(columns, HistGradientBoostingClassifier(random_state=0)),
    }


@pytest.mark.long
def test_the_model_is_as_good_as_those_of_scikit_learn_and_the_report_says_so(settings: Settings):
    dataset = Path(build(settings)["dataset"])
    run = prepare_run(settings, dataset, "run")
    run_job(run, lambda: False)
    auc = read_json(run.folder / "evaluation.json")["figures"]["auc"]

    train, validation = rows_of(dataset, "train"), rows_of(dataset, "validation")
    assert len(train) + len(validation) == 20_000
    for name, model in models().items():
        model.fit(train, train["churn"])
        expected = roc_auc_score(validation["churn"], model.predict_proba(validation)[:, 1])
        assert auc["low"] < expected < auc["high"], name
        assert auc["value"] == pytest.approx(expected, abs=0.02), name

    result = read_json(run.folder / "result.json")["metrics"]
    assert result["val_auc"] == pytest.approx(auc["value"], abs=1e-6)
    text = " ".join(Page(Path(str(report_run(run.folder)))).text.split())
    assert f"0.5 is chance {auc['value']:.3f} {auc['low']:.3f} to {auc['high']:.3f}" in text
    assert f"the figures of the best model on the {len(validation):,} validation examples" in text


@pytest.mark.long
def test_the_rows_of_a_customer_count_together(tmp_path: Path):
    rows = [f"r{number},c{number // 5},{number % 7},{'yn'[number // 5 % 2]}" for number in range(400)]
    (tmp_path / "sales.csv").write_text("\n".join(["id,customer,x,label", *rows]))
    places = {"source_uri": str(tmp_path / "sales.csv"), "workspace": str(tmp_path / "w"), "example_kind": "table"}
    columns = {"label_column": "label", "key_column": "id", "group_column": "customer"}
    settings = settings_from({**places, **columns, "epochs": 1, "batch_size": 32})
    run = prepare_run(settings, Path(build(settings)["dataset"]), "run")
    run_job(run, lambda: False)
    group = load_predictions(run.folder).group
    _, sizes = np.unique(group, return_counts=True)
    assert set(sizes.tolist()) == {5}
    evaluation = read_json(run.folder / "evaluation.json")
    assert (evaluation["groups"], evaluation["examples"]) == (len(sizes), len(group))
    text = " ".join(Page(Path(str(report_run(run.folder)))).text.split())
    assert f"on the {len(group)} validation examples in {len(sizes)} groups" in text
