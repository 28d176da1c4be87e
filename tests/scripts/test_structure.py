"""The figures of `scripts.structure`, for packages whose structure is known."""

from pathlib import Path

import pytest

from scripts.structure import arrows_of, circles, imports_of, load, row_of, upward

FILES = {
    "__init__.py": "",
    "__main__.py": "from package.top import first\n",
    "errors.py": "# why\n\nclass Error(Exception): ...\n",
    "top/__init__.py": "from .first import f\n",
    "top/first.py": "from package import errors\nfrom ..low import second\n\n"
    "def f():\n    return _once() + _twice() + _twice()\n"
    "\ndef _once():\n    return 1\n\ndef _twice():\n    return 2  # two\n",
    "low/__init__.py": "",
    "low/second.py": "def g():\n    import package.errors\n",
    "tests/test_first.py": "from package import errors\n",
}
BACK = {"low/back.py": "from package.top.first import f\n"}


def package(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "package"


def test_the_row_of_a_package(tmp_path: Path):
    assert row_of(package(tmp_path, FILES)) == {
        "package": "package",
        "files": "7",
        "lines": "18",
        "at the root": "3",
        "rooms": "5",
        "arrows": "4",
        "circles": "0",
        "upward": "-",
        "functions": "4",
        "median lines": "2",
        "longest": "2",
        "fan-out": "0.7",
        "most imports": "2",
    }


@pytest.mark.parametrize(("files", "expected"), [(FILES, []), (FILES | BACK, [{"package.low", "package.top"}])])
def test_circular_imports_of_rooms_are_detected(tmp_path: Path, files: dict[str, str], expected: list[set[str]]):
    modules = load(package(tmp_path, files))
    arrows = arrows_of(imports_of(modules))
    assert [each for each in circles(arrows) if len(each) > 1] == expected
    assert arrows["package.top"] == {"package.low", "package.errors"}


@pytest.mark.parametrize(
    ("layers", "files", "expected"),
    [
        ('"__main__", "top", "low", "errors"', FILES, "0"),
        ('"__main__", "top", "low", "errors"', FILES | BACK, "1"),
        ('"__main__", "top", "low", "errors"', FILES | {"top/__main__.py": "from package.top import f\n"}, "0"),
        ('"__main__", "top", "low", "errors"', FILES | {"low/__main__.py": "from package.top import f\n"}, "1"),
        ('"__main__", "top | low", "errors"', FILES, "1"),
        ('"__main__", "errors", "top", "low"', FILES, "2"),
    ],
)
def test_an_arrow_to_a_layer_that_is_not_lower_is_upward(
    tmp_path: Path, layers: str, files: dict[str, str], expected: str
):
    contract = f'{{type = "layers", containers = ["package"], layers = [{layers}]}}'
    (tmp_path / "pyproject.toml").write_text(f"[tool.importlinter]\ncontracts = [{contract}]\n")
    folder = package(tmp_path, files)
    assert upward(arrows_of(imports_of(load(folder))), folder) == expected
