"""The comparison of runs: the metrics, their intervals, the page and the command."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest

from pipeline.__main__ import main
from pipeline.errors import DatasetError
from pipeline.evaluation.metrics import load_predictions, save
from pipeline.monitor.thinned import all_samples
from pipeline.report import compare_runs, compared_run
from pipeline.report.compared_run import compared, load_compared
from pipeline.runs.recorded_run import load_answers, load_recorded_run
from pipeline.storage import place_of
from standins.fake_gcs import FakeGcs
from tests.report.evaluated import evaluated, predictions
from tests.report.rich import rich_run
from tests.report.test_report import EVIL, Page


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two trainings with steps of about 84 and 104 ms. Only one setting and the host differ."""
    folder = tmp_path_factory.mktemp("runs")
    a, b = rich_run(folder / "a"), rich_run(folder / "b", seed=2, compute_ms=80.0)
    described = json.loads((a / "run.json").read_text())
    described["settings"]["epochs"] = 4
    described["host"]["cores"] = 8
    (b / "run.json").write_text(json.dumps(described))
    return a, b


@pytest.fixture(scope="module")
def result(runs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of the comparison. Tests must not change it."""
    return compare_runs(runs, tmp_path_factory.mktemp("compared") / "compare.html")


def row(result: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in result["rows"] if row["name"] == name)


def test_the_verdict_names_the_faster_run_with_an_interval(result: dict[str, Any]):
    assert "A is surely the faster run: " in result["verdict"]
    assert "It is 1.2" in result["verdict"]
    assert "times as fast as B." in result["verdict"]
    assert "A takes 0.6" in result["verdict"]  # 20 ms of 32 examples
    assert "s less compute." in result["verdict"]
    compute = row(result, "compute of a step")
    assert compute["low"] < 20 < compute["high"]
    assert compute["high"] - compute["low"] < 1
    assert compute["difference"] == pytest.approx(compute["b"] - compute["a"])
    wait = row(result, "data wait of a step")
    assert wait["low"] < 0 < wait["high"]
    assert row(result, "time of an epoch, without validation")["low"] > 1
    assert row(result, "best validation accuracy of an epoch") == {
        "name": "best validation accuracy of an epoch", "unit": "%", "a": pytest.approx(54), "b": pytest.approx(54),
        "low": None, "high": None, "metric": "accuracy", "difference": pytest.approx(0),
    }  # fmt: skip


def test_the_json_of_two_runs_has_its_keys(result: dict[str, Any]):
    assert {"comparison", "a", "b", "verdict", "rows", "differing", "groups", "note"} == {*result}


def test_cores_that_other_programs_keep_busy_are_read_from_the_record(runs: tuple[Path, Path]):
    a, _ = (load_recorded_run(run) for run in runs)
    busy = {"sys/cores": 2.0, "sys/cpu_pct": 100.0, "proc/cpu_pct": 50.0}
    rows = a.servers[0].rows[["time"]].assign(**busy)
    found = compared(replace(a, servers={0: all_samples(rows)}), None)
    assert (found.other_cores, found.cores) == (pytest.approx(1.5), 2.0)


def test_a_part_of_a_divided_gpu_counts_as_a_gpu(runs: tuple[Path, Path]):
    """Of a part (MIG), the record has only the memory."""
    run = load_recorded_run(runs[0])
    rows = (
        run.servers[0].rows[["time", "gpu/0/mem_used_bytes", "gpu/0/mem_total_bytes"]].assign(**{"sys/cpu_pct": 50.0})
    )
    assert compared(replace(run, servers={0: all_samples(rows)}), None).gpus == 1


def test_the_command_refuses_to_compare_a_run_with_itself(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]):
    assert main(["report", "compare", *map(str, (*runs, runs[0]))]) == 1
    assert "run A and run C are the same run" in capsys.readouterr().err


def test_the_command_refuses_too_many_runs(capsys: pytest.CaptureFixture[str]):
    assert main(["report", "compare", *(f"/no/run{number}" for number in range(21))]) == 1
    assert "a comparison has 2 to 20 runs, got 21: name fewer runs" in capsys.readouterr().err
    assert main(["report", "compare", "/no/run"]) == 1
    assert "a comparison has 2 to 20 runs, got 1: name more runs" in capsys.readouterr().err


def test_different_settings_and_hosts_are_listed(result: dict[str, Any]):
    assert result["differing"] == {"epochs": [3, 4], "host: cores": [2, 8]}


def test_a_run_compared_with_itself_shows_no_difference(runs: tuple[Path, Path], tmp_path: Path):
    same = compare_runs([runs[0], runs[0]], tmp_path / "same.html")
    assert "A has the best accuracy, 60.0%, but that is not sure: B may be as good." in same["verdict"]
    assert "but that is not sure: B may be as fast. It is 1 (0.9" in same["verdict"]
    assert same["differing"] == {}
    assert same["groups"] == []  # One seed says nothing about others.
    assert "Settings, host and software are the same" in Page(tmp_path / "same.html").text


def test_too_few_steps_are_not_compared(tmp_path: Path):
    a, b = (rich_run(tmp_path / name, epochs=2, steps=5) for name in "ab")
    found = compare_runs([a, b], tmp_path / "compare.html")
    assert "Too few steady steps to compare the speed (A: 8, B: 8; 10 are needed)." in found["verdict"]
    assert row(found, "time of an epoch, without validation")["low"] is None  # two epochs are too few
    assert "examples a second" not in [each["name"] for each in found["rows"]]


GOOD = [(0, 0, 0.9)] * 90 + [(0, 1, 0.6)] * 10
BAD = [(0, 0, 0.9)] * 60 + [(0, 1, 0.6)] * 40
OTHER = [(1, 0, 0.9)] * 60 + [(0, 1, 0.6)] * 40


def evaluate(run: Path, rows: list[tuple[int, int, float]]) -> None:
    save(run, predictions(rows), evaluated(run, ["circle", "square"], rows))


@pytest.mark.long
def test_models_are_compared_on_the_same_images(tmp_path: Path):
    a, b = (rich_run(tmp_path / name, epochs=1, steps=12) for name in "ab")
    evaluate(a, BAD)
    evaluate(b, GOOD)
    found = compare_runs([a, b], tmp_path / "compare.html")
    accuracy = row(found, "accuracy")
    paired = load_predictions(b).difference(load_predictions(a), seed=0)
    assert accuracy["difference"] == pytest.approx(100 * paired.value)
    assert (accuracy["low"], accuracy["high"]) == pytest.approx((100 * paired.low, 100 * paired.high), abs=1.5)
    expected = "B is surely the better model: its accuracy is 90.0%. The difference from A is +30.0 points (+2"
    assert found["verdict"].startswith(expected)
    assert "top-5 accuracy" not in [each["name"] for each in found["rows"]]  # there are only two classes


@pytest.mark.long
@pytest.mark.parametrize("why", ["other images", "another version", "no predictions"])
def test_models_on_other_images_have_no_interval(tmp_path: Path, why: str):
    a, b = (rich_run(tmp_path / name, epochs=1, steps=12) for name in "ab")
    evaluate(a, GOOD)
    evaluate(b, OTHER if why == "other images" else BAD)
    if why == "another version":
        (b / "run.json").write_text((b / "run.json").read_text().replace('"v1"', '"v2"'))
    if why == "no predictions":
        (b / "predictions.npz").unlink()
    found = compare_runs([a, b], tmp_path / "compare.html")
    assert row(found, "accuracy")["low"] is None
    assert row(found, "accuracy")["a"] == pytest.approx(90)
    assert "Not compared with A image by image: B " in found["note"]
    assert ("B saved no predictions.npz" in found["note"]) == (why == "no predictions")
    assert "A has the best accuracy, 90.0%, but that is not sure: B cannot be compared with it." in found["verdict"]


def test_the_page_shows_the_verdict_and_all_differences(result: dict[str, Any]):
    page = Page(Path(result["comparison"]))
    text = " ".join(page.text.split())
    assert "A is surely the faster run: " in text
    for expected in (
        "Parentheses show 95% intervals.",
        "examples a second",
        "B minus A",
        "host: cores 2 8",
        "epochs 3 4",
    ):
        assert expected in text, expected
    assert Path(result["comparison"]).stat().st_size < 5e6
    assert page.count("script") == 3


def test_html_in_names_is_escaped(tmp_path: Path):
    runs = [rich_run(tmp_path / name, epochs=1, steps=12) for name in "ab"]
    described = json.loads((runs[0] / "run.json").read_text())
    (runs[0] / "run.json").write_text(json.dumps({**described, "run_id": EVIL, "settings": {EVIL: EVIL}}))
    compare_runs(runs, tmp_path / "compare.html")
    page = Page(tmp_path / "compare.html")
    assert (page.count("script"), page.count("img")) == (3, 0)
    assert EVIL in page.text


def test_a_comparison_of_many_runs_names_each_of_them(runs: tuple[Path, Path], tmp_path: Path):
    third = rich_run(tmp_path / "c", seed=3, compute_ms=20.0)
    found = compare_runs([*runs, third], tmp_path / "compare.html")
    assert (found["a"], found["c"]) == (str(runs[0]), str(third))
    speed = row(found, "examples a second")
    assert (speed["reference"], {*speed["differences"]}) == ("c", {"a", "b"})
    assert speed["differences"]["b"]["low"] < speed["b"] - speed["c"] < speed["differences"]["b"]["high"] < 0
    assert found["differing"]["epochs"] == [3, 4, 3]
    assert "C is surely the fastest run" in found["verdict"]
    assert "B, the slowest one" in found["verdict"]
    for pairs in ("3 pairs of models", "3 pairs of speeds"):
        sentence = f"Those of all {pairs} are widened (Bonferroni): they hold together in 95% of all comparisons."
        assert sentence in found["note"], pairs
    page = Page(tmp_path / "compare.html")
    assert [attributes["value"] for name, attributes in page.tags if "value" in attributes] == ["A", "B", "C"]


def test_killed_runs_can_be_compared(tmp_path: Path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    found = compare_runs([tmp_path / "a", tmp_path / "b"], tmp_path / "compare.html")
    assert found["verdict"].startswith("No model was evaluated yet")
    assert Page(tmp_path / "compare.html").count("script") == 0


def test_a_curve_is_broken_where_nothing_was_measured():
    seconds = np.concatenate([np.arange(300.0), 1000 + np.arange(300.0)])
    found = compared_run._means(seconds, {"rate": np.repeat([2.0, np.nan, 4.0], 200)})
    [gap] = np.flatnonzero(found["seconds"].isna())
    assert len(found) == compared_run.MAX_BINS + 1
    assert found["seconds"][gap - 1] < 300 < 1000 < found["seconds"][gap + 1]
    assert found["rate"].iloc[[0, -1]].tolist() == [2.0, 4.0]
    assert found["rate"].isna().sum() > 1  # Nobody measured the rate in the middle.


def test_a_run_with_damaged_predictions_is_compared_without_them(runs: tuple[Path, Path], tmp_path: Path):
    broken = tmp_path / "broken"
    broken.mkdir()
    content = bytearray((runs[0] / "predictions.npz").read_bytes())
    (broken / "predictions.npz").write_bytes(content)
    assert load_answers(broken) is not None
    with ZipFile(broken / "predictions.npz") as packed:
        first = packed.infolist()[0]
    begin = first.header_offset + 30 + len(first.filename) + 20  # behind the header of the file in the archive
    content[begin : begin + 20] = bytes(20)
    (broken / "predictions.npz").write_bytes(content)
    assert load_answers(broken) is None


@pytest.mark.parametrize("damage", ["other lengths", "text", "encrypted"])
def test_a_run_with_answers_that_cannot_be_read_is_compared_without_them(
    runs: tuple[Path, Path], tmp_path: Path, damage: str
):
    broken = tmp_path / "broken"
    shutil.copytree(runs[0], broken)
    file = broken / "predictions.npz"
    columns = load_predictions(broken).columns
    if damage == "other lengths":
        np.savez(file, **columns | {"predicted": columns["predicted"][1:]})
    elif damage == "text":
        np.savez(file, **columns | {"label": columns["label"].astype(str)})
    else:
        content = bytearray(file.read_bytes())
        content[content.index(b"PK\x01\x02") + 8] |= 1  # The flag of an encrypted file in the directory of the archive.
        file.write_bytes(content)
    found = load_compared(broken)
    assert found.answers is None
    assert found.no_answers == (
        "saved no predictions.npz" if damage == "encrypted" else "has a damaged predictions.npz"
    )


def test_a_folder_without_a_run_is_refused_and_nothing_is_written(runs: tuple[Path, Path], tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match=r"empty is not the folder of a run: it has no run\.json"):
        compare_runs([runs[0], tmp_path / "empty"], tmp_path / "compare.html")
    assert not (tmp_path / "compare.html").exists()


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_compare_command_prints_the_table(
    runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert main(["report", "compare", *map(str, runs)]) == 0
    output = capsys.readouterr().out
    assert "A is surely the faster run" in output.splitlines()[0]
    assert "epochs: 3 | 4" in output
    assert (tmp_path / "compare.html").exists()
    assert main(["report", "compare", *map(str, runs), "--to", "other.html", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["comparison"] == "other.html"
    assert row(printed, "examples a second")["low"] < 0


@pytest.mark.parametrize("to", ["gs://bucket/compare.html", "compare.txt", "nowhere/compare.html"])
def test_an_invalid_output_path_is_refused_first(to: str, capsys: pytest.CaptureFixture[str]):
    assert main(["report", "compare", "/no/run", "/no/other", "--to", to]) == 1
    assert "--to must be a local file that ends in .html" in capsys.readouterr().err


def test_the_report_command_still_accepts_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["report", str(tmp_path)]) == 1
    assert f"{tmp_path} is not the folder of a run" in capsys.readouterr().err
    assert main(["report", "./compare"]) == 1  # a folder named like the subcommand
    assert "compare is not the folder of a run" in capsys.readouterr().err


@pytest.mark.long
def test_runs_in_a_bucket_can_be_compared(gcs: FakeGcs, runs: tuple[Path, Path], tmp_path: Path):
    places = [place_of(f"gs://bucket/runs/{name}") for name in "ab"]
    for name, run in zip("ab", runs, strict=True):
        gcs.put_folder("bucket", f"runs/{name}/", run)
    found = compare_runs(places, tmp_path / "there.html")
    here = compare_runs(runs, tmp_path / "here.html")
    assert found["rows"] == here["rows"]
    assert found["a"] == "gs://bucket/runs/a"
