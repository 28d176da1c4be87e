"""`tenfold clean` on real workspaces: what it lists, what it removes, and what an interrupted removal leaves."""

import fcntl
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import is_committed
from pipeline.dataset.partitions import listed_dates
from pipeline.dataset.verify import verify
from pipeline.errors import DatasetError, PromotionError
from pipeline.runs.champion import POINTER_FORMAT, Entry, move, now, pointer_of, user
from pipeline.runs.inventory import contents_of
from pipeline.runs.removal import READ, remove_all
from pipeline.runs.unused import ASKED, DAY_S, NEWEST, UNREADABLE, Stored, reasons_to_keep
from pipeline.stages.build import build
from pipeline.storage import place_of, sync_folder, write_json
from pipeline.storage.local import sync_tree
from standins.fake_gcs import FakeGcs
from tests.conftest import MakeImages, jpeg
from tests.crashes import recorded, restore, sampled, states

DAYS = 40
RUN_JSON = {"format": 5, "dataset_version": "none", "settings": {"dataset_name": "pets"}}
DAMAGED_POINTER = {"format": POINTER_FORMAT, "history": "damaged"}


@pytest.fixture
def settings(make_images: MakeImages, tmp_path: Path) -> Settings:
    source = make_images({"cats": 5, "dogs": 4})
    values = {"source_uri": str(source), "workspace": str(tmp_path / "workspace"), "num_shards": 1}
    return settings_from({**values, "local_folder": str(tmp_path / "local"), "dataset_name": "pets"})


def build_two(settings: Settings) -> tuple[str, str]:
    """Build two versions of the source, and return their folders: the old one and the new one."""
    old: str = build(settings)["dataset"]
    (Path(settings.source_uri) / "cats" / "more.jpg").write_bytes(jpeg(77))
    return old, build(settings)["dataset"]


def build_twice(settings: Settings) -> tuple[Path, Path]:
    """Do the same in a local workspace."""
    old, new = build_two(settings)
    return Path(old), Path(new)


def age(folder: Path) -> None:
    """Let all files below a folder be some days older."""
    for path in folder.rglob("*"):
        moment = path.lstat().st_mtime - DAYS * DAY_S
        os.utime(path, (moment, moment), follow_symlinks=False)


Clean = Callable[..., dict[str, Any]]


@pytest.fixture
def clean(settings: Settings, capsys: pytest.CaptureFixture[str]) -> Clean:
    """Runs the command in the workspace of the settings, and returns its JSON."""

    def run(*arguments: str) -> dict[str, Any]:
        options = [f"--set={name}={getattr(settings, name)}" for name in ("workspace", "local_folder")]
        assert main(["clean", *arguments, "--json", *options]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return found

    return run


def listed(result: dict[str, Any]) -> set[tuple[str, str]]:
    return {(each["kind"], Path(each["folder"]).name) for each in result["unused"]}


def training(settings: Settings, name: str, *files: str, version: str = "none") -> Path:
    """Write files of a training that began."""
    folder = Path(settings.workspace) / "runs" / "r" / name
    for file in ("run.json", *files):
        write_json(folder / file, {**RUN_JSON, "dataset_version": version})
    return folder


def remove(settings: Settings, name: str) -> None:
    """Remove all folders with a name in their paths, whatever uses them."""
    stored = contents_of(settings).stored
    remove_all(
        [each for each in stored if name in str(each.folder)], lambda: dict.fromkeys(contents_of(settings).stored, "")
    )


def test_an_old_version_and_its_plan_are_listed_and_then_removed(settings: Settings, clean: Clean) -> None:
    old, new = build_twice(settings)
    workspace = Path(settings.workspace)
    assert listed(clean("--dry-run")) == set()
    age(workspace)
    found = clean("--older-than", "30d", "--dry-run")
    [plan] = (workspace / "work" / "pets").glob(f"{old.name}-*")
    assert listed(found) == {("version", old.name), ("plan", plan.name)}
    sizes = {each["folder"]: each["bytes"] for each in found["unused"]}
    assert sizes[str(old)] == sum(path.stat().st_size for path in old.rglob("*") if path.is_file())
    assert found["bytes"] == sum(sizes.values())
    assert not found["removed"]
    assert is_committed(old)

    removed = clean("--yes")
    assert (removed["removed"], removed["unused"]) == (True, found["unused"])
    assert not old.exists()
    assert [path.name for path in plan.iterdir()] == ["listed"]  # The state of a date follows from it.
    assert verify(new)["ok"]
    assert listed(clean("--yes")) == set()
    assert build(settings)["already_complete"]


def test_a_training_that_can_be_continued_and_its_version_stay(settings: Settings, clean: Clean) -> None:
    old, _ = build_twice(settings)
    started = training(settings, "a" * 12, "checkpoints/1.npz", version=old.name)
    training(settings, "b" * 12, "result.json", version=old.name)
    training(settings, "c" * 12)
    age(Path(settings.workspace))
    newest = training(settings, "d" * 12, "result.json")
    age(newest)
    found = clean("--yes")
    assert {each for each in listed(found) if each[0] != "plan"} == {("run", "b" * 12), ("run", "c" * 12)}
    assert {path.name for path in started.parent.iterdir()} == {started.name, newest.name}
    assert is_committed(old)


def test_the_champion_and_its_version_and_the_versions_of_a_young_window_stay(settings: Settings, clean: Clean) -> None:
    old, new = build_twice(settings)
    run = training(settings, "a" * 12, "result.json", version=old.name)
    training(settings, "c" * 12, "result.json", version=new.name)
    age(Path(settings.workspace))
    assert {("version", old.name), ("run", run.name)} <= listed(clean("--dry-run"))
    window = old.parent / "windows" / ("b" * 16)
    write_json(window / "dataset.json", {"window": {"2026-01-01": old.name, "2026-01-02": new.name}})
    assert listed(clean("--dry-run")) & {("version", old.name), ("window", window.name)} == set()
    age(window)
    assert {("version", old.name), ("window", window.name)} <= listed(clean("--dry-run"))
    entry = Entry("promote", f"/moved/runs/r/{run.name}", "/moved/export", old.name, {}, 0.5, "better", now(), user())
    move(pointer_of(Path(settings.workspace), "pets"), entry)
    assert {kind for kind, _ in listed(clean("--yes"))} == {"plan", "window"}
    assert is_committed(old)
    assert run.exists()


def test_the_rest_of_an_interrupted_removal_is_removed_later(settings: Settings, clean: Clean) -> None:
    old, new = build_twice(settings)
    run = training(settings, "a" * 12, "record/1.npz")
    (old / "dataset.json").unlink()
    age(Path(settings.workspace))
    clean("--yes")
    assert not old.exists()
    assert not run.parent.exists()
    assert verify(new)["ok"]


@pytest.mark.core
def test_a_version_is_never_half_there_whenever_the_removal_is_interrupted(settings: Settings) -> None:
    workspace = Path(settings.workspace)
    with recorded(workspace) as recording:
        old, new = build_twice(settings)
        built = len(recording.ops)
        remove(settings, old.name)
    # In some states, the power loss took the folder of all datasets, which this removal did not change.
    commit = str((new / "dataset.json").relative_to(workspace))
    replayed = sampled([state for state in states(recording) if state.ops > built and commit in state.files], 20)
    assert len(replayed) >= 20
    for state in replayed:
        restore(state, workspace)
        assert not is_committed(old) or verify(old)["ok"], state.ops
        remove(settings, old.name)
        assert not old.exists()
        assert verify(new)["ok"]


@pytest.mark.core
def test_a_training_is_never_half_there_whenever_the_removal_is_interrupted(settings: Settings) -> None:
    workspace = Path(settings.workspace)
    files = {f"checkpoints/{n}.npz" for n in range(3)} | {"early_end.json", "export/about.json", "record/1.npz"}
    with recorded(workspace) as recording:
        run = training(settings, "a" * 12, *files, "result.json")
        sync_tree(run)
        for folder in (run.parent, run.parent.parent, workspace):
            sync_folder(folder)
        written = len(recording.ops)
        remove(settings, run.name)
    for state in (state for state in states(recording) if state.ops > written):
        restore(state, workspace)
        there = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
        # Complete without some checkpoints, or stopped before the first one.
        assert {*files, "result.json"} - there <= {f"checkpoints/{n}.npz" for n in range(3)} or not {
            name for name in there if name.startswith("checkpoints/") or name == "result.json"
        }, state.ops
        remove(settings, run.name)
        assert not run.parent.exists()


def test_the_command_does_not_remove_without_an_answer(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _ = build_twice(settings)
    age(Path(settings.workspace))
    options = [f"--set={name}={getattr(settings, name)}" for name in ("workspace", "local_folder")]
    assert main(["clean", *options]) == 1
    assert "there is no terminal to ask" in capsys.readouterr().err
    asked: list[str] = []
    monkeypatch.setattr("pipeline.gate.decide.ask_terminal", lambda: lambda text: bool(asked.append(text)))
    assert main(["clean", *options]) == 0
    assert str(old) in asked[0]
    assert "Nothing was removed" in capsys.readouterr().out
    assert is_committed(old)


def test_only_the_given_dataset_name_is_cleaned(settings: Settings, clean: Clean) -> None:
    old, _ = build_twice(settings)
    age(Path(settings.workspace))
    assert listed(clean("--dry-run", "--set=dataset_name=others")) == set()
    assert ("version", old.name) in listed(clean("--dry-run", "--set=dataset_name=pets"))


@pytest.mark.parametrize("text", ["0d", "30", "1h", "-3d"])
def test_an_age_must_be_a_number_of_days(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean", f"--older-than={text}"]) == 1
    assert f"--older-than must be a number of days from 1d, such as 30d, got '{text}'" in capsys.readouterr().err


def test_a_workspace_that_is_missing_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean", f"--set=workspace={tmp_path / 'mistyped'}"]) == 1
    assert f"workspace {tmp_path / 'mistyped'} is not a folder" in capsys.readouterr().err


def test_nothing_is_removed_if_the_champion_cannot_be_read(settings: Settings) -> None:
    build_twice(settings)
    write_json(Path(settings.workspace) / "models" / "pets" / "champion.json", DAMAGED_POINTER)
    with pytest.raises(PromotionError, match="cannot be read"):
        contents_of(settings)
    assert contents_of(settings.model_copy(update={"dataset_name": "others"})).promoted == {"pets": []}


def moved_behind_a_link(folder: Path, elsewhere: Path) -> None:
    """Move a folder to another place, and leave a link to it."""
    elsewhere.parent.mkdir(exist_ok=True)
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)


@pytest.mark.parametrize("linked", ["runs/r", "runs/r/aaaaaaaaaaaa"])
def test_a_training_behind_a_link_is_not_removed_and_keeps_its_version(
    linked: str, settings: Settings, clean: Clean, tmp_path: Path
) -> None:
    old, _ = build_twice(settings)
    training(settings, "a" * 12, "result.json", version=old.name)
    age(Path(settings.workspace))
    moved_behind_a_link(Path(settings.workspace) / linked, tmp_path / "elsewhere" / "r")
    assert {kind for kind, _ in listed(clean("--yes"))} == {"plan"}
    assert is_committed(old)


@pytest.mark.parametrize("linked", ["models/pets", "models", "datasets/pets/partitions"])
def test_what_is_used_behind_a_link_stays(linked: str, settings: Settings, clean: Clean, tmp_path: Path) -> None:
    old, new = build_twice(settings)
    partition = old.parent / "partitions" / "latest.json"
    write_json(partition, {**json.loads(partition.read_bytes()), "version": old.name})
    entry = Entry("promote", "/moved/runs/r/a", "/moved/export", old.name, {}, 0.5, "better", now(), user())
    if linked.startswith("models"):
        write_json(partition, {**json.loads(partition.read_bytes()), "version": new.name})
        move(pointer_of(Path(settings.workspace), "pets"), entry)
    age(Path(settings.workspace))
    moved_behind_a_link(Path(settings.workspace) / linked, tmp_path / "elsewhere" / "r")
    clean("--yes")
    assert is_committed(old)
    (tmp_path / "elsewhere" / "r").rename(tmp_path / "unplugged")
    with pytest.raises(DatasetError, match="is a link to a missing place"):
        contents_of(settings)


def test_folders_of_other_programs_stay(settings: Settings, clean: Clean, tmp_path: Path) -> None:
    build_twice(settings)
    workspace = Path(settings.workspace)
    files = [
        workspace / "datasets" / "photos" / ("a" * 16) / "my.jpg",
        workspace / "datasets" / "pets" / ("a" * 16) / "my.jpg",
        workspace / "runs" / "exp" / ("b" * 12) / "events.out",
        workspace / "raw" / "holiday" / "my.jpg",
        tmp_path / "local" / "decoded" / "mine" / "my.jpg",
    ]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_bytes(b"mine")
    age(tmp_path)
    assert {kind for kind, _ in listed(clean("--yes"))} == {"version", "plan"}
    assert all(file.exists() for file in files)


@pytest.mark.parametrize("content", ["", "[1]", "{"])
def test_a_training_that_cannot_be_read_stays(content: str, settings: Settings, clean: Clean) -> None:
    run = training(settings, "a" * 12, "record/1.npz")
    (run / "run.json").write_text(content)
    age(Path(settings.workspace))
    found = clean("--yes")
    assert [(each["kind"], each["why"]) for each in found["kept"]] == [("run", UNREADABLE)]
    (run / "run.json").write_text('{"settings": ["x"]}')
    age(Path(settings.workspace))
    assert listed(clean("--yes")) == {("run", run.name)}


def test_nothing_is_removed_if_a_disk_fails(settings: Settings) -> None:
    run = training(settings, "a" * 12, "result.json")
    (run / "run.json").unlink()
    (run / "run.json").symlink_to("run.json")
    with pytest.raises(OSError, match="Too many levels"):
        contents_of(settings)


def test_a_training_stays_that_waits_for_a_decision(settings: Settings, clean: Clean) -> None:
    run = training(settings, "a" * 12, "result.json")
    write_json(run / "promotion.json", {"decision": "asked", "why": "a person must decide: equal"})
    training(settings, "b" * 12, "result.json")
    age(Path(settings.workspace))
    os.utime(run / "promotion.json", (0, 0))
    assert {each["why"] for each in clean("--yes")["kept"]} == {ASKED, NEWEST}


def test_a_training_is_known_that_another_one_continues(settings: Settings) -> None:
    earlier, later = training(settings, "a" * 12, "result.json"), training(settings, "b" * 12)
    write_json(later / "run.json", {**RUN_JSON, "settings": {"continues": f"{earlier}/"}})
    stored = {each.short_name: each.continues for each in contents_of(settings).stored}
    assert stored == {f"r/{earlier.name}": "", f"r/{later.name}": f"r/{earlier.name}"}


def test_what_was_refused_is_known_after_the_plan_is_removed(settings: Settings, clean: Clean) -> None:
    old, _ = build_two(settings)
    [plan] = (Path(settings.workspace) / "work" / "pets").glob(f"{Path(old).name}-*")
    write_json(plan / "listed" / "2026-01-01.json", {"listed_ns": 5, "dataset": old})
    write_json(plan / "listed" / "2026-01-01.refused.json", {"listed_ns": 5, "why": "too few"})
    before = listed_dates(plan)
    assert before["2026-01-01"].refused == "too few"
    age(Path(settings.workspace))
    assert ("plan", plan.name) in listed(clean("--yes"))
    assert listed_dates(plan) == before
    assert ("plan", plan.name) not in listed(clean("--yes"))


def test_what_is_used_again_during_the_removal_stays(settings: Settings) -> None:
    runs = [training(settings, f"{number:012x}", "result.json") for number in range(40)]
    age(Path(settings.workspace))
    looks = 0

    def look() -> dict[Stored, str]:
        nonlocal looks
        looks += 1
        if looks == 3:
            write_json(runs[30] / "result.json", {})
        return reasons_to_keep(contents_of(settings), time.time(), DAY_S)

    unused = [each for each, why in look().items() if not why]
    removal = remove_all(sorted(unused, key=str), look)
    assert looks == 4
    assert {each.folder: why for each, why in removal.stayed.items()} == {runs[30]: NEWEST}
    assert (runs[30] / "result.json").exists()
    assert len(removal.removed) == len(unused) - 1


def test_copies_of_shards_are_removed_unless_they_are_read(clean: Clean, tmp_path: Path) -> None:
    folder = tmp_path / "local" / "shards" / ("a" * 16)
    folder.mkdir(parents=True)
    (tmp_path / "workspace").mkdir()
    for name in ("1-train", "2-train"):
        (folder / name).write_bytes(b"shard")
    age(folder)
    with (folder / ".1-train.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        os.utime(folder / ".1-train.lock", (0, 0))
        found = clean("--yes")
        assert (found["unused"], [each["why"] for each in found["kept"]]) == ([], [READ])
        assert sorted(path.name for path in folder.iterdir()) == [".1-train.lock", "1-train"]
    age(folder)
    assert listed(clean("--yes")) == {("copies of shards", "a" * 16)}
    assert not folder.exists()


def test_decoded_images_are_removed_unless_they_are_read(clean: Clean, tmp_path: Path) -> None:
    folder = tmp_path / "local" / "decoded" / ("a" * 16)
    folder.mkdir(parents=True)
    (tmp_path / "workspace").mkdir()
    (folder / "images-train").write_bytes(b"images")
    (folder / ".lock").touch()
    age(folder)
    with (folder / ".lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert [each["why"] for each in clean("--yes")["kept"]] == [READ]
    age(folder)
    locked_once = (folder.parent / ".lock").stat().st_ino
    assert listed(clean("--yes")) == {("decoded images", "a" * 16)}
    assert [path.name for path in folder.parent.iterdir()] == [".lock"]
    assert (folder.parent / ".lock").stat().st_ino == locked_once


def test_a_bucket_is_cleaned_also_after_an_interrupted_removal(settings: Settings, gcs: FakeGcs) -> None:
    remote = settings.model_copy(update={"workspace": "gs://bucket/w"})
    old, new = map(place_of, build_two(remote))

    def unused() -> Sequence[Stored]:
        reasons = reasons_to_keep(contents_of(remote), time.time() + DAYS * DAY_S, DAY_S)
        return [each for each, why in reasons.items() if not why]

    assert {each.folder for each in unused() if each.kind == "version"} == {old}
    (old / "dataset.json").unlink()  # An earlier removal was killed.
    run = place_of("gs://bucket/w/runs/r") / ("a" * 12)
    for file in ("checkpoints/1.npz", "result.json", "run.json"):
        write_json(run / file, RUN_JSON)
    write_json(place_of("gs://bucket/w/runs/s") / ("b" * 12) / "run.json", RUN_JSON)
    write_json(place_of("gs://bucket/w/runs/s") / ("b" * 12) / "result.json", {})
    remove_all(unused(), lambda: dict.fromkeys(contents_of(remote).stored, ""))
    assert not run.is_dir()
    assert not old.is_dir()
    assert is_committed(new)
    assert verify(new)["ok"]
    assert [each.kind for each in unused()] == []
