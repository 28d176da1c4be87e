"""`python -m pipeline COMMAND`: the whole chain, or one stage of it, without Airflow."""

import argparse
import json
import logging
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import __version__
from pipeline.allowed import open_unless_set, open_warning
from pipeline.config import Settings, settings_of_command_line, validated
from pipeline.errors import ERROR_FILE, DatasetError, Preempted, SettingsError, TenfoldError, error_to_json
from pipeline.preflight import require_buckets
from pipeline.runs.run import EXIT_PREEMPTED
from pipeline.storage import Place, is_bucket, place_of
from pipeline.storage.local import FULL
from pipeline.system.os_errors import cause_of
from pipeline.system.progress import log_to_stderr
from pipeline.tuning.options import ComparisonOptions

if TYPE_CHECKING:
    from pipeline.dataset.manifest import Dataset
    from pipeline.runs.champion import Pointer

RUN_ID = "manual"
"""All runs of the command line have this id, so that the same settings continue the same training."""
EXIT_BAD = 1
MAX_SHOWN = 256
"""`show` draws at most this many images."""

EXTRAS = {
    **dict.fromkeys(("run", "train", "predict", "show", "shuffle-quality", "compare-inputs"), "training"),
    **dict.fromkeys(("report", "report compare"), "report"),
}
"""The extra of pyproject.toml that a command needs, by its name. The other commands need the base package alone."""

PACKAGES = {"training": "tensorflow", "report": "bokeh"}
"""A package of each extra. If it is installed, so is the rest."""

EXAMPLES = {
    "run": "--set source_uri=/data/flowers --set epochs=30",
    "build": "--set source_uri=gs://bucket/flowers --set workspace=gs://bucket/tenfold --json",
    "extract": "--set source_uri=/data/flowers",
    "shard": "workspace/work/flowers/snapshots/SNAPSHOT.json --set source_uri=/data/flowers",
    "write": "workspace/work/flowers/PLAN/plan.json --set source_uri=/data/flowers",
    "upload": "workspace/work/flowers/PLAN/plan.json --set source_uri=/data/flowers",
    "window": "--set dataset_name=flowers --set window=7",
    "partition": "2026-01-31 4766e75c17183005 --set dataset_name=flowers",
    "labels": "--set dataset_name=flowers",
    "train": "--set dataset=workspace/datasets/flowers/4766e75c17183005 --set epochs=30",
    "compare-inputs": "--set source_uri=/data/flowers --contenders files,shards,resized",
    "verify": "workspace/datasets/flowers/4766e75c17183005",
    "index": "workspace/datasets/flowers/4766e75c17183005",
    "shuffle-quality": "workspace/datasets/flowers/4766e75c17183005",
    "report": "workspace/runs/RUN",
    "report compare": "workspace/runs/RUN_A workspace/runs/RUN_B --to compare.html",
    "comet recover": "workspace",
    "champion": "--set dataset_name=flowers",
    "promote": "workspace/runs/RUN",
    "rollback": "--set dataset_name=flowers",
    "show": "workspace/datasets/flowers/4766e75c17183005 --augmented",
    "predict": "--model workspace/models/flowers photo.jpg",
    "samples": "shapes --count 600",
}
"""Arguments of each command, as its help shows them."""

_log = logging.getLogger("pipeline")


class _Terminated(KeyboardInterrupt):
    """SIGTERM was received.

    This is not an `Exception`, because it can come at any moment, and code that examines an image takes any `Exception`
    for a fault of the image.
    """


def main(arguments: Sequence[str]) -> int:
    """Run one command and return the exit code. Messages go to stderr. With --json, stdout gets one JSON object."""
    # `report compare` is one command of two words, beside the command `report`, which takes an argument.
    if list(arguments[:2]) == ["report", "compare"]:
        arguments = ["report compare", *arguments[2:]]
    parser = command_line()
    if not arguments:
        print(_overview(parser))  # noqa: T201
        return 0
    # Unknown options are collected, because many are settings without --set, for which the error has a hint.
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{_set_hint(unknown, arguments)}")
    log_to_stderr()
    # A person who runs a command on their own machine is the administrator.
    open_unless_set()
    if options.command in (_run, _build, _extract, _write, _train, _compare_inputs) and (warning := open_warning()):
        _log.info("%s", warning)
    try:
        _require_packages(options.name)
        result = options.command(options)
    except Preempted as error:
        print(error, file=sys.stderr)  # noqa: T201
        return EXIT_PREEMPTED
    except TenfoldError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        if file := os.environ.get(ERROR_FILE):
            Path(file).write_text(json.dumps(error_to_json(error)), "utf-8")
        return EXIT_BAD
    except OSError as error:  # For example, a disk is full, or a folder has disappeared.
        later = ": run the same command to continue from here" if cause_of(error) == "transient" else ""
        print(f"error: {error}{later}", file=sys.stderr)  # noqa: T201
        return EXIT_BAD
    except KeyboardInterrupt as stop:
        print("stopped: run the same command to continue from here", file=sys.stderr)  # noqa: T201
        # 130 is 128 + SIGINT, as shells report it.
        return EXIT_PREEMPTED if isinstance(stop, _Terminated) else 130
    print(json.dumps(result) if options.json else options.format(result))  # noqa: T201
    return 0 if result.get("ok", True) else EXIT_BAD


def _prog() -> str:
    """Return the name of this program as a person can type it."""
    typed = sys.argv[0]
    if Path(typed).name != "tenfold":
        return "python -m pipeline"
    # Without an activated environment, a shell finds `.venv/bin/tenfold` only by its path.
    return "tenfold" if shutil.which("tenfold") else typed


def _overview(parser: argparse.ArgumentParser) -> str:
    """Return the help of all commands without the list of settings, which takes several screens."""
    parser.epilog = (
        f"first steps:\n  {parser.prog} samples shapes\n  {parser.prog} run --set source_uri=shapes\n\n"
        f"`{parser.prog} COMMAND --help` explains a command, and `{parser.prog} --help` lists all settings."
    )
    return parser.format_help()


def _require_packages(command: str) -> None:
    """Raise SettingsError if a command needs an extra that is not installed."""
    extra = EXTRAS.get(command)
    # `find_spec` does not import the package, which takes seconds.
    if extra and find_spec(PACKAGES[extra]) is None:
        raise SettingsError(
            f"`{command}` needs {PACKAGES[extra]}, which is not installed: install tenfold[{extra}], or run `make env`"
        )


def _set_hint(unknown: Sequence[str], arguments: Sequence[str]) -> str:
    """Return how to write the unknown options that are settings; empty if none is a setting."""
    assignments = []
    for option in unknown:
        name, _, value = option.removeprefix("--").partition("=")
        field = name.replace("-", "_")
        if option.startswith("--") and field in Settings.model_fields:
            # The value is looked up in all arguments, because argparse may have taken it for something else.
            following = arguments[list(arguments).index(option) + 1 :][:1]
            given = [value] if value else [each for each in following if not each.startswith("--")]
            assignments.append(f"--set {field}={given[0] if given else 'VALUE'}")
    return f": write {' '.join(assignments)}" if assignments else ""


# --- commands: each takes the parsed options and returns what --json prints -----------------------------------------


def _extract(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.extraction import extract

    return {"snapshot": str(extract(_settings(options)))}


def _shard(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.build import write_shards
    from pipeline.gate.decide import ask_terminal

    return {"plan": str(write_shards(_settings(options), _file("snapshot", options.snapshot), ask_terminal()))}


def _write(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.build import write_planned

    plan = _file("plan", options.plan)
    write_planned(plan, _settings(options))
    return {"plan": str(plan)}


def _upload(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.build import publish
    from pipeline.gate.decide import ask_terminal

    return publish(_file("plan", options.plan), _settings(options), ask_terminal())


def _build(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.build import build

    return build(_settings(options))


def _verify(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.dataset.verify import verify

    return verify(_reachable("dataset", options.dataset))


def _index(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.dataset.index_files import write_indexes
    from pipeline.dataset.manifest import load

    folder = _reachable("dataset", options.dataset)
    shards = [shard for split in load(folder).splits.values() for shard in split.shards]
    return {"dataset": str(folder), **write_indexes(folder, shards)}


def _reachable(what: str, uri: str) -> Place:
    """Return the place of a URI. A bucket must answer within seconds, without the long retries of a run."""
    try:
        place = place_of(uri)
    except ValueError as error:
        raise SettingsError(f"{what} {error}, got {uri!r}") from error
    require_buckets({what: place})
    return place


def _window(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.dataset.partitions import newest_partitions
    from pipeline.gate.decide import ask_terminal
    from pipeline.report import write_card
    from pipeline.sharding.window import dataset_of

    settings = _of_published(options)
    partitions = newest_partitions(settings, settings.window)
    return {"dataset": str(dataset_of(settings, partitions, write_card, ask_terminal())), "partitions": partitions}


def _partition(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.dataset.partitions import move_partition
    from pipeline.workspace import require_name

    settings = _of_published(options)
    require_name(settings)
    file = move_partition(settings, options.partition, options.version)
    return {"partition": options.partition, "version": options.version, "file": str(file)}


def _labels(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.dataset.labels import label_uses, release_labels
    from pipeline.workspace import name_folder, require_name

    settings = _of_published(options)
    require_name(settings)
    released = release_labels(settings) if options.release else []
    labels = [asdict(each) for each in label_uses(settings)]
    return {"label_map": str(name_folder(settings) / "labels"), "labels": labels, "released": released}


def _format_labels(result: dict[str, Any]) -> str:
    lines = [
        f"{each['id']:>6}  {each['label']}  {'permanent' if each['is_permanent'] else 'reserved by ' + each['held_by']}"
        for each in result["labels"]
    ]
    return _format_result({"label_map": result["label_map"], "labels": lines, "released": result["released"]})


def _train(options: argparse.Namespace) -> dict[str, Any]:
    settings = _settings(options)
    if not settings.dataset:
        raise SettingsError("dataset is empty: name the folder of a published dataset, with --set dataset=...")
    return _trained(settings, place_of(settings.dataset))


def _run(options: argparse.Namespace) -> dict[str, Any]:
    settings = _settings(options)
    from pipeline.build import publish, write_shards
    from pipeline.engines import engine_named
    from pipeline.extraction import extract
    from pipeline.gate.decide import ask_terminal
    from pipeline.runs.launch import require_shares, require_trainable

    engine_named(settings.engine)
    # What a training would refuse is refused here, before hours of sharding.
    require_shares(settings, settings.train_shards)
    snapshot = extract(settings)
    require_trainable(settings, snapshot)
    ask = ask_terminal()
    built = publish(write_shards(settings, snapshot, ask), settings, ask)
    return {**built, **_trained(settings, place_of(built["dataset"]))}


def _compare_inputs(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.build import build_input
    from pipeline.report import write_inputs_page
    from pipeline.tuning.contenders import dataset_settings
    from pipeline.tuning.measure import (
        comparison_of,
        measure,
        require_measurable,
        start_another_comparison,
        start_comparison,
    )

    settings = _settings(options)
    given = {name: getattr(options, name) for name in ComparisonOptions.model_fields}
    compared = validated(ComparisonOptions, given, strict=False)
    require_measurable(settings, compared)
    built = [build_input(own) for own in dataset_settings(settings, compared.names).values()]
    comparison = comparison_of(settings, compared, built)
    start = start_another_comparison if options.again else start_comparison
    folder = start(comparison, RUN_ID)
    measure(folder, sys.stderr.fileno())
    return write_inputs_page(folder)


def _format_inputs(result: dict[str, Any]) -> str:
    from pipeline.tuning.result import format_result

    return format_result(result)


def _report(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.report import report_run

    return {"report": str(report_run(_training("run", options.run)))}


def _training(what: str, uri: str) -> Place:
    from pipeline.runs.run import find_training

    return find_training(_reachable(what, uri))


def _compare(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.report import compare_runs

    if is_bucket(options.to) or not options.to.endswith(".html") or not Path(options.to).parent.is_dir():
        raise SettingsError(
            f"--to must be a local file that ends in .html, in a folder that exists, got {options.to!r}"
        )
    a, b = _training("run A", options.run_a), _training("run B", options.run_b)
    if a == b:
        raise SettingsError(f"run A and run B are the same run, {a}: name two different runs")
    return compare_runs(a, b, Path(options.to))


def _format_comparison(result: dict[str, Any]) -> str:
    from pipeline.report.compare import format_comparison

    return format_comparison(result)


def _comet_recover(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.monitor.archives import archives_below, recover_below, upload_command

    if is_bucket(options.folder):
        raise SettingsError(
            f"{options.folder} is in a bucket, but these values are stored in local_folder on the worker that trained: "
            "run this command there"
        )
    folder = Path(options.folder)
    recovered = recover_below(folder)
    every = archives_below(folder)
    return {"recovered": [str(path) for path in recovered], "upload": upload_command(every) if every else ""}


def _format_recovered(result: dict[str, Any]) -> str:
    packed = "\n".join(result["recovered"]) or "nothing: no killed training left values that are not packed yet"
    upload = result["upload"] or "nothing: there are no archives"
    return f"packed: {packed}\nto upload: {upload}"


def _champion(options: argparse.Namespace) -> dict[str, Any]:
    pointer = _pointer(options)
    champion = asdict(pointer.champion) if pointer.champion else None
    return {"pointer": str(pointer.place), "champion": champion, "history": [asdict(each) for each in pointer.history]}


def _format_champion(result: dict[str, Any]) -> str:
    champion = result["champion"] or {"export": "none: no model has been promoted yet"}
    history = [f"{each['at']}  {each['action']:<8}  {each['run']}  ({each['why']})" for each in result["history"]]
    return _format_result({"pointer": result["pointer"], "champion": champion["export"], "history": history})


def _promote(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.runs.promotion import promote_by_hand

    return promote_by_hand(_reachable("run", options.run))


def _roll_back(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.runs.champion import roll_back

    pointer = _pointer(options)
    champion = roll_back(pointer)
    return {"champion": champion.run, "model": champion.export, "pointer": str(pointer.place)}


def _pointer(options: argparse.Namespace) -> "Pointer":
    from pipeline.runs.champion import pointer_of

    settings = _of_published(options)
    require_buckets({"workspace": place_of(settings.workspace)})
    return pointer_of(place_of(settings.workspace), settings.dataset_name)


def _predict(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.runs.champion import find_promoted_model

    # A wrong folder is reported before TensorFlow is loaded.
    model = find_promoted_model(_reachable("model", options.model))
    with _tensorflow_on_the_cpu():
        from pipeline.training.served.predict import predict
    predictions = predict(model, [Path(file) for file in options.files])
    return {"ok": not any("rejected" in each for each in predictions), "predictions": predictions}


def _format_predictions(result: dict[str, Any]) -> str:
    from pipeline.training.served.predict import format_predictions

    return format_predictions(result)


def _show(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.dataset.manifest import CARD, load

    settings, folder = _settings(options), _reachable("dataset", options.dataset)
    if not 1 <= options.count <= MAX_SHOWN:
        raise SettingsError(f"--count must be from 1 to {MAX_SHOWN}, got {options.count}")
    if options.image and options.augmented:
        raise SettingsError("--image shows an image as the evaluation sees it: leave out --augmented")
    if len(options.image) > MAX_SHOWN:
        raise SettingsError(f"--image can be given {MAX_SHOWN} times, got {len(options.image)} images")
    if options.to and (is_bucket(options.to) or not options.to.endswith(".png")):
        raise SettingsError(f"--to must be a local file that ends in .png, got {options.to!r}")
    # This is reported before TensorFlow is loaded, and so is a missing dataset or image.
    dataset = load(folder)
    if dataset.table:
        raise DatasetError(
            f"{folder} is a dataset of a table, which has no images to draw: see its columns in {folder / CARD}, "
            "and the rows of the most wrong predictions in the report of a run"
        )
    path = Path(options.to) if options.to else None
    if options.image:
        return _show_images(settings, folder, dataset, options.image, path)
    with _tensorflow_on_the_cpu():
        from pipeline.training.show import show
    return {"picture": str(show(settings, folder, path, augmented=options.augmented, count=options.count))}


def _show_images(
    settings: Settings, folder: Place, dataset: "Dataset", keys: list[str], path: Path | None
) -> dict[str, Any]:
    from pipeline.dataset.keys import find_images

    found = find_images(folder, dataset, list(dict.fromkeys(keys)))
    with _tensorflow_on_the_cpu():
        from pipeline.training.show import show_found
    return {
        "picture": str(show_found(settings, dataset, found, path)),
        "images": [
            {"key": each.key, "split": each.split, "shard": each.shard, "record": each.number} for each in found
        ],
    }


def _format_show(result: dict[str, Any]) -> str:
    places = [f"{each['key']}: record {each['record']} of {each['shard']}" for each in result.get("images", [])]
    return _format_result(result | ({"images": places} if places else {}))


def _shuffle_quality(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.dataset.manifest import load

    settings, folder = _settings(options), _reachable("dataset", options.dataset)
    load(folder)
    with _tensorflow_on_the_cpu():
        from pipeline.input.shuffle_quality import shuffle_quality
    return shuffle_quality(folder, settings)


def _format_shuffle_quality(result: dict[str, Any]) -> str:
    from pipeline.input.shuffle_quality import format_shuffle_quality

    return format_shuffle_quality(result)


@contextmanager
def _tensorflow_on_the_cpu() -> Iterator[None]:
    """Import TensorFlow in this block without GPUs. It would take the memory of a GPU on which a training may run."""
    from pipeline.training.tensorflow_start import hold_back_stderr, leave_gpus_alone

    _log.info("loading TensorFlow")
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # TensorFlow reads this when it is imported.
    with hold_back_stderr():
        yield
        leave_gpus_alone()


def _samples(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.sources.samples import draw_samples
    from pipeline.tables.samples import write_sample_table

    folder = Path(options.folder)
    if folder.exists():
        raise SettingsError(f"{options.folder} exists already: name a new folder")
    if options.count < 1:
        raise SettingsError(f"--count must be at least 1, got {options.count}")
    write = write_sample_table if folder.suffix in (".csv", ".parquet") else draw_samples
    write(folder, options.count, options.seed)
    return {"folder": options.folder}


def _trained(settings: Settings, dataset: Place) -> dict[str, Any]:
    from pipeline.runs.launch import train
    from pipeline.runs.promotion import gate

    result = train(settings, dataset, RUN_ID)
    run = place_of(result["run"])
    gated = gate(run, settings, sys.stderr.fileno())  # This comes before the report, which shows the result.
    return {**result, "promotion": gated["verdict"], "champion": gated["champion"], "report": _report_of(run)}


def _report_of(run: Place) -> str:
    """Write the report of a run and return its path; if the disk is full, return "" with a warning."""
    from pipeline.report import report_run

    try:
        return str(report_run(run))
    except OSError as error:
        # The training is complete and its result is stored, so a full disk must not make the command fail.
        if error.errno not in FULL:
            raise
        _log.warning(
            "the training is complete, but its report cannot be written (%s): free some disk space, then write it "
            "with `%s report %s`",
            *(error, _prog(), run),
        )
        return ""


# --- options ----------------------------------------------------------------------------------------------------------


_DATASET = "dataset", "folder of the dataset version, local or gs://"
_RUN_FOLDER = "run", "folder of the run, local or gs://"


def command_line() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog=_prog(),
        description="Turn raw images or a table into a trained model, with one command or stage by stage.",
        epilog=_settings_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tenfold {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_stages(commands)
    _add_checks(commands)
    _add_champions(commands)
    _add_show(commands)
    _add_predict(commands)
    _add_samples(commands)
    return parser


def _add_stages(commands: Any) -> None:
    _add(commands, "run", _run, "Build a dataset from images or a table, then train on it.")
    _add(commands, "build", _build, "Build and publish a dataset: extract, shard and upload.")
    _add(commands, "extract", _extract, "List the source with its checksums, as a frozen snapshot.")
    _add(commands, "shard", _shard, "Write the shards of a snapshot.", ("snapshot", "the file that `extract` returned"))
    plan = "plan", "the file that `shard` returned for the same settings"
    missing = "Write the missing shards of a plan after `build` or `shard` was stopped. The engine can be another one."
    _add(commands, "write", _write, missing, ("plan", "plan.json of the stopped command, in WORKSPACE/work/NAME/..."))
    _add(commands, "upload", _upload, "Verify and publish the shards of a plan.", plan)
    newest = "Combine the newest dates of a dataset name into one dataset (--set window=7), without copying shards."
    _add(commands, "window", _window, newest)
    to = "Use another version of the dataset for a date, until the source of that date changes and is listed again."
    partition = _add(commands, "partition", _partition, to, ("partition", "a date, such as 2026-01-31, or `latest`"))
    partition.add_argument("version", help="name of the version's folder, without its path")
    ids = "List the labels of a dataset name with their ids. Each is permanent, or reserved by the build that is shown."
    labels = _add(commands, "labels", _labels, ids)
    labels.add_argument(
        "--release",
        action="store_true",
        help="remove the reserved labels, which no published dataset uses. The next build can use their ids again. A "
        "build that reserved these labels must start again with `shard`",
    )
    labels.set_defaults(format=_format_labels)
    _add(commands, "train", _train, "Train on a published dataset (--set dataset=...).")


def _add_checks(commands: Any) -> None:
    inputs = "Train the same model from raw files and from shards in turn, and say what is worth changing on this host."
    comparison = _add(commands, "compare-inputs", _compare_inputs, inputs)
    for name, field in ComparisonOptions.model_fields.items():
        text = f"{field.description} (default: {field.default})"
        comparison.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=text)
    comparison.add_argument("--again", action="store_true", help="measure a complete comparison once more")
    comparison.set_defaults(format=_format_inputs)
    _add(commands, "verify", _verify, "Check every byte and record of a dataset.", _DATASET)
    offsets = "Write each missing or damaged index of a shard again, for readers that read single records."
    _add(commands, "index", _index, offsets, _DATASET)
    order = "Measure how close the training order is to a perfect shuffle, and how shuffle_megabytes would change that."
    quality = _add(commands, "shuffle-quality", _shuffle_quality, order, _DATASET)
    quality.set_defaults(format=_format_shuffle_quality)
    _add(commands, "report", _report, "Write the report of a run again.", _RUN_FOLDER)
    beside = "Compare two runs on one page: which one is faster, and which model is better."
    compare = _add(commands, "report compare", _compare, beside)
    compare.add_argument("run_a", metavar="RUN_A", help=_RUN_FOLDER[1])
    compare.add_argument("run_b", metavar="RUN_B", help="folder of the other run, local or gs://")
    compare.add_argument("--to", metavar="FILE", default="compare.html", help="page to write (default: %(default)s)")
    compare.set_defaults(format=_format_comparison)
    parser = commands.add_parser("comet", help="Recover values that killed trainings could not send to Comet.")
    recover = _add(
        parser.add_subparsers(required=True, metavar="COMMAND"),
        "recover",
        _comet_recover,
        "Pack the values that killed trainings could not send to Comet, and print the command that uploads them.",
        ("folder", "folder of a run, of a training, or a workspace"),
    )
    recover.set_defaults(format=_format_recovered)


def _add_champions(commands: Any) -> None:
    champion = _add(
        commands,
        "champion",
        _champion,
        "Show the champion of a dataset name (its promoted model) and the history of promotions.",
    )
    champion.set_defaults(format=_format_champion)
    by_hand = "Make the model of a run the champion of its dataset name, without a comparison."
    _add(commands, "promote", _promote, by_hand, _RUN_FOLDER)
    back = "Make the previous champion of a dataset name the champion again."
    _add(commands, "rollback", _roll_back, back)


def _add_predict(commands: Any) -> None:
    predict = _add(
        commands, "predict", _predict, "Predict labels of images, or of the rows of a table, with the model of a run."
    )
    predict.add_argument(
        "--model",
        required=True,
        metavar="RUN",
        help="folder of a run, of its export, or of a champion (WORKSPACE/models/NAME); also gs://",
    )
    predict.add_argument(
        "files", nargs="+", metavar="FILE", help="image file; for a model of a table, a CSV or Parquet file"
    )
    predict.set_defaults(format=_format_predictions)


def _add_samples(commands: Any) -> None:
    samples = _add(
        commands,
        "samples",
        _samples,
        "Draw a folder of sample images, or write a sample table.",
        ("folder", "new folder; or a new file of the suffix .csv or .parquet"),
    )
    samples.add_argument("--count", type=int, default=600, help="number of images, or of rows (default: %(default)s)")
    samples.add_argument("--seed", type=int, default=0, help="seed of the drawing (default: %(default)s)")


def _add_show(commands: Any) -> None:
    show = _add(
        commands,
        "show",
        _show,
        "Draw images of a dataset with their labels, as the model sees them, into a PNG file.",
        _DATASET,
    )
    show.add_argument(
        "--augmented",
        action="store_true",
        help="show training images as the training sees them: cropped, flipped and colored. By default, show "
        "validation images as the evaluation sees them",
    )
    show.add_argument("--count", type=int, default=16, help="number of images (default: %(default)s)")
    show.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="KEY",
        help="show the image with this key, its path below the source, and print where its record is; can be repeated",
    )
    show.set_defaults(format=_format_show)
    show.add_argument(
        "--to", metavar="FILE", help="PNG file to write (default: NAME-VERSION.png, -augmented.png or -images.png)"
    )


def _add(
    commands: Any,
    name: str,
    command: Callable[[argparse.Namespace], dict[str, Any]],
    text: str,
    argument: tuple[str, str] | None = None,
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    full_name = parser.prog.removeprefix(f"{_prog()} ")
    parser.epilog = f"example:\n  {parser.prog} {EXAMPLES[full_name]}"
    if argument:
        parser.add_argument(argument[0], help=argument[1])
    parser.add_argument("--config", type=Path, metavar="FILE", help="read settings from a TOML or JSON file")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="set one setting, instead of the value in the file; can be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.set_defaults(command=command, format=_format_result, name=full_name)
    return parser


def _settings_help() -> str:
    """Return all settings by their room in the form, with choices and defaults."""
    schemas = Settings.model_json_schema()["properties"]
    rooms: dict[str, list[str]] = {}
    for name, schema in schemas.items():
        default = Settings.model_fields[name].get_default(call_default_factory=True)
        description = " ".join(schema["description"].split())
        if "enum" in schema:
            description += f" One of {', '.join(schema['enum'])}."
        if default not in (None, ""):
            description += f" [{str(default).lower() if isinstance(default, bool) else default}]"
        text = textwrap.fill(f"{name:21}  {description}", 110, initial_indent="  ", subsequent_indent=" " * 25)
        rooms.setdefault(schema.get("section", "Settings (--set FIELD=VALUE)"), []).append(text)
    return "\n\n".join(f"{room}:\n" + "\n".join(lines) for room, lines in rooms.items())


def _settings(options: argparse.Namespace) -> Settings:
    return settings_of_command_line(options.config, options.set).dated()


def _of_published(options: argparse.Namespace) -> Settings:
    """Return the settings of a command that works on one published dataset name. A bucket must be reachable."""
    from pipeline.workspace import with_dataset_name

    settings = _settings(options)
    require_buckets({"publish_uri": settings.datasets_folder})
    return with_dataset_name(settings)


def _file(what: str, uri: str) -> Place:
    place = _reachable(what, uri)
    if not place.is_file():
        raise SettingsError(f"{what} {uri} is not a file: give the path that the previous stage returned")
    return place


def _format_result(result: dict[str, Any]) -> str:
    return "\n".join(f"{name.replace('_', ' '):>16}  {_format_value(value)}" for name, value in result.items())


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in value.items())
    if isinstance(value, list):
        return f"\n{'':18}".join(value) or "none"
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _terminated(*_: object) -> None:
    # An exception lets the running code wait for its child processes. Otherwise, they would still write checkpoints.
    raise _Terminated


def console() -> None:
    """Run the command `tenfold` with the arguments of the process."""
    signal.signal(signal.SIGTERM, _terminated)
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    console()
