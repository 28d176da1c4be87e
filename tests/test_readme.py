"""README, CONTRIBUTING and the documentation name only files and folders that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATH = re.compile(r"`((?:pipeline|dags|plugins|scripts|docker|tests|benchmarks)/[\w./-]*)`|\]\(([\w./-]+)\)")
GENERATED = {"settings.md", "commands.md", "dataset-json.md"}  # by `make docs`, which checks the links to them
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def paths_of(page: Path) -> set[Path]:
    """Return the paths that a page names in backticks, from the root, or links to, from its own folder."""
    found = PATH.findall(page.read_text("utf-8"))
    return {ROOT / named if named else page.parent / linked for named, linked in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_named_in_the_documentation_exists(page: Path):
    missing = [path for path in paths_of(page) if not path.exists() and path.name not in GENERATED]
    assert [str(path) for path in missing] == []


def test_contributing_lists_every_package_of_the_pipeline():
    rooms = {path.parent for path in (ROOT / "pipeline").glob("*/__init__.py")}
    assert rooms <= paths_of(ROOT / "CONTRIBUTING.md")
