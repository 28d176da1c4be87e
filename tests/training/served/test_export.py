"""The exported model works without this project, and predicts what the evaluation predicts."""

import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.config.automatic import training_settings
from pipeline.config.settings import Settings, settings_from
from pipeline.dataset import manifest as datasets
from pipeline.errors import SourceError
from pipeline.images.examine import Rules
from pipeline.input import validation_batches
from pipeline.input.options import batch_options
from pipeline.records.format import RecordFormat, read_image
from pipeline.records.tfrecord import read_records
from pipeline.report.evaluation_section import matrix
from pipeline.runs.launch import prepare_run
from pipeline.runs.run import Run, load_result
from pipeline.stages.build import build
from pipeline.storage import place_of
from pipeline.training.job import run_job
from pipeline.training.model.models import build_model, model_options, with_probabilities
from pipeline.training.served.export import export
from pipeline.training.served.predict import format_predictions, predict
from standins.fake_gcs import FakeGcs
from tests.conftest import MakeImages, jpeg
from tests.images.drawn import encoded, scene, turned, usable

pytestmark = pytest.mark.long
SETTINGS = training_settings({"image_size": 32, "batch_size": 8, "epochs": 1})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, published: Path) -> Run:
    """A complete training."""
    workspace = str(tmp_path_factory.mktemp("workspace"))
    run = prepare_run(SETTINGS.model_copy(update={"workspace": workspace}), published, "run")
    run_job(run, lambda: False)
    return run


def held_back(published: Path) -> list[bytes]:
    """Return the encoded validation images."""
    shards = datasets.load(published).splits["validation"].shards
    return [
        read_image(record, RecordFormat()).encoded
        for shard in shards
        for record in read_records(published / shard.name)
    ]


def evaluated(published: Path, model: keras.Model, settings: Settings) -> np.ndarray:
    """Return the output of a model for the validation images, as in an evaluation."""
    batches = validation_batches(published, batch_options(settings))
    return np.concatenate([model(images)[weights > 0] for images, _, weights in batches])


def test_an_exported_model_needs_only_tensorflow(run: Run, published: Path, tmp_path: Path):
    (tmp_path / "image").write_bytes(held_back(published)[0])
    script = (
        "import json, sys, tensorflow as tf\n"
        f"model = tf.saved_model.load({str(run.export_folder)!r})\n"
        "answer = model.signatures['serving_default'](\n"
        f"    images=tf.constant([open({str(tmp_path / 'image')!r}, 'rb').read()]))\n"
        "assert not any(name.split('.')[0] == 'pipeline' for name in sys.modules), 'imported'\n"
        "print(json.dumps([answer['label'].numpy()[0].decode(), answer['probabilities'].numpy()[0].tolist()]))"
    )
    output = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    label, probabilities = json.loads(output.stdout)
    model = keras.saving.load_model(run.model_path)
    np.testing.assert_allclose(probabilities, evaluated(published, model, run.settings)[0], atol=1e-5)
    assert label == "ab"[int(np.argmax(probabilities))]


@pytest.mark.parametrize("crop", [pytest.param("random", marks=pytest.mark.core), "whole"])
def test_an_exported_model_predicts_what_the_evaluation_predicts(published: Path, tmp_path: Path, crop: str):
    settings = SETTINGS.model_copy(update={"crop": crop})
    model = build_model(model_options(settings), 2)
    export(model, settings, datasets.load(published), tmp_path / "export")
    exported = tf.saved_model.load(str(tmp_path / "export"))
    answer = exported.serve(tf.constant(held_back(published)))
    expected = evaluated(published, with_probabilities(model), settings)
    np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-5)
    np.testing.assert_allclose(answer["probability"], expected.max(axis=1), atol=1e-5)
    assert answer["label"].numpy().tolist() == [b"ab"[index : index + 1] for index in expected.argmax(axis=1)]


def test_an_exported_model_answers_the_same_for_a_file_and_for_its_record(published: Path, tmp_path: Path):
    """Half of the image is transparent black, and one is turned. Records are white there, and upright."""
    model = build_model(model_options(SETTINGS), 2)
    export(model, SETTINGS, datasets.load(published), tmp_path / "export")
    exported = tf.saved_model.load(str(tmp_path / "export"))
    image = scene(48, 40)
    image.putalpha(Image.linear_gradient("L").resize(image.size).point(lambda level: 255 * (level > 128)))
    files = [encoded(image, "PNG"), turned(image, 6, "PNG"), encoded(image.convert("RGB"), "PNG")]
    records = [usable(file, Rules()).encoded for file in files]
    answers = [exported.serve(tf.constant(each))["probabilities"].numpy() for each in (files, records)]
    np.testing.assert_allclose(*answers, atol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"neither a JPEG nor a PNG.* from 0:\] \[1\]"):
        exported.serve(tf.constant([files[0], b"no image"]))


def test_an_export_replaces_files_of_a_killed_attempt(published: Path, tmp_path: Path):
    (tmp_path / "export" / "variables").mkdir(parents=True)
    (tmp_path / "export" / "left").touch()
    model = build_model(model_options(SETTINGS), 2)
    export(model, SETTINGS, datasets.load(published), tmp_path / "export")
    assert not (tmp_path / "export" / "left").exists()
    about = json.loads((tmp_path / "export" / "about.json").read_text())
    assert (about["labels"], about["image_size"]) == (["a", "b"], 32)
    assert about["dataset_version"] == datasets.load(published).version


def test_predict_accepts_all_image_formats_and_rejects_other_files(run: Run, tmp_path: Path):
    files = [tmp_path / name for name in ("a.jpg", "b.png", "gray.webp", "broken.jpg")]
    for file in files[:2]:
        Image.new("RGB", (60, 40), (200, 30, 30)).save(file)
    Image.new("L", (40, 60), 90).save(files[2])
    files[3].write_bytes(b"no image")
    *good, broken, missing = predict(run.folder, [*files, tmp_path / "missing.jpg"])
    assert missing == {"file": str(tmp_path / "missing.jpg"), "rejected": "cannot be read: No such file or directory"}
    [folder] = predict(run.folder, [tmp_path])
    assert folder["rejected"] == f"a folder: name the images in it, such as {tmp_path}/*"
    for each in good:
        assert each["label"] in ("a", "b")
        assert each["probability"] == max(likely["probability"] for likely in each["likely"]) >= 0.5
    assert broken == {"file": str(files[3]), "rejected": "not an image: it starts with b'no image'"}
    lines = format_predictions({"predictions": [*good, broken]}).splitlines()
    assert f"{good[0]['label']} {good[0]['probability']:.1%}" in lines[0]
    assert lines[3].endswith("not a usable image: not an image: it starts with b'no image'")
    assert predict(run.export_folder, files[:1]) == good[:1]


def test_predict_takes_the_limit_of_pixels_from_the_settings(run: Run, tmp_path: Path):
    (tmp_path / "a.jpg").write_bytes(jpeg(1, (120, 100)))
    files = [tmp_path / "a.jpg"]
    [found] = predict(run.folder, files, settings=settings_from({"max_megapixels": 0.013}))
    assert "label" in found
    [found] = predict(run.folder, files, settings=settings_from({"max_megapixels": 0.011}))
    assert "above the limit" in found["rejected"]


def test_a_model_in_a_bucket_gives_the_same_predictions(run: Run, gcs: FakeGcs, tmp_path: Path):
    """The files are read with the client of this project. The client of TensorFlow would not find the fake server."""
    gcs.put_folder("bucket", "runs/run/export/", run.export_folder)
    Image.new("RGB", (60, 40), (200, 30, 30)).save(tmp_path / "a.jpg")
    files = [tmp_path / "a.jpg"]
    assert predict(place_of("gs://bucket/runs/run"), files) == predict(run.folder, files)


def test_predict_applies_the_exif_orientation(run: Run, tmp_path: Path):
    upright = Image.linear_gradient("L").resize((64, 64)).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6  # the stored image is rotated 90 degrees to the left
    upright.save(tmp_path / "upright.png")
    upright.rotate(90).save(tmp_path / "turned.png", exif=exif)
    one, other = predict(run.folder, [tmp_path / "upright.png", tmp_path / "turned.png"])
    assert one["likely"] == other["likely"]


def test_predict_without_an_exported_model_is_refused(tmp_path: Path):
    with pytest.raises(SourceError, match="has no exported model"):
        predict(tmp_path, [])


def test_the_result_of_a_training_names_the_export(run: Run):
    result = load_result(run.folder)
    assert result is not None
    assert result["export"] == str(run.folder / "export")


def test_class_folders_named_by_numbers_are_shown_by_their_names(make_images: MakeImages, tmp_path: Path):
    """The ids of these labels are 0 to 3."""
    names = ["3", "7", "10", "11"]
    source = make_images(dict.fromkeys(names, 20))
    settings = SETTINGS.model_copy(update={"source_uri": str(source), "workspace": str(tmp_path / "w")})
    published = Path(build(settings_from(settings.model_dump()))["dataset"])
    assert datasets.load(published).labels == tuple(names)
    run = prepare_run(settings, published, "run")
    run_job(run, lambda: False)
    [predicted] = predict(run.folder, [source / "10" / "000.jpg"])
    assert {predicted["label"], *(each["label"] for each in predicted["likely"])} <= {*names}
    exported = tf.saved_model.load(str(run.export_folder))
    answer = exported.serve(tf.constant(held_back(published)))
    most_likely = answer["probabilities"].numpy().argmax(axis=1)
    assert answer["label"].numpy().tolist() == [names[index].encode() for index in most_likely]
    evaluation = json.loads((run.folder / "evaluation.json").read_text())
    assert [row["name"] for row in evaluation["classes"]] == names
    assert [name for name, _ in matrix(evaluation)] == names
