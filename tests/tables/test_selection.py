"""Which columns of a table are read: the settings `columns` and `drop_columns`, types, structs, files that differ."""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import Dataset, load
from pipeline.errors import GateError, SettingsError, SourceError
from pipeline.snapshot.snapshot import load_snapshot
from pipeline.stages.build import build
from pipeline.stages.extract import divide, extract, list_all
from pipeline.tables.files import table_files
from pipeline.tables.selection import Selection, names_in
from pipeline.tables.source import read_table
from tests.foreign_shards import example, write_file

ROWS = 120
SUFFIXES = [".csv", ".parquet", ".arrow", ".jsonl", ".tfrecord"]


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Settings]:
    def make(source: Path, **values: Any) -> Settings:
        defaults = {"label_column": "y", "workspace": str(tmp_path / "workspace"), "num_shards": 2}
        return settings_from({"example_kind": "table", "source_uri": str(source), **defaults, **values})

    return make


def made(count: int = ROWS) -> dict[str, list[Any]]:
    """Return the columns of a table."""
    numbers = list(range(count))
    return {
        "a": numbers,
        "b": [number % 5 for number in numbers],
        "b.1": [f"text {number}" for number in numbers],
        "key": [f"k{number}" for number in numbers],
        "y": ["yn"[number % 2] for number in numbers],
    }


def write_table(path: Path, columns: dict[str, list[Any]] | pa.Table) -> Path:
    """Write columns in the format of a suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    elif path.suffix == ".arrow":
        with path.open("wb") as file, ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    elif path.suffix == ".csv":
        table.to_pandas().to_csv(path, index=False)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        write_file(path, map(example, table.to_pylist()))
    return path


def names_of(settings: Settings) -> list[str]:
    return [column["name"] for column in load_snapshot(list_all(settings)).table["columns"]]


def dataset_of(settings: Settings) -> Dataset:
    return load(Path(build(settings)["dataset"]))


# Names and patterns.


def test_names_are_separated_by_commas_and_may_be_quoted():
    assert names_in('a, geo.*,"income, net" ,,b') == ("a", "geo.*", "income, net", "b")
    assert names_in("") == ()
    assert names_in('a,\nb\r\n\n"income, net",\n') == ("a", "b", "income, net")


@pytest.mark.parametrize(
    ("columns", "dropped", "expected"),
    [
        ("", "", ["a", "b", "b.1", "key", "y"]),
        ("a", "", ["a", "y"]),
        ("b", "", ["b", "y"]),  # pandas names a second column `b` so: it is another one.
        ("b*", "", ["b", "b.1", "y"]),
        ("?,b.1", "", ["a", "b", "b.1", "y"]),
        ("", "b", ["a", "b.1", "key", "y"]),
        ("", "b*,key", ["a", "y"]),
        ("", "[b-z]*", ["a", "y"]),  # A pattern leaves the label.
        ("b*", "b", ["b.1", "y"]),
    ],
)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.core
def test_only_the_selected_columns_are_read(
    suffix: str, columns: str, dropped: str, expected: list[str], settings: Callable[..., Settings], tmp_path: Path
):
    table = write_table(tmp_path / f"t{suffix}", made(20))
    assert names_of(settings(table, columns=columns, drop_columns=dropped)) == expected


@pytest.mark.parametrize("role", ["key", "group", "split"])
def test_columns_with_a_role_are_always_read(role: str, settings: Callable[..., Settings], tmp_path: Path):
    table = write_table(tmp_path / "t.csv", {**made(20), "part": ["train"] * 20})
    column = "part" if role == "split" else "key"
    selected = settings(table, columns="a", **{f"{role}_column": column})
    assert sorted(names_of(selected)) == sorted(["a", column, "y"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"columns": "A,b"},
            "columns has 'A', but the table has no such column: did you mean .a.. The columns are 'a'",
        ),
        ({"columns": "keys"}, "did you mean 'key'"),
        (
            {"columns": "z*"},
            "columns has 'z.', but the table has no such column. The columns are 'a', 'b', 'b.1', 'key'",
        ),
        ({"drop_columns": "kex"}, "drop_columns has 'kex', but the table has no such column: did you mean 'key'"),
        ({"drop_columns": "y"}, "drop_columns has 'y', but label_column is 'y': take it out of drop_columns"),
        ({"drop_columns": "a,key", "key_column": "key"}, "drop_columns has 'key', but key_column is 'key'"),
        ({"drop_columns": "y*"}, "drop_columns has 'y.', but label_column is 'y'"),
        ({"columns": "y"}, "columns and drop_columns leave no column to learn from: select more"),
        ({"drop_columns": "*"}, "leave no column to learn from"),
        # The label is sought among all columns, not among the selected ones.
        (
            {"columns": "a", "label_column": "z"},
            "label_column is 'z', but .* The columns are 'a', 'b', 'b.1', 'key', 'y'",
        ),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".tfrecord", ".jsonl"])
def test_a_selection_that_does_not_fit_is_refused(
    suffix: str, values: dict[str, str], message: str, settings: Callable[..., Settings], tmp_path: Path
):
    table = write_table(tmp_path / f"t{suffix}", made(20))
    with pytest.raises(SettingsError, match=message):
        list_all(settings(table, **values))
    assert not list((tmp_path / "workspace").glob("**/*.json"))


def test_an_error_shows_the_first_names_and_the_number_of_the_others():
    with pytest.raises(SettingsError, match=r"'c18', 'c19' and 30 more$"):
        Selection(columns=("x",)).require_matches([f"c{number}" for number in range(50)])


def test_a_name_of_a_struct_suggests_its_fields():
    with pytest.raises(SettingsError, match=r"columns has 'geo', .* did you mean 'geo.lat', 'geo.lon'\?"):
        Selection(columns=("geo",)).require_matches(["x", "geo.lat", "geo.lon"])


# What is read.


def test_a_version_is_that_of_a_file_with_only_these_columns(
    settings: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    columns = made(20_000)
    columns["b.1"] = [text * 20 for text in columns["b.1"]]  # A table of two ranges.
    whole = write_table(tmp_path / "whole.parquet", columns)
    part = write_table(tmp_path / "part.csv", {name: columns[name] for name in ("a", "key", "y")})
    values = {"dataset_name": "t", "key_column": "key"}
    selected = dataset_of(settings(whole, columns="a", **values))
    dropped = dataset_of(settings(whole, drop_columns="b*", workspace=str(tmp_path / "other"), **values))
    alone = dataset_of(settings(part, workspace=str(tmp_path / "alone"), **values))
    assert selected.version == dropped.version == alone.version
    assert selected.table == dropped.table == alone.table
    assert [each.crc32c for each in selected.shards] == [each.crc32c for each in alone.shards]
    everything = dataset_of(settings(whole, **values))
    assert everything.version != selected.version
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    for source in (whole, write_table(tmp_path / "whole.csv", columns)):
        divided = settings(source, columns="a", workspace=str(tmp_path / f"divided {source.suffix}"), **values)
        assert len(divide(divided)) > 1
        assert load_snapshot(extract(divided)).table == load_snapshot(list_all(settings(part, **values))).table


@pytest.mark.core
def test_columns_of_parquet_that_are_not_selected_are_not_read(tmp_path: Path):
    """The counter of the kernel says so. It counts all bytes that a process reads from files."""
    random = np.random.default_rng(0)
    table = pa.table({f"c{number}": random.random(10_000) for number in range(200)})
    parquet.write_table(table, tmp_path / "t.parquet", compression="none", use_dictionary=False, row_group_size=2500)
    program = f"""
from pathlib import Path
from pipeline.tables.selection import Selection
from pipeline.tables.source import read_table
def read():
    return int(Path("/proc/self/io").read_text().split()[1])
selection = Selection(columns=[f"c{{number}}" for number in range(0, 200, 5)])
before = read()
rows = [raw.batch.num_columns for raw in read_table([Path({str(tmp_path / "t.parquet")!r})], selection=selection)]
print(set(rows), read() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    columns, size = done.stdout.rsplit(" ", 1)
    assert columns == "{40}"
    assert 0.2 < int(size) / (tmp_path / "t.parquet").stat().st_size <= 0.25


def test_columns_of_csv_that_are_not_selected_are_not_converted(tmp_path: Path):
    """Arrow checks the encoding of the fields that it converts."""
    lines = [b"%d,caf\xe9,%d\n" % (number, number % 2) for number in range(5000)]
    (tmp_path / "t.csv").write_bytes(b"a,b,y\n" + b"1,x,0\n" * 5000 + b"".join(lines))
    with pytest.raises(SourceError, match=r"not in its encoding"):
        list(read_table([tmp_path / "t.csv"]))
    raws = list(read_table([tmp_path / "t.csv"], selection=Selection(dropped=("b",))))
    assert sum(raw.batch.num_rows for raw in raws) == 10_000
    assert raws[0].batch.schema.names == ["a", "y"]


def test_a_row_with_other_fields_is_rejected_whatever_columns_are_selected(tmp_path: Path):
    (tmp_path / "t.csv").write_text("a,b,y\n1,2,0\n3,4\n5,6,1\n")
    [raw] = read_table([tmp_path / "t.csv"], selection=Selection(columns=("b",)))
    assert raw.batch.to_pydict() == {"b": ["2", "6"]}
    assert [row.key for row in raw.rejected] == ["t.csv:3"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl", ".tfrecord"])
@pytest.mark.core
def test_columns_of_folders_are_selected_like_others(suffix: str, settings: Callable[..., Settings], tmp_path: Path):
    for number, country in enumerate(("de", "fr")):
        write_table(tmp_path / f"t/country={country}/year=202{number}/a{suffix}", made(20))
    assert names_of(settings(tmp_path / "t", columns="a,country")) == ["a", "y", "country"]
    assert names_of(settings(tmp_path / "t", drop_columns="country,b*,key")) == ["a", "y", "year"]
    assert names_of(settings(tmp_path / "t", columns="year", label_column="country")) == ["country", "year"]
    with pytest.raises(SettingsError, match=r"'b.1', 'key', 'y', 'country', 'year'$"):
        list_all(settings(tmp_path / "t", columns="continent"))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_only_some_folders_may_state_a_column_that_is_left_out(
    suffix: str, settings: Callable[..., Settings], tmp_path: Path
):
    write_table(tmp_path / f"t/a{suffix}", made(20))
    write_table(tmp_path / f"t/country=de/a{suffix}", made(20))
    with pytest.raises(SourceError, match=r"has a column 'country', .* or leave the column out with drop_columns"):
        list_all(settings(tmp_path / "t"))
    for values in ({"drop_columns": "country"}, {"columns": "a,b,b.1,key"}):
        assert names_of(settings(tmp_path / "t", **values)) == ["a", "b", "b.1", "key", "y"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow"])
def test_files_may_differ_in_columns_that_are_not_selected(
    suffix: str, settings: Callable[..., Settings], tmp_path: Path
):
    columns = made(20)
    write_table(tmp_path / f"t/1{suffix}", columns)
    write_table(tmp_path / f"t/2{suffix}", {name: columns[name] for name in ("y", "a")})
    write_table(tmp_path / f"t/3{suffix}", {"new": list(range(20)), **columns})
    with pytest.raises(SourceError, match=rf"2{suffix} has no column 'b', but .*1{suffix} has one: correct the file"):
        list_all(settings(tmp_path / "t"))
    with pytest.raises(SourceError, match=rf"3{suffix} has a column 'new', but .*1{suffix} has none: .* drop_columns"):
        list_all(settings(tmp_path / "t", drop_columns="b*,key"))
    for values in ({"columns": "a"}, {"drop_columns": "b*,key,new"}):
        snapshot = load_snapshot(list_all(settings(tmp_path / "t", **values)))
        assert snapshot.listed == 60
        assert [column["name"] for column in snapshot.table["columns"]] == ["a", "y"]
    with pytest.raises(SettingsError, match=r"drop_columns has 'newer', but the table has no such"):
        list_all(settings(tmp_path / "t", drop_columns="b*,key,newer"))
    with pytest.raises(SourceError, match=rf"1{suffix} has no column 'new', but .*3{suffix} has one"):
        list_all(settings(tmp_path / "t", columns="a,new"))


def test_a_column_that_only_one_of_many_files_has_can_be_left_out(settings: Callable[..., Settings], tmp_path: Path):
    """The error about the column advises that. In the 24th file, it was called no column of the table."""
    for number in range(30):
        write_table(tmp_path / f"t/{number:02d}.csv", {**made(4), **({"note": ["x"] * 4} if number == 23 else {})})
    with pytest.raises(SourceError, match=r"23.csv has a column 'note', .* with drop_columns"):
        list_all(settings(tmp_path / "t"))
    assert names_of(settings(tmp_path / "t", drop_columns="note")) == ["a", "b", "b.1", "key", "y"]
    with pytest.raises(SettingsError, match=r"drop_columns has 'notes', but the table has no such column"):
        list_all(settings(tmp_path / "t", drop_columns="note,notes"))


def test_a_model_gets_its_own_columns_of_a_table_with_others(tmp_path: Path):
    table = pa.table({"extra": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), "geo": [{"lat": 1, "lon": 2}]})
    parquet.write_table(table, tmp_path / "t.parquet")
    [raw] = read_table(table_files(tmp_path / "t.parquet"), selection=Selection.only(["geo.lat", "absent"]))
    assert raw.batch.to_pydict() == {"geo.lat": [1]}
    with pytest.raises(SourceError, match=r"the column 'extra' of .* holds map<.*>, which is not supported: write its"):
        list(read_table(table_files(tmp_path / "t.parquet"), selection=Selection.only(["extra"])))


def test_a_column_that_a_version_dropped_is_a_change(settings: Callable[..., Settings], tmp_path: Path):
    table = write_table(tmp_path / "t.csv", made())
    build(settings(table, columns="a,b"))
    with pytest.raises(
        GateError, match=r"'b' is missing. Repair the table, correct columns and drop_columns, or go on"
    ):
        build(settings(table, columns="a"))


def test_another_table_of_the_same_file_name_is_told_to_choose_a_name(
    settings: Callable[..., Settings], tmp_path: Path
):
    first = write_table(tmp_path / "shop" / "t.csv", made())
    build(settings(first))
    others = {name: values for name, values in made().items() if name != "b"}
    with pytest.raises(
        GateError, match=rf"'b' is missing. That version has another source, {first}. .* choose another dataset_name"
    ):
        build(settings(write_table(tmp_path / "bank" / "t.csv", others)))
    with pytest.raises(GateError, match=r"'b' is missing. Repair the table"):
        build(settings(write_table(first, others)))


# Types.


def with_other_types(count: int = ROWS) -> pa.Table:
    """Return a table with columns of types that are not supported."""
    maps = pa.array([[("k", number)] for number in range(count)], pa.map_(pa.string(), pa.int64()))
    times = pa.array(range(count), pa.time64("us"))
    return pa.table({**made(count), "m": maps, "at": times, "of_lists": [[[1]]] * count})


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.core
def test_a_column_of_a_type_that_is_not_supported_is_left_out_and_named(
    suffix: str, settings: Callable[..., Settings], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    table = write_table(tmp_path / f"t{suffix}", with_other_types())
    dataset = dataset_of(settings(table))
    assert [column["name"] for column in dataset.table["columns"]] == ["a", "b", "b.1", "key", "y"]
    kinds = dataset.quality["columns_left_out"]
    assert list(kinds) == ["m", "at", "of_lists"]
    assert kinds["at"] == "time64[us]"
    assert "3 columns are left out, because the types are not supported: 'm' (map<string, int64" in caplog.text
    card = (Path(build(settings(table))["dataset"]) / "card.html").read_text()
    assert "3 columns are left out, because the types are not supported" in card
    assert (
        dataset_of(settings(table, drop_columns="m,at,of*", workspace=str(tmp_path / "w"))).version == dataset.version
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"columns": "a,m"},
            "the column 'm' of .* holds map<.*>, which is not supported, but columns selects it: leave",
        ),
        ({"columns": "*"}, "the column 'm' of .* but columns selects it: leave it out with drop_columns, or write its"),
        ({"label_column": "at"}, "the column 'at' .* holds time64.us., .* but label_column selects it: name another"),
        ({"key_column": "m"}, "the column 'm' .* but key_column selects it: name another column, or write its parts"),
    ],
)
@pytest.mark.core
def test_a_type_that_is_not_supported_is_refused_by_the_schema_alone(
    values: dict[str, str], message: str, settings: Callable[..., Settings], tmp_path: Path
):
    parquet.write_table(with_other_types(), tmp_path / "t.parquet", use_dictionary=False, write_page_checksum=True)
    content = bytearray((tmp_path / "t.parquet").read_bytes())
    content[4:2000] = bytes(1996)  # The rows cannot be read.
    (tmp_path / "t.parquet").write_bytes(content)
    with pytest.raises(SourceError, match=message):
        list_all(settings(tmp_path / "t.parquet", **values))


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow", ".jsonl", ".tfrecord"])
def test_a_table_without_a_column_to_learn_from_is_refused(
    suffix: str, settings: Callable[..., Settings], tmp_path: Path
):
    """A table whose other columns were left out became a dataset without any feature."""
    columns = {name: made()[name] for name in ("key", "y")}
    table = pa.table(columns)
    if suffix in (".parquet", ".arrow"):
        maps = pa.array([[("k", 1)]] * ROWS, pa.map_(pa.string(), pa.int64()))
        table = table.append_column("m", maps)
    place = write_table(tmp_path / f"t{suffix}", table)
    why = r" of a type that is supported \(not 'm'\)" if "m" in table.column_names else ""
    with pytest.raises(
        SourceError, match=rf"t{re.escape(suffix)} has no column to learn from{why}: add a column of text"
    ):
        list_all(settings(place, key_column="key"))


@pytest.mark.parametrize("is_left_out_of_first", [True, False])
def test_a_column_whose_type_is_supported_in_one_file_only_is_refused(
    is_left_out_of_first: bool, settings: Callable[..., Settings], tmp_path: Path
):
    """Otherwise, the name of the first file would decide whether its values are left out."""
    rest = {"a": list(range(20)), "y": ["n", "y"] * 10}
    maps = {**rest, "m": pa.array([[("k", 1)]] * 20, pa.map_(pa.string(), pa.int64()))}
    tables = [maps, {**rest, "m": list(range(20))}]
    for name, columns in zip("12", tables if is_left_out_of_first else tables[::-1], strict=True):
        write_table(tmp_path / "t" / f"{name}.parquet", pa.table(columns))
    kinds = ["map<.*>", "int64"] if is_left_out_of_first else ["int64", "map<.*>"]
    with pytest.raises(
        SourceError,
        match=rf"'m' holds {kinds[1]} in .*2\.parquet, but {kinds[0]} in .*1\.parquet, and .* with drop_columns",
    ):
        list_all(settings(tmp_path / "t"))
    assert names_of(settings(tmp_path / "t", drop_columns="m")) == ["a", "y"]


def test_a_column_that_is_left_out_is_not_read(settings: Callable[..., Settings], tmp_path: Path):
    """A map of 2 GB in a file of 4 kB took 4 GB of memory before its type was refused."""
    table = with_other_types()
    parquet.write_table(table, tmp_path / "t.parquet", write_page_checksum=True, compression="none")
    group = parquet.read_metadata(tmp_path / "t.parquet").row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    [start] = [each.data_page_offset for each in columns if each.path_in_schema == "m.key_value.value"]
    content = bytearray((tmp_path / "t.parquet").read_bytes())
    content[start + 40 : start + 60] = bytes(20)
    (tmp_path / "t.parquet").write_bytes(content)
    assert load_snapshot(list_all(settings(tmp_path / "t.parquet"))).listed == ROWS


def test_a_lot_of_columns_that_are_left_out_are_counted():
    from pipeline.gate.notices import notices

    [found] = notices({"unit": "row", "columns_left_out": {f"c{number}": "time64[us]" for number in range(23)}})
    assert found.startswith("23 columns are left out")
    assert "'c19' (time64[us]) and 3 more" in found


def test_the_index_of_pandas_can_be_left_out(settings: Callable[..., Settings], tmp_path: Path):
    frame = pd.DataFrame(made(20), index=range(5, 25))
    parquet.write_table(pa.Table.from_pandas(frame[frame.index != 7]), tmp_path / "t.parquet")
    with pytest.raises(
        SourceError, match=r"__index_level_0__.* index=False, or leave the column out with drop_columns"
    ):
        list_all(settings(tmp_path / "t.parquet"))
    assert "a" in names_of(settings(tmp_path / "t.parquet", drop_columns="__index_level_*"))


def test_values_that_cannot_be_stored_are_left_out_by_a_setting(settings: Callable[..., Settings], tmp_path: Path):
    """Each message that advises to leave a column out names a setting that does so."""
    large = {**made(20), "u": pa.array([2**63] * 20, pa.uint64())}
    with pytest.raises(SourceError, match=r"'u' holds uint64 with 20 values that cannot be .* with drop_columns"):
        list_all(settings(write_table(tmp_path / "t.parquet", pa.table(large))))
    assert "u" not in names_of(settings(tmp_path / "t.parquet", drop_columns="u"))
    (tmp_path / "t.jsonl").write_text(
        "".join(f'{{"a": 1, "u": 9223372036854775813, "y": {each % 2}}}\n' for each in range(20))
    )
    with pytest.raises(SourceError, match=r"'u' holds 9223372036854775813, .* or leave it out with drop_columns"):
        list_all(settings(tmp_path / "t.jsonl"))
    assert names_of(settings(tmp_path / "t.jsonl", drop_columns="u")) == ["a", "y"]
    write_file(tmp_path / "t.tfrecord", [example({"a": 1, "image": b"\xff\xd8", "y": each % 2}) for each in range(20)])
    with pytest.raises(
        SourceError, match=r"'image' in record 1 of .* not text in UTF-8: leave it out with drop_columns"
    ):
        list_all(settings(tmp_path / "t.tfrecord"))
    assert names_of(settings(tmp_path / "t.tfrecord", drop_columns="image")) == ["a", "y"]


@pytest.mark.parametrize("block", [100, 1 << 20], ids=["other block", "same block"])
def test_types_of_json_lines_may_differ_in_a_column_that_is_not_read(
    block: int, settings: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pipeline.tables.json_lines._BLOCK", block)
    values = [1, 1, "x", [2], {"q": 1}, {"q": "x"}, None]
    rows = [
        {"a": each / 8, "b": values[each // 8], "g": {"b": values[each // 8]}, "y": "ny"[each % 2]}
        for each in range(56)
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    advice = r"cannot be read as a table.*: write the column with one type, or leave it out with drop_columns"
    with pytest.raises(SourceError, match=advice):
        list_all(settings(tmp_path / "t.jsonl"))
    with pytest.raises(SourceError, match=advice):
        list_all(settings(tmp_path / "t.jsonl", drop_columns="g.b*"))
    for selected in ({"drop_columns": "b*,g.b*"}, {"columns": "a"}):
        snapshot = load_snapshot(list_all(settings(tmp_path / "t.jsonl", **selected)))
        assert ([column["name"] for column in snapshot.table["columns"]], snapshot.listed) == (["a", "y"], 56)


@pytest.mark.parametrize(
    "values", [(1, "x"), ({"q": 1}, {"q": "x"}), (1, {"q": 1})], ids=["texts", "fields", "objects"]
)
def test_files_of_json_lines_with_other_types_are_refused_with_advice(
    values: tuple[Any, Any], settings: Callable[..., Settings], tmp_path: Path
):
    (tmp_path / "t").mkdir()
    for number, value in enumerate(values):
        lines = [json.dumps({"a": each, "b": value, "y": each % 2}) + "\n" for each in range(20)]
        (tmp_path / "t" / f"{number}.jsonl").write_text("".join(lines))
    with pytest.raises(
        SourceError,
        match=r"1\.jsonl cannot be read as a table: .*: write the column with one type, or leave it out with drop_c",
    ):
        list_all(settings(tmp_path / "t"))
    assert names_of(settings(tmp_path / "t", drop_columns="b*")) == ["a", "y"]


# Structs.


def of_structs(count: int = ROWS) -> list[dict[str, Any]]:
    return [
        {
            "geo": {"at": {"lat": number + 0.5, "lon": -number}, "name": None if number % 3 else f"n{number}"}
            if number % 7
            else None,
            "x": number,
            "y": "yn"[number % 2],
        }
        for number in range(count)
    ]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl"])
@pytest.mark.core
def test_the_fields_of_structs_become_columns(suffix: str, settings: Callable[..., Settings], tmp_path: Path):
    rows = of_structs()
    table = write_table(tmp_path / f"t{suffix}", pa.Table.from_pylist(rows))
    flat = pd.json_normalize([row | ({"geo": row["geo"]} if row["geo"] else {"geo": {}}) for row in rows])
    names = ["geo.at.lat", "geo.at.lon", "geo.name", "x", "y"]
    flat.reindex(columns=names).astype({"geo.at.lon": "Int64"}).to_csv(tmp_path / "flat.csv", index=False)
    dataset = dataset_of(settings(table, dataset_name="t"))
    alone = dataset_of(settings(tmp_path / "flat.csv", dataset_name="t", workspace=str(tmp_path / "flat")))
    assert [column["name"] for column in dataset.table["columns"]] == names
    assert dataset.table == alone.table
    assert dataset.version == alone.version
    columns = {column["name"]: column for column in dataset.table["columns"]}
    missing = sum(row["geo"] is None for row in rows)
    assert {name: columns[name]["missing"] for name in names[:2]} == dict.fromkeys(names[:2], missing)
    assert names_of(settings(table, columns="geo.at.*")) == ["geo.at.lat", "geo.at.lon", "y"]
    assert names_of(settings(table, drop_columns="geo.at.*,x")) == ["geo.name", "y"]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_field_of_a_struct_that_is_not_supported_is_left_out(
    suffix: str, settings: Callable[..., Settings], tmp_path: Path
):
    kind = pa.struct({"lat": pa.float64(), "m": pa.map_(pa.string(), pa.int64())})
    geo = pa.array([{"lat": 0.5, "m": [("k", 1)]}, None] * 20, kind)
    table = write_table(tmp_path / f"t{suffix}", pa.table({"geo": geo, "y": ["n", "y"] * 20}))
    snapshot = load_snapshot(list_all(settings(table)))
    assert [column["name"] for column in snapshot.table["columns"]] == ["geo.lat", "y"]
    assert list(snapshot.table["left_out"]) == ["geo.m"]


def test_two_columns_of_one_name_are_refused(settings: Callable[..., Settings], tmp_path: Path):
    parquet.write_table(pa.table({"geo": [{"lat": 1}], "geo.lat": [2], "y": ["n"]}), tmp_path / "t.parquet")
    with pytest.raises(SourceError, match=r"has two columns 'geo.lat': rename one"):
        list_all(settings(tmp_path / "t.parquet"))


def test_the_objects_of_json_lines_may_be_missing_and_differ(settings: Callable[..., Settings], tmp_path: Path):
    lines: Sequence[Any] = [{"g": None}, {"g": {"b": 1}}, {}, {"g": {"a": "2026-01-31", "b": 2.5}}]
    text = "".join(json.dumps({**line, "y": number % 2}) + "\n" for number, line in enumerate(lines))
    (tmp_path / "t.jsonl").write_text(text)
    columns = load_snapshot(list_all(settings(tmp_path / "t.jsonl"))).table["columns"]
    found = [(column["name"], column["type"], column["missing"]) for column in columns]
    assert found == [("g.a", "date", 3), ("g.b", "float", 2), ("y", "int", 0)]


def test_the_log_names_what_was_left_out_only_once(
    settings: Callable[..., Settings], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    build(settings(write_table(tmp_path / "t.parquet", with_other_types())))
    assert caplog.text.count("left out") == 1
