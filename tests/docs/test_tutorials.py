"""The commands of each tutorial run as written, in a copy of the project."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
RESULTS = {
    "own-images": (
        r"Validation: +accuracy",
        "promoted: the first model of 'photos'",
        r"photos/circle/circle-0001\.jpg +\w+",
    ),
    "own-model": (r"Model: +\S+/model\.keras", r"Validation: +accuracy"),
    "buckets": (
        "900 images uploaded to gs://raw-images/samples",
        r"Model: +gs://tenfold/workspace/runs/.*/model\.keras",
        r"datasets/samples/[0-9a-f]{16} +\d+ objects",
    ),
    "backfill": (
        "3 of 3 dates run",
        r"Model: +\S+/runs/retrain-daily/\S+/model\.keras",
        "Promotion: +(promoted|a person must decide): the first model",
    ),
    "tables": (
        r"Validation: +accuracy [78]\d\.\d% .*, baseline 7\d",
        "promoted: the first model of 'customers'",
        r"new\.csv:6 +(yes|no) \d+\.\d%",
    ),
    # Which bottleneck it names depends on the programs beside it.
    "waiting-accelerator": (r"Verdict: +\w+", r"Speed: +[\d,]+ examples per second", "compare.html"),
}
"""For each tutorial, regular expressions that its output must contain."""


def commands(page: Path) -> list[str]:
    """Return the blocks of commands in a page, in order. Blocks marked as `text` need accounts or are output."""
    return re.findall(r"```bash\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project with the environment of this one, as a person has it after `make env`."""
    project = tmp_path / "project"
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, project / name)
    (project / ".venv").symlink_to(Path(sys.prefix))
    return project


def test_each_tutorial_is_listed_and_tested():
    pages = {path.stem for path in TUTORIALS.glob("*.md")} - {"index"}
    listed = re.findall(r"^[a-z-]+$", (TUTORIALS / "index.md").read_text("utf-8").partition("```{toctree}")[2], re.M)
    assert pages == set(listed) == set(RESULTS)


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("page", RESULTS)
def test_the_commands_of_a_tutorial_run_as_written(page: str, project: Path):
    script = "\n".join(["set -eux -o pipefail", *commands(TUTORIALS / f"{page}.md")])
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("TENFOLD_", "AIRFLOW_"))}
    done = subprocess.run(
        ["bash", "-c", script], cwd=project, env=ours, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert [pattern for pattern in RESULTS[page] if not re.search(pattern, done.stdout)] == [], done.stdout
