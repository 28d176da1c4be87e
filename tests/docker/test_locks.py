"""The packages in the images are pinned, match every other environment, and are complete."""

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
AIRFLOW34 = "tests/requirements-airflow34.txt"
LOCKS = ["docker/requirements-airflow.txt", "requirements-cuda.txt", "docker/requirements-uv.txt", AIRFLOW34]
OURS = {"dags", "pipeline", "plugins", "scripts", "standins", "tests"}
ENGINES = ("apache_beam", "pyspark", "py4j")
"""These packages are in an environment of their own, and only the code of an engine imports them."""
ONLY_TRAINING = (
    "pipeline/training/",
    "pipeline/input/",
    "pipeline/kinds/images/tensors.py",
    "pipeline/kinds/table/tensors.py",
    "pipeline/monitor/comet.py",
    "pipeline/monitor/gpu.py",
)


def pins(lock: Path) -> dict[str, str]:
    """Version of each package."""
    return dict(re.findall(r"^([a-z0-9.-]+)==([^ ;]+)", lock.read_text(), flags=re.MULTILINE))


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_has_its_hashes(name: str):
    entries = re.split(r"\n(?! )", (ROOT / name).read_text().strip())
    assert entries
    assert all("==" in entry and "--hash=sha256:" in entry for entry in entries)


@pytest.mark.parametrize("name", LOCKS[:2])
def test_versions_match_every_other_environment(name: str):
    usual, ours = pins(ROOT / "requirements.txt"), pins(ROOT / name)
    shared = usual.keys() & ours.keys()
    assert len(shared) > 20
    assert {package: ours[package] for package in shared} == {package: usual[package] for package in shared}


def test_the_environment_of_airflow_34_differs_only_in_airflow():
    usual = pins(ROOT / "requirements.txt") | pins(ROOT / "requirements-dev.txt")
    ours = pins(ROOT / AIRFLOW34)
    assert usual.keys() <= ours.keys()
    others = {package for package, version in usual.items() if ours[package] != version}
    assert others == {"apache-airflow", "apache-airflow-core", "apache-airflow-task-sdk"}
    assert ours["apache-airflow"].startswith("3.4.")


def test_the_light_image_is_without_tensorflow():
    light = pins(ROOT / "docker/requirements-airflow.txt").keys()
    assert light < pins(ROOT / "requirements.txt").keys()
    assert light.isdisjoint(("tensorflow", "keras", "comet-ml", "h5py", "nvidia-ml-py"))


@pytest.mark.long
def test_the_light_image_has_every_package_that_its_code_imports():
    """This includes imports inside functions, which would otherwise fail only during a run."""
    installed = pins(ROOT / "docker/requirements-airflow.txt").keys()
    distributions = packages_distributions()
    imported = dict(imports_of_the_light_image())
    assert "airflow" in imported
    assert "scipy" in imported  # inside a function
    missing = {
        f"{module} in {place}"
        for module, place in imported.items()
        if installed.isdisjoint(re.sub(r"[-_.]+", "-", name).lower() for name in distributions[module])
    }
    assert not missing


def imports_of_the_light_image() -> Iterator[tuple[str, str]]:
    """Foreign modules, each with a file that imports it."""
    for folder in ("dags", "pipeline", "plugins", "scripts"):
        for path in (ROOT / folder).rglob("*.py"):
            place = path.relative_to(ROOT).as_posix()
            if not place.startswith(ONLY_TRAINING):
                for module in imports_of(path):
                    if module not in sys.stdlib_module_names and module not in (*OURS, *ENGINES):
                        yield module, place


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_everything_is_installed_from_a_lock():
    text = (ROOT / "docker/Dockerfile").read_text().replace("\\\n", "")
    installs = re.findall(r"pip install .*", text)
    assert len(installs) == 3
    assert all("--require-hashes" in install for install in installs)


def test_the_version_of_uv_is_stated_only_in_its_lock():
    """It is also in the file that the lock is compiled from. `make env` installs uv from the lock."""
    [version] = {pins(ROOT / "docker/requirements-uv.txt")["uv"]}
    assert (ROOT / "docker/uv.in").read_text().split() == [f"uv=={version}"]
    text = (ROOT / "scripts/make-env").read_text()
    assert version not in text
    assert "uv==" not in text
