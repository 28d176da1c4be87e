"""Only what a person approved is published, whatever other runs commit in the meantime."""

from pathlib import Path

import pytest

from pipeline.config.settings import Settings, settings_from
from pipeline.errors import GateError
from pipeline.gate.decide import ask_later
from pipeline.plan.plan import load_plan
from pipeline.sharding.approval import answers, approve, questions_about
from pipeline.storage import Place
from tests.conftest import MakeImages, jpeg
from tests.published import commit, planned, publish, write_and_copy

ASKING = {"dataset_name": "images", "on_drift": "ask"}


@pytest.fixture
def settings(make_images: MakeImages, tmp_path: Path) -> Settings:
    """Settings of images that differ from the published version, so that the data gate asks a person."""
    source, workspace = make_images({"a": 60, "b": 60}), tmp_path / "workspace"
    publish(source, workspace)
    redraw(source, (200, 300))
    return settings_from({"source_uri": str(source), "workspace": str(workspace), **ASKING})


def redraw(source: Path, size: tuple[int, int]) -> None:
    for number in range(60):
        (source / "a" / f"{number:03d}.jpg").write_bytes(jpeg(9000 + number + size[0], size))


def write(settings: Settings) -> Place:
    """Write and publish all shards of a dataset that is not committed yet. Return its plan."""
    plan_path, ranges = planned(settings, ask_later)
    write_and_copy(ranges)
    return plan_path


def publish_another(settings: Settings) -> str:
    """Commit a version of the same dataset name, as another run would."""
    source = Path(settings.source_uri)
    redraw(source, (400, 100))
    return publish(source, settings.workspace).name


def test_an_approved_dataset_is_published(settings: Settings):
    plan = write(settings)
    approve(plan, questions_about(plan, settings))
    assert questions_about(plan, settings) == []
    assert commit(plan, settings, answers(plan)).version == load_plan(plan).version


@pytest.mark.parametrize("torn", [b"", b'["the ima', b"\0\0\0\0"])
def test_a_torn_approval_repeats_the_question(settings: Settings, torn: bytes):
    plan = write(settings)
    sentences = questions_about(plan, settings)
    approve(plan, sentences)
    (plan.parent / "approved.json").write_bytes(torn)  # As a power loss may leave it.
    assert questions_about(plan, settings) == sentences
    approve(plan, sentences)
    assert questions_about(plan, settings) == []


def test_an_approval_voided_by_another_commit_is_explained(settings: Settings):
    plan = write(settings)
    [sentence] = questions_about(plan, settings)
    approve(plan, [sentence])
    other = publish_another(settings)
    with pytest.raises(GateError) as caught:
        commit(plan, settings, answers(plan))
    message = str(caught.value)
    assert "a person answered" not in message
    assert f"the images differ from those of version {other}" in message  # the new question
    assert sentence in message  # what a person approved
    assert "trigger this DAG again with the same settings" in message
    # The next run asks the current question.
    approve(plan, questions_about(plan, settings))
    assert commit(plan, settings, answers(plan)).version == load_plan(plan).version


def test_a_question_that_arises_after_the_approval_is_reported_as_new(settings: Settings):
    plan = write(settings)
    with pytest.raises(GateError, match=r"nobody was asked .*the images differ .*trigger this DAG again") as caught:
        commit(plan, settings, answers(plan))
    assert "approved" not in str(caught.value)
