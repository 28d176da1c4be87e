from typing import Any

import pytest

from pipeline.config.data_gate import CHECKS, Check
from pipeline.config.settings import Settings, settings_from
from pipeline.gate.findings import GateOptions, findings, gate_options

CONTRADICTIONS = {
    "images": 4,
    "groups": 2,
    "of": 100,
    "pairs": [{"paths": ["a/1.jpg", "b/9.jpg"], "labels": [["a"], ["b", "c"]]}],
}
TABLE_CHANGES = {
    "against": "abc",
    "columns": {"x": "is missing", "y": "is new"},
    "new_values": {"color": {"fraction": 0.25, "values": ["green", "red"]}, "kind": {"fraction": 0.0, "values": ["a"]}},
    "means": {"x": 0.26, "y": 1.5, "z": 0.25},
}
LEAKS = {"images": 3, "of": 100, "names": [["a/1.jpg", f"b/{n}.jpg"] for n in range(20)]}


def options(**values: Any) -> GateOptions:
    return gate_options(settings_from({"workspace": "workspace", **values}))


@pytest.mark.parametrize(
    ("quality", "limits", "sentence"),
    [
        (
            {"listed": 600, "rejected": 312},
            {},
            "312 of 600 (52%) images were rejected, more than max_rejected_fraction=0.5: "
            "rejected.jsonl says why and what could be done with each",
        ),
        (
            {"leaks": LEAKS},
            {},
            "3 of 100 (3%) validation and test images are in training too, more than max_leaked_fraction=0.01, such as "
            "'b/0.jpg' (as 'a/1.jpg'), 'b/1.jpg' (as 'a/1.jpg'), 'b/2.jpg' (as 'a/1.jpg'): "
            "remove them from one side, or the score flatters the model",
        ),
        (
            {"contradictions": CONTRADICTIONS},
            {},
            "4 of 100 (4%) images are equal to one with different labels, more than max_contradictory_fraction=0, such "
            "as 'a/1.jpg' ('a') and 'b/9.jpg' ('b'|'c'): keep one label, or remove the images",
        ),
        (
            {"classes": {"cat": 4, "dog": 1000, "eel": 300}},
            {},
            "class 'dog' has 1000 training images, 250 times the 4 of 'cat', more than max_imbalance=100: "
            "add images to the small classes, or remove these classes",
        ),
        (
            {"classes": {"cat": 0, "dog": 5}},
            {},
            "class 'dog' has 5 training images, against the 0 of 'cat', more than max_imbalance=100: "
            "add images to the small classes, or remove these classes",
        ),
        (
            {"drift": {"against": "abc", "sizes": 0.3, "aspect": 0.01, "classes": 1.254}},
            {},
            "the images differ from those of version abc in classes by 1.25, sizes by 0.30, more than max_drift=0.25. "
            "Look at the dataset cards of both, and go on if the change is meant",
        ),
        (
            {"table_changes": {"against": "abc", "columns": {f"c{n}": "is missing" for n in range(12)}}},
            {"max_changed_columns": 11},
            "12 columns of version abc changed, more than max_changed_columns=11: 'c0' is missing, 'c1' is missing, "
            "'c2' is missing, 'c3' is missing, 'c4' is missing, 'c5' is missing, 'c6' is missing, 'c7' is missing, "
            "'c8' is missing, 'c9' is missing and 2 more. Repair the table, correct columns and drop_columns, or go on "
            "if the change is meant",
        ),
        (
            {"table_changes": {"against": "abc", "new_values": TABLE_CHANGES["new_values"]}},
            {},
            "1 column with texts that no training row of version abc has, in more than max_new_values_fraction=0 of "
            "the training rows: 'color' in 0.25 of the training rows (such as 'green'). Train again, because "
            "a model of that version knows none of them",
        ),
        (
            {
                "unit": "row",
                "other_source": "/b/sales.csv",
                "table_changes": {"against": "abc", "new_values": TABLE_CHANGES["new_values"]},
            },
            {},
            "1 column with texts that no training row of version abc has, in more than max_new_values_fraction=0 of "
            "the training rows: 'color' in 0.25 of the training rows (such as 'green'). That version has another "
            "source, /b/sales.csv. If these are not the same table, choose another dataset_name. Otherwise, train "
            "again, because a model of that version "
            "knows none of them",
        ),
        (
            {"table_changes": {"against": "abc", "means": TABLE_CHANGES["means"]}},
            {},
            "the means of 2 columns moved since version abc by more than max_mean_drift=0.25 standard deviations: 'y' "
            "by 1.50, 'x' by 0.26. Look at the dataset cards of both, and go on if the change is meant",
        ),
        (
            {
                "unit": "row",
                "other_source": "/b/sales.csv",
                "table_changes": {"against": "abc", "columns": {"c": "is missing"}},
            },
            {},
            "1 column of version abc changed, more than max_changed_columns=0: 'c' is missing. That version has "
            "another source, /b/sales.csv. If these are not the same table, choose another dataset_name. Otherwise, "
            "repair the table, correct columns and drop_columns, or go on if the change is meant",
        ),
        (
            {"other_source": "/b/photos", "drift": {"against": "abc", "sizes": 0.3}},
            {},
            "the images differ from those of version abc in sizes by 0.30, more than max_drift=0.25. That version has "
            "another source, /b/photos. If these are not the same images, choose another dataset_name. Otherwise, "
            "look at the dataset cards",
        ),
        ({"listed": 10, "rejected": 1}, {"max_rejected_fraction": 0.0}, "1 of 10 (10%) images were rejected, more"),
        ({"leaks": {"images": 1, "of": 3, "names": []}}, {}, "1 of 3 (33.3%) validation and test images are in train"),
    ],
)
def test_a_value_above_its_threshold_becomes_one_sentence(
    quality: dict[str, Any], limits: dict[str, Any], sentence: str
):
    (found,) = findings({"unit": "image", **quality}, options(**limits))
    assert found.sentence.startswith(sentence)
    assert "\n" not in found.sentence


@pytest.mark.parametrize(
    "quality",
    [
        {},
        {"listed": 600, "rejected": 300},
        {"listed": 0, "rejected": 0},
        {"contradictions": {"images": 0, "groups": 0, "of": 100, "pairs": []}},
        {"rejected": 7},
        {"leaks": {"images": 1, "of": 100, "names": [["a", "b"]]}},
        {"leaks": {"images": 0, "of": 0, "names": []}},
        {"leaks": None, "drift": None, "near_duplicates": None, "classes": {}},
        {"classes": {"cat": 1, "dog": 100}},
        {"classes": {"cat": 0, "dog": 5}, "classes_gone": ["cat"]},
        {"drift": {"against": None}},
        {"drift": {"against": "abc", "sizes": 0.25, "aspect": 0.0}},
    ],
)
def test_values_within_their_thresholds_or_unknown_are_ignored(quality: dict[str, Any]):
    assert findings({"unit": "image", **quality}, options()) == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.action.name)
def test_each_check_reports_its_own_two_settings(check: Check):
    quality = {
        "unit": "row",
        "listed": 1,
        "rejected": 1,
        "leaks": LEAKS,
        "contradictions": CONTRADICTIONS,
        "classes": {"a": 1, "b": 1000},
        "drift": {"against": "v", "sizes": 9.0},
        "table_changes": TABLE_CHANGES,
    }
    others = {each.action.name: "continue" for each in CHECKS}
    chosen = options(**{**others, check.action.name: "ask"})
    found = findings(quality, chosen)
    assert [finding.setting for finding in found] == list(others)
    (asking,) = (finding for finding in found if finding.action == "ask")
    assert asking.setting == check.action.name
    assert f"more than {check.threshold.name}=" in asking.sentence
    assert set(chosen.actions.values()) == {"continue", "ask"}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.action.name)
def test_the_form_has_the_action_of_a_check_and_its_threshold_below(check: Check):
    names = list(Settings.model_fields)
    assert names[names.index(check.action.name) + 1] == check.threshold.name


def test_image_names_are_escaped():
    leaks = {"images": 1, "of": 1, "names": [["a\n.jpg", "b\udcff.jpg"]]}
    (found,) = findings({"unit": "image", "leaks": leaks}, options())
    assert r"such as 'b\udcff.jpg' (as 'a\n.jpg')" in found.sentence
    found.sentence.encode()  # Otherwise, a log could not hold it.
