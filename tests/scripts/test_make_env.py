import os
import runpy
import shutil
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
    """The functions of the script, which work in a temporary folder."""
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


def missing(script: dict[str, Any]) -> list[str]:
    of: Callable[[tuple[str, ...]], tuple[str, ...]] = script["missing_locks"]
    return list(of(script["LOCKS"]))


def test_each_installation_removes_its_lock_from_the_missing_locks(script: dict[str, Any]) -> None:
    base, dev, cuda = script["LOCKS"]
    assert missing(script) == [base, dev, cuda]
    install(script, base)
    assert missing(script) == [dev, cuda]
    install(script, dev)
    assert missing(script) == [cuda]
    install(script, cuda)
    assert missing(script) == []


@pytest.mark.parametrize("damage", ["base lock changed", "python removed"])
def test_all_locks_are_missing_if_the_environment_is_outdated(script: dict[str, Any], damage: str) -> None:
    for lock in script["LOCKS"]:
        install(script, lock)
    if damage == "python removed":
        (script["VENV"] / "bin" / "python").unlink()
    else:
        (script["ROOT"] / script["LOCKS"][0]).write_text("second")
    assert missing(script) == list(script["LOCKS"])


@pytest.mark.parametrize(("target", "code"), [("down", 0), ("status", 2)])
def test_down_and_status_make_no_environment(target: str, code: int, tmp_path: Path) -> None:
    shutil.copy(SCRIPT.parents[1] / "Makefile", tmp_path)
    done = subprocess.run(["make", "-C", str(tmp_path), target], capture_output=True, text=True, check=False)
    assert (done.returncode, "Airflow is not running" in done.stdout) == (code, True)
    assert [path.name for path in tmp_path.iterdir()] == ["Makefile"]


NO_DRIVER = None
SERVES_12_8 = 12_080


class Driver:
    """A stand-in for the library of the NVIDIA driver."""

    def __init__(self, cuda: int = SERVES_12_8, gpus: int = 1, init: int = 0) -> None:
        self._cuda, self._gpus, self._init = cuda, gpus, init

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = self._cuda
        return 0

    def cuInit(self, _flags: int) -> int:
        return self._init

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self._gpus
        return 0


def load(driver: object) -> Callable[[str], object]:
    """Return a stand-in for `ctypes.CDLL`."""

    def loaded(name: str) -> object:
        if driver is NO_DRIVER:
            raise OSError(f"{name}: cannot open shared object file: No such file or directory")
        return driver

    return loaded


@pytest.fixture
def linux(script: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The same functions on a platform that has CUDA libraries, without the variable `CUDA`."""
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.delenv("CUDA", raising=False)
    return script


@pytest.mark.parametrize(
    ("driver", "answer"),
    [
        (Driver(gpus=2), (SERVES_12_8, 2)),
        (Driver(gpus=0), (SERVES_12_8, 0)),
        (Driver(init=100), (0, 0)),  # no device
        (Driver(init=34), (0, 0)),  # the stub of the CUDA toolkit for linking
        (object(), (0, 0)),
        (NO_DRIVER, (0, 0)),
    ],
)
def test_ask_driver_returns_the_cuda_version_and_the_number_of_gpus(
    script: dict[str, Any], driver: object, answer: tuple[int, int]
) -> None:
    assert script["ask_driver"](load(driver)) == answer


@pytest.mark.parametrize(
    ("driver", "choice", "wants", "says"),
    [
        (Driver(gpus=2), "", True, "2 NVIDIA GPU"),
        (Driver(gpus=2), "/usr/local/cuda", True, "2 NVIDIA GPU"),
        (Driver(), "no", False, ""),
        (Driver(cuda=11_080), "", False, "too old for CUDA 12"),
        (NO_DRIVER, "", False, ""),
        (NO_DRIVER, "yes", True, ""),
    ],
)
def test_cuda_libraries_are_installed_if_there_is_a_gpu(
    linux: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    driver: object,
    choice: str,
    wants: bool,
    says: str,
) -> None:
    monkeypatch.setattr("ctypes.CDLL", load(driver))
    monkeypatch.setenv("CUDA", choice)
    assert linux["wants_cuda"]() is wants
    output = capsys.readouterr().out
    assert says in output
    assert output.count("\n") == bool(says)


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "aarch64"), ("Windows", "x86_64")])
def test_cuda_libraries_are_not_installed_on_platforms_without_gpu_support(
    linux: dict[str, Any], monkeypatch: pytest.MonkeyPatch, system: str, machine: str
) -> None:
    monkeypatch.setattr("ctypes.CDLL", load(Driver()))
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert linux["wants_cuda"]() is False


def test_a_later_driver_is_detected_and_installed_cuda_libraries_remain(
    linux: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, _, cuda = linux["LOCKS"]
    install(linux, base)
    monkeypatch.setattr("ctypes.CDLL", load(NO_DRIVER))
    assert linux["wants_cuda"]() is False
    monkeypatch.setattr("ctypes.CDLL", load(Driver()))
    assert linux["wants_cuda"]() is True
    install(linux, cuda)
    monkeypatch.setattr("ctypes.CDLL", load(NO_DRIVER))  # A query would now find no driver.
    assert linux["wants_cuda"]() is True
    assert linux["missing_locks"]([base, cuda]) == []


def test_the_command_is_installed_if_it_is_missing(script: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """For example after an installation that was killed."""
    commands: list[list[str]] = []
    monkeypatch.setitem(script, "runs", lambda command: commands.append([*map(str, command)]) or True)
    monkeypatch.setitem(script, "COMMAND", script["VENV"] / "bin" / "tenfold")
    monkeypatch.setattr("sys.argv", ["make-env"])
    monkeypatch.setenv("CUDA", "no")
    install(script, script["LOCKS"][0])
    assert script["main"]() == 0
    assert commands[-1][-2:] == ["--editable", str(script["ROOT"])]
    script["COMMAND"].touch()
    commands.clear()
    assert script["main"]() == 0
    assert commands == []


def test_a_failed_installation_leaves_no_stamp_and_replaces_an_earlier_environment(script: dict[str, Any]) -> None:
    script["VENV"].mkdir()
    (script["VENV"] / "half").touch()
    create = [sys.executable, "-c", f"import os; os.mkdir({str(script['VENV'])!r})"]
    base = script["LOCKS"][:1]
    assert script["make"](base, create, [sys.executable, "-c", "raise SystemExit(1)"]) is False
    assert list(script["VENV"].iterdir()) == []
    assert script["make"](base, create, [sys.executable, "-c", "pass"]) is True
    assert [path.name for path in script["VENV"].iterdir()] == ["requirements.txt.installed"]


def test_a_missing_python_is_refused_with_the_supported_versions(tmp_path: Path) -> None:
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


def test_uv_is_installed_by_its_hashes_from_the_lock_of_the_images(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pip would download it, so the test only looks at the command."""
    commands: list[list[str]] = []
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setitem(script, "runs", lambda command: commands.append([*map(str, command)]) or True)
    assert script["find_uv"](sys.executable) == script["TOOLS"] / "bin" / "uv"
    lock = script["ROOT"] / "docker" / "requirements-uv.txt"
    assert commands[-1][-3:] == ["--require-hashes", "-r", str(lock)]
