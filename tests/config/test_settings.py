import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from annotated_types import MaxLen

from pipeline.__main__ import main
from pipeline.config.declarations import AllowedBy, Decides, InFingerprint, UsedBy
from pipeline.config.settings import (
    MODELS,
    Settings,
    declared,
    settings_from,
    settings_in_fingerprint,
    settings_of_command_line,
    settings_with,
)
from pipeline.errors import SettingsError

# For each field, a value other than its default, in the type that the form returns.
CHANGED = {
    "source_uri": "/data/images",
    "dataset_name": "flowers",
    "num_training_servers": 3,
    "model": "MobileNetV2",
    "epochs": 2,
    "batch_size": 8,
    "learning_rate": 0.1,
    "workspace": "/data/work",
    "publish_uri": "/data/published",
    "dataset": "/data/published/flowers/1",
    "local_folder": "/data/local",
    "cache_gigabytes": 1.5,
    "user_project": "payer",
    "data_date": "2026-02-03",
    "source_kind": "folder",
    "path_column": "where",
    "label_column": "what",
    "split_column": "side",
    "group_column": "who",
    "group_pattern": r"^(.+)_\d+$",
    "label_map": "/data/labels.txt",
    "crop_to_box": True,
    "example_kind": "table",
    "key_column": "id",
    "columns": "age,geo.*",
    "drop_columns": "comment",
    "table_task": "regression",
    "on_columns": "ask",
    "max_changed_columns": 2,
    "on_new_values": "fail",
    "max_new_values_fraction": 0.5,
    "on_mean": "ask",
    "max_mean_drift": 0.5,
    "num_shards": 7,
    "engine": "spark",
    "shards_per_task": 2,
    "validation_fraction": 0.5,
    "test_fraction": 0.1,
    "split_seed": 9,
    "max_megapixels": 1.5,
    "check": "header",
    "prepare": "raw",
    "prepare_size": 64,
    "feature_keys": "plain",
    "label_offset": 1,
    "compression": "gzip",
    "near_duplicates": True,
    "on_rejected": "ask",
    "max_rejected_fraction": 0.1,
    "on_leak": "ask",
    "max_leaked_fraction": 0.1,
    "max_file_megabytes": 5.0,
    "list_encoding": "cp1252",
    "csv_delimiter": ";",
    "csv_columns": ["a", "b"],
    "csv_skip_lines": 2,
    "decimal_comma": True,
    "missing_values": ["-"],
    "strip_texts": True,
    "column_types": {"zip": "string", "day": "date:%d.%m.%Y"},
    "on_contradiction": "fail",
    "max_contradictory_fraction": 0.2,
    "on_imbalance": "fail",
    "max_imbalance": 5.0,
    "on_drift": "fail",
    "max_drift": 0.1,
    "ask_hours": 2.5,
    "window": 7,
    "image_size": 64,
    "seed": 8,
    "weights": "/data/model.keras",
    "continues": "/w/runs/manual/0123456789ab",
    "shuffle_megabytes": 1,
    "prefetch_batches": 8,
    "crop": "whole",
    "min_crop_area": 0.08,
    "flip": False,
    "color_jitter": 0.4,
    "balanced": True,
    "cache": "disk",
    "learning_rate_schedule": "cosine",
    "patience": 4,
    "warmup_epochs": 0.5,
    "weight_decay": 0.05,
    "clip_norm": 1.0,
    "label_smoothing": 0.1,
    "class_weights": "balanced",
    "precision": "mixed_bfloat16",
    "xla": True,
    "simulated_step_ms": 40.0,
    "freeze_epochs": 2,
    "finetune_rate": 0.5,
    "server_wait_minutes": 5.0,
    "gpus_per_server": 2,
    "checkpoint_minutes": 0.5,
    "checkpoint_steps": 100,
    "micro_batches": 4,
    "stall_minutes": 5.0,
    "callbacks": "mine.callbacks:make",
    "loss": "mine.losses:focal",
    "advice": "off",
    "tensorboard": True,
    "promote": "never",
    "max_worse": 0.02,
    "comet_project": "mine",
}
NEEDS = {"freeze_epochs": {"weights": "/data/model.weights.h5", "model": "MobileNetV2"}}
"""Other settings that a field requires."""


def test_changed_covers_every_field():
    assert set(CHANGED) == set(Settings.model_fields)


@pytest.mark.parametrize("field", CHANGED)
def test_a_changed_field_survives_a_round_trip_through_json(field: str):
    settings = settings_from({field: CHANGED[field], **NEEDS.get(field, {})})
    assert getattr(settings, field) == CHANGED[field] != getattr(settings_from({}), field)
    assert settings_from(settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize("field", ["source_uri", "workspace", "publish_uri", "dataset"])
def test_a_location_in_a_bucket_loses_its_trailing_slash(field: str):
    assert getattr(settings_from({field: "gs://bucket/a/{date}/"}), field) == "gs://bucket/a/{date}"


@pytest.mark.parametrize("field", CHANGED)
def test_every_field_has_a_title_and_a_description(field: str):
    assert Settings.model_fields[field].description
    assert Settings.model_fields[field].title


def test_few_settings_are_in_no_section_and_lead_form_and_reference():
    schemas = Settings.model_json_schema()["properties"]
    assert 1 < sum("section" not in schema for schema in schemas.values()) <= 10


@pytest.mark.parametrize("kind", [Decides, UsedBy])
@pytest.mark.parametrize("field", CHANGED)
def test_every_field_declares_what_it_decides_and_which_stages_use_it(field: str, kind: type):
    assert [type(marker) for marker in Settings.model_fields[field].metadata].count(kind) == 1


def test_every_setting_in_the_dataset_fingerprint_decides_the_dataset():
    assert set(declared(InFingerprint)) <= set(settings_with(Decides.DATASET))


def test_the_fingerprint_has_the_settings_that_change_bytes():
    of_all = {"split_seed": 0, "validation_fraction": 0.2}
    of_images = {"max_megapixels": 50.0, "max_file_megabytes": 256.0, "check": "strict", "crop_to_box": False}
    of_images |= {"prepare": "keep", "near_duplicates": False}
    assert settings_in_fingerprint(settings_from({})) == of_all | of_images
    words = ["NA", "N/A", "NaN", "nan", "null", "NULL", "None", "#N/A", "?"]
    of_tables = {"csv_delimiter": "", "csv_columns": [], "csv_skip_lines": 0, "decimal_comma": False}
    of_tables |= {"missing_values": words, "strip_texts": False, "column_types": {}}
    table = settings_from({"example_kind": "table", "label_column": "y"})
    assert settings_in_fingerprint(table) == of_all | of_tables
    # Only with another `prepare` does the size change bytes.
    resized = {"prepare": "resize", "prepare_size": 128}
    assert settings_in_fingerprint(settings_from(resized)) == of_all | of_images | resized
    assert settings_in_fingerprint(settings_from({"prepare_size": 128})) == of_all | of_images
    # Without a test fraction, datasets keep their versions.
    assert settings_in_fingerprint(settings_from({"test_fraction": 0.0})) == of_all | of_images
    assert settings_in_fingerprint(settings_from({"test_fraction": 0.1})) == of_all | of_images | {"test_fraction": 0.1}


def test_the_settings_that_identify_a_training():
    # Without one of these, a training with another value would continue from a checkpoint of this one.
    assert sorted(settings_with(Decides.TRAINING)) == [
        "balanced",
        "batch_size",
        "cache",
        "callbacks",
        "class_weights",
        "clip_norm",
        "color_jitter",
        "continues",
        "crop",
        "epochs",
        "finetune_rate",
        "flip",
        "freeze_epochs",
        "image_size",
        "label_smoothing",
        "learning_rate",
        "learning_rate_schedule",
        "loss",
        "min_crop_area",
        "model",
        "num_training_servers",
        "patience",
        "precision",
        "seed",
        "shuffle_megabytes",
        "simulated_step_ms",
        "warmup_epochs",
        "weight_decay",
        "weights",
        "xla",
    ]


def test_every_location_and_every_user_function_needs_a_permission():
    places = {name for name, field in Settings.model_fields.items() if MaxLen(4096) in field.metadata}
    assert set(declared(AllowedBy)) == places | {"model", "loss", "callbacks"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": 0}, "epochs must be greater than or equal to 1, got 0"),
        ({"epochs": "three"}, "epochs must be a whole number, got 'three'"),
        ({"epochs": "3"}, "epochs must be a whole number, got '3'"),
        ({"batch_size": 1.5}, "batch_size must be a whole number, got 1.5"),
        ({"num_shards": True}, "num_shards must be a whole number, got True"),
        ({"num_shards": 1_000_001}, "num_shards must be less than or equal to 1000000, got 1000001"),
        ({"epoch": 3}, "epoch is not a setting: did you mean epochs?"),
        ({"xyz": 3}, "xyz is not a setting: the settings are source_uri, "),
        (
            {"model": "InceptionResNetV2", "image_size": 64},
            "image_size must be at least 75 for InceptionResNetV2, got 64",
        ),
        (
            {"crop": "random_resized", "cache": "memory"},
            "cache must be auto or off with crop=random_resized, which needs whole images, got 'memory'",
        ),
        ({"balanced": True, "cache": "disk"}, "cache must be auto or off with balanced, which selects other examples"),
        ({"callbacks": "early"}, "callbacks must be package.module:function, or empty, got 'early'"),
        ({"epochs": 3, "warmup_epochs": 3}, "warmup_epochs must be less than epochs (3), got 3.0"),
        ({"balanced": True, "class_weights": "balanced"}, "class_weights must be none with balanced, which shows"),
        ({"label_smoothing": 1.0}, "label_smoothing must be less than 1"),
        ({"finetune_rate": 0.0}, "finetune_rate must be greater than 0"),
        (
            {"freeze_epochs": 1, "model": "MobileNetV2"},
            (
                "freeze_epochs must be 0, unless model is one of keras.applications and weights is set, got 1 with "
                "model 'MobileNetV2'"
            ),
        ),
        ({"freeze_epochs": 1, "weights": "/data/a.keras"}, "got 1 with the default model and weights '/data/a.keras'"),
        (
            {**NEEDS["freeze_epochs"], "epochs": 3, "freeze_epochs": 4},
            "freeze_epochs must be at most epochs (3), got 4",
        ),
        ({"model": "VGG"}, "model must be small_cnn, MobileNetV2, "),
        ({"model": "os.path"}, "InceptionResNetV2, mlp or package.module:function, got 'os.path'"),
        ({"model": "os:path:join"}, "or package.module:function"),
        ({"model": "../evil:make"}, "or package.module:function"),
        ({"weights": "/data/a.weights.json"}, "weights must end in .weights.h5 or .h5 or .keras"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number"),
        ({"validation_fraction": 1.0}, "validation_fraction must be less than or equal to 0.9"),
        ({"test_fraction": 1.0}, "test_fraction must be less than or equal to 0.9"),
        (
            {"validation_fraction": 0.7, "test_fraction": 0.3},
            "test_fraction must be less than 1 - validation_fraction (0.7), because the other examples are for "
            "training, got 0.3",
        ),
        ({"dataset_name": "../up"}, "dataset_name must have at most 100 letters"),
        ({"rounds": 3}, "rounds is an option of compare-inputs: write --rounds"),
        ({"promote": "maybe"}, "promote must be 'if_not_worse', 'unless_surely_worse', 'always' or 'never'"),
        ({"max_worse": 1.5}, "max_worse must be less than or equal to 1"),
        ({"comet_project": "a/b"}, "comet_project must match pattern"),
        ({"comet_project": "x" * 101}, "comet_project must have at most 100 characters"),
        ({"source_uri": "s3://bucket/images"}, "source_uri must be a local path or gs://bucket/prefix"),
        ({"source_uri": "gs:///images"}, "source_uri must be gs://bucket/prefix, got 'gs:///images'"),
        ({"workspace": "gs:/bucket/w"}, "workspace must be a local path or gs://bucket/prefix, got 'gs:/bucket/w'"),
        ({"continues": "gs:/b/w/runs/r/t"}, "continues must be a local path or gs://bucket/prefix"),
        ({"publish_uri": "gs//bucket/w"}, "publish_uri must be a local path or gs://bucket/prefix"),
        ({"weights": "gs://bucket/model.keras"}, "weights must be a local path"),
        ({"source_kind": "tarball"}, "source_kind must be auto, containers or folder"),
        ({"group_pattern": "("}, "group_pattern must be a regular expression"),
        ({"group_pattern": "a{99999999999}"}, "group_pattern must be a regular expression"),
        ({"group_pattern": 900 * "("}, "group_pattern must be a regular expression"),
        ({"workspace": ""}, "workspace must name a folder"),
        ({"data_date": "31.1.2026"}, "data_date must be a date such as 2026-01-31"),
        ({"data_date": "2026-01-31T07:00+01:00"}, "without a time zone"),
        ({"source_uri": "/data/{dat}"}, "source_uri must have no placeholders except {date}, {year}"),
        (
            {"source_uri": "/data/{date}/{hour}", "data_date": "2026-01-31"},
            "data_date must have a time, such as 2026-01-31T07:00",
        ),
        ({"epochs": 0, "seed": -1}, "; seed must be"),
    ],
)
def test_the_error_for_an_invalid_setting_names_it(values: dict, message: str):
    with pytest.raises(SettingsError) as caught:
        settings_from(values)
    assert message in str(caught.value)


def test_the_command_line_overrides_the_settings_file(tmp_path: Path):
    file = tmp_path / "settings.toml"
    file.write_text('epochs = 5\ndataset_name = "flowers"\n')
    settings = settings_of_command_line(file, ["epochs=3", "learning_rate=0.5"])
    assert (settings.epochs, settings.dataset_name, settings.learning_rate) == (3, "flowers", 0.5)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", "epochs = ", "cannot be read as .toml"),
        ("a.json", "[1]", "must contain settings and their values"),
        ("a.json", '{"epochs": -1}', "epochs must be"),
    ],
)
def test_an_invalid_settings_file_is_refused(tmp_path: Path, name: str, content: str, message: str):
    (tmp_path / name).write_text(content)
    with pytest.raises(SettingsError, match=message):
        settings_of_command_line(tmp_path / name, [])


@pytest.mark.parametrize("field", [name for name, value in CHANGED.items() if isinstance(value, str)])
def test_a_value_of_a_megabyte_is_refused_with_a_short_error(field: str):
    with pytest.raises(SettingsError) as caught:
        settings_from({field: "/" + "x" * 1_000_000})
    assert field in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("values", [{"x" * 1_000_000: 1}, {"epochs": "3" * 1_000_000}, {"epochs": [1] * 1_000_000}])
def test_the_error_for_a_long_name_or_value_is_short(values: dict):
    with pytest.raises(SettingsError) as caught:
        settings_from(values)
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize("content", ["epochs = true", "learning_rate = false", "num_shards = true"])
def test_a_boolean_in_a_settings_file_is_not_accepted_as_a_number(tmp_path: Path, content: str):
    (tmp_path / "a.toml").write_text(content)
    name, _, value = content.partition(" = ")
    with pytest.raises(SettingsError, match=f"{name} must be a number, got {value}"):
        settings_of_command_line(tmp_path / "a.toml", [])


def test_none_leaves_a_field_at_its_default():
    assert settings_from({"dataset_name": None, "epochs": 3}) == settings_from({"epochs": 3})


def test_set_needs_an_equals_sign():
    with pytest.raises(SettingsError, match="field=value"):
        settings_of_command_line(None, ["epochs"])


@pytest.mark.parametrize(
    ("values", "shards"),
    [
        ({}, 10),
        ({"num_training_servers": 8}, 80),
        ({"num_training_servers": 8, "num_shards": 7}, 7),
        ({"num_shards": 1_000_000}, 1_000_000),
    ],
)
def test_ten_shards_for_each_training_server(values: dict, shards: int):
    assert settings_from(values).train_shards == shards


@pytest.mark.parametrize(
    ("template", "given", "data_date", "filled"),
    [
        ("/data/{date}/raw", "", "2026-03-04", "/data/2026-03-04/raw"),
        ("/data/{date}/raw", "2026-01-31", "2026-01-31", "/data/2026-01-31/raw"),
        ("/data/{date}", "2026-01-31T07", "2026-01-31", "/data/2026-01-31"),
        ("gs://b/{year}/{month}/{day}/{hour}", "", "2026-03-04T23:00", "gs://b/2026/03/04/23"),
        ("/data/{year}/{month}", "", "2026-03-01", "/data/2026/03"),
        ("/data/{year}", "", "2026-01-01", "/data/2026"),
        ("/data/{date}T{hour}{minute}", "2026-01-31T07:30", "2026-01-31T07:30", "/data/2026-01-31T0730"),
        ("/data/photos", "", "", "/data/photos"),  # a source without a date
        ("/data/photos", "2026-01-31", "2026-01-31", "/data/photos"),  # unless the form gives a date
    ],
)
def test_the_data_date_comes_from_the_form_or_the_run(template: str, given: str, data_date: str, filled: str):
    settings = settings_from({"source_uri": template, "data_date": given})
    settings = settings.dated(datetime(2026, 3, 4, 23, 59, tzinfo=UTC))
    assert (settings.data_date, settings.source_uri) == (data_date, filled)
    assert settings.dated(datetime(2030, 1, 1, tzinfo=UTC)) == settings  # computed once, then fixed
    assert settings_from(settings.model_dump()) == settings  # as after an XCom


@pytest.mark.parametrize(
    ("zone", "template", "given", "data_date"),
    [
        ("Europe/Berlin", "/data/{date}", "", "2026-03-05"),
        ("America/New_York", "/data/{date}", "", "2026-03-04"),
        ("Pacific/Kiritimati", "/data/{year}/{month}/{day}", "", "2026-03-05"),
        ("Europe/Berlin", "/data/{date}/{hour}", "", "2026-03-04T23:00"),  # Hours are in UTC.
        ("Europe/Berlin", "/data/{date}", "2026-01-31", "2026-01-31"),  # The form names the day itself.
    ],
)
def test_the_day_of_a_run_is_that_of_the_time_zone(
    zone: str, template: str, given: str, data_date: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TENFOLD_TIMEZONE", zone)
    settings = settings_from({"source_uri": template, "data_date": given})
    assert settings.dated(datetime(2026, 3, 4, 23, 59, tzinfo=UTC)).data_date == data_date


def test_a_run_in_a_time_zone_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENFOLD_TIMEZONE", "Berlin")
    with pytest.raises(SettingsError, match="TENFOLD_TIMEZONE must be the name of a time zone"):
        settings_from({"source_uri": "/data/{date}"}).dated()


def test_the_workspace_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENFOLD_WORKSPACE", "/data/shared")
    assert Settings().workspace == "/data/shared"


def test_the_help_of_the_command_line_lists_every_setting(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--help"])
    help_text = capsys.readouterr().out
    assert [name for name in Settings.model_fields if f"\n  {name} " not in help_text] == []
    assert "One of continue, ask, fail. [fail]" in " ".join(help_text.split())


def test_the_form_suggests_models_and_takes_others():
    schema = Settings.model_json_schema()["properties"]["model"]
    assert (schema["examples"], "enum" in schema) == (list(MODELS), False)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["run", "--epochs", "3"], "unrecognized arguments: --epochs 3: write --set epochs=3"),
        (["build", "--batch-size=8"], "unrecognized arguments: --batch-size=8: write --set batch_size=8"),
        (["train", "--xla", "--json"], "unrecognized arguments: --xla: write --set xla=VALUE"),
        (["verify", "--epochs", "3", "folder"], "unrecognized arguments: --epochs folder: write --set epochs=3"),
        (["run", "epochs=three"], "unrecognized arguments: epochs=three: write --set epochs=three"),
        (["run", "--epochs", "3", "--seed", "4"], "--epochs 3 --seed 4: write --set epochs=3 --set seed=4"),
    ],
)
def test_a_setting_given_as_an_option_gets_a_hint(arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert capsys.readouterr().err.splitlines()[-1].endswith(hint)


def test_an_unknown_option_gets_no_hint(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main(["run", "--nonsense"])
    assert capsys.readouterr().err.splitlines()[-1].endswith("unrecognized arguments: --nonsense")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Resnet50", "did you mean ResNet50?"),
        ("mobilenetv2", "did you mean MobileNetV2?"),
        ("smallcnn", "must be a known model or package.module:function (did you mean small_cnn?), got 'smallcnn'"),
        ("zzz", "must be small_cnn, MobileNetV2"),
    ],
)
def test_a_model_with_a_similar_name_is_suggested(name: str, message: str):
    with pytest.raises(SettingsError, match=re.escape(message)):
        settings_from({"model": name})


@pytest.mark.parametrize(
    ("data_date", "source", "expected"),
    [
        ("2026-01-31T23:30", "/data/{date}", "2026-02-01"),
        ("2026-01-31", "/data/{date}", "2026-01-31"),
        ("2026-01-31T23:30", "/data/{date}/{hour}", "2026-01-31T23:00"),
    ],
)
def test_a_time_of_the_form_is_in_utc(
    data_date: str, source: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENFOLD_TIMEZONE", "Europe/Berlin")
    assert settings_from({"data_date": data_date, "source_uri": source}).dated().data_date == expected
