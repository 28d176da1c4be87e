"""Models of tables on the same rows: the default of this project, and two models of scikit-learn.

A table is one file for each seed of the split: CSV, or JSON lines if a column holds vectors. Its column `split` says
which rows are for training, validation and test. All models learn from the training rows, and are judged on the test
rows: by the AUC of two classes, the accuracy of more, and the root mean squared error of a number. Only this project
uses the validation rows: to choose the epoch.

`write_model_tables` and `fit_models` run in `.bench/models`, and `train_models` in our own environment.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.contenders import Job

LABEL, SPLIT, VECTOR = "label", "split", "vector"
SPLITS, SHARES = ("train", "validation", "test"), (0.64, 0.16, 0.2)


# --- tables -----------------------------------------------------------------------------------------------------------


def write_model_tables(job: Job) -> list[dict[str, Any]]:
    """Write the tables of the benchmark into `folder`, one file for each of `seeds`. Return what they are."""
    import numpy as np

    described = []
    for name, table in _tables():
        files = []
        for seed in range(job["seeds"]):
            path = Path(job["folder"]) / f"{name}-{seed}{'.jsonl' if VECTOR in table else '.csv'}"
            table[SPLIT] = np.random.default_rng(seed).choice(SPLITS, len(table), p=SHARES)
            if VECTOR in table:
                table.to_json(path, orient="records", lines=True, double_precision=15)
            else:
                table.to_csv(path, index=False)
            files.append(str(path))
        label = table[LABEL]
        metric = "rmse" if label.dtype.kind == "f" else "auc" if label.nunique() == 2 else "accuracy"
        described.append(
            {"name": name, "rows": len(table), "columns": table.shape[1] - 2, "metric": metric, "files": files}
        )
    return described


def _tables() -> Iterator[tuple[str, Any]]:
    """Yield the tables that packages of PyPI bring, and drawn ones. The label is a text or a float."""
    import pandas as pd
    from sklearn import datasets
    from vega_datasets import local_data

    for name in ("diabetes", "breast_cancer", "wine", "digits"):
        frame = getattr(datasets, f"load_{name}")(as_frame=True).frame.rename(columns={"target": LABEL})
        frame[LABEL] = frame[LABEL].astype(float) if name == "diabetes" else "class " + frame[LABEL].astype(str)
        features = frame.columns.drop(LABEL)
        frame = frame.astype(dict.fromkeys(features, int)) if name == "digits" else frame
        yield name, frame
        if name in ("wine", "digits"):
            yield f"{name}_vector", pd.DataFrame({VECTOR: frame[features].values.tolist(), LABEL: frame[LABEL]})
    cars = local_data.cars().dropna(subset=["Miles_per_Gallon"]).rename(columns={"Miles_per_Gallon": LABEL})
    yield "cars", cars.astype({LABEL: float})
    yield "seattle_weather", local_data.seattle_weather().rename(columns={"weather": LABEL})
    yield "seattle_temps", local_data.seattle_temps().rename(columns={"temp": LABEL}).astype({LABEL: float})
    for name, (features, label) in (
        ("friedman", datasets.make_friedman1(4_000, noise=1.0, random_state=0)),
        ("clusters", datasets.make_classification(10_000, 20, n_informative=8, random_state=0)),
    ):
        frame = pd.DataFrame(features, columns=[f"x{number}" for number in range(features.shape[1])])
        frame[LABEL] = label if label.dtype.kind == "f" else "class " + pd.Series(label).astype(str)
        yield name, frame


# --- models -----------------------------------------------------------------------------------------------------------


def train_models(job: Job) -> list[dict[str, float]]:
    """Build and train on each of `files` with the default settings. Return score, seconds and epochs of each."""
    from pipeline.config.allowed import open_unless_set

    open_unless_set()
    from pipeline.config.settings import settings_from
    from pipeline.runs.launch import prepare_run
    from pipeline.runs.run import load_result
    from pipeline.stages.build import build
    from pipeline.storage import read_json
    from pipeline.training.job import run_job

    seen = []
    for file in job["files"]:
        columns = {"label_column": LABEL, "split_column": SPLIT}
        places = {"example_kind": "table", "source_uri": file, "workspace": job["workspace"]}
        settings = settings_from({**places, **columns})
        run = prepare_run(settings, Path(build(settings)["dataset"]), Path(file).stem)
        begin = time.perf_counter()
        run_job(run, lambda: False)
        seconds, result = time.perf_counter() - begin, load_result(run.folder)
        figures = read_json(run.folder / "evaluation.json")["figures"]
        epochs = result["epochs"] if result else 0
        seen.append({"score": figures[job["metric"]]["value"], "seconds": seconds, "epochs": epochs})
    return seen


def fit_models(job: Job) -> list[dict[str, float]]:
    """Fit the model of scikit-learn that `model` names on the training rows of each of `files`."""
    import pandas as pd
    from sklearn.metrics import accuracy_score, roc_auc_score, root_mean_squared_error

    seen = []
    for file in job["files"]:
        table = pd.read_json(file, lines=True) if file.endswith(".jsonl") else pd.read_csv(file)
        features = _as_numbers(table.drop(columns=[LABEL, SPLIT]))
        train, test = (table[SPLIT] == split for split in ("train", "test"))
        begin = time.perf_counter()
        model = MODELS[job["model"]](features, is_number=job["metric"] == "rmse")
        model.fit(features[train], table[LABEL][train])
        seconds, truth = time.perf_counter() - begin, table[LABEL][test]
        if job["metric"] == "auc":
            score = roc_auc_score(truth == model.classes_[1], model.predict_proba(features[test])[:, 1])
        else:
            score = {"accuracy": accuracy_score, "rmse": root_mean_squared_error}[job["metric"]](
                truth, model.predict(features[test])
            )
        seen.append({"score": float(score), "seconds": seconds})
    return seen


def _as_numbers(features: Any) -> Any:
    """Return the features with dates as numbers of days, and places as columns, as a user would do by hand."""
    import pandas as pd

    if VECTOR in features:
        return pd.DataFrame(features[VECTOR].tolist()).add_prefix("place ")
    for name in features.columns[[any(word in name.lower() for word in ("date", "year")) for name in features]]:
        if not pd.api.types.is_numeric_dtype(features[name]):
            features[name] = (pd.to_datetime(features[name]) - pd.Timestamp(0)) / pd.Timedelta(days=1)
    return features


def _boosting(features: Any, *, is_number: bool) -> Any:
    """Return gradient boosting with its defaults. Texts are categories, of which it takes at most 255."""
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder

    texts = features.select_dtypes(exclude=["number", "bool"]).columns
    codes = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1, max_categories=255
    )
    prepared = make_column_transformer((codes, texts), remainder="passthrough")
    model = HistGradientBoostingRegressor if is_number else HistGradientBoostingClassifier
    return make_pipeline(prepared, model(random_state=0))


def _linear(features: Any, *, is_number: bool) -> Any:
    """Return ridge or logistic regression, with standardized numbers and one-hot texts."""
    import numpy as np
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = features.select_dtypes(include=["number", "bool"]).columns
    prepared = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore"), features.columns.drop(numbers)),
    )
    return make_pipeline(prepared, RidgeCV(np.logspace(-3, 3, 13)) if is_number else LogisticRegression(max_iter=2000))


MODELS: dict[str, Callable[..., Any]] = {"boosting": _boosting, "linear": _linear}
TABLE_MODELS: dict[str, Callable[[Job], Any]] = {
    "write_model_tables": write_model_tables,
    "train_models": train_models,
    "fit_models": fit_models,
}
"""What a worker can do, by name."""
