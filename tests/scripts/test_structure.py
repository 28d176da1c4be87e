"""The figures of `scripts.structure`, for packages whose structure is known."""

from pathlib import Path

from scripts.structure import arrows_of, imports_of, load, row_of

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
        "functions": "4",
        "median lines": "2",
        "longest": "2",
        "fan-out": "0.7",
        "most imports": "2",
        "private": "2",
        "once": "50%",
        "comments": "14.3%",
    }


def test_each_pair_of_rooms_is_one_arrow(tmp_path: Path):
    arrows = arrows_of(imports_of(load(package(tmp_path, FILES))))
    assert arrows["package.top"] == {"package.low", "package.errors"}
