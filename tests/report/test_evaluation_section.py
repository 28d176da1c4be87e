"""The section of the report with the evaluation of the model."""

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.dataset.manifest import images_at, load
from pipeline.evaluation.metrics import evaluation_of, save
from pipeline.evaluation.multilabel import MultiLabelPredictions
from pipeline.report import evaluation_section as section
from pipeline.report import report_run, write_report
from pipeline.report.components import thumbnail
from pipeline.report.evaluation_section import MAX_CLASSES, MAX_PAIRS, UNFOLDED_CLASSES
from pipeline.report.mistakes import THUMBNAIL
from pipeline.runs.files import RUN_FORMAT
from tests.published import publish_case
from tests.report.evaluated import ROWS, evaluated, predictions
from tests.report.test_report import EVIL, SCRIPTS, Page, describe, picture


def text_of(page: Page) -> str:
    return " ".join(page.text.split())


def test_the_page_shows_the_evaluation_in_numbers(tmp_path: Path):
    describe(tmp_path)
    content = evaluated(tmp_path, ["circle", "square"])
    page = Page(write_report(tmp_path, [("a/red.jpg", picture("red")), ("a/no.jpg", "")]))
    accuracy = content["figures"]["accuracy"]
    for phrase in (
        (
            "The model is not surely better than its baseline, always the most frequent class: the difference in "
            "accuracy is 0 points (-"
        ),
        "These are the figures of the best model on the 5 validation examples. In about 95% of such evaluations, the",
        f"accuracy 60.0% {accuracy['low']:.1%} to {accuracy['high']:.1%} 60.0% (always the most frequent class)",
        "A calibrated model has",
        "circle 2 1 square 1 1 ",  # the matrix
        (
            "square 2 50.0% (2.6% to 97.4%) 50.0% (2.6% to 97.4%) "  # the lowest recall first
            "circle 3 66.7% (20.8% to 98.3%) 66.7% (20.8% to 98.3%)"
        ),
        (
            "confidence of the model was 79.0%, and 60.0% of its predictions were correct: on the whole, it is too "
            "confident"
        ),
        "2 of the 5 validation images have a wrong prediction.",
        "square 95% circle a/red.jpg",
    ):
        assert phrase in text_of(page), phrase
    assert "top-5" not in page.text
    shown = [attributes["alt"] for tag, attributes in page.tags if tag == "img"]
    assert shown == ["square, predicted as circle"]  # an image that cannot be decoded is left out


def test_the_section_names_the_split_of_its_examples():
    content = evaluation_of(predictions(ROWS), ["a", "b"], seed=0, split="test")
    assert "on the 5 test examples" in section.sentence(content)
    assert "validation" not in section.sentence(content)


def test_matrix_cells_are_tinted_by_their_share_of_the_class():
    names, rows = zip(*section.matrix(evaluation_of(predictions(ROWS), ["a", "b"], seed=0)), strict=True)
    assert names == ("a", "b")
    assert [[cell.text for cell in row] for row in rows] == [["2", "1"], ["1", "1"]]
    assert [[cell.is_correct for cell in row] for row in rows] == [[True, False], [False, True]]
    assert rows[0][0].tint == pytest.approx(2 * rows[0][1].tint)
    assert rows[0][1].description == "a, predicted as b: 1 of 3"


@pytest.mark.long
@pytest.mark.parametrize("classes", [1, 2, MAX_CLASSES, MAX_CLASSES + 1, 1000])
def test_few_classes_have_a_matrix_and_many_classes_a_list_of_pairs(classes: int):
    rows = [(n % classes, (n + 1) % classes, 0.5) for n in range(2 * classes)]
    view = section.view(evaluation_of(predictions(rows), [f"class {n}" for n in range(classes)], seed=0))
    few = classes <= MAX_CLASSES
    assert (view.matrix is not None) == few
    assert (view.pairs is None) == few
    unfolded = min(classes, UNFOLDED_CLASSES)
    assert len(view.classes.rows) == unfolded
    assert len(view.more_classes.rows if view.more_classes else ()) == min(classes, MAX_CLASSES) - unfolded
    if not few:
        assert view.pairs.rows[0] == ("class 0", "class 1", "2", "100%")
        assert len(view.pairs.rows) == MAX_PAIRS
        assert view.pairs.note == f"{classes - MAX_PAIRS:,} more pairs are in evaluation.json."
        assert view.more_classes.note.startswith(f"{classes - MAX_CLASSES:,} more classes")


def test_classes_without_examples_or_predictions_are_handled():
    view = section.view(evaluation_of(predictions([(0, 0, 0.5), (1, 0, 0.5)]), ["a", "b", "c"], seed=0))
    assert list(view.classes.rows) == [
        ("b", "1", "never predicted", "0.0% (0.0% to 79.3%)"),
        ("a", "1", "50.0% (2.6% to 97.4%)", "100.0% (20.7% to 100.0%)"),
    ]


def test_multilabel_images_are_evaluated_label_by_label(tmp_path: Path):
    describe(tmp_path)
    labels = np.array([[1, 0, 1], [1, 1, 0], [0, 1, 0]])
    probabilities = np.array([[0.9, 0.2, 0.8], [0.3, 0.8, 0.2], [0.6, 0.7, 0.9]])
    answers = MultiLabelPredictions.of_batch(labels, probabilities)
    content = evaluation_of(answers, ["rose", "bud", "leaf"], seed=0)
    save(tmp_path, answers, content)
    page = Page(write_report(tmp_path, [("a/bud.jpg", picture("red")), ("a/both.jpg", picture("blue"))]))
    for phrase in (
        "mean average precision: how well each label ranks its images above others, averaged over the labels 77.8%",
        "(the share of each label)",
        "100.0% (20.7% to 100.0%) rose 2 83.3% (",  # the lowest average precision first
        "The labels of an image had a mean probability of 60.0%, and 55.6% of them were correct",
        "bud 90% leaf a/bud.jpg",
        "rose, bud 30% rose a/both.jpg",
    ):
        assert phrase in text_of(page), phrase
    assert "Confusion matrix" not in page.text
    shown = [attributes["alt"] for tag, attributes in page.tags if tag == "img"]
    assert shown == ["bud; the model predicted 90% leaf", "rose, bud; the model predicted 30% rose"]


def test_a_run_without_an_evaluation_is_reported_as_such(tmp_path: Path):
    describe(tmp_path)
    page = Page(write_report(tmp_path))
    assert "The model was not evaluated: evaluation.json was not found." in page.text
    assert page.count("script") == 1  # the links


def test_html_in_names_is_escaped(tmp_path: Path):
    describe(tmp_path)
    evaluated(tmp_path, [EVIL, "gpj.\u202etac"])
    page = Page(write_report(tmp_path, [(EVIL, picture("red")), ("b.jpg", picture("blue"))]))
    assert page.count("script") == SCRIPTS
    assert page.count("img") == 2
    assert EVIL in page.text
    assert r"gpj.\u202etac" in page.text


def run_of(folder: Path, run: Path, examples: int) -> Path:
    """Write a run whose model is wrong about each example of the dataset in `folder`, and return the run."""
    evaluated(run, ["a", "b", "c"], [(0, 1, 0.9 - n / 100) for n in range(examples)])
    settings = {"source_uri": "x"}
    described = {"run_id": "r", "dataset": str(folder), "dataset_version": "v", "settings": settings}
    described |= {"format": RUN_FORMAT, "folder": str(run), "host": {}, "software": {}, "steps_per_epoch": 1}
    (run / "run.json").write_text(json.dumps(described))
    return run


def test_a_damaged_record_costs_the_report_one_example(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    folder, _ = publish_case("keep", tmp_path)
    split = load(folder).splits["validation"]
    run = run_of(folder, tmp_path / "run", split.examples)
    assert "mistakes.csv" in Page(report_run(run)).text
    shard = next(folder / shard.name for shard in split.shards if shard.examples)
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    page = Page(report_run(run))
    assert page.count("img") == split.examples - 1
    assert f"The page shows {split.examples - 1} of them." in text_of(page)
    assert "mistakes.csv" not in page.text
    assert not (run / "mistakes.csv").exists()
    assert [each.message.partition(":")[0] for each in caplog.records if each.name == "pipeline.report"] == [
        "mistakes.csv is not written"
    ]
    assert f"an example cannot be read: {shard}" in caplog.text


def test_lost_shards_do_not_cost_the_report(tmp_path: Path):
    folder, _ = publish_case("keep", tmp_path)
    split = load(folder).splits["validation"]
    run = run_of(folder, tmp_path / "run", split.examples)
    for shard in split.shards:
        (folder / shard.name).unlink()
    page = Page(report_run(run))
    assert page.count("img") == 0
    assert "images have a wrong prediction. Some of these labels may be wrong." in text_of(page)


def test_predictions_of_more_examples_than_the_dataset_has_do_not_cost_the_report(tmp_path: Path):
    folder, _ = publish_case("keep", tmp_path)
    run = run_of(folder, tmp_path / "run", load(folder).splits["validation"].examples + 1)
    assert "mistakes.csv" not in Page(report_run(run)).text


def test_the_wrong_images_are_read_from_the_shards(tmp_path: Path):
    folder, _ = publish_case("keep", tmp_path)
    dataset = load(folder)
    held_back = dataset.splits["validation"].examples
    page = Page(report_run(run_of(folder, tmp_path / "run", held_back)))
    wrong = [attributes["src"] for tag, attributes in page.tags if tag == "img" and "predicted as" in attributes["alt"]]
    images = images_at(folder, dataset, "validation", range(held_back))
    assert wrong == [thumbnail(image, THUMBNAIL) for _, image in images] != []
    assert all(key in page.text for key, _ in images)
