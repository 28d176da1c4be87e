"""How a metric is rounded and written, and what is declared of all metrics."""

from dataclasses import replace

import pytest

from pipeline.evaluation.estimates import Estimate
from pipeline.evaluation.metrics import METRICS
from pipeline.evaluation.multilabel import MultiLabelPredictions
from pipeline.evaluation.one_label import Predictions
from pipeline.evaluation.regression import RegressionPredictions
from pipeline.evaluation.table_classes import ClassPredictions


@pytest.mark.parametrize(
    ("key", "value", "sign", "text"),
    [
        ("accuracy", 0.6123, "", "61.2%"),
        ("auc", 0.87349, "", "0.873"),
        ("r2", -1.5, "", "-1.500"),
        ("mae", 20431.7, "", "20,430"),
        ("log_loss", 0.01, "+", "+0.01000"),
    ],
)
def test_a_value_is_written_on_the_scale_of_its_metric(key: str, value: float, sign: str, text: str):
    assert METRICS[key].text(value, sign) == text


def test_amounts_keep_their_digits_and_shares_their_decimals():
    assert METRICS["mae"].rounded(Estimate(1.23456789123e-7, 0.0, 1e12)) == (1.23456789e-7, 0.0, 1e12)
    assert METRICS["auc"].rounded(Estimate(0.12345678, 0.1, 0.2)) == (0.123457, 0.1, 0.2)


def test_errors_are_better_if_they_are_lower():
    lower = {key for key, metric in METRICS.items() if metric.lower_is_better}
    assert lower == {"calibration_error", "log_loss", "mae", "rmse"}


def test_a_key_has_the_same_title_and_scale_in_all_tasks():
    for each in (Predictions, MultiLabelPredictions, ClassPredictions, RegressionPredictions):
        assert each.scored_by in each.metrics
        for metric in each.metrics:
            same = replace(
                METRICS[metric.key], meaning=metric.meaning, estimator=metric.estimator, baseline=metric.baseline
            )
            assert repr(metric) == repr(same)
