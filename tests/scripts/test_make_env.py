import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make-env"


@pytest.fixture
def script(tmp_path: Path) -> dict[str, Any]:
    """The functions of the script, at work in a folder of their own."""
    functions = runpy.run_path(str(SCRIPT))
    scope = next(function for function in functions.values() if isinstance(function, FunctionType)).__globals__
    scope.update(ROOT=tmp_path, VENV=tmp_path / ".venv", TOOLS=tmp_path / ".tools")
    for lock in scope["LOCKS"]:
        (tmp_path / lock).write_text("first")
    return scope


def install(script: dict[str, Any], lock: str) -> None:
    python = script["VENV"] / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.exists() or python.symlink_to(sys.executable)
    script["stamp_of"](lock).write_text(script["digest"](lock))


def both(script: dict[str, Any]) -> list[str]:
    missing: Callable[[tuple[str, ...]], tuple[str, ...]] = script["missing_locks"]
    return list(missing(script["LOCKS"]))


def test_nothing_is_missing_once_all_is_installed(script: dict[str, Any]) -> None:
    base, dev = script["LOCKS"]
    assert both(script) == [base, dev]
    install(script, base)
    assert both(script) == [dev]
    install(script, dev)
    assert both(script) == []


@pytest.mark.parametrize("damage", ["base lock changed", "python removed"])
def test_all_is_missing_from_an_environment_that_no_longer_fits(script: dict[str, Any], damage: str) -> None:
    for lock in script["LOCKS"]:
        install(script, lock)
    if damage == "python removed":
        (script["VENV"] / "bin" / "python").unlink()
    else:
        (script["ROOT"] / script["LOCKS"][0]).write_text("second")
    assert both(script) == list(script["LOCKS"])


def test_a_failed_installation_leaves_no_stamp_and_replaces_what_an_earlier_one_left(script: dict[str, Any]) -> None:
    script["VENV"].mkdir()
    (script["VENV"] / "half").touch()
    create = [sys.executable, "-c", f"import os; os.mkdir({str(script['VENV'])!r})"]
    base = script["LOCKS"][:1]
    assert script["make"](base, create, [sys.executable, "-c", "raise SystemExit(1)"]) is False
    assert list(script["VENV"].iterdir()) == []
    assert script["make"](base, create, [sys.executable, "-c", "pass"]) is True
    assert [path.name for path in script["VENV"].iterdir()] == ["requirements.txt.installed"]


def test_a_python_that_does_not_fit_is_refused_in_one_sentence(tmp_path: Path) -> None:
    copy = tmp_path / "scripts" / "make-env"
    copy.parent.mkdir()
    copy.write_bytes(SCRIPT.read_bytes())
    for lock in ("requirements.txt", "requirements-dev.txt"):
        (tmp_path / lock).touch()
    answer = subprocess.run(
        [sys.executable, str(copy)], env={**os.environ, "PYTHON": "no-such-python"}, capture_output=True, text=True
    )
    assert answer.returncode == 2
    assert "Python 3.11, 3.12 or 3.13" in answer.stderr
    assert not (tmp_path / ".venv").exists()
