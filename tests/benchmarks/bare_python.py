"""A Python that has some packages of this one, and no others."""

import re
import venv
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement


def make_bare_python(folder: Path, packages: Iterable[str]) -> Path:
    """Make an environment with these packages and all that they require, and return its interpreter.

    It holds links to what is installed here, so it takes neither time nor space.
    """
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    for name in with_requirements(packages):
        files = distribution(name).files or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            place = site / top
            # Packages such as google share a folder: link what is below it.
            installed = Path(str(distribution(name).locate_file(top)))
            if not installed.is_dir() or (installed / "__init__.py").exists() or top.endswith(".dist-info"):
                _link(place, installed)
                continue
            for below in {file.parts[1] for file in files if file.parts[0] == top and len(file.parts) > 1}:
                _link(place / below, installed / below)
    return folder / "bin" / "python"


def with_requirements(packages: Iterable[str]) -> set[str]:
    """Return the names of packages with all that they require here."""
    left, found = list(packages), set[str]()
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in found:
            continue
        found.add(name)
        required = map(Requirement, distribution(name).requires or [])
        left += [each.name for each in required if not each.marker or each.marker.evaluate({"extra": ""})]
    return found


def _link(place: Path, target: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        place.symlink_to(target)
