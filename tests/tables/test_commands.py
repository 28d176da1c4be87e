"""The commands of the command line with tables: what they print, and what they refuse."""

import csv
import re
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.tables.samples import write_sample_table
from tests.report.test_report import Page

TABLE = ("--set", "example_kind=table")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with customers.csv (classes) and prices.csv (numbers)."""
    folder = tmp_path_factory.mktemp("tables")
    write_sample_table(folder / "customers.csv", 400)
    with (folder / "prices.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("size", "rooms", "price"))
        writer.writerows((50 + number % 97, number % 5, 1000.5 * (number % 97) + number) for number in range(400))
    return folder


def built(source: Path, workspace: Path, label: str) -> Path:
    settings = ("source_uri=" + str(source), "label_column=" + label, "workspace=" + str(workspace))
    assert main(["build", *TABLE, *(part for each in settings for part in ("--set", each))]) == 0
    [description] = workspace.glob("datasets/*/*/dataset.json")
    return description.parent


@pytest.fixture(scope="module")
def classes(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(sources / "customers.csv", tmp_path_factory.mktemp("classes"), "churn")


@pytest.fixture(scope="module")
def numbers(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(sources / "prices.csv", tmp_path_factory.mktemp("numbers"), "price")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail, and return its error, which is one line."""
    capsys.readouterr()
    assert main(arguments) == 1
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


def test_the_card_of_classes_speaks_of_rows(classes: Path):
    text = " ".join(Page(classes / "card.html").text.split())
    assert "400 rows were read." in text
    assert "times the training rows of the smallest" in text
    assert "No row was rejected." in text
    assert "image" not in text


def test_the_card_of_numbers_has_no_classes(numbers: Path):
    text = " ".join(Page(numbers / "card.html").text.split())
    assert re.search("columns 3 rejected 0", text)
    assert "lasses" not in text
    assert "image" not in text


def test_commands_about_images_refuse_a_table(classes: Path, sources: Path, capsys: pytest.CaptureFixture[str]):
    assert "is a dataset of a table, which has no images to draw: see its columns in" in refused(
        capsys, "show", str(classes)
    )
    source = f"source_uri={sources / 'customers.csv'}"
    error = refused(capsys, "compare-inputs", *TABLE, "--set", source, "--set", "label_column=churn")
    assert "example_kind must be images for a comparison of inputs, got table" in error


def test_a_setting_that_does_not_fit_is_refused_before_a_shard_is_written(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    places = (f"source_uri={sources / 'prices.csv'}", f"workspace={tmp_path}", "label_column=price")
    arguments = [part for each in (*places, "class_weights=balanced") for part in ("--set", each)]
    error = refused(capsys, "run", *TABLE, *arguments)
    assert re.search(r"class_weights must be none for a regression, as in .*prices\.csv, got balanced", error)
    assert not [*tmp_path.rglob("*.tfrecord")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((), "source_uri is empty: set it to the table, a file of CSV, JSON lines, Parquet, "),
        (("source_uri=/missing/t.csv", "label_column=x"), "source_uri must be a folder or table that exists"),
    ],
)
def test_a_missing_source_is_called_a_table(
    settings: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
):
    assert message in refused(capsys, "build", *TABLE, *(part for each in settings for part in ("--set", each)))


def test_the_order_of_classes_is_measured(classes: Path, numbers: Path, capsys: pytest.CaptureFixture[str]):
    capsys.readouterr()
    assert main(["shuffle-quality", str(classes)]) == 0
    assert "training examples in batches of 32" in capsys.readouterr().out
    assert "is a dataset for a regression, which has no classes" in refused(capsys, "shuffle-quality", str(numbers))
