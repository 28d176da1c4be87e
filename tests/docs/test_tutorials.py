"""The commands of each tutorial run as written, in a copy of the project.

With `RECORD_TUTORIALS=yes`, the numbers that a tutorial prints replace those that its page shows. Record on a machine
that does nothing else.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
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


def beats_its_baseline(output: str) -> bool:
    """Whether the lower end of the accuracy is above that of the most frequent class."""
    [(lower, baseline)] = re.findall(r"accuracy [\d.]+% \(([\d.]+)% to .*baseline ([\d.]+)%", output)
    return float(lower) > float(baseline)


def becomes_faster(output: str) -> bool:
    """Whether the second training is faster than the first. The verdicts also depend on the programs beside them."""
    first, second = (int(each.replace(",", "")) for each in re.findall(r"Speed: +([\d,]+)", output))
    return second > first


ENDS_WELL: dict[str, Callable[[str], bool]] = {
    "own-images": beats_its_baseline,
    "waiting-accelerator": becomes_faster,
}
"""What a tutorial promises about its numbers: it holds for those that it prints, and for those that its page shows."""
RESULT = re.compile(r"^(?:Validation|Verdict|Speed): .*$", re.MULTILINE)


def commands(page: Path) -> list[str]:
    """Return the blocks of commands in a page, in order. Blocks marked as `text` need accounts or are output."""
    return re.findall(r"```bash\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


def with_printed_numbers(page: str, printed: str) -> str:
    """Return the page with the numbers that its commands printed. The words must be the same, apart from `...`."""
    results = RESULT.findall(printed)

    def replaced(shown: re.Match[str]) -> str:
        name = shown[0].partition(":")[0]
        # A page need not show all results of a training, but those that it shows are in order.
        while results and not results[0].startswith(name):
            results.pop(0)
        return _with_numbers_of(results.pop(0) if results else "", shown[0])

    return RESULT.sub(replaced, page)


def _with_numbers_of(printed: str, shown: str) -> str:
    words = re.split(r"(\.{3}|\d[\d.,]*)", shown)  # Every second one is a number, or stands for any text.
    patterns = {"...": ".*?"}
    pattern = "".join(
        patterns.get(word, r"(\d[\d.,]*)") if at % 2 else re.escape(word) for at, word in enumerate(words)
    )
    match = re.match(pattern, printed)
    assert match, f"the page shows {shown!r}, but its commands printed {printed!r}"
    numbers = iter(match.groups())
    return "".join(next(numbers) if at % 2 and word != "..." else word for at, word in enumerate(words))


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


@pytest.mark.parametrize("page", ENDS_WELL)
def test_the_numbers_of_a_page_end_well(page: str):
    assert ENDS_WELL[page]((TUTORIALS / f"{page}.md").read_text("utf-8"))


def test_printed_numbers_replace_those_of_a_page():
    page = "x\nSpeed:   4 examples\nVerdict: a (...): 7% of it (1.5 of 2); ...\n4\n"
    printed = "Speed:   4,130 examples\nothers\nVerdict: a (b 2): 12.5% of it (3 of 40); words\n"
    recorded = "x\nSpeed:   4,130 examples\nVerdict: a (...): 12.5% of it (3 of 40); ...\n4\n"
    assert with_printed_numbers(page, printed) == recorded
    with pytest.raises(AssertionError, match="the page shows 'Speed:   4 examples'"):
        with_printed_numbers(page, printed.replace("Speed:", "Validation:"))


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
    if page in ENDS_WELL:
        shown = TUTORIALS / f"{page}.md"
        assert ENDS_WELL[page](done.stdout), done.stdout
        if os.environ.get("RECORD_TUTORIALS") == "yes":
            shown.write_text(with_printed_numbers(shown.read_text("utf-8"), done.stdout), "utf-8")
