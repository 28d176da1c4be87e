"""A file of another version of Tenfold is refused with one sentence: which file, and what to do."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest

from pipeline.config.settings import settings_from
from pipeline.config.workspace import name_folder
from pipeline.dataset.labels import proposed_labels
from pipeline.dataset.manifest import last_version, load
from pipeline.dataset.partitions import newest_partitions
from pipeline.errors import FormatError
from pipeline.plan.plan import load_plan
from pipeline.plan.range_plan import load_range
from pipeline.runs.champion import PROMOTE, Entry, load_pointer, move
from pipeline.runs.files import load_files
from pipeline.runs.run import EXPORT_FORMAT, Run, load_about, load_run, save_run
from pipeline.snapshot.listing import Listing, load_listing, save_listing
from pipeline.snapshot.snapshot import load_snapshot
from pipeline.stages.extract import divide, load_range_file
from pipeline.training.state.checkpoint import Checkpoints, Position
from pipeline.tuning.measurement import Comparison, load_comparison, save_comparison
from pipeline.tuning.options import ComparisonOptions
from tests.published import IN_FOLDERS, make_folders, planned, publish
from tests.snapshots import take_snapshot


class Written(NamedTuple):
    """A file with a number, as this version writes it."""

    path: Path
    read: Callable[[], Any]
    mend: str
    """What the sentence says about a file of an older version."""
    number: str = "format"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Written]:
    folder = tmp_path_factory.mktemp("files")
    source, workspace = make_folders(folder / "source", IN_FOLDERS), folder / "w"
    settings = settings_from({"source_uri": str(source), "workspace": str(workspace), "dataset_name": "images"})
    dataset, names = Path(str(publish(source, workspace))), name_folder(settings)
    snapshot = take_snapshot(settings)
    plan_path, [range_path, *_] = planned(settings.model_copy(update={"split_seed": 1}))
    save_listing(Listing("folder"), listing := folder / "a.listing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENFOLD_RANGE_IMAGES", "2")
        source_range = Path(divide(settings)[0])
    run = Run(folder / "run", "run", "", "1", settings, {}, {}, steps_per_epoch=1)
    save_run(run)
    export = run.export_folder
    export.mkdir()
    (export / "about.json").write_text(json.dumps({"format": EXPORT_FORMAT, "labels": []}))
    pointer = folder / "champion.json"
    promoted = {"run": str(run.folder), "export": str(export), "dataset_version": "1", "metrics": {}, "score": None}
    move(load_pointer(pointer), Entry(action=PROMOTE, **promoted, why="by hand", at="", by=""))
    save_comparison(folder / "compared", Comparison({}, ComparisonOptions(), {}, "", {}, 0.0))
    plan_again, extract_again = "run the `shard` stage again", "run `extract` again"
    train_again, compare_again = "train again", f"remove {folder / 'compared'} and compare the inputs again"
    name_again, date_again = f"move the folder {names} away", "build its partition again"
    compared = folder / "compared" / "comparison.json"
    return {
        "dataset.json": Written(
            dataset / "dataset.json", lambda: load(dataset), "build the dataset again", "schema_version"
        ),
        "label map": Written(max((names / "labels").iterdir()), lambda: proposed_labels(names, ["a"]), name_again),
        "partition": Written(names / "partitions" / "latest.json", lambda: newest_partitions(names, 1), date_again),
        "snapshot": Written(Path(str(snapshot)), lambda: load_snapshot(snapshot), extract_again),
        "listing": Written(listing, lambda: load_listing(listing), extract_again),
        "range of a source": Written(source_range, lambda: load_range_file(str(source_range)), extract_again),
        "plan": Written(Path(str(plan_path)), lambda: load_plan(plan_path), plan_again),
        "plan file": Written(Path(str(range_path)), lambda: load_range(range_path), plan_again),
        "writer of a plan": Written(Path(str(range_path)), lambda: load_range(range_path), plan_again, "writer"),
        "run.json": Written(run.folder / "run.json", lambda: load_run(run.folder), train_again),
        "run.json of a page": Written(run.folder / "run.json", lambda: load_files(run.folder), train_again),
        "about.json": Written(export / "about.json", lambda: load_about(export), "train the model again"),
        "champion.json": Written(pointer, lambda: load_pointer(pointer), "move it away and promote a run by hand"),
        "comparison": Written(compared, lambda: load_comparison(folder / "compared"), compare_again),
    }


FORMATS = [
    *("dataset.json", "label map", "partition", "snapshot", "listing", "range of a source"),
    *("plan", "plan file", "writer of a plan"),
    *("run.json", "run.json of a page", "about.json", "champion.json", "comparison"),
]


@contextmanager
def numbered(written: Written, number: int | None) -> Iterator[None]:
    """Change the number in a file for the block; None removes it."""
    content = written.path.read_bytes()
    text = b"" if number is None else f'"{written.number}": {number}, '.encode()
    changed, found = re.subn(rf'"{written.number}": \d+,\s*'.encode(), text, content, count=1)
    assert found
    written.path.write_bytes(changed)
    try:
        yield
    finally:
        written.path.write_bytes(content)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("number", "age"), [(0, "older"), (99, "newer"), (None, "older")])
def test_another_format_is_refused_with_what_to_do(name: str, number: int | None, age: str, files: dict[str, Written]):
    written = files[name]
    written.read()
    with numbered(written, number), pytest.raises(FormatError) as error:
        written.read()
    first, mend = str(error.value).split(" of Tenfold: ")
    assert first.endswith(f"{written.path} was written by {'an' if age == 'older' else 'a'} {age} version")
    assert mend.startswith(written.mend if age == "older" else f"install that version, or {written.mend}")


def test_the_last_version_is_one_that_can_be_read(files: dict[str, Written]):
    versions = files["dataset.json"].path.parent.parent
    assert last_version(versions, but="") is not None
    with numbered(files["dataset.json"], 3):
        assert last_version(versions, but="") is None


def test_a_checkpoint_of_an_older_version_is_refused_and_not_deleted(tmp_path: Path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with Checkpoints(tmp_path, model, keras.optimizers.SGD()) as checkpoints:
        checkpoints.save(Position(step=1))
    [path] = tmp_path.iterdir()
    with np.load(path) as arrays:
        about, *values = (arrays[name] for name in arrays.files)
    np.savez(path, np.array(json.dumps({**json.loads(str(about)), "format": 1})), *values)
    with pytest.raises(FormatError, match=rf"was written by an older version of Tenfold: remove {tmp_path} to train"):
        checkpoints.restore()
    assert list(tmp_path.iterdir()) == [path]
