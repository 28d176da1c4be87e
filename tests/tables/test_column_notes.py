"""Missing values, digits and classes: what the build makes of them, and what it says."""

import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import GateError, SettingsError, SourceError
from pipeline.report.table_columns import texts_of
from tests.tables.built import Built, built, csv_of, parquet_of

WORDS = ("NA", "N/A", "NaN", "nan", "null", "NULL", "None", "#N/A", "?")


def table(tmp_path: Path, values: list[str], **settings: object) -> Built:
    """Return the dataset of a table with the column `x`."""
    lines = [f"{value},{number % 7},{'yn'[number % 2]}" for number, value in enumerate(values)]
    return built(csv_of(tmp_path / "t.csv", ["x,other,label", *lines]), **settings)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("kind", "form"),
    [("int", "{}"), ("float", "{}.5"), ("date", "20{:02}-01-02"), ("time", "20{:02}-01-02T10:00"), ("bool", "true")],
)
def test_words_are_missing_among_other_values(tmp_path: Path, kind: str, form: str, many: bool):
    """A column of more than 10,000 different values is counted in another way."""
    if many and kind in ("int", "float"):
        values = [form.format(number) for number in range(25_000)]
    else:
        values = [form.format(number % 60) for number in range(600)]
    values[40:40] = WORDS
    values += [*WORDS, " ?"]
    made = table(tmp_path, values)
    assert (made.column("x").type, made.column("x").missing) == (kind, 19)
    assert made.dataset.rejected["count"] == 0
    assert made.notes == ["column 'x': 3 values '?', 2 values '#N/A', 2 values 'N/A' and 6 more are missing"]


def test_one_word_is_named_with_its_number_in_log_and_card(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        made = table(tmp_path, [*map(str, range(400)), *["NA"] * 43])
    assert made.notes == ["column 'x': 43 values 'NA' are missing"]
    assert made.notes[0] in caplog.text
    assert "column &#39;x&#39;: 43 values &#39;NA&#39; are missing" in (made.folder / "card.html").read_text()


def test_a_continent_stays_a_text(tmp_path: Path):
    made = table(tmp_path, ["EU", "NA", "AS"] * 100)
    assert (made.column("x").values, made.column("x").missing, made.notes) == (("AS", "EU", "NA"), 0, [])


def test_the_words_are_a_setting(tmp_path: Path):
    values = [str(number % 50) for number in range(300)] + ["-"] * 9 + ["-999"] * 6
    made = table(tmp_path, values, missing_values="-, -999")
    assert (made.column("x").type, made.column("x").missing, made.column("x").low) == ("int", 15, 0)
    assert table(tmp_path / "b", ["1", "NA"] * 50, missing_values=[]).column("x").type == "string"


@pytest.mark.parametrize("word", ["NA", "?", " None"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_word_as_the_label_is_missing_among_texts_too(tmp_path: Path, word: str, suffix: str):
    labels = ["yes", "no"] * 150 + [word] * 12
    if suffix == ".csv":
        source = csv_of(tmp_path / "t.csv", ["x,label", *(f"{number},{label}" for number, label in enumerate(labels))])
    else:
        source = parquet_of(tmp_path / "t.parquet", x=list(range(len(labels))), label=labels)
    made = built(source)
    assert made.dataset.labels == ("no", "yes")
    assert made.dataset.rejected["count"] == 12
    assert made.notes == [f"column 'label': 12 values {word.strip()!r} are missing"]


def test_a_label_of_numbers_with_missing_values_is_learned_as_numbers(tmp_path: Path):
    labels = [f"{number}.5" for number in range(570)] + ["NA"] * 30
    lines = [f"{number},{label}" for number, label in enumerate(labels)]
    made = built(csv_of(tmp_path / "t.csv", ["x,label", *lines]))
    assert (made.schema.task, made.dataset.rejected["count"]) == ("regression", 30)


def test_many_rejected_rows_of_a_table_stop_the_build(tmp_path: Path):
    lines = [f"{number},{'' if number % 10 == 0 else 'yn'[number % 2]}" for number in range(200)]
    with pytest.raises(GateError, match=r"20 of 200 \(10%\) rows were rejected, more than max_rejected_fraction=0\.05"):
        built(csv_of(tmp_path / "t.csv", ["x,label", *lines]))
    assert built(csv_of(tmp_path / "t.csv", ["x,label", *lines]), max_rejected_fraction=0.1).schema.rows == 200


# Columns that are texts because of few values.


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("misfit", "advice"),
    [
        ("-", 'Add them to missing_values, or set column_types={"x": "float"} to reject their rows'),
        ("5%", "Add them to missing_values, or"),
        ("$5.50", "Add them to missing_values, or"),
        ('"1,234"', "If the commas are thousands separators, write the numbers without them"),
    ],
)
def test_few_values_that_make_texts_are_named(tmp_path: Path, misfit: str, advice: str, many: bool):
    count = 25_000 if many else 400
    values = [f"{number}.25" for number in range(count)]
    values[7:7] = [misfit] * 10
    values += [misfit] * 10
    made = table(tmp_path, values)
    assert made.column("x").type == "string"
    [note] = made.notes
    shown = misfit.strip('"')
    assert note.startswith(
        f"column 'x' holds texts, because 20 of {count + 20} values are not numbers, such as {shown!r} (t.csv:9). "
    )
    assert advice in note


def test_dates_and_truth_values_are_named_too(tmp_path: Path):
    days = [f"2026-01-{day:02}" for day in range(1, 29)] * 10 + ["31.01.2026", "soon"]
    assert table(tmp_path / "a", days).notes == [
        "column 'x' holds texts, because 2 of 282 values are not dates or times, such as '31.01.2026' (t.csv:282) and "
        '\'soon\' (t.csv:283). Add them to missing_values, or set column_types={"x": "time"} to reject their rows'
    ]
    assert "are not truth values" in table(tmp_path / "b", ["true", "false"] * 40 + ["maybe"]).notes[0]


def test_texts_are_not_named(tmp_path: Path):
    assert table(tmp_path / "a", ["red", "5", "blue"] * 30).notes == []
    assert table(tmp_path / "b", [f"name {number}" for number in range(25_000)] + ["5"]).notes == []


@pytest.mark.parametrize("many", [False, True])
def test_a_zip_code_stays_a_text(tmp_path: Path, many: bool):
    count = 25_000 if many else 400
    made = table(tmp_path, [f"{number + 1000:05}" for number in range(count)])
    column = made.column("x")
    codes = min(count, 9000)
    assert (column.type, column.low) == ("string", "01000")
    [note] = made.notes
    assert f"because {codes} values such as '01000' (t.csv:2) and '01001' (t.csv:3) would lose a zero" in note


def test_the_values_of_a_key_are_not_shown(tmp_path: Path):
    lines = [f"{number:05},{number},{number % 2}" for number in range(300)]
    made = built(csv_of(tmp_path / "t.csv", ["id,x,label", *lines]), key_column="id")
    assert made.notes == []


def test_a_long_text_is_no_time(tmp_path: Path):
    """An expression whose time grows with the square of the length would reach the time limit of the test."""
    made = table(tmp_path, ["2026-01-31T 1" + "T " * 1_000_000 + "x", *["a"] * 30])
    assert made.column("x").type == "string"


# Blanks and case.


def test_blanks_around_numbers_make_no_texts(tmp_path: Path):
    lines = [f"{n}, {n * 2}, {n}.5 , 2026-01-{n % 28 + 1:02}, true,{'yn'[n % 2]}" for n in range(300)]
    made = built(csv_of(tmp_path / "t.csv", ["a,b,c,d,e,label", *lines]))
    assert made.types == {"a": "int", "b": "int", "c": "float", "d": "date", "e": "bool", "label": "string"}
    assert made.dataset.rejected["count"] == 0
    assert {(row["a"], row["b"]) for row in made.rows()} == {(n, 2 * n) for n in range(300)}


def test_classes_that_differ_by_blanks_are_named(tmp_path: Path):
    lines = [f"{n},{n * 2}, {'yes' if n % 3 else 'no'}" for n in range(300)] + [f"{n},1,yes" for n in range(9)]
    source = csv_of(tmp_path / "t.csv", ["a,b,label", *lines])
    made = built(source)
    assert made.dataset.labels == (" no", " yes", "yes")
    assert made.notes == ["column 'label': ' yes' and 'yes' are two classes: set strip_texts=true to remove the blanks"]
    stripped = built(source, strip_texts=True, workspace=str(tmp_path / "w"))
    assert (stripped.dataset.labels, stripped.notes) == (("no", "yes"), [])


def test_values_that_differ_by_case_are_named_without_the_setting(tmp_path: Path):
    made = table(tmp_path, ["Yes", "yes", "YES", "no", "No", "maybe"] * 20)
    [note] = made.notes
    assert note == ("column 'x': 'No' and 'no', 'YES' and 'Yes' and 'yes' are different values: write each in one way")


def test_stripped_labels_may_be_missing(tmp_path: Path):
    lines = [f"{n},{'yn'[n % 2]} " for n in range(200)] + ['7,"  "']
    made = built(csv_of(tmp_path / "t.csv", ["x,label", *lines]), strip_texts=True)
    assert (made.dataset.labels, made.dataset.rejected["count"]) == (("n", "y"), 1)


# Digits.


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_different_numbers_that_become_equal_are_counted(tmp_path: Path, suffix: str):
    times = [1.7e9 + number * 0.25 for number in range(400)]
    if suffix == ".csv":
        lines = [f"{each:.2f},{number},{number % 2}" for number, each in enumerate(times)]
        source = csv_of(tmp_path / "t.csv", ["ts,x,label", *lines])
    else:
        source = parquet_of(tmp_path / "t.parquet", ts=times, x=list(range(400)), label=[n % 2 for n in range(400)])
    made = built(source)
    assert made.column("ts").type == "float"
    [note] = made.notes
    assert note.startswith("column 'ts': 400 different numbers become 2 in the records, which hold floats of 32 bits")


def test_many_numbers_that_become_equal_are_named(tmp_path: Path):
    values = [f"{1.7e9 + number * 0.25:.2f}" for number in range(25_000)]
    [note] = table(tmp_path, values).notes
    assert "different numbers become" in note
    assert table(tmp_path / "b", [f"{number / 7}" for number in range(25_000)]).notes == []


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_whole_numbers_in_doubles_are_integers(tmp_path: Path, suffix: str):
    numbers = [float(2**24 + number) for number in range(300)] + [None] * 3
    wide = [None if number is None else number * 2**20 for number in numbers]
    if suffix == ".csv":
        lines = [
            f"{'' if one is None else one},{'' if two is None else two},{n % 2}"
            for n, (one, two) in enumerate(zip(numbers, wide, strict=True))
        ]
        source = csv_of(tmp_path / "t.csv", ["x,wide,label", *lines])
    else:
        label = [n % 2 for n in range(len(numbers))]
        source = parquet_of(tmp_path / "t.parquet", x=pa.array(numbers), wide=pa.array(wide), label=label)
    made = built(source)
    assert made.types == {"x": "int", "wide": "int", "label": "int"}
    assert (made.column("x").low, made.column("x").high, made.column("x").missing) == (2**24, 2**24 + 299, 3)
    assert {row.get("wide") for row in made.rows()} == {None, *((2**24 + n) * 2**20 for n in range(300))}


def test_whole_numbers_beside_fractions_and_infinities_are_floats(tmp_path: Path):
    for number, odd in enumerate(("0.5", "inf", "9007199254740993.0")):
        made = table(tmp_path / str(number), ["1.0", "2.0"] * 40 + [odd])
        assert made.column("x").type == "float", odd


def test_floats_of_32_bits_stay_floats(tmp_path: Path):
    made = built(parquet_of(tmp_path / "t.parquet", x=pa.array(np.arange(90, dtype="f4")), label=[0, 1, 1] * 30))
    assert made.column("x").type == "float"


@pytest.mark.parametrize("many", [False, True])
def test_integers_beyond_64_bits_are_texts(tmp_path: Path, many: bool):
    count = 25_000 if many else 400
    values = [str(2**63 - count // 2 + number) for number in range(count)] + ["5"]
    made = table(tmp_path, values)
    assert (made.column("x").type, made.dataset.rejected["count"]) == ("string", 0)
    assert len({row["x"] for row in made.rows()}) == count + 1
    [note] = made.notes
    assert f"because {count // 2} integers such as '{2**63}' (t.csv:{count // 2 + 2})" in note
    assert "need more than 64 bits" in note


def test_a_label_of_too_long_integers_is_one_of_too_many_texts(tmp_path: Path):
    lines = [f"{number},{2**63 + number}" for number in range(10_100)]
    with pytest.raises(SettingsError, match="which has more than 10,000 different values"):
        built(csv_of(tmp_path / "t.csv", ["x,label", *lines]))


def test_uint64_of_parquet_is_still_refused(tmp_path: Path):
    with pytest.raises(SourceError, match="uint64 with 1 values that cannot be stored"):
        built(parquet_of(tmp_path / "t.parquet", x=pa.array([2**63, *range(99)], pa.uint64()), label=[0, 1] * 50))


def test_many_notes_are_counted(tmp_path: Path):
    names = [f"c{number}" for number in range(25)]
    cells = [["NA" if row == number else str(row) for number in range(25)] for row in range(200)]
    lines = [",".join([*row, "yn"[number % 2]]) for number, row in enumerate(cells)]
    made = built(csv_of(tmp_path / "t.csv", [",".join([*names, "label"]), *lines]))
    assert len(made.notes) == 25
    card = (made.folder / "card.html").read_text()
    assert "5 more notes about columns" in card
    assert "column &#39;c24&#39;" not in card


def test_one_group_may_be_written_as_an_integer_and_as_a_float(tmp_path: Path):
    """Pandas writes integers as floats if some are missing. A group must not become two."""
    folder = tmp_path / "t"
    rows = [f"{number % 9},{number}" for number in range(80)]
    csv_of(folder / "jan.csv", ["customer,x,label", *(f"{row},{'yn'[int(row[-1]) % 2]}" for row in rows)])
    floats = [f"{number % 9}.0,{number},{'yn'[number % 2]}" for number in range(80, 160)]
    csv_of(folder / "feb.csv", ["customer,x,label", *floats, ",1,y"])
    made = built(folder, group_column="customer")
    assert made.column("customer").type == "int"
    assert made.dataset.quality["split_values"]["values"] == 10  # and one group of rows without a customer


@pytest.mark.parametrize(
    ("misfit", "advice"),
    [
        ('"1,234"', "If the commas are thousands separators, write the numbers without them"),
        ('"1,234,567.5"', "If the commas are thousands separators, write the numbers without them"),
        ('"12,5"', "If the comma is a decimal one, set decimal_comma=true"),
        ("+1.25", 'Add them to missing_values, or set column_types={"x": "float"} to reject their rows'),
    ],
)
def test_numbers_in_another_form_are_named_also_if_they_are_many(misfit: str, advice: str, tmp_path: Path):
    [note] = table(tmp_path, [str(number) for number in range(300)] + [misfit] * 200).notes
    assert note.startswith("column 'x' holds texts, because 200 of 500 values are not numbers, such as")
    assert note.endswith(advice)


def test_whole_numbers_are_shown_with_all_digits(tmp_path: Path):
    rows = [f"{number + 1_234_567},{number + 20_240_131},{'yn'[number % 2]}" for number in range(60)]
    made = built(csv_of(tmp_path / "t.csv", ["id,x,label", *rows]), key_column="id")
    assert texts_of({"id": [1_234_567], "x": [20_240_131]}, made.schema) == {"id": "1234567", "x": "20,240,131"}
