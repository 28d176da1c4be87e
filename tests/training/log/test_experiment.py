"""The results of a complete run are logged to Comet once. The files of the training are created without a training."""

import io
import json
import os
import subprocess
import sys
import zipfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import google_crc32c
import pytest

from pipeline.config.allowed import ALL, EVERYTHING
from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import load, sample_images
from pipeline.evaluation.metrics import EVALUATION, PREDICTIONS, evaluation_of, save
from pipeline.monitor.archives import archives
from pipeline.monitor.comet import experiment_key
from pipeline.monitor.overview import OverviewSink
from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row
from pipeline.runs.decision import Decision
from pipeline.runs.files import COMET_LOGGED
from pipeline.runs.launch import prepare_run
from pipeline.runs.run import Best, Run, load_result, load_run, save_best, save_early_end, save_result
from pipeline.stages.build import build
from pipeline.storage import BucketPath, Place, copy_new, objects, place_of, read_json, write_json
from pipeline.training.log.experiment import (
    MAX_ASSET_BYTES,
    _log_record,
    comet_options,
    confusion_matrix,
    image_name,
)
from standins.fake_gcs import FakeGcs
from tests.comet_server import METRICS, comet_server
from tests.conftest import jpeg
from tests.report.evaluated import predictions

ROOT = Path(__file__).parents[3]
OF_A_BATCH = (
    "input/wait_ms",
    "step/compute_ms",
    "step/host_ms",
    "step/checkpoint_ms",
    "step/time_ms",
    "epoch",
    "first",
)
SECRET = "a1B2c3D4e5F6g7H8i9J0k1L2m"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of 40 images in two classes, whose training is complete."""
    for number in range(40):
        path = tmp_path / "source" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    settings = settings_from({"source_uri": str(tmp_path / "source"), "workspace": str(tmp_path / "w")})
    run = prepare_run(settings, Path(build(settings)["dataset"]), "a run", dag="a_dag")
    with closing(RecordSink(run.folder / "record")) as sink:
        for step in (1, 2):
            sink.write(Row("batches", 100.0 + step, step, {**dict.fromkeys(OF_A_BATCH, 1.0), "input/examples": 8}))
        sink.write(Row("epochs", 103.0, 1, {"loss": 0.5, "val_loss": 0.5, "accuracy": 0.5, "val_accuracy": 0.5}))
    for sink in (RecordSink(run.folder / "servers" / "1" / "record"), OverviewSink(run.folder / "overview")):
        with closing(sink):
            sink.write(Row("samples", 100.0, 1, {"sys/cpu_pct": 1.0}))
    (run.folder / "model-00001.keras").write_bytes(b"the model")
    save_best(run, Best(1, "model-00001.keras", {"loss": 0.5, "val_accuracy": 0.5}, "00000000"))
    validation = load(Path(run.dataset)).splits["validation"].examples
    answers = predictions([(n % 2, int(n > 2), 0.6 + n / 100) for n in range(validation)])
    save(run.folder, answers, evaluation_of(answers, ["a", "b"], seed=0))
    save_result(run, "", lambda verdict: verdict.sentence)
    return load_run(run.folder)


def test_a_result_has_a_wait_fraction_only_after_enough_steps(run: Run):
    result = load_result(run.folder)
    assert result is not None
    assert (result["limit"], result["wait_fraction"], result["step_ms"]) == ("unknown", None, None)
    with closing(RecordSink(run.folder / "record")) as sink:
        for step in range(3, 30):
            times = {"input/wait_ms": 1.0, "step/compute_ms": 3.0, "step/time_ms": 4.0}
            sink.write(Row("batches", 100.0 + step, step, {**dict.fromkeys(OF_A_BATCH, 1.0), **times, "first": 0.0}))
    save_result(run, "", lambda verdict: verdict.sentence)
    result = load_result(run.folder)
    assert result is not None
    assert (result["wait_fraction"], result["step_ms"]) == (0.25, 4.0)


def test_the_epochs_of_a_result_do_not_depend_on_the_record(run: Run):
    """A disk that was full may have lost the rows of the epochs."""
    for path in (run.folder / "record").glob("epochs*"):
        path.unlink()
    save_early_end(run, 3)
    save_result(run, "", lambda verdict: verdict.sentence)
    result = load_result(run.folder)
    assert result is not None
    assert result["epochs"] == 3


def log_results(run: Run, **environment: str) -> str:
    """Log the results in a fresh process, because comet_ml changes its process. Return its stderr."""
    script = """if True:
        import logging, sys
        from pathlib import Path
        from pipeline.training.log.experiment import log_results
        from pipeline.runs.run import load_run
        logging.basicConfig(level="INFO")
        log_results(load_run(Path(sys.argv[1])))
    """
    allowed = dict.fromkeys(ALL, EVERYTHING)
    known = {"PATH": "/usr/bin:/bin", "HOME": str(run.folder.parent), "PYTHONPATH": str(ROOT), **allowed}
    command = [sys.executable, "-c", script, str(run.folder)]
    done = subprocess.run(
        command, env=known | environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert "Traceback" not in done.stderr
    return done.stderr


class Archive:
    """The content of an offline archive of Comet."""

    def __init__(self, path: Path) -> None:
        with zipfile.ZipFile(path) as file:
            self.files = {name: file.read(name) for name in file.namelist()}
        lines = map(json.loads, self.files["messages.json"].splitlines())
        self.messages: list[tuple[str, dict[str, Any]]] = [(line["type"], line["payload"]) for line in lines]

    def uploads(self, kind: str) -> dict[str, bytes]:
        """Return the files of one kind by name."""
        found = [
            payload for type_, payload in self.messages if type_ == "file_upload" and payload["upload_type"] == kind
        ]
        return {
            payload["additional_params"].get("fileName") or payload["additional_params"]["figName"]: self.files[
                payload["file_path"]
            ]
            for payload in found
        }

    def others(self) -> dict[str, Any]:
        return {payload["key"]: payload["value"] for kind, payload in self.messages if kind == "log_other"}

    def metrics(self) -> dict[str, float]:
        found = [payload["metric"] for kind, payload in self.messages if kind == "metric_msg"]
        return {metric["metricName"]: metric["metricValue"] for metric in found}


def test_the_logged_record_has_the_segments_of_the_servers_and_no_other_file(run: Run) -> None:
    """Keras callbacks may write folders of any name."""
    for name in ("callbacks/record/notes.txt", "record/.samples-00000.parquet.part", "servers/1/overview/x.csv"):
        (run.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (run.folder / name).write_text("a secret")
    experiment = SimpleNamespace(log_asset=lambda *_, **__: None)
    _log_record(run.folder / "record.zip", experiment, run)
    assert packed((run.folder / "record.zip").read_bytes()).keys() == {
        *(f"record/{kind}-00000.parquet" for kind in ("batches", "epochs")),
        "servers/1/record/samples-00000.parquet",
    }


@pytest.mark.long
def test_all_results_are_logged_once(run: Run):
    log_results(run)
    [path] = archives(run.folder / "comet")
    archive = Archive(path)
    assert archive.uploads("model-element") == {"model.keras": b"the model"}
    assets = archive.uploads("asset")
    assert packed(assets.pop("record.zip")) == files_of(run, "record") | files_of(run, "servers/1/record")
    assert assets == {name: (run.folder / name).read_bytes() for name in ("evaluation.json", "report.html")}
    assert json.loads((run.folder / COMET_LOGGED).read_text()) == {"comet": str(path)}

    evaluation = json.loads((run.folder / "evaluation.json").read_text())
    assert archive.metrics()["evaluation/accuracy"] == evaluation["figures"]["accuracy"]["value"]
    assert archive.metrics()["evaluation/accuracy_baseline"] == evaluation["figures"]["accuracy"]["baseline"]
    assert archive.others()["baseline"].startswith("The model is not surely better than its baseline")
    assert archive.others()["verdict"].startswith("Not enough steps for a verdict")
    assert archive.others()["best_epoch"] == 1
    assert archive.others()["evaluation/split"] == "validation"
    [matrix] = map(json.loads, archive.uploads("confusion-matrix").values())
    assert matrix["labels"] == ["a", "b"]
    assert matrix["title"] == f"Confusions of the {evaluation['examples']} validation examples"
    assert matrix["matrix"] == [[2, 1], [1, 2]]

    folder = Path(run.dataset)
    images = archive.uploads("visualization")
    samples = {f"sample {n:02d}: {label}.jpg": image for n, (label, image) in enumerate(sampled(folder), start=1)}
    assert samples.items() <= images.items()
    assert sorted(name[:14] for name in images.keys() - samples.keys()) == ["most wrong 01:", "most wrong 02:"]

    assert log_results(run) == ""
    assert archives(run.folder / "comet") == [path]


@pytest.mark.long
def test_an_experiment_with_a_simulated_accelerator_says_so_and_has_no_accuracy(run: Run):
    described = read_json(run.folder / "run.json")
    described["settings"]["simulated_step_ms"] = 2.0
    write_json(run.folder / "run.json", described)
    for name in (EVALUATION, PREDICTIONS):  # Such a training has none.
        (run.folder / name).unlink()
    run = load_run(run.folder)
    save_result(run, "", lambda verdict: verdict.sentence)
    assert comet_options(run).name.endswith(" simulated")
    assert "could not be logged" not in log_results(run)
    [path] = archives(run.folder / "comet")
    archive = Archive(path)
    assert archive.others()["headline"] == "simulated accelerator: the model learned nothing"
    assert not [name for name in archive.metrics() if "accuracy" in name]
    assert archive.uploads("asset").keys() == {"record.zip", "report.html"}


def packed(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return {name: file.read(name) for name in file.namelist()}


def files_of(run: Run, folder: str) -> dict[str, bytes]:
    return {f"{folder}/{path.name}": path.read_bytes() for path in (run.folder / folder).iterdir()}


def sampled(folder: Path) -> list[tuple[str, bytes]]:
    return sample_images(folder, load(folder), 24)


@pytest.mark.long
@pytest.mark.parametrize("kept_in", ["disk", "bucket"])
def test_the_decision_on_a_promotion_is_added_to_the_experiment(run: Run, gcs: FakeGcs, kept_in: str):
    log_results(run)
    [results] = archives(run.folder / "comet")
    before = results.read_bytes()
    place: Place = run.folder
    if kept_in == "bucket":
        place = place_of("gs://bucket/runs/a") / run.folder.name
        for path in (run.folder / "run.json", *(run.folder / "comet").rglob("*.*")):
            copy_new(path, place / path.relative_to(run.folder).as_posix())
    write_json(place / "promotion.json", Decision("kept", "worse").to_json())
    command = [sys.executable, "-m", "pipeline.training.log.promoted", str(place), str(os.getpid())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    assert "WARNING" not in done.stderr
    content = read_json(place / COMET_LOGGED)
    assert (content["comet"], content["promotion"]) == (str(archives(run.folder / "comet")[0]), "not promoted: worse")
    [path] = archives(place / "comet") if isinstance(place, Path) else fetched(place, run.folder)
    assert {"promotion": "Champion kept", "promotion_reason": "worse"}.items() <= Archive(path).others().items()
    assert kept_in == "disk" or results.read_bytes() == before


def fetched(place: BucketPath, folder: Path) -> list[Path]:
    """Return the archive of the second attempt, copied from a bucket."""
    [name] = [each.key for each in objects(place / "comet") if each.key.startswith("try-2/")]
    copy_new(place / "comet" / name, folder / "second.zip")
    return [folder / "second.zip"]


@pytest.mark.long
def test_an_online_experiment_sends_all_results_to_the_server(run: Run):
    with comet_server(accepts=True) as (url, received):
        warnings = log_results(run, COMET_API_KEY=SECRET, COMET_URL_OVERRIDE=url)
    assert warnings == ""
    files = received["/clientlib/asset/upload"]
    whole = ("model.keras", "evaluation.json", "record/batches-00000.parquet", "report.html")  # record.zip stores it
    assert all((run.folder / name).read_bytes() in files for name in whole)
    assert b'"matrix"' in files
    assert all(image in received["/clientlib/visualizations/upload"] for _, image in sampled(Path(run.dataset)))
    assert b"evaluation/accuracy" in received[METRICS]
    assert b"Not enough steps for a verdict" in received["/api/rest/v2/write/experiment/log-other"]
    assert json.loads((run.folder / COMET_LOGGED).read_text()) == {
        "comet": f"http://127.0.0.1/workspace/project/{key(run)}"
    }
    assert list((run.folder / "comet").iterdir()) == [run.folder / COMET_LOGGED]
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in run.folder.rglob("*") if path.is_file())


def key(run: Run) -> str:
    return experiment_key(comet_options(run).identity)


@pytest.mark.long
def test_failed_and_too_large_results_are_reported_and_the_rest_is_logged(run: Run):
    with run.model_path.open("wb") as file:
        file.truncate(MAX_ASSET_BYTES + 1)
    with (run.folder / "record" / "samples-00000.parquet").open("wb") as file:
        file.truncate(MAX_ASSET_BYTES + 1)
    for path in Path(run.dataset).glob("*.tfrecord"):
        path.unlink()
    warnings = log_results(run)
    assert "the record (200 MB) is not logged to Comet, because it is larger than 200 MB" in warnings
    assert f"{run.model_path} (200 MB) is not logged to Comet, because it is larger than 200 MB" in warnings
    assert warnings.count("some results could not be logged to Comet: FileNotFoundError") == 2  # images and report
    [path] = archives(run.folder / "comet")
    archive = Archive(path)
    assert archive.uploads("model-element") == {}
    assets = archive.uploads("asset")
    assert assets.keys() == {"evaluation.json", "record.zip"}
    assert packed(assets["record.zip"]) == files_of(run, "overview")


def test_an_experiment_is_identified_by_dag_run_dataset_and_settings(run: Run):
    options = comet_options(run)
    settings = run.settings.model_copy(update={"workspace": "/elsewhere"})
    others = [
        replace(run, dag="another_dag"),
        replace(run, run_id="another run"),
        replace(run, dataset_version="0" * 16),
        replace(run, folder=run.folder.with_name("0" * 12)),  # the name is a hash of dataset and settings
        replace(run, settings=settings),
    ]
    assert comet_options(load_run(run.folder)) == options
    assert len({key(each) for each in [run, *others]}) == 6
    commit = (Path(run.dataset) / "dataset.json").read_bytes()
    known = {"dag": "a_dag", "run_id": "a run", "dataset_crc32c": f"{google_crc32c.value(commit):08x}"}
    assert {**known, **run.settings.model_dump()}.items() <= options.parameters.items()


def test_confusions_become_a_square_matrix():
    assert confusion_matrix([(0, 0, 5), (0, 2, 1), (2, 1, 7)], 3) == [[5, 0, 1], [0, 0, 0], [0, 7, 0]]


@pytest.mark.parametrize(
    ("name", "encoded", "named"),
    [
        ("sample 01: cat", b"\xff\xd8\xff", "sample 01: cat.jpg"),
        ("sample 01: cat", b"\x89PNG\r\n", "sample 01: cat.png"),
        ("most wrong 01: a/b.JPEG", b"\xff\xd8\xff", "most wrong 01: a/b.JPEG"),
        ("most wrong 01: a/b.bmp", b"\x89PNG\r\n", "most wrong 01: a/b.bmp.png"),
    ],
)
def test_an_image_name_gets_the_suffix_of_its_format(name: str, encoded: bytes, named: str):
    assert image_name(name, encoded) == named
