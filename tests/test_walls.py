"""The two walls, checked in a fresh process. The linter sees only direct imports, not indirect ones."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("tensorflow", "keras", "numpy", "scipy", "pandas", "comet_ml", "google.cloud.storage", "bokeh", "PIL")
TENSORS = ("pipeline.input.", "pipeline.training.")
ENGINES = ("pipeline.engines.beam", "pipeline.engines.spark")
"""Their packages are in an environment of their own, which has neither Airflow nor TensorFlow."""


def modules_after(imports: str, beside: str = "") -> set[str]:
    """Return the modules that `imports` loads in a fresh process, apart from those that `beside` already loaded."""
    script = f"{beside}\nimport sys; before = set(sys.modules)\n{imports}\nprint(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return set(done.stdout.split())


def names_of(folder: str) -> list[str]:
    """Return the import names of the modules in a folder."""
    files = sorted((ROOT / folder).rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files]
    return [name.removesuffix(".__init__") for name in names if not name.endswith("__main__") and name not in ENGINES]


def import_all(names: list[str]) -> str:
    return "\n".join(f"import {name}" for name in names)


def test_dags_and_plugins_import_no_heavy_library():
    names = names_of("dags") + names_of("plugins")
    assert "dags.image_training" in names
    drawn_in = modules_after(import_all(names), beside="from airflow.sdk import *")
    assert drawn_in.isdisjoint(HEAVY)


def test_the_pipeline_never_imports_airflow_and_only_rooms_of_tensors_import_tensorflow():
    names = names_of("pipeline")
    light = [name for name in names if not f"{name}.".startswith(TENSORS) and not name.endswith(".tensors")]
    assert 20 < len(light) < len(names)
    refusal = "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    # One process, because each import of TensorFlow takes seconds.
    modules = modules_after("\n".join((import_all(light), "import sys", refusal, import_all(names))))
    assert "tensorflow" in modules  # proves that all modules were imported
    assert not {name for name in modules if name.split(".")[0] == "airflow"}


def test_a_command_starts_without_libraries_that_few_commands_need():
    assert modules_after("import pipeline.__main__").isdisjoint({"scipy", "pandas", "bokeh", "tensorflow", "comet_ml"})


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ("pipeline", "import airflow"),
        ("pipeline", "def f():\n    import airflow.sdk\n"),
        ("pipeline", "from tensorflow import data"),
        ("pipeline/report", "import keras"),
        ("pipeline/kinds/table", "import tensorflow"),
        ("pipeline/training", "import airflow"),
        ("pipeline/input", "from airflow.sdk import task"),
        ("dags", "import numpy as np"),
        ("dags", "from google.cloud import storage"),
        ("plugins", "import comet_ml"),
        ("plugins", "import tensorflow"),
        ("benchmarks", "from tests.waiting import until"),
        ("scripts", "import tests.browser"),
        ("standins", "from tests import waiting"),
    ],
)
def test_the_linter_refuses_a_banned_import(folder: str, line: str):
    """The linter reads the line from its input, as if it were a file of the folder."""
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--select",
        "TID",
        "--stdin-filename",
        f"{folder}/planted.py",
        "-",
    ]
    done = subprocess.run(command, input=line, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1, done.stdout
    assert "TID25" in done.stdout
