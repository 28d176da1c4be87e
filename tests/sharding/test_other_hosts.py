"""Files that another host wrote into a folder on NFS, which this host still remembers as absent."""

from pathlib import Path

import pytest

from pipeline.config.settings import Settings
from pipeline.errors import BadInput, FileSystemError
from pipeline.plan.plan import load_plan
from pipeline.plan.range_plan import load_range
from pipeline.plan.results import results_folder
from pipeline.sharding.publish import copy_range
from pipeline.sharding.write import write_range
from pipeline.stages.extract import divide, join, list_range_file
from pipeline.stages.shard import plan_shards
from tests.published import changed, no_progress
from tests.remembered_absence import OtherHost
from tests.snapshots import take_snapshot

ABSENT = "import os; names = sys.argv[2:]; assert not any(map(os.path.exists, names)), names"
STILL_ABSENT = "import os; assert not any(map(os.path.exists, names)), names"
PUBLISH = f"""
{STILL_ABSENT}
from pathlib import Path
from pipeline.sharding.publish import copy_range
copy_range(Path(sys.argv[1]), lambda *_: None)
print("published")
"""
JOIN = f"""
{STILL_ABSENT}
from pipeline.stages.extract import join, load_range_file
from pipeline.config.settings import settings_from
paths = sys.argv[1].split(":")
print(join(settings_from(load_range_file(paths[0]).settings), paths))
"""


@pytest.mark.parametrize("place", ["workspace", "elsewhere"])
def test_shards_that_another_host_wrote_are_published(settings: Settings, tmp_path: Path, place: str):
    published = {"publish_uri": str(tmp_path / "published")} if place == "elsewhere" else {}
    plan = load_plan(plan_shards(changed(settings, **published), take_snapshot(settings)))
    path = Path(plan.ranges[0])
    names = [spec.name for spec in load_range(path).shards]
    results = [results_folder(path) / f"{name}{suffix}" for name in names for suffix in (".json", ".hashes")]
    shards = [Path(folder) / name for folder in {plan.written, plan.dataset} for name in names]
    host = OtherHost(tmp_path, tmp_path, ABSENT, PUBLISH, path, *results, *shards)
    write_range(path, no_progress)
    assert host.go_on() == "published\n"
    assert all((Path(plan.dataset) / name).is_file() for name in names)


def test_listings_that_another_host_wrote_are_joined(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TENFOLD_RANGE_IMAGES", "5")
    paths = divide(settings)
    listings = [Path(path).with_suffix(".listing") for path in paths]
    host = OtherHost(tmp_path, tmp_path, ABSENT, JOIN, ":".join(paths), *listings)
    for path in paths:
        list_range_file(path)
    [joined] = host.go_on().splitlines()
    assert Path(joined) == join(settings, paths)


def test_a_shard_or_a_listing_that_is_missing_may_appear_later(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    path = Path(load_plan(plan_shards(settings, take_snapshot(settings))).ranges[0])
    with pytest.raises(FileSystemError, match=r"tfrecord was not written, or this host does not see it yet") as caught:
        copy_range(path, no_progress)
    assert not isinstance(caught.value, BadInput)
    lost = changed(settings, publish_uri=f"{settings.workspace}-published")
    path = Path(load_plan(plan_shards(lost, take_snapshot(settings))).ranges[0])
    write_range(path, no_progress)
    plan = load_range(path)
    (Path(plan.written) / plan.shards[0].name).unlink()
    with pytest.raises(FileSystemError, match=r"is missing, or this host does not see it yet, so .* was not published"):
        copy_range(path, no_progress)
    monkeypatch.setenv("TENFOLD_RANGE_IMAGES", "5")
    with pytest.raises(FileSystemError, match=r"was not listed, or this host does not see its listing yet"):
        join(settings, divide(settings))
