"""The state of all dates of a dataset name, from the files of a workspace, and the command that shows it."""

import json
import shlex
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from pipeline.__main__ import main
from pipeline.commands.dates import MARKS
from pipeline.config.settings import Settings, settings_from
from pipeline.config.workspace import name_folder
from pipeline.dataset.manifest import checksum
from pipeline.dataset.partitions import move_partition, withdraw_partition
from pipeline.errors import GateError, SettingsError
from pipeline.runs.champion import PROMOTE, Entry, move, pointer_of
from pipeline.runs.dates import STATES, DateState, LastRun, dates_of
from pipeline.stages.build import build
from pipeline.storage import Place, place_of
from scripts.airflow.request import read_backfill
from standins.fake_gcs import FakeGcs
from tests.conftest import jpeg
from tests.published import newest_dataset, planned, publish

GATE = {"max_rejected_fraction": 0.0, "dataset_name": "birds"}
"""A broken image refuses a date."""


def make_date(source: Path, date: str, size: tuple[int, int] = (24, 16), broken: int = 0) -> None:
    """Write the images of a date: two classes with eight images each, of which some are broken."""
    for label in ("ducks", "owls"):
        for number in range(8):
            path = source / date / label / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            seed = hash_of(f"{date}{label}{number}")
            path.write_bytes(b"no image" if number < broken else jpeg(seed, size))


def hash_of(text: str) -> int:
    """Return a number for a text that is the same in all processes."""
    return int.from_bytes(text.encode()[-7:])


def build_date(source: Path, workspace: Place | str, date: str, refused: bool = False) -> None:
    """Build a date, which the data gate may refuse."""
    with pytest.raises(GateError) if refused else nullcontext():
        publish(source / "{date}", str(workspace), data_date=date, **GATE)


def settings_of(workspace: Place) -> Settings:
    return settings_from({"workspace": str(workspace), "dataset_name": "birds"})


def promote(workspace: Place, version: str) -> None:
    """Make a model the champion that was trained on a version or window."""
    run = str(workspace / "runs" / "r" / "key")
    move(pointer_of(workspace, "birds"), Entry(PROMOTE, run, f"{run}/export", version, {}, 0.5, "", "2026-02-01", "me"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of 1 to 8 January. On the 6th, some are broken. On the 8th, they have another size. The 4th is absent."""
    folder = tmp_path_factory.mktemp("birds")
    for day in (1, 2, 3, 5, 6, 7, 8):
        make_date(folder, f"2026-01-{day:02d}", (200, 300) if day == 8 else (24, 16), broken=3 * (day == 6))
    return folder


@pytest.fixture(scope="module")
def workspace(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with these dates, and a champion that was trained on the first two. Tests must not change it."""
    place = tmp_path_factory.mktemp("w")
    for day in (1, 2, 3, 5, 6, 7, 8):
        build_date(source, place, f"2026-01-{day:02d}", refused=day == 6)
        if day == 2:
            window = newest_dataset(settings_of(place).model_copy(update={"window": 2}))
            promote(place, window.name)
    return place


def test_each_date_has_the_state_that_the_workspace_knows(workspace: Path):
    dates = dates_of(settings_of(workspace))
    assert {each.date[8:]: each.state for each in dates.dates} == {
        "01": "seen", "02": "seen", "03": "published", "05": "published", "06": "failed", "07": "published",
        "08": "drift",
    }  # fmt: skip
    assert [(gap.first, gap.last, gap.dates) for gap in dates.gaps] == [("2026-01-04", "2026-01-04", 1)]
    assert dates.counts == {"failed": 1, "missing": 1, "drift": 1, "published": 3, "seen": 2}
    assert list(dates.days.values()) == [
        "seen", "seen", "published", "missing", "published", "failed", "published", "drift",
    ]  # fmt: skip
    assert (dates.unit, dates.step, dates.champion) == ("images", "day", str(workspace / "runs" / "r" / "key"))
    first, *_, drifted = dates.dates
    assert (first.examples, first.rejected, first.drift, first.champion) == (16, 0, None, "seen")
    assert (drifted.examples, drifted.champion) == (16, "not seen")
    assert drifted.drift
    assert drifted.drift > 0.25
    assert drifted.words.startswith(
        f"the drift of sizes is {drifted.drift:.2f}, above max_drift=0.25, compared with version "
    )
    assert all(each.last_run[:3] == "202" for each in dates.dates)


def test_a_refused_date_says_why(workspace: Path):
    [failed] = [each for each in dates_of(settings_of(workspace)).dates if each.state == "failed"]
    assert (failed.date, failed.version, failed.examples) == ("2026-01-06", "", None)
    assert failed.words.startswith("6 of 16 (37.5%) images were rejected, more than max_rejected_fraction=0")


def test_the_command_of_a_backfill_has_the_source(workspace: Path, source: Path):
    params = json.dumps({"dataset_name": "birds", "workspace": str(workspace)})
    rest = f"SOURCE='{source}/{{date}}' PARAMS='{params}'"
    assert [each.command for each in dates_of(settings_of(workspace)).mends] == [
        f"make backfill FROM=2026-01-04 TO=2026-01-04 REPROCESS=all {rest}",
        f"make backfill FROM=2026-01-06 TO=2026-01-06 REPROCESS=all {rest}",
    ]


@pytest.mark.parametrize(
    ("now", "zone", "commands"),
    [
        ("2026-01-12T09:00Z", "UTC", ["make backfill FROM=2026-01-09 TO=2026-01-11 REPROCESS=all"]),
        ("2026-01-09T23:30Z", "UTC", []),
        ("2026-01-09T23:30Z", "Europe/Berlin", ["make backfill FROM=2026-01-09 TO=2026-01-09 REPROCESS=all"]),
    ],
)
def test_dates_that_are_over_and_left_no_file_have_a_command(
    workspace: Path, now: str, zone: str, commands: list[str], monkeypatch: pytest.MonkeyPatch
):
    """A run that fails before it lists its source leaves none."""
    monkeypatch.setenv("TENFOLD_TIMEZONE", zone)
    dates = dates_of(settings_of(workspace), now=datetime.fromisoformat(now))
    assert [each.command.partition(" SOURCE=")[0] for each in dates.later] == commands
    assert len(dates.mends) == 2


def test_the_command_of_a_backfill_has_the_settings_of_the_dates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENFOLD_WORKSPACE", str(tmp_path / "w"))
    usual = {"source_uri": str(tmp_path / "{date}.csv"), "label_column": "churn", "example_kind": "table"}
    for day in ("2026-01-01", "2026-01-02", "2026-01-04"):
        rows = "".join(f"{number},{day}-{number},{number % 2}\n" for number in range(40))
        (tmp_path / f"{day}.csv").write_text(f"tariff,customer,churn\n{rows}")
        own = {"validation_fraction": 0.5, "key_column": "customer", "dataset_name": "birds", "data_date": day}
        build(settings_from({**usual, **own}).dated())
    [mend] = dates_of(settings_of(tmp_path / "w")).mends
    words = dict(word.split("=", 1) for word in shlex.split(mend.command) if "=" in word)
    assert (words["TABLE"], words["LABEL"]) == (usual["source_uri"], "churn")
    params = {"dataset_name": "birds", "key_column": "customer", "validation_fraction": 0.5}
    assert json.loads(words["PARAMS"]) == params
    monkeypatch.setenv("TENFOLD_WORKSPACE", str(tmp_path / "elsewhere"))
    [mend] = dates_of(settings_of(tmp_path / "w")).mends
    assert f'"workspace": "{tmp_path / "w"}"' in mend.command


def test_dates_in_a_bucket_have_the_same_states(gcs: FakeGcs, source: Path):
    workspace = place_of("gs://bucket/w")
    for day in (5, 6, 8):
        build_date(source, workspace, f"2026-01-{day:02d}", refused=day == 6)
    requests = gcs.requests.total()
    dates = dates_of(settings_of(workspace))
    assert [each.state for each in dates.dates] == ["published", "failed", "drift"]
    assert gcs.requests.total() - requests < 40


@pytest.fixture
def copied(workspace: Path, tmp_path: Path) -> Path:
    """A copy of the workspace, which a test may change."""
    return Path(shutil.copytree(workspace, tmp_path / "w"))


def state_on(workspace: Path, day: int) -> DateState:
    [found] = [each for each in dates_of(settings_of(workspace)).dates if each.date == f"2026-01-{day:02d}"]
    return found


def test_a_refused_run_of_a_published_date_is_shown_until_a_run_succeeds(copied: Path, source: Path, tmp_path: Path):
    changed = Path(shutil.copytree(source, tmp_path / "source"))
    version = state_on(copied, 3).version
    make_date(changed, "2026-01-03", broken=1)
    build_date(changed, copied, "2026-01-03", refused=True)
    outdated = state_on(copied, 3)
    assert (outdated.state, outdated.version) == ("outdated", version)
    assert "2 of 16 (12.5%) images were rejected" in outdated.words
    make_date(changed, "2026-01-03")
    build_date(changed, copied, "2026-01-03")  # The same images as before, so the same version.
    assert (state_on(copied, 3).state, state_on(copied, 3).version) == ("published", version)


def test_a_run_that_was_stopped_is_shown_until_a_person_moves_the_date(copied: Path, source: Path, tmp_path: Path):
    changed = Path(shutil.copytree(source, tmp_path / "source"))
    (changed / "2026-01-07" / "owls" / "0.jpg").unlink()
    settings = {"workspace": str(copied), "source_uri": str(changed / "{date}"), "data_date": "2026-01-07", **GATE}
    before = state_on(copied, 7)
    planned(settings_from(settings).dated())
    assert state_on(copied, 7).state == "outdated"
    assert "was planned, but is not published" in state_on(copied, 7).words
    assert state_on(copied, 7).last_run >= before.last_run
    move_partition(name_folder(settings_of(copied)), "2026-01-07", before.version)
    assert state_on(copied, 7).state == "published"


@pytest.mark.parametrize(
    ("broken", "command"),
    [
        ({"table": {"columns": [{}]}}, "SOURCE=... PARAMS="),
        ({"source": ["uri", "listed"]}, "SOURCE='{source}/{{date}}' "),
        ({"source": {"listed": 16}}, "SOURCE='{source}/{{date}}' "),
    ],
)
def test_a_damaged_dataset_hides_only_what_it_says_of_the_command(
    copied: Path, source: Path, broken: dict[str, Any], command: str
):
    path = name_folder(settings_of(copied)) / state_on(copied, 8).version / "dataset.json"
    content = json.loads(path.read_text())
    del content["checksum"]
    content |= broken
    path.write_text(json.dumps({**content, "checksum": checksum(content)}))
    mends = dates_of(settings_of(copied)).mends
    assert mends
    assert all(f" REPROCESS=all {command.format(source=source)}" in each.command for each in mends)


def test_the_command_for_a_name_of_which_nothing_is_published_asks_for_the_source(tmp_path: Path):
    source = tmp_path / "source"
    make_date(source, "2026-01-06", broken=3)
    build_date(source, tmp_path / "w", "2026-01-06", refused=True)
    [mend] = dates_of(settings_of(tmp_path / "w")).mends
    params = json.dumps({"dataset_name": "birds", "workspace": str(tmp_path / "w")})
    assert mend.command == (
        f"make backfill FROM=2026-01-06 TO=2026-01-06 REPROCESS=all SOURCE=... PARAMS={shlex.quote(params)}"
    )


def test_a_date_that_was_never_published_is_planned(copied: Path, source: Path):
    settings = {"workspace": str(copied), "source_uri": str(source / "{date}"), "data_date": "2026-01-05", **GATE}
    elsewhere = {**settings, "publish_uri": str(copied.parent / "published")}
    planned(settings_from(elsewhere).dated())  # Another place knows nothing of the dates in this one.
    assert {each.date for each in dates_of(settings_from(elsewhere)).dates} == {"2026-01-05"}
    assert state_on(copied, 5).state == "published"


def test_a_person_who_moves_a_date_makes_no_run(copied: Path):
    before = state_on(copied, 3)
    path = name_folder(settings_of(copied)) / "partitions" / "2026-01-03.json"
    pointed = json.loads(path.read_text())
    path.write_text(json.dumps({**pointed, "listed_ns": pointed["listed_ns"] + 10**15}))
    assert state_on(copied, 3).last_run == before.last_run


@pytest.mark.parametrize(("state", "shown"), [("running", "published"), ("failed", "outdated")])
def test_a_date_is_not_outdated_while_its_run_is_under_way(
    copied: Path, source: Path, tmp_path: Path, state: Literal["running", "failed"], shown: str
):
    changed = Path(shutil.copytree(source, tmp_path / "source"))
    (changed / "2026-01-07" / "owls" / "0.jpg").unlink()
    settings = {"workspace": str(copied), "source_uri": str(changed / "{date}"), "data_date": "2026-01-07", **GATE}
    planned(settings_from(settings).dated())
    dates = dates_of(settings_of(copied), {"2026-01-07": LastRun(state, "")})
    assert next(each.state for each in dates.dates if each.date == "2026-01-07") == shown


def test_runs_of_days_without_data_do_not_change_the_step(tmp_path: Path):
    days = [f"2026-01-{day:02d}" for day in range(5, 31) if (day - 5) % 7 < 5]
    point(name_folder(settings_of(tmp_path)), *days)
    weekend = {day: LastRun("failed", "source_uri is no folder") for day in ("2026-01-10", "2026-01-11")}
    dates = dates_of(settings_of(tmp_path), weekend)
    assert (dates.step, dates.gaps) == ("day, some days of the week off", ())


def damage(folder: Path, name: str) -> None:
    (folder / name).write_text("{")


def listed_at_a_text(folder: Path) -> None:
    path = folder / "partitions" / "2026-01-02.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "listed_ns": "soon"}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder, version: damage(folder, "partitions/2026-01-02.json"), "does not name a version"),
        (lambda folder, version: damage(folder / version, "dataset.json"), "dataset.json cannot be read"),
        (lambda folder, version: (folder / version / "dataset.json").unlink(), "contains no dataset"),
        (lambda folder, version: shutil.rmtree(folder / version), "is not a folder"),
        (
            lambda folder, version: (folder / "partitions" / "2026-01-02.json").write_bytes(b" " * 10**6),
            "1 MB, more than",
        ),
        (lambda folder, version: listed_at_a_text(folder), "the files of this date are damaged (TypeError("),
    ],
)
def test_a_damaged_date_fails_alone(copied: Path, change: Callable[[Path, str], None], words: str):
    before = dates_of(settings_of(copied))
    change(name_folder(settings_of(copied)), state_on(copied, 2).version)
    after = dates_of(settings_of(copied))
    [changed] = set(after.dates) - set(before.dates)
    assert (changed.date, changed.state) == ("2026-01-02", "failed")
    assert words in changed.words


@pytest.mark.parametrize(
    ("content", "note"), [(b"{", "champion.json cannot be read"), (b'{"format": 0}', "older version")]
)
def test_a_damaged_pointer_hides_only_the_champion(copied: Path, content: bytes, note: str):
    (copied / "models" / "birds" / "champion.json").write_bytes(content)
    dates = dates_of(settings_of(copied))
    assert {each.champion for each in dates.dates} == {""}
    assert note in dates.note


def test_a_champion_of_one_version_has_seen_its_date(copied: Path):
    promote(copied, state_on(copied, 3).version)
    champions = {each.date[8:]: each.champion for each in dates_of(settings_of(copied)).dates if each.version}
    assert [day for day, champion in champions.items() if champion == "seen"] == ["03"]


def test_a_date_with_a_new_version_was_seen_in_another_one(copied: Path, source: Path, tmp_path: Path):
    changed = Path(shutil.copytree(source, tmp_path / "source"))
    (changed / "2026-01-01" / "owls" / "0.jpg").unlink()
    build_date(changed, copied, "2026-01-01")
    assert state_on(copied, 1).champion == "another version"


@pytest.mark.parametrize(
    ("day", "champion"), [(1, "seen"), (3, "not seen"), (8, "not seen")], ids=["seen", "published", "drifted"]
)
def test_a_withdrawn_date_is_no_problem_and_names_the_command_back(
    copied: Path, day: int, champion: str, capsys: pytest.CaptureFixture[str]
):
    before, problems = state_on(copied, day), dates_of(settings_of(copied)).mends
    withdraw_partition(name_folder(settings_of(copied)), before.date)
    dates = dates_of(settings_of(copied))
    withdrawn = state_on(copied, day)
    assert (withdrawn.state, withdrawn.words, withdrawn.champion) == ("withdrawn", "", champion)
    assert (withdrawn.version, withdrawn.examples, withdrawn.drift) == (before.version, 16, before.drift)
    assert withdrawn.last_run == before.last_run  # No run listed its source when the person withdrew it.
    assert (dates.days[before.date], dates.counts["withdrawn"], dates.mends) == ("withdrawn", 1, problems)
    assert not withdrawn.is_problem
    assert before.command == ""
    assert main(shlex.split(withdrawn.command)[3:]) == 0
    capsys.readouterr()
    assert state_on(copied, day).state == before.state


def test_a_withdrawn_date_says_that_its_new_images_were_refused(copied: Path, source: Path, tmp_path: Path):
    changed = Path(shutil.copytree(source, tmp_path / "source"))
    withdraw_partition(name_folder(settings_of(copied)), "2026-01-03")
    make_date(changed, "2026-01-03", broken=1)
    build_date(changed, copied, "2026-01-03", refused=True)
    assert state_on(copied, 3).state == "withdrawn"
    assert "2 of 16 (12.5%) images were rejected" in state_on(copied, 3).words
    make_date(changed, "2026-01-03")
    (changed / "2026-01-03" / "owls" / "0.jpg").unlink()
    build_date(changed, copied, "2026-01-03")
    assert state_on(copied, 3).state == "drift"  # The version before is that of 8 January, with other sizes.


def test_a_withdrawn_version_that_was_deleted_is_not_built_again(copied: Path):
    folder = name_folder(settings_of(copied))
    withdrawn = withdraw_partition(folder, "2026-01-02")
    shutil.rmtree(folder / withdrawn.version)
    found = state_on(copied, 2)
    assert (found.state, found.command, found.champion) == ("withdrawn", "", "seen")
    assert "is not a folder" in found.words
    assert len(dates_of(settings_of(copied)).mends) == 2


def test_a_place_that_is_not_allowed_is_refused(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("TENFOLD_WORKSPACE", "TENFOLD_LOCAL_FOLDER"):
        monkeypatch.setenv(name, str(tmp_path / "another"))
    for name in ("TENFOLD_ALLOWED_WORKSPACES", "TENFOLD_ALLOWED_PUBLISH"):
        monkeypatch.setenv(name, str(copied))
    folder, version = name_folder(settings_of(copied)), state_on(copied, 2).version
    outside = tmp_path / "outside"
    shutil.move(folder / version, outside)
    (folder / version).symlink_to(outside)
    assert state_on(copied, 2).state == "failed"
    assert "is outside what TENFOLD_ALLOWED_WORKSPACES allows" in state_on(copied, 2).words
    monkeypatch.setenv("TENFOLD_ALLOWED_WORKSPACES", str(outside))
    monkeypatch.setenv("TENFOLD_ALLOWED_PUBLISH", str(outside))
    with pytest.raises(SettingsError, match="is outside what"):
        dates_of(settings_of(copied))


def test_a_link_in_place_of_a_listing_is_not_followed(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("TENFOLD_WORKSPACE", "TENFOLD_LOCAL_FOLDER"):
        monkeypatch.setenv(name, str(copied))
    for name in ("TENFOLD_ALLOWED_WORKSPACES", "TENFOLD_ALLOWED_PUBLISH"):
        monkeypatch.setenv(name, str(copied))
    [listing, *_] = copied.glob("work/birds/*/listed/2026-01-03.json")
    listing.rename(tmp_path / "outside.json")
    listing.symlink_to(tmp_path / "outside.json")
    with pytest.raises(SettingsError, match="is outside what TENFOLD_ALLOWED_WORKSPACES allows"):
        dates_of(settings_of(copied))


def test_hours_share_a_day(tmp_path: Path):
    source = tmp_path / "cats"
    hours = ("2026-01-01T22", "2026-01-01T23", "2026-01-02T00", "2026-01-02T02")
    for hour in hours:
        make_date(source, hour)
        dated = {"data_date": f"{hour}:00", "dataset_name": "birds"}
        publish(source / "{date}T{hour}", tmp_path / "w", **dated)
    dates = dates_of(settings_of(tmp_path / "w"))
    assert (dates.step, dates.days) == ("hour", {"2026-01-01": "published", "2026-01-02": "missing"})
    assert [(gap.first, gap.dates) for gap in dates.gaps] == [("2026-01-02T01:00", 1)]
    assert dates.mends[0].command.startswith(
        f"make backfill FROM=2026-01-02T01 TO=2026-01-02T01 REPROCESS=all SOURCE='{source}/{{date}}T{{hour}}'"
    )
    assert "TENFOLD_BACKFILL_SCHEDULE=@hourly" in dates.mends_note


def test_only_commands_in_hours_have_a_note_about_the_schedule(tmp_path: Path):
    source = tmp_path / "cats"
    for hour in ("2026-01-01T22", "2026-01-01T23"):
        make_date(source, hour)
        publish(source / "{date}T{hour}", tmp_path / "w", data_date=f"{hour}:00", dataset_name="birds")
    dates = dates_of(settings_of(tmp_path / "w"), now=datetime(2026, 1, 2, 3, tzinfo=UTC))
    assert (dates.mends, dates.mends_note) == ((), "")
    assert [each.command.partition(" SOURCE=")[0] for each in dates.later] == [
        "make backfill FROM=2026-01-02T00 TO=2026-01-02T02 REPROCESS=all"
    ]
    assert "TENFOLD_BACKFILL_SCHEDULE=@hourly" in dates.later_note


def point(folder: Place, *dates: str) -> None:
    """Publish dates by their partitions alone: their dataset is absent, so each of them needs another run."""
    (folder / "partitions").mkdir(parents=True)
    for date in dates:
        content = {"format": 1, "partition": date, "version": "0" * 16, "listed_ns": 1}
        (folder / "partitions" / f"{date}.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("source", "dates", "again"),
    [
        # Summer time begins in Berlin on 29 March, and ends on 25 October.
        ("{date}", ["2026-03-27", "2026-03-28", "2026-03-31"], [f"2026-03-{day}" for day in range(27, 32)]),
        ("{date}", ["2026-10-24", "2026-10-25", "2026-10-27"], [f"2026-10-{day}" for day in range(24, 28)]),
        (
            "{date}/{hour}",
            ["2026-03-28T23:00", "2026-03-29T00:00", "2026-03-29T03:00"],
            ["2026-03-28T23:00", *(f"2026-03-29T0{hour}:00" for hour in range(4))],
        ),
        # An hour between two dates has no images, so that its run would fail.
        (
            "{date}/{hour}",
            ["2026-01-01T02:00", "2026-01-01T08:00", "2026-01-01T14:00", "2026-01-02T08:00"],
            [f"2026-01-0{each}:00" for each in ("1T02", "1T08", "1T14", "1T20", "2T02", "2T08")],
        ),
        # One hour of each day, except on Saturday and Sunday.
        (
            "{date}/{hour}",
            [f"2026-01-{day:02d}T07:00" for day in (1, 2, *range(5, 10), 12, 14, 15, 16)],
            [f"2026-01-{day:02d}T07:00" for day in (1, 2, *range(5, 10), *range(12, 17))],
        ),
    ],
)
def test_the_commands_ask_for_the_dates_that_need_another_run(
    source: str, dates: list[str], again: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TENFOLD_TIMEZONE", "Europe/Berlin")
    point(name_folder(settings_of(tmp_path)), *dates)
    asked = []
    for mend in dates_of(settings_of(tmp_path)).mends:
        words = dict(word.split("=", 1) for word in shlex.split(mend.command) if "=" in word)
        conf = {"source_uri": f"/data/{source}"}
        request = read_backfill("image_dataset", words["FROM"], words["TO"], "", conf, datetime(2027, 1, 1, tzinfo=UTC))
        asked += request.names
    assert asked == again


@pytest.mark.parametrize(
    ("built", "message"),
    [(False, "has no dataset 'birds'"), (True, "the dataset 'birds' in .* has no dates")],
)
def test_a_dataset_without_dates_is_named(tmp_path: Path, built: bool, message: str):
    make_date(tmp_path / "source", "all")
    name = "birds" if built else "cats"
    publish(tmp_path / "source" / "all", tmp_path / "w", dataset_name=name)
    with pytest.raises(SettingsError, match=message):
        dates_of(settings_of(tmp_path / "w"))


# --- the command ------------------------------------------------------------------------------------------------------


def shown(workspace: Place, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["dates", "birds", "--set", f"workspace={workspace}", *options]) == 0
    return capsys.readouterr().out


def test_the_command_shows_a_line_for_each_month_and_the_problems(copied: Path, capsys: pytest.CaptureFixture[str]):
    text = shown(copied, capsys)
    assert text.startswith("birds: 6 of 8 dates published, from 2026-01-01 to 2026-01-08, one per day\nchampion: ")
    assert "\nIt shows no trend beyond chance: over the last 6 dates, the share of rejected images was 0%;" in text
    assert "\n2026-01  ##o-oxo~\n" in text
    assert "  2026-01-04  1 date missing\n  2026-01-06  not published: " in text
    assert "  2026-01-08  published, drifted: the drift of sizes is " in text
    mends, _, later = text.partition("No run listed the source of a date after 2026-01-08.")
    assert mends.count("make backfill FROM=") == 2
    assert later.count("make backfill FROM=2026-01-09 TO=") == 1
    for state, count in {"failed": 1, "missing": 1, "drift": 1, "published": 3, "seen": 2}.items():
        assert f"  {MARKS[state]} {count:>5}  {STATES[state]}\n" in text


def test_the_command_shows_a_line_for_each_date(copied: Path, capsys: pytest.CaptureFixture[str]):
    lines = shown(copied, capsys, "--all").splitlines()
    [head] = [line.split() for line in lines if line.startswith("date ")]
    assert head == ["date", "version", "examples", "rejected", "drift", "last", "run", "champion", "state"]
    rows = [line for line in lines if line.startswith("2026-01-")]
    assert [row[:10] for row in rows] == [f"2026-01-{day:02d}" for day in range(1, 9)]
    version = state_on(copied, 1).version
    assert rows[0].split()[:4] == ["2026-01-01", version, "16", "0"]
    assert rows[0].endswith("  seen      published, and the champion was trained on it")
    assert rows[3].split() == ["2026-01-04", "1", "date", "missing"]


def test_the_command_shows_withdrawn_dates_and_what_brings_them_back(copied: Path, capsys: pytest.CaptureFixture[str]):
    folder = name_folder(settings_of(copied))
    for day in (1, 7):
        withdraw_partition(folder, f"2026-01-{day:02d}")
    text = shown(copied, capsys)
    assert text.startswith("birds: 4 of 8 dates published")
    assert "\n2026-01  w#o-oxw~\n" in text
    title = "withdrawn by a person; windows leave it out"
    assert f"  w     2  {title}\n" in text
    assert f"  2026-01-01  {title}; the champion was trained on it\n" in text
    assert f"  2026-01-07  {title}\n" in text
    back = text.partition("To bring withdrawn dates back, run:\n")[2].splitlines()
    assert back == [f"  {state_on(copied, day).command}" for day in (1, 7)]
    assert f"{title}; the champion was trained on it\n" in shown(copied, capsys, "--all")
    answer = json.loads(shown(copied, capsys, "--json"))
    assert (answer["dates"][0]["state"], answer["counts"]["withdrawn"]) == ("withdrawn", 2)
    assert answer["dates"][0]["command"].startswith("python -m pipeline partition 2026-01-01 ")


def test_the_command_has_an_answer_for_programs(copied: Path, capsys: pytest.CaptureFixture[str]):
    answer = json.loads(shown(copied, capsys, "--json", "--all"))
    assert answer == json.loads(shown(copied, capsys, "--json"))
    assert answer["dates"][1]["date"] == "2026-01-02"
    assert {"dataset_name", "folder", "step", "champion", "counts", "days", "gaps", "mends", "later"} <= answer.keys()


def test_the_command_refuses_what_no_dataset_name_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["dates", "../birds", "--set", f"workspace={tmp_path}"]) == 1
    assert "dataset_name" in capsys.readouterr().err
